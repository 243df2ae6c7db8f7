package tree

import (
	"slices"
	"strings"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

const (
	maxText      = 400      // characters of a line that an agent has the user told
	maxTailLines = 40       // of a rank's last words
	maxTailBytes = 16 << 10 // that a node keeps of them
	maxCode      = 255
	maxSignal    = 127
)

// clean makes of what an agent says in words what may stand on a terminal, in one
// line, and of codes such as a process can end with. All that comes from below goes
// through it, what the own crew says too.
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
		return m
	case proto.Lost:
		m.Cause = oneLine(m.Cause)
		return m
	case proto.Log:
		m.Line = oneLine(m.Line)
		return m
	case proto.Inspected:
		for i := range m.Groups {
			m.Groups[i].Process = oneLine(m.Groups[i].Process)
			cleanState(m.Groups[i].State)
		}
		return m
	}
	return msg
}

// cleanState cleans the texts in a rank's state, which may be nil.
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
		if e := &list[i]; e.Code != 0 { // 0 stands for gorun's usual one
			e.Code = failed(e.Code)
		}
		list[i].Cause = oneLine(list[i].Cause)
	}
}

func cleanExit(e *proto.Exit) {
	e.Code, e.Signal = min(max(e.Code, 0), maxCode), min(max(e.Signal, 0), maxSignal)
	if a := e.Account; a != nil && !a.Valid() {
		e.Account = nil
	}
}

// failed is the exit code of a failure: never that of a success, which 256 would be.
func failed(code int) int { return min(max(code, 1), maxCode) }

// cutTail bounds the last words of a rank. Their first lines say the most.
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
