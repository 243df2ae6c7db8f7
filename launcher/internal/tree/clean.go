package tree

import (
	"slices"
	"strings"

	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

const (
	maxText      = 400      // largest number of characters of a text that gorun shows its user
	maxTailLines = 40       // largest number of lines of a Tail, the last lines of a rank's stderr
	maxTailBytes = 16 << 10 // largest number of bytes of a Tail
	maxCode      = 255
	maxSignal    = 127
)

// clean makes texts of a message that gorun shows its user safe for a terminal, and cuts them to
// one line each of at most maxText characters. It only shortens the lines of a Tail. It also makes
// exit codes and signal numbers valid, and drops an Account that is not possible. All messages from
// below pass through clean, also those of the own process manager.
func clean(msg proto.Message) proto.Message {
	switch m := msg.(type) {
	case proto.Up:
		cleanErrors(m.Failed)
		for i := range m.Agents {
			m.Agents[i].Hostname = oneLine(m.Agents[i].Hostname)
		}
		return m
	case proto.Prepared:
		cleanErrors(m.Failed)
		cleanErrors(m.NoMemory)
		return m
	case proto.Staged:
		cleanErrors(m.Failed)
		return m
	case proto.Started:
		if m.Failed != nil {
			f := *m.Failed
			f.Code, f.Reason = failed(f.Code), oneLine(f.Reason)
			m.Failed = &f
		}
		return m
	case proto.Aborted:
		m.Code, m.Reason = failed(m.Code), oneLine(m.Reason)
		return m
	case proto.Exited:
		cleanExit(&m.Exit)
		return m
	case proto.Ended:
		for i := range m.Exits {
			cleanExit(&m.Exits[i])
		}
		for i := range m.Tails {
			m.Tails[i].Lines = cutTail(m.Tails[i].Lines)
		}
		cleanFigures(m.Figures)
		return m
	case proto.Lost:
		m.Cause = oneLine(m.Cause)
		return m
	case proto.Log:
		m.Line = oneLine(m.Line)
		return m
	case proto.Part:
		if m.Failed {
			m.Data = []byte(oneLine(string(m.Data)))
		}
		return m
	case proto.Inspected:
		for i := range m.Groups {
			m.Groups[i].Process = oneLine(m.Groups[i].Process)
			cleanState(m.Groups[i].State)
		}
		for i := range m.Last {
			m.Last[i].Text = oneLine(m.Last[i].Text)
		}
		return m
	case proto.Measured:
		cleanFigures(m.Figures)
		return m
	}
	return msg
}

// cleanFigures applies oneLine to the texts in figures, and makes negative times 0.
func cleanFigures(list []record.Figures) {
	for i := range list {
		f := &list[i]
		f.Elapsed = max(f.Elapsed, 0)
		for k := range f.Ops {
			o := &f.Ops[k]
			o.Name, o.Time = oneLine(o.Name), max(o.Time, 0)
		}
		if in := f.Inside; in != nil {
			in.Op, in.Comm = oneLine(in.Op), oneLine(in.Comm)
		}
		if w := f.Waiting; w != nil {
			w.Comm = oneLine(w.Comm)
		}
	}
}

// cleanState applies oneLine to the texts in s. s may be nil.
func cleanState(s *wire.RankState) {
	if s == nil {
		return
	}
	s.At = oneLine(s.At)
	for i := range s.Calls {
		c := &s.Calls[i]
		c.Name, c.Where, c.Comm, c.Wait = oneLine(c.Name), oneLine(c.Where), oneLine(c.Comm), oneLine(c.Wait)
	}
}

func cleanErrors(list []proto.HostError) {
	for i := range list {
		if e := &list[i]; e.Code != 0 { // 0 means ExitFailed
			e.Code = failed(e.Code)
		}
		list[i].Cause = oneLine(list[i].Cause)
	}
}

func cleanExit(e *proto.Exit) {
	e.Code, e.Signal = min(max(e.Code, 0), maxCode), min(max(e.Signal, 0), maxSignal)
	e.Last = oneLine(e.Last)
	if a := e.Account; a != nil && !a.Valid() {
		e.Account = nil
	}
}

// failed returns code, bounded to the range from 1 to maxCode: 0 and negative codes become 1.
func failed(code int) int { return min(max(code, 1), maxCode) }

// cutTail shortens the lines of a Tail, the last lines of a rank's stderr, to maxTailLines lines
// and maxTailBytes bytes. It keeps the first lines, because a Go panic begins with its reason.
func cutTail(lines []string) []string {
	lines = lines[:min(len(lines), maxTailLines)]
	room := maxTailBytes
	for i, l := range lines {
		if len(l) > room {
			lines = slices.Clone(lines[:i+1])
			lines[i] = strings.ToValidUTF8(l[:room], "")
			return lines
		}
		room -= len(l)
	}
	return lines
}

func oneLine(s string) string { return proto.OneLine(s, maxText) }
