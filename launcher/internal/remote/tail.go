package remote

import (
	"bytes"
	"strings"
	"sync"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// tail keeps the last lines that are written to it.
type tail struct {
	note func(line string) // is told of each line; or nil

	mu    sync.Mutex
	lines []string // the last, each cut and fit to be printed
	part  []byte   // of a line
	panic string   // the line that began a Go program's account of its death
}

const (
	tailLines = 16
	tailLine  = 1 << 10 // what of a line is kept
)

func (t *tail) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		line, rest, ended := bytes.Cut(p, []byte("\n"))
		p = rest
		t.mu.Lock()
		t.part = append(t.part, line[:min(len(line), tailLine-len(t.part))]...)
		t.mu.Unlock()
		if ended {
			t.flush()
		}
	}
	return n, nil
}

// flush ends a line.
func (t *tail) flush() {
	t.mu.Lock()
	line := oneLine(string(t.part))
	t.part = t.part[:0]
	if line != "" {
		if len(t.lines) == tailLines {
			t.lines = append(t.lines[:0], t.lines[1:]...)
		}
		t.lines = append(t.lines, line)
		if t.panic == "" && (strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")) {
			t.panic = line
		}
	}
	t.mu.Unlock()
	if line != "" && t.note != nil {
		t.note(line)
	}
}

// words is the line that says best why a program has ended, or "".
func (t *tail) words() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.panic != "" {
		return t.panic
	}
	lines := t.lines
	if part := oneLine(string(t.part)); part != "" {
		lines = append(lines[:len(lines):len(lines)], part)
	}
	last, earlier := "", ""
	for _, line := range lines {
		if strings.HasPrefix(line, "Warning: Permanently added ") {
			continue // a host's key, to the known ones
		}
		if strings.HasPrefix(last, "ssh: ") {
			earlier = last
		}
		last = line
	}
	if earlier != "" { // ssh to a host in between, whose end the last line is about
		return proto.OneLine(earlier, lineLimit/2-1) + "; " + proto.OneLine(last, lineLimit/2-1)
	}
	return last
}
