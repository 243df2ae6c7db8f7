package comm

import (
	"errors"
	"fmt"
	"hash/fnv"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/rma"
)

// Win is a window: memory of every rank of a communicator that all of them read
// and write, while its owner does something else (MPI_Win, MPI 4.1 §12). Every
// rank's part is a slice of T, counted in elements from 0.
//
// Operations start within an epoch, of which a rank has one kind at a time:
//
//	Fence … Fence          all ranks, in step          bulk-synchronous programs
//	Post, Start … Wait     some ranks, in step         halos of neighbours
//	Lock … Unlock          one target, nobody in step  queues, tables, counters
//	LockAll … UnlockAll    all targets, the same
//
//	Put, Get, Accumulate ─► under way ─► FlushLocal ─► Flush, Unlock, Fence
//	                                     buffers are   in place at
//	                                     the caller's  the target
//
// What Put, Get and Accumulate are given belongs to the window until one of
// these has returned. FetchOp and CompareSwap return what they fetched; the
// forms with R return a Request.
//
// The owner reads and writes its part as memory, by Local. What others have put
// there is to be seen after Fence or Wait, within a Lock of its own part, or
// once a message has told it that the other's Flush is over. To read an element
// while others change it is a data race; FetchOp with NoOp reads one at any
// time, also of one's own part. Between ranks of one host Shared gives the parts
// of the others as memory, too.
//
// All methods may run in any number of goroutines, and epochs are common to
// them; but the collective ones, Fence and Free, must start in the same order on
// all ranks.
//
// A window has a message space of its own. An error in a collective call
// revokes the window, not the communicator that it was made of. A nil window
// and one that was freed give ErrWin.
type Win[T any] struct {
	x     *window
	local []T

	cellMu sync.Mutex
	cells  []*cell[T] // guarded by cellMu; not in use
}

// window is what does not depend on the element type.
type window struct {
	win  *rma.Window
	c    *Comm // the window's own
	of   *Comm // what it was made of
	size int   // bytes of an element
	lens []int // elements, by rank

	comparable bool // CompareSwap is defined for the elements

	freed atomic.Bool
	pscw  exposure
}

// NewWin makes a window in which this rank has n elements, zeroed
// (MPI_Win_allocate, MPI 4.1 §12.2.2). n may differ from rank to rank and be 0.
// T is any type without pointers, the same on all ranks. It is collective over
// c and blocks. Free gives the memory back: slices of it, those of Local and
// Shared too, must not be used after it, nor after Finalize.
//
// Ranks that share memory have each other's parts mapped; see Shared. Put and
// Get are then a copy by the caller, over when the call returns. Where all ranks
// of the window do, so are accumulates, by the processor's atomics for elements
// of 4 and 8 bytes and under a short lock in memory for others, and locks that
// nobody has are got without a message.
//
// While a window of other ranks is open, a rank that waits in a call polls
// instead of sleeping where its transport needs that to serve the others, unless
// ranks outnumber cores.
//
// Errors: ErrCount for a negative n, or more than this host has memory; ErrType;
// ErrMismatch on all ranks where their types differ, and then c goes on; as all
// collectives (see Barrier).
func NewWin[T any](c *Comm, n int) (*Win[T], error) {
	return makeWin(c, "NewWin", func() (winMemory[T], error) {
		bytes, err := memoryFor[T](n)
		m := winMemory[T]{n: n, alloc: bytes}
		if err == nil && bytes == 0 {
			m.elems = make([]T, n)
		}
		return m, err
	})
}

// WinOf is NewWin of memory that is there: this rank's part is buf, which the
// window uses until it is freed (MPI_Win_create, MPI 4.1 §12.2.1). Memory of
// Alloc is not registered again, and mapped by ranks that share memory; other
// memory is reached as if there were none. Parts of windows must not overlap.
//
// Where a window is revoked or has lost a rank, one that has not heard of it may
// write to memory of Alloc for a while after Free.
func WinOf[T any](c *Comm, buf []T) (*Win[T], error) {
	return makeWin(c, "WinOf", func() (winMemory[T], error) {
		return winMemory[T]{n: len(buf), elems: buf}, infoOf[T]().err
	})
}

