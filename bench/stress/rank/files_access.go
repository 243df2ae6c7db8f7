package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/pio"
)

// forms are the calls that write the elements of a view, or those that read them.
type forms struct {
	at, atAll, next, all     func(*pio.View[int64], []int64, int64) (int, error)
	iat, iatAll, inext, iall func(*pio.View[int64], []int64, int64) comm.Request
	atBegin, allBegin        func(*pio.View[int64], []int64, int64) error
	atEnd, allEnd            func(*pio.View[int64]) (int, error)
}

// The calls without an offset access the elements at the file pointer of the rank, which
// [fileState.access] sets.
var (
	writes = forms{
		at: pio.WriteAt[int64, []int64], atAll: pio.WriteAtAll[int64, []int64],
		next: func(v *pio.View[int64], b []int64, _ int64) (int, error) { return pio.Write(v, b) },
		all:  func(v *pio.View[int64], b []int64, _ int64) (int, error) { return pio.WriteAll(v, b) },
		iat:  pio.IwriteAt[int64, []int64], iatAll: pio.IwriteAtAll[int64, []int64],
		inext:    func(v *pio.View[int64], b []int64, _ int64) comm.Request { return pio.Iwrite(v, b) },
		iall:     func(v *pio.View[int64], b []int64, _ int64) comm.Request { return pio.IwriteAll(v, b) },
		atBegin:  pio.WriteAtAllBegin[int64, []int64],
		allBegin: func(v *pio.View[int64], b []int64, _ int64) error { return pio.WriteAllBegin(v, b) },
		atEnd:    pio.WriteAtAllEnd[int64], allEnd: pio.WriteAllEnd[int64],
	}
	reads = forms{
		at: pio.ReadAt[int64, []int64], atAll: pio.ReadAtAll[int64, []int64],
		next: func(v *pio.View[int64], b []int64, _ int64) (int, error) { return pio.Read(v, b) },
		all:  func(v *pio.View[int64], b []int64, _ int64) (int, error) { return pio.ReadAll(v, b) },
		iat:  pio.IreadAt[int64, []int64], iatAll: pio.IreadAtAll[int64, []int64],
		inext:    func(v *pio.View[int64], b []int64, _ int64) comm.Request { return pio.Iread(v, b) },
		iall:     func(v *pio.View[int64], b []int64, _ int64) comm.Request { return pio.IreadAll(v, b) },
		atBegin:  pio.ReadAtAllBegin[int64, []int64],
		allBegin: func(v *pio.View[int64], b []int64, _ int64) error { return pio.ReadAllBegin(v, b) },
		atEnd:    pio.ReadAtAllEnd[int64], allEnd: pio.ReadAllEnd[int64],
	}
)

// access writes or reads the elements of buf, from element at of the view on, by a random call of f.
// It returns the number of elements that the call reports, and checks the file pointer after a call
// that uses it.
func (s *fileState) access(f forms, buf []int64, at int64) (n int, err error) {
	drawn := s.rng.IntN(10)
	pointer := drawn%2 == 1
	if pointer {
		if err := s.seek(at); err != nil {
			return 0, err
		}
	}
	advanced := -1 // by how much the pointer advances; -1: by the result of the call
	switch drawn {
	case 0:
		n, err = f.atAll(s.v, buf, at)
	case 1:
		n, err = f.all(s.v, buf, at)
	case 2:
		n, err = f.at(s.v, buf, at)
	case 3:
		n, err = f.next(s.v, buf, at)
	case 4:
		n, err = s.count(f.iatAll(s.v, buf, at))
	case 5:
		advanced = len(buf)
		n, err = s.count(f.iall(s.v, buf, at))
	case 6:
		n, err = s.count(f.iat(s.v, buf, at))
	case 7:
		advanced = len(buf)
		n, err = s.count(f.inext(s.v, buf, at))
	case 8:
		n, err = s.split(func() error { return f.atBegin(s.v, buf, at) }, func() (int, error) { return f.atEnd(s.v) })
	default:
		advanced = len(buf)
		n, err = s.split(func() error { return f.allBegin(s.v, buf, at) }, func() (int, error) { return f.allEnd(s.v) })
	}
	if err != nil {
		return n, fmt.Errorf("call %d: %w", drawn, err)
	}
	if advanced < 0 {
		advanced = n
	}
	if got := s.v.Position(); pointer && got != at+int64(advanced) {
		return n, fmt.Errorf("call %d: the file pointer went from %d to %d, not by %d", drawn, at, got, advanced)
	}
	return n, nil
}

