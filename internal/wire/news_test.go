package wire

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNews(t *testing.T) {
	for _, c := range []struct {
		ranks  []int
		reason string
		line   string
		told   string // the reason that is read
	}{
		{[]int{3}, "killed by signal 9 (SIGKILL) on node2", "failed 3 killed by signal 9 (SIGKILL) on node2\n", "killed by signal 9 (SIGKILL) on node2"},
		{[]int{9, 3, 8, 7, 3}, "host node3 does not answer", "failed 3,7-9 host node3 does not answer\n", "host node3 does not answer"},
		{[]int{0, 1}, "", "failed 0-1\n", ""},
		{[]int{0}, " \n two\tlines \r\n", "failed 0 two lines\n", "two lines"},
		{[]int{0}, "\xff\x00é", "failed 0 é\n", "é"},
	} {
		line := AppendNews([]byte("before "), c.ranks, c.reason)
		require.Equal(t, "before "+c.line, string(line))
		_, reason, err := ParseNews([]byte(c.line), 10)
		require.NoError(t, err)
		require.Equal(t, c.told, reason)
	}
	require.Empty(t, AppendNews(nil, nil, "nobody"))
	ranks, _, err := ParseNews([]byte("failed 3,7-9 x"), 10)
	require.NoError(t, err)
	require.Equal(t, []int{3, 7, 8, 9}, ranks)
}

// TestNewsOfMany has more ranks fail than a line names.
func TestNewsOfMany(t *testing.T) {
	var ranks []int
	for r := 0; r < 1<<16; r += 2 {
		ranks = append(ranks, r)
	}
	var told []int
	for line := range bytes.Lines(AppendNews(nil, ranks, strings.Repeat("ö", 1<<20))) {
		require.LessOrEqual(t, len(line), NewsMaxLine)
		some, reason, err := ParseNews(line, 1<<16)
		require.NoError(t, err)
		require.Equal(t, strings.Repeat("ö", (newsMaxReason-1)/2), reason)
		told = append(told, some...)
	}
	require.Equal(t, ranks, told)
}

func TestNewsErrors(t *testing.T) {
	for _, c := range []struct {
		line string
		want error
	}{
		{"", ErrNewsVerb},
		{"failed", ErrNewsVerb},
		{"saved 3", ErrNewsVerb},
		{"failed 3\nfailed 4\n", ErrNewsVerb},
		{"failed ", ErrNewsRanks},
		{"failed  3", ErrNewsRanks},
		{"failed 3,", ErrNewsRanks},
		{"failed ,3", ErrNewsRanks},
		{"failed +3", ErrNewsRanks},
		{"failed 03", ErrNewsRanks},
		{"failed -3", ErrNewsRanks},
		{"failed 3-", ErrNewsRanks},
		{"failed 3-3", ErrNewsRanks},
		{"failed 3-1", ErrNewsRanks},
		{"failed 3,3", ErrNewsRanks},
		{"failed 4,3", ErrNewsRanks},
		{"failed 1-3,2", ErrNewsRanks},
		{"failed 1-2-3", ErrNewsRanks},
		{"failed x", ErrNewsRanks},
		{"failed 10", ErrNewsSize},
		{"failed 9-10 x", ErrNewsSize},
		{"failed 99999999999999999999999999", ErrNewsSize},
		{"failed 3 " + strings.Repeat("x", NewsMaxLine), ErrNewsLong},
	} {
		_, _, err := ParseNews([]byte(c.line), 10)
		require.ErrorIs(t, err, c.want, c.line)
	}
}

func FuzzNews(f *testing.F) {
	f.Add(AppendNews(nil, []int{3, 7, 8, 9}, "killed by signal 9"), 10)
	f.Add(AppendNews(nil, []int{0}, ""), 1)
	f.Add([]byte("failed 0-16777215 "), 1<<24)
	f.Add([]byte("failed 1,1"), 4)
	f.Fuzz(func(t *testing.T, line []byte, size int) {
		ranks, reason, err := ParseNews(line, min(size, 1<<20))
		if err != nil {
			require.Empty(t, ranks)
			return
		}
		require.NotEmpty(t, ranks)
		require.Less(t, ranks[len(ranks)-1], size)
		var again []int
		for l := range bytes.Lines(AppendNews(nil, ranks, reason)) {
			some, why, err := ParseNews(l, size)
			require.NoError(t, err)
			require.True(t, strings.HasPrefix(reason, why))
			again = append(again, some...)
		}
		require.Equal(t, ranks, again)
	})
}
