package rma

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/atomics"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/layout"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// The errors of windows, besides those of the engine. Calls return them wrapped with the cause.
var (
	ErrEpoch = errors.New("no epoch of the window permits this call")
	ErrRange = errors.New("outside the target's part of the window")
	ErrOp    = errors.New("operation not defined for the window's elements")
	ErrParts = errors.New("ranks disagree about the window")
	// ErrShared: the ranks of a window with Config.Contiguous do not share memory.
	ErrShared = errors.New("not all ranks share memory")
)

// Config describes a window to New.
type Config struct {
	// Ctx is a context of the window's own. Its group is the window's group, it carries only the
	// window's messages, and its Revoke ends the window.
	Ctx   *engine.Context
	Local []byte // this rank's part; may be empty
	Alloc int    // if > 0, New allocates a part of so many bytes instead of Local, and Close frees it
	Elem  int    // bytes of an element, the same on all ranks
	Align int    // alignment in bytes that the kernels need, and that Local has; 0: none

	Dynamic   bool // the window has no parts: ranks attach memory; see Window.Attach
	Unordered bool // accumulates of one origin to one element may happen in any order
	NoLocks   bool // Lock and LockAll are errors

	// Contiguous says that all ranks share memory, and that their parts follow each other in memory
	// of rank 0: Alloc bytes at Offset of Total bytes. If the ranks do not share memory, Settle returns
	// ErrShared on all of them.
	Contiguous    bool
	Offset, Total int

	// DeferredFrees takes memory of closed windows that other ranks may still use. All windows of an
	// engine share it.
	DeferredFrees *DeferredFrees

	// Locks is the number of locks that this process has in all its windows, which share it. If it is
	// nil, the window counts its own.
	Locks *atomic.Int64

	// Datatype is the element type in package transport, if HasType.
	Datatype transport.Datatype
	HasType  bool
	// Kernel returns the kernel of an operation after NoOp, or nil if the operation is not defined for
	// the element type. A kernel sets inout[i] to in[i] ∘ inout[i] for whole elements. The window
	// calls it with the engine's lock or a latch held, for at most 64 KiB or one element at once. It
	// may call it on several goroutines at the same time.
	Kernel func(op Op) func(inout, in []byte)
}

// Limits of a rank's pending operations with one target.
const (
	maxPending  = 128      // operations; a goroutine that starts more waits
	maxMessages = 64       // messages sent and not acknowledged
	maxReply    = 1 << 20  // bytes requested by messages and not received
	maxInFlight = 64       // transfers by RMA and atomics
	maxChunk    = 64 << 10 // data bytes of a message
	ackEvery    = 16       // messages after which an origin requests an acknowledgement, also without a flush
)

// Limits of the answers to one rank that this rank has posted and whose sends have not completed. A
// fabric may report that a send has completed long after the peer has received it and requested
// more. So the limits are maxBehind times what the peer may request at once.
const (
	maxBehind  = 4
	maxAnswers = maxBehind * maxMessages
)

