package tree

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/tree/treetest"
)

// TestOutputOrder checks that all output of each host arrives, in order and before Ended, and that
// no node holds more than its windows.
func TestOutputOrder(t *testing.T) {
	for _, s := range [][2]int{{1, 1}, {5, 1}, {7, 2}, {64, 3}, {64, 64}} {
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d by %d own %v", s[0], s[1], own), func(t *testing.T) {
				bubble(t, func(t *testing.T) { outputOrder(t, s[0], s[1], own) })
			})
		}
	}
}

func outputOrder(t *testing.T, count, radix int, own bool) {
	w := newWorld(t, count, radix)
	if own {
		w.withRanks()
	}
	total := 1 << 20
	if count > 7 {
		total = 200 << 10
	}
	var came [2][]bytes.Buffer
	came[0], came[1] = make([]bytes.Buffer, count), make([]bytes.Buffer, count)
	pick := rand.New(rand.NewPCG(1, 2))
	w.keep = true
	w.see = func(w *world, m proto.Message) {
		switch m := m.(type) {
		case proto.Output:
			came[kindOf(m)][m.Index].Write(m.Data)
			if len(m.Data) > maxOutput || !m.Mid && m.Data[len(m.Data)-1] != '\n' {
				t.Errorf("%d bytes, mid %v", len(m.Data), m.Mid)
			}
			time.AfterFunc(time.Duration(pick.IntN(3000))*time.Microsecond, func() { w.root.Consumed(m) })
		case proto.Ended:
			for i := range count {
				if n := came[0][i].Len() + came[1][i].Len(); n < total {
					t.Errorf("%d bytes of host %d before Ended", n, i)
				}
			}
		}
	}
	w.launch()
	defer w.close()
	var sent [2][]bytes.Buffer
	sent[0], sent[1] = make([]bytes.Buffer, count), make([]bytes.Buffer, count)
	for i := range count {
		go func() { // ends when everything is written
			r := rand.New(rand.NewPCG(3, uint64(i)))
			buf := make([]byte, 200<<10)
			for n := 0; n < total; {
				size := 1 + r.IntN(100)
				if r.IntN(4) == 0 {
					size = 1 + r.IntN(len(buf))
				}
				k, mid := r.IntN(2), r.IntN(8) == 0
				data := buf[:size]
				for j := range data {
					data[j] = byte('a' + (n+j+i)%26)
					if (n+j)%(1+i*1000) == 0 {
						data[j] = '\n'
					}
				}
				if !mid {
					data[size-1] = '\n'
				}
				sent[k][i].Write(data)
				if err := w.nodes[i].Output(proto.Output{Index: i, Stderr: k == 1, Stream: proto.Merged, Mid: mid, Data: data}); err != nil {
					t.Errorf("host %d: %v", i, err)
					return
				}
				n += size
			}
			w.hostProcs[i].End()
		}()
	}
	one[proto.Ended](w)
	for k := range came {
		for i := range count {
			require.Equal(t, sent[k][i].Len(), came[k][i].Len())
			require.True(t, bytes.Equal(sent[k][i].Bytes(), came[k][i].Bytes()), i)
		}
	}
	paid := 0
	for _, o := range got[proto.Output](w) {
		paid += cost(o)
	}
	require.LessOrEqual(t, w.root.Stats().MessagesOut, int64(3*len(w.root.subtrees)+paid/creditAfter), "the root gives credit in large pieces")
	for i, n := range w.nodes {
		require.LessOrEqual(t, n.Stats().PeakQueued, int64((len(n.subtrees)+1)*proto.Window), i)
	}
	require.LessOrEqual(t, w.root.Stats().PeakQueued, int64(len(w.root.subtrees)*proto.Window))
}

