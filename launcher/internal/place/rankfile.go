package place

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/launcher/job"
)

// Rankfile gives the host and the cores of each rank.
type Rankfile struct {
	Name  string            // name of the file, for messages
	lines map[int]*rankLine // by rank
}

// rankLine is the line of one rank.
type rankLine struct {
	number int    // number of the line in the file, counted from 1
	host   string // name of the host, without a user; "": the line names the host by its index
	index  int    // index of the host among those of the job, if host is ""
	list   string // what the user has written after "slot="
	slots  []slot // the cores that list names; nil: the rank is not bound
}

// slot is an element of the list after "slot=": a range of cores of the host or, if inPackages is
// set, a range of cores of each package in a range of packages.
type slot struct {
	inPackages bool
	packages   [2]int // first and last package, if inPackages is set
	cores      [2]int // first and last core; not used if all is set
	all        bool   // all cores of each package, if inPackages is set
}

const (
	maxLine = 64 << 10 // largest length of a line, in bytes
	maxFile = 16 << 20 // largest size of a file, in bytes; more than enough for a line for each rank

	lineForm = `"rank N=HOST slot=LIST"`
	listForm = `cores as "0-3,8", "PACKAGE:0-3" or "*"`
)

// ReadRankfile reads a rankfile in Open MPI's form. Each line gives the place of one rank. "#" and
// "//" begin a comment.
//
//	rank 0=node1 slot=0-3,8     cores 0 to 3 and 8 of the host
//	rank 1=node1 slot=1:0-1     cores 0 and 1 of package 1
//	rank 2=+n1 slot=0:0,2;1:*   the job's second host; two cores and a package
//	rank 3=+n1 slot=s0-1        two packages
//	rank 4=node2 slot=*         any core: not bound, as without slot=
//
// The numbers of cores and packages are their indexes in the lists of a Topology, which are the
// logical numbers of hwloc. A rank is bound to all hardware threads of its cores. A user before a
// host, as in "me@node1", has no effect. name is the name of the file. Errors begin with it and,
// for an error in a line, the number of the line.
func ReadRankfile(name string, r io.Reader) (*Rankfile, error) {
	f := &Rankfile{Name: name, lines: make(map[int]*rankLine)}
	lr := &io.LimitedReader{R: r, N: maxFile + 1}
	lines := bufio.NewScanner(lr)
	lines.Buffer(nil, maxLine)
	number := 0
	for lines.Scan() {
		number++
		text := strings.TrimPrefix(lines.Text(), "\ufeff")
		if i := strings.IndexByte(text, '#'); i >= 0 {
			text = text[:i]
		}
		text, _, _ = strings.Cut(text, "//")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		rank, l, err := parseRankLine(text)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, number, err)
		}
		l.number = number
		if old := f.lines[rank]; old != nil {
			return nil, fmt.Errorf("%s:%d: rank %d has a place already, in line %d", name, number, rank, old.number)
		}
		f.lines[rank] = l
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%s:%d: expected a line of at most %d KiB, found more", name, number+1, maxLine>>10)
	case err != nil:
		var pe *fs.PathError
		// Keep only the error inside, because the text of a PathError has the name of the file,
		// too.
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	case lr.N == 0:
		return nil, fmt.Errorf("%s: expected a rankfile of at most %d MiB, found more", name, maxFile>>20)
	case len(f.lines) == 0:
		return nil, fmt.Errorf("%s:%d: no rank has a place in the file", name, max(number, 1))
	}
	return f, nil
}

// NP returns the number of ranks in the file. If the user gives no number of ranks, a job with one
// program has this number.
func (f *Rankfile) NP() int { return len(f.lines) }

