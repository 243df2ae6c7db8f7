package job

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/weft-hpc/weft/internal/params"
)

// WriteHelp prints the output of gorun -h to w. It returns the error of w.
func WriteHelp(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`gorun starts the ranks of a message passing program.

  gorun -np 4 ./examples/allreduce -n 1024     four ranks of a Go package, built first
  gorun -np 2 ./a.out : -np 2 ./b.out          two programs in one job
  gorun -np 64 -host node[1-4] ./a.out         ranks on four hosts
  gorun -config job.toml                       a job file

Flags come before the program, and its arguments after it. gorun builds a Go package (a
directory, or a .go file) as go run does, and runs any other program as it is.
`)
	width := 0
	for _, o := range options {
		width = max(width, utf8.RuneCountInString(o.usage()))
	}
	for _, o := range options {
		if o.group != "" {
			fmt.Fprintf(&b, "\n%s\n", o.group)
		}
		fmt.Fprintf(&b, "  %-*s  %s\n", width, o.usage(), o.line())
	}
	b.WriteString(`
Defaults are in [brackets]; switches are off by default. A flag overrides the job file, and the job
file overrides the environment (the variable WEFT_JOB_TIMEOUT is the key job.timeout of a job file).

Exit code: 0 if every rank exits with 0. Otherwise the exit code of the rank that failed first, or
128 + N if signal N ended it. gorun's own exit codes: 1 failure, 2 bad usage, 113 another version of
gorun on a host, 124 timeout, 126 program not executable, 127 program not found.
`)
	_, err := io.WriteString(w, b.String())
	return err
}

// usage returns the names of the flag and of its argument, such as "-n, -np N".
func (o option) usage() string {
	return strings.TrimRight("-"+strings.Join(o.names, ", -")+" "+o.arg, " ")
}

// line returns the help of the flag and, if the flag takes a value, its default in brackets.
func (o option) line() string {
	help, usual := o.help, o.defaultText
	if s, ok := settingOf(o.setting); ok {
		help, usual = cmp.Or(help, s.Help), cmp.Or(usual, s.Default)
	}
	if p, ok := params.Lookup(o.tunable); ok {
		usual = cmp.Or(usual, p.Default)
	}
	if o.arg != "" {
		help += " [" + usual + "]"
	}
	return help
}
