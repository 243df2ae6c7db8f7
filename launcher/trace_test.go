package launcher

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/procs"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/trace"
	"github.com/weft-hpc/weft/launcher/job"
)

// fakeTime is a tree of agents with clocks of their own, in a time that the test makes.
type fakeTime struct {
	c       *clocks
	now     time.Duration         // gorun's clock
	offsets map[int]time.Duration // by host
	asked   []proto.AskTime       // questions without an answer
}

func newFakeTime(offsets map[int]time.Duration) *fakeTime {
	f := &fakeTime{now: time.Hour, offsets: offsets}
	f.c = newClocks(func(m proto.Message) { f.asked = append(f.asked, m.(proto.AskTime)) })
	f.c.now = func() time.Duration { return f.now }
	return f
}

// answer answers the first question. It takes the times there and back.
func (f *fakeTime) answer(there, back time.Duration) {
	q := f.asked[0]
	f.asked = f.asked[1:]
	f.now += there
	m := proto.Time{Index: q.Index, Now: f.now + f.offsets[q.Index]}
	f.now += back
	f.c.got(m)
}

// TestClocks compares the clocks of two hosts with gorun's. One question at a time goes to each host, and the
// answer that came fastest counts.
func TestClocks(t *testing.T) {
	f := newFakeTime(map[int]time.Duration{1: 500 * time.Hour, 2: -time.Minute})
	for round := range 2 {
		f.c.begin([]int{1, 2})
		n := 0
		for ; len(f.asked) > 0; n++ {
			require.LessOrEqual(t, len(f.asked), 2)
			there := 2 * time.Millisecond
			if n == 100 || n == 101 { // one answer of each host is fast
				there = 50 * time.Microsecond
			}
			f.answer(there, 30*time.Microsecond)
		}
		require.Equal(t, 2*maxTimeQuestions, n, round)
		f.c.wait(t.Context()) // does not block
		f.now += time.Hour
	}
	for host, offset := range f.offsets {
		c := f.c.clock(host)
		require.LessOrEqual(t, c.Bound(), 2*time.Millisecond)
		require.LessOrEqual(t, (c.Offset() - offset).Abs(), c.Bound())
		at := time.Hour + 30*time.Minute
		require.LessOrEqual(t, (c.At(at+offset) - at).Abs(), c.Bound())
	}
	require.Equal(t, time.Minute, f.c.clock(0).At(time.Minute), "gorun's own host")
	f.c.got(proto.Time{Index: 1}) // nobody has asked
	f.c.got(proto.Time{Index: 7})
	f.c.begin(make([]int, 2000)) // many hosts get fewer questions
	require.Equal(t, minTimeQuestions, f.c.hosts[0].questions)
}

// TestClocksOfLostHost: wait does not wait for a host that is lost, nor longer than its context.
func TestClocksOfLostHost(t *testing.T) {
	f := newFakeTime(nil)
	f.c.begin([]int{1, 2})
	f.answer(1, 1)
	f.c.got(proto.Lost{First: 1, Count: 2})
	f.c.wait(t.Context())
	f.c.begin([]int{1, 2}) // both are lost
	f.c.wait(t.Context())
	require.EqualValues(t, 1, f.c.clock(1).Bound())
	f.c.begin([]int{3})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.c.wait(ctx)
	require.Zero(t, f.c.clock(3).Bound())
}

// tracedRun returns a run whose ranks have ended: three on each of two hosts.
func tracedRun() *run {
	r := newRun(&session{job: &job.Job{Trace: "trace", Apps: []job.App{{Program: "a.out"}}}, host: "node0"}, "1")
	r.hosts = []host{{Host: hosts.Host{Name: "node1"}}, {Host: hosts.Host{Name: "node2"}}}
	r.size, r.ranks = 6, make([]rank, 6)
	for i := range r.ranks {
		r.ranks[i] = rank{host: i / 3, pid: 100 + i, exit: new(proto.Exit)}
	}
	return r
}

// TestTraceLosses: gorun prints one line for each host and reason.
func TestTraceLosses(t *testing.T) {
	r := tracedRun()
	losses, infos := make(map[traceLoss]*lostEvents), r.rankInfos(false)
	for i, res := range []trace.Result{
		{Reason: "too many open files"},
		{Begun: true, Unwritten: 7, Reason: "no space left\x1b on device"},
		{Begun: true, Unwritten: 5, Overrun: 3, Reason: "no space left\x1b on device"},
		{},
		{Begun: true, Cut: errors.New("its host is lost: x")},
		{Cut: errors.New("its host is lost: x")},
	} {
		addLosses(losses, &infos[i], res)
	}
	require.Equal(t, []string{
		"no trace of rank 0 on node1: too many open files",
		"the trace lacks 12 events of ranks 1-2 on node1: no space left? on device",
		"the trace lacks 3 events of rank 2 on node1: they came faster than the host could read them",
		"no trace of rank 3 on node2: a.out is not a weft program, or has not called comm.Init",
		"the trace lacks the last events of rank 4 on node2: its host is lost: x",
		"no trace of rank 5 on node2: its host is lost: x",
	}, r.lossLines(losses))
}

