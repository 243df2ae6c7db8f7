package place

import (
	"os"
	"strconv"
	"strings"
)

// readCPUs reads a list of hardware threads from a file, in the form that ParseCPUs parses. It
// returns nil if the file cannot be read or has no such list.
func readCPUs(file string) []int {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	return ParseCPUs(strings.TrimSpace(string(text)))
}

// ParseCPUs parses a list of numbers of hardware threads in the form in which the Linux kernel
// writes it, such as "0-3,8,10-11". The numbers must ascend. ParseCPUs returns nil if text is not
// such a list.
func ParseCPUs(text string) []int {
	var list []int
	for part := range strings.SplitSeq(text, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		a, ok := number(lo, MaxCPUs-1)
		b := a
		if ok && isRange {
			b, ok = number(hi, MaxCPUs-1)
		}
		if !ok || b < a || len(list) > 0 && a <= list[len(list)-1] {
			return nil
		}
		for c := a; c <= b; c++ {
			list = append(list, c)
		}
	}
	return list
}

// FormatCPUs returns a list of numbers in the form that ParseCPUs parses. The numbers must ascend.
func FormatCPUs(list []int) string {
	var b strings.Builder
	for i := 0; i < len(list); {
		k := i + 1
		for k < len(list) && list[k] == list[k-1]+1 {
			k++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(span(list[i], list[k-1]))
		i = k
	}
	return b.String()
}

// span returns the range from lo to hi as text: "3-5", or "3" for one number.
func span(lo, hi int) string {
	if lo == hi {
		return strconv.Itoa(lo)
	}
	return strconv.Itoa(lo) + "-" + strconv.Itoa(hi)
}

// number parses text as a decimal number from 0 to most. It returns false if text is empty, has
// other characters than digits, or is a larger number.
func number(text string, most int) (n int, ok bool) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil && n <= most
}

// excerpt returns a text in quotes, without the bytes after the first 60. So an error with a text
// from a user or another host fits in a line.
func excerpt(text string) string {
	const most = 60
	if len(text) <= most {
		return strconv.Quote(text)
	}
	return strconv.Quote(text[:most]) + "…"
}

// setOf returns the numbers of list as a set.
func setOf(list []int) map[int]bool {
	set := make(map[int]bool, len(list))
	for _, c := range list {
		set[c] = true
	}
	return set
}

// filter returns the numbers of list that are in the set may.
func filter(list []int, may map[int]bool) []int {
	var out []int
	for _, c := range list {
		if may[c] {
			out = append(out, c)
		}
	}
	return out
}