// writeAll makes every process manager write without end. errs gets the errors that end the writing.
func writeAll(w *world, stderr bool) (errs chan error) {
	errs = make(chan error, w.hosts)
	for i := range w.hosts {
		n := w.nodes[i]
		go func() { // ends when Output returns an error
			line := []byte(strings.Repeat("x", 999) + "\n")
			for {
				if err := n.Output(proto.Output{Index: i, Stderr: stderr, Stream: proto.Merged, Data: line}); err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	return errs
}

// TestSlowRoot checks that all hosts stop writing when their windows are full, if gorun consumes no
// output, and that other messages still arrive.
func TestSlowRoot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 15, 2)
		w.keep = true
		w.launch()
		errs := writeAll(w, false)
		time.Sleep(time.Minute)
		synctest.Wait()
		held := 0
		for _, o := range got[proto.Output](w) {
			held += cost(o)
		}
		require.LessOrEqual(t, held, 2*proto.Window)
		require.Greater(t, held, 2*proto.Window-2*(1000+outputCost))
		for i, n := range w.nodes {
			q := n.count.queued.Load()
			require.LessOrEqual(t, q, int64((len(n.subtrees)+1)*proto.Window), i)
			require.Greater(t, q, int64(0))
		}
		w.root.Do(proto.Release{N: 1})
		w.hostProcs[14].Emit(proto.Exited{Exit: proto.Exit{Rank: 14, Code: 3}})
		time.Sleep(time.Second)
		require.Len(t, got[proto.Fence](w), 2)
		require.Len(t, got[proto.Exited](w), 1)
		for _, o := range got[proto.Output](w) {
			w.root.Consumed(o)
		}
		time.Sleep(time.Minute)
		more := 0
		for _, o := range got[proto.Output](w) {
			more += cost(o)
		}
		require.Greater(t, more, held+held/2)
		require.Empty(t, errs)
		w.close()
		for range w.hosts {
			require.ErrorIs(t, <-errs, errEnded)
		}
	})
}

// TestFair checks that no host waits for ever because others write more.
func TestFair(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 31, 3)
		w.keep = true
		count := make([]int, w.hosts)
		w.see = func(w *world, m proto.Message) {
			if o, ok := m.(proto.Output); ok {
				count[o.Index]++
				time.AfterFunc(time.Millisecond, func() { w.root.Consumed(o) })
			}
		}
		w.launch()
		errs := writeAll(w, true)
		time.Sleep(50 * time.Millisecond)
		w.close()
		for i, n := range count {
			require.Greater(t, n, 50, i)
		}
		for range w.hosts {
			require.ErrorIs(t, <-errs, errEnded)
		}
	})
}

// TestOutputClosed checks that Node.Output returns EPIPE for stdout when the reader of stdout has
// closed it, even in calls that block at that time, and that the output to stderr continues.
func TestOutputClosed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 14, 2).withRanks()
		w.keep = true
		w.launch()
		out := writeAll(w, false)
		time.Sleep(time.Minute)
		w.root.Do(proto.OutputClosed{})
		for range w.hosts {
			require.ErrorIs(t, <-out, syscall.EPIPE)
		}
		err := writeAll(w, true)
		for _, o := range got[proto.Output](w) {
			w.root.Consumed(o)
		}
		time.Sleep(time.Minute)
		require.Empty(t, err)
		came := 0
		for _, o := range got[proto.Output](w) {
			if o.Stderr {
				came++
			}
		}
		// Each of the root's three subtrees may lack up to creditAfter bytes of credit.
		require.Greater(t, came, 3*(proto.Window-creditAfter)/(1000+outputCost)-3)
		w.close()
		for range w.hosts {
			require.ErrorIs(t, <-err, errEnded)
		}
	})
}

// TestByeWhileOutput checks that Close ends a tree whose ranks write without end, and that the
// blocked calls of Node.Output return errEnded.
func TestByeWhileOutput(t *testing.T) {
	for _, keep := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, 14, 3)
			w.keep = keep
			w.launch()
			errs := writeAll(w, true)
			time.Sleep(20 * time.Millisecond)
			begun := time.Now()
			w.close()
			for range w.hosts {
				require.ErrorIs(t, <-errs, errEnded)
			}
			require.Less(t, time.Since(begun), byeLimit)
		})
	}
}

