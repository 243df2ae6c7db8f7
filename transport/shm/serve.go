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
//	                 │ id    │ status │ fetch │   status  0, or why it was refused
//	                 └───────┴────────┴───────┘   fetch   what the elements were, where asked for
//
// data is missing in a read, compare unless the operation compares. A rank has
// at most maxCalls of them under way with a peer, so the peer, where its ring to
// the rank is full, remembers at most as many answers.

// The kinds of control messages of atomics; the heap has 48 to 63.
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

// Why atomics are refused, by status; one that is another too comes before it.
var refusals = [...]error{nil, transport.ErrKey, errUnaligned, transport.ErrBounds, transport.ErrAccess}

var (
	errAtomic     = errors.New("an atomic that there is not, or of another length than it says")
	errAtomicDone = errors.New("an answer to no atomic, or one that does not fit it")
	errCalls      = errors.New("more atomics at once than there may be")
)

// calls are this rank's atomics under way with one peer, and its answers to
// that peer which have found no room.
type calls struct {
	ops     [maxCalls]*transport.Op // nil: free
	gens    [maxCalls]uint64
	n       int // of ops
	answers [][]byte
}

// callsWith returns the calls with a peer, and makes them at the first use.
func (d *domain) callsWith(p *peer) *calls {
	if p.calls == nil {
		p.calls = &calls{}
	}
	return p.calls
}

// ask sends an atomic to the owner of the memory.
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

// controlAtomic acts on a control message of the kinds of atomics; an error is
// a breach of the protocol. b is valid during the call.
func (d *domain) controlAtomic(p *peer, kind uint8, b []byte) error {
	switch kind {
	case kindAtomic:
		return d.onAtomic(p, b)
	case kindAtomicDone:
		return d.onAtomicDone(p, b)
	}
	return protocolError(errKind)
}

// onAtomic applies a peer's atomic to this rank's memory and answers.
//
// Hot path: no allocation, no lock, no system call unless the peer sleeps.
func (d *domain) onAtomic(p *peer, b []byte) error {
	if len(b) < atomicHeader {
		return protocolError(errAtomic)
	}
	x := &d.heap.served // of which nothing stays
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
		return protocolError(errAtomic) // it asks nobody for what it cannot do, or can do itself
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

// reply answers a peer, later where there is no room now.
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

// advanceAtomics sends answers that found no room. busy says that some are left.
//
// Hot path: no allocation; a load where there is nothing to do.
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

// onAtomicDone ends an atomic of ours.
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

// dropAtomics ends what is under way with a peer that is down.
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
