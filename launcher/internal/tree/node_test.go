package tree

import (
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/tree/treetest"
)

// shapes returns the sizes of the trees in the tests. Each is a number of hosts and a radix.
func shapes() [][2]int {
	var list [][2]int
	for _, count := range []int{1, 2, 3, 5, 7, 64} {
		for _, radix := range []int{1, 2, 3, 64} {
			list = append(list, [2]int{count, radix})
		}
	}
	return append(list, [2]int{1000, 3}, [2]int{1000, 64})
}

// TestStart runs a whole job on trees of all shapes, with and without ranks on gorun's own host. It
// checks the messages that gorun and each host get, and their order.
func TestStart(t *testing.T) {
	for _, s := range shapes() {
		for _, own := range []bool{false, true} {
			if own && s[0] > 64 && s[1] < 64 {
				continue // takes long and tests nothing new
			}
			t.Run(fmt.Sprintf("%d by %d own %v", s[0], s[1], own), func(t *testing.T) {
				bubble(t, func(t *testing.T) { wholeJob(t, s[0], s[1], own) })
			})
		}
	}
}

func wholeJob(t *testing.T, count, radix int, own bool) {
	w := newWorld(t, count, radix)
	if own {
		w.withRanks()
	}
	w.procs = func(c *treetest.Procs) {
		c.Puts = func(n int) map[string]string { return map[string]string{fmt.Sprint(c.Index%64, ".", n): "x"} }
	}
	w.start()
	defer w.close()
	up := one[proto.Up](w)
	require.Empty(t, up.Failed)
	require.Len(t, up.Agents, count)
	for i, a := range up.Agents {
		require.Equal(t, i, a.Index)
		require.Equal(t, hostName(i), a.Hostname)
	}
	if Depth(count, radix) == 1 {
		require.LessOrEqual(t, w.most, w.l.AtOnce)
	}

	w.root.Do(w.prepare())
	one[proto.Prepared](w)
	plans := w.prepare().Plans
	for i := range count {
		p := w.hostProcs[i].Got()[0].(proto.Prepare)
		require.Equal(t, plans[i:i+1], p.Plans)
	}
	w.root.Do(proto.Start{})
	started := one[proto.Started](w)
	require.Len(t, started.Ranks, count*w.ranks)
	for i, r := range started.Ranks {
		require.Equal(t, i, r.Rank)
	}
	for n := 1; n <= 2; n++ {
		time.Sleep(time.Second)
		synctest.Wait()
		fences := got[proto.Fence](w)
		require.Len(t, fences, n)
		require.Equal(t, n, fences[n-1].N)
		require.Len(t, fences[n-1].Puts, min(count, 64))
		w.root.Do(proto.Release{N: n, Puts: fences[n-1].Puts})
	}
	time.Sleep(time.Second)
	for i := range count {
		w.nodes[i].Do(nil2log(i)) // no message that goes down the tree: the node answers by a Log
	}
	time.Sleep(time.Second)
	synctest.Wait()
	require.Len(t, got[proto.Log](w), count)

	w.root.Do(proto.Reply{Rank: count*w.ranks - 1, Line: []byte("x")})
	w.root.Do(proto.Signal{Signal: 10})
	w.root.Do(proto.Watch{})
	w.root.Do(proto.RanksFailed{Ranks: []int{1}})
	w.root.Do(proto.End{Grace: time.Second, Except: -1})
	w.root.Do(proto.End{Except: -1})
	ended := one[proto.Ended](w)
	require.Len(t, ended.Exits, count*w.ranks)
	for i, e := range ended.Exits {
		require.Equal(t, i, e.Rank)
	}
	for i := range count {
		var kinds []string
		for _, m := range w.hostProcs[i].Got() {
			kinds = append(kinds, fmt.Sprintf("%T", m)[len("proto."):])
		}
		want := []string{"Prepare", "Start", "Release", "Release", "Signal", "Watch", "RanksFailed", "End", "End"}
		if i == count-1 {
			want = []string{"Prepare", "Start", "Release", "Release", "Reply", "Signal", "Watch", "RanksFailed", "End", "End"}
		}
		require.Equal(t, want, kinds, i)
	}
	require.Empty(t, got[proto.Lost](w))
	w.close()
	for i := range count {
		require.NoError(t, w.serves[i])
	}
}

// nil2log makes a message that never goes down the tree.
func nil2log(i int) proto.Message { return proto.Exited{Exit: proto.Exit{Rank: i}} }

// TestCloseEarly closes a root at several times before it has reported Up, and checks that all agents
// end.
func TestCloseEarly(t *testing.T) {
	for _, after := range []time.Duration{0, testConnect / 2, testConnect, testConnect + testLatency, 3 * testConnect} {
		t.Run(after.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, 7, 2)
				w.start()
				time.Sleep(after)
				w.close()
			})
		})
	}
}

// TestRetry checks that, if the head of a subtree fails, the next host of the subtree becomes its
// head, and that Up contains each host once.
func TestRetry(t *testing.T) {
	for _, s := range [][2]int{{1, 1}, {7, 2}, {64, 3}, {64, 64}} {
		for _, bad := range []int{2, 3, 1} {
			t.Run(fmt.Sprintf("%d by %d, one of %d", s[0], s[1], bad), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					w := newWorld(t, s[0], s[1])
					fails := func(i int) bool { return i%bad == 0 }
					w.open = func(i int) error {
						if fails(i) && i%2 == 0 {
							return fmt.Errorf("port %d: connection refused", i)
						}
						return nil
					}
					w.mkErr = func(i int) error {
						if fails(i) {
							return fmt.Errorf("agent %s has no topology", hostName(i))
						}
						return nil
					}
					w.start()
					defer w.close()
					up := one[proto.Up](w)
					require.Equal(t, s[0], len(up.Agents)+len(up.Failed))
					require.Len(t, w.partial, s[0])
					for _, a := range up.Agents {
						require.False(t, fails(a.Index))
					}
					for _, f := range up.Failed {
						require.True(t, fails(f.Index))
						want := hostName(f.Index) + ": port " + strconv.Itoa(f.Index) + ": connection refused"
						if f.Index%2 == 1 {
							want = "agent " + hostName(f.Index) + " has no topology"
						}
						require.Equal(t, want, f.Cause)
					}
					// The job continues on the other hosts.
					p := w.prepare()
					w.root.Do(p)
					one[proto.Prepared](w)
					w.root.Do(proto.Start{})
					require.Len(t, one[proto.Started](w).Ranks, len(up.Agents)*w.ranks)
					w.root.Do(proto.End{})
					one[proto.Ended](w)
				})
			})
		}
	}
}
