package hosts

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Expand returns the names of the hosts in a list in the form of Slurm, in the order of the list.
// For example, "node[01-03,07],gpu1" stands for node01, node02, node03, node07 and gpu1. Each
// number has at least as many digits as the first number of its range. A name may have several
// brackets, of which the last one changes fastest, and text after them. An IPv6 address may have
// brackets around it. If a name is in the list twice, it is in the result twice. Expand returns an
// error if the list is invalid, has no name, or has more than Limit names.
func Expand(text string) ([]string, error) {
	var names []string
	for _, e := range split(text) {
		more, err := expandOne(e, text, Limit-len(names))
		if err != nil {
			return nil, err
		}
		names = append(names, more...)
	}
	return names, nil
}

// split returns the entries of a list without blanks around them: it splits text at its commas,
// except at commas in brackets.
func split(text string) []string {
	var list []string
	depth, begin := 0, 0
	for i := range len(text) {
		switch text[i] {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth <= 0 {
				list = append(list, strings.TrimSpace(text[begin:i]))
				begin = i + 1
			}
		}
	}
	return append(list, strings.TrimSpace(text[begin:]))
}

// part is a piece of an entry such as "node[01-03]-ib": the text before a bracket, and the numbers
// in the bracket.
type part struct {
	literal string
	// numbers has all numbers that the bracket lists, with their leading zeros. It is nil if no
	// bracket follows the text.
	numbers []string
}

// expandOne returns the names of the hosts that entry e of a list describes. It returns an error if
// there are more than room names. list is the whole list, for errors.
func expandOne(e, list string, room int) ([]string, error) {
	if e == "" {
		return nil, fmt.Errorf("expected names of hosts separated by commas, found %s", quote(list))
	}
	if room < 1 {
		return nil, tooMany(list)
	}
	if name, ok := address(e); ok {
		return []string{name}, checkName(name)
	}
	var parts []part
	count, length := 1, 0
	for rest := e; rest != ""; {
		literal, behind, found := strings.Cut(rest, "[")
		if length += len(literal); length > maxName {
			return nil, checkName(e)
		}
		if !found {
			parts = append(parts, part{literal, nil})
			break
		}
		inside, after, closed := strings.Cut(behind, "]")
		if !closed {
			return nil, fmt.Errorf(`expected "]" after "[", found %s`, quote(e))
		}
		numbers, err := ranges(inside, e, room/count)
		if err != nil {
			return nil, err
		}
		count *= len(numbers)
		length += len(numbers[0])
		parts, rest = append(parts, part{literal, numbers}), after
	}
	names := make([]string, 0, count)
	for i := range count {
		name := nth(parts, i, count)
		if err := checkName(name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// nth returns name i of the count names that parts describe. From name to name, the number of the
// last part with numbers changes fastest.
func nth(parts []part, i, count int) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.literal)
		if p.numbers != nil {
			count /= len(p.numbers)
			b.WriteString(p.numbers[i/count])
			i %= count
		}
	}
	return b.String()
}

// address returns e without its brackets, if e is an IPv6 address with or without brackets. It
// returns false if e is no such address.
func address(e string) (string, bool) {
	if inner, ok := strings.CutPrefix(e, "["); ok {
		if e, ok = strings.CutSuffix(inner, "]"); !ok {
			return "", false
		}
	}
	a, err := netip.ParseAddr(e)
	return e, err == nil && a.Is6()
}

func tooMany(list string) error {
	return fmt.Errorf("expected at most %d hosts, found more in %s", Limit, quote(list))
}

// ranges returns the numbers in the text of a bracket, such as "01-03,07". It returns an error if
// the text is invalid or has more than room numbers. e is the whole entry, for errors.
func ranges(inside, e string, room int) ([]string, error) {
	const maxDigits = 18 // so that each number fits into an int64
	var numbers []string
	for part := range strings.SplitSeq(inside, ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			to = from
		}
		low, err1 := strconv.ParseInt(from, 10, 64)
		high, err2 := strconv.ParseInt(to, 10, 64)
		if err1 != nil || err2 != nil || low > high || len(from) > maxDigits || len(to) > maxDigits ||
			!only(from, "0123456789") || !only(to, "0123456789") {
			return nil, fmt.Errorf("expected a range such as [1-4,7], found %s in %s", quote(part), quote(e))
		}
		if high-low >= int64(room-len(numbers)) {
			return nil, tooMany(e)
		}
		for n := low; n <= high; n++ {
			numbers = append(numbers, fmt.Sprintf("%0*d", len(from), n))
		}
	}
	return numbers, nil
}
