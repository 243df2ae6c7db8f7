package mpi

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"sync"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/calls"
	"github.com/weft-hpc/weft/internal/rma"
)

// Win is a window (comm.Win). On a nil Win, the methods that return an error return ErrWin.
type Win struct {
	win  *rma.Window // nil until connect makes it
	elem *elem.Type  // of the window's elements
	c    *Comm       // the window's own communicator
	of   *Comm       // the communicator that the program made the window from
	lens []int       // number of elements of each rank's part, by rank

	flavor  WinFlavor
	options WinOptions

	comparable bool // CompareSwap is defined for the elements: see comparableBytes

	freed atomic.Bool // Free has got so far that it closes the window, or has closed it; methods return ErrWin
	pscw  exposure    // state of the epochs of Post, Start, Complete and Wait

	bufferMu    sync.Mutex
	freeBuffers []*fetchBuffer // buffers that no call uses; guarded by bufferMu
}

// WinFlavor is the type behind comm.WinFlavor: how a window was made.
type WinFlavor int

// The flavours (MPI 4.1 §12.2.6).
const (
	FlavorAllocated WinFlavor = iota + 1 // NewWin
	FlavorCreated                        // WinOf
	FlavorDynamic                        // NewDynamicWin
	FlavorShared                         // NewSharedWin
)

// WinOptions holds the hints with which a window is made. They are the same on all ranks.
type WinOptions struct {
	NoLocks   bool
	Unordered bool
	Separate  bool // with FlavorShared: the parts need not be contiguous
	// The only operations of accumulates, besides Replace and NoOp; nil: all.
	Ops []*Op
}

// opBits returns a set of bits, one for each operation that accumulates may use, or ErrOp.
func (o *WinOptions) opBits(t *elem.Type) (bits uint64, err error) {
	if o.Ops == nil {
		return math.MaxUint64, nil
	}
	for _, op := range o.Ops {
		k, err := op.accumulate(t)
		if err != nil {
			return 0, err
		}
		bits |= 1 << k
	}
	return bits, nil
}

// NewWin implements comm.NewWin for n elements of type t.
func (c *Comm) NewWin(t *elem.Type, n int, o WinOptions) (*Win, error) {
	x := &Win{elem: t, flavor: FlavorAllocated, options: o}
	return c.makeWin("NewWin", x, func() (int, []byte, int, error) {
		bytes, err := memoryFor(t, n)
		return n, nil, bytes, err
	})
}

// WinOf implements comm.WinOf, which documents the call.
func (c *Comm) WinOf(b elem.Buffer, o WinOptions) (*Win, error) {
	x := &Win{elem: b.Type, flavor: FlavorCreated, options: o}
	return c.makeWin("WinOf", x, func() (int, []byte, int, error) {
		if err := b.Type.Err; err != nil {
			return 0, nil, 0, err
		}
		return b.Count, b.Bytes(), 0, nil
	})
}

// NewDynamicWin implements comm.NewDynamicWin for elements of type t.
func (c *Comm) NewDynamicWin(t *elem.Type, o WinOptions) (*Win, error) {
	x := &Win{elem: t, flavor: FlavorDynamic, options: o}
	return c.makeWin("NewDynamicWin", x, func() (int, []byte, int, error) { return 0, nil, 0, t.Err })
}

// NewSharedWin implements comm.NewSharedWin for n elements of type t.
func (c *Comm) NewSharedWin(t *elem.Type, n int, o WinOptions) (*Win, error) {
	x := &Win{elem: t, flavor: FlavorShared, options: o}
	return c.makeWin("NewSharedWin", x, func() (int, []byte, int, error) {
		bytes, err := memoryFor(t, n)
		return n, nil, bytes, err
	})
}

