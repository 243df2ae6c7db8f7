package tree

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/tree/treetest"
)

// childMessages returns valid messages of the agent of host 1, with host 2 below it, in a job of 3
// hosts.
func childMessages() []proto.Message {
	return []proto.Message{
		proto.Up{Agents: []proto.Agent{{Index: 1}, {Index: 2}}},
		proto.Prepared{Need: []string{testHash}, Ports: []proto.HostPorts{{Index: 2, Ports: []int{1}}}},
		proto.Staged{},
		proto.Started{Ranks: []proto.StartedRank{{Rank: 1}, {Rank: 2}, {Rank: 4}, {Rank: 5}}},
		proto.Fence{N: 1, Puts: map[string]string{"a": "b"}},
		proto.Output{Index: 2, Stream: proto.Merged, Data: []byte("line\n")},
		proto.State{Index: 1, Left: 1, Absent: -1},
		proto.Request{Rank: 1, Line: []byte("cmd=x\n")},
		proto.Aborted{Rank: 2},
		proto.Exited{Exit: proto.Exit{Rank: 4}},
		proto.StdinCredit{Bytes: 1},
		proto.Log{Index: 1, Line: "x"},
		proto.Lost{First: 2, Count: 1, Cause: "x"},
		proto.Fence{N: 2},
		proto.Part{Index: 1, Rank: 1, Data: []byte("x")},
		proto.Time{Index: 1},
		proto.Ended{Exits: []proto.Exit{{Rank: 1}}, Tails: []proto.Tail{{Rank: 2}}},
		proto.Beat{},
		proto.Bye{},
	}
}

// card4 is the card of a job of 4 ranks on two hosts.
var card4 = bootstrap.Card{Size: 4, HostOf: []bootstrap.Run{{Value: 0, Count: 1}, {Value: 1, Count: 1}, {Value: 0, Count: 1}, {Value: 1, Count: 1}}}

// parentMessages returns valid messages for an agent of two hosts.
func parentMessages() []proto.Message {
	return []proto.Message{
		proto.Beat{},
		proto.Prepare{Stdin: "all", Card: card4, Plans: []proto.Plan{
			{Index: 0, Ranks: []proto.Rank{{Rank: 0}, {Rank: 2}}}, {Index: 1, Ranks: []proto.Rank{{Rank: 1}, {Rank: 3}}}}},
		proto.FilePart{Hash: testHash, Data: []byte("x"), Last: true},
		proto.Start{},
		proto.Watch{},
		proto.Release{N: 1, Puts: map[string]string{"a": "b"}},
		proto.Stdin{Data: []byte("input")},
		proto.Reply{Rank: 3, Line: []byte("x\n")},
		proto.Credit{Bytes: 100},
		proto.Signal{Signal: 10},
		proto.RanksFailed{Ranks: []int{1}},
		proto.OutputClosed{Stderr: true},
		proto.Fetch{Index: 1, Rank: 1},
		proto.AskTime{Index: 1},
		proto.End{Grace: time.Second},
		proto.Bye{},
	}
}

// say writes data in parts, with pauses between them, so that the parts reach the other side in
// different phases of the job.
func say(s *treetest.Stream, data []byte) {
	least := 4 + len(data)/200
	for len(data) > 0 {
		n := len(data)
		if n >= 2 {
			n = min(n, least+int(data[0])+int(data[1])<<8)
		}
		if _, err := s.Write(data[:n]); err != nil {
			return
		}
		data = data[n:]
		time.Sleep(50 * time.Millisecond)
	}
}

// hostileChild runs a job in which the agent of host 1 sends data instead of valid answers. It checks
// that the root still reports the end of the job.
func hostileChild(t *testing.T, data []byte) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 3, 1).withRanks()
		w.auto, w.stdin = true, "all"
		w.procs = func(c *treetest.Procs) { c.Need = []string{testHash} }
		w.agent = func(index int, s *treetest.Stream) bool {
			if index != 1 {
				return false
			}
			w.wg.Go(func() { say(s, data) }) // ends when the stream is closed
			_, _ = io.Copy(io.Discard, s)
			_ = s.Close()
			return true
		}
		w.start()
		select {
		case <-w.jobEnded:
		case <-time.After(10 * time.Minute):
			t.Error("the job does not end")
			w.close()
			return
		}
		w.close()
		require.Len(t, got[proto.Up](w)[0].Agents, 3-len(got[proto.Up](w)[0].Failed))
	})
}

