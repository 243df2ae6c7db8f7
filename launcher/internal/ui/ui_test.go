package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/launcher/internal/live"
)

// fake is a job. It counts the calls of its methods.
type fake struct {
	snapshot func(peers bool) *live.Snapshot

	mu                                sync.Mutex // guards the fields below
	snapshots, withPeers, inspections int
	found                             Inspection
	lines                             []Line
}

func (f *fake) Snapshot(_ context.Context, peers bool) *live.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.snapshots++
	if peers {
		f.withPeers++
	}
	return f.snapshot(peers)
}

func (f *fake) Inspect(context.Context) Inspection {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inspections++
	return f.found
}

func (f *fake) Output(from int) ([]Line, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lines[from:], len(f.lines)
}

// Capture makes a profile whose text is its kind. If there are no ranks, it fails.
func (f *fake) Capture(ctx context.Context, kind string, d time.Duration) (Captured, error) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return Captured{}, ctx.Err()
	}
	if len(f.snapshot(false).Ranks) == 0 {
		return Captured{}, errors.New("no rank runs")
	}
	file, err := os.CreateTemp("", "weft-fake-*")
	if err != nil {
		return Captured{}, err
	}
	_, err = file.WriteString(kind)
	return Captured{Name: "weft." + kind, File: file, Lines: []string{"no " + kind + " of rank 3"}}, errors.Join(err, os.Remove(file.Name()))
}

func (f *fake) counts() (snapshots, withPeers, inspections int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.snapshots, f.withPeers, f.inspections
}

// running returns a job whose ranks make 10 calls and send 5 messages of 100 bytes each second, until
// the time given by stalls has passed. After that, rank ranks-1 does not enter a collective in which the
// others wait.
func running(ranks int, stalls time.Duration) *fake {
	begun := time.Now()
	return &fake{snapshot: func(peers bool) *live.Snapshot {
		d := time.Since(begun)
		s := &live.Snapshot{Job: "42", Name: "a.out", Phase: "running", Begun: begun, At: time.Now(), Hosts: []string{"h0", "h1\n\nevent: end"}}
		for i := range ranks {
			n := uint64(min(d, stalls) / (100 * time.Millisecond))
			f := &record.Figures{Rank: i, Elapsed: d, Messages: n / 2, Bytes: 50 * n, Ops: []record.OpFigures{{Name: "Barrier", Calls: n, Time: time.Duration(n) * 50 * time.Millisecond}}}
			if d >= stalls && i < ranks-1 {
				f.Inside = &record.Inside{Op: "Barrier", Comm: "world", Seq: 184}
			}
			if peers {
				f.Peers = []record.PeerFigures{{Rank: (i + 1) % ranks, Messages: n / 2, Bytes: 50 * n}}
			}
			s.Ranks = append(s.Ranks, live.Rank{Name: fmt.Sprint(i), Host: s.Hosts[i%2], State: "running", Figures: f})
		}
		return s
	}, found: Inspection{
		Lines: []string{"comm.Barrier(world) waits for rank 3"},
		Late:  []Late{{Op: "Barrier", Comm: "world", Seq: 184, Ranks: "rank 3"}},
	}}
}

// tickHalf keeps the time of tests apart from that of updates.
const tickHalf = 500 * time.Millisecond

// stream is a browser: it keeps the events that it gets.
type stream struct {
	http.ResponseWriter // nil
	header              http.Header
	stop                context.CancelFunc
	stuck               chan struct{} // if it is not nil, Write blocks until it is closed or the time limit has passed

	mu       sync.Mutex // guards the fields below
	text     bytes.Buffer
	deadline time.Time
	code     int
}

// listen makes a browser listen to the events of a page. done is closed when the handler has returned.
func listen(p *Page, stuck chan struct{}) (s *stream, done chan struct{}) {
	ctx, stop := context.WithCancel(context.Background())
	s = &stream{header: make(http.Header), stop: stop, stuck: stuck, code: http.StatusOK}
	done = make(chan struct{})
	r := httptest.NewRequestWithContext(ctx, "GET", inFolder(p)+"events", nil)
	withCookie(p)(r)
	go func() { // ends when the page or the stream ends
		defer close(done)
		p.ServeHTTP(s, r)
	}()
	return s, done
}

