package mpi

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"sync"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/stack"
	"github.com/weft-hpc/weft/internal/race"
)

// checker detects programs that use the buffer of an operation before the operation is complete.
// A rank has a checker if the tunable check is set, or if the program is built with -race.
// Otherwise the checker is nil. The methods of a nil checker and of a nil pending do nothing.
//
//	Isend ─► start ─► pending ───────────────────► end ◄── Wait
//	          │                                     │
//	   check: │ the buffers overlap none            │ the checksum is still the same
//	          │ of a pending operation;             │
//	          │ takes a checksum                    │
//	   -race: │ a goroutine reads the buffer        │ the reads happen before Wait returns
//
// With -race, a goroutine reads the buffer of a send, or writes the buffer of a receive. Nothing
// orders these accesses with the program's accesses between Isend and Wait. So the race detector
// reports every conflicting access, and names the line of Isend as the one that created the
// goroutine.
type checker struct {
	check bool // the tunable

	mu      sync.Mutex            // not held while the checker calls the engine: the engine calls end under the engine's lock
	pending map[*pending]struct{} // guarded by mu
	reads   ranges                // that pending operations read; only with check; guarded by mu
	writes  ranges                // that pending operations write; the same
	readers int                   // pending operations with a goroutine; guarded by mu
	sweepAt int                   // number of pending operations at which open calls sweep; guarded by mu
}

// pending is an operation that the program has started, and has not completed by Wait or
// Test. If the context of a blocking call ends and a transfer goes on, the operation is
// pending until [Unfinished.Wait] returns.
type pending struct {
	k             *checker
	name          string // of the call, such as "Isend"
	where         string // line of the program that makes the call, such as "main.go:18"; only with check
	blocking      bool
	reads, writes [][]byte
	writesClash   bool                 // open has found one of writes in use, not one of reads
	sum           uint64               // of reads; only with check
	held          []*memRange          // reads and writes in the checker's ranges; guarded by k.mu
	s             *state               // of the communicator; nil: the engine has not started the operation, or the call blocks; guarded by k.mu
	r             engine.Request       // the operation; guarded by k.mu
	unfinished    []*engine.Unfinished // transfers of a blocking call that go on; guarded by k.mu
	done          bool                 // end was called; guarded by k.mu
	stopReader    chan struct{}        // end closes it to end the goroutine of annotate; nil: no such goroutine runs; guarded by k.mu
	token         [1]byte              // race annotations on its address order the goroutine of annotate before end
}

// maxReaders is the maximum number of goroutines of annotate that stay alive until their operation
// ends. A goroutine must stay alive because the race detector soon forgets the accesses of a
// goroutine that has ended. The number is bounded because the race detector supports only a few
// thousand goroutines.
const maxReaders = 128

// minSweep is the lowest number of pending operations at which open calls sweep.
const minSweep = 64

var checkSeed = maphash.MakeSeed()

// newChecker returns the checker of a rank, or nil without the tunable check and without -race.
func newChecker(check bool) *checker {
	if !check && !race.Enabled {
		return nil
	}
	return &checker{check: check, sweepAt: minSweep}
}

// call records a blocking call that reads the buffer read and writes the buffer write.
//
// Hot path: no allocation without check and -race.
func (k *checker) call(name callName, read, write []byte) (*pending, error) {
	if k == nil {
		return nil, nil
	}
	return k.callOf(name, read, write)
}

func (k *checker) callOf(name callName, read, write []byte) (*pending, error) {
	return k.callWith(name.String(), [][]byte{read}, [][]byte{write})
}

func (k *checker) callWith(name string, reads, writes [][]byte) (*pending, error) {
	for _, b := range reads {
		race.Read(b)
	}
	for _, b := range writes {
		race.Write(b)
	}
	if !k.check {
		return nil, nil
	}
	p := &pending{k: k, name: name, blocking: true, reads: reads, writes: writes}
	return p, p.open()
}