// makeWin makes the window x for the call with this name. memory returns n, the number of elements of
// this rank's part, and either local, the memory of that part, or alloc, the number of bytes to
// allocate for it.
func (c *Comm) makeWin(name string, x *Win, memory func() (n int, local []byte, alloc int, err error)) (*Win, error) {
	l, err := c.begin(name)
	if err != nil {
		return nil, err
	}
	if err := l.s.checkIntra(); err != nil {
		return nil, l.end(err)
	}
	n, local, alloc, err := memory()
	if err != nil {
		return nil, l.end(err)
	}
	ops, err := x.options.opBits(x.elem)
	if err != nil {
		return nil, l.end(err)
	}
	if err := l.openWindow(x, n, ops); err != nil {
		return nil, err
	}
	err = x.connect(name, local, alloc, ops)
	x.c.s.detach()
	if err != nil {
		_ = x.close() // the caller gets err, the first error
		return nil, err
	}
	return x, nil
}

// hashOf returns a hash of what must be the same on all ranks that make a window: the element type,
// the hints, and the flavour, except that some ranks may call NewWin and others WinOf. ops is the result
// of opBits.
func (x *Win) hashOf(ops uint64) int64 {
	h := fnv.New64a()
	flavor := x.flavor
	if flavor == FlavorCreated {
		flavor = FlavorAllocated
	}
	o := &x.options
	_, _ = fmt.Fprintf(h, "%s %d %d %t %t %t %x", x.elem.Go, x.elem.Size, flavor, o.NoLocks, o.Unordered, o.Separate, ops) // never fails
	return int64(h.Sum64())
}

// openWindow gathers the arguments of all ranks, and makes the communicator of the window x, which
// has no memory yet. n is the number of elements of this rank's part, and ops the result of opBits.
// openWindow ends the collective l.
func (l *link) openWindow(x *Win, n int, ops uint64) error {
	s, c, hash := l.s, l.c, x.hashOf(ops)
	all, err := l.allgatherArgs(calls.Call{What: calls.KindWin}, splitArgs{color: hash, key: int64(n)})
	if err != nil {
		return l.end(err)
	}
	x.of, x.lens = c, make([]int, len(all))
	var differs error // all ranks find that the types differ, so no rank has to notify another
	for r := range all {
		if all[r].color != hash && differs == nil {
			differs = fmt.Errorf("%w: the window of rank %d has another element type, flavour or hint", ErrMismatch, r)
		}
		x.lens[r] = int(all[r].key)
	}
	name, id := l.name, all[0].id
	if err := l.end(nil); err != nil || differs != nil {
		if err == nil {
			err = c.fail(name, noRank, noRank, differs)
		}
		return err
	}
	own := s.job.newState(id, s.group, s.rank)
	own.window.Store(true)
	own.p2p.HideLeftovers()
	own.coll.HideLeftovers()
	own.attach(s)
	x.c = &Comm{s: own, ctx: c.ctx}
	return nil
}

// connect allocates this rank's part (alloc bytes) or uses local as the part, registers it, and
// exchanges with all ranks how to access the parts. If connect fails on one rank, it revokes the
// window's own communicator, so that no other rank waits for this one. name is the name of the
// call, and ops the result of opBits.
func (x *Win) connect(name string, local []byte, alloc int, ops uint64) error {
	contiguous := x.flavor == FlavorShared && !x.options.Separate
	var offset, total int
	if contiguous {
		var err error
		if offset, total, err = x.places(); err != nil { // on all ranks, unless their memory differs
			err = x.of.fail(name, noRank, noRank, err)
			x.c.s.revoke(err) // a rank that has more memory gets no such error, and would wait
			return err
		}
	}
	l, err := x.c.begin(name)
	if err != nil {
		return err
	}
	cfg := rma.Config{
		Ctx: x.c.s.p2p, Local: local, Alloc: alloc, Elem: x.elem.Size, Align: x.elem.Align,
		Kernel: func(op rma.Op) func(inout, in []byte) {
			if ops&(1<<op) == 0 {
				return nil
			}
			return x.accumulator(op)
		},
		Dynamic: x.flavor == FlavorDynamic, NoLocks: x.options.NoLocks, Unordered: x.options.Unordered,
		DeferredFrees: &x.c.s.job.deferredFrees, Locks: &x.c.s.job.home.locks,
		Contiguous: contiguous, Offset: offset, Total: total,
	}
	cfg.Datatype, cfg.HasType = datatype(x.elem)
	x.comparable = comparableBytes(x.elem)
	var own rma.Part
	if x.win, own, err = rma.New(cfg); err != nil {
		return l.end(err)
	}
	all := l.Scratch(l.Size() * rma.PartSize)
	at := func(r int) []byte { return all[r*rma.PartSize:][:rma.PartSize] }
	own.Encode(at(l.Rank()))
	l.what, l.send, l.recv = coll.KindAllgather, at(l.Rank()), all
	l.sign(calls.KindWinParts, 0, 0)
	if err := l.perform(); err != nil {
		return l.end(err)
	}
	parts := make([]rma.Part, l.Size())
	for r := range parts {
		if err := parts[r].Decode(at(r)); err != nil {
			return l.end(err)
		}
	}
	reach, err := x.win.Connect(parts)
	if err != nil {
		return l.end(err)
	}
	if err := l.end(nil); err != nil {
		return err
	}
	return x.settle(name, reach)
}

