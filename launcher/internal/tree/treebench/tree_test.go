package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRoot checks that the number of messages of the root, and of each agent, depends only on the
// number of its children, not on the number of all agents, and that each phase takes one round trip
// per level.
func TestRoot(t *testing.T) {
	s, sizes, ok := parse(new(strings.Builder), []string{"-agents", "4,20,84", "-radix", "4", "-ranks", "2", "-output", "0"})
	require.True(t, ok)
	for i, n := range sizes {
		s.agents = n
		r := simulate(t, s)
		const kinds = 7 // Up, Prepared, Started, two Fences, Ended, Bye; as many go down
		require.EqualValues(t, 4*kinds, r.root.MessagesIn, n)
		require.EqualValues(t, 4*kinds, r.root.MessagesOut, n)
		if i > 0 {
			require.EqualValues(t, 5*2*kinds, r.busiest, n)
		}
		require.Len(t, r.took, len(phaseNames))
		for k, name := range phaseNames {
			levels := i + 1
			switch name {
			case phaseNames[0]:
				require.Equal(t, r.took[k], s.connect*time.Duration(levels)+2*s.latency*time.Duration(levels))
			case "output":
			default:
				require.Equal(t, r.took[k], 2*s.latency*time.Duration(levels), name)
			}
		}
	}
}

func TestTable(t *testing.T) {
	s, sizes, ok := parse(new(strings.Builder), []string{"-agents", "1,9", "-radix", "3", "-output", "100000", "-puts", "10"})
	require.True(t, ok)
	var out strings.Builder
	table(t, &out, s, sizes)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 6)
	for _, l := range lines[2:] {
		require.Equal(t, strings.Count(lines[2], "|"), strings.Count(l, "|"), l)
	}
	require.Contains(t, lines[5], "| 9 | 2 |")
}

func TestUsage(t *testing.T) {
	for _, args := range []string{"-agents 0", "-agents 1,x", "-radix 0", "-nothing", "more", "-agents 100000"} {
		var out strings.Builder
		_, _, ok := parse(&out, strings.Fields(args))
		require.False(t, ok, args)
		require.NotEmpty(t, out.String())
	}
}
