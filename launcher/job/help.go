package job

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/weft-hpc/weft/internal/params"
)

// WriteHelp prints the flags: what gorun -h shows.
func WriteHelp(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`gorun starts the ranks of a message passing program.

  gorun -np 4 ./examples/allreduce -n 1024     four ranks of a Go package, built first
  gorun -np 2 ./a.out : -np 2 ./b.out          two programs in one job
  gorun -np 64 -host node[1-4] ./a.out         ranks on four hosts
  gorun -config job.toml                       a job file

Flags come before the program; what follows it is for the program. A directory
of a Go package or a .go file is built as go run does, anything else executed.
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
What counts without the flag stands in [brackets]; a switch is off. A flag overrides the job file,
which overrides the environment (WEFT_JOB_TIMEOUT for the key job.timeout of a job file).

Exit code: 0, or that of the first failure in time: its own code, or 128 + the signal that ended
it. 1 gorun failed, 2 bad usage, 113 gorun on a host is of another version, 124 timeout,
126 program not executable, 127 program not found.
`)
	_, err := io.WriteString(w, b.String())
	return err
}

// usage is the flag's names and its argument.
func (o option) usage() string {
	return strings.TrimRight("-"+strings.Join(o.names, ", -")+" "+o.arg, " ")
}

// line is what the help says of the flag, its default included.
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
