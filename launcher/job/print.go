package job

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/weft-hpc/weft/internal/params"
)

// Describe prints a table of the programs of a job and, if the user names hosts, a table of these
// hosts. That is the beginning of the output of gorun -dry-run.
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
			t.row(h.Name, numberOrDash(h.Slots), numberOrDash(h.MaxSlots), orDash(h.User), numberOrDash(h.Port), orDash(h.Address), j.source(hostKey))
		}
	}
	return t.flush()
}

// DescribeSettings prints a table of the settings and tunables that a flag, the job file or the
// environment has set, with the source of each value. That is the end of the output of gorun
// -dry-run.
func DescribeSettings(w io.Writer, j *Job) error {
	t := newTable(w)
	t.gap()
	rows := 0
	row := func(key, value, source string) {
		if source == string(params.FromDefault) {
			return
		}
		if rows++; rows == 1 {
			t.row("SETTING", "VALUE", "SOURCE")
		}
		t.row(key, orDash(value), source)
	}
	row("job.np", strconv.Itoa(j.NP()), j.source("job.np"))
	for _, s := range settings {
		row(s.Key, s.value(j), j.source(s.Key))
	}
	for _, p := range params.Table {
		v := j.Params.Get(p.Key)
		row(p.Key, v.Text, string(v.Source))
	}
	if rows == 0 {
		t.row("All settings are at their defaults, which gorun -info lists.")
	} else {
		t.gap()
		t.row("All other settings are at their defaults, which gorun -info lists.")
	}
	return t.flush()
}

// transportHelp says which processes a transport connects, and how. The keys are the names of
// transports.
var transportHelp = map[string]string{
	"shm":       "processes of one host, through shared memory",
	"tcp":       "processes of one host or several, over sockets",
	"libfabric": "what a libfabric provider reaches; for programs built with -tags libfabric",
}

// WriteInfo prints the transports, the algorithms of the collectives, and all settings and tunables
// with their values in job j. That is the output of gorun -info without the providers of libfabric.
// If words is not empty, WriteInfo prints only the entries whose names contain one of the words.
// found reports whether it has printed an entry. err is the first error of w.
func WriteInfo(w io.Writer, j *Job, words []string) (found bool, err error) {
	t := newTable(w)
	var begun string // the first cell of the last header that was printed; "": none was
	row := func(head []string, name string, cells ...string) {
		if !Selects(words, name) {
			return
		}
		if begun != head[0] {
			if begun != "" {
				t.gap()
			}
			begun = head[0]
			t.row(head...)
		}
		t.row(cells...)
		found = true
	}
	if p, ok := params.Lookup("transport.use"); ok {
		for _, name := range p.Choices {
			row([]string{"TRANSPORT", "BETWEEN"}, name, name, transportHelp[name])
		}
	}
	for _, p := range params.Table {
		if name, ok := strings.CutPrefix(p.Key, "coll."); ok && strings.HasSuffix(name, ".algorithm") {
			list := p.Choices
			if list == nil {
				list = []string{p.Default}
			}
			row([]string{"COLLECTIVE", "ALGORITHMS"}, p.Key, strings.TrimSuffix(name, ".algorithm"), strings.Join(list, " "))
		}
	}
	entry := func(p params.Param, value, source string) {
		if !Selects(words, p.Key) && !Selects(words, p.Env()) {
			return
		}
		if found {
			t.gap()
		}
		found = true
		t.row(strings.TrimSpace(p.Key+" = "+orDash(value)+" "+unit(p)) + from(p, source))
		t.row("    " + p.Env())
		for _, line := range Wrap(p.Help, infoWidth-4) {
			t.row("    " + line)
		}
	}
	for _, s := range settings {
		entry(s.Param, s.value(j), j.source(s.Key))
	}
	for _, p := range params.Table {
		v := j.Params.Get(p.Key)
		entry(p, v.Text, string(v.Source))
	}
	return found, t.flush()
}

// infoWidth is the largest number of characters of a line of help text in the output of gorun
// -info. Lines with values or with lists of algorithms may be longer.
const infoWidth = 100

// from returns the source of the value of p as text in parentheses. If the source is not the
// default, the text also has the default.
func from(p params.Param, source string) string {
	if source == string(params.FromDefault) {
		return " (default)"
	}
	return " (" + source + "; default " + orDash(p.Default) + ")"
}

// Selects reports whether name contains one of words, without regard to upper and lower case.
// Without words it returns true.
func Selects(words []string, name string) bool {
	return len(words) == 0 || slices.ContainsFunc(words, func(w string) bool {
		return strings.Contains(strings.ToLower(name), strings.ToLower(w))
	})
}

// Wrap breaks a text at spaces into lines of at most width characters. A longer word gets a line
// of its own.
func Wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && utf8.RuneCountInString(line+" "+word) > width {
			lines = append(lines, line)
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return append(lines, line)
}

// table prints rows whose cells are aligned in columns.
type table struct {
	w   *tabwriter.Writer
	err error // the first write error
}

func newTable(w io.Writer) *table {
	return &table{w: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
}

func (t *table) row(cells ...string) {
	for i, c := range cells {
		// Escape tabs and line ends, because for the tabwriter they end cells and rows.
		cells[i] = strings.NewReplacer("\t", `\t`, "\n", `\n`, "\v", `\v`, "\f", `\f`).Replace(c)
	}
	if _, err := fmt.Fprintln(t.w, strings.TrimRight(strings.Join(cells, "\t"), "\t")); t.err == nil {
		t.err = err
	}
}

// gap prints an empty line. The rows after it do not share the column widths of those before it.
func (t *table) gap() {
	if _, err := fmt.Fprintln(t.w); t.err == nil {
		t.err = err
	}
}

// flush writes the rows that the table still holds, and returns the first write error of the table.
func (t *table) flush() error {
	if err := t.w.Flush(); t.err == nil {
		t.err = err
	}
	return t.err
}

// source returns where the value of key comes from, as text for the user.
func (j *Job) source(key string) string {
	if s, ok := j.Source[key]; ok {
		return string(s)
	}
	return string(params.FromDefault)
}

// rankRange returns the numbers of n ranks, of which first is the lowest, as text such as "0-2".
func rankRange(first, n int) string {
	if n == 1 {
		return strconv.Itoa(first)
	}
	return fmt.Sprintf("%d-%d", first, first+n-1)
}

// envText returns the variables of all lists as text, quoted for a shell. If several lists have a
// variable, the last one counts.
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

// orDash returns text, or "-" if text is empty.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// numberOrDash returns n as text, or "-" if n is 0, which means that it is not given.
func numberOrDash(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

// unit returns the unit of the values of p, such as "bytes", or "".
func unit(p params.Param) string {
	switch {
	case p.Unit != "":
		return p.Unit
	case p.Kind == params.Bytes:
		return "bytes"
	default:
		return ""
	}
}
