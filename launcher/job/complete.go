package job

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/internal/params"
)

// Completion in a shell
//
// The functions of the shells (WriteCompletion) call "gorun -complete" with the words of the
// command line up to the cursor. The answer has a first line that says what the shell completes by
// itself, and then a line for each other candidate. So all shells complete the same, from the table
// of flags.

// The first lines of the answer.
const (
	completeNone  = "none"  // only the candidates
	completeFiles = "files" // also names of files
	completeDirs  = "dirs"  // also names of directories
)

// candidate is a word that can stand where the cursor is.
type candidate struct{ word, help string }

// WriteCandidates prints the candidates for the last of words, which may be the first part of a
// word. words are the words after "gorun" up to the cursor. The first line is "none", "files" or
// "dirs". Each other line has a candidate and, after a tab, its description. WriteCandidates
// returns the error of w.
func WriteCandidates(w io.Writer, words []string) error {
	kind, list := complete(words)
	var b strings.Builder
	fmt.Fprintln(&b, kind)
	for _, c := range list {
		fmt.Fprintf(&b, "%s\t%s\n", c.word, c.help)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// complete returns what can stand in place of the last word.
func complete(words []string) (kind string, list []candidate) {
	if len(words) == 0 {
		return completeNone, nil
	}
	last := len(words) - 1
	program := false
	for i := 0; i < last; i++ {
		o, _, hasValue := optionAt(words[i])
		switch {
		case program:
			program = words[i] != ":"
		case o == nil:
			program = true
		case o.names[0] == "h":
			return completeNone, matching(topicCandidates(), words[last])
		case o.arg == "" || hasValue:
		case i+1 == last:
			return o.values(words[last])
		default:
			i++ // the value of the flag
		}
	}
	word := words[last]
	switch o, value, hasValue := optionAt(word); {
	case program:
		return completeFiles, nil
	case hasValue && o != nil:
		kind, list = o.values(value)
		flag := strings.TrimSuffix(word, value)
		for i := range list {
			list[i].word = flag + list[i].word
		}
		return kind, list
	case strings.HasPrefix(word, "-"):
		return completeNone, matching(flagCandidates(), "-"+strings.TrimLeft(word, "-"))
	}
	return completeFiles, nil // a program
}

// optionAt returns the flag that word names. If word also has the value of the flag, after "=",
// hasValue is true. For other words optionAt returns nil.
func optionAt(word string) (o *option, value string, hasValue bool) {
	name, ok := strings.CutPrefix(word, "-")
	if !ok {
		return nil, "", false
	}
	name, value, hasValue = strings.Cut(strings.TrimPrefix(name, "-"), "=")
	i := slices.IndexFunc(options, func(o option) bool { return slices.Contains(o.names, name) })
	if i < 0 {
		return nil, "", false
	}
	return &options[i], value, hasValue
}

// values returns what completes text, the first part of the flag's argument.
func (o *option) values(text string) (kind string, list []candidate) {
	if o.candidates != nil {
		return completeNone, o.candidates(text)
	}
	p, ok := params.Lookup(o.tunable)
	if s, isSetting := settingOf(o.setting); isSetting {
		p, ok = s.Param, true
	}
	switch {
	case ok && p.Choices != nil:
		return completeNone, choices(p, text)
	case strings.HasPrefix(o.arg, "FILE") || o.arg == "PATH" || o.arg == "COMMAND":
		return completeFiles, nil
	case o.arg == "DIR":
		return completeDirs, nil
	}
	return completeNone, nil
}

// tunables returns the candidates for text, the first part of KEY=VALUE.
func tunables(text string) (list []candidate) {
	if key, value, ok := strings.Cut(text, "="); ok {
		p, _ := params.Lookup(key)
		for _, c := range choices(p, value) {
			list = append(list, candidate{key + "=" + c.word, c.help})
		}
		return list
	}
	for _, p := range params.Table {
		list = append(list, candidate{p.Key + "=", p.Help})
	}
	return matching(list, text)
}

// choices returns the values of p that begin with text. If p is a list, text is the first part of a
// list, and choices completes its last element.
func choices(p params.Param, text string) (list []candidate) {
	before := ""
	if p.Kind == params.List {
		before = text[:strings.LastIndex(text, ",")+1]
	}
	values := p.Choices
	if p.Kind == params.Bool {
		values = []string{"true", "false"}
	}
	for _, v := range values {
		list = append(list, candidate{before + v, ""})
	}
	return matching(list, text)
}

func flagCandidates() (list []candidate) {
	for _, o := range options {
		for _, n := range o.names {
			list = append(list, candidate{"-" + n, o.line()})
		}
	}
	return list
}

func topicCandidates() (list []candidate) {
	for _, t := range topics {
		list = append(list, candidate{t.name, t.title})
	}
	return append(list, candidate{allTopics, "all flags"})
}

func shellCandidates(text string) (list []candidate) {
	for _, s := range shells {
		list = append(list, candidate{s.name, ""})
	}
	return matching(list, text)
}

// matching returns the elements of list whose words begin with text.
func matching(list []candidate, text string) []candidate {
	return slices.DeleteFunc(list, func(c candidate) bool { return !strings.HasPrefix(c.word, text) })
}
