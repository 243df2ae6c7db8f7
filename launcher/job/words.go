package job

import (
	"errors"
	"strings"
)

// errWords is the only error of Words.
var errWords = errors.New("expected a command line whose quotes are closed")

// Words splits a command line into words at blanks. It handles quotes as a shell does. In '…' every
// character is literal. In "…" a backslash makes one of \, ", $ and ` literal. Outside of quotes a
// backslash makes any character literal. Empty quotes are a word. Words expands no variables and no
// patterns. It returns an error if quotes are not closed or the text ends with a backslash.
func Words(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord := false
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case strings.IndexByte(" \t\r\n", c) >= 0:
			if inWord {
				words = append(words, word.String())
				word.Reset()
			}
			inWord = false
			continue
		case c == '\'':
			n := strings.IndexByte(text[i+1:], '\'')
			if n < 0 {
				return nil, errWords
			}
			word.WriteString(text[i+1 : i+1+n])
			i += n + 1
		case c == '"':
			n := quoted(&word, text[i+1:])
			if n < 0 {
				return nil, errWords
			}
			i += n + 1
		case c == '\\':
			if i++; i == len(text) {
				return nil, errWords
			}
			word.WriteByte(text[i])
		default:
			word.WriteByte(c)
		}
		inWord = true
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}

// quoted appends the text inside of "…" to word. text begins after the opening quote. quoted
// returns the index of the closing quote in text, or -1 if there is no closing quote.
func quoted(word *strings.Builder, text string) int {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			return i
		case c == '\\' && i+1 < len(text) && strings.IndexByte("\\\"$`", text[i+1]) >= 0:
			i++
			word.WriteByte(text[i])
		default:
			word.WriteByte(c)
		}
	}
	return -1
}

// shellJoin returns words as one text, quoted so that a shell splits the text into the same words. It
// returns "-" if there are no words.
func shellJoin(words []string) string {
	if len(words) == 0 {
		return "-"
	}
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = shellQuote(w)
	}
	return strings.Join(quoted, " ")
}

// shellQuote returns a word in single quotes if a shell would not take it literally, else unchanged.
func shellQuote(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./=:,+@%", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
