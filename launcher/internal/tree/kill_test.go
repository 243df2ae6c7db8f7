package tree

import (
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/tree/treetest"
)

// breaks holds ways to make a link fail.
var breaks = map[string]func(p *treetest.Pipe){
	"cut":   (*treetest.Pipe).Cut,
	"stall": func(p *treetest.Pipe) { p.Stall(true) },
	"end":   func(p *treetest.Pipe) { _ = p.Child.Close() },
	"leave": func(p *treetest.Pipe) { _ = p.Parent.Close() },
}

// TestKill breaks each link at each step of a job: before each message that a process manager or
// the root gets. It checks that the job always ends, with the hosts that are left, and that each
// host behind the link is reported as lost or failed.
func TestKill(t *testing.T) {
	const count, radix = 7, 2 // below gorun: 0 with 1, 2 and 3 below it, and 4 with 5 and 6 below it
	for name, breakLink := range breaks {
		t.Run(name, func(t *testing.T) {
			for _, victim := range []int{0, 1, 3, 6} {
				for at, hit := int64(1), true; hit; at++ {
					bubble(t, func(t *testing.T) { hit = killAt(t, count, radix, victim, at, breakLink) })
					if t.Failed() {
						t.Fatalf("victim %d at message %d", victim, at)
					}
					if testing.Short() {
						at += 6
					}
				}
			}
		})
	}
}

func killAt(t *testing.T, count, radix, victim int, at int64, breakLink func(*treetest.Pipe)) (hit bool) {
	w := newWorld(t, count, radix)
	w.auto, w.stdin = true, "all"
	w.procs = func(c *treetest.Procs) { c.Need = []string{testHash} }
	var events atomic.Int64
	w.event = func() {
		if events.Add(1) != at {
			return
		}
		w.mu.Lock()
		p := w.pipes[victim]
		w.mu.Unlock()
		if p != nil {
			breakLink(p)
		}
	}
	w.start()
	select {
	case <-w.jobEnded:
	case <-time.After(10 * time.Minute):
		t.Error("the job does not end")
	}
	time.Sleep(testHeartbeat * 2)
	up := got[proto.Up](w)
	require.Len(t, up, 1)
	require.Equal(t, count, len(up[0].Agents)+len(up[0].Failed))
	down := make([]bool, count)
	for _, f := range up[0].Failed {
		down[f.Index] = true
		require.True(t, strings.HasPrefix(f.Cause, hostName(f.Index)+": "), f.Cause)
	}
	for _, l := range got[proto.Lost](w) {
		require.True(t, strings.HasPrefix(l.Cause, hostName(l.First)+": "), l.Cause)
	}
	require.Len(t, got[proto.Prepared](w), 1)
	require.Len(t, got[proto.Staged](w), 1)
	require.Len(t, got[proto.Started](w), 1)
	require.Len(t, got[proto.Fence](w), 2)
	require.Empty(t, got[proto.Log](w))
	ended := got[proto.Ended](w)
	require.Len(t, ended, 1)
	exits := make(map[int]bool)
	for _, e := range ended[0].Exits {
		exits[e.Rank] = true
	}
	for i := range count {
		for r := range w.ranks {
			if !exits[r*count+i] && !w.lost[i] && !down[i] {
				require.Fail(t, fmt.Sprintf("neither an exit nor a loss of host %d is reported", i))
			}
		}
	}
	w.close()
	for i, err := range w.serves {
		if err == nil {
			continue
		}
		// This agent has lost its parent, so it must have ended its ranks.
		messages := w.hostProcs[i].Got()
		started := false
		for _, m := range messages {
			_, ok := m.(proto.Start)
			started = started || ok
		}
		if started {
			require.Contains(t, messages, proto.Message(proto.End{Except: -1}), i)
		}
		require.Equal(t, proto.Message(proto.Bye{}), messages[len(messages)-1])
	}
	return events.Load() >= at
}

// TestSilent checks that a host that hangs is lost after about one heartbeat, not earlier and not
// much later, and that an idle host is not lost.
func TestSilent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 7, 2)
		w.launch()
		defer w.close()
		time.Sleep(time.Hour)
		require.Empty(t, got[proto.Lost](w))
		w.pipes[4].Stall(true)
		begun := time.Now()
		lost := one[proto.Lost](w)
		require.Equal(t, proto.Lost{First: 4, Count: 3, Cause: "host4: no sign of life for 5s"}, lost)
		require.Greater(t, time.Since(begun), testHeartbeat*3/4)
		require.Less(t, time.Since(begun), testHeartbeat*3/2+time.Second)
	})
}

