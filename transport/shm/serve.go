//go:build linux && !portable

package shm

import (
	"encoding/binary"
	"errors"

	"github.com/weft-hpc/weft/transport"
)

// Atomics on private memory of a peer
//
//	kindAtomic       0       8      16      24       28   29     30      31      32
//	                 ┌───────┬──────┬───────┬────────┬────┬──────┬───────┬───────┬──────┬─────────┐
//	                 │ id    │ key  │ addr  │ length │ op │ type │ flags │ 0     │ data │ compare │
//	                 └───────┴──────┴───────┴────────┴────┴──────┴───────┴───────┴──────┴─────────┘
//	kindAtomicDone   0       8        16
//	                 ┌───────┬────────┬───────┐   id      generation × maxCalls + slot
//	                 │ id    │ status │ fetch │   status  0, or an index of refusals
//	                 └───────┴────────┴───────┘   fetch   the former elements, if requested
//
// A read has no data. Only an operation that compares has compare. A rank has
// at most maxCalls requests under way with a peer. So if the ring to the rank is full, the
// peer queues at most maxCalls answers.

// The kinds of control messages of atomics.
const (
	kindAtomic = 48 + iota
	kindAtomicDone
)

const (
	maxCalls      = 64
	atomicHeader  = 32
	atomicDoneLen = 16

	flagFetch   = 1
	flagCompare = 2
	flagData    = 4
	flagsAll    = 7
)

// The reasons why atomics are refused, by status. An error that wraps another one of them comes
// before it.
var refusals = [...]error{nil, transport.ErrKey, errUnaligned, transport.ErrBounds, transport.ErrAccess}

var (
	errAtomic     = errors.New("a request for an atomic is invalid")
	errAtomicDone = errors.New("an answer matches no atomic")
	errCalls      = errors.New("too many atomics at once")
)

// calls are this rank's atomics under way with one peer, and its answers to
// that peer that wait for room in the ring.
type calls struct {
	ops     [maxCalls]*transport.Op // nil: free
	gens    [maxCalls]uint64
	n       int // number of ops that are not nil
	answers [][]byte
}

// callsWith returns the calls with a peer. It makes them at their first use.
func (d *domain) callsWith(p *peer) *calls {
	if p.calls == nil {
		p.calls = &calls{}
	}
	return p.calls
}

// ask sends an atomic on n bytes to the owner of the memory.
//
// Hot path: no allocation, no lock, no system call unless the peer sleeps.
func (d *domain) ask(p *peer, op *transport.Op, n int) error {
	c := d.callsWith(p)
	if c.n == maxCalls {
		return transport.ErrAgain
	}
	slot := 0
	for c.ops[slot] != nil {
		slot++
	}
	b := d.heap.request[:atomicHeader]
	binary.LittleEndian.PutUint64(b, c.gens[slot]*maxCalls+uint64(slot))
	binary.LittleEndian.PutUint64(b[8:], op.RemoteKey)
	binary.LittleEndian.PutUint64(b[16:], op.RemoteAddr)
	binary.LittleEndian.PutUint32(b[24:], uint32(n))
	b[28], b[29], b[30], b[31] = byte(op.Atomic), byte(op.Datatype), 0, 0
	if op.Fetch != nil {
		b[30] |= flagFetch
	}
	if op.Atomic != transport.AtomicRead {
		b[30] |= flagData
		b = append(b, op.Data...)
	}
	if op.Compare != nil {
		b[30] |= flagCompare
		b = append(b, op.Compare...)
	}
	if !d.post(p, kindAtomic, b) {
		if p.err != nil {
			return p.err
		}
		return transport.ErrAgain
	}
	c.ops[slot] = op
	c.n++
	return nil
}

// controlAtomic handles a control message of the kinds of atomics. Its error is a protocol
// error. b is valid during the call.
func (d *domain) controlAtomic(p *peer, kind uint8, b []byte) error {
	switch kind {
	case kindAtomic:
		return d.onAtomic(p, b)
	case kindAtomicDone:
		return d.onAtomicDone(p, b)
	}
	return protocolError(errKind)
}