func (s *stream) Header() http.Header  { return s.header }
func (s *stream) WriteHeader(code int) { s.code = code }
func (s *stream) Flush()               {}
func (s *stream) SetWriteDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = t
	return nil
}

func (s *stream) Write(b []byte) (int, error) {
	if s.stuck != nil {
		select {
		case <-s.stuck:
		case <-time.After(time.Until(s.deadline)):
			return 0, errors.New("not read in time")
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

// events returns the data of the events with this name.
func (s *stream) events(name string) (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := range strings.SplitSeq(s.text.String(), "\n\n") {
		if data, ok := strings.CutPrefix(e, "event: "+name+"\ndata: "); ok {
			list = append(list, data)
		}
	}
	return list
}

// last returns the last event of a kind.
func last[T any](t *testing.T, s *stream, name string) (v T) {
	t.Helper()
	list := s.events(name)
	require.NotEmpty(t, list, name)
	require.NoError(t, json.Unmarshal([]byte(list[len(list)-1]), &v))
	return v
}

// TestEvents: nothing is measured unless a browser listens. One that listens gets the state once per
// second, and the matrix every five seconds.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := running(4, time.Hour)
		f.lines = []Line{{"3", true, "<b>\nline"}}
		p := New(f, "a.out")
		time.Sleep(time.Minute)
		n, _, _ := f.counts()
		require.Zero(t, n)

		s, done := listen(p, nil)
		time.Sleep(10*time.Second + tickHalf)
		n, peers, inspections := f.counts()
		require.Equal(t, [3]int{11, 2, 0}, [3]int{n, peers, inspections})
		require.Len(t, s.events("state"), 11)
		require.Len(t, s.events("layout"), 1)
		require.Len(t, s.events("matrix"), 2)
		require.Empty(t, s.events("end")) // the name of a host does not make an event
		require.Equal(t, []string{`[{"from":"3","err":true,"text":"\u003cb\u003e\nline"}]`}, s.events("output"))
		require.Equal(t, []int{0, 1, 0, 1}, last[layout](t, s, "layout").HostOf)
		e := last[state](t, s, "state")
		require.Equal(t, [3]int64{40, 20, 2000}, e.Total)
		require.Equal(t, row{0.0, "running", 50.0, 10.0, 5.0, 500.0}, e.Rows[1])
		require.InDelta(t, 70, e.Seconds, 0.5)
		require.Empty(t, e.Stall)
		m := last[matrix](t, s, "matrix")
		require.Equal(t, "AP8AAAAA/wAAAAD//wAAAA==", m.Text) // the bytes 0 255 0 0, 0 0 255 0, …
		require.Equal(t, "rank 0 to rank 1", m.Most)

		f.mu.Lock()
		f.lines = append(f.lines, Line{"0", false, "more"})
		f.mu.Unlock()
		other, _ := listen(p, nil) // costs no more snapshots
		time.Sleep(5 * time.Second)
		n, _, _ = f.counts()
		require.Equal(t, 16, n)
		require.Len(t, s.events("output"), 2)
		require.Len(t, last[[][3]int64](t, other, "history"), 11)

		s.stop()
		<-done
		other.stop()
		synctest.Wait()
		time.Sleep(time.Hour)
		after, _, _ := f.counts()
		require.Equal(t, n, after)
		p.End(nil, "", false)
	})
}

