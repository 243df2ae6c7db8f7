package mpiio

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi"
)

// Collective access in two phases
//
// Some ranks are aggregators. The range of the file that all ranks together access is divided into
// domains, one for each aggregator, and each domain is divided into windows as long as the
// collective buffer. In each round every aggregator has one window:
//
//	write   all ranks ── their data in the windows ──► aggregators ── pwrite ──► file
//	read    all ranks ◄── their data in the windows ── aggregators ◄── pread ─── file
//
// Each aggregator has two buffers, so that the messages of one round and the access to the file of
// another round take place at the same time. All ranks compute the same windows from the views of
// all ranks. So no message has a list of offsets, and views describe the data to the transport: it
// goes from the program's memory directly to its place in the buffer.
//
// (del Rosario, Bordawekar and Choudhary, Improved Parallel I/O via a Two-Phase Run-time Access
// Strategy, 1993; Blas, Isaila, Singh and Carretero, View-Based Collective I/O for MPI-IO, 2008.)
//
// If the ranks' data does not interleave, or if it has long ranges, each rank accesses the file
// itself.

// access is what one rank accesses: positions of its stream.
type access struct {
	start, end  int64
	first, last int64 // offsets in the file of the first byte, and after the last one
}

// part returns the positions of the access in a window. The result may be empty.
func (a *access) part(s *stream, w window) (p, q int64) {
	if a.start == a.end || a.last <= w.low || a.first >= w.high {
		return a.start, a.start
	}
	return max(a.start, s.before(w.low, a.end)), s.before(w.high, a.end)
}

// window is a range of the file; it is empty if low and high are equal.
type window struct {
	low, high int64
	parts     []span // by rank: the positions of its stream in the window
}

// span is the positions from p up to q of a stream; it is empty if they are equal.
type span struct{ p, q int64 }

// operation is one collective access in two phases.
type operation struct {
	v       *View
	h       hints
	m       *memory
	writes  bool
	atomic  bool     // the file is in atomic mode
	ranks   []access // by rank
	domains []window // by aggregator: what is left of its domain, with the parts that are left
	// The parts of the windows of even and of odd rounds, by aggregator and rank: a round uses those
	// of the round before.
	parts  [2][]span
	rounds int // number of calls of next

	old  []mpi.Request // the messages of the round before
	left []mpi.Request // messages that may not have ended when communication failed
	err  error         // the first error of access to the file
}

// scratch is the memory of collective accesses. The file keeps it. Only the operation whose turn it
// is uses it.
type scratch struct {
	buffers [2][]byte // for the windows of even and of odd rounds
	covers  [2]cover
	old     []byte // a window as the file has it
}

// grow returns the first n bytes of b, or of new memory if b is shorter.
func grow(b *[]byte, n int64) []byte {
	if int64(cap(*b)) < n {
		*b = make([]byte, n)
	}
	return (*b)[:n]
}

// largeRun is a mean length of ranges in bytes. If the ranges are at least this long, each rank
// accesses the file itself.
const largeRun = 256 << 10

// domainUnit is the number of bytes of which the offsets of domains are multiples, unless the
// collective buffer is smaller.
const domainUnit = 64 << 10

// collective does the collective access of all ranks. This rank accesses the elements of b from
// element i of its view on. err is an error of its arguments. If place is not nil, it chooses i
// after all ranks have reported their numbers of elements; see View.ordered. collective returns the
// number of elements read or written.
func (v *View) collective(op string, write bool, i int64, b elem.Buffer, err error, place func(counts []int64) (int64, error)) (int, error) {
	f := v.f
	var m memory
	if err == nil {
		err = v.f.checkAccess(write)
	}
	if err == nil {
		m, err = v.memoryOf(b)
	}
	if err == nil {
		err = v.own().check(i, m.count, v.size)
	}
	var size int64
	atomic := f.atomic.Load()
	if err == nil && !write && !atomic {
		size, err = f.size()
	}
	kind := v.reads
	if write {
		kind = v.writes
	}
	if place != nil {
		kind += " in order"
	}
	all, err := f.exchange(op, kind, err, i, m.count, size)
	if err != nil {
		return 0, err
	}
	counts := make([]int64, f.c.Size())
	starts := make([]int64, f.c.Size())
	for r := range counts {
		starts[r], counts[r], size = all[3*r], all[3*r+1], max(size, all[3*r+2])
	}
	if place != nil {
		base, err := place(counts)
		if err != nil {
			return 0, err
		}
		for r := range starts {
			starts[r] = base
			base += counts[r]
		}
	}
	x := &operation{v: v, h: f.currentHints(), m: &m, writes: write, atomic: atomic, ranks: make([]access, len(counts))}
	for r := range x.ranks {
		// The ranks have checked their own arguments, but not a shared file pointer. All ranks find
		// the same error here.
		if err := v.streams[r].check(starts[r], counts[r], v.size); err != nil {
			return 0, f.fail(op, r, err)
		}
		x.ranks[r] = v.access(r, starts[r]*v.size, counts[r]*v.size)
	}
	if !write && !atomic {
		x.cut(size)
	}
	if write {
		m.load(v)
	} else {
		m.prepare(v)
	}
	if err := x.run(op); err != nil {
		return 0, err
	}
	own := x.ranks[f.c.Rank()]
	n := own.end - own.start
	if !write {
		m.store(v, n)
	}
	return int(n / v.size), nil
}

