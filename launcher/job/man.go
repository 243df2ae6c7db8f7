package job

import (
	"fmt"
	"io"
	"strings"

	"github.com/weft-hpc/weft/internal/params"
)

// WriteMan prints the manual page gorun(1) to w, in the language of man(7). It returns the error of
// w.
func WriteMan(w io.Writer) error {
	var b strings.Builder
	section := func(title string) { fmt.Fprintf(&b, ".SH %s\n", title) }
	entry := func(term, text string) { fmt.Fprintf(&b, ".TP\n%s\n%s\n", term, roff(text)) }

	b.WriteString(".TH GORUN 1\n")
	section("NAME")
	b.WriteString("gorun \\- start the ranks of a message passing program\n")
	section("SYNOPSIS")
	b.WriteString(".B gorun\n.RI [ flags ]\n.I program\n.RI [ arguments ]\n.RB [ :\n.RI [ flags ]\n.IR program \" ...]\"\n")
	section("DESCRIPTION")
	b.WriteString(roff(usageText) + ".PP\n" + roff(precedence))
	section("EXAMPLES")
	b.WriteString(".EX\n" + roff(examples) + ".EE\n")
	section("OPTIONS")
	for _, t := range topics {
		fmt.Fprintf(&b, ".SS %s\n", t.title)
		for _, o := range optionsOf(t.name) {
			var names []string
			for _, n := range o.names {
				names = append(names, `\fB\-`+roff(n)+`\fR`)
			}
			term := strings.Join(names, ", ")
			if o.arg != "" {
				term += ` \fI` + roff(o.arg) + `\fR`
			}
			entry(term, o.line())
		}
	}
	section("TUNABLES")
	b.WriteString(roff("The keys of -p, which are also keys of a job file.") + "\n")
	for _, p := range params.Table {
		entry(`\fB`+roff(p.Key)+`\fR`, p.Help+" ["+p.Default+"]")
	}
	section("EXIT STATUS")
	b.WriteString(roff(strings.TrimPrefix(exitCodes, "Exit code: ")))
	section("SEE ALSO")
	b.WriteString(roff("https://github.com/weft-hpc/weft/blob/main/docs/gorun.md") + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// roff returns text for a line that is not a request.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, `-`, `\-`, `…`, `...`, "\n.", "\n\\&.", "\n'", "\n\\&'").Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		return `\&` + text
	}
	return text
}
