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

// UsageError reports an invalid flag, environment variable or command line. gorun prints it in one
// line and exits with 2.
type UsageError struct {
	// What is the flag with its dash, the environment variable, or the key of a setting. It is
	// empty if the error is about the whole command line.
	What    string
	Problem string // what is wrong, mostly in the form "expected …, found …"
}

// Error returns What and Problem as one line.
func (e *UsageError) Error() string {
	if e.What == "" {
		return oneLine(e.Problem)
	}
	return oneLine(e.What + ": " + e.Problem)
}

// usage returns a UsageError about what. format and args make its Problem.
func usage(what, format string, args ...any) *UsageError {
	return &UsageError{What: what, Problem: fmt.Sprintf(format, args...)}
}

// FileError reports a mistake in a job file. Line and Column count from 1. Column counts bytes, not
// characters, as compilers do.
type FileError struct {
	File         string // the name of the job file, as the user wrote it
	Line, Column int
	Key          string // the full key, such as "app[1].np"; empty: not known, as for most syntax errors
	Problem      string // what is wrong, mostly in the form "expected …, found …"
}

// Error returns the error as file:line:column: key: problem.
func (e *FileError) Error() string {
	s := fmt.Sprintf("%s:%d:%d: ", e.File, e.Line, e.Column)
	if e.Key != "" {
		s += e.Key + ": "
	}
	return oneLine(s + e.Problem)
}

// oneLine returns s with escapes in place of all characters that are not graphic, such as newlines.
// So the result is one line that a terminal can show.
func oneLine(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return !strconv.IsGraphic(r) }) < 0 && utf8.ValidString(s) {
		return s
	}
	quoted := strconv.QuoteToGraphic(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// joinFileErrors sorts errors by their positions in the file and joins them, as errors.Join does. It
// returns nil if there are none, and a single error unchanged.
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

// suggest returns the last part of an error about an unknown name: `; did you mean "x"?` with the
// most similar of names or, if none is similar, the sorted list of names.
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

// quote returns a text in quotes. If the text has more than 40 characters, it keeps only the first
// 40 and adds an ellipsis.
func quote(s string) string {
	const limit = 40
	if r := []rune(s); len(r) > limit {
		s = string(r[:limit]) + "…"
	}
	return strconv.Quote(s)
}
