package mpiio

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi"
)

// Pointer says where in the view a call begins.
type Pointer uint8

// The pointers.
const (
	Explicit   Pointer = iota // at the element Call.At
	Individual                // at the file pointer of the rank
	Shared                    // at the file pointer that all ranks share
)

// Call describes a call that reads or writes elements of a view.
type Call struct {
	Name    string // such as "ReadAtAll"
	Write   bool
	Pointer Pointer
	At      int64 // with Explicit: the number of the first element
}

// check checks that the file permits the call.
func (v *View) check(c Call) error {
	if err := v.live(); err != nil {
		return err
	}
	if v.f.flag&Sequential != 0 && c.Pointer != Shared {
		return fmt.Errorf("%w: a sequential file has only the shared file pointer", ErrAccess)
	}
	if c.Pointer == Shared && v.shared == nil {
		return ErrNoShared
	}
	return v.f.checkAccess(c.Write)
}

// begin returns where a call that is not ordered begins, and advances its file pointer. If the
// individual file pointer cannot advance so far, it does not move.
func (v *View) begin(c Call, count int64) (int64, error) {
	switch c.Pointer {
	case Individual:
		for {
			i := v.pointer.Load()
			if err := v.own().check(i, count, v.size); err != nil {
				return 0, err
			}
			if v.pointer.CompareAndSwap(i, i+count) {
				return i, nil
			}
		}
	case Shared:
		return v.fetchShared(count)
	default:
		return c.At, nil
	}
}

// settle moves the individual file pointer back after a call that began at element i and has read
// or written n of count elements, unless another call has used the pointer since.
func (v *View) settle(c Call, i, count, n int64) {
	if c.Pointer == Individual && n < count {
		v.pointer.CompareAndSwap(i+count, i+n)
	}
}

// Do does an independent call, and returns the number of elements read or written.
func (v *View) Do(c Call, b elem.Buffer) (int, error) {
	if err := v.File().use(); err != nil {
		return 0, v.File().fail(c.Name, mpi.Undefined, err)
	}
	defer v.f.running.Done()
	m, i, err := v.prepare(c, b)
	if err != nil {
		return 0, v.f.fail(c.Name, mpi.Undefined, err)
	}
	t := v.f.c.StartCall()
	n, err := v.independent(c, i, &m)
	t.EndCall(c.Name, n*v.typ.Size)
	v.settle(c, i, m.count, int64(n))
	return n, err
}

// Start starts an independent call.
func (v *View) Start(c Call, b elem.Buffer) mpi.Request {
	m, i, err := v.prepare(c, b)
	if err != nil {
		f := v.File()
		return f.comm().Refused(c.Name, f.fail(c.Name, mpi.Undefined, err))
	}
	r, started := v.f.background(c.Name, false, v.typ.Size, func() (int, error) { return v.independent(c, i, &m) })
	if !started {
		v.settle(c, i, m.count, 0)
	}
	return r
}

// prepare checks an independent call, and returns its memory and where it begins.
func (v *View) prepare(c Call, b elem.Buffer) (m memory, i int64, err error) {
	if err = v.check(c); err != nil {
		return m, 0, err
	}
	if m, err = v.memoryOf(b); err != nil {
		return m, 0, err
	}
	if c.Pointer == Explicit { // a wrong position must not move a pointer
		err = v.own().check(c.At, m.count, v.size)
	} else {
		err = v.own().check(0, m.count, v.size)
	}
	if err == nil {
		i, err = v.begin(c, m.count)
	}
	return m, i, err
}

func (v *View) independent(c Call, i int64, m *memory) (int, error) {
	if err := v.own().check(i, m.count, v.size); err != nil {
		return 0, v.f.fail(c.Name, mpi.Undefined, err)
	}
	var n int64
	var err error
	if c.Write {
		m.load(v)
		n, err = v.writeAt(i*v.size, m)
	} else {
		m.prepare(v)
		n, err = v.readAt(i*v.size, m)
		m.store(v, n)
	}
	return int(n / v.size), v.f.fail(c.Name, mpi.Undefined, err)
}

