package tree

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/tree/treetest"
)

// stuck is a tree, gorun ─ host 0 ─ host 1, in which gorun sends a file that a host no longer takes.
type stuck struct {
	*world
	free func()        // makes the disk work again
	sent chan struct{} // closed when the whole file is sent
}

// The file of newStuck has stuckParts parts of stuckPart bytes: 8 MiB in all.
const stuckParts, stuckPart = 64, 128 << 10

// newStuck returns a stuck in which the disk of the host with this index stores nothing until free
// is called. If host is -1, both disks work, and instead host 1 sends heartbeats but reads nothing.
func newStuck(t *testing.T, host int) *stuck {
	s := &stuck{world: newWorld(t, 2, 1), sent: make(chan struct{})}
	disk := make(chan struct{})
	s.free = func() { close(disk) }
	s.procs = func(c *treetest.Procs) {
		if c.Index != host {
			return
		}
		c.Need = []string{testHash}
		stored := c.Stored
		c.Stored = func(p proto.FilePart) {
			go func() { // ends when the disk works again
				<-disk
				stored(p)
			}()
		}
	}
	s.agent = func(index int, child *treetest.Stream) bool {
		if host >= 0 || index != 1 {
			return false
		}
		for _, m := range []proto.Message{proto.Up{Agents: []proto.Agent{{Index: 1}}}, proto.Prepared{Need: []string{testHash}}} {
			time.Sleep(time.Second)
			_, _ = child.Write(frames(t, m))
		}
		beatFor(t, child, 2*time.Minute)
		return true
	}
	s.start()
	one[proto.Up](s.world)
	s.root.Do(s.prepare())
	require.Len(t, one[proto.Prepared](s.world).Need, 1)
	go func() { // ends when the file is sent or the root ends
		defer close(s.sent)
		for i := range stuckParts {
			if s.root.AwaitRoom(context.Background()) != nil {
				return
			}
			s.root.Do(proto.FilePart{Hash: testHash, Data: make([]byte, stuckPart), Last: i == stuckParts-1})
		}
	}()
	time.Sleep(time.Minute)
	require.False(t, s.allSent(), "the host takes the file")
	require.Empty(t, s.ended())
	return s
}

// beatFor sends heartbeats and reads nothing, for the duration d or until the stream is closed.
func beatFor(t *testing.T, s *treetest.Stream, d time.Duration) {
	for begun := time.Now(); time.Since(begun) < d; time.Sleep(time.Second) {
		if _, err := s.Write(frames(t, proto.Beat{})); err != nil {
			return
		}
	}
	_ = s.Close()
}

func (s *stuck) allSent() bool {
	select {
	case <-s.sent:
		return true
	default:
		return false
	}
}

// ended returns the indexes of the hosts whose agents have ended.
func (s *stuck) ended() (list []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.serves {
		list = append(list, i)
	}
	return list
}

// TestStuckDisk checks that an agent that waits for a disk, or for a child that reads nothing, still
// ends within 10 seconds if gorun closes the tree or the link to gorun breaks.
func TestStuckDisk(t *testing.T) {
	ways := map[string]func(s *stuck){
		"bye":   func(s *stuck) { s.root.Close() },
		"stall": func(s *stuck) { s.pipes[0].Stall(true) },
	}
	for name, breakLink := range breaks {
		ways[name] = func(s *stuck) { breakLink(s.pipes[0]) }
	}
	for name, breakLink := range ways {
		for host := -1; host <= 1; host++ {
			t.Run(name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					s := newStuck(t, host)
					defer s.close()
					defer s.free()
					begun := time.Now()
					breakLink(s)
					time.Sleep(time.Until(begun.Add(10 * time.Second)))
					want := []int{0, 1}
					if host < 0 {
						want = want[:1]
					}
					require.ElementsMatch(t, want, s.ended())
				})
			})
		}
	}
}

