// Package bufcheck detects programs that use the buffer of an operation before the operation is
// complete.
package bufcheck

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"sync"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/race"
)

// ErrInUse is the error of an operation whose buffer shares memory with that of a pending
// operation, if one of the two writes the memory. It is also the error of a send whose buffer has
// changed before the send was complete. Only a Checker with Config.Check returns it.
var ErrInUse = errors.New("buffer is in use")

// Checker holds the operations of a rank that are not complete, with their buffers. A nil Checker
// checks nothing: only its Close may be called. Of a nil [Operation], only End may be called and,
// in a program built without -race, Received.
//
//	Isend ─► Start ─► Operation ─────────────────► End ◄── Wait
//	          │                                     │
//	   Check: │ no pending operation uses           │ the checksum is still the same
//	          │ the buffers (see clash);            │
//	          │ takes a checksum                    │
//	   -race: │ a goroutine reads the buffer        │ the reads happen before Wait returns
//
// With -race, a goroutine reads the buffer of a send, or writes the buffer of a receive; of a long
// buffer, only the first part (see race.Read). Nothing orders these accesses with the program's
// accesses between Isend and Wait. So the race detector reports conflicting accesses, and names the
// line of Isend as the one that created the goroutine.
type Checker struct {
	cfg Config

	// mu is not held while the checker calls the engine, because WaitAll calls End while it holds
	// the engine's lock.
	mu      sync.Mutex
	pending map[*Operation]struct{} // guarded by mu
	// The memory that pending operations read, and the memory that they write; empty without
	// Config.Check; guarded by mu.
	reads   ranges
	writes  ranges
	readers int // number of operations whose stopReader is not nil; guarded by mu
	// The number of pending operations from which on sweepDue returns the operations; guarded by
	// mu.
	sweepAt int
}

// Config says what a Checker checks.
type Config struct {
	// If Check is set, the checker compares the buffers of operations, and their checksums.
	// Otherwise it only reports the accesses to the race detector.
	Check bool
	// Line returns the line of the program that makes the current call, such as "main.go:18". The
	// checker calls it only if Check is set.
	Line func() string
}

// Comm is the communicator of an operation, as far as a Checker needs it.
type Comm interface {
	// Defunct reports whether the communicator was revoked or freed.
	Defunct() bool
}

// Operation is the checker's record of an operation. It is pending until End is called: for a
// nonblocking operation in Wait or Test, for a blocking call before it returns. If a blocking call
// returns while a transfer goes on, its operation is pending until Wait of the Unfinished of
// package mpi in its error returns.
type Operation struct {
	k    *Checker
	name string // of the call, such as "Isend"
	// The line of the program that makes the call, such as "main.go:18"; empty without
	// Config.Check.
	where         string
	blocking      bool     // the call blocks
	reads, writes [][]byte // the buffers of the operation
	writesClash   bool     // [Operation.open] found that a buffer in writes is in use
	sum           uint64   // checksum of reads; only with Config.Check
	// The ranges of reads and then of writes, in Checker.reads and Checker.writes; nil after End;
	// guarded by k.mu.
	held []*memRange
	// The communicator. It is nil if Began was not called, for example because the call blocks;
	// guarded by k.mu.
	comm       Comm
	r          engine.Request       // the engine's request of a nonblocking operation, or zero; guarded by k.mu
	unfinished []*engine.Unfinished // transfers of a blocking call that go on; guarded by k.mu
	done       bool                 // End was called; guarded by k.mu
	// endReader closes stopReader to end the goroutine that annotate has started. nil: no such
	// goroutine waits for that; guarded by k.mu.
	stopReader chan struct{}
	// Race annotations on the address of token make End happen after the accesses of the goroutine
	// that annotate has started.
	token [1]byte
}

// maxReaders is the maximum number of goroutines started by annotate that stay alive until their
// operation ends. A goroutine must stay alive because the race detector soon forgets the accesses
// of a goroutine that has ended. The number is bounded because the race detector supports only a
// few thousand goroutines.
const maxReaders = 128

// MinSweep is the lowest number of pending operations at which the checker looks for operations
// that have ended, and whose communicator was revoked or freed, so that the program may never wait
// for them.
const MinSweep = 64

var checkSeed = maphash.MakeSeed()

// New returns a checker, or nil if cfg.Check is not set and the program is built without -race.
func New(cfg Config) *Checker {
	if !cfg.Check && !race.Enabled {
		return nil
	}
	return &Checker{cfg: cfg, sweepAt: MinSweep}
}