// TestTraceIsEnded: if the hosts do not answer and a signal asks gorun to end, collectTrace must return the
// cause, and must leave the file as it was. If the job's timeout ends, the trace must say what it lacks.
func TestTraceIsEnded(t *testing.T) {
	for _, how := range []string{"signal", "timeout"} {
		r := tracedRun()
		dir := t.TempDir()
		r.tracePath, r.watchdog = filepath.Join(dir, "trace"), &procs.Watchdog{}
		require.NoError(t, os.WriteFile(r.tracePath, []byte("old"), 0o600))
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		out := new(bytes.Buffer) // only the writer's goroutine uses it until that has ended
		r.stdio.Err = out
		r.out = newWriter(nil, out)
		r.files = newFetcher(func(proto.Message) {
			if how == "signal" {
				cancel(errors.New("a signal"))
			}
		})
		if how == "timeout" {
			r.deadline, r.job.Timeout = time.Now().Add(-time.Second), time.Minute
		}
		err := r.collectTrace(ctx)
		r.out.finish()
		<-r.out.done
		text, readErr := os.ReadFile(r.tracePath)
		require.NoError(t, readErr)
		if how == "signal" {
			require.EqualError(t, err, "the trace is lost: a signal")
			require.Equal(t, "old", string(text))
		} else {
			require.NoError(t, err)
			require.NotEqual(t, "old", string(text))
			require.Contains(t, out.String(), "no trace of ranks 0-2 on node1: the job ran longer than its timeout of 1m0s\n")
			require.Contains(t, out.String(), "gorun: trace of 0 ranks: "+r.tracePath+"\n")
		}
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, entries, 1)
	}
}

// TestPipeWithoutReader: the end of the context must end the wait for a reader of the pipe, and for one that
// does not read.
func TestPipeWithoutReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(path, 0o600))
	write := func(w io.Writer) error {
		_, err := w.Write(make([]byte, 1<<20)) // more than a pipe holds
		return err
	}
	late := errors.New("too late")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, late)
	defer cancel()
	require.ErrorIs(t, writeStream(ctx, path, write), late)

	reader, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	require.NoError(t, err)
	defer func() { _ = reader.Close() }()
	ctx, cancel = context.WithTimeoutCause(t.Context(), 200*time.Millisecond, late)
	defer cancel()
	require.ErrorIs(t, writeStream(ctx, path, write), late)
}

// TestTraceToPipeAfterTimeout: if the job's timeout has ended, the reader of a pipe must still get the trace.
func TestTraceToPipeAfterTimeout(t *testing.T) {
	r := tracedRun()
	r.tracePath, r.watchdog = filepath.Join(t.TempDir(), "pipe"), &procs.Watchdog{}
	require.NoError(t, unix.Mkfifo(r.tracePath, 0o600))
	out := new(bytes.Buffer) // only the writer's goroutine uses it until that has ended
	r.stdio.Err = out
	r.out = newWriter(nil, out)
	r.files = newFetcher(func(proto.Message) {})
	r.deadline, r.job.Timeout = time.Now().Add(-time.Second), time.Minute
	got := make(chan []byte, 1)
	go func() { // ends when collectTrace has written the trace
		text, _ := os.ReadFile(r.tracePath)
		got <- text
	}()
	require.NoError(t, r.collectTrace(t.Context()))
	require.NotEmpty(t, <-got)
	r.out.finish()
	<-r.out.done
	require.Contains(t, out.String(), "gorun: trace of 0 ranks: "+r.tracePath+"\n")
}

// TestTraceFormat: the format follows from the file's name, unless the user names it.
func TestTraceFormat(t *testing.T) {
	for _, test := range []struct {
		name   string
		format job.TraceFormat
		want   trace.Format
	}{
		{"a.json", job.TraceAuto, trace.Chrome}, {"a.pftrace", job.TraceAuto, trace.Perfetto},
		{"a.json", job.TracePerfetto, trace.Perfetto}, {"a", job.TraceChrome, trace.Chrome},
	} {
		s := &session{job: &job.Job{Trace: test.name, TraceFormat: test.format}}
		require.Equal(t, test.want, s.traceFormat())
	}
}
