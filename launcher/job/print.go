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
	if len(j.Hosts) > 0 {
		t.gap()
		t.row("HOST", "SLOTS", "MAX", "USER", "PORT", "ADDRESS", "SOURCE")
		for _, h := range j.Hosts {
			t.row(h.Name, number(h.Slots), number(h.MaxSlots), shown(h.User), number(h.Port), shown(h.Address), j.source(hostKey))
		}
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

// shown makes the empty value visible.
func shown(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// number is what the user has said, and nothing for what stays open.
func number(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
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
