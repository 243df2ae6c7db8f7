package wire

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// Failure reports. If gorun runs a job with -on-failure notify, it reports to the ranks of the job
// which ranks have failed. A report consists of lines of text, in general one:
//
//	failed 3,7-9 killed by signal 9 (SIGKILL) on node2\n
//	       │     └─ reason; may be missing
//	       └─ ranks, ascending, without spaces
//	failed in 1f0c… 3,7-9 killed by signal 9 (SIGKILL) on node2\n
//	          └─ id of another job: that of a group of gorun's job, with which this rank may be connected
const (
	FailuresMaxLine   = 4096      // maximum length of a line in bytes, with its newline
	failuresMaxReason = 1024      // maximum length of a reason in bytes, with the space before it
	failuresVerb      = "failed " // the beginning of each line
	failuresIn        = "in "     // follows if the ranks are those of another job
	failuresMaxJob    = 64        // maximum length of the id of a job, in bytes
	failuresMaxSize   = 1 << 24   // maximum number of ranks of another job
)

// The errors of ParseFailures for malformed lines.
var (
	ErrFailuresLong  = errors.New("failure report: line is longer than 4096 bytes")
	ErrFailuresVerb  = errors.New("failure report: line does not begin with \"failed\" and a space, or has a second line")
	ErrFailuresRanks = errors.New("failure report: not a list of ranks in ascending order")
	ErrFailuresSize  = errors.New("failure report: a rank that the job does not have")
	ErrFailuresJob   = errors.New("failure report: the id of a job is empty or longer than 64 bytes")
)

// AppendFailures appends a report to dst: the ranks in ranks have failed because of reason. If job is
// not empty, the ranks are those of the job with this id, which has at most 64 bytes and no space. The
// report is one line, or several lines with the same reason if the ranks do not fit into one.
// Without ranks it has no line. ranks may be in any order, and may contain a rank several times.
// AppendFailures cuts off the end of a reason that is too long. It writes a space in place of
// characters that are not printable, and one space in place of several.
func AppendFailures(dst []byte, job string, ranks []int, reason string) []byte {
	sorted := slices.Clone(ranks)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	why := appendReason(nil, reason)
	for len(sorted) > 0 {
		begin := len(dst)
		dst = append(dst, failuresVerb...)
		if job != "" {
			dst = append(append(append(dst, failuresIn...), job...), ' ')
		}
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

// appendReason appends to dst a space and as much of reason as failuresMaxReason permits. It
// replaces characters that are not printable by spaces, and several spaces by one. If nothing
// remains, it appends nothing. dst must not end with a space.
func appendReason(dst []byte, reason string) []byte {
	begin := len(dst)
	for _, r := range reason {
		if !unicode.IsPrint(r) || r == utf8.RuneError { // IsPrint returns false for a newline
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

// ParseFailures reads a line of a report, with or without its newline. size is the number of ranks
// of the job that gets the report. ParseFailures returns the failed ranks in ascending order, and the
// reason, which may be empty. It cleans the reason as AppendFailures does. If the ranks are those of
// another job, job is its id, otherwise "".
func ParseFailures(line []byte, size int) (job string, ranks []int, reason string, err error) {
	if len(line) > FailuresMaxLine {
		return "", nil, "", ErrFailuresLong
	}
	rest, ok := bytes.CutPrefix(bytes.TrimSuffix(line, []byte{'\n'}), []byte(failuresVerb))
	if !ok || bytes.IndexByte(rest, '\n') >= 0 {
		return "", nil, "", ErrFailuresVerb
	}
	if in, ok := bytes.CutPrefix(rest, []byte(failuresIn)); ok {
		var id []byte
		if id, rest, _ = bytes.Cut(in, []byte{' '}); len(id) == 0 || len(id) > failuresMaxJob {
			return "", nil, "", ErrFailuresJob
		}
		job, size = string(id), failuresMaxSize
	}
	list, why, _ := bytes.Cut(rest, []byte{' '})
	next := 0 // smallest rank that may follow
	for more := true; more; {
		var run []byte
		run, list, more = bytes.Cut(list, []byte{','})
		from, to, several := bytes.Cut(run, []byte{'-'})
		first, err := failureRank(from, size)
		if err != nil {
			return "", nil, "", err
		}
		last := first
		if several {
			if last, err = failureRank(to, size); err != nil {
				return "", nil, "", err
			}
		}
		if first < next || last < first || several && last == first {
			return "", nil, "", ErrFailuresRanks
		}
		for r := first; r <= last; r++ {
			ranks = append(ranks, r)
		}
		next = last + 1
	}
	return job, ranks, string(bytes.TrimLeft(appendReason(nil, string(why)), " ")), nil
}

// failureRank parses a rank: a decimal number below size, without a sign and without leading zeros.
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
