package rma

import (
	"context"
	"fmt"
	"math"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// operation is one call's. It is reused.
//
//	start ──► queued ──► awaited ──► finish      by messages
//	     └──► waiting ──► flying ──► finish      by RMA or atomics
type operation struct {
	*engine.Transfer
	to   *target
	kind wire.WindowKind // what it is, also where no message is sent
	op   Op

	disp   int
	length int    // bytes at the target
	src    []byte // the user's, or pair
	result []byte // the user's
	pair   []byte // of a compare and swap: the new element, then the one compared with

	offset int    // bytes posted
	step   int    // bytes of the transfer under way
	got    int    // bytes of result
	last   uint64 // number of its last message
	posted bool   // Transfer is the engine's
	flying bool   // by RMA or atomics
	sent   bool   // all messages are
	acked  bool   // all messages are
	loose  bool   // the user's memory is not needed any more
	err    error  // the target has ended

	ticket engine.Request // of the forms with a request
	asked  bool           // there is one
	memory engine.Memory  // of the user's buffer, under MRLocal
	holds  [2]*engine.Span
	next   *operation

	number         uint64 // in the order of starts, from 1
	older, younger *operation
}

// fifo is a queue of operations through operation.next.
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

// call is what a user asked for.
type call struct {
	kind         wire.WindowKind
	op           Op
	target, disp int
	src, result  []byte
	compare      []byte
	ask          bool            // for a request
	done         int             // bytes that are done under a latch
	holds        [2]*engine.Span // that src and result lie in
}

// Put stores buf at disp bytes of the target's part. buf is the window's until
// FlushLocal, Flush or the end of the epoch; the data is in place after the
// latter two. Put waits where a lock is to be got first, or for older
// operations where 128 with the target are under way.
//
// Hot path: no allocation in steady state.
func (w *Window) Put(ctx context.Context, target, disp int, buf []byte) error {
	if w.put(target, disp, buf) {
		return nil
	}
	_, err := w.start(ctx, call{kind: wire.WinPut, target: target, disp: disp, src: buf})
	return err
}

// Rput is Put with a request that is complete when buf may be reused and the
// data is in place. An error shows at the request and at the next flush.
func (w *Window) Rput(ctx context.Context, target, disp int, buf []byte) (engine.Request, error) {
	return w.start(ctx, call{kind: wire.WinPut, target: target, disp: disp, src: buf, ask: true})
}

// Get fetches len(buf) bytes from disp of the target's part; they are in buf
// after FlushLocal, Flush or the end of the epoch. Otherwise it is as Put.
//
// Hot path: no allocation in steady state.
func (w *Window) Get(ctx context.Context, target, disp int, buf []byte) error {
	if w.get(target, disp, buf) {
		return nil
	}
	_, err := w.start(ctx, call{kind: wire.WinGet, target: target, disp: disp, result: buf})
	return err
}

// Rget is Get with a request.
func (w *Window) Rget(ctx context.Context, target, disp int, buf []byte) (engine.Request, error) {
	return w.start(ctx, call{kind: wire.WinGet, target: target, disp: disp, result: buf, ask: true})
}

// Accumulate combines the elements at disp of the target's part with those of
// src. Each element is changed as one step with respect to all accumulates of
// the window. Those of one origin to one element happen in the order of the
// program (MPI 4.1, 12.7.1). src is the window's as Put's buf.
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

// RAccumulate is Accumulate with a request.
func (w *Window) RAccumulate(ctx context.Context, target, disp int, src []byte, op Op) (engine.Request, error) {
	return w.start(ctx, call{kind: wire.WinAcc, op: op, target: target, disp: disp, src: src, ask: true})
}

// GetAccumulate is Accumulate that also puts the former elements into result,
// which is as long as src. With NoOp it only fetches, and src is not looked at.
// Of one element it is MPI_Fetch_and_op.
//
// Hot path: no allocation in steady state.
func (w *Window) GetAccumulate(ctx context.Context, target, disp int, src, result []byte, op Op) error {
	_, err := w.start(ctx, call{kind: wire.WinFetch, op: op, target: target, disp: disp, src: src, result: result})
	return err
}

// RGetAccumulate is GetAccumulate with a request.
func (w *Window) RGetAccumulate(ctx context.Context, target, disp int, src, result []byte, op Op) (engine.Request, error) {
	return w.start(ctx, call{kind: wire.WinFetch, op: op, target: target, disp: disp, src: src, result: result, ask: true})
}

// CompareSwap stores the element replace at disp of the target's part if the
// one there has the same bytes as compare, and puts the former one into result
// in any case. replace and compare may be reused at once.
//
// Hot path: no allocation in steady state.
func (w *Window) CompareSwap(ctx context.Context, target, disp int, replace, compare, result []byte) error {
	_, err := w.start(ctx, call{kind: wire.WinSwap, target: target, disp: disp, src: replace, compare: compare, result: result})
	return err
}

// RCompareSwap is CompareSwap with a request.
func (w *Window) RCompareSwap(ctx context.Context, target, disp int, replace, compare, result []byte) (engine.Request, error) {
	return w.start(ctx, call{kind: wire.WinSwap, target: target, disp: disp, src: replace, compare: compare, result: result, ask: true})
}

// start does an operation, where it needs nobody for it, or begins it.
func (w *Window) start(ctx context.Context, c call) (engine.Request, error) {
	for {
		done, busy := w.near(&c)
		switch {
		case done:
			return engine.Request{}, nil
		case busy:
			w.relieve(&w.targets[c.target])
			continue
		}
		if q, again, err := w.begin(ctx, &c); !again {
			return q, err
		}
	}
}

// begin begins an operation, or finds that it can be done by loads and stores
// now that what it had to wait for has come: again.
func (w *Window) begin(ctx context.Context, c *call) (q engine.Request, again bool, err error) {
	w.port.Lock()
	// The memory stays also while the call waits, or opens the lock in between.
	c.holds[0], c.holds[1] = w.port.Hold(c.src), w.port.Hold(c.result)
	defer func() {
		w.port.Drop(c.holds[0])
		w.port.Drop(c.holds[1])
		c.holds = [2]*engine.Span{}
		w.port.Unlock()
	}()
	if err := w.unfit(); err != nil {
		return engine.Request{}, false, err
	}
	if c.target < 0 || c.target >= len(w.targets) {
		return engine.Request{}, false, fmt.Errorf("%w: rank %d of %d", ErrRange, c.target, len(w.targets))
	}
	t := &w.targets[c.target]
	n, err := w.check(t, c)
	if err == nil {
		err = w.enter(ctx, t)
	}
	if err != nil || n == 0 || c.kind == wire.WinAcc && c.op == NoOp {
		return engine.Request{}, false, err
	}
	atomic := c.kind == wire.WinAcc || c.kind == wire.WinFetch || c.kind == wire.WinSwap
	switch {
	case t.near && (!atomic || w.whole):
		return engine.Request{}, true, nil
	case t.rail < 0 && (!atomic || !w.native):
		return engine.Request{}, false, w.serveSelf(c, n)
	}
	byMessage := atomic && !w.native || !atomic && !t.direct
	if byMessage {
		if need := max(1, w.unit(c.kind)); need > t.chunk || c.kind == wire.WinSwap && 2*need > t.chunk {
			return engine.Request{}, false, fmt.Errorf("%w: an element of %d bytes", transport.ErrTooLarge, need)
		}
	}
	if t.pending >= maxPending || len(t.line) > 0 {
		err := t.queueUp(ctx)
		if err == nil {
			err = w.enter(ctx, t) // the epoch may be over
		}
		if err != nil {
			return engine.Request{}, false, err
		}
	}
	if err := t.unfit(); err != nil {
		return engine.Request{}, false, err
	}
	op := w.take()
	op.fill(t, c, n)
	q = op.ticket
	if byMessage {
		t.queued.push(op)
		t.pump()
	} else {
		t.waiting.push(op)
		t.fly()
	}
	return q, false, nil
}

// queueUp waits until fewer operations are under way. Who comes first goes
// first, or a goroutine that starts many would keep others out.
func (t *target) queueUp(ctx context.Context) error {
	t.calls++
	me := t.calls
	t.line = append(t.line, me)
	var err error
	for err == nil && (t.line[0] != me || t.pending >= maxPending) {
		t.ask()
		err = t.w.port.Await(ctx)
	}
	for i, x := range t.line {
		if x == me {
			t.line = append(t.line[:i], t.line[i+1:]...)
			break
		}
	}
	if len(t.line) > 0 {
		t.w.port.WakeAwait() // there may be room for more
	}
	return err
}

// unfit says why nothing can be started any more.
func (w *Window) unfit() error {
	if w.err == nil && w.left {
		return errLeft
	}
	return w.err
}

// unfit says why nothing can be started with a target.
func (t *target) unfit() error {
	if err := t.w.unfit(); err != nil {
		return err
	}
	return t.down
}

// unit is what a message's data consists of.
func (w *Window) unit(kind wire.WindowKind) int {
	if kind == wire.WinPut || kind == wire.WinGet {
		return 1
	}
	return w.cfg.Elem
}

// check looks at the arguments of an operation and says how many bytes of the
// target's part it is about.
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
			return 0, fmt.Errorf("%w: %d bytes are no elements of %d", ErrRange, n, elem)
		}
	case wire.WinSwap:
		if len(c.src) != elem || len(c.compare) != elem || len(c.result) != elem {
			return 0, fmt.Errorf("%w: compare and swap is of one element", ErrRange)
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
		return 0, fmt.Errorf("%w: elements at byte %d", ErrRange, c.disp)
	}
	return n, nil
}

