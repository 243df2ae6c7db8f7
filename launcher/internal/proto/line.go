package proto

import (
	"strconv"
	"strings"
)

// OneLine makes of what another host says in words what may stand on a terminal: a line
// of at most limit characters.
func OneLine(s string, limit int) string {
	cut := false
	if len(s) > 4*limit { // more than any that is kept
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
