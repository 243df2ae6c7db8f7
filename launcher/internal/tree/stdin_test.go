package tree

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/tree/treetest"
)

// feedAll sends input as the credit allows, then its end. It returns when all input has been taken.
func feedAll(w *world, data []byte) {
	w.t.Helper()
	sent := 0
	for range 10000 {
		synctest.Wait()
		given := 0
		for _, c := range got[proto.StdinCredit](w) {
			given += c.Bytes
		}
		if given == len(data) {
			w.root.Do(proto.Stdin{})
			return
		}
		n := min(len(data)-sent, proto.Window-(sent-given), 40<<10)
		if n > 0 {
			w.root.Do(proto.Stdin{Data: data[sent : sent+n]})
			sent += n
		}
		time.Sleep(time.Millisecond)
	}
	require.FailNow(w.t, "the ranks did not take all standard input")
}

// TestStdin checks that exactly the hosts whose ranks read standard input get it.
func TestStdin(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 100<<10)
	for _, mode := range []string{"rank0", "all", "none"} {
		for _, s := range [][2]int{{1, 1}, {7, 2}, {30, 64}} {
			for _, own := range []bool{false, true} {
				bubble(t, func(t *testing.T) {
					w := newWorld(t, s[0], s[1])
					if own {
						w.withRanks()
					}
					w.stdin = mode
					w.launch()
					defer w.close()
					feedAll(w, data)
					time.Sleep(time.Second)
					for i := range w.hosts {
						reads := mode == "all" || mode == "rank0" && i == 0
						require.Equal(t, reads, bytes.Equal(data, w.hostProcs[i].Input()), i)
						require.Equal(t, reads, len(w.hostProcs[i].Input()) > 0)
					}
				})
			}
		}
	}
}

// TestStdinTakers checks that, if one host takes no input, gorun gets no credit for more, until that
// host's ranks have ended or the host is lost. A host without ranks does not count.
func TestStdinTakers(t *testing.T) {
	for _, how := range []string{"ended", "lost", "no ranks"} {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, 7, 2)
			w.stdin = "all"
			w.procs = func(c *treetest.Procs) {
				emit := c.Emit
				c.Emit = func(m proto.Message) {
					if _, ok := m.(proto.StdinCredit); !ok || c.Index != 6 {
						emit(m)
					}
				}
			}
			w.start()
			defer w.close()
			one[proto.Up](w)
			p := w.prepare()
			if how == "no ranks" {
				p.Plans[6].Ranks = nil
			}
			w.root.Do(p)
			one[proto.Prepared](w)
			w.root.Do(proto.Start{})
			one[proto.Started](w)
			w.root.Do(proto.Stdin{Data: make([]byte, proto.Window)})
			time.Sleep(time.Second)
			if how != "no ranks" {
				require.Empty(t, got[proto.StdinCredit](w))
			}
			switch how {
			case "ended":
				w.hostProcs[6].End()
			case "lost":
				w.pipes[6].Cut()
			}
			time.Sleep(time.Second)
			given := 0
			for _, c := range got[proto.StdinCredit](w) {
				given += c.Bytes
			}
			require.Equal(t, proto.Window, given)
			// The root refuses more than the window, and continues.
			w.root.Do(proto.Stdin{Data: make([]byte, proto.Window+1)})
			time.Sleep(time.Second)
			require.Len(t, got[proto.Log](w), 1)
			w.root.Do(proto.Stdin{Data: make([]byte, proto.Window)})
			time.Sleep(time.Second)
			require.Len(t, got[proto.Log](w), 1)
		})
	}
}

// TestStdinCount lets subtrees take random amounts of input and end at random times. It checks that a
// node always gives as much credit as its slowest subtree.
func TestStdinCount(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		given := int64(0)
		n := &Node{cfg: Config{Up: func(m proto.Message) { given += int64(m.(proto.StdinCredit).Bytes) }}, world: &group{stage: stageStarted}}
		for range r.IntN(8) {
			m := &subtree{readsStdin: r.IntN(4) > 0, procs: &treetest.Procs{Silent: true}}
			n.subtrees = append(n.subtrees, m)
			if m.readsStdin {
				n.stdin.slow++
			}
		}
		for range 300 {
			if r.IntN(3) == 0 || len(n.subtrees) == 0 {
				if size := r.IntN(1000); n.stdin.sent+int64(size)-n.stdin.given <= proto.Window {
					require.NoError(t, n.input(proto.Stdin{Data: make([]byte, size)}))
				}
			} else if m := n.subtrees[r.IntN(len(n.subtrees))]; r.IntN(100) == 0 {
				n.leaveStdin(m)
			} else if m.readsStdin && m.taken < n.stdin.sent {
				require.NoError(t, n.stdinTaken(m, 1+r.Int64N(n.stdin.sent-m.taken)))
			}
			least, slow := n.stdin.sent, 0
			for _, m := range n.subtrees {
				if m.readsStdin {
					least = min(least, m.taken)
				}
			}
			for _, m := range n.subtrees {
				if m.readsStdin && m.taken == least {
					slow++
				}
			}
			require.Equal(t, least, n.stdin.given)
			require.Equal(t, least, given)
			require.Equal(t, slow, n.stdin.slow)
		}
	}
}
