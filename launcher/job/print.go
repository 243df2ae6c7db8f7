package job

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/weft-hpc/weft/internal/params"
)

// Describe prints the job as understood, and where each value came from: what
// gorun -dry-run shows.
func Describe(w io.Writer, j *Job) error {
	t := newTable(w)
	t.row("RANKS", "APP", "PROGRAM", "ARGS", "NP", "WDIR", "ENV", "BINDING")
	first := 0
	for i, a := range j.Apps {
		t.row(rankRange(first, a.NP), strconv.Itoa(i), shellQuote(a.Program), shellJoin(a.Args), strconv.Itoa(a.NP),
			cmp.Or(a.Wdir, "."), envText(j.Env, a.Env), string(j.Bind))
		first += a.NP
	}
	t.gap()
	t.row("SETTING", "VALUE", "SOURCE")
	t.row("job.np", strconv.Itoa(j.NP()), j.source("job.np"))
	for _, s := range settings {
		t.row(s.Key, shown(s.value(j)), j.source(s.Key))
	}
	for _, p := range params.Table {
		v := j.Params.Get(p.Key)
		t.row(p.Key, shown(v.Text), string(v.Source))
	}
	return t.flush()
}

// transportHelp says between what a transport leads, and how.
var transportHelp = map[string]string{
	"shm":       "processes of one host, through shared memory",
	"tcp":       "processes of one host or several, over sockets",
	"libfabric": "what a libfabric provider reaches; for programs built with -tags libfabric",
}

// WriteInfo prints the transports, the algorithms of the collectives, and
// everything that can be set with its value in this job: the part of gorun
// -info that every gorun has.
func WriteInfo(w io.Writer, j *Job) error {
	t := newTable(w)
	t.row("TRANSPORT", "BETWEEN")
	if p, ok := params.Lookup("transport.use"); ok {
		for _, name := range p.Choices {
			t.row(name, transportHelp[name])
		}
	}
	t.gap()
	t.row("COLLECTIVE", "ALGORITHMS")
	for _, p := range params.Table {
		if name, ok := strings.CutPrefix(p.Key, "coll."); ok && strings.HasSuffix(name, ".algorithm") {
			list := p.Choices
			if list == nil {
				list = []string{p.Default}
			}
			t.row(strings.TrimSuffix(name, ".algorithm"), strings.Join(list, " "))
		}
	}
	t.gap()
	t.row("KEY", "VALUE", "DEFAULT", "UNIT", "SOURCE", "ENVIRONMENT", "HELP")
	for _, s := range settings {
		t.row(s.Key, shown(s.value(j)), shown(s.Default), unit(s.Param), j.source(s.Key), s.Env(), s.Help)
	}
	for _, p := range params.Table {
		v := j.Params.Get(p.Key)
		t.row(p.Key, shown(v.Text), shown(p.Default), unit(p), string(v.Source), p.Env(), p.Help)
	}
	return t.flush()
}

// WriteHelp prints the flags: what gorun -h shows.
func WriteHelp(w io.Writer) error {
	t := newTable(w)
	fmt.Fprint(t.w, `gorun starts the ranks of a message passing program.

  gorun -np 4 ./examples/allreduce -n 1024     four ranks of a Go package, built first
  gorun -np 2 ./a.out : -np 2 ./b.out          two programs in one job
  gorun -config job.toml                       a job file

Flags come before the program; what follows it is for the program. A directory
of a Go package or a .go file is built as go run does, anything else executed.

`)
	for _, o := range options {
		help, def := o.help, ""
		if s, ok := settingOf(o.setting); ok {
			if help == "" {
				help = s.Help
			}
			if s.Kind != params.Bool && s.Default != "" {
				def = " [" + s.Default + "]"
			}
		}
		if p, ok := params.Lookup(o.tunable); ok {
			help = p.Help
			if p.Default != "" {
				def = " [" + p.Default + "]"
			}
		}
		t.row("  -"+strings.Join(o.names, ", -")+" "+o.arg, help+def)
	}
	fmt.Fprint(t.w, `
A flag overrides the job file, the file overrides the environment (WEFT_JOB_TIMEOUT
for the key job.timeout), and that overrides the default, which stands in brackets.

Exit code: 0, or the first failure's: its own code, or 128 + the signal that ended it.
124 timeout, 2 bad usage, 126 program not executable, 127 program not found.
`)
	return t.flush()
}

// table is columns of text, each as wide as its widest cell.
type table struct {
	w   *tabwriter.Writer
	err error
}

func newTable(w io.Writer) *table {
	return &table{w: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
}

func (t *table) row(cells ...string) {
	for i, c := range cells {
		// The writer gives tabs and line ends a meaning of their own.
		cells[i] = strings.NewReplacer("\t", `\t`, "\n", `\n`, "\v", `\v`, "\f", `\f`).Replace(c)
	}
	if _, err := fmt.Fprintln(t.w, strings.TrimRight(strings.Join(cells, "\t"), "\t")); t.err == nil {
		t.err = err
	}
}

// gap ends a table, so that the columns of the next have their own widths.
func (t *table) gap() {
	if _, err := fmt.Fprintln(t.w); t.err == nil {
		t.err = err
	}
}

func (t *table) flush() error {
	if err := t.w.Flush(); t.err == nil {
		t.err = err
	}
	return t.err
}

func (j *Job) source(key string) string {
	if s, ok := j.Source[key]; ok {
		return string(s)
	}
	return string(params.FromDefault)
}

func rankRange(first, n int) string {
	if n == 1 {
		return strconv.Itoa(first)
	}
	return fmt.Sprintf("%d-%d", first, first+n-1)
}

// envText lists the variables that a rank of an app gets.
func envText(lists ...[]EnvVar) string {
	var all []EnvVar
	for _, l := range lists {
		for _, v := range l {
			all = setVar(all, v)
		}
	}
	words := make([]string, len(all))
	for i, v := range all {
		words[i] = v.Name + "=" + v.Value
	}
	return shellJoin(words)
}

// shellJoin writes words so that a shell would read them back; none is "-".
func shellJoin(words []string) string {
	if len(words) == 0 {
		return "-"
	}
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = shellQuote(w)
	}
	return strings.Join(quoted, " ")
}

func shellQuote(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./=:,+@%", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// shown makes the empty value visible.
func shown(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func unit(p params.Param) string {
	switch {
	case p.Unit != "":
		return p.Unit
	case p.Kind == params.Bytes:
		return "bytes"
	default:
		return "-"
	}
}
