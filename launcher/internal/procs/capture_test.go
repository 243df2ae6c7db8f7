//go:build linux

package procs

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/trace"
)

// TestForgottenFiles: a Host forgets the files of earlier Captures, and no others.
func TestForgottenFiles(t *testing.T) {
	var s rankFiles
	defer s.close()
	const first, second = proto.FirstCapture, proto.FirstCapture + 1
	kept, err := s.make(0, []proto.RankFile{{Name: "a"}})
	require.NoError(t, err)
	f, err := s.capture(3, proto.Capture{File: first, Kind: "heap"})
	require.NoError(t, err)
	s.forget(first)
	s.setRest(3, first, []byte("rest"))
	require.Len(t, s.rests, 1)
	s.forget(second)
	g, err := s.capture(3, proto.Capture{File: second, Kind: proto.CaptureTrace})
	require.NoError(t, err)
	require.Empty(t, s.rests)
	s.setRest(3, first, []byte("rest"))
	require.Empty(t, s.rests)
	s.ended.Wait()
	_, err = f.WriteString("profile")
	require.ErrorIs(t, err, os.ErrClosed)
	for _, f := range []*os.File{kept[0], g} {
		_, err = f.WriteString("data")
		require.NoError(t, err)
	}
	s.close()
	_, err = s.capture(3, proto.Capture{File: second})
	require.Error(t, err)
}

// capturing returns a Manager of n ranks, the ranks' ends of their channels for inspections, and what the Manager
// emits.
func capturing(t *testing.T, n int) (c *Manager, ends []int, emitted *[]proto.Message) {
	t.Helper()
	emitted = new([]proto.Message)
	c = &Manager{phase: phaseRunning, ranks: make([]rank, n)}
	var err error
	c.poller, err = sys.NewPoller()
	require.NoError(t, err)
	t.Cleanup(c.poller.Close)
	c.cfg.shared = new(shared)
	c.cfg.Emit = func(m proto.Message) { *emitted = append(*emitted, m) }
	t.Cleanup(c.cfg.shared.files.close)
	c.records = new(records)
	c.wake, err = sys.NewWaker()
	require.NoError(t, err)
	t.Cleanup(c.wake.Close)
	for i := range c.ranks {
		c.plan.Ranks = append(c.plan.Ranks, proto.Rank{Rank: 10 + i})
		own, end, err := socketpair()
		require.NoError(t, err)
		c.ranks[i].answers = answers{fd: own, ready: true}
		ends = append(ends, end)
		t.Cleanup(func() {
			c.closeAnswers(i)
			_ = unix.Close(end)
		})
	}
	return c, ends, emitted
}

// fetch returns the content of a file of a Capture.
func (c *Manager) fetch(t *testing.T, rank, file int) (data, failed string) {
	t.Helper()
	answers := make(chan proto.Part, 1)
	c.cfg.shared.files.fetch(proto.Fetch{Rank: rank, File: file}, func(m proto.Message) { answers <- m.(proto.Part) })
	p := <-answers
	if p.Failed {
		return "", string(p.Data)
	}
	return string(p.Data), ""
}

// TestCaptureProfiles: ranks that answer whole, in part, not at all, with another number, too much, or that do not
// take requests.
func TestCaptureProfiles(t *testing.T) {
	c, ends, emitted := capturing(t, 8)
	m := proto.Capture{File: proto.FirstCapture + 5, Kind: "cpu", Time: time.Second}
	c.ranks[5].answers.ready = false
	c.ranks[2].answers.ready = false
	ready := wire.AppendInspect(nil, 0, wire.InspectReady, nil)
	require.Equal(t, len(ready), send(ends[2], ready)) // not read yet
	c.ranks[6].exited = true
	c.closeAnswers(7)
	c.cfg.shared.files.forget(m.File)
	before := time.Now()
	c.act(m)
	require.WithinRange(t, c.captured.until, before.Add(time.Second+captureLimit), time.Now().Add(time.Second+captureLimit))
	answer := func(i, number int, piece string) {
		frame := wire.AppendInspect(nil, uint32(number), wire.InspectProfile, []byte(piece))
		require.Equal(t, len(frame), send(ends[i], frame))
		for c.ranks[i].answers.fd >= 0 && sys.Unread(c.ranks[i].answers.fd) > 0 {
			c.readAnswer(i)
		}
	}
	request := make([]byte, 100)
	n, err := unix.Read(ends[0], request)
	require.NoError(t, err)
	number, kind, body, _, ok, err := wire.ParseInspect(request[:n])
	require.NoError(t, err)
	require.True(t, ok)
	require.EqualValues(t, m.File, number)
	require.EqualValues(t, wire.InspectProfile, kind)
	name, d, err := wire.ParseProfileRequest(body)
	require.NoError(t, err)
	require.Equal(t, "cpu", name)
	require.Equal(t, time.Second, d)

	answer(0, m.File, "one, ")
	answer(0, m.File-1, "another, ")
	answer(0, m.File, "two")
	answer(0, m.File, "")
	answer(0, m.File, "late")
	answer(1, m.File, "half")
	answer(2, m.File-1, "another")
	require.NoError(t, unix.Shutdown(ends[3], unix.SHUT_RDWR))
	c.readAnswer(3)
	piece := strings.Repeat("x", wire.InspectMaxPiece)
	for range wire.InspectMaxProfile/wire.InspectMaxPiece + 2 {
		answer(4, m.File, piece)
	}
	require.Empty(t, *emitted)
	c.captured.until = time.Now()
	c.timers()
	require.True(t, c.captured.until.IsZero())
	require.Equal(t, []proto.Message{proto.Captured{File: m.File}}, *emitted)
	failed := func(reason string) string {
		return string(wire.AppendProfile(nil, wire.ProfileFailed, []byte(reason)))
	}
	begun := string(wire.AppendProfile(nil, wire.ProfileBegun, nil))
	for i, want := range []string{begun + "one, two", begun + "half", begun, begun, begun + strings.Repeat("x", proto.MaxPart-len(begun)), "", failed("it has ended"), failed("it has called Finalize")} {
		data, failed := c.fetch(t, 10+i, m.File)
		require.Empty(t, failed)
		require.True(t, want == data, "rank %d: %d bytes", i, len(data))
	}
}

