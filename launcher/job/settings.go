package job

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/place/mapby"
)

// MaxRanks is the largest number of ranks of one job.
const MaxRanks = 1 << 16

// setting is a property of a job that the user can set by a key in the job file, by an environment
// variable and, in most cases, by a flag. Settings are for gorun. The parameters that ranks need
// are in params.Table; messages and this package call them tunables.
type setting struct {
	params.Param
	min, max int           // bounds of the value, both included, if its kind is params.Int
	shortest time.Duration // least value, if its kind is params.Duration
	// besideFile says that the value names a file that gorun reads. A relative name in a job file
	// is relative to the job file's directory.
	besideFile bool
	// want makes further checks of a text that fits Param. It returns "" or the expected values. It
	// is nil if there are no further checks.
	want  func(text string) string
	apply func(j *Job, text string) // sets the property of j to text, which must be valid
	value func(j *Job) string       // returns the property of j as a text that apply accepts
}

// settingOf returns the setting with this key. It returns false if there is none.
func settingOf(key string) (setting, bool) {
	for _, s := range settings {
		if s.Key == key {
			return s, true
		}
	}
	return setting{}, false
}

// check returns the expected values if text is invalid, for a message "expected …, found …". It
// returns "" if text is valid.
func (s setting) check(text string) string {
	want := mismatch(s.Param, text)
	switch {
	case s.Kind == params.Int && (want != "" && s.min > 0 || want == "" && (integer(text) < s.min || integer(text) > s.max)):
		return fmt.Sprintf("an integer from %d to %d", s.min, s.max)
	case s.Kind == params.Duration && want == "" && duration(text) < s.shortest:
		return fmt.Sprintf("a duration of at least %v", s.shortest)
	case want == "" && s.want != nil:
		return s.want(text)
	}
	return want
}

// The functions whose names begin with want are the want fields of settings.

func wantMapBy(text string) string {
	if _, err := mapby.Parse(text); err != nil {
		return mapby.Expected
	}
	return ""
}

func wantReport(text string) string {
	if text == "-" {
		return "a file"
	}
	return ""
}

func wantCommand(text string) string {
	if words, err := Words(text); err != nil || len(words) == 0 || words[0] == "" {
		return "a command whose quotes are closed"
	}
	return ""
}

func wantArguments(text string) string {
	if _, err := Words(text); err != nil {
		return "arguments whose quotes are closed"
	}
	return ""
}

func wantListen(text string) string {
	if text != "" && !isHostPort(text, true) {
		return "HOST:PORT with a port from 0 to 65535"
	}
	return ""
}

// wantPorts returns the expected values if text is not a valid range of ports, else "".
func wantPorts(text string) string {
	if _, ok := parsePorts(text); !ok {
		return "LOW-HIGH with ports from 1024 to 65535"
	}
	return ""
}

// parsePorts parses a range of ports, LOW-HIGH. An empty text means any port. ok is false if text
// is invalid.
func parsePorts(text string) (p Ports, ok bool) {
	if text == "" {
		return p, true
	}
	low, high, _ := strings.Cut(text, "-")
	var err1, err2 error
	p.Low, err1 = strconv.Atoi(low)
	p.High, err2 = strconv.Atoi(high)
	if err1 != nil || err2 != nil || p.Low < 1024 || p.High > 65535 || p.Low > p.High || p.String() != text {
		return Ports{}, false
	}
	return p, true
}

// isHostPort reports whether text is HOST:PORT with a port from 1 to 65535. listen means that it is
// an address to listen on: then the host may be empty, for all interfaces, and the port 0, for any
// port.
func isHostPort(text string, listen bool) bool {
	host, port, err := net.SplitHostPort(text)
	if err != nil || host == "" && !listen || host != "" && hosts.CheckAddress(host) != nil {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && (n > 0 || listen)
}

// mismatch returns "" if text is a valid value of p, and otherwise which values p expects. It is
// stricter than p.Check: it also refuses negative integers and durations, and lists with empty
// elements, which no parameter may have.
func mismatch(p params.Param, text string) string {
	err := p.Check(text)
	if err == nil {
		switch {
		case p.Kind == params.Int && integer(text) < 0:
		case p.Kind == params.Duration && duration(text) < 0:
		case p.Kind == params.List && text != "" && hasEmpty(strings.Split(text, ",")):
		default:
			return ""
		}
	}
	return expects(p)
}

// unitHint returns the last part of an error about text: a suggestion, if text is a plain number
// and p needs a unit of time, or the other end of a range of ports. It returns "" in all other
// cases.
func unitHint(p params.Param, text string) string {
	n, err := strconv.Atoi(text)
	switch {
	case err != nil || n < 0:
		return ""
	case p.Kind == params.Duration:
		return fmt.Sprintf("; did you mean \"%ds\"?", n)
	case p.Key == portsKey && n >= 1024 && n < 65535:
		return fmt.Sprintf("; did you mean \"%d-%d\"?", n, min(n+99, 65535))
	}
	return ""
}

// portsKey is the key of the setting for Job.Ports.
const portsKey = "launcher.ports"

// expects returns which values p accepts, for a message.
func expects(p params.Param) string {
	switch p.Kind {
	case params.Int:
		return "an integer, 0 or more"
	case params.Bytes:
		return "a number of bytes such as 4096, 64k or 1m"
	case params.Duration:
		return "a duration such as 90s or 10m, not negative"
	case params.Bool:
		return "true or false"
	case params.List:
		if p.Choices == nil {
			return "a list of names"
		}
		return "a list of names out of " + strings.Join(p.Choices, ", ")
	default:
		if p.Choices == nil {
			return "a string"
		}
		return "one of " + strings.Join(p.Choices, ", ")
	}
}

// hasEmpty reports whether an element of list is empty or blank.
func hasEmpty(list []string) bool {
	for _, e := range list {
		if strings.TrimSpace(e) == "" {
			return true
		}
	}
	return false
}

// integer, duration, elements and wordsOf convert texts. They ignore errors: their callers have
// checked the texts, or check the result.
func integer(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}

func duration(text string) time.Duration {
	d, _ := time.ParseDuration(text)
	return d
}

func elements(text string) []string {
	if text == "" {
		return nil
	}
	l := strings.Split(text, ",")
	for i := range l {
		l[i] = strings.TrimSpace(l[i])
	}
	return l
}

// distinct returns list without repeated elements.
func distinct(list []string) (once []string) {
	for _, e := range list {
		if !slices.Contains(once, e) {
			once = append(once, e)
		}
	}
	return once
}

func wordsOf(text string) []string {
	w, _ := Words(text)
	return w
}

// baseName returns the default name of a job with this first program: the last part of the program's
// absolute path, without ".go".
func baseName(program string) string {
	if abs, err := filepath.Abs(program); err == nil {
		program = abs
	}
	return strings.TrimSuffix(filepath.Base(program), ".go")
}
