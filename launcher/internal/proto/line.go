package proto

import (
	"strconv"
	"strings"
)

// OneLine makes a text from another host safe for a terminal. It returns one line of at most limit
// characters. It removes blanks at both ends, replaces line ends and tabs by spaces, and replaces
// other characters that are not printable by "?". If the text is longer, an ellipsis replaces its
// end.
func OneLine(s string, limit int) string {
	cut := false
	// A text of more bytes has more than limit characters, because UTF-8 has at most 4 bytes for
	// each.
	if len(s) > 4*limit {
		s, cut = s[:4*limit], true
	}
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		case !strconv.IsPrint(r):
			return '?'
		}
		return r
	}, strings.ToValidUTF8(strings.TrimSpace(s), "?"))
	if r := []rune(s); cut || len(r) > limit {
		return string(r[:min(len(r), limit-1)]) + "…"
	}
	return s
}

// RankName returns the name of a rank for the user: its number or, if ranks have spawned it, the
// number of its group and its own, such as 1.3.
func RankName(group, rank int) string {
	if group == 0 {
		return strconv.Itoa(rank)
	}
	return strconv.Itoa(group) + "." + strconv.Itoa(rank)
}
