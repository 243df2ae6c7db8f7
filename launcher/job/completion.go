package job

import (
	_ "embed" // for the shells' functions
	"io"
)

//go:embed completion/gorun.bash
var bashCompletion string

//go:embed completion/gorun.zsh
var zshCompletion string

//go:embed completion/gorun.fish
var fishCompletion string

// shells are the shells for which gorun has completion.
var shells = []struct{ name, function string }{
	{"bash", bashCompletion}, {"zsh", zshCompletion}, {"fish", fishCompletion},
}

// WriteCompletion prints the function by which a shell, such as "bash", completes the command lines
// of gorun. It returns the error of w.
func WriteCompletion(w io.Writer, shell string) error {
	for _, s := range shells {
		if s.name == shell {
			_, err := io.WriteString(w, s.function)
			return err
		}
	}
	return usage("-completion", "%s", checkShell(shell))
}

// checkShell returns what is wrong with the name of a shell, or "".
func checkShell(name string) string {
	var names []string
	for _, s := range shells {
		if s.name == name {
			return ""
		}
		names = append(names, s.name)
	}
	return "expected a shell, found " + quote(name) + suggest(name, names)
}