// seek sets the file pointer of this rank to an element.
func (s *fileState) seek(at int64) error {
	by, whence := at, io.SeekStart
	if s.own.IntN(2) == 0 {
		by, whence = at-s.v.Position(), io.SeekCurrent
	}
	got, err := s.v.Seek(by, whence)
	if err == nil && got != at {
		err = fmt.Errorf("seek returned %d instead of %d", got, at)
	}
	return err
}

// count waits for a request of a file, and returns the number of its elements.
func (s *fileState) count(r comm.Request) (int, error) {
	s.delay()
	sts, err := s.wait([]comm.Request{r})
	if err != nil {
		return 0, err
	}
	return sts[0].Count, nil
}

// split calls the two parts of a split operation.
func (s *fileState) split(begin func() error, end func() (int, error)) (int, error) {
	if err := begin(); err != nil {
		return 0, err
	}
	s.delay()
	return end()
}

// shared writes and reads at the shared file pointer of a new view that has all elements of the
// file. In a round all ranks make the same call. The oracle: together the ranks get each element
// from the pointer on once, in the order of the ranks if the call is ordered.
func (s *fileState) shared() error {
	v, err := pio.NewView[int64](s.f, 0, comm.Contiguous(1), pio.SharedPointer())
	if err != nil {
		return err
	}
	for round := range 1 + s.rng.IntN(3) {
		at, by, whence := int64(s.rng.IntN(len(s.model)+1)), int64(0), io.SeekStart
		switch by = at; s.rng.IntN(3) {
		case 0:
			now, err := v.PositionShared()
			if err != nil {
				return err
			}
			if err := s.c.Barrier(); err != nil { // no rank seeks before all have the position
				return err
			}
			by, whence = at-now, io.SeekCurrent
		case 1:
			by, whence = at-int64(len(s.model)), io.SeekEnd
		}
		if err := v.SeekShared(by, whence); err != nil {
			return err
		}
		counts := s.drawCounts(s.length(8, 4*s.c.Size()), false)
		call := s.rng.IntN(8)
		if err := s.sharedRound(v, call, at, counts); err != nil {
			return fmt.Errorf("round %d, call %d from element %d on, %v elements: %w", round, call, at, counts, err)
		}
	}
	return nil
}

// sharedRound has each rank write or read as many elements as counts says.
func (s *fileState) sharedRound(v *pio.View[int64], call int, at int64, counts []int) error {
	me, total := s.c.Rank(), 0
	for _, n := range counts {
		total += n
	}
	salt := s.rng.Uint64()
	value := func(rank, i int) int64 { return int64(mix(salt, uint64(rank), uint64(i)) >> 1) }
	buf := make([]int64, counts[me])
	write := call < 4
	for i := range buf {
		buf[i] = value(me, i)
	}
	s.delay()
	n, err := 0, error(nil)
	switch call {
	case 0:
		n, err = pio.WriteShared(v, buf)
	case 1:
		n, err = s.count(pio.IwriteShared(v, buf))
	case 2:
		n, err = pio.WriteOrdered(v, buf)
	case 3:
		n, err = s.split(func() error { return pio.WriteOrderedBegin(v, buf) }, func() (int, error) { return pio.WriteOrderedEnd(v) })
	case 4:
		n, err = pio.ReadShared(v, buf)
	case 5:
		n, err = s.count(pio.IreadShared(v, buf))
	case 6:
		n, err = pio.ReadOrdered(v, buf)
	default:
		n, err = s.split(func() error { return pio.ReadOrderedBegin(v, buf) }, func() (int, error) { return pio.ReadOrderedEnd(v) })
	}
	if err != nil {
		return err
	}
	if write && n != len(buf) {
		return fmt.Errorf("%d of %d elements were written", n, len(buf))
	}
	if err := s.c.Barrier(); err != nil {
		return err
	}
	if now, err := v.PositionShared(); err != nil || now != at+int64(total) {
		return fmt.Errorf("the shared pointer is %d instead of %d: %w", now, at+int64(total), err)
	}
	if call%4 >= 2 {
		return s.ordered(write, at, counts, value, buf[:n])
	}
	return s.unordered(v, write, at, total, counts, value, buf[:n])
}

