package launcher

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A start that takes longer than progressAfter shows its progress on a terminal, in one line that
// gorun overwrites and finally removes. gorun shows no progress elsewhere.
const (
	progressAfter = time.Second
	progressEvery = 200 * time.Millisecond
)

// progress is a ticker for the line of progress.
type progress struct {
	tick <-chan time.Time // nil: no ticks
	stop func()
}

// newProgress returns a progress that ticks if err is a terminal, until end.
func newProgress(err io.Writer) *progress {
	p := &progress{stop: func() {}}
	if _, ok := terminalWidth(err); ok && os.Getenv("TERM") != "dumb" {
		t := time.NewTicker(progressEvery)
		p.tick, p.stop = t.C, t.Stop
	}
	return p
}

// end stops the ticks.
func (p *progress) end() {
	p.stop()
	p.tick = nil
}

// show replaces the line of progress. "" removes the line.
func (r *run) show(line string) {
	switch {
	case line == "":
		r.out.setStatus("")
	case time.Since(r.began) >= progressAfter:
		line = "gorun: " + line
		if width, ok := terminalWidth(r.stdio.Err); ok && width > 1 { // only one row of the terminal can be overwritten
			line = string([]rune(line)[:min(width-1, len([]rune(line)))])
		}
		r.out.setStatus(line)
	}
}

// showWhile shows the result of line at each tick, until the caller calls stop.
func (r *run) showWhile(line func() string) (stop func()) {
	p := newProgress(r.stdio.Err)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // stop waits for it
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

// progressLine says how far the start has come. It returns "" if the ranks run.
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
		return "copying files to the hosts that lack them"
	case phaseStarting:
		return "starting " + plural(len(r.ranks), "rank")
	default:
		return ""
	}
}

func waitingFor(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "; waiting for " + strings.Join(firstFew(names), ", ")
}

// terminalWidth returns the width of the terminal w, or 0 if it is unknown. ok is false if w is not
// a terminal.
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
