package tree

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/tree/treetest"
)

// TestClean checks that clean replaces control characters in each text of a message, cuts texts that
// are too long, and makes exit codes and signals valid.
func TestClean(t *testing.T) {
	const nasty = " \x1b[2Ja\nb\r\tc\xff\u202e "
	const tame = "?[2Ja b  c??"
	for _, c := range []struct{ in, out proto.Message }{
		{proto.Up{Agents: []proto.Agent{{Hostname: nasty}}, Failed: []proto.HostError{{Code: 256, Cause: nasty}, {Code: 0}}},
			proto.Up{Agents: []proto.Agent{{Hostname: tame}}, Failed: []proto.HostError{{Code: 255, Cause: tame}, {Code: 0}}}},
		{proto.Prepared{Failed: []proto.HostError{{Code: -1, Cause: nasty}}}, proto.Prepared{Failed: []proto.HostError{{Code: 1, Cause: tame}}}},
		{proto.Staged{Failed: []proto.HostError{{Code: 127, Cause: nasty}}}, proto.Staged{Failed: []proto.HostError{{Code: 127, Cause: tame}}}},
		{proto.Started{}, proto.Started{}},
		{proto.Started{Failed: &proto.StartFailure{Reason: nasty}}, proto.Started{Failed: &proto.StartFailure{Code: 1, Reason: tame}}},
		{proto.Aborted{Code: 512, Reason: nasty}, proto.Aborted{Code: 255, Reason: tame}},
		{proto.Exited{Exit: proto.Exit{Code: 256, Signal: -9}}, proto.Exited{Exit: proto.Exit{Code: 255}}},
		{proto.Exited{Exit: proto.Exit{Account: &wire.Account{Waited: -1}}}, proto.Exited{}},
		{proto.Exited{Exit: proto.Exit{Account: &wire.Account{Waited: 1}}}, proto.Exited{Exit: proto.Exit{Account: &wire.Account{Waited: 1}}}},
		{proto.Lost{Cause: nasty}, proto.Lost{Cause: tame}},
		{proto.Log{Line: nasty}, proto.Log{Line: tame}},
		{proto.Fence{N: 1}, proto.Fence{N: 1}},
	} {
		require.Equal(t, c.out, clean(c.in))
	}
	for _, long := range []string{strings.Repeat("x", 1<<20), strings.Repeat("é", 900), strings.Repeat("𝄞", 401)} {
		line := oneLine(long)
		require.LessOrEqual(t, utf8.RuneCountInString(line), maxText)
		require.Greater(t, utf8.RuneCountInString(line), maxText-10)
		require.True(t, strings.HasSuffix(line, "…"))
		require.True(t, utf8.ValidString(line))
	}
	require.Equal(t, strings.Repeat("é", maxText), oneLine(strings.Repeat("é", maxText)))

	lines := strings.Split(strings.Repeat("a\n", 100), "\n")
	m := clean(proto.Ended{Exits: []proto.Exit{{Code: 300}}, Tails: []proto.Tail{{Lines: lines}, {Lines: []string{"first", strings.Repeat("é", 1<<20), "last"}}}}).(proto.Ended)
	require.Equal(t, 255, m.Exits[0].Code)
	require.Equal(t, lines[:maxTailLines], m.Tails[0].Lines)
	require.Len(t, m.Tails[1].Lines, 2)
	require.Equal(t, "first", m.Tails[1].Lines[0])
	require.InDelta(t, maxTailBytes-len("first"), len(m.Tails[1].Lines[1]), 2)
	require.True(t, utf8.ValidString(m.Tails[1].Lines[1]))
}

// TestPerRank checks that a node accepts an Output of a single rank only if Prepare.PerRank is set,
// and an Output of merged streams only if it is not set.
func TestPerRank(t *testing.T) {
	for stream, want := range map[int]bool{proto.Merged: false, 0: true, 1: false} {
		for _, each := range []bool{false, true} {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, 2, 2)
				w.each = each
				w.agent = func(index int, s *treetest.Stream) bool {
					if index != 0 {
						return false
					}
					for _, m := range []proto.Message{proto.Up{Agents: []proto.Agent{{Index: 0}}}, proto.Prepared{}, proto.Started{},
						proto.Output{Index: 0, Stream: stream, Data: []byte("x\n")}, proto.Bye{}} {
						_, _ = s.Write(frames(t, m))
						time.Sleep(time.Second)
					}
					return true
				}
				w.launch()
				defer w.close()
				one[proto.Lost](w)
				ok := want && each || stream == proto.Merged && !each
				require.Equal(t, ok, len(got[proto.Output](w)) == 1)
			})
		}
	}
}
