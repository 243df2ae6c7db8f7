package job

import (
	"regexp"
	"strconv"
	"strings"
)

// Wrapper is a command, such as a debugger or a profiler, that is started in place of the programs of
// some ranks. The program and its arguments follow as arguments of the command.
type Wrapper struct {
	// Argv is the command. In each word %r stands for the rank, %h for its host, %p for the path of the
	// program and %% for %. If no word has %p, the path follows the command.
	Argv  []string
	Ranks []RankRange // ascending; empty: all ranks
}

// RankRange is the ranks from Low to High, both included.
type RankRange struct{ Low, High int }

// wrapKey is the key of the setting for Job.Wrap.
const wrapKey = "job.wrap"

var wrapRanks = regexp.MustCompile(`^([0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*):`)

// ParseWrapper parses a value of the setting job.wrap, [RANKS:]COMMAND, such as "0,3-5:perf record". It
// returns nil if text is empty, and false if text is invalid.
func ParseWrapper(text string) (w *Wrapper, ok bool) {
	if text == "" {
		return nil, true
	}
	w = &Wrapper{}
	if m := wrapRanks.FindStringSubmatch(text); m != nil {
		text = text[len(m[0]):]
		for part := range strings.SplitSeq(m[1], ",") {
			low, high, isRange := strings.Cut(part, "-")
			if !isRange {
				high = low
			}
			r := RankRange{integer(low), integer(high)}
			if n := len(w.Ranks); r.High >= MaxRanks || r.Low > r.High || n > 0 && r.Low <= w.Ranks[n-1].High {
				return nil, false
			}
			w.Ranks = append(w.Ranks, r)
		}
	}
	var err error
	w.Argv, err = Words(text)
	return w, err == nil && len(w.Argv) > 0 && w.Argv[0] != ""
}

// debuggers are the commands of -debug, by name. Each waits for a client on a port of the loopback
// interface, which it prints.
var debuggers = map[string]string{
	"dlv": "dlv exec --headless --accept-multiclient --api-version=2 --listen=127.0.0.1:0 %p --",
	"gdb": "gdbserver --once 127.0.0.1:0",
}

// setDebug handles -debug, which stands for a -wrap with a debugger.
func (c *commandLine) setDebug(text string) string {
	at := len(wrapRanks.FindString(text))
	command, ok := debuggers[text[at:]]
	if ok {
		_, ok = ParseWrapper(text[:at] + command)
	}
	if !ok {
		return "expected dlv, gdb, or RANKS and one of them, such as 0,3-5:dlv, found " + quote(text)
	}
	c.settings = append(c.settings, flagText{keyText{wrapKey, text[:at] + command}, "-debug"})
	return ""
}

// Of returns the command for a rank on a host, with the path of the rank's program, or nil if the rank
// starts its program itself. The arguments of the program follow the command.
func (w *Wrapper) Of(rank int, host, program string) (argv []string) {
	if w == nil {
		return nil
	}
	wrapped := len(w.Ranks) == 0
	for _, r := range w.Ranks {
		wrapped = wrapped || r.Low <= rank && rank <= r.High
	}
	if !wrapped {
		return nil
	}
	replace := strings.NewReplacer("%%", "%", "%r", strconv.Itoa(rank), "%h", host, "%p", program)
	named := strings.NewReplacer("%%", "")
	for _, a := range w.Argv {
		argv = append(argv, replace.Replace(a))
		if strings.Contains(named.Replace(a), "%p") {
			program = ""
		}
	}
	if program != "" {
		argv = append(argv, program)
	}
	return argv
}

func wantWrap(text string) string {
	if _, ok := ParseWrapper(text); !ok {
		return "COMMAND or RANKS:COMMAND, such as 0,3-5:perf record -o perf.%r"
	}
	return ""
}