// parseRankLine parses a line "rank N=HOST slot=LIST" whose comment was removed. slot=LIST may be
// absent.
func parseRankLine(text string) (rank int, l *rankLine, err error) {
	wrong := fmt.Errorf("expected %s, found %s", lineForm, excerpt(text))
	before, rest, ok := strings.Cut(text, "=")
	digits, isRank := strings.CutPrefix(before, "rank")
	if !ok || !isRank {
		return 0, nil, wrong
	}
	if digits = strings.TrimSpace(digits); digits == "" {
		return 0, nil, wrong
	}
	if rank, ok = number(digits, job.MaxRanks-1); !ok {
		return 0, nil, fmt.Errorf("expected a rank from 0 to %d, found %s", job.MaxRanks-1, excerpt(digits))
	}
	host, rest := word(strings.TrimSpace(rest))
	l = &rankLine{host: host[strings.LastIndexByte(host, '@')+1:]}
	if l.host == "" || strings.ContainsRune(l.host, '=') {
		return 0, nil, wrong
	}
	if index, relative := strings.CutPrefix(l.host, "+"); relative {
		if index = strings.TrimLeft(index, "nN"); len(l.host)-len(index) != 2 {
			index = ""
		}
		if l.index, ok = number(index, job.MaxRanks-1); !ok {
			return 0, nil, fmt.Errorf("expected a host or +n0, +n1, …, found %s", excerpt(l.host))
		}
		l.host = ""
	}
	if rest == "" {
		return rank, l, nil
	}
	key, list, ok := strings.Cut(rest, "=")
	if key = strings.TrimSpace(key); !ok || key != "slot" && key != "slots" {
		return 0, nil, wrong
	}
	l.list = strings.TrimSpace(list)
	l.slots, err = parseSlots(l.list)
	return rank, l, err
}

// word splits text at its first space or tab. rest has no blanks at its beginning and end.
func word(text string) (first, rest string) {
	if i := strings.IndexAny(text, " \t"); i >= 0 {
		return text[:i], strings.TrimSpace(text[i:])
	}
	return text, ""
}

// parseSlots parses a list after "slot=", such as "0-3,8", "1:0-1,3", "0:*;1:2" or "s0-1". A part
// after a comma belongs to the same packages as the part before the comma, unless it names packages
// itself. For "*", parseSlots returns nil, which means all cores without binding.
func parseSlots(list string) ([]slot, error) {
	if list == "*" {
		return nil, nil
	}
	var slots []slot
	for group := range strings.SplitSeq(list, ";") {
		var s slot
		for part := range strings.SplitSeq(group, ",") {
			pkg, cores, isPackage := strings.Cut(part, ":")
			socket, isSocket := cutLetter(part, "sS")
			ok := true
			switch {
			case isPackage:
				pkg, _ = cutLetter(pkg, "sS")
				s = slot{inPackages: true}
				s.packages, ok = parseRange(pkg)
			case isSocket:
				s = slot{inPackages: true}
				s.packages, ok = parseRange(socket)
				cores = "*"
			default:
				cores = part
			}
			cores, _ = cutLetter(cores, "cC")
			if s.all = s.inPackages && cores == "*"; ok && !s.all {
				s.cores, ok = parseRange(cores)
			}
			if !ok {
				return nil, fmt.Errorf("slot: expected %s, found %s", listForm, excerpt(list))
			}
			slots = append(slots, s)
		}
	}
	return slots, nil
}

// cutLetter removes the first character of text, if it is one of letters. found reports whether
// cutLetter has removed it.
func cutLetter(text, letters string) (rest string, found bool) {
	if text != "" && strings.IndexByte(letters, text[0]) >= 0 {
		return text[1:], true
	}
	return text, false
}

// parseRange parses a number or a range such as "0-3". It returns the first and the last number. ok
// is false if text is invalid.
func parseRange(text string) (r [2]int, ok bool) {
	lo, hi, isRange := strings.Cut(text, "-")
	if !isRange {
		hi = lo
	}
	a, ok1 := number(lo, MaxCPUs-1)
	b, ok2 := number(hi, MaxCPUs-1)
	return [2]int{a, b}, ok1 && ok2 && a <= b
}