// TestStuckAlive checks that an agent that waits for a disk does not count gorun as lost while
// gorun runs, or is stopped after SIGTSTP. When the disk works again, the agent takes the rest of
// the file.
func TestStuckAlive(t *testing.T) {
	for _, suspended := range []bool{false, true} {
		for host := range 2 {
			bubble(t, func(t *testing.T) {
				s := newStuck(t, host)
				defer s.close()
				if suspended {
					s.root.Do(proto.Signal{Signal: int(syscall.SIGTSTP)})
					time.Sleep(time.Second)
					s.pipes[0].StallDown(true)
				}
				time.Sleep(time.Hour)
				if suspended {
					s.pipes[0].StallDown(false)
					s.root.Do(proto.Signal{Signal: int(syscall.SIGCONT)})
				}
				time.Sleep(time.Second)
				require.Empty(t, s.ended())
				require.False(t, s.allSent())
				s.free()
				require.Empty(t, one[proto.Staged](s.world).Failed)
				require.True(t, s.allSent())
				size := 0
				for _, m := range s.hostProcs[host].Got() {
					if p, ok := m.(proto.FilePart); ok {
						size += len(p.Data)
					}
				}
				require.Equal(t, stuckParts*stuckPart, size)
				require.Empty(t, got[proto.Lost](s.world))
			})
		}
	}
}

// TestFileWindow checks that an agent ends when the parent sends more of a file than it has credit
// for.
func TestFileWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 1, 1)
		w.procs = func(c *treetest.Procs) { c.Need, c.Stored = []string{testHash}, nil }
		p := treetest.NewPipe(testLatency)
		held := 0
		w.wg.Go(func() { // ends when the stream is closed
			_, _ = p.Parent.Write(frames(t, testLaunch(1)))
			time.Sleep(time.Second) // the agent has answered Launch
			_, _ = p.Parent.Write(frames(t, w.prepare()))
			part := frames(t, proto.FilePart{Hash: testHash, Data: make([]byte, stuckPart)})
			for held < 64<<20 {
				time.Sleep(time.Millisecond)
				if _, err := p.Parent.Write(part); err != nil {
					return
				}
				held += stuckPart
			}
			_ = p.Parent.Close()
		})
		w.wg.Go(func() { // ends when the agent has ended
			for {
				if _, err := proto.Read(p.Parent); err != nil {
					return
				}
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := Serve(ctx, p.Child, func(proto.Launch) (Config, error) {
			return Config{Procs: w.mkProcs(0), Open: w.connect}, nil
		})
		require.ErrorIs(t, err, proto.ErrFrame)
		require.ErrorContains(t, err, "more file data than there was credit for")
		w.wg.Wait()
		require.Greater(t, held, filesAhead)
		require.LessOrEqual(t, held, filesAhead+proto.FileWindow+4*stuckPart+treetest.Buffer)
	})
}

// TestWriteFails checks that a node reports a child as lost if it can send nothing to the child,
// even if the child sends heartbeats.
func TestWriteFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 2, 2)
		w.agent = func(index int, s *treetest.Stream) bool {
			if index != 1 {
				return false
			}
			for _, m := range []proto.Message{proto.Up{Agents: []proto.Agent{{Index: 1}}}, proto.Prepared{}, proto.Started{}} {
				_, _ = s.Write(frames(t, m))
				time.Sleep(time.Second)
			}
			beatFor(t, s, 2*time.Minute)
			return true
		}
		w.launch()
		defer w.close()
		time.Sleep(time.Minute)
		require.Empty(t, got[proto.Lost](w))
		w.pipes[1].BreakDown()
		begun := time.Now()
		lost := one[proto.Lost](w)
		require.Equal(t, proto.Lost{First: 1, Count: 1, Cause: "host1: nothing can be sent: stream was cut"}, lost)
		require.Greater(t, time.Since(begun), testHeartbeat)
		require.Less(t, time.Since(begun), 3*testHeartbeat)
	})
}
