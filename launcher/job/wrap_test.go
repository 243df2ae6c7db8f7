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
	require.Nil(t, w.Of(0, "a", "/x"))
	require.Nil(t, w.Of(2, "a", "/x"))
	require.Nil(t, w.Of(5, "a", "/x"))
	require.Equal(t, []string{"perf", "-o", "p.1.a.%", "%r", "/x"}, w.Of(1, "a", "/x"))
	require.NotNil(t, w.Of(4, "a", "/x"))
	require.Nil(t, (*Wrapper)(nil).Of(0, "a", "/x"))

	w, ok = ParseWrapper("dlv exec %p -- %%p")
	require.True(t, ok)
	require.Equal(t, []string{"dlv", "exec", "/x", "--", "%p"}, w.Of(0, "a", "/x"))
	w, ok = ParseWrapper("echo %%p")
	require.True(t, ok)
	require.Equal(t, []string{"echo", "%p", "/x"}, w.Of(0, "a", "/x"))
}

// TestDebug: -debug must be a -wrap with the debugger, for the ranks that it names.
func TestDebug(t *testing.T) {
	require.Equal(t, debuggers["dlv"], parse(t, nil, "-debug", "dlv", "x").Wrap)
	require.Equal(t, "0,3-5:"+debuggers["gdb"], parse(t, nil, "-debug", "0,3-5:gdb", "x").Wrap)
	for _, text := range []string{"", "lldb", "0:", "2-1:dlv", "0:dlv exec"} {
		_, _, err := Parse([]string{"-debug", text, "x"}, nil)
		require.ErrorContains(t, err, "-debug: expected dlv, gdb, or RANKS", text)
	}
}