// TestSuspended checks that agents do not count a stopped gorun as lost if gorun has sent SIGTSTP
// before.
func TestSuspended(t *testing.T) {
	for _, says := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, 7, 2)
			w.launch()
			defer w.close()
			stop := func(stopped bool) {
				for _, i := range []int{0, 4} {
					w.pipes[i].StallDown(stopped)
				}
			}
			if says {
				w.root.Do(proto.Signal{Signal: int(syscall.SIGTSTP)})
			}
			w.root.Do(proto.RanksFailed{Ranks: []int{0}}) // another message behind SIGTSTP
			time.Sleep(time.Second)
			stop(true)
			time.Sleep(time.Hour)
			w.mu.Lock()
			ended := len(w.serves)
			w.mu.Unlock()
			require.Equal(t, says, ended == 0)
			stop(false)
			w.root.Do(proto.Signal{Signal: int(syscall.SIGCONT)})
			time.Sleep(time.Second)
			require.Equal(t, says, len(got[proto.Lost](w)) == 0)
			stop(says) // now without SIGTSTP before it
			time.Sleep(time.Minute)
			require.NotEmpty(t, got[proto.Lost](w))
		})
	}
}

// TestHang checks that a child that never sends anything counts as failed after Launch.Timeout, and
// that the next host of its subtree takes its place.
func TestHang(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 3, 1)
		hang := make(chan struct{})
		w.agent = func(index int, s *treetest.Stream) bool {
			if index == 0 {
				<-hang
				_ = s.Close()
			}
			return index == 0
		}
		w.start()
		defer w.close()
		defer close(hang)
		up := one[proto.Up](w)
		require.Equal(t, []proto.HostError{{Index: 0, Cause: "host0: no sign of life for 30s"}}, up.Failed)
		require.Len(t, up.Agents, 2)
	})
}

// TestCause checks that the Cause of Lost is the one that the stream returns.
func TestCause(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 3, 64)
		w.pipeOf = func(index int) *treetest.Pipe {
			p := treetest.NewPipe(testLatency)
			if index == 1 {
				p.Parent.Why = fmt.Errorf("ssh: %s went away", hostName(index))
			}
			return p
		}
		w.launch()
		defer w.close()
		w.pipes[1].Cut()
		require.Equal(t, proto.Lost{First: 1, Count: 1, Cause: "ssh: host1 went away"}, one[proto.Lost](w))
		w.root.Do(proto.End{})
		require.Len(t, one[proto.Ended](w).Exits, 4)
	})
}

// TestAllLost checks that a root whose children are all lost reports Ended, and no further fences.
func TestAllLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 4, 2)
		w.launch()
		defer w.close()
		time.Sleep(time.Second)
		require.Len(t, got[proto.Fence](w), 1)
		w.pipes[0].Cut()
		w.pipes[2].Cut()
		require.Empty(t, one[proto.Ended](w).Exits)
		w.root.Do(proto.Release{N: 1})
		time.Sleep(time.Second)
		require.Len(t, got[proto.Fence](w), 1)
		require.Len(t, got[proto.Lost](w), 2)
	})
}

// TestFenceWithoutLost checks that an agent that has lost all hosts with ranks of its subtree still
// reports every fence.
func TestFenceWithoutLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 4, 2) // below gorun: 0 with 1 below it, and 2 with 3 below it
		w.procs = func(c *treetest.Procs) { c.Fences = 5 }
		w.start()
		defer w.close()
		one[proto.Up](w)
		p := w.prepare()
		p.Plans[0].Ranks = nil // so the ranks of host 0's subtree are those of host 1
		w.root.Do(p)
		one[proto.Prepared](w)
		w.root.Do(proto.Start{})
		one[proto.Started](w)
		for n := 1; n <= 5; n++ {
			time.Sleep(time.Minute)
			require.Len(t, got[proto.Fence](w), n)
			if n == 3 {
				w.pipes[1].Cut()
				time.Sleep(time.Minute)
			}
			w.root.Do(proto.Release{N: n})
		}
		require.Equal(t, 1, one[proto.Lost](w).First)
	})
}