// TestCaptureTrace: the trace has the events from the beginning of the Capture to its end, with their names, also
// of a rank that ends meanwhile. The next Capture closes the files.
func TestCaptureTrace(t *testing.T) {
	c, _, emitted := capturing(t, 3)
	c.job.Card.Size = 3
	part := record.Size(3, drainBits)
	c.records = &records{bits: drainBits, mem: make([]byte, 3*part)}
	for i := range 3 {
		rd, err := record.NewReader(c.records.mem[i*part:][:part], 3, drainBits)
		require.NoError(t, err)
		c.records.readers = append(c.records.readers, rd)
	}
	var recorders []*record.Recorder
	for i := range 2 { // rank 2 has not called Init
		r, err := record.New(c.records.mem[i*part:][:part], i, 3, drainBits)
		require.NoError(t, err)
		recorders = append(recorders, r)
	}
	d := &drainedRanks{recorders: recorders}
	for i, r := range recorders {
		d.send(i, 5, r.Op("Before", false))
		r.Messages.Idle()
	}
	m := proto.Capture{File: proto.FirstCapture, Kind: proto.CaptureTrace, Time: time.Hour}
	c.act(m)
	first := c.captured.drainer
	// The race detector sees what the drainer does while a rank writes. So the ranks write when it has ended.
	first.join()
	for i, r := range recorders {
		r.Messages.Idle() // without it, the first messages with detail may have the time of an earlier one
		d.send(i, 7, r.Op("Within", false))
		r.Messages.Idle()
	}
	first.spools[1].ended.Store(true)
	for _, s := range first.spools {
		s.drain()
		s.flush()
	}
	for i := range recorders {
		data, failed := c.fetch(t, 10+i, m.File)
		require.Empty(t, failed)
		var out bytes.Buffer
		w := trace.NewWriter(&out, trace.Chrome, 3, 0, time.Unix(1, 0))
		res, err := w.Rank(trace.Rank{Number: i, Size: 3}, strings.NewReader(data))
		require.NoError(t, err)
		require.NoError(t, w.Close())
		require.Equal(t, trace.Result{Begun: true}, res)
		require.Equal(t, 7, strings.Count(out.String(), `"name":"Within"`))
		require.Equal(t, 7, strings.Count(out.String(), `"name":"sent"`))
		require.NotContains(t, out.String(), "Before")
		require.Equal(t, 1, strings.Count(out.String(), `"name":"the trace begins"`))
	}
	data, failed := c.fetch(t, 12, m.File)
	require.Empty(t, data+failed)

	require.Eventually(t, func() bool {
		c.readInbox()
		return len(*emitted) > 0
	}, time.Minute, time.Millisecond)
	require.Equal(t, []proto.Message{proto.Captured{File: m.File}}, *emitted)

	m.File++
	m.Time = time.Millisecond
	c.act(m)
	require.Eventually(t, func() bool {
		c.timers()
		c.readInbox()
		return len(*emitted) > 1
	}, time.Minute, time.Millisecond)
	require.True(t, c.captured.until.IsZero())
	c.phase = phaseEnded
	m.File++
	c.act(m)
	require.Nil(t, c.captured.drainer)
	require.Equal(t, proto.Captured{File: m.File}, (*emitted)[2])
	_, failed = c.fetch(t, 10, m.File)
	require.NotEmpty(t, failed)
}
