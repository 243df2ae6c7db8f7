package rma

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/atomics"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// The errors of windows, besides the engine's; wrapped with their cause.
var (
	ErrEpoch = errors.New("no epoch of the window permits this")
	ErrRange = errors.New("outside the target's part of the window")
	ErrOp    = errors.New("operation not defined for the window's elements")
	ErrParts = errors.New("ranks disagree about the window")
)

// Config is what a window is made of.
type Config struct {
	// Ctx is the window's own context: its group is the window's, its messages
	// are the window's, and Revoke ends it.
	Ctx   *engine.Context
	Local []byte // this rank's part; may be empty
	Alloc int    // bytes of a part that New is to make, and Close to give back, in place of Local
	Elem  int    // bytes of an element, the same on all ranks
	Align int    // alignment in bytes that Combine's kernels need; Local has it. 0: none

	// Remains is where memory goes that the window has done with while other
	// ranks may not have; one for all windows of an engine.
	Remains *Remains

	// Datatype is the element type as fabrics know it, if HasType.
	Datatype transport.Datatype
	HasType  bool
	// Combine gives the kernel of an operation after NoOp: inout[i] becomes
	// in[i] ∘ inout[i] of whole elements. nil: it is not defined for this type.
	// A kernel runs under the engine's lock, on up to 64 KiB at once.
	Combine func(op Op) func(inout, in []byte)
}

// Limits of the operations with one target that a rank has under way.
const (
	maxPending  = 128      // altogether; a goroutine that starts more waits
	maxMessages = 64       // sent and not acknowledged
	maxReply    = 1 << 20  // bytes asked for by messages and not come
	maxFlying   = 64       // transfers of RMA and atomics
	maxChunk    = 64 << 10 // data of a message
	ackEvery    = 16       // messages
)

// Limits of the answers to one rank that have not left. A fabric may tell that
// one has left long after the other rank has got it and asked for more, so they
// are what it may ask for at once, several times over.
const (
	maxBehind  = 4
	maxAnswers = maxBehind * maxMessages
)

// Window is memory that the ranks of a group open to each other. Its methods
// are safe for concurrent use. All that they move is in place when the flush,
// or the end of the epoch, that covers it has returned.
//
// Peers' operations change Local at any time during an exposure: by messages on
// whatever goroutine moves the engine on, by RMA on none of ours. Every method
// that returns after a peer's Flush was made known to this rank, by a Lock of
// this rank's own part, a Fence and barrier, or a message, returns after the
// change in the sense of the Go memory model too.
//
// A rank serves the others while it is in any call of the engine, and with
// asynchronous progress also while it computes, from a millisecond after its
// last call on at the latest.
type Window struct {
	cfg  Config
	port *engine.Port
	rank int
	gate gate

	// Set by New, Connect and Settle for good.
	targets []target
	kernels [Ops]func(inout, in []byte)
	changes [Ops]atomics.Change // of elements that the processor changes in one step
	locks   bool                // of parts are those of boards, else messages
	whole   bool                // every rank has mapped every part, so that accumulates are loads and stores
	words   bool                // by the processor's atomics, else under latches

	// Guarded by the engine's lock, as all below.
	local   []byte
	own     shared // what of it others may have mapped
	memory  [maxRails]engine.Memory
	scratch []byte // aligned, for data that is not; of maxChunk, made on first use

	native     bool // accumulates by the fabric's atomics
	nativeRail int
	counts     [Ops][2]int // elements of one atomic, without and with fetch

	err    error // why the window is of no use
	closed bool
	fence  bool   // a fence epoch is open
	all    bool   // LockAll
	locked int    // targets that Lock has locked or waits for
	begun  int    // targets of Start
	epochs uint64 // with all targets, that have been closed

	queue  []lockRequest // for this rank's part by messages, first come first
	shared int           // holders of the lock of this rank's part
	owned  bool          // exclusively

	left    bool  // Leave was called
	losses  int   // ranks that have ended
	granted []int // scratch of target.grant

	freeOps   *operation
	freeNotes *note
}