// settle completes the creation of the window. own says which memory of the window this rank can
// access by loads and stores; see rma.Reach. The ranks exchange own, so that all of them choose the
// same methods for accumulates and locks.
func (x *Win) settle(name string, own rma.Reach) error {
	l, err := x.c.begin(name)
	if err != nil {
		return err
	}
	all := l.Scratch(l.Size())
	all[l.Rank()] = byte(own)
	l.what, l.send, l.recv = coll.KindAllgather, all[l.Rank():l.Rank()+1], all
	l.sign(calls.KindWinReady, 0, 0)
	if err := l.perform(); err != nil {
		return l.end(err)
	}
	for _, reach := range all {
		own &= rma.Reach(reach)
	}
	err = x.win.Settle(own)
	if err == nil && x.flavor == FlavorShared && !x.win.AllMapped() {
		err = ErrRMAShared
	}
	if errors.Is(err, ErrRMAShared) { // all ranks find this, so no rank has to notify another
		if end := l.end(nil); end != nil {
			return end
		}
		return x.of.fail(name, noRank, noRank, err)
	}
	return l.end(err)
}

// places returns where this rank's part of a contiguous window begins, and the length of all parts, in
// bytes. It returns ErrCount if the length overflows an int, or if all ranks share memory and the host has
// less memory than the parts need.
func (x *Win) places() (offset, total int, err error) {
	shared := true // all ranks share memory
	for r, n := range x.lens {
		shared = shared && x.c.s.p2p.SharesMemory(r)
		if r == x.c.s.rank {
			offset = total
		}
		bytes := n * x.elem.Size // cannot overflow: the rank has checked it (memoryFor)
		if total > math.MaxInt-bytes {
			return 0, 0, fmt.Errorf("%w: the parts have too many elements", ErrCount)
		}
		total += bytes
	}
	if shared && total > memory() {
		return 0, 0, fmt.Errorf("%w: the parts need %d bytes, more memory than this host has", ErrCount, total)
	}
	return offset, total, nil
}

// Flavor implements comm.Win.Flavor, which documents the call. For a nil window it returns 0.
func (x *Win) Flavor() WinFlavor {
	if x == nil {
		return 0
	}
	return x.flavor
}

// Group implements comm.Win.Group, which documents the call.
func (x *Win) Group() Group { return x.comm().Group() }

// SetName implements comm.Win.SetName, which documents the call.
func (x *Win) SetName(name string) { x.Space().SetName(name) }

// Name implements comm.Win.Name, which documents the call.
func (x *Win) Name() string { return x.Space().Name() }

// Joint implements comm.Win.Joint, which documents the call.
func (x *Win) Joint() []byte {
	if x.live() != nil {
		return nil
	}
	return x.win.Joint()
}

// Local implements comm.Win.Local, which documents the call.
func (x *Win) Local() []byte { return x.win.Local() }

// Len implements comm.Win.Len, which documents the call.
func (x *Win) Len(rank int) int {
	if x == nil || uint(rank) >= uint(len(x.lens)) {
		return 0
	}
	return x.lens[rank]
}

