package job

import (
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
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
	best, bestDist := "", 1+max(1, len(name)/3)
	for _, n := range names {
		if d := distance(strings.ToLower(name), strings.ToLower(n)); d < bestDist {
			best, bestDist = n, d
		}
	}
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

// distance is the number of letters to insert, remove, change or swap with
// their neighbor to make b of a.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}

// quote shortens what a user wrote to what fits in a line of an error.
func quote(s string) string {
	const limit = 40
	if r := []rune(s); len(r) > limit {
		s = string(r[:limit]) + "…"
	}
	return strconv.Quote(s)
}
