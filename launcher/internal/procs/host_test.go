//go:build linux

package procs

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// testHost returns a Host whose group 0 is prepared, with a rank that runs script, and its messages
// and output.
func testHost(t *testing.T, script string) (h *Host, emitted chan proto.Message, output chan proto.Output) {
	t.Helper()
	emitted, output = make(chan proto.Message, 1000), make(chan proto.Output, 1000)
	h, err := NewHost(Config{
		Host: "node1", Own: true, Watchdog: &Watchdog{},
		Emit: func(m proto.Message) { emitted <- m },
		Output: func(o proto.Output) error {
			o.Data = slices.Clone(o.Data)
			output <- o
			return nil
		},
		Stored: func(p proto.FilePart) { emitted <- p },
	})
	require.NoError(t, err)
	t.Cleanup(h.Close)
	h.Do(testPrepare(t, 1, script))
	require.Equal(t, proto.Prepared{}, await[proto.Prepared](t, emitted))
	return h, emitted, output
}

// testGroup returns the Prepare of a spawned group of np ranks.
func testGroup(t *testing.T, group, first, np int, script string) proto.Prepare {
	m := testPrepare(t, np, script)
	m.First, m.Card.Group = first, group
	m.Card.JobID += strings.Repeat("x", group)
	m.Preput = map[string]string{"k": "v"}
	for i := range m.Plans[0].Ranks {
		m.Plans[0].Ranks[i].Rank += first
	}
	return m
}

// TestHostGroups runs a group beside group 0. Messages must have the group's number and the numbers of
// its ranks, the environment the ranks in the group. When the group has ended, group 0 must still run.
func TestHostGroups(t *testing.T) {
	h, emitted, output := testHost(t, "exec sleep 1000")
	h.Do(proto.Start{})
	require.Len(t, await[proto.Started](t, emitted).Ranks, 1)
	h.Do(testGroup(t, 3, 5, 2, "echo $PMI_RANK $PMI_SIZE $PMI_SPAWNED; exit $((PMI_RANK+2))"))
	require.Equal(t, proto.Prepared{Group: 3}, await[proto.Prepared](t, emitted))
	h.Do(proto.Start{Group: 3})
	started := await[proto.Started](t, emitted)
	require.Equal(t, []int{3, 5, 6}, []int{started.Group, started.Ranks[0].Rank, started.Ranks[1].Rank})
	ended := await[proto.Ended](t, emitted)
	require.Equal(t, 3, ended.Group)
	require.Equal(t, []int{5, 2, 6, 3}, []int{ended.Exits[0].Rank, ended.Exits[0].Code, ended.Exits[1].Rank, ended.Exits[1].Code})
	text := ""
	for len(output) > 0 {
		o := <-output
		require.Equal(t, 3, o.Group)
		text += string(o.Data)
	}
	require.ElementsMatch(t, []string{"0 2 1", "1 2 1"}, strings.Split(strings.TrimSpace(text), "\n"))

	// Messages about the group have no effect any more. An Inspect has one answer.
	h.Do(proto.Release{Group: 3, N: 1})
	h.Do(proto.FilePart{Group: 3})
	await[proto.FilePart](t, emitted) // Stored
	h.Do(proto.Inspect{N: 1})
	require.Equal(t, [][]int{{0}}, ranksOf(await[proto.Inspected](t, emitted)))
	h.Do(proto.End{Except: -1})
	require.Zero(t, await[proto.Ended](t, emitted).Group)
}

func ranksOf(m proto.Inspected) (list [][]int) {
	for _, g := range m.Groups {
		list = append(list, g.Ranks)
	}
	slices.SortFunc(list, slices.Compare)
	return list
}

// TestHostDismiss: a group that is prepared and dismissed leaves nothing. A group of which a program is
// missing can be dismissed, too. Inspect has one answer for all groups; also if a group ends before it
// has answered.
func TestHostDismiss(t *testing.T) {
	h, emitted, _ := testHost(t, "exec sleep 1000")
	h.Do(proto.Start{})
	await[proto.Started](t, emitted)
	h.Do(testGroup(t, 1, 1, 2, "exit 9"))
	await[proto.Prepared](t, emitted)
	h.Do(proto.Inspect{N: 1})
	require.Equal(t, [][]int{{0}}, ranksOf(await[proto.Inspected](t, emitted)))
	h.Do(proto.Dismiss{Group: 1})
	h.Do(proto.Start{Group: 1}) // too late

	m := testGroup(t, 2, 3, 1, "")
	m.Apps[0].Path = "/no/such"
	h.Do(m)
	require.Contains(t, await[proto.Prepared](t, emitted).Failed[0].Cause, "/no/such: no such file")
	h.Do(proto.Dismiss{Group: 2})

	h.Do(testGroup(t, 3, 4, 1, "exec sleep 1000"))
	await[proto.Prepared](t, emitted)
	h.Do(proto.Start{Group: 3})
	await[proto.Started](t, emitted)
	h.Do(proto.Inspect{N: 2})
	require.Equal(t, [][]int{{0}, {4}}, ranksOf(await[proto.Inspected](t, emitted)))
	h.Do(proto.Inspect{N: 3})
	h.Do(proto.End{Only: 3, Except: -1})
	for ended, inspected := false, false; !ended || !inspected; {
		switch m := await[proto.Message](t, emitted).(type) { // in any order
		case proto.Ended:
			require.Equal(t, 3, m.Group)
			ended = true
		case proto.Inspected:
			require.Contains(t, ranksOf(m), []int{0})
			require.False(t, ended && len(m.Groups) > 1, "it names ranks that are no longer known")
			inspected = true
		}
	}
}

// TestHostReaderGone: the reader of stdout has closed it before a group starts. The ranks of the group
// must get SIGPIPE when they write.
func TestHostReaderGone(t *testing.T) {
	h, emitted, output := testHost(t, "exec sleep 1000")
	h.Do(proto.Start{})
	await[proto.Started](t, emitted)
	h.Do(proto.OutputClosed{})
	h.Do(testGroup(t, 1, 1, 1, "while :; do echo text; done"))
	await[proto.Prepared](t, emitted)
	h.Do(proto.Start{Group: 1})
	e := await[proto.Ended](t, emitted).Exits[0]
	require.Equal(t, 13, e.Signal|e.Code&^128, "%+v", e)
	for len(output) > 0 {
		require.Equal(t, 1, (<-output).Group)
	}
}