// Comm implements comm.Win.Comm, which documents the call.
func (x *Win) Comm() *Comm {
	if x == nil {
		return nil
	}
	return x.of
}

// Free implements comm.Win.Free, which documents the call.
func (x *Win) Free() error {
	if err := x.live(); err != nil {
		return x.fail("Free", noRank, err)
	}
	x.c.s.attrs.free()
	var err error
	if x.c.s.coll.Err() == nil {
		if err = x.fence("Free", calls.KindWinFree, true); errors.Is(err, ErrRevoked) {
			err = nil
		}
	}
	if !x.freed.CompareAndSwap(false, true) {
		return x.c.fail("Free", noRank, noRank, errFreed)
	}
	if cerr := x.close(); err == nil {
		err = x.c.fail("Free", noRank, noRank, cerr)
	}
	return err
}

// close releases this rank's resources of the window.
func (x *Win) close() error {
	var err error
	if x.win != nil {
		err = x.win.Close()
	}
	s := x.c.s
	s.closed.Store(true)
	s.shut()
	return err
}

// Revoke implements comm.Win.Revoke, which documents the call.
func (x *Win) Revoke() error {
	err := x.live()
	if err != nil {
		return x.fail("Revoke", noRank, err)
	}
	x.c.s.revoke(x.c.s.calledRevoke())
	return nil
}

var errFreed = fmt.Errorf("%w: it was freed", ErrWin)

// live returns an error if the window cannot be used: ErrWin, or ErrClosed after Finalize.
func (x *Win) live() error {
	switch {
	case x == nil:
		return fmt.Errorf("%w: it is nil", ErrWin)
	case x.freed.Load():
		return errFreed
	case x.c.s.job.closed.Load():
		return x.c.whyClosed()
	}
	return nil
}

// checkElements checks the arguments of an operation on n elements of target's part, from element
// disp on, and that the window can be used. It returns the offset in bytes at which the operation
// begins in that part; 0 for ProcNull.
//
// Hot path: no allocation.
func (x *Win) checkElements(n, target, disp int) (int, error) {
	if err := x.live(); err != nil {
		return 0, err
	}
	switch {
	case target == ProcNull:
		return 0, nil
	case uint(target) >= uint(len(x.lens)):
		return 0, fmt.Errorf("%w: the window has %d", ErrRank, len(x.lens))
	case disp < 0:
		return 0, fmt.Errorf("%w: %d is negative", ErrDisp, disp)
	case disp > x.lens[target] || n > x.lens[target]-disp:
		return 0, fmt.Errorf("%w: %d elements from element %d on, but the part has %d", ErrRMARange, n, disp, x.lens[target])
	}
	return disp * x.elem.Size, nil
}

// fail returns err as an *Error of the call op on x, or nil if err is nil. target is noRank if the
// call has no target.
func (x *Win) fail(op string, target int, err error) error {
	return x.comm().fail(op, target, noRank, withOp(err))
}

// withOp returns err, the error of an operation. If the window does not have an operation on
// elements, the result wraps ErrOp.
func withOp(err error) error {
	if errors.Is(err, rma.ErrOp) {
		return fmt.Errorf("%w: %w", ErrOp, err)
	}
	return err
}

// refused returns a request for a call that failed with err before it started an operation. Wait
// and Test of the request return the error.
func (x *Win) refused(op string, target int, err error) Request {
	return x.comm().refused(op, target, noRank, withOp(err))
}

// comm returns the window's own communicator, or nil if x is nil.
func (x *Win) comm() *Comm {
	if x == nil {
		return nil
	}
	return x.c
}

// request returns the Request of the call op, such as RPut. r and err are what package rma has
// returned. If r is zero and err is nil, the operation was complete at once.
func (x *Win) request(op callName, target int, r engine.Request, err error) Request {
	if err != nil {
		return x.refused(op.String(), target, err)
	}
	if r == (engine.Request{}) {
		return Request{c: completedAtStart}
	}
	return x.c.startedRequest(r, op, target, noRank, 0)
}

// Space returns the window's own communicator, which has its attributes.
func (x *Win) Space() *Comm {
	if x == nil {
		return nil
	}
	return x.c
}
