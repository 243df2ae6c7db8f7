package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/trace"
	"github.com/weft-hpc/weft/launcher/job"
)

// The trace of -trace. While the ranks run, each host writes what they record to a file (procs). When
// all ranks have ended, gorun reads these files, one rank after the other, and writes the trace:
//
//	rank 0 ─ spool ─ host ─┐
//	rank 1 ─ spool ─ host ─┼─ fetcher ─► trace.Writer ─► FILE
//	…                     ─┘

// spoolName is the name of the files with the events of ranks, in Prepare.RankFiles.
const spoolName = "trace"

// checkTrace checks that the file of -trace can be written. id is the id of the job's first run.
func (s *session) checkTrace(id string) error {
	err := s.interruptible(func() error {
		path, regular, err := tracePath(s.job.Trace)
		if err != nil {
			return err
		}
		s.tracePath = path
		if !regular {
			return unix.Access(path, unix.W_OK)
		}
		part := s.tracePart(id)
		f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if err != nil {
			return err
		}
		return errors.Join(f.Close(), os.Remove(part))
	})
	var coded *startError
	if err != nil && !errors.As(err, &coded) {
		return fmt.Errorf("-trace (job.trace): %s: %w", s.job.Trace, withoutPath(err))
	}
	return err
}

// tracePath returns the absolute path of the file for a trace, without symbolic links. regular is false if
// the file exists and is, for example, a pipe.
func tracePath(name string) (path string, regular bool, err error) {
	if path, err = filepath.Abs(name); err != nil {
		return path, false, err
	}
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return path, true, nil
	case err != nil:
		return path, false, err
	case st.IsDir():
		return path, false, unix.EISDIR
	case !st.Mode().IsRegular():
		return path, false, nil
	}
	if err := unix.Access(path, unix.W_OK); err != nil {
		return path, true, err
	}
	path, err = filepath.EvalSymlinks(path)
	return path, true, err
}

// tracePart returns the path of the file for a trace that is not complete. If gorun is killed, the
// watchdog removes it.
func (s *session) tracePart(id string) string {
	part := filepath.Join(filepath.Dir(s.tracePath), ".weft-trace-"+id)
	s.watchdog.RemoveDir(part)
	return part
}

// withoutPath returns an error without the name of a file.
func withoutPath(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// traceFormat returns the format of the trace.
func (s *session) traceFormat() trace.Format {
	switch {
	case s.job.TraceFormat == job.TraceAuto && strings.HasSuffix(s.job.Trace, ".json"):
		return trace.Chrome
	case s.job.TraceFormat == job.TraceAuto:
		return trace.Perfetto
	}
	return trace.Format(s.job.TraceFormat)
}

// compareClocks begins to compare the clocks of the other hosts with gorun's. It does not block.
func (r *run) compareClocks() {
	var others []int
	for i := range r.hosts {
		if (i > 0 || !r.usesThisHost()) && r.hosts[i].state == hostUp {
			others = append(others, i)
		}
	}
	r.clocks.begin(others)
}

// collectTrace writes the trace, and prints where it is and what it lacks. An error means that the file
// could not be written, or that the user has ended gorun meanwhile; then FILE is as it was before. If the
// job has a timeout, the trace lacks what gorun could not read in time. The ranks have ended, and the tree
// is still open.
func (r *run) collectTrace(ctx context.Context) error {
	if r.job.Trace == "" || !slices.ContainsFunc(r.ranks, func(rk rank) bool { return rk.pid != 0 }) {
		return nil
	}
	limited, cancel := r.profileContext(ctx)
	defer cancel()
	stop := context.AfterFunc(limited, func() { r.files.stop(context.Cause(limited)) })
	defer stop()
	r.compareClocks()
	r.clocks.wait(limited)
	var traced int
	var lines []string
	// What gorun has read in time must still reach the reader of a pipe.
	written, stopWriting := ctx, context.CancelFunc(func() {})
	if d, ok := limited.Deadline(); ok {
		if now := time.Now(); d.Before(now) {
			d = now
		}
		late := fmt.Errorf("nobody has read it within %v", profileGrace)
		written, stopWriting = context.WithDeadlineCause(ctx, d.Add(profileGrace), late)
	}
	defer stopWriting()
	err := r.writeTrace(written, func(w io.Writer) (err error) {
		traced, lines, err = r.convertTrace(w, r.traceFormat(), r.rankInfos(false), len(r.job.Profile))
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("the trace is lost: %w", withoutPath(err))
	}
	for _, line := range lines {
		r.printLine(line)
	}
	r.printLine(fmt.Sprintf("trace of %s: %s", plural(traced, "rank"), r.tracePath))
	return nil
}

// writeTrace makes write write the trace: to a new file that then gets the name of the trace, or, if that
// is a pipe or a device, directly. Nobody may read a pipe, so writeTrace returns when ctx ends.
func (r *run) writeTrace(ctx context.Context, write func(io.Writer) error) (err error) {
	_, regular, err := tracePath(r.tracePath)
	if err != nil {
		return err
	}
	if !regular {
		return writeStream(ctx, r.tracePath, write)
	}
	name := r.tracePart(r.id)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	err = write(f)
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(name, r.tracePath)
	}
	if err != nil {
		_ = os.Remove(name) // err is the first error
	}
	return err
}

// writeStream makes write write to a pipe or a device. The end of ctx ends the wait for a pipe's reader.
func writeStream(ctx context.Context, path string, write func(io.Writer) error) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	pipe, flags := st.Mode()&fs.ModeNamedPipe != 0, os.O_WRONLY
	if pipe {
		flags |= unix.O_NONBLOCK // open returns ENXIO instead of blocking until the pipe has a reader
	}
	f, err := os.OpenFile(path, flags, 0)
	for pipe && errors.Is(err, unix.ENXIO) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
		f, err = os.OpenFile(path, flags, 0)
	}
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetWriteDeadline(time.Unix(1, 0)) }) // fails for devices
	defer stop()
	err = write(f)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = context.Cause(ctx)
	}
	return errors.Join(err, f.Close())
}