// TestSlowBrowser: a browser that does not read must not delay others, and loses its connection. One that
// reads late must get the newest state, and not those in between.
func TestSlowBrowser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(running(4, time.Hour), "a.out")
		late := make(chan struct{})
		slow, slowDone := listen(p, late)
		stuck, stuckDone := listen(p, make(chan struct{}))
		quick, _ := listen(p, nil)
		time.Sleep(9*time.Second + tickHalf)
		require.Len(t, quick.events("state"), 10)
		close(late)
		synctest.Wait()
		require.Len(t, slow.events("state"), 1)
		require.Equal(t, quick.events("state")[9], slow.events("state")[0])
		time.Sleep(2 * time.Second)
		select {
		case <-stuckDone:
		default:
			t.Fatal("the connection of a browser that does not read is still there")
		}
		require.Empty(t, stuck.events("history"))
		select {
		case <-slowDone:
			t.Fatal("the connection of a browser that reads late is gone")
		default:
		}
		p.End(nil, "well", false)
		<-slowDone
	})
}

// TestManyBrowsers: more browsers than maxListeners get 503.
func TestManyBrowsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(running(4, time.Hour), "a.out")
		var list []*stream
		for range maxListeners + 1 {
			s, _ := listen(p, nil)
			synctest.Wait()
			list = append(list, s)
		}
		require.Equal(t, http.StatusOK, list[maxListeners-1].code)
		require.Equal(t, http.StatusServiceUnavailable, list[maxListeners].code)
		list[0].stop()
		synctest.Wait()
		s, _ := listen(p, nil)
		synctest.Wait()
		require.Equal(t, http.StatusOK, s.code)
		p.End(nil, "", false)
	})
}

// TestStall: when ranks have been quiet for some seconds, the page inspects them, and says which rank has
// not entered which collective. Further inspections follow after pauses that grow.
func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := running(4, 10*time.Second)
		p := New(f, "a.out")
		s, _ := listen(p, nil)
		time.Sleep(15*time.Second - tickHalf)
		_, _, n := f.counts()
		require.Zero(t, n)
		require.Empty(t, last[state](t, s, "state").Stall)
		time.Sleep(2 * time.Second)
		_, _, n = f.counts()
		require.Equal(t, 1, n)
		want := note{"rank 3 has not entered Barrier 184 of world; the others wait there", "for 6s"}
		require.Equal(t, []note{want}, last[state](t, s, "state").Stall)
		require.Equal(t, f.found.Lines, last[Inspection](t, s, "report").Lines)
		time.Sleep(10 * time.Minute)
		_, _, n = f.counts()
		require.Equal(t, 13, n) // after 5, 10, 20, 40, 60, 60, … seconds

		f.mu.Lock()
		f.found = Inspection{Lines: []string{"deadlock: rank 0 waits for itself"}, Deadlocks: []string{"deadlock: rank 0 waits for itself"}}
		f.mu.Unlock()
		r := httptest.NewRequestWithContext(t.Context(), "POST", inFolder(p)+"inspect", nil) // the button
		withCookie(p)(r)
		w := httptest.NewRecorder()
		p.ServeHTTP(w, r)
		require.Equal(t, http.StatusNoContent, w.Code)
		time.Sleep(time.Second)
		require.Equal(t, []note{{Text: f.found.Deadlocks[0]}}, last[state](t, s, "state").Stall)

		f.mu.Lock()
		f.snapshot = running(4, 3*time.Second).snapshot // the ranks go on, and wait again later
		f.mu.Unlock()
		time.Sleep(2 * time.Second)
		require.Empty(t, last[state](t, s, "state").Stall)
		f.mu.Lock()
		f.found = Inspection{Lines: []string{"something else"}}
		f.mu.Unlock()
		time.Sleep(10 * time.Second)
		require.Equal(t, "no rank has called weft", last[state](t, s, "state").Stall[0].Text)
		for _, e := range s.events("state")[len(s.events("state"))-10:] {
			require.NotContains(t, e, "deadlock") // that of the stall before
		}
		other, _ := listen(p, nil)
		synctest.Wait()
		require.Len(t, last[[][3]int64](t, other, "history"), maxHistory)
		p.End(nil, "", false)
	})
}