// hostileParent sends data to an agent, and checks that the agent ends.
func hostileParent(t *testing.T, data []byte) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 2, 1)
		p := treetest.NewPipe(testLatency)
		w.wg.Go(func() { // ends when the stream is closed
			_, _ = p.Parent.Write(frames(t, testLaunch(2)))
			time.Sleep(time.Second)
			say(p.Parent, data)
		})
		w.wg.Go(func() { _, _ = io.Copy(io.Discard, p.Parent) }) // ends when the agent has ended
		begun := time.Now()
		err := Serve(context.Background(), p.Child, func(proto.Launch) (Config, error) {
			return Config{Procs: w.mkProcs(0), Open: w.connect}, nil
		})
		if err == nil && bytes.IndexByte(data, byte(proto.KindBye)) < 0 {
			t.Error("the agent ends without an error")
		}
		require.Less(t, time.Since(begun), 10*time.Minute)
		_ = p.Parent.Close()
		w.wg.Wait()
	})
}

// TestNonsense sends messages in any order, repeated, or about hosts and ranks of other subtrees:
// to a root, as its child, and to an agent, as its parent. It checks that the root still reports
// the end of the job, and that the agent ends.
func TestNonsense(t *testing.T) {
	wrong := []proto.Message{
		proto.Up{Agents: []proto.Agent{{Index: 1}, {Index: 1}}}, proto.Up{Agents: []proto.Agent{{Index: 0}, {Index: -1 << 62}}}, proto.Up{},
		proto.Up{Failed: []proto.HostError{{Index: 1, Cause: "x", Code: 9}}}, proto.Up{Failed: []proto.HostError{{Index: 9}}},
		proto.Lost{First: 1, Count: 1}, proto.Lost{First: 2, Count: 1 << 62}, proto.Lost{First: -1, Count: 5}, proto.Lost{First: 1 << 62, Count: 1 << 62},
		proto.Output{Index: 0, Data: []byte("x")}, proto.Output{Index: 1, Stream: 1}, proto.Output{Index: 1, Stream: 3}, proto.Output{Index: 1, Stream: -2},
		proto.Output{Index: 1, Stream: -1, Data: make([]byte, maxOutput+1)}, proto.State{Index: 7}, proto.Exited{Exit: proto.Exit{Rank: 1 << 62}},
		proto.Aborted{Rank: -1 << 63}, proto.Request{Rank: 0}, proto.StdinCredit{Bytes: -1}, proto.StdinCredit{Bytes: 1 << 62}, proto.Fence{N: -1},
		proto.Prepared{Ports: []proto.HostPorts{{Index: 3}}}, proto.Prepared{Failed: []proto.HostError{{Index: 0}}},
		proto.Started{Failed: &proto.StartFailure{Rank: 3}}, proto.Started{Ranks: []proto.StartedRank{{Rank: 0}}}, proto.Log{Index: 5},
		proto.Start{}, proto.Credit{Bytes: 1}, proto.Launch{}, proto.FileCredit{Bytes: 1}, proto.FileCredit{Bytes: -1},
		proto.Request{Rank: 1, Line: make([]byte, 1<<20)}, proto.FilePart{Hash: testHash, Data: []byte("x")},
		proto.Stacks{Rank: 0}, proto.Stacks{Rank: 1, Data: make([]byte, wire.InspectMaxStacks+1)}, proto.Inspected{Index: 0},
		proto.Part{Index: 1, Data: make([]byte, proto.MaxPart+1)}, proto.Part{Index: 0}, proto.Part{Index: -1, Rank: 1 << 40}, proto.Fetch{Index: 1},
		proto.Time{Index: 1, Now: -1}, proto.Time{Index: 0}, proto.AskTime{Index: 1},
		proto.Inspected{Index: 1, Groups: []proto.Group{{Ranks: []int{1, 1}}}}, proto.Inspected{Index: 1, Groups: []proto.Group{{Ranks: []int{0}}}},
		proto.Inspected{N: -1, Index: 1, Groups: []proto.Group{{Ranks: []int{1}, State: &wire.RankState{}}}},
	}
	bad := []proto.Message{
		proto.Prepare{}, proto.Prepare{Plans: []proto.Plan{{Index: 5}}}, proto.Prepare{Plans: []proto.Plan{{Index: 1}, {Index: 0}}},
		proto.Prepare{Card: card4, Plans: []proto.Plan{{Index: 0, Ranks: []proto.Rank{{Rank: 1}, {Rank: 1}}}}},
		proto.Prepare{Card: card4, Plans: []proto.Plan{{Index: 0, Ranks: []proto.Rank{{Rank: -1}, {Rank: 1<<63 - 1}}}}},
		proto.FileCredit{Bytes: 1}, proto.FileCredit{Bytes: -1},
		proto.Credit{Bytes: -1}, proto.Credit{Bytes: proto.Window}, proto.Reply{Rank: -1}, proto.Release{N: 7}, proto.Stdin{Data: make([]byte, proto.Window+1)},
		proto.Launch{}, proto.Up{}, proto.Output{}, proto.Start{}, proto.End{Grace: -1}, proto.Inspect{Stacks: true},
		proto.Fetch{Index: -1}, proto.Fetch{Index: 9}, proto.Fetch{Rank: -1, File: -1, Offset: -1}, proto.Part{},
		proto.AskTime{Index: -1}, proto.AskTime{Index: 9}, proto.Time{Index: 1},
	}
	r := rand.New(rand.NewPCG(5, 6))
	rounds := 600
	if testing.Short() {
		rounds = 60
	}
	for range rounds {
		child, parent := childMessages(), parentMessages()
		for range r.IntN(4) {
			i := r.IntN(len(child))
			child = append(child[:i:i], append([]proto.Message{wrong[r.IntN(len(wrong))]}, child[i:]...)...)
			i = r.IntN(len(parent))
			parent = append(parent[:i:i], append([]proto.Message{bad[r.IntN(len(bad))]}, parent[i:]...)...)
			r.Shuffle(r.IntN(3)*len(child)/2, func(a, b int) { child[a], child[b] = child[b], child[a] })
			r.Shuffle(r.IntN(3)*len(parent)/2, func(a, b int) { parent[a], parent[b] = parent[b], parent[a] })
		}
		hostileChild(t, frames(t, child...))
		hostileParent(t, frames(t, parent...))
		if t.Failed() {
			t.Fatalf("child %T\nparent %T", child, parent)
		}
	}
	for _, m := range wrong {
		hostileChild(t, frames(t, append(childMessages()[:1:1], m)...))
		hostileChild(t, frames(t, m))
	}
	for _, m := range bad {
		hostileParent(t, frames(t, m))
		hostileParent(t, frames(t, append(parentMessages()[:4:4], m)...))
	}
}