// target is what a window knows of one rank.
type target struct {
	w    *Window
	rank int
	part Part

	// What is mapped of it, which Connect sets for good; until the window is closed.
	near   bool   // its part is mapped here, and its board
	mapped []byte // the part
	board  board
	maps   [2][]byte   // what is to be unmapped
	ready  atomic.Bool // near, and an operation may start: nothing is to be waited for or told
	calm   atomic.Bool // near, and there is nothing to flush, and no error

	rail   int  // -1: this rank itself
	direct bool // Put and Get are RMA
	chunk  int  // data of a message to it
	reach  int  // data of a message that it may ask us for

	// Our operations with it.
	err     error      // the first that failed since the epoch began
	down    error      // why it cannot be reached
	started uint64     // operations, ever
	oldest  *operation // of those that are not complete there, by operation.younger
	newest  *operation
	pending int      // how many they are
	line    []uint64 // calls that wait for there to be fewer, first come first
	calls   uint64   // that ever did

	queued   fifo        // by message, the first perhaps in part
	awaited  fifo        // by message, sent and not acknowledged
	sent     uint64      // messages, ever
	acked    uint64      // of them acknowledged
	asked    uint64      // the last that asked for it
	expected int         // bytes of answers
	flushes  [2]flushers // those that wait for operations to be complete, and locally so

	waiting fifo         // by RMA or atomics, not posted
	flying  int          // those posted
	atomics []*operation // of those the atomics

	// Our epoch with it.
	lock        lockState
	locked      bool // by Lock
	locking     bool // Lock waits
	mourned     int  // Window.losses when its board was last rid of the dead
	exclusive   bool // what is asked for or held
	abandoned   bool // the goroutine that asked for the lock does not wait for it any more
	lockWaiters int
	begun       bool // by Start

	// Its operations with us.
	applied  uint64 // messages, ever
	notes    int    // answers that have not left
	noted    int    // their bytes
	ackBusy  bool   // an acknowledgement has not left
	ackAgain bool   // and another one is due
	holds    lockState
}

// flushers are the goroutines in drain.
type flushers struct {
	n    int
	goal uint64 // the least number of operations that one of them waits for
}

// New makes or registers this rank's part. The Part is for all members; see
// Connect. New does not communicate. The caller closes the window, also where
// Connect fails.
func New(cfg Config) (*Window, Part, error) {
	cfg.Align = max(1, cfg.Align)
	w := &Window{cfg: cfg, local: cfg.Local}
	if cfg.Elem < 0 || cfg.Elem > math.MaxInt32 {
		return nil, Part{}, fmt.Errorf("elements of %d bytes: %w", cfg.Elem, ErrOp)
	}
	if cfg.Combine != nil {
		for op := Sum; op < Ops; op++ {
			w.kernels[op] = cfg.Combine(op)
		}
	}
	for op := range w.changes { // without a type those alone are used that need none
		w.changes[op] = atomics.For(fabricOps[op], cfg.Datatype)
	}
	port, err := cfg.Ctx.OpenPort(w.attach)
	if err != nil {
		return nil, Part{}, err
	}
	w.allocate()
	port.Lock()
	defer port.Unlock()
	part := Part{Size: len(w.local), Elem: cfg.Elem, Chunk: math.MaxInt32}
	for i := range w.targets {
		if t := &w.targets[i]; t.rail >= 0 {
			part.Chunk = min(part.Chunk, t.reach)
		}
	}
	w.offer(&part)
	if len(w.targets) > 1 {
		w.register(&part)
	}
	return w, part, nil
}

// attach makes w ready for what comes to its port, be it the news that a rank has
// ended before anything else. The caller holds the engine's lock.
func (w *Window) attach(port *engine.Port) engine.Service {
	w.port, w.rank = port, port.Rank()
	w.targets = make([]target, port.Size())
	for i := range w.targets {
		t := &w.targets[i]
		t.w, t.rank, t.rail = w, i, port.Rail(i)
		t.flushes[0].goal, t.flushes[1].goal = math.MaxUint64, math.MaxUint64
		if t.rail >= 0 {
			t.reach = max(0, port.Attr(t.rail).MaxMsgSize-wire.MessageLong)
		}
	}
	return (*service)(w)
}

// register makes this rank's part known to the rails that lead to ranks which
// will not map it.
func (w *Window) register(part *Part) {
	port := w.port
	for rail := range min(port.Rails(), maxRails) {
		if !port.Attr(rail).Caps.Has(transport.CapRead|transport.CapWrite) || len(w.local) == 0 || w.own.region != nil && w.allNear(rail) {
			continue
		}
		m, err := port.Register(rail, w.local, transport.RemoteRead|transport.RemoteWrite)
		if err != nil {
			continue // by messages, then
		}
		w.memory[rail] = m
		part.Direct |= 1 << rail
		part.Regions[rail].Key, part.Regions[rail].Base = m.Key, m.Base
	}
	part.Native = w.nativeBy(part.Direct)
}

// Connect takes the parts of all ranks of the group, in their order, as Encode
// and Decode have carried them, and maps those that it can. What it returns is
// for all members; see Settle. All ranks come to the same error.
func (w *Window) Connect(parts []Part) (Reach, error) {
	if err := w.connect(parts); err != nil {
		if errors.Is(err, ErrParts) { // so do all say
			w.own.alone = true
		}
		return 0, err
	}
	return w.mapParts(), nil
}