// Window is memory that the ranks of a group expose to each other. Its methods are safe for
// concurrent use. The effect of an operation is in place when the flush, or the end of the epoch,
// that covers it has returned.
//
// Peers may change Local at any time during an exposure: by messages on the goroutine that drives
// the engine, by stores or RMA without any goroutine of this process. If this rank learns of a
// peer's Flush (by a Lock of its own part, by a Fence and a barrier, or by a message), the changes
// happen before the return of the call by which it learns, in the sense of the Go memory model.
//
// A rank serves others during every call of the engine. With asynchronous progress it also serves
// them while it computes, starting at most a millisecond after its last call.
type Window struct {
	cfg  Config
	port *engine.Port
	rank int
	gate gate

	// New, Connect and Settle set these fields, which do not change afterwards.
	targets    []target
	kernels    [Ops]func(inout, in []byte)
	changes    [Ops]atomics.Change // for elements that the processor changes atomically
	tableLocks bool                // locks are in lock tables; else locks use messages
	allMapped  bool                // every rank has mapped every part, so accumulates are loads and stores
	// Accumulates use the processor's atomics. If words is false and allMapped is true, they use the
	// latch of the target's lock table.
	words bool

	// The engine's lock guards all following fields.
	local   []byte                  // this rank's part
	joint   []byte                  // the parts of all ranks, if Config.Contiguous; nil: this rank has not mapped them
	own     shared                  // memory of this rank that others may have mapped
	memory  [maxRails]engine.Memory // by rail: the registration of the part
	scratch []byte                  // for aligned copies of unaligned data; allocated on first use

	native     bool        // accumulates use the fabric's atomics
	nativeRail int         // the rail of these atomics; has no meaning if native is false
	counts     [Ops][2]int // by Op: maximum number of elements of one atomic, without and with a fetch

	err    error // why the window is unusable; nil: it is usable
	closed bool  // Close was called
	fence  bool  // a fence epoch is open
	all    bool  // an epoch of LockAll is open
	// With all: the epoch needs no locks.
	allUnchecked bool
	locked       int    // number of targets that Lock has locked or waits for
	begun        int    // 0: no epoch of Start is open; else the number of its targets, at least 1
	epochs       uint64 // number of epochs that finishEpoch has closed

	requested int // number of targets whose lock this rank has requested and not got

	queue  []lockRequest // requests for the lock of this rank's part by messages, in their order
	shared int           // number of ranks that have the lock of this rank's part by messages
	owned  bool          // the one rank that has this lock has it exclusively

	left       bool  // Leave was called
	endedRanks int   // number of ranks that have failed or ended
	granted    []int // scratch of target.grant

	attached     attachments         // the regions of this rank, if the window is dynamic
	sealKey      uint64              // key of the seals of regions; connect sets it
	runs         [maxRuns]layout.Run // scratch of deliverAt
	sentRuns     [maxRuns]layout.Run // scratch of the operations of this rank
	freeGroups   *group              // groups for reuse, linked by next
	freeShapes   *shape              // shapes for reuse, linked by next
	freeOps      *operation          // operations for reuse, linked by next
	freeControls *controlMessage     // control messages for reuse, linked by next

	// What this rank knows about regions. A goroutine that holds remotesMu may take the engine's lock.
	lastRemote atomic.Pointer[Remote] // of the last call
	remotesMu  sync.Mutex
	remotes    map[remoteName]*Remote // guarded by remotesMu
}

// target is the state of a window with respect to one rank: as the target of this rank's
// operations, and as the origin of operations on this rank's part.
type target struct {
	w    *Window
	rank int
	part Part // of that rank; zero before Connect

	// The mapped memory of the rank. Connect sets these fields; Close clears them.
	isMapped  bool   // its part and its lock table are mapped here
	mapped    []byte // the part
	lockTable lockTable
	table     []byte            // of the rank's regions; nil: the window is not dynamic, or it is not mapped
	spans     map[uint64][]byte // by key: memory with regions that Lookup has mapped; guarded by Window.remotesMu
	maps      [2][]byte         // mappings of the lock table and of the part, which Close unmaps; nil: none
	ready     atomic.Bool       // isMapped, and an epoch permits operations without a wait or a message
	idle      atomic.Bool       // isMapped, and there is nothing to flush and no error

	rail        int  // the rail that leads to the rank; -1: the rank is this rank itself
	direct      bool // Put and Get use RMA, because this rank's endpoint reaches the part
	chunk       int  // maximum number of data bytes of a message to the rank
	answerLimit int  // maximum number of data bytes that the rank may request with one message

	// This rank's operations with the target.
	err         error      // the first error since the epoch began; nil: none
	down        error      // why no operation with the target can succeed any more; nil: they can
	lost        bool       // the target has failed during this epoch, which may have stored to its mapped part
	started     uint64     // number of operations, ever
	oldest      *operation // first operation that is not complete, linked by operation.younger
	newest      *operation // the last one
	pending     int        // number of operations from oldest to newest
	slotQueue   []uint64   // tickets of the calls that wait until pending is less than maxPending
	slotTickets uint64     // number of tickets issued, ever; a ticket is the number of its issue

	queued       fifo        // operations by message; messages of the first may have been sent
	awaited      fifo        // operations by message whose messages are sent and not acknowledged
	sent         uint64      // number of operation messages that this rank has posted, ever
	acked        uint64      // number of acknowledged messages
	ackRequested uint64      // number of the last message that requested an acknowledgement
	expected     int         // data bytes of the answers that this rank has requested and not received
	flushes      [2]flushers // goroutines that wait for completion, and for local completion

	waiting  fifo         // operations by RMA or atomics that are not posted
	inFlight int          // number of operations by RMA or atomics that are posted and have not ended
	atomics  []*operation // the atomics among these operations

	// This rank's epoch with the target.
	lock        lockState // of this rank, for the lock of the target's part
	locked      bool      // an epoch of Lock with the target is open
	unchecked   bool      // with locked: the epoch needs no lock
	locking     bool      // a call of Lock or TryLock waits for the lock
	trying      bool      // the request that is pending at the target is one of TryLock
	endedSeen   int       // value of Window.endedRanks at the last repair of the lock table
	exclusive   bool      // the lock that is requested or held is exclusive
	abandoned   bool      // the goroutine that requested the lock does not wait for it any more
	lockWaiters int       // number of goroutines in acquire
	begun       bool      // an epoch of Start with the target is open

	// The target's operations with this rank.
	applied     uint64    // number of the target's operation messages that this rank has applied, ever
	answers     int       // number of answers whose sends have not completed
	answerBytes int       // data bytes of these answers
	ackBusy     bool      // the send of an acknowledgement has not completed
	ackAgain    bool      // another acknowledgement must follow when that send has completed
	peerLock    lockState // of the target, for the lock of this rank's part, if locks use messages
}