// DoAll does a collective call, and returns the number of elements read or written.
func (v *View) DoAll(c Call, b elem.Buffer) (int, error) {
	if err := v.live(); err != nil {
		return 0, v.File().fail(c.Name, mpi.Undefined, err)
	}
	i, count, err := v.prepareAll(c, b)
	moved := err == nil
	t := v.f.c.StartCall()
	n, err := v.f.collective(c.Name, func() (int, error) { return v.ordered(c, i, b, err) })
	t.EndCall(c.Name, n*v.typ.Size)
	if moved {
		v.settle(c, i, count, int64(n))
	}
	return n, err
}

// StartAll starts a collective call.
func (v *View) StartAll(c Call, b elem.Buffer) mpi.Request {
	if err := v.live(); err != nil {
		f := v.File()
		return f.comm().Refused(c.Name, f.fail(c.Name, mpi.Undefined, err))
	}
	i, count, err := v.prepareAll(c, b)
	r, started := v.f.background(c.Name, true, v.typ.Size, func() (int, error) { return v.ordered(c, i, b, err) })
	if !started && err == nil {
		v.settle(c, i, count, 0)
	}
	return r
}

// prepareAll returns where a collective call begins, and its number of elements. If the arguments
// are wrong, View.collective reports the error to the other ranks.
func (v *View) prepareAll(c Call, b elem.Buffer) (i, count int64, err error) {
	if err := v.check(c); err != nil {
		return 0, 0, err
	}
	m, err := v.memoryOf(b)
	if err != nil || c.Pointer == Shared {
		return 0, m.count, err
	}
	i, err = v.begin(c, m.count)
	return i, m.count, err
}

// ordered does a collective call. If the call uses the shared file pointer, the data of the ranks
// is consecutive in the order of the ranks.
func (v *View) ordered(c Call, i int64, b elem.Buffer, err error) (int, error) {
	if c.Pointer != Shared {
		return v.collective(c.Name, c.Write, i, b, err, nil)
	}
	return v.collective(c.Name, c.Write, 0, b, err, func(counts []int64) (int64, error) {
		total := int64(0)
		for _, n := range counts {
			total += n
		}
		var base int64
		var err error
		if v.f.c.Rank() == 0 {
			base, err = v.fetchShared(total)
		}
		all, err := v.f.exchange(c.Name, "shared file pointer", err, base)
		if err != nil {
			return 0, err
		}
		return all[0], nil
	})
}

// split is an active split collective operation (MPI-4.1 §14.4.5).
type split struct {
	name string
	r    mpi.Request
}

// Begin starts a split collective operation. name is the name of the operation, such as "ReadAll".
func (v *View) Begin(name string, c Call, b elem.Buffer) error {
	if err := v.live(); err != nil {
		return v.File().fail(c.Name, mpi.Undefined, err)
	}
	v.splitMu.Lock()
	defer v.splitMu.Unlock()
	if v.split != nil {
		err := v.f.fail(c.Name, mpi.Undefined, fmt.Errorf("%w: %s of the view is active", ErrSplit, v.split.name))
		// The other ranks may be in the call. They get the error, too.
		v.f.takePart(c.Name, func() (int, error) { return v.ordered(c, 0, elem.Buffer{}, err) })
		return err
	}
	v.split = &split{name: name, r: v.StartAll(c, b)}
	return nil
}

// End waits for the split collective operation with this name. call is the name of the call that
// waits. It returns the number of elements read or written.
func (v *View) End(name, call string) (int, error) {
	if v == nil {
		return 0, v.File().fail(call, mpi.Undefined, errClosed)
	}
	v.splitMu.Lock()
	s := v.split
	if s == nil || s.name != name {
		v.splitMu.Unlock()
		return 0, v.f.fail(call, mpi.Undefined, fmt.Errorf("%w: no %s of the view is active", ErrSplit, name))
	}
	v.split = nil
	v.splitMu.Unlock()
	st, err := s.r.Wait()
	return st.Bytes / v.typ.Size, err
}
