package launcher

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A start that takes longer than progressAfter is told of on a terminal, by one
// line that is written over and goes when the ranks run. Anywhere else nothing is
// told.
const (
	progressAfter = time.Second
	progressEvery = 200 * time.Millisecond
)

// progress is that line.
type progress struct {
	shown bool
	tick  <-chan time.Time
	stop  func()
}

// begin has ticks come where somebody looks at a terminal.
func (p *progress) begin(err any) {
	f, ok := err.(*os.File)
	if !ok {
		return
	}
	if !isTerminal(f) || os.Getenv("TERM") == "dumb" {
		return
	}
	t := time.NewTicker(progressEvery)
	p.tick, p.stop = t.C, t.Stop
}

// end has no more of them come.
func (p *progress) end() {
	if p.stop != nil {
		p.stop()
		p.tick, p.stop = nil, nil
	}
}

// eraseLine goes back to the beginning of a line and empties it (ECMA-48, EL).
const eraseLine = "\r\x1b[K"

// show writes the line anew.
func (r *run) show() {
	if time.Since(r.began) < progressAfter {
		return
	}
	line := ""
	switch r.phase {
	case phaseConnecting:
		up, down := 0, []string{}
		for i := range r.hosts {
			if r.hosts[i].state != "" {
				up++
			} else {
				down = append(down, r.hosts[i].Name)
			}
		}
		line = fmt.Sprintf("%d of %s up; waiting for %s", up, plural(len(r.hosts), "host"), strings.Join(firstFew(down), ", "))
	case phasePreparing:
		line = "preparing " + plural(len(r.hosts), "host")
	case phaseStaging:
		line = "copying files to the hosts that lack them"
	case phaseStarting:
		line = "starting " + plural(len(r.ranks), "rank")
	default:
		r.quiet()
		return
	}
	r.progress.shown = true
	r.out.say(eraseLine + "gorun: " + line)
}

// quiet takes the line away, for good.
func (r *run) quiet() {
	if r.progress.shown {
		r.progress.shown = false
		r.out.say(eraseLine)
	}
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
