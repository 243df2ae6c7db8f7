package job

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
)

// ranksRange is the text "from 1 to 65536" for messages: the numbers of ranks that a job may have.
var ranksRange = fmt.Sprintf("from 1 to %d", MaxRanks)

// jobFile is a decoded job file. Parse combines it with flags and the environment.
type jobFile struct {
	Name string // name of the file, as the user wrote it, for messages

	settings []keyText // the settings in [job] and [launcher], in any order
	tunables []keyText // the parameters of params.Table that the file sets, sorted by key
	env      []EnvVar  // the variables in [env], sorted by name
	// apps are the programs in [[app]]. NP is 0 if neither the app nor, for a single app, [job]
	// gives it.
	apps []App
	np   int // the key np in [job]; 0: not given

	hosts []hosts.Host // the hosts in all [[host]]
	pos   positions    // where the keys and values are in the file, for messages
}

// keyText is a key, such as "job.timeout", and its value as the text that a flag or an environment
// variable would have.
type keyText struct{ key, text string }

// decodeFile decodes doc, the contents of a job file. It returns a *FileError for each unknown key,
// wrong type and invalid value, all joined as by errors.Join. For a syntax error, or an encoding
// other than UTF-8, it returns one *FileError. It uses name only in messages, and opens no file.
func decodeFile(name string, doc []byte) (*jobFile, error) {
	doc, encoding := utf8Text(doc)
	if encoding != "" {
		return nil, &FileError{File: name, Line: 1, Column: 1, Problem: "expected UTF-8, found " + encoding + "; save the file as UTF-8"}
	}
	var root map[string]any
	if err := toml.Unmarshal(doc, &root); err != nil {
		return nil, syntaxError(name, err)
	}
	d := &decoder{file: &jobFile{Name: name, pos: locate(doc)}}
	d.document(root)
	if err := joinFileErrors(d.errs); err != nil {
		return nil, err
	}
	return d.file, nil
}

// utf8Text returns doc without the byte-order mark of UTF-8. If doc has the byte-order mark of
// another encoding, utf8Text returns the name of that encoding.
func utf8Text(doc []byte) (text []byte, encoding string) {
	if text, ok := bytes.CutPrefix(doc, []byte("\ufeff")); ok {
		return text, ""
	}
	// UTF-32 is first, because its little-endian mark begins with that of UTF-16.
	for _, e := range []struct{ mark, name string }{
		{"\xff\xfe\x00\x00", "UTF-32"}, {"\x00\x00\xfe\xff", "UTF-32"}, {"\xff\xfe", "UTF-16"}, {"\xfe\xff", "UTF-16"},
	} {
		if bytes.HasPrefix(doc, []byte(e.mark)) {
			return nil, e.name
		}
	}
	return doc, ""
}

// syntaxError returns an error of package toml as a *FileError. name is the name of the job file.
func syntaxError(name string, err error) error {
	fe := &FileError{File: name, Line: 1, Column: 1}
	var de *toml.DecodeError
	if errors.As(err, &de) {
		fe.Line, fe.Column = de.Position()
		fe.Key = strings.Join(de.Key(), ".")
	}
	fe.Problem = strings.TrimPrefix(err.Error(), "toml: ")
	return fe
}

// decoder fills in a jobFile from the document that package toml has read, and collects errors.
// Most of its methods get the path of a value, such as "app[1].np", and the value itself.
type decoder struct {
	file *jobFile
	errs []*FileError
}

// fail records an error about the value of path. The error has the position of this value in the
// file. format and args make its Problem.
func (d *decoder) fail(path, format string, args ...any) {
	d.failAt(d.file.pos.value(path), path, format, args...)
}

// failAt records an error about the key path, with the position at. format and args make its
// Problem.
func (d *decoder) failAt(at position, path, format string, args ...any) {
	d.errs = append(d.errs, &FileError{File: d.file.Name, Line: at.line, Column: at.column,
		Key: path, Problem: fmt.Sprintf(format, args...)})
}

// unknown records an error about an unknown key. path is its full path, and names are the keys that
// are known in its table.
func (d *decoder) unknown(path, key string, names []string) {
	d.failAt(d.file.pos.key(path), path, "unknown key%s", suggest(key, names))
}

// document decodes the whole file. Its top level may have the keys job, env, host, launcher and
// app. Any other key there must be a key in params.Table, or the first part of such a key, such as
// "transport".
func (d *decoder) document(root map[string]any) {
	roots := []string{"job", "env", "host", "launcher", "app"}
	for _, p := range params.Table {
		r, _, _ := strings.Cut(p.Key, ".")
		if !slices.Contains(roots, r) {
			roots = append(roots, r)
		}
	}
	for key, v := range root {
		switch {
		case key == "job":
			d.settings("job", v, "np")
		case key == "launcher":
			d.settings("launcher", v)
		case key == "env":
			d.file.env = d.env("env", v)
		case key == "host":
			d.hosts(v)
		case key == "app":
			d.apps(v)
		case slices.Contains(roots, key):
			d.tunables(key, v)
		default:
			d.unknown(key, key, roots)
		}
	}
	slices.SortFunc(d.file.tunables, func(a, b keyText) int { return strings.Compare(a.key, b.key) })
	d.checkHostLists()
	d.ranks()
}

