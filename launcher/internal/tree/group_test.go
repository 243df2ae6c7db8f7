package tree

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/tree/treetest"
)

// groupOn returns a Prepare of a group with one rank on each of hosts. first is the number of its rank
// 0 in the job.
func groupOn(id, first int, hosts ...int) proto.Prepare {
	p := proto.Prepare{First: first, Stdin: "none", Card: bootstrap.Card{JobID: fmt.Sprint("group", id), Group: id, Size: len(hosts)}}
	for i, h := range hosts {
		p.Plans = append(p.Plans, proto.Plan{Index: h, Ranks: []proto.Rank{{Rank: first + i}}})
	}
	return p
}

// last waits until the root has got n messages of type M, and returns the last.
func last[M proto.Message](w *world, n int) M {
	w.t.Helper()
	for range 1000 {
		synctest.Wait()
		if list := got[M](w); len(list) >= n {
			require.Len(w.t, list, n)
			return list[n-1]
		}
		time.Sleep(time.Second)
	}
	var m M
	require.FailNow(w.t, fmt.Sprintf("%T %d did not come", m, n))
	return m
}

// TestGroups starts two groups beside group 0, on some of the hosts. Their messages must go to these
// hosts only, and each answer must come once for the whole group. A group that has ended must be
// forgotten, and group 0 must continue.
func TestGroups(t *testing.T) {
	for _, radix := range []int{64, 2, 1} {
		bubble(t, func(t *testing.T) {
			const count = 5
			w := newWorld(t, count, radix)
			w.procs = func(c *treetest.Procs) { c.Fences = 1 }
			w.launch()
			defer w.close()
			first := count * w.ranks
			for id, hosts := range map[int][]int{1: {1, 3}} {
				w.root.Do(groupOn(id, first, hosts...))
			}
			require.Equal(t, proto.Prepared{Group: 1}, last[proto.Prepared](w, 2))
			w.root.Do(proto.Start{Group: 1})
			started := last[proto.Started](w, 2)
			require.Equal(t, 1, started.Group)
			require.Len(t, started.Ranks, 2)
			require.Equal(t, first+1, started.Ranks[1].Rank)

			w.root.Do(groupOn(2, first+2, 4))
			require.Equal(t, proto.Prepared{Group: 2}, last[proto.Prepared](w, 3))
			w.root.Do(proto.Dismiss{Group: 2})
			w.root.Do(groupOn(3, first+3, 0, 1))
			require.Equal(t, proto.Prepared{Group: 3}, last[proto.Prepared](w, 4))
			w.root.Do(proto.Start{Group: 3})
			require.Equal(t, 3, last[proto.Started](w, 3).Group)

			fences := got[proto.Fence](w) // one of each group
			require.Len(t, fences, 3)
			w.root.Do(proto.Release{Group: 1, N: 1})
			w.hostProcs[1].Emit(proto.Spawn{Rank: first, Request: wire.Spawn{}})
			require.Equal(t, first, last[proto.Spawn](w, 1).Rank)
			w.root.Do(proto.Reply{Rank: first, Line: []byte("x")})
			w.root.Do(proto.Watch{Group: 1})
			w.root.Do(proto.RanksFailed{Group: 1, Ranks: []int{0}})
			w.hostProcs[3].Emit(proto.State{Group: 1, Index: 3, Left: first + 1, Absent: -1})
			require.Equal(t, 1, last[proto.State](w, 1).Group)
			require.NoError(t, w.nodes[1].Output(proto.Output{Index: 1, Group: 1, Stream: proto.Merged, Data: []byte("text\n")}))
			require.Equal(t, 1, last[proto.Output](w, 1).Group)

			w.root.Do(proto.End{Only: 1, Except: -1})
			ended := last[proto.Ended](w, 1)
			require.Equal(t, 1, ended.Group)
			require.Len(t, ended.Exits, 2)
			// Messages that crossed the end of the group have no effect.
			w.root.Do(proto.Release{Group: 1, N: 2})
			w.root.Do(proto.Watch{Group: 1})
			w.root.Do(proto.Dismiss{Group: 2})
			time.Sleep(time.Second)
			synctest.Wait()
			require.Empty(t, got[proto.Log](w))
			for i := range count {
				kinds := ""
				for _, m := range w.hostProcs[i].Got()[2:] {
					kinds += fmt.Sprintf("%T", m)[len("proto."):] + " "
				}
				require.Equal(t, []string{
					"Prepare Start ", "Prepare Start Prepare Start Release Reply Watch RanksFailed End ", "",
					"Prepare Start Release Watch RanksFailed End ", "Prepare Dismiss ",
				}[i], kinds, "host %d", i)
			}

			// A group that never existed, or a number that was used, is an error.
			w.root.Do(proto.Start{Group: 9})
			w.root.Do(groupOn(2, first+9, 1))
			w.root.Do(groupOn(4, first, 1))
			time.Sleep(time.Second)
			synctest.Wait()
			require.Len(t, got[proto.Log](w), 3)

			w.root.Do(proto.End{Except: -1})
			synctest.Wait()
			time.Sleep(time.Second)
			require.Len(t, got[proto.Ended](w), 3)
			require.Empty(t, got[proto.Lost](w))
		})
	}
}

// TestGroupOnLostHost prepares a group on a host that is lost. The answer must name the host.
func TestGroupOnLostHost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 3, 64)
		w.launch()
		defer w.close()
		w.pipes[1].Cut()
		one[proto.Lost](w)
		w.root.Do(groupOn(1, 3*w.ranks, 1, 2))
		p := last[proto.Prepared](w, 2)
		require.Equal(t, 1, p.Group)
		require.Len(t, p.Failed, 1)
		require.Equal(t, 1, p.Failed[0].Index)
		w.root.Do(proto.Dismiss{Group: 1})
		w.root.Do(groupOn(2, 3*w.ranks+2, 2))
		require.Empty(t, last[proto.Prepared](w, 3).Failed)
	})
}

// TestHostileGroups: an agent that reports about groups or ranks that it does not have is lost.
func TestHostileGroups(t *testing.T) {
	for name, m := range map[string]proto.Message{
		"unknown group":   proto.Prepared{Group: 7},
		"other group":     proto.Fence{Group: 2, N: 1},
		"rank elsewhere":  proto.Spawn{Rank: 0},
		"rank of group 0": proto.Ended{Group: 1, Exits: []proto.Exit{{Rank: 1}}},
		"twice":           proto.Started{Group: 1},
		"output":          proto.Output{Index: 1, Group: 2, Stream: proto.Merged},
		"state":           proto.State{Group: 1, Index: 1, Left: 1, Absent: -1},
	} {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, 3, 64)
			w.launch()
			defer w.close()
			w.root.Do(groupOn(1, 3*w.ranks, 1, 2))
			last[proto.Prepared](w, 2)
			w.root.Do(proto.Start{Group: 1})
			last[proto.Started](w, 2)
			w.root.Do(groupOn(2, 3*w.ranks+2, 2))
			last[proto.Prepared](w, 3)
			w.nodes[1].up(m)
			require.Equal(t, 1, last[proto.Lost](w, 1).First, name)
		})
	}
}