// FuzzChild lets the agent of a host send arbitrary bytes. It checks that gorun loses at worst this
// host and those below it, and that the job ends.
func FuzzChild(f *testing.F) {
	f.Add(frames(f, childMessages()...))
	for i := range childMessages() {
		f.Add(frames(f, childMessages()[i:]...))
	}
	f.Fuzz(hostileChild)
}

// FuzzParent lets an agent's parent send arbitrary bytes. It checks that the agent ends, without a
// panic.
func FuzzParent(f *testing.F) {
	f.Add(frames(f, parentMessages()...))
	for i := range parentMessages() {
		f.Add(frames(f, parentMessages()[i:]...))
	}
	f.Fuzz(hostileParent)
}

// TestWindow checks that a node ends the link to a child that sends more Output than it has credit
// for, and passes on only the Output within the window.
func TestWindow(t *testing.T) {
	for _, size := range []int{0, 1000, maxOutput} {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, 2, 2)
			w.keep = true
			var sent int
			w.agent = func(index int, s *treetest.Stream) bool {
				if index != 1 {
					return false
				}
				for _, m := range []proto.Message{proto.Up{Agents: []proto.Agent{{Index: 1}}}, proto.Prepared{}, proto.Started{}} {
					_, _ = s.Write(frames(t, m))
					time.Sleep(time.Second)
				}
				one := proto.Output{Index: 1, Stream: proto.Merged, Data: make([]byte, size)}
				for ; ; sent += cost(one) {
					if _, err := s.Write(frames(t, one)); err != nil {
						return true
					}
					time.Sleep(time.Millisecond)
				}
			}
			w.launch()
			defer w.close()
			lost := one[proto.Lost](w)
			require.Contains(t, lost.Cause, "credit")
			require.Equal(t, 1, lost.First)
			held := 0
			for _, o := range got[proto.Output](w) {
				held += cost(o)
			}
			require.LessOrEqual(t, held, proto.Window)
			require.Greater(t, held, proto.Window-maxOutput-outputCost)
		})
	}
}