// winMemory is what this rank's part of a window is made of.
type winMemory[T any] struct {
	n     int
	elems []T
	alloc int // bytes to be allocated in place of elems
}

func makeWin[T any](c *Comm, name string, memory func() (winMemory[T], error)) (*Win[T], error) {
	l, err := c.begin(name)
	if err != nil {
		return nil, err
	}
	m, err := memory()
	if err != nil {
		return nil, l.end(err)
	}
	x, err := l.openWindow(typeHash[T](), m.n, sizeOf[T]())
	if err != nil {
		return nil, err
	}
	err = x.connect(name, bytesView(m.elems), m.alloc, infoOf[T]())
	x.c.s.standAlone()
	if err != nil {
		_ = x.close() // err says more
		return nil, err
	}
	if m.alloc > 0 {
		m.elems = elemsView[T](x.win.Local())
	}
	return &Win[T]{x: x, local: m.elems}, nil
}

// typeHash identifies an element type among the ranks.
func typeHash[T any]() int64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s %d", reflect.TypeFor[T](), sizeOf[T]()) // never fails
	return int64(h.Sum64())
}

// openWindow has the ranks agree on a window and gives it a message space. It
// ends l.
func (l *link) openWindow(hash int64, n, size int) (*window, error) {
	s, c := l.s, l.c
	cards, err := l.gatherCards(kindWin, card{color: hash, key: int64(n)})
	if err != nil {
		return nil, l.end(err)
	}
	x := &window{of: c, size: size, lens: make([]int, len(cards))}
	var differs error // on all ranks, if on one: there is nobody to be told
	for r := range cards {
		if cards[r].color != hash && differs == nil {
			differs = fmt.Errorf("%w: the window of rank %d has another element type", ErrMismatch, r)
		}
		x.lens[r] = int(cards[r].key)
	}
	name, id := l.name, cards[0].id
	if err := l.end(nil); err != nil || differs != nil {
		if err == nil {
			err = c.fail(name, noRank, noRank, differs)
		}
		return nil, err
	}
	own := s.job.newState(id, s.group, s.rank)
	own.window.Store(true)
	own.p2p.HideLeftovers()
	own.coll.HideLeftovers()
	own.endWith(s)
	x.c = &Comm{s: own, ctx: c.ctx}
	return x, nil
}

