package launcher

import (
	"bytes"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/ui"
)

// The bounds of the output that gorun keeps for the live page.
const (
	tailLines     = 200
	tailLineBytes = 500 // longer lines are cut
)

// tail has the last lines of the job's output, for the live page.
type tail struct {
	mu    sync.Mutex // guards the fields below
	lines []ui.Line  // at most 2*tailLines
	next  int        // number of the next line; the first one was 0
}

// add appends a line. text is what was written, perhaps only its beginning.
func (t *tail) add(from string, stderr bool, text []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == 2*tailLines {
		t.lines = slices.Clone(t.lines[tailLines:])
	}
	t.lines = append(t.lines, ui.Line{From: from, Err: stderr, Text: plainText(text)})
	t.next++
}

// addOwn appends lines of gorun itself. If t is nil, it does nothing.
func (t *tail) addOwn(lines string) {
	if t != nil {
		for l := range strings.Lines(lines) {
			t.add("gorun", false, []byte(strings.TrimPrefix(l[:min(len(l), tailLineBytes)], "gorun: ")))
		}
	}
}

// since returns the lines with the numbers from to next-1, without those that are no longer kept.
func (t *tail) since(from int) (lines []ui.Line, next int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := min(t.next-from, tailLines, len(t.lines))
	if n <= 0 {
		return nil, t.next
	}
	return slices.Clone(t.lines[len(t.lines)-n:]), t.next
}

// escapes matches control sequences of a terminal, such as those for colours.
var escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`)

// plainText returns a line as a terminal without colours would show it.
func plainText(line []byte) string {
	line = bytes.TrimRight(line, "\r\n")
	line = line[bytes.LastIndexByte(line, '\r')+1:]
	return strings.Map(func(r rune) rune {
		if r != '\t' && !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(string(escapes.ReplaceAll(line, nil)), "?"))
}

// tap notes the output of a run's ranks for the live page, on its way to the writer. With a live page the
// hosts begin each line with a tag, which names the rank. If the user does not want tags, the tap removes
// them.
type tap struct {
	tail *tail
	keep bool // the user wants the tags
	tee  bool // each line comes twice: for the file of its rank, and for the terminal

	mu   sync.Mutex // guards open
	open map[outputSource]*openLine
}

// outputSource is what the lines of an Output come from. Each has its own unfinished line.
type outputSource struct {
	index, group, stream int
	stderr               bool
}

// openLine is a line whose end has not come.
type openLine struct {
	from   string // name of the rank
	stderr bool
	text   []byte // its beginning, at most tailLineBytes
}

// newTap returns nil if the job has no live page.
func newTap(s *session) *tap {
	if s.tail == nil {
		return nil
	}
	return &tap{tail: s.tail, keep: s.job.TagOutput, tee: s.job.Tee, open: make(map[outputSource]*openLine)}
}

// take notes the lines of o, and returns o as the writer must write it. It does not change the data of o.
func (t *tap) take(o proto.Output) proto.Output {
	if t == nil || t.tee && o.Stream != proto.Merged {
		return o
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	from := outputSource{o.Index, o.Group, o.Stream, o.Stderr}
	line := t.open[from]
	kept := make([]byte, 0, len(o.Data))
	for rest := o.Data; len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n') + 1
		if end == 0 {
			end = len(rest)
		}
		part := rest[:end]
		rest = rest[end:]
		if line == nil {
			line = &openLine{stderr: o.Stderr}
			text := part
			if o.Stream == proto.Merged {
				line.from, line.stderr, text = cutTag(part)
			} else {
				line.from = proto.RankName(o.Group, o.Stream)
			}
			if !t.keep {
				part = text
			}
			line.add(text)
		} else {
			line.add(part)
		}
		kept = append(kept, part...)
		if part[len(part)-1] == '\n' {
			t.tail.add(line.from, line.stderr, line.text)
			line = nil
		}
	}
	if line == nil {
		delete(t.open, from)
	} else {
		t.open[from] = line
	}
	o.Data = kept
	return o
}

// end notes the lines whose end has not come. The ranks have ended.
func (t *tap) end() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.open {
		t.tail.add(l.from, l.stderr, l.text)
	}
	clear(t.open)
}

func (l *openLine) add(text []byte) {
	l.text = append(l.text, text[:min(len(text), tailLineBytes-len(l.text))]...)
}

// cutTag splits a line into its tag, such as "[3]<stderr> " or "[1.3@node1] ", and the text behind the
// tag. It returns the rank that the tag names, and whether the rank has written to stderr. A line without
// a tag is all text.
func cutTag(line []byte) (rank string, stderr bool, text []byte) {
	const errMark = "<stderr>"
	tag, text, ok := bytes.Cut(line, []byte(" "))
	tag, stderr = bytes.CutSuffix(tag, []byte(errMark))
	if !ok || len(text) == 0 || !bytes.HasPrefix(tag, []byte("[")) || !bytes.HasSuffix(tag, []byte("]")) {
		return "", false, line
	}
	rank, _, _ = strings.Cut(string(tag[1:len(tag)-1]), "@")
	return rank, stderr, text
}
