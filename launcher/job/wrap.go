package job

import (
	"regexp"
	"strconv"
	"strings"
)

// Wrapper is a command, such as a debugger or a profiler, that is started in place of the programs of
// some ranks. The program and its arguments follow as arguments of the command.
type Wrapper struct {
	// Argv is the command. In each word %r stands for the rank, %h for its host and %% for %.
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

// Of returns the command for a rank on a host, or nil if the rank starts its program itself.
func (w *Wrapper) Of(rank int, host string) (argv []string) {
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
	replace := strings.NewReplacer("%%", "%", "%r", strconv.Itoa(rank), "%h", host)
	for _, a := range w.Argv {
		argv = append(argv, replace.Replace(a))
	}
	return argv
}

func wantWrap(text string) string {
	if _, ok := ParseWrapper(text); !ok {
		return "COMMAND or RANKS:COMMAND, such as 0,3-5:perf record -o perf.%r"
	}
	return ""
}