// connect makes or registers the memory and tells all ranks how to reach it.
// When it returns the window may be used; an error on one rank is one on all.
func (x *window) connect(name string, local []byte, alloc int, info *typeInfo) error {
	l, err := x.c.begin(name)
	if err != nil {
		return err
	}
	cfg := rma.Config{
		Ctx: x.c.s.p2p, Local: local, Alloc: alloc, Elem: x.size, Align: info.align, Kernel: info.accumulator,
		DeferredFrees: &x.c.s.job.deferredFrees,
	}
	cfg.Datatype, cfg.HasType = info.datatype()
	x.comparable = info.comparable()
	var own rma.Part
	if x.win, own, err = rma.New(cfg); err != nil {
		return l.end(err)
	}
	all := l.Scratch(l.Size() * rma.PartSize)
	at := func(r int) []byte { return all[r*rma.PartSize:][:rma.PartSize] }
	own.Encode(at(l.Rank()))
	l.what, l.send, l.recv = coll.KindAllgather, at(l.Rank()), all
	l.sign(kindWinParts, 0, 0)
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

// settle has the ranks agree on how they reach each other.
func (x *window) settle(name string, own rma.Reach) error {
	l, err := x.c.begin(name)
	if err != nil {
		return err
	}
	all := l.Scratch(l.Size())
	all[l.Rank()] = byte(own)
	l.what, l.send, l.recv = coll.KindAllgather, all[l.Rank():l.Rank()+1], all
	l.sign(kindWinReady, 0, 0)
	if err := l.perform(); err != nil {
		return l.end(err)
	}
	for _, reach := range all {
		own &= rma.Reach(reach)
	}
	return l.end(x.win.Settle(own))
}

// Local is this rank's part; nil for a nil window. It is local.
func (w *Win[T]) Local() []T {
	if w == nil {
		return nil
	}
	return w.local
}

// Len is how many elements a rank's part has; 0 for a rank that the window does
// not have. It is local.
func (w *Win[T]) Len(rank int) int {
	if w == nil || w.x == nil || uint(rank) >= uint(len(w.x.lens)) {
		return 0
	}
	return w.x.lens[rank]
}

// Comm is the communicator that the window was made of; nil for a nil window.
// It is local.
func (w *Win[T]) Comm() *Comm {
	if w == nil || w.x == nil {
		return nil
	}
	return w.x.of
}

// Free gives the window up (MPI_Win_free, MPI 4.1 §12.2.5). It is collective
// and blocks until all operations of every rank are complete and all have
// called it. A window that was revoked, or that has lost a process, is given up
// at once; buffers that it still uses are the caller's again if FlushAll has
// returned before, whatever its error, but a context's.
//
// Errors: ErrRMASync where this rank has an epoch other than Fence's open: the
// window is revoked, so that nobody waits for its locks, and given up; as all
// collectives (see Barrier). A second Free is ErrWin.
func (w *Win[T]) Free() error {
	x, err := w.live()
	if err != nil {
		return w.fail("Free", noRank, err)
	}
	return x.free()
}

func (x *window) free() error {
	var err error
	if x.c.s.coll.Err() == nil {
		if err = x.together("Free", kindWinFree, true); errors.Is(err, ErrRevoked) {
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

// close ends this rank's part in the window.
func (x *window) close() error {
	var err error
	if x.win != nil {
		err = x.win.Close()
	}
	s := x.c.s
	s.closed.Store(true)
	s.job.watch.remove(s)
	s.p2p.Close()
	s.coll.Close()
	return err
}

// Revoke ends the window on all its ranks: every call on it that is under way
// and every later one, here and elsewhere, fails with ErrRevoked. Only Free may
// still be called. It is local and does not block (ULFM, MPIX_Win_revoke).
func (w *Win[T]) Revoke() error {
	x, err := w.live()
	if err != nil {
		return w.fail("Revoke", noRank, err)
	}
	x.c.s.revoke(x.c.s.calledRevoke())
	return nil
}

var errFreed = fmt.Errorf("%w: it was freed", ErrWin)

// live returns the window if it can be used.
func (w *Win[T]) live() (*window, error) {
	switch {
	case w == nil || w.x == nil:
		return nil, fmt.Errorf("%w: it is nil", ErrWin)
	case w.x.freed.Load():
		return nil, errFreed
	case w.x.c.s.job.closed.Load():
		return nil, w.x.c.whyClosed()
	}
	return w.x, nil
}

// reach checks where an operation of n elements goes, and returns the byte of
// the target's part at which it begins.
//
// Hot path: no allocation.
func (w *Win[T]) reach(n, target, disp int) (*window, int, error) {
	x, err := w.live()
	if err != nil {
		return nil, 0, err
	}
	switch {
	case target == ProcNull:
		return x, 0, nil
	case uint(target) >= uint(len(x.lens)):
		return nil, 0, fmt.Errorf("%w: the window has %d", ErrRank, len(x.lens))
	case disp < 0:
		return nil, 0, fmt.Errorf("%w: %d is negative", ErrDisp, disp)
	case disp > x.lens[target] || n > x.lens[target]-disp:
		return nil, 0, fmt.Errorf("%w: %d elements from %d on, and it has %d", ErrRMARange, n, disp, x.lens[target])
	}
	return x, disp * x.size, nil
}

// fail wraps err for a call on w; nil stays nil.
func (w *Win[T]) fail(op string, target int, err error) error {
	return w.comm().fail(op, target, noRank, err)
}

// refused returns a request whose call failed at once.
func (w *Win[T]) refused(op string, target int, err error) Request {
	return w.comm().refused(op, target, noRank, err)
}

// comm returns the window's own communicator; nil: there is none.
func (w *Win[T]) comm() *Comm {
	if w == nil || w.x == nil {
		return nil
	}
	return w.x.c
}

// request is what the forms with R return.
func (x *window) request(op callName, target int, r engine.Request, err error) Request {
	if err != nil {
		return x.c.refused(op.String(), target, noRank, err)
	}
	if r == (engine.Request{}) {
		return Request{c: hasLeft}
	}
	return x.c.begun(r, op, target, noRank, 0)
}
