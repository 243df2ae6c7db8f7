package place

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// finder returns a function that finds a machine by its name in a rankfile. That function returns
// the index of the machine, or a text that says why there is none. Upper and lower case are the
// same. The name in the rankfile may have a domain that the name of the machine lacks. The name in
// the rankfile may also lack the domain, if only one machine has a name with this first part.
func finder(machines []Machine) func(name string) (index int, problem string) {
	const several = -1
	full, short := make(map[string]int), make(map[string]int)
	// Go from the last machine to the first, so that of machines with the same name the first
	// counts.
	for i := len(machines) - 1; i >= 0; i-- {
		name := strings.ToLower(machines[i].Name)
		full[name] = i
		if first := firstLabel(name); first != name {
			switch k, ok := short[first]; {
			case ok && k == several:
			case ok && !strings.EqualFold(machines[k].Name, machines[i].Name):
				short[first] = several
			default:
				short[first] = i
			}
		}
	}
	return func(name string) (int, string) {
		low := strings.ToLower(name)
		if i, ok := full[low]; ok {
			return i, ""
		}
		if i, ok := full[firstLabel(low)]; ok {
			return i, ""
		}
		i, ok := short[low]
		switch {
		case ok && i == several:
			return 0, fmt.Sprintf("%s is the first part of the names of several of the job's hosts", excerpt(name))
		case ok:
			return i, ""
		}
		return 0, fmt.Sprintf("%s is not one of the job's hosts, %s", excerpt(name), hostList(machines))
	}
}

// firstLabel returns a name without its domain. It returns an address unchanged.
func firstLabel(name string) string {
	if _, err := netip.ParseAddr(name); err == nil {
		return name
	}
	first, _, _ := strings.Cut(name, ".")
	return first
}

// hostList returns the names of machines as text for a message.
func hostList(machines []Machine) string {
	names := make([]string, len(machines))
	for i := range machines {
		names[i] = machines[i].Name
	}
	return foldNames(names)
}

// foldNames returns names as one text in the form of Slurm, such as "node[01-03,07],gpu1", which
// hosts.Expand can read. If the text has more than eight parts, foldNames replaces all but the
// first six and the last by an ellipsis.
func foldNames(names []string) string {
	const shown = 8
	var texts []string
	for i := 0; i < len(names); {
		k, text := foldFrom(names, i)
		texts = append(texts, text)
		i = k
	}
	if len(texts) > shown {
		texts = slices.Concat(texts[:shown-2], []string{"…", texts[len(texts)-1]})
	}
	return strings.Join(texts, ",")
}

// foldFrom returns one part of the result of foldNames: names[i], and the names directly after it
// that differ from it only in one number, as long as this number grows. next is the index of the
// first name that is not in this part.
func foldFrom(names []string, i int) (next int, text string) {
	if i+1 == len(names) {
		return i + 1, names[i]
	}
	prefix, suffix, ok := around(names[i], names[i+1])
	if !ok {
		return i + 1, names[i]
	}
	first := names[i][len(prefix) : len(names[i])-len(suffix)]
	var ranges []string
	lo, last := 0, 0
	k := i
	for ; k < len(names); k++ {
		digits, ok := between(names[k], prefix, suffix)
		n, isNumber := number(digits, maxNumber)
		if !ok || !isNumber || fmt.Sprintf("%0*d", len(first), n) != digits || k > i && n <= last {
			break
		}
		if k == i {
			lo = n
		} else if n != last+1 {
			ranges = append(ranges, padded(lo, last, len(first)))
			lo = n
		}
		last = n
	}
	if k < i+2 {
		return i + 1, names[i]
	}
	return k, prefix + "[" + strings.Join(append(ranges, padded(lo, last, len(first))), ",") + "]" + suffix
}

// maxNumber is the largest number in a name that foldNames folds.
const maxNumber = 1<<31 - 1

// padded returns the range from lo to hi as text. The numbers have leading zeros, so that each has
// at least width digits.
func padded(lo, hi, width int) string {
	if lo == hi {
		return fmt.Sprintf("%0*d", width, lo)
	}
	return fmt.Sprintf("%0*d-%0*d", width, lo, width, hi)
}

// around returns the text before and after the number in which the names a and b differ. ok is
// false if they do not differ in exactly one number, or have characters that the form of Slurm or
// an IPv6 address uses.
func around(a, b string) (prefix, suffix string, ok bool) {
	p := 0
	for p < min(len(a), len(b)) && a[p] == b[p] {
		p++
	}
	for p > 0 && isDigit(a[p-1]) {
		p--
	}
	s := 0
	for s < min(len(a), len(b))-p && a[len(a)-1-s] == b[len(b)-1-s] {
		s++
	}
	for s > 0 && isDigit(a[len(a)-s]) {
		s--
	}
	_, okA := number(a[p:len(a)-s], maxNumber)
	_, okB := number(b[p:len(b)-s], maxNumber)
	return a[:p], a[len(a)-s:], okA && okB && !strings.ContainsAny(a+b, "[],:")
}

// between returns the part of name between prefix and suffix. It returns false if name does not
// have both.
func between(name, prefix, suffix string) (string, bool) {
	if len(name) < len(prefix)+len(suffix) || !strings.HasPrefix(name, prefix) || !strings.HasSuffix(name, suffix) {
		return "", false
	}
	return name[len(prefix) : len(name)-len(suffix)], true
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// ranges returns blocks of consecutive numbers as text, such as "0-3,8-11". Each block has width
// numbers. The numbers in starts, which have equal distances, are the first ones of the blocks. If
// there are more than three blocks, the text is shorter: "0-98:2", which means every second number,
// if width is 1, and otherwise such as "0-3,8-11,…,96-99".
func ranges(starts []int, width int) string {
	one := func(i int) string { return span(starts[i], starts[i]+width-1) }
	last := len(starts) - 1
	switch {
	case last > 2 && width == 1:
		return span(starts[0], starts[last]) + ":" + strconv.Itoa(starts[1]-starts[0])
	case last > 2:
		return one(0) + "," + one(1) + ",…," + one(last)
	}
	texts := make([]string, len(starts))
	for i := range starts {
		texts[i] = one(i)
	}
	return strings.Join(texts, ",")
}