// take returns an operation that is not in use.
func (w *Window) take() *operation {
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

// fill makes op what c asks for, and gives it what c holds.
func (op *operation) fill(t *target, c *call, n int) {
	w := t.w
	op.to, op.kind, op.op, op.disp, op.length = t, c.kind, c.op, c.disp, n
	op.src, op.result = c.src, c.result
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
	t.look()
	if c.ask {
		op.ticket, op.asked = w.port.Begin(), true
	}
}

// release says that the user's memory is not needed any more.
func (op *operation) release() {
	op.loose = true
	op.to.tell(true)
}

// complete says whether the first n operations with a target are complete, or
// locally so.
func (t *target) complete(n uint64, local bool) bool {
	for op := t.oldest; op != nil && op.number <= n; op = op.younger {
		if !local || !op.loose {
			return false
		}
	}
	return true
}

// tell rouses who waits for operations that have become complete.
func (t *target) tell(local bool) {
	f := &t.flushes[0]
	if local {
		f = &t.flushes[1]
	}
	if f.n > 0 && t.complete(f.goal, local) {
		f.goal = math.MaxUint64 // who waits for more will say so
		t.w.port.WakeAwait()
	}
}

// finish ends an operation.
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
	if op.asked {
		w.port.Complete(op.ticket, err)
	}
	*op = operation{Transfer: op.Transfer, pair: op.pair}
	op.Op.Data, op.Op.Fetch, op.Op.Compare, op.Op.Region = nil, nil, nil, nil
	op.next = w.freeOps
	w.freeOps = op
	t.tell(false)
	t.tell(true)
	if t.pending--; t.pending == maxPending-1 {
		w.port.WakeAwait()
	}
	t.look()
}

// done goes on when the engine has done with the transfer.
func (op *operation) done(err error) {
	t := op.to
	op.posted = false
	switch {
	case op.flying:
		t.flew(op, err)
	case op.acked:
		op.finish(nil)
	case op.err != nil:
		op.finish(op.err)
	case err != nil:
		op.posted = true // so that fail leaves it to us
		t.fail(err)
		op.finish(err)
	default:
		if op.sent && op.result == nil {
			op.release()
		}
		t.pump()
	}
}