// ordered checks the elements of an ordered call. got are the elements that this rank has read.
func (s *fileState) ordered(write bool, at int64, counts []int, value func(rank, i int) int64, got []int64) error {
	for r, n := range counts {
		if write {
			for i := range n {
				s.set(at+int64(i), value(r, i))
			}
		} else if r == s.c.Rank() {
			if err := same("elements of an ordered read", got, s.some(at, n)); err != nil {
				return err
			}
		}
		at += int64(n)
	}
	return s.whole()
}

// unordered checks the elements of calls that ran in any order. got are the elements that this rank
// has read. After writes it stores the elements of the file in the model.
func (s *fileState) unordered(v *pio.View[int64], write bool, at int64, total int, counts []int, value func(rank, i int) int64, got []int64) error {
	parts, err := comm.AllgathervAlloc(s.c, got)
	if err != nil {
		return err
	}
	file := s.some(at, total)
	if write {
		// The file must have the elements of each rank, one rank after the other.
		file = make([]int64, total)
		if n, err := pio.ReadAt(v, file, at); err != nil || n != total {
			return fmt.Errorf("%d of %d elements were read: %w", n, total, err)
		}
		for i, x := range file {
			s.set(at+int64(i), x)
		}
		for r, n := range counts {
			parts[r] = nil
			for i := range n {
				parts[r] = append(parts[r], value(r, i))
			}
		}
	}
	if !consists(file, parts) {
		return fmt.Errorf("the %d elements of the file are not those of the ranks' calls, one call after the other", len(file))
	}
	return s.whole()
}

// consists reports whether all is the concatenation of the parts, in any order.
func consists(all []int64, parts [][]int64) bool {
	if len(parts) == 0 {
		return len(all) == 0
	}
	for i, p := range parts {
		if len(p) <= len(all) && slices.Equal(all[:len(p)], p) && consists(all[len(p):], slices.Concat(parts[:i], parts[i+1:])) {
			return true
		}
		if len(p) == 0 { // its place does not matter
			return false
		}
	}
	return false
}

// set sets an element of the model.
func (s *fileState) set(at, x int64) {
	s.model = append(s.model, make([]int64, max(0, at+1-int64(len(s.model))))...)
	s.model[at] = x
}

// some returns up to n elements of the model, from element at on.
func (s *fileState) some(at int64, n int) []int64 {
	end := min(at+int64(n), int64(len(s.model)))
	return s.model[min(at, end):end]
}

// size changes the size of the file, and checks its contents afterwards.
func (s *fileState) size() error {
	n, err := s.f.Size()
	if err != nil {
		return err
	}
	if n != 8*int64(len(s.model)) {
		return fmt.Errorf("the file has %d bytes instead of %d elements", n, len(s.model))
	}
	to := s.rng.IntN(len(s.model) + 20)
	switch s.rng.IntN(3) {
	case 0:
		err = s.f.Truncate(8 * int64(to))
		s.model = append(s.model, make([]int64, 20)...)[:to]
	case 1: // does not make the file shorter
		err = s.f.Preallocate(8 * int64(to))
		s.model = append(s.model, make([]int64, max(0, to-len(s.model)))...)
	default:
		err = s.f.Sync()
	}
	if err == nil {
		err = s.c.Barrier()
	}
	if err != nil {
		return err
	}
	return s.whole()
}
