package tree

import (
	"bytes"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/tree/treetest"
)

// fileLength is the length of a rank's file in the tests of this file: longer than all the memory that the
// nodes may use for it.
const fileLength = 20<<20 + 12345

// fileByte returns byte i of the file of a rank.
func fileByte(rank int, i int64) byte { return byte(i>>8) ^ byte(i) ^ byte(rank) }

// serveFiles makes the process managers answer Fetch with the ranks' files.
func serveFiles(c *treetest.Procs) {
	see := c.See
	c.See = func(m proto.Message) {
		see(m)
		f, ok := m.(proto.Fetch)
		if !ok {
			return
		}
		p := proto.Part{Index: c.Index, Rank: f.Rank, File: f.File}
		for i := f.Offset; i < min(f.Offset+proto.MaxPart, fileLength); i++ {
			p.Data = append(p.Data, fileByte(f.Rank, i))
		}
		c.Emit(p)
	}
}

// TestFetch reads the files of ranks on three hosts, of which each is below the one before, after the
// ranks have ended. gorun has four requests under way for each file. All bytes must arrive in order, and
// no node may hold more than what was asked for.
func TestFetch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const count, ahead = 3, 4
		w := newWorld(t, count, 1)
		w.procs = serveFiles
		var mu sync.Mutex // guards the following variables
		next, came := make([]int64, count), make([]int64, count)
		var bad []int
		ask := func(rank int) { // the caller holds mu
			w.root.Do(proto.Fetch{Index: rank, Rank: rank, File: 1, Offset: next[rank]})
			next[rank] += proto.MaxPart
		}
		w.see = func(w *world, m proto.Message) {
			p, ok := m.(proto.Part)
			if !ok {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if p.Index != p.Rank || p.File != 1 || p.Failed || len(p.Data) > 0 && p.Data[0] != fileByte(p.Rank, came[p.Rank]) {
				bad = append(bad, p.Rank)
			}
			came[p.Rank] += int64(len(p.Data))
			if next[p.Rank] < fileLength {
				ask(p.Rank)
			}
		}
		w.launch()
		defer w.close()
		w.root.Do(proto.End{Except: -1})
		one[proto.Ended](w)
		mu.Lock()
		for rank := range count {
			for range ahead {
				ask(rank)
			}
		}
		mu.Unlock()
		for range 1000 {
			synctest.Wait()
			mu.Lock()
			done := slices.Min(came) == fileLength
			mu.Unlock()
			if done {
				break
			}
			time.Sleep(time.Second)
		}
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, slices.Repeat([]int64{fileLength}, count), came)
		require.Empty(t, bad)
		for i, n := range w.nodes {
			require.LessOrEqual(t, n.Stats().PeakQueued, int64(count*ahead*proto.MaxPart), "host %d", i)
		}
		require.LessOrEqual(t, w.root.Stats().PeakQueued, int64(count*ahead*proto.MaxPart))
	})
}

// TestUnasked: a node must end the link to a child that sends parts or times that nobody has asked for, or
// more than a Fetch asks for, or that are about other hosts. gorun must get Lost, and nothing of them.
func TestUnasked(t *testing.T) {
	fetch, ask := proto.Fetch{Index: 1, Rank: 1}, proto.AskTime{Index: 1}
	part, now := proto.Part{Index: 1, Rank: 1}, proto.Time{Index: 1}
	big := proto.Part{Index: 1, Rank: 1, Data: bytes.Repeat([]byte("x"), proto.MaxPart+1)}
	for name, test := range map[string]struct {
		asked, sent []proto.Message
		pass        int // number of messages that gorun gets
	}{
		"unasked part": {nil, []proto.Message{part}, 0}, "too many parts": {[]proto.Message{fetch}, []proto.Message{part, part}, 1},
		"too long": {[]proto.Message{fetch}, []proto.Message{big}, 0}, "other host's part": {[]proto.Message{fetch}, []proto.Message{proto.Part{}}, 0},
		"unasked time": {[]proto.Message{fetch}, []proto.Message{now}, 0}, "too many times": {[]proto.Message{ask}, []proto.Message{now, now}, 1},
		"other host's time": {[]proto.Message{ask}, []proto.Message{proto.Time{}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, 2, 2)
				hostile := make(chan *treetest.Stream, 1)
				w.agent = func(index int, s *treetest.Stream) bool {
					if index != 1 {
						return false
					}
					for _, m := range []proto.Message{proto.Up{Agents: []proto.Agent{{Index: 1}}}, proto.Prepared{}, proto.Started{}} {
						time.Sleep(time.Second)
						_, _ = s.Write(frames(t, m))
					}
					hostile <- s
					beatFor(t, s, time.Minute)
					return true
				}
				w.launch()
				defer w.close()
				s := <-hostile
				for _, m := range test.asked {
					w.root.Do(m)
				}
				synctest.Wait()
				for _, m := range test.sent {
					_, _ = s.Write(frames(t, m))
				}
				require.Equal(t, 1, one[proto.Lost](w).First)
				require.Equal(t, test.pass, len(got[proto.Part](w))+len(got[proto.Time](w)))
			})
		})
	}
}

// TestFetchOfALostHost: a Fetch to a lost host must be dropped, and one to a host that does not exist must be
// an error for the user.
func TestFetchOfALostHost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 2, 2)
		w.procs = serveFiles
		w.launch()
		defer w.close()
		_ = w.pipes[1].Child.Close()
		one[proto.Lost](w)
		w.root.Do(proto.Fetch{Index: 1, Rank: 1})
		w.root.Do(proto.Fetch{Index: 0, Rank: 0})
		require.Equal(t, 0, one[proto.Part](w).Index)
		require.Empty(t, got[proto.Log](w))
		w.root.Do(proto.Fetch{Index: 7})
		one[proto.Log](w)
	})
}

// TestAskTime asks three hosts, of which each is below the one before, for their times. Each must answer, also
// after the ranks have ended. Questions to a host that is lost must be dropped.
func TestAskTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 3, 1)
		w.procs = func(c *treetest.Procs) {
			see := c.See
			c.See = func(m proto.Message) {
				see(m)
				if a, ok := m.(proto.AskTime); ok {
					c.Emit(proto.Time{Index: a.Index, Now: time.Duration(c.Index+1) * time.Hour})
				}
			}
		}
		w.launch()
		defer w.close()
		ask := func() []proto.Time {
			before := len(got[proto.Time](w))
			for i := range 3 {
				w.root.Do(proto.AskTime{Index: i})
			}
			time.Sleep(time.Second) // of the bubble: all answers have come
			times := got[proto.Time](w)[before:]
			slices.SortFunc(times, func(a, b proto.Time) int { return a.Index - b.Index })
			return times
		}
		all := []proto.Time{{Index: 0, Now: time.Hour}, {Index: 1, Now: 2 * time.Hour}, {Index: 2, Now: 3 * time.Hour}}
		require.Equal(t, all, ask())
		w.root.Do(proto.End{Except: -1})
		one[proto.Ended](w)
		require.Equal(t, all, ask())
		_ = w.pipes[2].Child.Close()
		one[proto.Lost](w)
		require.Equal(t, all[:2], ask())
		require.Empty(t, got[proto.Log](w))
		w.root.Do(proto.AskTime{Index: 7})
		one[proto.Log](w)
	})
}
