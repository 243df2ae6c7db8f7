package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/procs"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/trace"
	"github.com/weft-hpc/weft/launcher/internal/ui"
)

// A capture is a trace or a profile of a job that runs:
//
//	browser ─► pageSource.Capture ── captureRequest ──► run.control ── Capture ──► hosts
//	           pageSource.Capture ◄── ranks, file ──── run.control ◄── Captured ── hosts
//	           readCapture ── Fetch ─────────────────────────────────────────────► hosts
//	           readCapture ◄─ Part ─────────────────────────────────────────────── hosts

// captureRequest asks [run.control] for a capture.
type captureRequest struct {
	kind string        // Capture.Kind
	time time.Duration // Capture.Time
	// then is called once, by the goroutine that runs [run.control] or that ends the run. It must not block. Its
	// argument is the result. If that has no infos, no rank runs.
	then func(capturedFiles)
}

// capturedFiles is the result of a capture on the hosts.
type capturedFiles struct {
	infos []rankInfo // the ranks that ran at the beginning
	file  int        // number of their files
	late  []string   // names of the hosts that have not answered in time, and whose files may not be complete
}

// capture is a capture under way.
type capture struct {
	captureRequest
	infos  []rankInfo
	file   int          // Capture.File
	silent map[int]bool // hosts that have not answered, by index
}

// captureLimit is how long after its time a capture waits for the hosts. For a profile, these wait for their ranks
// for 5 s.
const captureLimit = 10 * time.Second

// lateCapture is the message of a timer to [run.control]: the time for answers to the Capture with this File is
// over.
type lateCapture struct{ file int }

// beginCapture handles a captureRequest. The page makes one at a time.
func (r *run) beginCapture(q captureRequest) {
	c := &capture{captureRequest: q, silent: make(map[int]bool)}
	if r.phase == phaseRunning {
		c.infos = r.rankInfos(true)
	}
	if len(c.infos) == 0 {
		q.then(capturedFiles{})
		return
	}
	for i := range c.infos {
		c.silent[c.infos[i].host] = true
	}
	c.file = proto.FirstCapture + r.captures
	r.captures++
	r.capturing = c
	r.node.Do(proto.Capture{File: c.file, Kind: q.kind, Time: q.time})
	if q.kind == proto.CaptureTrace {
		r.compareClocks()
	}
	late := lateCapture{c.file}
	time.AfterFunc(q.time+captureLimit, func() { r.mail.post(late) })
}

// captured handles Captured, the answer of a host.
func (r *run) captured(m proto.Captured) {
	if r.capturing != nil && r.capturing.file == m.File {
		r.captureWithout(m.Index)
	}
}

// captureWithout ends the wait for the answer of a host, which has answered or is lost.
func (r *run) captureWithout(host int) {
	c := r.capturing
	if c == nil {
		return
	}
	if delete(c.silent, host); len(c.silent) == 0 {
		r.endCapture()
	}
}

// endCapture answers the request of the capture under way.
func (r *run) endCapture() {
	c := r.capturing
	r.capturing = nil
	if c.kind == proto.CaptureTrace {
		r.compareClocks()
	}
	found := capturedFiles{infos: c.infos, file: c.file}
	for i := range c.silent {
		found.late = append(found.late, r.nameOf(i))
	}
	slices.Sort(found.late)
	c.then(found)
}

var errNoRankRuns = errors.New("no rank runs")

// Capture implements [ui.Source].
func (p pageSource) Capture(ctx context.Context, kind string, d time.Duration) (c ui.Captured, err error) {
	r := p.s.current.Load()
	if r == nil {
		return c, errNoRankRuns
	}
	done := make(chan capturedFiles, 1)
	if !r.mail.post(captureRequest{kind, d, func(files capturedFiles) { done <- files }}) {
		return c, errNoRankRuns
	}
	var files capturedFiles
	select {
	case files = <-done:
	case <-ctx.Done():
		return c, context.Cause(ctx)
	}
	if len(files.infos) == 0 {
		return c, errNoRankRuns
	}
	out, err := procs.UnnamedFile("weft-capture", true)
	if err != nil {
		return c, withoutPath(err)
	}
	if c.Lines, err = r.readCapture(ctx, out, kind, files); err != nil {
		_ = out.Close()
		return ui.Captured{}, withoutPath(err)
	}
	c.File, c.Name = out, fmt.Sprintf("weft-%s.%s.pprof", r.id, kind)
	if kind == proto.CaptureTrace {
		c.Name = fmt.Sprintf("weft-%s.pftrace", r.id)
	}
	return c, nil
}

// readCapture reads the files of the ranks, and writes the trace or the profile of all ranks to out. lines say what
// the result lacks.
func (r *run) readCapture(ctx context.Context, out *os.File, kind string, files capturedFiles) (lines []string, err error) {
	var ranks int
	if kind == proto.CaptureTrace {
		r.clocks.wait(ctx)
		ranks, lines, err = r.convertTrace(out, trace.Perfetto, files.infos, files.file)
	} else {
		lost := make(map[lostProfiles]map[string][]int)
		ranks, err = r.mergeProfiles(out, files.infos, files.file, loseTo(lost, kind))
		lines = lostLines([]string{kind}, lost)
	}
	for _, host := range files.late {
		lines = append(lines, fmt.Sprintf("host %s did not answer in time: the result may lack data of its ranks", host))
	}
	if err == nil && ranks == 0 {
		err = errors.New("there is none")
		if len(lines) > 0 {
			err = errors.New(lines[0])
		}
	}
	return lines, err
}