// flushers describes the goroutines in drain that wait for a target.
type flushers struct {
	n    int    // number of these goroutines
	goal uint64 // the least operation number up to which one of them waits; math.MaxUint64: none
}

// New creates a window, and allocates or registers this rank's part. The caller sends the Part to
// all members; see [Window.Connect]. New does not communicate. The caller closes the window, even
// if Connect fails.
func New(cfg Config) (*Window, Part, error) {
	cfg.Align = max(1, cfg.Align)
	if cfg.Dynamic {
		cfg.Local, cfg.Alloc = nil, tableBytes
	}
	if cfg.Locks == nil {
		cfg.Locks = new(atomic.Int64)
	}
	w := &Window{cfg: cfg, local: cfg.Local}
	if cfg.Elem < 0 || cfg.Elem > math.MaxInt32 {
		return nil, Part{}, fmt.Errorf("elements of %d bytes: %w", cfg.Elem, ErrOp)
	}
	if cfg.Kernel != nil {
		for op := Sum; op < Ops; op++ {
			w.kernels[op] = cfg.Kernel(op)
		}
	}
	for op := range w.changes { // without HasType, the window uses only those that do not depend on the type
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
	if cfg.Contiguous {
		part.Size = cfg.Alloc
	}
	for i := range w.targets {
		if t := &w.targets[i]; t.rail >= 0 {
			part.Chunk = min(part.Chunk, t.answerLimit)
		}
	}
	w.describe(&part)
	part.Nonce = rand.Uint64()
	if cfg.Dynamic { // the part is the table of this rank's regions
		w.attached.table, w.local = w.local, nil
	}
	if cfg.Contiguous { // joinParts sets local
		w.joint, w.local = w.local, nil
	}
	if len(w.targets) > 1 {
		w.register(&part)
	}
	return w, part, nil
}

// attach prepares w for the calls of its methods that the engine makes, which may begin before New
// returns. The engine, which calls attach, holds its lock.
func (w *Window) attach(port *engine.Port) engine.Service {
	w.port, w.rank = port, port.Rank()
	w.targets = make([]target, port.Size())
	for i := range w.targets {
		t := &w.targets[i]
		t.w, t.rank, t.rail = w, i, port.Rail(i)
		t.flushes[0].goal, t.flushes[1].goal = math.MaxUint64, math.MaxUint64
		if t.rail >= 0 {
			t.answerLimit = max(0, port.Attr(t.rail).MaxMsgSize-wire.MessageLong)
		}
	}
	return (*service)(w)
}

// register registers this rank's part with each rail that has RMA, unless all ranks to which the
// rail leads can map the part. It sets the fields of part that describe the registrations, and
// Native.
func (w *Window) register(part *Part) {
	port := w.port
	for rail := range min(port.Rails(), maxRails) {
		if !port.Attr(rail).Caps.Has(transport.CapRead|transport.CapWrite) || len(w.local) == 0 || w.own.region != nil && w.allShareMemory(rail) {
			continue
		}
		m, err := port.Register(rail, w.local, transport.RemoteRead|transport.RemoteWrite)
		if err != nil {
			continue // peers use messages then
		}
		w.memory[rail] = m
		part.Direct |= 1 << rail
		part.Regions[rail].Key, part.Regions[rail].Base = m.Key, m.Base
	}
	part.Native = w.findNativeRail(part.Direct)
}

// Connect connects the window to the parts of all ranks of the group, which are in rank order, and
// maps those that it can. The parts come from Encode and Decode. The caller combines the results of
// all members; see [Window.Settle]. Errors about the parts are the same on all ranks.
func (w *Window) Connect(parts []Part) (Reach, error) {
	if err := w.connect(parts); err != nil {
		if errors.Is(err, ErrParts) { // all ranks get this error, so no rank maps anything
			w.own.unshared = true
		}
		return 0, err
	}
	if w.cfg.Contiguous {
		w.joinParts()
	}
	w.own.connected = true
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
		w.sealKey = w.sealKey*31 + p.Nonce
		if t.rail < 0 {
			continue
		}
		t.chunk = min(t.answerLimit, p.Chunk)
		t.direct = t.rail < maxRails && p.Direct&(1<<t.rail) != 0 &&
			w.port.Attr(t.rail).Caps.Has(transport.CapRead|transport.CapWrite) &&
			w.port.Reaches(i, p.Regions[t.rail].Key)
	}
	w.native, w.nativeRail = native > 0, native-1
	return nil
}