// TestNoCalls: if no rank calls weft, the page says that after an inspection has found no other reason. A
// page that was opened later says "at least".
func TestNoCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := running(4, 0)
		f.found.Late = nil
		time.Sleep(time.Minute)
		p := New(f, "a.out")
		s, _ := listen(p, nil)
		time.Sleep(6*time.Second + tickHalf)
		require.Equal(t, []note{{"no rank has called weft", "for at least 6s"}}, last[state](t, s, "state").Stall)
		p.End(nil, "", false)
	})
}

// TestEnd: the browsers must get the last state of the job, and how it has ended. One that does not read
// does not delay the end.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := running(4, time.Hour)
		p := New(f, "a.out")
		s, done := listen(p, nil)
		_, _ = listen(p, make(chan struct{}))
		time.Sleep(2 * time.Second)
		final := f.snapshot(false)
		for i := range final.Ranks {
			final.Ranks[i].Figures, final.Ranks[i].State = nil, "ended"
		}
		final.Ranks[1].State = "failed"
		p.End(final, "rank 1 <failed>\xff", true)
		<-done
		require.Equal(t, []string{`{"text":"rank 1 \u003cfailed\u003e?","failed":true}`}, s.events("end"))
		e := last[state](t, s, "state")
		require.Equal(t, "ended", e.Phase)
		require.Equal(t, row{4.0, "failed", 0.0, 0.0, 0.0, 0.0}, e.Rows[1])
		require.Equal(t, row{3.0, "ended", 0.0, 0.0, 0.0, 0.0}, e.Rows[2])
		time.Sleep(p.writeTime)
	})
}

// TestOtherRanks: a job that is started again, and one whose ranks have ended, must be shown as they are.
func TestOtherRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := running(4, time.Hour)
		of := f.snapshot
		job, ranks := "", false
		f.snapshot = func(peers bool) *live.Snapshot {
			s := of(peers)
			s.Job = job
			if !ranks {
				s.Ranks, s.Hosts, s.Phase = nil, nil, "starting"
			}
			return s
		}
		p := New(f, "a.out")
		s, _ := listen(p, nil)
		time.Sleep(tickHalf)
		step := func(id string, run bool) (layout, state) {
			f.mu.Lock()
			job, ranks = id, run
			f.mu.Unlock()
			time.Sleep(3 * time.Second)
			return last[layout](t, s, "layout"), last[state](t, s, "state")
		}
		l, e := step("", false)
		require.Empty(t, l.Names)
		require.Equal(t, "starting", e.Phase)
		l, e = step("1", true)
		require.Len(t, l.Names, 4)
		require.EqualValues(t, 40, e.Total[0])
		l, e = step("1", false) // no rank runs any more
		require.Len(t, l.Names, 4)
		require.Len(t, e.Rows, 4)
		require.Zero(t, e.Total[0])
		time.Sleep(10 * time.Second)
		_, e = step("1", false)
		require.Empty(t, e.Stall) // ranks that do not run do not stall
		_, _, inspections := f.counts()
		require.Zero(t, inspections)
		l, _ = step("2", false) // the job is started again
		require.Empty(t, l.Names)
		l, e = step("2", true)
		require.Equal(t, "2", l.Job)
		require.Len(t, e.Rows, 4)
		p.End(nil, "", false)
	})
}