func (w *Window) connect(parts []Part) error {
	w.port.Lock()
	defer w.port.Unlock()
	if w.err != nil {
		return w.err
	}
	if len(parts) != len(w.targets) {
		return fmt.Errorf("%w: %d parts for %d ranks", ErrParts, len(parts), len(w.targets))
	}
	native := parts[0].Native
	for i := range parts {
		p, t := &parts[i], &w.targets[i]
		if p.Elem != parts[0].Elem {
			return fmt.Errorf("%w: elements of %d bytes at rank %d, of %d at rank 0", ErrParts, p.Elem, i, parts[0].Elem)
		}
		if p.Native != native {
			native = 0
		}
		t.part = *p
		if t.rail < 0 {
			continue
		}
		t.chunk = min(t.reach, p.Chunk)
		t.direct = t.rail < maxRails && p.Direct&(1<<t.rail) != 0 &&
			w.port.Attr(t.rail).Caps.Has(transport.CapRead|transport.CapWrite)
	}
	w.native, w.nativeRail = native > 0, native-1
	return nil
}

// Settle takes what the Connect of every rank returned, all of it combined by
// and. When every rank has got that far, the window may be used; to exchange
// what is combined is barrier enough.
func (w *Window) Settle(all Reach) error {
	w.port.Lock()
	defer w.port.Unlock()
	if w.err != nil {
		return w.err
	}
	if all&reachHost == 0 {
		w.own.alone = true // when all have got that far
		w.port.Unlock()
		err := w.unmap()
		w.port.Lock()
		return err
	}
	w.locks = all&reachBoards != 0
	w.whole = w.locks && all&reachParts != 0
	w.words = w.whole && all&reachWords != 0
	if !w.whole {
		return nil
	}
	w.native = false
	w.port.StopProgress() // nothing is served
	return w.deregister()
}

// deregister takes this rank's part back from the rails.
func (w *Window) deregister() error {
	var err error
	for i := range w.memory {
		err = errors.Join(err, w.port.Deregister(w.memory[i]))
		w.memory[i] = engine.Memory{}
	}
	return err
}

// Close ends this rank's part. The caller has made sure by a barrier, after
// Leave, that no rank uses it any more; operations that are under way
// nevertheless fail with ErrClosed, here and at peers. No byte of Local is
// touched after it returns, but by who breaks that rule where Local is memory of
// the engine's Alloc, whose regions stay, or while the engine is being closed.
// What New allocated must not be used any more.
//
// Buffers of operations of this rank that are in flight are in use until they
// have ended; FlushAll waits for that, also where a window is revoked. Close
// does not block, and may be called again.
func (w *Window) Close() error {
	w.Leave()
	w.port.Lock()
	if w.closed {
		w.port.Unlock()
		return nil
	}
	w.closed = true
	if w.err == nil {
		w.end(fmt.Errorf("%w: the window is freed", engine.ErrClosed))
	}
	err := w.deregister()
	w.local = nil
	w.port.Close()
	w.port.Unlock()
	return errors.Join(err, w.unmap(), w.release())
}

// Native says whether accumulates go by the fabric's atomics.
func (w *Window) Native() bool {
	w.port.Lock()
	defer w.port.Unlock()
	return w.native
}

// end fails all that is under way and to come. What is in mapped memory at that
// moment it waits for: whoever unmaps it comes next.
func (w *Window) end(err error) {
	w.err = err
	w.lookAll()
	w.gate.shut()
	for i := range w.targets {
		w.targets[i].fail(err)
	}
	w.queue = w.queue[:0]
	w.port.WakeAwait()
}

// fail ends the operations with a target that has ended.
func (t *target) fail(err error) {
	if t.down != nil {
		return
	}
	t.down = err
	t.lock = lockNone
	t.look()
	for _, q := range [...]*fifo{&t.queued, &t.awaited, &t.waiting} {
		for q.head != nil {
			op := q.pop()
			op.err = err
			if !op.posted { // else Done finishes it
				op.finish(err)
			}
		}
	}
	t.w.port.WakeAwait()
}

// service is the window as its port sees it.
type service Window

// Down is engine.Service's: a rank has ended. What it held is free.
func (s *service) Down(rank int, err error) {
	w := (*Window)(s)
	t := &w.targets[rank]
	w.losses++
	t.fail(err)
	w.dequeue(t)
}

// End is engine.Service's.
func (s *service) End(err error) {
	if w := (*Window)(s); w.err == nil {
		w.end(err)
	}
}

// Done is engine.Service's: a transfer has ended.
func (s *service) Done(t *engine.Transfer, err error) {
	switch x := t.User.(type) {
	case *operation:
		x.done(err)
	case *note:
		x.done()
	}
}

var _ engine.Service = (*service)(nil)