// playHost1 launches a tree, gorun ─ host 0 ─ host 1 ─ host 2, in which the test is the agent of
// host 1. When the ranks run, playHost1 calls play, which sends messages by say, and then closes
// the stream.
func playHost1(w *world, play func(say func(m proto.Message) error)) {
	w.l.Heartbeat, w.stdin = time.Hour, "all"
	w.agent = func(index int, s *treetest.Stream) bool {
		if index != 1 {
			return false
		}
		say := func(m proto.Message) error {
			_, err := s.Write(frames(w.t, m))
			time.Sleep(time.Millisecond)
			return err
		}
		for _, m := range []proto.Message{proto.Up{Agents: []proto.Agent{{Index: 1}, {Index: 2}}}, proto.Prepared{}, proto.Started{}} {
			_ = say(m)
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute)
		play(say)
		_ = s.Close()
		return true
	}
	w.launch()
}

// waiting returns the numbers of messages in a link's queues urgent and states.
func (l *link) waiting() (urgent, states int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.urgent), len(l.states)
}

// TestTooManyMessages lets an agent send too many messages that are no answers, such as Log. It
// checks that gorun loses the agent, and that the nodes above the agent queue no more than its
// budget of such messages, even if they cannot pass the messages on.
func TestTooManyMessages(t *testing.T) {
	const most = 2*budgetPerHost + 4*budgetPerRank
	for name, m := range map[string]proto.Message{
		"log":     proto.Log{Index: 2, Line: "x"},
		"exited":  proto.Exited{Exit: proto.Exit{Rank: 4}},
		"aborted": proto.Aborted{Rank: 5, Reason: "x"},
		"request": proto.Request{Rank: 1, Line: []byte("cmd=x\n")},
		"lost":    proto.Lost{First: 2, Count: 1, Cause: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, 3, 1)
				playHost1(w, func(say func(proto.Message) error) {
					for range 5000 {
						if say(m) != nil {
							return
						}
					}
				})
				defer w.close()
				w.pipes[0].StallUp(true)
				time.Sleep(2 * time.Minute)
				urgent, _ := w.nodes[0].parent.waiting()
				require.LessOrEqual(t, urgent, most)
				w.pipes[0].StallUp(false)
				time.Sleep(time.Minute)
				relayed := 0
				w.mu.Lock()
				for _, up := range w.ups {
					switch up.(type) {
					case proto.Log, proto.Exited, proto.Aborted, proto.Request, proto.Lost:
						relayed++
					}
				}
				w.mu.Unlock()
				require.Equal(t, most, relayed)
				lost := got[proto.Lost](w)
				require.Equal(t, proto.Lost{First: 1, Count: 2, Cause: "host1: " + proto.ErrFrame.Error() + ": it sends more messages than its hosts and ranks can cause"}, lost[len(lost)-1])
				w.root.Do(proto.End{Except: -1})
				require.Len(t, one[proto.Ended](w).Exits, w.ranks, "host 0 is not lost because of its child")
			})
		})
	}
}