// access returns the access of a rank to n bytes from the position start on.
func (v *View) access(rank int, start, n int64) access {
	a := access{start: start, end: start + n}
	if n > 0 {
		s := &v.streams[rank]
		a.first, a.last = s.offset(a.start), s.offset(a.end-1)+1
	}
	return a
}

// cut ends the reads of all ranks at the end of the file, which has size bytes.
func (x *operation) cut(size int64) {
	for r, a := range x.ranks {
		if a.end > a.start {
			x.ranks[r] = x.v.access(r, a.start, max(x.v.streams[r].before(size, a.end)-a.start, 0))
		}
	}
}

// extent returns the range of the file that the ranks access. If no rank accesses anything, high <= low.
func (x *operation) extent() (low, high int64) {
	low = math.MaxInt64
	for _, a := range x.ranks {
		if a.end > a.start {
			low, high = min(low, a.first), max(high, a.last)
		}
	}
	return low, high
}

// run does the access, and agrees on its error.
func (x *operation) run(op string) error {
	low, high := x.extent()
	switch f := x.v.f; {
	case high <= low:
		return nil // no rank accesses anything
	case x.direct():
		return f.agree(op, x.alone())
	case x.atomic:
		return x.atomically(op, low, high)
	}
	return x.together(op)
}

// together does the access in two phases, and agrees on its error.
func (x *operation) together(op string) error {
	low, high := x.extent()
	if high <= low {
		return nil // all reads begin at or after the end of the file
	}
	x.divide(low, high)
	if x.writes {
		return x.write(op)
	}
	return x.read(op)
}

// atomically does the access while rank 0 has a lock of the range that all ranks access. All ranks
// have entered the call before rank 0 locks, and until rank 0 unlocks, no rank waits for anything
// outside the call. A read takes the size of the file under the lock, because another write may have
// made the file longer before it has written all of its data.
func (x *operation) atomically(op string, low, high int64) error {
	f := x.v.f
	// access sends rank 0's error and the size of the file to all ranks, and then does the access.
	access := func(err error, size int64) error {
		all, err := f.exchange(op, "lock", err, size)
		if err != nil {
			return err
		}
		if !x.writes {
			x.cut(all[0])
		}
		return x.together(op)
	}
	if f.c.Rank() > 0 {
		return access(nil, 0)
	}
	locked := false
	var result error
	err := f.locked(low, high, x.writes, func() error {
		locked = true
		size, err := f.size()
		result = access(err, size)
		return nil
	})
	if !locked {
		return access(err, 0)
	}
	if result == nil {
		result = f.fail(op, f.c.Rank(), err)
	}
	return result
}

// direct reports whether each rank accesses the file itself. The result is the same on all ranks.
func (x *operation) direct() bool {
	choice := x.h.cbRead
	if x.writes {
		choice = x.h.cbWrite
	}
	if choice != automatic {
		return choice == disable
	}
	var list []access
	long := !x.atomic
	for r, a := range x.ranks {
		if a.end > a.start {
			list = append(list, a)
			long = long && min(x.v.streams[r].run, a.end-a.start) >= largeRun
		}
	}
	slices.SortFunc(list, func(a, b access) int { return cmp.Compare(a.first, b.first) })
	apart := true
	for i := 1; i < len(list); i++ {
		apart = apart && list[i-1].last <= list[i].first
	}
	return long || apart
}

// alone accesses the data of this rank without the others. In atomic mode it locks its own range, and
// a read ends where the file does.
func (x *operation) alone() error {
	v, a := x.v, &x.ranks[x.v.f.c.Rank()]
	m := *x.m
	if m.bytes = a.end - a.start; m.bytes == 0 {
		return nil
	}
	if m.plain != nil {
		m.plain = m.plain[:m.bytes]
	}
	if x.writes {
		_, err := v.writeAt(a.start, &m)
		return err
	}
	n, err := v.readAt(a.start, &m)
	switch {
	case x.atomic:
		a.end = a.start + n
	case err == nil && n < m.bytes:
		err = fmt.Errorf("%w: another program has made the file shorter", io.ErrUnexpectedEOF)
	}
	return err
}

