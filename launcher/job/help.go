package job

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/weft-hpc/weft/internal/params"
)

// WriteHelp prints the output of gorun -help with the name of a topic to w: its flags. "all" stands
// for all topics. With an empty name, WriteHelp prints the output of gorun -h: the common flags,
// and the topics. It returns the error of w.
func WriteHelp(w io.Writer, name string) error {
	var b strings.Builder
	if name == "" || name == allTopics {
		b.WriteString(introduction)
	}
	if name == "" {
		b.WriteByte('\n')
		var common []option
		for _, o := range options {
			if o.common {
				common = append(common, o)
			}
		}
		writeOptions(&b, common)
		fmt.Fprintf(&b, "\nDefaults are in [brackets]. gorun -help TOPIC prints all flags of a topic:\n%s, %s.\n", strings.Join(topicNames(), ", "), allTopics)
		_, err := io.WriteString(w, b.String())
		return err
	}
	for _, t := range topics {
		if name == t.name || name == allTopics {
			if b.Len() > 0 {
				b.WriteByte('\n')
			}
			fmt.Fprintln(&b, t.title)
			writeOptions(&b, optionsOf(t.name))
		}
	}
	b.WriteString("\n" + precedence)
	if name == allTopics || name == "failures" {
		b.WriteString("\n" + exitCodes)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

const introduction = "gorun starts the ranks of a message passing program.\n\n" + examples + "\n" + usageText

const examples = `  gorun -np 4 ./examples/allreduce -n 1024     four ranks of a Go package, built first
  gorun -np 2 ./a.out : -np 2 ./b.out          two programs in one job
  gorun -np 64 -host node[1-4] ./a.out         ranks on four hosts
  gorun -config job.toml                       a job file
`

const usageText = `Flags come before the program, and its arguments after it. gorun builds a Go package (a
directory, or a .go file) as go run does, and runs any other program as it is.
`

const precedence = `Defaults are in [brackets]; switches are off by default. A flag overrides the job file, the job file
overrides the environment (the variable WEFT_JOB_TIMEOUT is the key job.timeout of a job file), and
the environment overrides the user's file ~/.config/weft/config.toml.
`

const exitCodes = `Exit code: 0 if every rank exits with 0. Otherwise the exit code of the rank that failed first, or
128 + N if signal N ended it. gorun's own exit codes: 1 failure, 2 bad usage, 113 another version of
gorun on a host, 124 timeout, 126 program not executable, 127 program not found.
`

// writeOptions prints a line for each flag.
func writeOptions(b *strings.Builder, list []option) {
	width := 0
	for _, o := range list {
		width = max(width, utf8.RuneCountInString(o.usage()))
	}
	for _, o := range list {
		fmt.Fprintf(b, "  %-*s  %s\n", width, o.usage(), o.line())
	}
}

// topicNames returns the names of all topics, in the order of the help.
func topicNames() (names []string) {
	for _, t := range topics {
		names = append(names, t.name)
	}
	return names
}

// checkTopic returns what is wrong with the name of a topic, or "".
func checkTopic(name string) string {
	if known := append(topicNames(), allTopics); !slices.Contains(known, name) {
		return "expected a topic, found " + quote(name) + suggest(name, known)
	}
	return ""
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