// start records a nonblocking operation that reads the buffer read and writes the buffer write.
//
// Hot path: no allocation without check and -race.
func (k *checker) start(name callName, read, write []byte) (*pending, error) {
	if k == nil {
		return nil, nil
	}
	return k.startOf(name, read, write)
}

func (k *checker) startOf(name callName, read, write []byte) (*pending, error) {
	return k.startWith(name.String(), [][]byte{read}, [][]byte{write})
}

func (k *checker) startWith(name string, reads, writes [][]byte) (*pending, error) {
	p := &pending{k: k, name: name, reads: reads, writes: writes}
	if err := p.open(); err != nil {
		return nil, err
	}
	p.annotate()
	return p, nil
}

// open records the operation. If a pending operation uses its buffers, open returns ErrInUse instead.
func (p *pending) open() error {
	k := p.k
	if k.check {
		p.where = stack.ProgramLine()
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
		_ = other.end(ErrClosed) // if end gets an error, it compares no checksums
	}
}

// clash returns a pending operation that shares memory with p, if one of the two writes to
// that memory, and the error of p. It returns nil if there is no such operation. The caller
// holds k.mu.
func (k *checker) clash(p *pending) (*pending, error) {
	if !k.check {
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
func (k *checker) add(p *pending) {
	if k.pending == nil {
		k.pending = make(map[*pending]struct{})
	}
	k.pending[p] = struct{}{}
	if !k.check {
		return
	}
	for _, b := range p.reads {
		p.held = append(p.held, k.reads.add(b, p))
	}
	for _, b := range p.writes {
		p.held = append(p.held, k.writes.add(b, p))
	}
}

// sweepDue returns the pending operations if a sweep is due: their number has doubled since
// the last sweep. Otherwise it returns nil. The caller holds k.mu.
func (k *checker) sweepDue() []*pending {
	if len(k.pending) < k.sweepAt {
		return nil
	}
	k.sweepAt = 2 * len(k.pending) // so that no other goroutine sweeps now
	return slices.Collect(maps.Keys(k.pending))
}

// sweep ends the defunct operations of the list, because the program may never wait for them.
// So the number of pending operations is at most minSweep, or twice the number that the last
// sweep left. Finalize still reports the requests of the operations, because the engine
// counts them.
func (k *checker) sweep(operations []*pending) {
	if operations == nil {
		return
	}
	for _, p := range operations {
		if p.defunct() {
			_ = p.end(ErrClosed) // if end gets an error, it compares no checksums
		}
	}
	k.mu.Lock()
	k.sweepAt = max(minSweep, 2*len(k.pending))
	k.mu.Unlock()
}

// remove removes an operation and its buffers from k. The caller holds k.mu.
func (k *checker) remove(p *pending) {
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

// inUse returns the error of p if p shares memory with the buffer of the operation other. The
// caller holds k.mu.
func (p *pending) inUse(other *pending) error {
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

// began records the communicator, the engine request and the unfinished transfers of the operation.
func (p *pending) began(s *state, r engine.Request, unfinished ...*engine.Unfinished) {
	p.k.mu.Lock()
	p.s, p.r, p.unfinished = s, r, unfinished
	p.k.mu.Unlock()
}

// defunct reports whether the operation's communicator was revoked or freed and the
// operation has ended. Then the program may use the buffers again without a Wait.
func (p *pending) defunct() bool {
	p.k.mu.Lock()
	s, r, unfinished := p.s, p.r, p.unfinished
	p.k.mu.Unlock()
	if s == nil || !s.closed.Load() && s.p2p.Err() == nil || !r.Done() {
		return false
	}
	return !slices.ContainsFunc(unfinished, func(u *engine.Unfinished) bool { return !u.Done() })
}

func (p *pending) checksum() uint64 {
	var h maphash.Hash
	h.SetSeed(checkSeed)
	for _, b := range p.reads {
		_, _ = h.Write(b) // never fails
	}
	return h.Sum64()
}

// annotate starts a goroutine that reads or writes the buffers, so that the race detector
// sees the operation's accesses. The engine's writes to a receive's buffer happen after
// those of the goroutine, because the engine calls race.Acquire for the buffer when it has matched
// a message. If the engine may have done so already, the caller calls annotate again.
func (p *pending) annotate() {
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
	go func() { // ends when stop is closed: by the next annotate, end or checker.close, or at once if there are maxReaders; none of them waits for it
		race.Acquire(p.token[:]) // orders this goroutine after that of an earlier annotate
		for _, b := range p.reads {
			race.Read(b)
			race.Release(b)
		}
		for _, b := range p.writes {
			race.Write(b)
			race.Release(b)
		}
		race.Release(p.token[:])
		close(used)
		<-stop
	}()
	race.Await(used)
}

// received annotates a receive again, if the engine has matched r already. The caller calls received
// when it has started r.
func (p *pending) received(r engine.Request) {
	if race.Enabled && r.Done() { // the engine has acquired the buffer for this goroutine
		p.annotate()
	}
}

// endReader ends the goroutine of an earlier annotate.
func (p *pending) endReader() {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	p.endReaderLocked()
}

func (p *pending) endReaderLocked() {
	if p.stopReader != nil {
		close(p.stopReader)
		p.stopReader = nil
		p.k.readers--
	}
}

// end marks the operation as complete and returns its error: err, or ErrInUse if err is nil and
// the program has changed a buffer that the operation reads. A second end returns err.
//
// Hot path: no allocation for a nil pending.
func (p *pending) end(err error) error {
	if p == nil {
		return err
	}
	return p.finish(err)
}

func (p *pending) finish(err error) error {
	race.Acquire(p.token[:])
	k := p.k
	k.mu.Lock()
	again := p.done
	p.done = true
	p.endReaderLocked()
	k.remove(p)
	k.mu.Unlock()
	if again || err != nil || !k.check || p.sum == p.checksum() {
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

// close ends the goroutines of operations that the program has not completed.
func (k *checker) close() {
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

// buffers returns the memory that a collective reads and writes on this rank. If send and
// recv share memory, it returns recv alone.
func (l *link) buffers() (reads, writes [][]byte) {
	send, recv := [][]byte{l.send}, [][]byte{l.recv}
	switch l.what {
	case coll.KindBcast:
		if l.Rank() == l.root {
			send, recv = recv, nil
		}
	case coll.KindGatherv, coll.KindAllgatherv:
		recv = partsOf(l.recv, l.recvCounts, l.recvDispls)
	case coll.KindScatterv:
		send = partsOf(l.send, l.sendCounts, l.sendDispls)
	case coll.KindAlltoallv:
		send, recv = partsOf(l.send, l.sendCounts, l.sendDispls), partsOf(l.recv, l.recvCounts, l.recvDispls)
	default:
	}
	if elem.Overlap(l.send, l.recv) {
		send = nil
	}
	return send, recv
}

// partsOf returns the part of a buffer for each rank. It returns nil if buf is nil: this rank does
// not use the buffer.
func partsOf(buf []byte, counts, displs []int) [][]byte {
	if buf == nil {
		return nil
	}
	parts := make([][]byte, len(counts))
	for i, n := range counts {
		parts[i] = buf[displs[i]:][:n]
	}
	return parts
}

// startCollective is start for a nonblocking collective.
//
// Hot path: no allocation without check and -race.
func (k *checker) startCollective(l *link) (*pending, error) {
	if k == nil {
		return nil, nil
	}
	reads, writes := l.buffers()
	return k.startWith(l.name, reads, writes)
}

// acquire orders the goroutine of annotate before the collective's writes, for the race detector.
func (l *link) acquire() {
	if race.Enabled {
		_, writes := l.buffers()
		for _, b := range writes {
			race.Acquire(b)
		}
	}
}

// runChecked is run for a rank that has a checker.
func (l *link) runChecked(k *checker) error {
	reads, writes := l.buffers()
	p, err := k.callWith(l.name, reads, writes)
	defer func() { _ = p.end(nil) }() // also if an operation of the program ends the goroutine
	if err == nil {
		err = p.end(l.perform())
	}
	return l.end(err)
}
