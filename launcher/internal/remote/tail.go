package remote

import (
	"bytes"
	"strings"
	"sync"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// tail is a writer that keeps the last lines written to it.
type tail struct {
	note func(line string) // gets each line; may be nil

	mu    sync.Mutex
	lines []string // the last lines, at most tailLines, each made safe for a terminal by oneLine
	part  []byte   // the beginning of an unfinished line, at most tailLine bytes
	panic string   // the first line of a Go program's panic
}

const (
	tailLines = 16      // number of lines that are kept
	tailLine  = 1 << 10 // bytes of a line that are kept
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

// flush handles the unfinished line as if it had ended now.
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

// reason returns the line that explains best why a program has ended, or "".
func (t *tail) reason() string {
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
			continue // ssh has added a host's key to known_hosts
		}
		if strings.HasPrefix(last, "ssh: ") {
			earlier = last
		}
		last = line
	}
	if earlier != "" { // the error of the ssh to a jump host; the last line is its consequence
		return proto.OneLine(earlier, lineLimit/2-1) + "; " + proto.OneLine(last, lineLimit/2-1)
	}
	return last
}
