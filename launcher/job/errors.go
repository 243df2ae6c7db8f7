package job

import (
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/weft-hpc/weft/internal/params"
)

// UsageError is a flag, an environment variable or a command line that makes
// no sense. gorun prints it in one line and ends with code 2.
type UsageError struct {
	What    string // the flag with its dash, or the variable; empty: the command line as a whole
	Problem string // "expected …, found …"
}

// Error names the flag and says what was expected.
func (e *UsageError) Error() string {
	if e.What == "" {
		return oneLine(e.Problem)
	}
	return oneLine(e.What + ": " + e.Problem)
}

func usage(what, format string, args ...any) *UsageError {
	return &UsageError{What: what, Problem: fmt.Sprintf(format, args...)}
}

// FileError is a mistake in a job file. Line and Column count from 1; the
// column counts bytes, as compilers do.
type FileError struct {
	File         string
	Line, Column int
	Key          string // the full key, as "app[1].np"; empty for an error of syntax
	Problem      string // "expected …, found …"
}

// Error has the form file:line:column: key: problem.
func (e *FileError) Error() string {
	s := fmt.Sprintf("%s:%d:%d: ", e.File, e.Line, e.Column)
	if e.Key != "" {
		s += e.Key + ": "
	}
	return oneLine(s + e.Problem)
}

// oneLine escapes what a terminal would not print as a letter.
func oneLine(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return !strconv.IsGraphic(r) }) < 0 && utf8.ValidString(s) {
		return s
	}
	quoted := strconv.QuoteToGraphic(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// joinFileErrors returns nil, the only error, or all of them in the order of
// their places in the file.
func joinFileErrors(errs []*FileError) error {
	sort.SliceStable(errs, func(a, b int) bool {
		if errs[a].Line != errs[b].Line {
			return errs[a].Line < errs[b].Line
		}
		return errs[a].Column < errs[b].Column
	})
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	all := make([]error, len(errs))
	for i, e := range errs {
		all[i] = e
	}
	return errors.Join(all...)
}

// suggest returns `; did you mean "x"?` for the nearest of the names, or a
// list of what there is where none is near.
func suggest(name string, names []string) string {
	best := params.Nearest(name, names)
	switch {
	case best != "":
		return fmt.Sprintf("; did you mean %q?", best)
	case len(names) == 0:
		return ""
	}
	sorted := append([]string(nil), names...)
	sort.Strings(sorted)
	return "; expected one of " + strings.Join(sorted, ", ")
}

// quote shortens what a user wrote to what fits in a line of an error.
func quote(s string) string {
	const limit = 40
	if r := []rune(s); len(r) > limit {
		s = string(r[:limit]) + "…"
	}
	return strconv.Quote(s)
}
