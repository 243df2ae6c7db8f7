package launcher

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/live"
	"golang.org/x/sys/unix"
)

// If the start of a job takes longer than progressAfter and stderr is a terminal, gorun shows how
// far the start has come: in one line of the terminal, which it overwrites every startEvery and
// finally removes. With -progress, it then shows what the ranks do, in a line that it overwrites every
// jobEvery.
const (
	progressAfter = time.Second
	startEvery    = 200 * time.Millisecond
	jobEvery      = time.Second
)

// progress is a ticker. At each tick, its owner writes the line of progress again.
type progress struct {
	tick <-chan time.Time // nil: stderr is not a terminal, or end was called
	stop func()           // stops the ticker, if there is one; not nil
}

// newProgress returns a progress. If err is a terminal that can overwrite a line, the progress
// ticks again and again, after the time every, until end is called. Otherwise it never ticks.
func newProgress(err io.Writer, every time.Duration) *progress {
	p := &progress{stop: func() {}}
	if _, ok := terminalWidth(err); ok && os.Getenv("TERM") != "dumb" {
		t := time.NewTicker(every)
		p.tick, p.stop = t.C, t.Stop
	}
	return p
}

// end stops the ticks.
func (p *progress) end() {
	p.stop()
	p.tick = nil
}

// show queues line to replace the line of progress on the terminal. If line is empty, it removes
// the line of progress instead. Before progressAfter has passed since the run began, show shows no
// line. It does not block.
func (r *run) show(line string) {
	switch {
	case line == "":
		r.out.setStatus("")
	case time.Since(r.began) >= progressAfter:
		line = "gorun: " + line
		// Only one row of the terminal can be overwritten.
		if width, ok := terminalWidth(r.stdio.Err); ok && width > 1 {
			line = string([]rune(line)[:min(width-1, len([]rune(line)))])
		}
		r.out.setStatus(line)
	}
}

// showWhile shows the result of line at each tick, in a goroutine, until the caller calls stop.
// stop then removes the line of progress.
func (r *run) showWhile(line func() string) (stop func()) {
	p := newProgress(r.stdio.Err, startEvery)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // ends when stop is called; stop waits for it
		for {
			select {
			case <-p.tick:
				r.show(line())
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
		p.end()
		r.show("")
	}
}

// progressLine returns the line of progress: how far the start has come. If the ranks run or have ended, it
// returns "" or, with -progress, what jobLine returns.
func (r *run) progressLine() string {
	switch r.phase {
	case phaseConnecting:
		var down []string
		for i := range r.hosts {
			if r.hosts[i].state == "" {
				down = append(down, r.hosts[i].Name)
			}
		}
		return fmt.Sprintf("%d of %s up", len(r.hosts)-len(down), plural(len(r.hosts), "host")) + waitingFor(down)
	case phasePreparing:
		return "preparing " + plural(len(r.hosts), "host")
	case phaseStaging:
		line := "copying files to the hosts that lack them"
		if all := r.stageBytes.Load(); all > 0 {
			line += fmt.Sprintf(": %d %% of %.1f MB", 100*r.stagedBytes.Load()/all, float64(all)/1e6)
		}
		return line
	case phaseStarting:
		return "starting " + plural(len(r.ranks), "rank")
	case phaseRunning:
		if r.reporting {
			return r.jobLine()
		}
	case phaseOver:
	}
	return ""
}

// jobLine returns the line of progress while the ranks run, and asks for the figures of the next one.
func (r *run) jobLine() string {
	r.measure(measureRequest{then: func(s *live.Snapshot) {
		if s != nil {
			r.before, r.latest = r.latest, s
		}
	}})
	line := fmt.Sprintf("%s on %s, %v", plural(len(r.ranks), "rank"), plural(len(r.hosts), "host"), time.Since(r.began).Round(time.Second))
	if r.before == nil {
		return line
	}
	inCalls, bytes, inside, weft := 0.0, 0.0, 0, 0
	for _, row := range live.Rows(r.before, r.latest) {
		if f := row.Figures; f != nil {
			weft++
			inCalls += row.InCalls
			bytes += row.Bytes
			if f.Inside != nil {
				inside++
			}
		}
	}
	if weft == 0 {
		return line
	}
	return line + fmt.Sprintf(": in weft %.0f %% of the time, %.1f MB/s, %d in a collective", 100*inCalls/float64(weft), bytes/1e6, inside)
}

// waitingFor returns the last part of a line, which names the first few of the hosts for which
// gorun waits. It returns "" if there are none.
func waitingFor(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "; waiting for " + strings.Join(firstFew(names), ", ")
}

// terminalWidth returns the number of columns of the terminal w, or 0 if that is not known. ok is
// false if w is not a terminal.
func terminalWidth(w io.Writer) (columns int, ok bool) {
	f, isFile := w.(*os.File)
	if !isFile {
		return 0, false
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	return int(size.Col), true
}

// onTerminal reports whether w is a terminal.
func onTerminal(w io.Writer) bool {
	_, ok := terminalWidth(w)
	return ok
}
