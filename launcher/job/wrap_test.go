package job

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseWrapperper(t *testing.T) {
	for text, want := range map[string]*Wrapper{
		"":                   nil,
		"strace -f":          {Argv: []string{"strace", "-f"}},
		"3:'a b' c":          {Argv: []string{"a b", "c"}, Ranks: []RankRange{{3, 3}}},
		"0,3-5:perf -o p.%r": {Argv: []string{"perf", "-o", "p.%r"}, Ranks: []RankRange{{0, 0}, {3, 5}}},
		"env A=1,2:3 x":      {Argv: []string{"env", "A=1,2:3", "x"}},
		"host:port":          {Argv: []string{"host:port"}},
		"65535:x":            {Argv: []string{"x"}, Ranks: []RankRange{{65535, 65535}}},
	} {
		w, ok := ParseWrapper(text)
		require.True(t, ok, text)
		require.Equal(t, want, w, text)
	}
	for _, text := range []string{"0:", " ", "''", "'a", "2-1:x", "1,1:x", "3,2:x", "65536:x", "99999999999999999999:x"} {
		_, ok := ParseWrapper(text)
		require.False(t, ok, text)
	}
}

func TestWrapOf(t *testing.T) {
	w, ok := ParseWrapper("1,3-4:perf -o p.%r.%h.%% %%r")
	require.True(t, ok)
	require.Nil(t, w.Of(0, "a"))
	require.Nil(t, w.Of(2, "a"))
	require.Nil(t, w.Of(5, "a"))
	require.Equal(t, []string{"perf", "-o", "p.1.a.%", "%r"}, w.Of(1, "a"))
	require.NotNil(t, w.Of(4, "a"))
	require.Nil(t, (*Wrapper)(nil).Of(0, "a"))
}