// Call records a blocking call with this name, which reads and writes these buffers. If a pending
// operation uses one of the buffers (see [ErrInUse]), Call returns ErrInUse, and an Operation that
// is not pending, for [Operation.WritesClash]. Without Config.Check, Call only reports the accesses
// to the race detector, and returns a nil Operation.
func (k *Checker) Call(name string, reads, writes [][]byte) (*Operation, error) {
	for _, b := range reads {
		race.Read(b)
	}
	for _, b := range writes {
		race.Write(b)
	}
	if !k.cfg.Check {
		return nil, nil
	}
	p := &Operation{k: k, name: name, blocking: true, reads: reads, writes: writes}
	return p, p.open()
}

// Start records a nonblocking operation with this name, which reads and writes these buffers. If a
// pending operation uses one of the buffers (see [ErrInUse]), Start returns ErrInUse and a nil
// Operation.
func (k *Checker) Start(name string, reads, writes [][]byte) (*Operation, error) {
	p := &Operation{k: k, name: name, reads: reads, writes: writes}
	if err := p.open(); err != nil {
		return nil, err
	}
	p.annotate()
	return p, nil
}

// open records the operation. If clash finds a pending operation, open returns ErrInUse instead,
// unless that operation is defunct; a defunct one it ends.
func (p *Operation) open() error {
	k := p.k
	if k.cfg.Check {
		p.where = k.cfg.Line()
		p.sum = p.checksum()
	}
	for {
		k.mu.Lock()
		other, inUse := k.clash(p)
		if other == nil {
			k.add(p)
			due := k.sweepDue()
			k.mu.Unlock()
			k.sweep(due)
			return nil
		}
		k.mu.Unlock()
		if !other.defunct() {
			return inUse
		}
		_ = other.End(engine.ErrClosed) // with an error, so that End compares no checksums
	}
}

// clash returns a pending operation that shares memory with p, if one of the two writes to that
// memory, and the error for p. If there is no such operation, or without Config.Check, it returns
// nil. The caller holds k.mu.
func (k *Checker) clash(p *Operation) (*Operation, error) {
	if !k.cfg.Check {
		return nil, nil
	}
	for _, b := range p.writes {
		if r := cmp.Or(k.reads.find(b), k.writes.find(b)); r != nil {
			p.writesClash = true
			return r.owner, p.inUse(r.owner)
		}
	}
	for _, b := range p.reads {
		if r := k.writes.find(b); r != nil {
			p.writesClash = false
			return r.owner, p.inUse(r.owner)
		}
	}
	return nil, nil
}

// add adds an operation and its buffers to k. The caller holds k.mu.
func (k *Checker) add(p *Operation) {
	if k.pending == nil {
		k.pending = make(map[*Operation]struct{})
	}
	k.pending[p] = struct{}{}
	if !k.cfg.Check {
		return
	}
	for _, b := range p.reads {
		p.held = append(p.held, k.reads.add(b, p))
	}
	for _, b := range p.writes {
		p.held = append(p.held, k.writes.add(b, p))
	}
}

// sweepDue returns the pending operations if a sweep is due, because their number has reached
// sweepAt. Otherwise it returns nil. The caller holds k.mu.
func (k *Checker) sweepDue() []*Operation {
	if len(k.pending) < k.sweepAt {
		return nil
	}
	k.sweepAt = 2 * len(k.pending) // so that no other goroutine sweeps now
	return slices.Collect(maps.Keys(k.pending))
}

// sweep ends those of the operations that are defunct, because the program may never wait for them.
// So the number of pending operations is at most MinSweep or twice the number that the last sweep
// left, whichever is larger. Finalize still reports the requests of the operations, because the
// engine counts them.
func (k *Checker) sweep(operations []*Operation) {
	if operations == nil {
		return
	}
	for _, p := range operations {
		if p.defunct() {
			_ = p.End(engine.ErrClosed) // with an error, so that End compares no checksums
		}
	}
	k.mu.Lock()
	k.sweepAt = max(MinSweep, 2*len(k.pending))
	k.mu.Unlock()
}

// remove removes an operation and its buffers from k. The caller holds k.mu.
func (k *Checker) remove(p *Operation) {
	delete(k.pending, p)
	for i, r := range p.held {
		if i < len(p.reads) {
			k.reads.remove(r)
		} else {
			k.writes.remove(r)
		}
	}
	p.held = nil
}

// inUse returns the error of p, which shares memory with a buffer of the pending operation other.
// The caller holds k.mu.
func (p *Operation) inUse(other *Operation) error {
	advice := "wait for that request first, or use other memory"
	switch {
	case other.unfinished != nil:
		advice = "call Wait of the Unfinished in its error first, or use other memory"
	case other.blocking:
		advice = "another goroutine is in that call: use other memory"
	}
	return fmt.Errorf("%w: %s at %s has memory in common with the buffer of %s at %s, which is not complete; %s",
		ErrInUse, p.name, p.where, other.name, other.where, advice)
}

// WritesClash reports whether p got ErrInUse because of a buffer that it writes. If not, it was
// because of a buffer that it reads.
func (p *Operation) WritesClash() bool { return p.writesClash }