// divide divides the range from low up to high into domains.
func (x *operation) divide(low, high int64) {
	n := int64(len(x.h.aggregators))
	unit := int64(min(domainUnit, x.h.cbBufferSize))
	base := low - low%unit
	length := (high - base + n - 1) / n
	length += (unit - length%unit) % unit
	if length <= 0 || length > math.MaxInt64/n {
		length = math.MaxInt64 / n
	}
	for k := range n {
		from, to := base+min(k*length, high-base), base+min((k+1)*length, high-base)
		if k == n-1 {
			to = high
		}
		x.domains = append(x.domains, x.domain(min(max(from, low), high), min(max(to, low), high)))
	}
	for i := range x.parts {
		x.parts[i] = make([]span, len(x.domains)*len(x.ranks))
	}
}

// domain returns the range of the file from low up to high with the parts of all ranks. The range
// ends with the last byte of data.
func (x *operation) domain(low, high int64) window {
	d := window{low: low, high: low, parts: make([]span, len(x.ranks))}
	for r := range x.ranks {
		s := &x.v.streams[r]
		p, q := x.ranks[r].part(s, window{low: low, high: high})
		if d.parts[r] = (span{p, q}); p < q {
			d.high = max(d.high, s.offset(q-1)+1)
		}
	}
	return d
}

// next takes the next window of each domain that still has data, and the parts of all ranks in it.
// more is false if no domain has data.
func (x *operation) next(list []window) (_ []window, more bool) {
	list = list[:0]
	store := x.parts[x.rounds%2]
	x.rounds++
	for k := range x.domains {
		d, parts := &x.domains[k], store[k*len(x.ranks):][:len(x.ranks)]
		low := d.high
		for r, left := range d.parts {
			if left.p < left.q {
				low = min(low, x.v.streams[r].offset(left.p))
			}
		}
		limit := low + min(d.high-low, int64(x.h.cbBufferSize))
		w := window{low: low, high: low, parts: parts}
		for r := range d.parts {
			left, s := &d.parts[r], &x.v.streams[r]
			parts[r] = span{left.p, left.p}
			if left.p == left.q {
				continue
			}
			if q := s.before(limit, left.q); q > left.p {
				parts[r].q, left.p, more = q, q, true
				w.high = max(w.high, s.offset(q-1)+1) // the last byte of data in the window ends it
			}
		}
		list = append(list, w)
	}
	return list, more
}

// mine returns the index of this rank among the aggregators, or -1.
func (x *operation) mine() int { return slices.Index(x.h.aggregators, x.v.f.c.Rank()) }

// tag is the tag of the messages of collective accesses. Messages of different rounds have the same
// tag and match in their order.
const tag = 0

// wait waits for messages. If it returns an error, some messages may still be in progress; finish
// waits for them.
func (x *operation) wait(reqs []mpi.Request) error {
	err := mpi.WaitAll(reqs)
	if err != nil {
		x.left = append(x.left, reqs...)
	}
	return err
}

// finish ends the messages of the access. err is the error of communication, or nil. If err is not
// nil, finish revokes the communicator, so that all messages end on all ranks.
func (x *operation) finish(op string, err error) error {
	if err == nil {
		err = x.wait(x.old)
	} else {
		x.left = append(x.left, x.old...)
	}
	if err == nil {
		return nil
	}
	err = x.v.f.broken(op, err)
	for _, r := range x.left {
		_, _ = r.WaitContext(context.Background()) // the messages of a revoked communicator fail
	}
	return err
}

// transfer starts the messages of this rank in its role as a rank with data, not as an aggregator:
// it sends to the aggregators its data in their windows, or receives the data from them.
func (x *operation) transfer(windows []window, write bool) []mpi.Request {
	c, me := x.v.f.c, x.v.f.c.Rank()
	a := &x.ranks[me]
	var reqs []mpi.Request
	for k, w := range windows {
		p, q := w.parts[me].p, w.parts[me].q
		if p == q || x.h.aggregators[k] == me {
			continue
		}
		if part := x.m.part(p-a.start, q-a.start); write {
			reqs = append(reqs, c.Isend(part, x.h.aggregators[k], tag))
		} else {
			reqs = append(reqs, c.Irecv(part, x.h.aggregators[k], tag))
		}
	}
	return reqs
}

// place returns the part of an aggregator's buffer that belongs to the positions from p up to q of
// a rank, as the buffer of a message.
func (x *operation) place(buf []byte, s *stream, p, q int64, w window) elem.Buffer {
	if off := s.offset(p); s.offset(q-1)+1-off == q-p {
		return elem.Raw(buf[off-w.low:][:q-p])
	}
	return elem.ViewAs(buf, elem.NewLayout(s.cut(p, q, w.low)))
}

// note keeps the first error of access to the file.
func (x *operation) note(err error) {
	if x.err == nil {
		x.err = err
	}
}