// settings decodes the table [job] or [launcher], as path says. extra has further keys that the
// table may have and that are not settings: np in [job].
func (d *decoder) settings(path string, v any, extra ...string) {
	t, ok := d.table(path, v)
	if !ok {
		return
	}
	names := extra
	for _, s := range settings {
		if k, ok := strings.CutPrefix(s.Key, path+"."); ok {
			names = append(names, k)
		}
	}
	for key, v := range t {
		full := child(path, key)
		if full == "job.np" {
			d.file.np = d.integer(full, v, MaxRanks)
			continue
		}
		s, ok := settingOf(full)
		if !ok || !slices.Contains(names, key) {
			d.unknown(full, key, names)
			continue
		}
		if text, ok := d.text(full, s.Param, v, s.check); ok {
			d.file.settings = append(d.file.settings, keyText{full, text})
		}
	}
}

// tunables decodes the value of a parameter of params.Table. If path is only the first part of such
// keys, the value must be a table, and tunables decodes everything in it.
func (d *decoder) tunables(path string, v any) {
	if p, ok := params.Lookup(path); ok {
		if text, ok := d.text(path, p, v, func(text string) string { return mismatch(p, text) }); ok {
			d.file.tunables = append(d.file.tunables, keyText{path, text})
		}
		return
	}
	t, ok := d.table(path, v)
	if !ok {
		return
	}
	var names []string
	for _, p := range params.Table {
		if rest, ok := strings.CutPrefix(p.Key, path+"."); ok {
			name, _, _ := strings.Cut(rest, ".")
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	for key, v := range t {
		full := child(path, key)
		switch {
		case slices.Contains(names, key):
			d.tunables(full, v)
		default:
			d.unknown(full, key, names)
		}
	}
}

// env decodes a table of environment variables. It returns them sorted by name, without those about
// which it has recorded errors.
func (d *decoder) env(path string, v any) []EnvVar {
	t, ok := d.table(path, v)
	if !ok {
		return nil
	}
	var env []EnvVar
	for name, v := range t {
		full := child(path, name)
		if problem := envName(name); problem != "" {
			d.failAt(d.file.pos.key(full), full, "%s", problem)
			continue
		}
		if s, ok := d.string(full, v); ok {
			env = append(env, EnvVar{name, s})
		}
	}
	slices.SortFunc(env, func(a, b EnvVar) int { return strings.Compare(a.Name, b.Name) })
	return env
}

// envName returns what is wrong with the name of an environment variable, or "" if it is valid.
func envName(name string) string {
	if name == "" || strings.ContainsAny(name, "=\x00 \t\n") {
		return "expected a variable's name without blanks and =, found " + quote(name)
	}
	return ""
}

// apps decodes the array of tables [[app]], the programs of the job.
func (d *decoder) apps(v any) {
	d.tables("app", v, func(path string, t map[string]any) {
		var a App
		if _, ok := t["program"]; !ok {
			d.fail(path, "expected a program, found none")
		}
		for key, v := range t {
			switch full := child(path, key); key {
			case "program":
				var ok bool
				if a.Program, ok = d.string(full, v); ok && a.Program == "" {
					d.fail(full, `expected a package directory, a .go file or an executable, found ""`)
				}
			case "args":
				a.Args = d.strings(full, v)
			case "np":
				a.NP = d.integer(full, v, MaxRanks)
			case "wdir":
				a.Wdir, _ = d.string(full, v)
			case "env":
				a.Env = d.env(full, v)
			default:
				d.unknown(full, key, []string{"program", "args", "np", "wdir", "env"})
			}
		}
		d.file.apps = append(d.file.apps, a)
	})
}

// ranks checks the numbers of ranks, if no errors have been recorded. If there is a single app and
// it has no np, it gets the np of [job]. If there are several apps, each must have np. If both
// [job] and apps have np, that of [job] must be the sum of those of the apps.
func (d *decoder) ranks() {
	if len(d.errs) > 0 { // one of the errors may be an invalid np, so the sum could be wrong
		return
	}
	f := d.file
	sum := 0
	for i := range f.apps {
		path := element("app", i)
		switch a := &f.apps[i]; {
		case a.NP == 0 && len(f.apps) == 1:
			a.NP = f.np
		case a.NP == 0:
			d.fail(path, "expected np in each of several apps, found none")
			return
		}
		sum += f.apps[i].NP
	}
	switch {
	case f.np > 0 && sum > 0 && f.np != sum:
		d.fail("job.np", "expected %d, the ranks of all apps, found %d", sum, f.np)
	case sum > MaxRanks:
		d.fail("app", "expected %s ranks in total, found %d", ranksRange, sum)
	}
}

// text returns the value v of parameter p as the text that a flag would have. The result is false
// if text has recorded an error. want checks a text: it returns "" if the text is valid, and
// otherwise which values are expected.
func (d *decoder) text(path string, p params.Param, v any, want func(string) string) (string, bool) {
	var text string
	ok := false
	switch v := v.(type) {
	case string:
		text, ok = v, p.Kind == params.String || p.Kind == params.Bytes || p.Kind == params.Duration || p.Kind == params.List
		ok = ok && !strings.Contains(v, "\x00")
	case int64:
		text, ok = strconv.FormatInt(v, 10), p.Kind == params.Int || p.Kind == params.Bytes
	case bool:
		text, ok = strconv.FormatBool(v), p.Kind == params.Bool
	case []any:
		if p.Kind == params.List {
			return d.list(path, p, v)
		}
	}
	if !ok {
		expected := expects(p)
		// Any invalid text makes want return the expected values, with their bounds.
		if w := want("\x00"); w != "" {
			expected = w
		}
		if p.Kind == params.String && p.Choices == nil {
			expected = "a string"
		}
		d.fail(path, "expected %s, found %s%s", expected, describe(v), unitHint(p, describe(v)))
		return "", false
	}
	if w := want(text); w != "" {
		d.fail(path, "expected %s, found %s%s", w, describe(v), unitHint(p, text))
		return "", false
	}
	return text, true
}

// list returns an array of names as one text, with commas between them. It returns false if it has
// recorded an error.
func (d *decoder) list(path string, p params.Param, v []any) (string, bool) {
	list, errs := d.strings(path, v), len(d.errs)
	for i, e := range list {
		if len(list) == len(v) && (strings.Contains(e, ",") || e == "" || mismatch(p, e) != "") {
			d.fail(element(path, i), "expected %s, found %s", strings.Replace(expects(p), "a list of names", "a name", 1), quote(e))
		}
	}
	return strings.Join(list, ","), len(list) == len(v) && len(d.errs) == errs
}

// table returns v as a table. It returns false if it has recorded an error.
func (d *decoder) table(path string, v any) (map[string]any, bool) {
	t, ok := v.(map[string]any)
	if !ok {
		d.fail(path, "expected a table, found %s", describe(v))
	}
	return t, ok
}

// tables calls f for each element of v, which must be an array of tables, with the path of the
// element. It records an error instead if v is no array, and for each element that is no table.
func (d *decoder) tables(path string, v any, f func(path string, t map[string]any)) {
	list, ok := v.([]any)
	if !ok {
		d.fail(path, "expected an array of tables, [[%s]], found %s", path, describe(v))
		return
	}
	for i, e := range list {
		if t, ok := d.table(element(path, i), e); ok {
			f(element(path, i), t)
		}
	}
}

// string returns v as a string. It returns false if it has recorded an error.
func (d *decoder) string(path string, v any) (string, bool) {
	s, ok := v.(string)
	if !ok {
		d.fail(path, "expected a string, found %s", describe(v))
	} else if strings.Contains(s, "\x00") {
		d.fail(path, "expected a string without NUL, found %s", quote(s))
		return "", false
	}
	return s, ok
}

// strings decodes an array of strings. It records an error for each element that is not a valid
// string, and leaves it out.
func (d *decoder) strings(path string, v any) []string {
	list, ok := v.([]any)
	if !ok {
		d.fail(path, "expected an array of strings, found %s", describe(v))
		return nil
	}
	var out []string
	for i, e := range list {
		if s, ok := d.string(element(path, i), e); ok {
			out = append(out, s)
		}
	}
	return out
}

// integer decodes an integer from 1 to high. It returns 0 if it has recorded an error.
func (d *decoder) integer(path string, v any, high int64) int {
	n, ok := v.(int64)
	if !ok || n < 1 || n > high || n > math.MaxInt {
		d.fail(path, "expected an integer from 1 to %d, found %s", high, describe(v))
		return 0
	}
	return int(n)
}

// describe returns a text about a value for a message: the value itself, or its kind, such as "an
// array".
func describe(v any) string {
	switch v := v.(type) {
	case string:
		return quote(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return "the float " + strconv.FormatFloat(v, 'g', -1, 64)
	case bool:
		return strconv.FormatBool(v)
	case []any:
		return "an array"
	case map[string]any:
		return "a table"
	default:
		return "a date or time"
	}
}