// TestUpdatesAreSmall bounds the size of the events of large jobs.
func TestUpdatesAreSmall(t *testing.T) {
	for _, test := range []struct{ ranks, block, size int }{{256, 2, 128}, {300, 3, 100}, {5, 1, 5}} {
		synctest.Test(t, func(t *testing.T) {
			f := running(test.ranks, 0)
			p := New(f, "a.out")
			s, _ := listen(p, nil)
			time.Sleep(3*time.Second + tickHalf)
			s.mu.Lock()
			require.Less(t, s.text.Len()/4, 150<<10/4) // four states, one layout, one matrix
			s.mu.Unlock()
			m := last[matrix](t, s, "matrix")
			require.Equal(t, [3]int{test.ranks, test.block, test.size}, [3]int{m.Ranks, m.Block, m.Size})
			p.End(nil, "", false)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		f := running(5000, 0)
		p := New(f, "a.out")
		s, _ := listen(p, nil)
		time.Sleep(13*time.Second + tickHalf)
		require.Len(t, s.events("state"), 3) // every six seconds
		require.Empty(t, s.events("matrix"))
		p.End(nil, "", false)
	})
}

// TestLateText: the page must name the collective, and the ranks that are late.
func TestLateText(t *testing.T) {
	for want, l := range map[string]Late{
		"rank 3 has not entered Bcast 5 of world; the others wait there":                                                                        {Op: "Bcast", Comm: "world", Seq: 5, Ranks: "rank 3"},
		"ranks 2, 7 have not entered Bcast of world; the others wait there":                                                                     {Op: "Bcast", Comm: "world", Ranks: "ranks 2, 7"},
		"rank 1 of group 2 has not entered collective 9 of row of group 2; the others wait there":                                               {Group: 2, Op: "Request.Wait", Comm: "row", Seq: 9, Ranks: "rank 1 of group 2"},
		"rank 1 has not entered Bcast 5 of world; ranks 3-4 have not answered, and perhaps not entered Bcast 5 of world; the others wait there": {Op: "Bcast", Comm: "world", Seq: 5, Ranks: "rank 1", Silent: "ranks 3-4"},
	} {
		require.Equal(t, want, l.text())
	}
}

// TestNotesOfACollectiveThatHasEnded: while a rank computes for long, the others may have gone on to another
// collective since the last inspection. Then the page must not show the old one.
func TestNotesOfACollectiveThatHasEnded(t *testing.T) {
	f := running(4, 0)
	s := f.snapshot(false)
	var k tracker
	k.note(s)
	s.At = s.At.Add(time.Minute)
	notes := func(l Late) []note {
		quiet, all := k.quiet(s, time.Second)
		return k.notes(s, quiet, all, &Inspection{Lines: []string{"x"}, Late: []Late{l}})
	}
	require.Equal(t, "rank 3 has not entered Barrier 184 of world; the others wait there", notes(f.found.Late[0])[0].Text)
	old := f.found.Late[0]
	old.Seq--
	require.Equal(t, "no rank has called weft", notes(old)[0].Text)
	old.Op = "Request.Wait" // the figures do not show nonblocking collectives
	require.Equal(t, note{"rank 3 has not entered collective 183 of world; the others wait there", "for at least 1m0s"}, notes(old)[0])
}

// TestMatrixOfGroups: the ranks of a spawned group have the numbers of their own group in their messages.
func TestMatrixOfGroups(t *testing.T) {
	s := &live.Snapshot{}
	for _, name := range []string{"0", "1", "1.0", "1.1", "1.2", "2.0"} {
		s.Ranks = append(s.Ranks, live.Rank{Name: name})
	}
	sends := func(i int, peers ...record.PeerFigures) { s.Ranks[i].Figures = &record.Figures{Peers: peers} }
	sends(0, record.PeerFigures{Rank: 1, Bytes: 5}, record.PeerFigures{Rank: 2, Bytes: 1 << 40}, record.PeerFigures{Rank: -1, Bytes: 1})
	sends(3, record.PeerFigures{Rank: 0, Bytes: 7}, record.PeerFigures{Rank: 2, Bytes: 9})
	sends(5, record.PeerFigures{Rank: 0, Bytes: 1}, record.PeerFigures{Rank: 1, Bytes: 1 << 40})
	m := matrixOf(s)
	require.Equal(t, "0 to 1, 1.0 to 1.2, 2.0", m.Names)
	require.Equal(t, "rank 1.1 to rank 1.2", m.Most)
	require.EqualValues(t, 9, m.Max)
	var cells []int
	for i, c := range m.Cells {
		if c > 0 {
			cells = append(cells, i)
		}
	}
	require.Equal(t, []int{0*6 + 1, 3*6 + 2, 3*6 + 4, 5*6 + 5}, cells)
}
