package wire

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFailures(t *testing.T) {
	for _, c := range []struct {
		ranks  []int
		reason string
		line   string
		parsed string // reason that ParseFailures returns for line
	}{
		{[]int{3}, "killed by signal 9 (SIGKILL) on node2", "failed 3 killed by signal 9 (SIGKILL) on node2\n", "killed by signal 9 (SIGKILL) on node2"},
		{[]int{9, 3, 8, 7, 3}, "host node3 does not answer", "failed 3,7-9 host node3 does not answer\n", "host node3 does not answer"},
		{[]int{0, 1}, "", "failed 0-1\n", ""},
		{[]int{0}, " \n two\tlines \r\n", "failed 0 two lines\n", "two lines"},
		{[]int{0}, "\xff\x00é", "failed 0 é\n", "é"},
	} {
		line := AppendFailures([]byte("before "), "", c.ranks, c.reason)
		require.Equal(t, "before "+c.line, string(line))
		_, _, reason, err := ParseFailures([]byte(c.line), 10)
		require.NoError(t, err)
		require.Equal(t, c.parsed, reason)
	}
	require.Empty(t, AppendFailures(nil, "", nil, "nobody"))
	job, ranks, _, err := ParseFailures([]byte("failed 3,7-9 x"), 10)
	require.NoError(t, err)
	require.Equal(t, []int{3, 7, 8, 9}, ranks)
	require.Empty(t, job)
	require.Equal(t, "failed in f0 3,7 x\n", string(AppendFailures(nil, "f0", []int{7, 3}, "x")))
	job, ranks, reason, err := ParseFailures([]byte("failed in f0 3,70 in time\n"), 2) // the size of another job is not known
	require.NoError(t, err)
	require.Equal(t, []int{3, 70}, ranks)
	require.Equal(t, "f0", job)
	require.Equal(t, "in time", reason)
}

// TestFailuresInSeveralLines: more ranks have failed than fit into one line. AppendFailures writes
// several lines, each within the limit, and ParseFailures returns all ranks.
func TestFailuresInSeveralLines(t *testing.T) {
	var ranks []int
	for r := 0; r < 1<<16; r += 2 {
		ranks = append(ranks, r)
	}
	var parsed []int
	for line := range bytes.Lines(AppendFailures(nil, "0123456789abcdef", ranks, strings.Repeat("ö", 1<<20))) {
		require.LessOrEqual(t, len(line), FailuresMaxLine)
		job, some, reason, err := ParseFailures(line, 1)
		require.NoError(t, err)
		require.Equal(t, "0123456789abcdef", job)
		require.Equal(t, strings.Repeat("ö", (failuresMaxReason-1)/2), reason)
		parsed = append(parsed, some...)
	}
	require.Equal(t, ranks, parsed)
}

func TestFailuresErrors(t *testing.T) {
	for _, c := range []struct {
		line string
		want error
	}{
		{"", ErrFailuresVerb},
		{"failed", ErrFailuresVerb},
		{"saved 3", ErrFailuresVerb},
		{"failed 3\nfailed 4\n", ErrFailuresVerb},
		{"failed ", ErrFailuresRanks},
		{"failed  3", ErrFailuresRanks},
		{"failed 3,", ErrFailuresRanks},
		{"failed ,3", ErrFailuresRanks},
		{"failed +3", ErrFailuresRanks},
		{"failed 03", ErrFailuresRanks},
		{"failed -3", ErrFailuresRanks},
		{"failed 3-", ErrFailuresRanks},
		{"failed 3-3", ErrFailuresRanks},
		{"failed 3-1", ErrFailuresRanks},
		{"failed 3,3", ErrFailuresRanks},
		{"failed 4,3", ErrFailuresRanks},
		{"failed 1-3,2", ErrFailuresRanks},
		{"failed 1-2-3", ErrFailuresRanks},
		{"failed x", ErrFailuresRanks},
		{"failed 10", ErrFailuresSize},
		{"failed 9-10 x", ErrFailuresSize},
		{"failed 99999999999999999999999999", ErrFailuresSize},
		{"failed in", ErrFailuresRanks},
		{"failed in ", ErrFailuresJob},
		{"failed in  3", ErrFailuresJob},
		{"failed in " + strings.Repeat("f", 65) + " 3", ErrFailuresJob},
		{"failed in f", ErrFailuresRanks},
		{"failed in f x", ErrFailuresRanks},
		{"failed in f 16777216", ErrFailuresSize},
		{"failed 3 " + strings.Repeat("x", FailuresMaxLine), ErrFailuresLong},
	} {
		_, _, _, err := ParseFailures([]byte(c.line), 10)
		require.ErrorIs(t, err, c.want, c.line)
	}
}

func FuzzFailures(f *testing.F) {
	f.Add(AppendFailures(nil, "", []int{3, 7, 8, 9}, "killed by signal 9"), 10)
	f.Add(AppendFailures(nil, "0123456789abcdef", []int{3, 7, 8, 9}, "killed by signal 9"), 10)
	f.Add(AppendFailures(nil, "", []int{0}, ""), 1)
	f.Add([]byte("failed 0-16777215 "), 1<<24)
	f.Add([]byte("failed 1,1"), 4)
	f.Fuzz(func(t *testing.T, line []byte, size int) {
		job, ranks, reason, err := ParseFailures(line, min(size, 1<<20))
		if err != nil {
			require.Empty(t, ranks)
			return
		}
		require.NotEmpty(t, ranks)
		if job == "" {
			require.Less(t, ranks[len(ranks)-1], size)
		}
		var again []int
		for l := range bytes.Lines(AppendFailures(nil, job, ranks, reason)) {
			in, some, why, err := ParseFailures(l, size)
			require.NoError(t, err)
			require.Equal(t, job, in)
			require.True(t, strings.HasPrefix(reason, why))
			again = append(again, some...)
		}
		require.Equal(t, ranks, again)
	})
}