// Settle completes the creation of the window. all is the bitwise AND of what Connect has returned
// on every rank. After Settle the window may be used, without a further barrier: the exchange of
// these results implies that all ranks have returned from Connect.
func (w *Window) Settle(all Reach) error {
	w.port.Lock()
	defer w.port.Unlock()
	if w.err != nil {
		return w.err
	}
	if w.cfg.Contiguous && (all&reachLockTables == 0 || all&reachParts == 0) {
		w.own.connected = false // no rank uses the window, because all get this error
		return ErrShared
	}
	if all&reachHost == 0 {
		w.own.unshared = true // no rank uses the mappings
		w.port.Unlock()
		err := w.unmap()
		w.port.Lock()
		return err
	}
	w.tableLocks = all&reachLockTables != 0
	w.allMapped = w.tableLocks && all&reachParts != 0 && !w.cfg.Dynamic
	w.words = w.allMapped && all&reachWords != 0
	if !w.allMapped {
		return nil
	}
	w.native = false
	w.port.StopProgress() // no peer needs the progress of this rank
	return w.deregister()
}

// AllMapped reports whether every rank has mapped every part.
func (w *Window) AllMapped() bool { return w.allMapped }

// deregister removes the registrations of this rank's part. It may release the lock.
func (w *Window) deregister() error {
	var err error
	for i := range w.memory {
		m := w.memory[i]
		w.memory[i] = engine.Memory{}
		err = errors.Join(err, w.port.Deregister(m))
	}
	return err
}

// Close closes the window on this rank. The caller calls [Window.Leave], then a barrier, then
// Close, so that no rank uses the window any more. If operations are pending nevertheless, they
// fail with ErrClosed, here and at peers. After Close returns, no peer changes Config.Local. There
// are two exceptions if a peer breaks the rule above: Config.Local is memory of the engine's Alloc,
// whose registrations and mappings stay, or the engine is being closed. The caller must not use
// memory that New has allocated any more.
//
// Buffers of this rank's pending operations stay in use until the operations have ended. FlushAll
// waits for that, even after the window was revoked. Close does not communicate. It may be
// called again; such a call does not wait for the first one.
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
	w.port.Close()
	err := errors.Join(w.deregister(), w.detachAll())
	w.local = nil
	w.port.Unlock()
	return errors.Join(err, w.unmap(), w.freeOwn())
}

// Native reports whether accumulates use the fabric's atomics.
func (w *Window) Native() bool {
	w.port.Lock()
	defer w.port.Unlock()
	return w.native
}

// end makes all pending and later calls fail with err. It waits for calls that access mapped
// memory, because the caller may unmap that memory next.
func (w *Window) end(err error) {
	w.err = err
	w.updateAllFlags()
	w.gate.close()
	for i := range w.targets {
		w.targets[i].fail(err)
	}
	w.queue = w.queue[:0]
	w.port.WakeAwait()
}

// fail marks a target as ended, and ends the operations with it. Operations whose transfers are in
// flight end when these transfers do.
func (t *target) fail(err error) {
	if t.down != nil {
		return
	}
	t.down = err
	t.lost = t.ready.Load() && !t.w.fence // a fence epoch ends with a barrier, which reports the failure
	t.setLock(lockNone)
	t.updateFlags()
	for _, q := range [...]*fifo{&t.queued, &t.awaited, &t.waiting} {
		for q.head != nil {
			op := q.pop()
			op.err = err
			if !op.posted { // otherwise Done finishes it
				op.finish(err)
			}
		}
	}
	t.w.port.WakeAwait()
}

// service implements engine.Service for a window.
type service Window

// Down implements engine.Service: a rank has ended. If it has the lock of this rank's part by
// messages, Down releases the lock.
func (s *service) Down(rank int, err error) {
	w := (*Window)(s)
	t := &w.targets[rank]
	w.endedRanks++
	t.fail(err)
	w.dequeue(t)
}

// End implements engine.Service: the port has ended.
func (s *service) End(err error) {
	if w := (*Window)(s); w.err == nil {
		w.end(err)
	}
}

// Done implements engine.Service: a transfer has ended.
func (s *service) Done(t *engine.Transfer, err error) {
	switch x := t.User.(type) {
	case *operation:
		x.done(err)
	case *controlMessage:
		x.done()
	}
}

var _ engine.Service = (*service)(nil)
