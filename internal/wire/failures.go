package wire

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// News is what gorun tells ranks of a job that outlives some of them, in lines:
//
//	failed 3,7-9 killed by signal 9 (SIGKILL) on node2\n
//	       │     └─ why, in words; may be missing
//	       └─ ranks, ascending, without spaces
const (
	FailuresMaxLine   = 4096 // bytes of a line, its newline included
	failuresMaxReason = 1024
	failuresVerb      = "failed "
)

// The ways in which a line is no news.
var (
	ErrFailuresLong  = errors.New("news: line is longer than 4096 bytes")
	ErrFailuresVerb  = errors.New("news: line does not say who has failed")
	ErrFailuresRanks = errors.New("news: not a list of ranks in ascending order")
	ErrFailuresSize  = errors.New("news: a rank that the job does not have")
)

// AppendFailures appends to dst that ranks have failed, and why: one line, or
// several where they are too many for one; none for no ranks. They may be in
// any order. Of a reason that has no room, the beginning stands there, and
// what cannot stand in a line becomes spaces.
func AppendFailures(dst []byte, ranks []int, reason string) []byte {
	sorted := slices.Clone(ranks)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	why := appendReason(nil, reason)
	for len(sorted) > 0 {
		begin := len(dst)
		dst = append(dst, failuresVerb...)
		for first := true; len(sorted) > 0; first = false {
			n := 1
			for n < len(sorted) && sorted[n] == sorted[0]+n {
				n++
			}
			var b [2*20 + 2]byte
			run := b[:0]
			if !first {
				run = append(run, ',')
			}
			run = strconv.AppendInt(run, int64(sorted[0]), 10)
			if n > 1 {
				run = append(run, '-')
				run = strconv.AppendInt(run, int64(sorted[n-1]), 10)
			}
			if len(dst)-begin+len(run)+len(why)+1 > FailuresMaxLine {
				break
			}
			dst = append(dst, run...)
			sorted = sorted[n:]
		}
		dst = append(dst, why...)
		dst = append(dst, '\n')
	}
	return dst
}

// appendReason appends a space and what of reason can stand in a line.
func appendReason(dst []byte, reason string) []byte {
	begin := len(dst)
	for _, r := range reason {
		if !unicode.IsPrint(r) || r == utf8.RuneError { // a newline too
			r = ' '
		}
		if r == ' ' && (len(dst) == begin || dst[len(dst)-1] == ' ') {
			continue
		}
		if len(dst) == begin {
			dst = append(dst, ' ')
		}
		if len(dst)-begin+utf8.RuneLen(r) > failuresMaxReason {
			break
		}
		dst = utf8.AppendRune(dst, r)
	}
	return bytes.TrimRight(dst, " ")
}

// ParseFailures reads a line, with or without its newline: which ranks of a job of
// size have failed, in ascending order, and why, which may be empty.
func ParseFailures(line []byte, size int) (ranks []int, reason string, err error) {
	if len(line) > FailuresMaxLine {
		return nil, "", ErrFailuresLong
	}
	rest, ok := bytes.CutPrefix(bytes.TrimSuffix(line, []byte{'\n'}), []byte(failuresVerb))
	if !ok || bytes.IndexByte(rest, '\n') >= 0 {
		return nil, "", ErrFailuresVerb
	}
	list, why, _ := bytes.Cut(rest, []byte{' '})
	next := 0 // the least that may come
	for more := true; more; {
		var run []byte
		run, list, more = bytes.Cut(list, []byte{','})
		from, to, several := bytes.Cut(run, []byte{'-'})
		first, err := failureRank(from, size)
		if err != nil {
			return nil, "", err
		}
		last := first
		if several {
			if last, err = failureRank(to, size); err != nil {
				return nil, "", err
			}
		}
		if first < next || last < first || several && last == first {
			return nil, "", ErrFailuresRanks
		}
		for r := first; r <= last; r++ {
			ranks = append(ranks, r)
		}
		next = last + 1
	}
	return ranks, string(bytes.TrimLeft(appendReason(nil, string(why)), " ")), nil
}

// newsRank is a number without sign and leading zeros, below size.
func failureRank(digits []byte, size int) (int, error) {
	if len(digits) == 0 || len(digits) > 1 && digits[0] == '0' {
		return 0, ErrFailuresRanks
	}
	n := 0
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, ErrFailuresRanks
		}
		if n = 10*n + int(c-'0'); n >= size {
			return 0, ErrFailuresSize
		}
	}
	return n, nil
}