// traceLoss is what the trace lacks of some ranks of a group on a host.
type traceLoss struct {
	group  int
	host   string
	reason string
	absent bool // all events; false: some
}

// lostEvents are the ranks and events of a traceLoss.
type lostEvents struct {
	ranks  []int  // in their group
	events uint64 // 0: not known
}

// convertTrace reads the spools of the ranks, which are their files with this number, and writes the trace to w. It
// returns the number of ranks in the trace, and lines about what is missing. The error is that of writing.
func (r *run) convertTrace(w io.Writer, f trace.Format, infos []rankInfo, file int) (traced int, lines []string, err error) {
	most := 0 // one more than the highest number of a rank
	for i := range infos {
		most = max(most, infos[i].First+infos[i].Size)
	}
	out := trace.NewWriter(w, f, most, record.Monotonic(), time.Now())
	losses := make(map[traceLoss]*lostEvents)
	err = r.readFiles(infos, file, func(rk *rankInfo, in io.Reader) error {
		rk.Clock = r.clocks.clock(rk.host)
		res, err := out.Rank(rk.Rank, in)
		if err != nil {
			return err
		}
		if res.Begun {
			traced++
		}
		addLosses(losses, rk, res)
		return nil
	})
	if err != nil {
		return 0, nil, err
	}
	return traced, r.lossLines(losses), out.Close()
}

// addLosses adds what the trace lacks of a rank.
func addLosses(losses map[traceLoss]*lostEvents, rk *rankInfo, res trace.Result) {
	add := func(absent bool, events uint64, reason string) {
		key := traceLoss{rk.group, rk.Host, reason, absent}
		l := losses[key]
		if l == nil {
			l = new(lostEvents)
			losses[key] = l
		}
		l.ranks = append(l.ranks, rk.Number-rk.First)
		l.events += events
	}
	switch {
	case res.Cut != nil:
		add(!res.Begun, 0, proto.OneLine(res.Cut.Error(), maxReason))
	case !res.Begun && res.Unwritten == 0:
		reason := rk.nothing
		if res.Reason != "" { // such as a host that could not write the events
			reason = proto.OneLine(res.Reason, maxReason)
		}
		add(true, 0, reason)
	}
	if res.Unwritten > 0 {
		add(false, res.Unwritten, proto.OneLine(res.Reason, maxReason))
	}
	if res.Overrun > 0 {
		add(false, res.Overrun, "they came faster than the host could read them")
	}
}

// lossLines returns a line for each loss.
func (r *run) lossLines(losses map[traceLoss]*lostEvents) (lines []string) {
	keys := slices.SortedFunc(maps.Keys(losses), func(a, b traceLoss) int {
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(losses[a].ranks[0], losses[b].ranks[0]), cmp.Compare(a.reason, b.reason))
	})
	for _, key := range keys {
		l := losses[key]
		of := "rank"
		if len(l.ranks) > 1 {
			of = "ranks"
		}
		of += " " + rankList(l.ranks)
		if key.group > 0 {
			of += fmt.Sprintf(" of group %d", key.group)
		}
		if !r.onlyThisHost() {
			of += " on " + key.host
		}
		switch {
		case key.absent:
			lines = append(lines, fmt.Sprintf("no trace of %s: %s", of, key.reason))
		case l.events == 0:
			lines = append(lines, fmt.Sprintf("the trace lacks the last events of %s: %s", of, key.reason))
		default:
			lines = append(lines, fmt.Sprintf("the trace lacks %d events of %s: %s", l.events, of, key.reason))
		}
	}
	return lines
}