// TestSlowPeer checks that a child that reads nothing does not delay what the root sends to others.
func TestSlowPeer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 3, 64)
		w.l.Heartbeat = time.Minute
		w.procs = func(c *treetest.Procs) { c.Need = []string{testHash} }
		w.start()
		defer w.close()
		one[proto.Up](w)
		w.root.Do(w.prepare())
		one[proto.Prepared](w)
		w.pipes[1].Stall(true)
		data := make([]byte, 64<<10)
		for i := range 8 << 20 / len(data) {
			w.root.Do(proto.FilePart{Hash: testHash, Data: data, Last: i == 8<<20/len(data)-1})
		}
		time.Sleep(time.Second)
		for _, i := range []int{0, 2} {
			m := w.hostProcs[i].Got()
			require.True(t, m[len(m)-1].(proto.FilePart).Last)
		}
		require.Empty(t, got[proto.Staged](w))
		w.pipes[1].Stall(false)
		one[proto.Staged](w)
		require.Empty(t, got[proto.Lost](w))
	})
}

// TestAwaitRoom checks that no node holds much of a large file while the last host takes it slowly.
func TestAwaitRoom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 4, 1)
		w.l.Heartbeat = time.Minute
		other := strings.Repeat("f", len(testHash))
		w.procs = func(c *treetest.Procs) {
			switch c.Index {
			case 3:
				c.Need = []string{testHash, other}
			case 1:
				c.Need = []string{other}
			}
		}
		w.start()
		defer w.close()
		one[proto.Up](w)
		w.root.Do(w.prepare())
		require.Equal(t, []string{testHash, other}, one[proto.Prepared](w).Need)
		const parts = 512
		done := make(chan int, 1)
		go func() { // ends when the file is sent
			n := 0
			for ; n < parts; n++ {
				if w.root.AwaitRoom(t.Context()) != nil {
					break
				}
				w.root.Do(proto.FilePart{Hash: testHash, Data: make([]byte, 64<<10), Last: n == parts-1})
			}
			done <- n
		}()
		w.pipes[3].Stall(true)
		time.Sleep(30 * time.Second)
		require.Empty(t, done)
		for _, n := range []*Node{w.root, w.nodes[0], w.nodes[1], w.nodes[2]} {
			require.LessOrEqual(t, n.count.peak.Load(), int64(filesAhead+proto.FileWindow+64<<10))
		}
		w.pipes[3].Stall(false)
		require.Equal(t, parts, <-done)
		require.Empty(t, one[proto.Staged](w).Failed)
		for i := range 4 {
			size, count := 0, 0
			for _, m := range w.hostProcs[i].Got() {
				if f, ok := m.(proto.FilePart); ok {
					size += len(f.Data)
					count++
				}
			}
			require.Equal(t, map[int]int{3: parts * 64 << 10}[i], size, i)
			require.Equal(t, map[int]int{1: 1, 3: parts}[i], count, i)
		}
	})
}

// TestSlowDisk checks that no node holds much of a large file while a host stores it slowly.
func TestSlowDisk(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 4, 1)
		w.l.Heartbeat = time.Minute
		disk := make(chan struct{})
		w.procs = func(c *treetest.Procs) {
			if c.Index != 2 {
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
		w.start()
		defer w.close()
		one[proto.Up](w)
		w.root.Do(w.prepare())
		require.Equal(t, []string{testHash}, one[proto.Prepared](w).Need)
		const parts, size = 512, 64 << 10
		done := make(chan struct{})
		go func() { // ends when the file is sent
			defer close(done)
			for n := range parts {
				if w.root.AwaitRoom(t.Context()) != nil {
					return
				}
				w.root.Do(proto.FilePart{Hash: testHash, Data: make([]byte, size), Last: n == parts-1})
			}
		}()
		received := func() int {
			n := 0
			for _, m := range w.hostProcs[2].Got() {
				if f, ok := m.(proto.FilePart); ok {
					n += len(f.Data)
				}
			}
			return n
		}
		time.Sleep(30 * time.Second)
		require.LessOrEqual(t, received(), filesAhead+proto.FileWindow+size)
		for _, n := range []*Node{w.root, w.nodes[0], w.nodes[1], w.nodes[2]} {
			require.LessOrEqual(t, n.count.peak.Load(), int64(filesAhead+proto.FileWindow+size))
		}
		close(disk)
		<-done
		require.Empty(t, one[proto.Staged](w).Failed)
		require.Equal(t, parts*size, received())
	})
}