// TestNewestState checks that a link that cannot send keeps only the newest State of each host, and
// adds up the credits that wait.
func TestNewestState(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const rounds = 5000
		w := newWorld(t, 3, 1)
		playHost1(w, func(say func(proto.Message) error) {
			for i := range rounds {
				for _, m := range []proto.Message{
					proto.State{Index: 1, Waiting: i, Left: -1, Absent: -1}, proto.State{Index: 2, Waiting: i + 1, Left: -1, Absent: -1},
					proto.StdinCredit{Bytes: 1},
				} {
					if say(m) != nil {
						t.Error("the stream was closed")
						return
					}
				}
			}
			time.Sleep(time.Hour)
		})
		defer w.close()
		w.root.Do(proto.Stdin{Data: make([]byte, proto.Window)})
		time.Sleep(30 * time.Second)
		w.pipes[0].StallUp(true)
		time.Sleep(2 * time.Minute)
		urgent, states := w.nodes[0].parent.waiting()
		require.LessOrEqual(t, urgent, 1)
		require.Equal(t, 2, states)
		w.pipes[0].StallUp(false)
		time.Sleep(time.Minute)
		newest := make(map[int]int)
		for _, s := range got[proto.State](w) {
			require.Greater(t, s.Waiting, newest[s.Index]-1)
			newest[s.Index] = s.Waiting
		}
		require.Equal(t, map[int]int{1: rounds - 1, 2: rounds}, newest)
		given := 0
		for _, c := range got[proto.StdinCredit](w) {
			given += c.Bytes
		}
		require.Equal(t, rounds, given)
		require.Empty(t, got[proto.Lost](w))
	})
}

// TestReadsNothing checks that a node ends the link to a child that sends requests or fences without
// end and never reads the replies or releases.
func TestReadsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		ask  func(i int) proto.Message
		want string
	}{
		"requests": {func(int) proto.Message { return proto.Request{Rank: 1, Line: []byte("cmd=x\n")} }, "it sends requests without reading the replies"},
		"fences": {func(i int) proto.Message {
			return proto.Fence{N: i + 1, Waiting: true, Puts: map[string]string{"a": string(make([]byte, 10<<10))}}
		}, "before it has read the release of the fence before"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				most := 0
				w := newWorld(t, 3, 1)
				w.procs = func(c *treetest.Procs) { c.Fences = 1 << 20 }
				w.see = func(w *world, m proto.Message) {
					switch m := m.(type) {
					case proto.Request:
						w.root.Do(proto.Reply{Rank: m.Rank, Line: make([]byte, 1<<10)})
					case proto.Fence:
						w.root.Do(proto.Release(m))
					}
				}
				playHost1(w, func(say func(proto.Message) error) {
					for i := range 2000 {
						if say(c.ask(i)) != nil {
							return
						}
						time.Sleep(10 * time.Millisecond)
						n := w.nodes[0]
						done := make(chan int, 1)
						n.post(func() {
							replies, releases := 0, 0
							if l := n.subtrees[1].link; l != nil {
								replies, releases = l.unread(0)
							}
							done <- replies + releases
						})
						most = max(most, <-done)
					}
				})
				defer w.close()
				lost := one[proto.Lost](w)
				require.Equal(t, 1, lost.First)
				require.Contains(t, lost.Cause, c.want)
				require.Positive(t, most)
				require.LessOrEqual(t, most, 4)
			})
		})
	}
}

// TestAsksAgain checks that a rank that reads each reply may send any number of requests.
func TestAsksAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 3, 1)
		const rounds = 500
		var answers [3]atomic.Int64
		w.procs = func(c *treetest.Procs) {
			c.See = func(m proto.Message) {
				if r, ok := m.(proto.Reply); ok && answers[c.Index].Add(1) < rounds {
					c.Emit(proto.Request(r))
				}
			}
		}
		w.see = func(w *world, m proto.Message) {
			if r, ok := m.(proto.Request); ok {
				w.root.Do(proto.Reply(r))
			}
		}
		w.launch()
		defer w.close()
		for i := range w.hosts {
			w.hostProcs[i].Emit(proto.Request{Rank: i})
		}
		time.Sleep(time.Minute)
		for i := range answers {
			require.EqualValues(t, rounds, answers[i].Load(), i)
		}
		require.Empty(t, got[proto.Log](w))
		require.Empty(t, got[proto.Lost](w))
	})
}
