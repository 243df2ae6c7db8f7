package rma

import (
	"context"
	"fmt"
	"math"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// operation is an operation of this rank that is pending: by messages, RMA or the fabric's atomics.
// Windows reuse these objects.
//
//	start ──► queued ──► awaited ──► finish      by messages
//	     └──► waiting ──► posted ──► finish      by RMA or atomics
type operation struct {
	*engine.Transfer
	to   *target
	kind wire.WindowKind // the operation; also set if it sends no message
	op   Op

	disp   int    // offset of the operation in the target's part, in bytes
	length int    // bytes at the target
	src    []byte // data for the target: the user's buffer, or pair; nil: the operation sends no data
	result []byte // the user's buffer for the target's data; nil: the operation fetches nothing
	pair   []byte // of a compare and swap: the new element, then the element to compare with

	region uint64      // Region.ID of the region in which disp counts; 0: disp counts in the part
	keys   *remoteKeys // by which RMA accesses the part or the region
	shape  *shape      // the layouts of an operation by message; nil: src, result and target are contiguous
	group  *group      // the operations that share a request with this one; nil: there is none

	// By messages: number of bytes whose messages are posted. By RMA or atomics: number of bytes whose
	// transfers have ended.
	offset     int
	step       int    // by RMA or atomics: number of bytes of the current transfer
	received   int    // by messages: bytes of result that have arrived
	last       uint64 // by messages: the number of the operation's last message, as target.sent counts
	posted     bool   // the engine uses Transfer
	byFabric   bool   // the operation uses RMA or atomics
	sent       bool   // all messages are posted
	acked      bool   // all messages are acknowledged
	bufferFree bool   // the user may reuse the buffers
	err        error  // why the target has ended; nil: it has not
	refused    error  // the target has refused one of the messages; nil: it has not

	ticket    engine.Request // the request that the user's call has returned
	hasTicket bool           // ticket is valid
	memory    engine.Memory  // registration of the user's buffer, if MRLocal requires one; zero: none
	// Spans of the engine's Alloc that contain src and result, held so that they stay mapped; nil: no
	// span does.
	holds [2]*engine.Span
	next  *operation // in a fifo, or in the list Window.freeOps

	number         uint64     // in the order of starts with this target, from 1
	older, younger *operation // neighbours in the list from target.oldest to target.newest
}

// fifo is a queue of operations, linked by operation.next.
type fifo struct{ head, tail *operation }

func (q *fifo) push(op *operation) {
	op.next = nil
	if q.tail == nil {
		q.head = op
	} else {
		q.tail.next = op
	}
	q.tail = op
}

func (q *fifo) pop() *operation {
	op := q.head
	q.head = op.next
	if q.head == nil {
		q.tail = nil
	}
	op.next = nil
	return op
}

// call holds the arguments of a user's call of an operation, and its state until the operation
// starts.
type call struct {
	kind         wire.WindowKind
	op           Op
	target, disp int
	src, result  []byte
	compare      []byte
	wantTicket   bool            // the call returns a request
	done         int             // under a latch (see lockTable): bytes that are already changed
	holds        [2]*engine.Span // as operation.holds

	// Only for operations of an Access; see there.
	region *Remote
	shape  *shape
	group  *group
}

// Put copies buf to byte disp of the target's part. The caller must not change buf before
// FlushLocal, Flush or the end of the epoch. The data is in place after Flush or the end of the
// epoch. Under LockAll, Put first blocks until this rank has the lock of the part. If 128
// operations with the target are pending, Put blocks until there are fewer. Put returns ErrRange if
// buf does not fit into the part at disp, and ErrEpoch if no epoch permits the call.
//
// Hot path: no allocation in steady state.
func (w *Window) Put(ctx context.Context, target, disp int, buf []byte) error {
	if w.tryPut(target, disp, buf) {
		return nil
	}
	_, err := w.start(ctx, call{kind: wire.WinPut, target: target, disp: disp, src: buf})
	return err
}

// Rput is [Window.Put] with a request, which is complete when buf may be reused and the data is in
// place. If the operation fails, both the request and the next flush return its error.
func (w *Window) Rput(ctx context.Context, target, disp int, buf []byte) (engine.Request, error) {
	return w.start(ctx, call{kind: wire.WinPut, target: target, disp: disp, src: buf, wantTicket: true})
}

// Get copies len(buf) bytes from byte disp of the target's part to buf. The data is in buf after
// FlushLocal, Flush or the end of the epoch. Get blocks like [Window.Put].
//
// Hot path: no allocation in steady state.
func (w *Window) Get(ctx context.Context, target, disp int, buf []byte) error {
	if w.tryGet(target, disp, buf) {
		return nil
	}
	_, err := w.start(ctx, call{kind: wire.WinGet, target: target, disp: disp, result: buf})
	return err
}

// Rget is [Window.Get] with a request.
func (w *Window) Rget(ctx context.Context, target, disp int, buf []byte) (engine.Request, error) {
	return w.start(ctx, call{kind: wire.WinGet, target: target, disp: disp, result: buf, wantTicket: true})
}

// Accumulate combines the elements at byte disp of the target's part with those of src. The change
// of each element is atomic with respect to all accumulates of the window. Accumulates of one
// origin to one element happen in program order (MPI 4.1, 12.7.1). For src the rules of
// [Window.Put] for its buffer hold. Accumulate blocks like Put.
//
// Hot path: no allocation in steady state.
func (w *Window) Accumulate(ctx context.Context, target, disp int, src []byte, op Op) error {
	if w.words && len(src) == w.cfg.Elem {
		if _, ok := w.FetchWord(target, disp, op, load(src)); ok {
			return nil
		}
	}
	_, err := w.start(ctx, call{kind: wire.WinAcc, op: op, target: target, disp: disp, src: src})
	return err
}

// RAccumulate is [Window.Accumulate] with a request.
func (w *Window) RAccumulate(ctx context.Context, target, disp int, src []byte, op Op) (engine.Request, error) {
	return w.start(ctx, call{kind: wire.WinAcc, op: op, target: target, disp: disp, src: src, wantTicket: true})
}

// GetAccumulate is [Window.Accumulate] that also copies the previous elements to result, which is
// as long as src. They are in result after FlushLocal, Flush or the end of the epoch. With NoOp it
// only fetches, and ignores src. With one element it is MPI_Fetch_and_op.
//
// Hot path: no allocation in steady state.
func (w *Window) GetAccumulate(ctx context.Context, target, disp int, src, result []byte, op Op) error {
	_, err := w.start(ctx, call{kind: wire.WinFetch, op: op, target: target, disp: disp, src: src, result: result})
	return err
}

// RGetAccumulate is [Window.GetAccumulate] with a request.
func (w *Window) RGetAccumulate(ctx context.Context, target, disp int, src, result []byte, op Op) (engine.Request, error) {
	return w.start(ctx, call{kind: wire.WinFetch, op: op, target: target, disp: disp, src: src, result: result, wantTicket: true})
}

// CompareSwap stores the element replace at byte disp of the target's part if the element there has
// the same bytes as compare. It copies the previous element to result in both cases; the element is
// there after FlushLocal, Flush or the end of the epoch. The caller may reuse replace and compare
// when CompareSwap returns.
//
// Hot path: no allocation in steady state.
func (w *Window) CompareSwap(ctx context.Context, target, disp int, replace, compare, result []byte) error {
	_, err := w.start(ctx, call{kind: wire.WinSwap, target: target, disp: disp, src: replace, compare: compare, result: result})
	return err
}

// RCompareSwap is [Window.CompareSwap] with a request.
func (w *Window) RCompareSwap(ctx context.Context, target, disp int, replace, compare, result []byte) (engine.Request, error) {
	return w.start(ctx, call{kind: wire.WinSwap, target: target, disp: disp, src: replace, compare: compare, result: result, wantTicket: true})
}

// start executes an operation by loads and stores if it can, or begins it.
func (w *Window) start(ctx context.Context, c call) (engine.Request, error) {
	for {
		done, busy := w.tryMapped(&c)
		switch {
		case done:
			return engine.Request{}, nil
		case busy:
			w.recoverLatch(&w.targets[c.target])
			continue
		}
		if q, again, err := w.begin(ctx, &c); !again {
			return q, err
		}
	}
}

// begin begins an operation. If the operation can be executed by loads and stores now, for example
// because begin has acquired the lock of the part, begin returns again = true, and the caller does
// that.
func (w *Window) begin(ctx context.Context, c *call) (q engine.Request, again bool, err error) {
	w.port.Lock()
	// Keep the user's memory allocated while the call waits, or releases the engine's lock.
	c.holds[0], c.holds[1] = w.port.Hold(c.src), w.port.Hold(c.result)
	defer func() {
		w.port.Drop(c.holds[0])
		w.port.Drop(c.holds[1])
		c.holds = [2]*engine.Span{}
		w.port.Unlock()
	}()
	if err := w.invalid(); err != nil {
		return engine.Request{}, false, err
	}
	if c.target < 0 || c.target >= len(w.targets) {
		return engine.Request{}, false, fmt.Errorf("%w: rank %d of %d", ErrRange, c.target, len(w.targets))
	}
	t := &w.targets[c.target]
	n, err := w.check(t, c)
	if err == nil {
		err = w.admit(ctx, t)
	}
	if err != nil || n == 0 || c.kind == wire.WinAcc && c.op == NoOp {
		return engine.Request{}, false, err
	}
	atomic := c.kind == wire.WinAcc || c.kind == wire.WinFetch || c.kind == wire.WinSwap
	switch {
	case t.isMapped && (!atomic || w.allMapped):
		return engine.Request{}, true, nil
	case t.rail < 0 && (!atomic || !w.native):
		return engine.Request{}, false, w.serveSelf(c, n)
	}
	q, err = t.launch(ctx, c, n, atomic && !w.native || !atomic && !t.direct)
	return q, false, err
}

// launch begins an operation of n bytes, by messages, or by RMA and the fabric's atomics. It may
// release the engine's lock meanwhile.
func (t *target) launch(ctx context.Context, c *call, n int, byMessage bool) (engine.Request, error) {
	w := t.w
	if byMessage {
		if need := max(1, w.unit(c.kind)); need > t.chunk || c.kind == wire.WinSwap && 2*need > t.chunk {
			return engine.Request{}, fmt.Errorf("%w: an element of %d bytes", transport.ErrTooLarge, need)
		}
	}
	if t.pending >= maxPending || len(t.slotQueue) > 0 {
		err := t.waitSlot(ctx)
		if err == nil {
			err = w.admit(ctx, t) // the epoch may have ended
		}
		if err != nil {
			return engine.Request{}, err
		}
	}
	if err := t.invalid(); err != nil {
		return engine.Request{}, err
	}
	op := w.newOperation()
	op.fill(t, c, n)
	q := op.ticket
	if byMessage {
		t.queued.push(op)
		t.sendQueued()
	} else {
		t.waiting.push(op)
		t.postWaiting()
	}
	return q, nil
}

// waitSlot waits until fewer than maxPending operations are pending. Calls proceed in their order;
// otherwise a goroutine that starts many operations could starve the others.
func (t *target) waitSlot(ctx context.Context) error {
	t.slotTickets++
	me := t.slotTickets
	t.slotQueue = append(t.slotQueue, me)
	var err error
	for err == nil && (t.slotQueue[0] != me || t.pending >= maxPending) {
		t.requestAck()
		err = t.w.port.Await(ctx)
	}
	for i, x := range t.slotQueue {
		if x == me {
			t.slotQueue = append(t.slotQueue[:i], t.slotQueue[i+1:]...)
			break
		}
	}
	if len(t.slotQueue) > 0 {
		t.w.port.WakeAwait() // there may be slots for other calls
	}
	return err
}

// invalid returns why no operation can start any more, or nil.
func (w *Window) invalid() error {
	if w.err == nil && w.left {
		return errLeft
	}
	return w.err
}

// invalid returns why no operation with the target can start, or nil.
func (t *target) invalid() error {
	if err := t.w.invalid(); err != nil {
		return err
	}
	return t.down
}

// unit returns the number of bytes at whose multiples an operation may be divided into messages: 1,
// or for accumulates the size of an element.
func (w *Window) unit(kind wire.WindowKind) int {
	if kind == wire.WinPut || kind == wire.WinGet {
		return 1
	}
	return w.cfg.Elem
}

// check checks the arguments of an operation, and returns the number of bytes of the target's part
// that it accesses.
func (w *Window) check(t *target, c *call) (int, error) {
	n := len(c.src)
	if c.kind == wire.WinGet || c.kind == wire.WinFetch {
		n = len(c.result)
	}
	elem := w.cfg.Elem
	switch c.kind {
	case wire.WinAcc, wire.WinFetch:
		if c.op >= Ops || c.op > NoOp && w.kernels[c.op] == nil {
			return 0, fmt.Errorf("%w: %d", ErrOp, c.op)
		}
		if c.kind == wire.WinFetch && c.op != NoOp && len(c.src) != n {
			return 0, fmt.Errorf("%w: %d bytes to combine, %d to fetch", ErrRange, len(c.src), n)
		}
		if n > 0 && (elem == 0 || n%elem != 0) {
			return 0, fmt.Errorf("%w: %d bytes are not whole elements of %d bytes", ErrRange, n, elem)
		}
	case wire.WinSwap:
		if len(c.src) != elem || len(c.compare) != elem || len(c.result) != elem {
			return 0, fmt.Errorf("%w: a compare and swap needs exactly one element", ErrRange)
		}
	default:
	}
	if c.disp < 0 || c.disp > t.part.Size || n > t.part.Size-c.disp {
		return 0, fmt.Errorf("%w: %d bytes at %d of %d at rank %d", ErrRange, n, c.disp, t.part.Size, t.rank)
	}
	align := w.cfg.Align
	if w.words {
		align = elem
	}
	if c.kind != wire.WinPut && c.kind != wire.WinGet && align > 1 && c.disp%align != 0 {
		return 0, fmt.Errorf("%w: byte %d is not aligned to an element", ErrRange, c.disp)
	}
	return n, nil
}

// newOperation returns a free operation, or a new one.
func (w *Window) newOperation() *operation {
	op := w.freeOps
	if op == nil {
		op = &operation{Transfer: w.port.NewTransfer()}
		op.User = op
		return op
	}
	w.freeOps = op.next
	op.next = nil
	return op
}

// fill sets op for the call c of n bytes, and moves c's holds to it.
func (op *operation) fill(t *target, c *call, n int) {
	w := t.w
	op.to, op.kind, op.op, op.disp, op.length = t, c.kind, c.op, c.disp, n
	op.src, op.result = c.src, c.result
	op.keys = &t.part.Regions
	if c.region != nil {
		op.region, op.keys = c.region.region.id, &c.region.region.keys
	}
	op.shape, c.shape = c.shape, nil
	if op.group = c.group; op.group != nil {
		op.group.left++
	}
	switch {
	case c.kind == wire.WinSwap:
		op.pair = append(append(op.pair[:0], c.src...), c.compare...)
		op.src = op.pair
	case c.op == NoOp:
		op.src = nil
	}
	op.holds, c.holds = c.holds, op.holds
	t.started++
	op.number, op.older = t.started, t.newest
	if t.newest == nil {
		t.oldest = op
	} else {
		t.newest.younger = op
	}
	t.newest = op
	t.pending++
	t.updateFlags()
	if c.wantTicket {
		op.ticket, op.hasTicket = w.port.Begin(), true
	}
}

// releaseBuffer marks the operation as locally complete: the user may reuse its buffers.
func (op *operation) releaseBuffer() {
	op.bufferFree = true
	op.to.wakeFlushers(true)
}

// complete reports whether the first n operations with a target are complete, or, if local is set,
// locally complete.
func (t *target) complete(n uint64, local bool) bool {
	for op := t.oldest; op != nil && op.number <= n; op = op.younger {
		if !local || !op.bufferFree {
			return false
		}
	}
	return true
}

// wakeFlushers wakes the goroutines in drain if the operations that one of them waits for are
// complete.
func (t *target) wakeFlushers(local bool) {
	f := &t.flushes[0]
	if local {
		f = &t.flushes[1]
	}
	if f.n > 0 && t.complete(f.goal, local) {
		f.goal = math.MaxUint64 // a goroutine that waits for later operations sets goal again
		t.w.port.WakeAwait()
	}
}

// finish ends an operation with an error or nil: it completes the request, frees the operation, and
// wakes the goroutines that wait for it.
func (op *operation) finish(err error) {
	t := op.to
	w := t.w
	if op.older == nil {
		t.oldest = op.younger
	} else {
		op.older.younger = op.younger
	}
	if op.younger == nil {
		t.newest = op.older
	} else {
		op.younger.older = op.older
	}
	if e := w.port.Deregister(op.memory); err == nil {
		err = e
	}
	for i := range op.holds {
		w.port.Drop(op.holds[i])
	}
	if err != nil && t.err == nil {
		t.err = err
	}
	if op.hasTicket {
		w.port.Complete(op.ticket, err)
	}
	if op.group != nil {
		op.group.ended(w, err)
	}
	if op.shape != nil {
		w.freeShape(op.shape)
	}
	*op = operation{Transfer: op.Transfer, pair: op.pair}
	op.Op.Data, op.Op.Fetch, op.Op.Compare, op.Op.Region = nil, nil, nil, nil
	op.next = w.freeOps
	w.freeOps = op
	t.wakeFlushers(false)
	t.wakeFlushers(true)
	if t.pending--; t.pending == maxPending-1 {
		w.port.WakeAwait()
	}
	t.updateFlags()
}

// done continues an operation after the engine has finished its transfer.
func (op *operation) done(err error) {
	t := op.to
	op.posted = false
	switch {
	case op.byFabric:
		t.transferEnded(op, err)
	case op.acked:
		op.finish(op.refused)
	case op.err != nil:
		op.finish(op.err)
	case err != nil:
		op.posted = true // so that fail does not finish this operation
		t.fail(err)
		op.finish(err)
	default:
		if op.sent && op.result == nil {
			op.releaseBuffer()
		}
		t.sendQueued()
	}
}