// Began records the communicator of the operation, its engine request, and the transfers that go on
// after a blocking call. By these the checker finds out whether the operation is defunct.
func (p *Operation) Began(c Comm, r engine.Request, unfinished ...*engine.Unfinished) {
	p.k.mu.Lock()
	p.comm, p.r, p.unfinished = c, r, unfinished
	p.k.mu.Unlock()
}

// defunct reports whether the operation's communicator was revoked or freed and the operation and
// its transfers have ended. Then the program may use the buffers again without a Wait.
func (p *Operation) defunct() bool {
	p.k.mu.Lock()
	c, r, unfinished := p.comm, p.r, p.unfinished
	p.k.mu.Unlock()
	if c == nil || !c.Defunct() || !r.Done() {
		return false
	}
	return !slices.ContainsFunc(unfinished, func(u *engine.Unfinished) bool { return !u.Done() })
}

// checksum returns a hash of the contents of the buffers that the operation reads.
func (p *Operation) checksum() uint64 {
	var h maphash.Hash
	h.SetSeed(checkSeed)
	for _, b := range p.reads {
		_, _ = h.Write(b) // never fails
	}
	return h.Sum64()
}

// annotate starts a goroutine that reads or writes the buffers, so that the race detector sees the
// operation's accesses. In the view of the race detector, the engine's writes to a receive's buffer
// happen after those of the goroutine, because the engine calls race.Acquire for the buffer when it
// has matched a message. If the engine may have called it before the goroutine wrote the buffer,
// Received calls annotate again. Without -race, annotate does nothing.
func (p *Operation) annotate() {
	if !race.Enabled {
		return
	}
	p.endReader()
	stop := make(chan struct{})
	p.k.mu.Lock()
	if p.k.readers < maxReaders {
		p.k.readers++
		p.stopReader = stop
	} else {
		close(stop)
	}
	p.k.mu.Unlock()
	used := make(chan struct{})
	// The goroutine ends when stop is closed: by the next call of annotate, by End or by
	// Checker.Close, which do not wait for the goroutine, or above if there are maxReaders such
	// goroutines.
	go func() {
		race.Acquire(p.token[:]) // orders this goroutine after that of an earlier call of annotate for p
		for _, b := range p.reads {
			race.Read(b)
		}
		for _, b := range p.writes {
			race.Write(b)
		}
		// Last, because the address of the first part of a view stands for all its parts.
		for _, b := range p.reads {
			race.Release(b)
		}
		for _, b := range p.writes {
			race.Release(b)
		}
		race.Release(p.token[:])
		close(used)
		<-stop
	}()
	race.Await(used)
}

// Received calls annotate again for a receive, if r is already complete. The caller calls Received
// when it has started r.
func (p *Operation) Received(r engine.Request) {
	// If r is complete, the engine has called race.Acquire for the buffer, perhaps before the
	// goroutine of annotate wrote the buffer.
	if race.Enabled && r.Done() {
		p.annotate()
	}
}

// endReader ends the goroutine that an earlier call of annotate has started for p, if it is alive.
func (p *Operation) endReader() {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	p.endReaderLocked()
}

// endReaderLocked is endReader for a caller that holds k.mu.
func (p *Operation) endReaderLocked() {
	if p.stopReader != nil {
		close(p.stopReader)
		p.stopReader = nil
		p.k.readers--
	}
}

// End marks the operation as complete and returns its error: err, or ErrInUse if err is nil and
// the program has changed a buffer that the operation reads. A second End returns err.
//
// Hot path: no allocation for a nil Operation.
func (p *Operation) End(err error) error {
	if p == nil {
		return err
	}
	return p.finish(err)
}

// finish is End for an operation that is not nil. It is a function of its own, so that the compiler
// inlines End.
func (p *Operation) finish(err error) error {
	race.Acquire(p.token[:])
	k := p.k
	k.mu.Lock()
	again := p.done
	p.done = true
	p.endReaderLocked()
	k.remove(p)
	k.mu.Unlock()
	if again || err != nil || !k.cfg.Check || p.sum == p.checksum() {
		return err
	}
	until := "Wait"
	switch {
	case p.unfinished != nil:
		until = "Unfinished.Wait"
	case p.blocking:
		until = "it"
	}
	return fmt.Errorf("%w: the buffer of %s at %s was changed before %s returned, so wrong data may have been sent; change the buffer later, or send a copy",
		ErrInUse, p.name, p.where, until)
}

// Close drops the pending operations and ends their goroutines.
func (k *Checker) Close() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for p := range k.pending {
		p.endReaderLocked()
		p.held = nil
	}
	k.pending, k.reads, k.writes = nil, ranges{}, ranges{}
}

// Pending returns the names of the calls of the pending operations, for tests.
func (k *Checker) Pending() (names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for p := range k.pending {
		names = append(names, p.name)
	}
	return names
}
