package job

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/weft-hpc/weft/internal/params"
)

// MaxRanks is the largest number of ranks of one job.
const MaxRanks = 1 << 16

// setting is a property of the job itself that has a key in the job file, an
// environment variable, and a flag. Its Param is never in params.Table: the
// table is for what the ranks have to know.
type setting struct {
	params.Param
	max   int // of an Int, which is never negative
	apply func(j *Job, text string)
	value func(j *Job) string
}

// settings lists them in the order in which -dry-run prints them.
var settings = []setting{
	{
		Param: params.Param{Key: "job.name", Kind: params.String, Help: "name of the job, for messages and file names; empty: the first program's base name"},
		apply: func(j *Job, s string) { j.Name = s },
		value: func(j *Job) string { return j.Name },
	},
	{
		Param: params.Param{Key: "job.timeout", Kind: params.Duration, Default: "0s", Help: "end the job after this long, with exit code 124; 0s: never"},
		apply: func(j *Job, s string) { j.Timeout = duration(s) },
		value: func(j *Job) string { return j.Timeout.String() },
	},
	{
		Param: params.Param{Key: "job.grace", Kind: params.Duration, Default: "1s", Help: "when a job is ended, the time between SIGTERM and SIGKILL"},
		apply: func(j *Job, s string) { j.Grace = duration(s) },
		value: func(j *Job) string { return j.Grace.String() },
	},
	{
		Param: params.Param{Key: "job.stdin", Kind: params.String, Default: string(StdinRank0), Choices: []string{string(StdinRank0), string(StdinAll), string(StdinNone)},
			Help: "who reads gorun's standard input"},
		apply: func(j *Job, s string) { j.Stdin = Stdin(s) },
		value: func(j *Job) string { return string(j.Stdin) },
	},
	{
		Param: params.Param{Key: "job.tag_output", Kind: params.Bool, Default: "false", Help: "begin each line of output with the rank it came from"},
		apply: func(j *Job, s string) { j.TagOutput = s == "true" },
		value: func(j *Job) string { return strconv.FormatBool(j.TagOutput) },
	},
	{
		Param: params.Param{Key: "job.output", Kind: params.String, Help: "directory for files RANK.out and RANK.err instead of the terminal"},
		apply: func(j *Job, s string) { j.OutputDir = s },
		value: func(j *Job) string { return j.OutputDir },
	},
	{
		Param: params.Param{Key: "job.bind", Kind: params.String, Default: string(BindNone), Choices: []string{string(BindNone), string(BindCore), string(BindNUMA)},
			Help: "bind each rank to one core, to one NUMA domain, or not"},
		apply: func(j *Job, s string) { j.Bind = Bind(s) },
		value: func(j *Job) string { return string(j.Bind) },
	},
	{
		Param: params.Param{Key: "job.gomaxprocs", Kind: params.Int, Default: "0", Help: "GOMAXPROCS of each rank; 0: its share of the cores, at least 2"},
		max:   1 << 16,
		apply: func(j *Job, s string) { j.GOMAXPROCS = integer(s) },
		value: func(j *Job) string { return strconv.Itoa(j.GOMAXPROCS) },
	},
	{
		Param: params.Param{Key: "job.strict", Kind: params.Bool, Default: "false", Help: "more ranks than slots is an error instead of a warning"},
		apply: func(j *Job, s string) { j.StrictSlot = s == "true" },
		value: func(j *Job) string { return strconv.FormatBool(j.StrictSlot) },
	},
	{
		Param: params.Param{Key: "job.slots", Kind: params.Int, Default: "0", Help: "ranks that this machine is meant to take; 0: the cores gorun may use"},
		max:   MaxRanks,
		apply: func(j *Job, s string) { j.Slots = integer(s) },
		value: func(j *Job) string { return strconv.Itoa(j.Slots) },
	},
	{
		Param: params.Param{Key: "launcher.kind", Kind: params.String, Default: "auto", Choices: []string{"auto", "local"},
			Help: "how ranks are started; both choices start them on this machine"},
		apply: func(j *Job, s string) { j.Launcher = s },
		value: func(j *Job) string { return j.Launcher },
	},
}

// settingOf finds a setting by its key.
func settingOf(key string) (setting, bool) {
	for _, s := range settings {
		if s.Key == key {
			return s, true
		}
	}
	return setting{}, false
}

// check says whether text is possible, in a form that completes
// "expected …, found …"; empty: it is.
func (s setting) check(text string) string {
	if want := mismatch(s.Param, text); want != "" {
		return want
	}
	if s.Kind == params.Int && integer(text) > s.max {
		return fmt.Sprintf("an integer from 0 to %d", s.max)
	}
	return ""
}

// mismatch returns what p expects if text is not that, else nothing. It is
// stricter than p.Check where no parameter has a use for the value.
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

// expects describes the values of a parameter.
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

func hasEmpty(list []string) bool {
	for _, e := range list {
		if strings.TrimSpace(e) == "" {
			return true
		}
	}
	return false
}

// integer and duration read what check has passed.
func integer(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}

func duration(text string) time.Duration {
	d, _ := time.ParseDuration(text)
	return d
}

// baseName is what a job is called after its program.
func baseName(program string) string {
	if abs, err := filepath.Abs(program); err == nil {
		program = abs
	}
	return strings.TrimSuffix(filepath.Base(program), ".go")
}