// onAtomic applies a peer's atomic to this rank's memory and answers the peer.
//
// Hot path: no allocation, no lock, no system call unless the peer sleeps.
func (d *domain) onAtomic(p *peer, b []byte) error {
	if len(b) < atomicHeader {
		return protocolError(errAtomic)
	}
	x := &d.heap.served // cleared below
	flags, n := b[30], int(binary.LittleEndian.Uint32(b[24:]))
	*x = transport.Op{
		RemoteKey: binary.LittleEndian.Uint64(b[8:]), RemoteAddr: binary.LittleEndian.Uint64(b[16:]),
		Atomic: transport.AtomicOp(b[28]), Datatype: transport.Datatype(b[29]),
	}
	answer := d.heap.answer[:atomicDoneLen]
	copy(answer, b[:8])
	b = b[atomicHeader:]
	if n > atomicMax || flags > flagsAll {
		return protocolError(errAtomic)
	}
	for _, o := range [...]struct {
		flag byte
		to   *[]byte
	}{{flagData, &x.Data}, {flagCompare, &x.Compare}} {
		if flags&o.flag == 0 {
			continue
		}
		if len(b) < n {
			return protocolError(errAtomic)
		}
		*o.to, b = b[:n:n], b[n:]
	}
	if flags&flagFetch != 0 {
		answer = answer[:atomicDoneLen+n]
		x.Fetch = answer[atomicDoneLen:]
	}
	if _, err := d.ep.extentOf(x); err != nil || len(b) > 0 || x.RemoteKey&heapKey == heapKey {
		return protocolError(errAtomic) // a correct rank does not request an invalid atomic, nor one on the shared heap
	}
	clear(answer[8:])
	err := d.changeHere(d.local(d.self), x, n)
	*x = transport.Op{}
	if err != nil {
		answer = answer[:atomicDoneLen]
		answer[8] = refusal(err)
	}
	return d.reply(p, answer)
}

func refusal(err error) byte {
	for i, e := range refusals {
		if i > 0 && errors.Is(err, e) {
			return byte(i)
		}
	}
	return 1
}

// reply sends an answer to a peer. If the ring has no room, it queues the answer.
func (d *domain) reply(p *peer, answer []byte) error {
	c := d.callsWith(p)
	if len(c.answers) == 0 && d.post(p, kindAtomicDone, answer) || p.err != nil {
		return nil
	}
	if len(c.answers) == maxCalls {
		return protocolError(errCalls)
	}
	c.answers = append(c.answers, append([]byte(nil), answer...))
	d.heap.unanswered++
	return nil
}

// advanceAtomics sends queued answers. busy reports that some are left.
//
// Hot path: no allocation; a load if there is nothing to do.
func (d *domain) advanceAtomics() (busy bool) {
	if d.heap.unanswered == 0 {
		return false
	}
	for _, p := range d.locals {
		if p == nil || p.calls == nil {
			continue
		}
		for c := p.calls; len(c.answers) > 0 && d.post(p, kindAtomicDone, c.answers[0]); {
			c.answers = c.answers[1:]
			d.heap.unanswered--
		}
	}
	return d.heap.unanswered > 0
}

// onAtomicDone completes an atomic of this rank with a peer's answer.
//
// Hot path: no allocation, no lock, no system call.
func (d *domain) onAtomicDone(p *peer, b []byte) error {
	c := d.callsWith(p)
	if len(b) < atomicDoneLen {
		return protocolError(errAtomicDone)
	}
	id, status, fetched := binary.LittleEndian.Uint64(b), b[8], b[atomicDoneLen:]
	slot := id % maxCalls
	op := c.ops[slot]
	switch {
	case op == nil, c.gens[slot] != id/maxCalls, int(status) >= len(refusals),
		status == 0 && len(fetched) != len(op.Fetch), status != 0 && len(fetched) != 0:
		return protocolError(errAtomicDone)
	}
	copy(op.Fetch, fetched)
	c.ops[slot] = nil
	c.gens[slot] = (c.gens[slot] + 1) % (1 << 56)
	c.n--
	d.completed(op, d.atomicError(p, refusals[status]))
	return nil
}

// dropAtomics ends the atomics under way with a peer that is closed.
func (d *domain) dropAtomics(p *peer, err error) {
	if p.calls == nil {
		return
	}
	c := p.calls
	for slot, op := range c.ops {
		if op != nil {
			c.ops[slot] = nil
			d.completed(op, d.atomicError(p, err))
		}
	}
	d.heap.unanswered -= len(c.answers)
	c.n, c.answers = 0, nil
}