// hosts returns the index of the machine of each rank from 0 to np-1. It returns an error if the
// file does not give the place of one of these ranks, if a host is not one of machines, or if a
// host would get more ranks than MaxSlots.
func (f *Rankfile) hosts(machines []Machine, np int) ([]int, error) {
	find := finder(machines)
	hosts := make([]int, np)
	counts := make([]int, len(machines))
	for rank := range hosts {
		l := f.lines[rank]
		if l == nil {
			return nil, fmt.Errorf("%s: rank %d of the job's %d has no place", f.Name, rank, np)
		}
		h, problem := l.index, ""
		switch {
		case l.host != "":
			h, problem = find(l.host)
		case h >= len(machines):
			problem = fmt.Sprintf("+n%d is not one of the job's %d hosts", h, len(machines))
		}
		if problem != "" {
			return nil, fmt.Errorf("%s:%d: rank %d: %s", f.Name, l.number, rank, problem)
		}
		hosts[rank] = h
		if counts[h]++; counts[h] > machines[h].limit() {
			return nil, fmt.Errorf("%s:%d: rank %d: %s takes at most %s", f.Name, l.number, rank, machines[h].Name, plural(machines[h].MaxSlots, "rank"))
		}
	}
	return hosts, nil
}

// bind sets CPUs of the ranks for which the file gives cores. It returns an error if a host does
// not have these cores.
func (f *Rankfile) bind(machines []Machine, ranks []Rank) error {
	for rank := range ranks {
		r, l := &ranks[rank], f.lines[rank]
		if l.slots == nil {
			continue
		}
		mc := &machines[r.Host]
		var problem string
		if r.CPUs, problem = l.cpus(&mc.Topology); problem != "" {
			return fmt.Errorf("%s:%d: rank %d: slot=%s: %s %s", f.Name, l.number, rank, l.shown(), mc.Name, problem)
		}
	}
	return nil
}

// shown returns the list after "slot=" for a message. It cuts off the end of a long list. The list
// needs no quotes, because parseSlots accepts only printable characters.
func (l *rankLine) shown() string {
	const most = 60
	if len(l.list) > most {
		return l.list[:most] + "…"
	}
	return l.list
}

// cpus returns the hardware threads of the cores that a line names, ascending. t is the topology of
// the line's host. If the host does not have these cores, problem says what it has, as a sentence
// whose subject, the name of the host, is left out. Otherwise problem is "".
func (l *rankLine) cpus(t *Topology) (cpus []int, problem string) {
	if len(t.CPUs) == 0 {
		return nil, "has unknown cores"
	}
	have := make(map[int]bool)
	pkg, cores := t.unitOf(t.Packages), make([][][]int, len(t.Packages))
	for _, core := range t.Cores {
		if p := pkg[core[0]]; p >= 0 {
			cores[p] = append(cores[p], core)
		}
	}
	take := func(units [][]int) {
		for _, u := range units {
			for _, c := range u {
				have[c] = true
			}
		}
	}
	for _, s := range l.slots {
		if !s.inPackages {
			if s.cores[1] >= len(t.Cores) {
				return nil, "has " + numbered(len(t.Cores), "core")
			}
			take(t.Cores[s.cores[0] : s.cores[1]+1])
			continue
		}
		if s.packages[1] >= len(t.Packages) {
			return nil, "has " + numbered(len(t.Packages), "package")
		}
		for p := s.packages[0]; p <= s.packages[1]; p++ {
			switch {
			case s.all:
				take(t.Packages[p : p+1])
			case s.cores[1] >= len(cores[p]):
				return nil, fmt.Sprintf("has %s in package %d", numbered(len(cores[p]), "core"), p)
			default:
				take(cores[p][s.cores[0] : s.cores[1]+1])
			}
		}
	}
	for c := range have {
		cpus = append(cpus, c)
	}
	slices.Sort(cpus)
	return cpus, ""
}

// numbered returns a number of things with the range of their numbers, such as "4 cores, 0 to 3".
// what is the noun in the singular.
func numbered(n int, what string) string {
	switch n {
	case 0:
		return "no " + what + "s"
	case 1:
		return "1 " + what + ", 0"
	default:
		return fmt.Sprintf("%d %ss, 0 to %d", n, what, n-1)
	}
}
