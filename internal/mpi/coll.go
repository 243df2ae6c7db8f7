package mpi

import (
	"fmt"
	"math"
	"runtime/debug"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/calls"
)

// A collective has three steps, of which the first and the last are the same for its blocking and
// its nonblocking form. A function such as Comm.bcast checks the arguments and stores them in a
// link, as bytes. Then the function run performs the collective in the caller's goroutine, or
// Comm.spawn starts it in another goroutine. link.end finishes it.

// plan holds the checked arguments of a collective. Lengths, counts and displacements are in bytes.
type plan struct {
	what       coll.Kind // kind of the collective, by which execute selects the function of package coll
	send, recv []byte
	op         coll.Op // of reductions and scans; otherwise zero
	opID       int     // the number by which ranks compare op; see calls.Call
	root       int
	elem       int    // bytes per element
	typ        uint16 // type signature of an element; see elem.Signature

	sendCounts, sendDispls []int // of the parts of send, by rank; in scratch memory; nil: the call has none
	recvCounts, recvDispls []int // the same for recv

	// The views whose data send is a copy of, and those to which unpack copies recv; nil: there are
	// none; see coll_view.go.
	sendViews, recvViews []elem.Buffer

	inter bool // the call is between the groups of an intercommunicator; see coll_inter.go

	neighborPlan
}

// open starts a collective over elements of type t. If t cannot be sent, open ends the collective
// and returns its error.
func (c *Comm) open(name string, t *elem.Type) (*link, error) {
	l, err := c.begin(name)
	if err != nil {
		return nil, err
	}
	if t.Err != nil {
		return nil, l.end(t.Err)
	}
	l.elem, l.typ = t.Size, t.Sig
	return l, nil
}

// ready completes the start of a collective whose arguments are right: it sets the fingerprint, and
// calls requestArena. count is in bytes, as requestArena expects it.
func (l *link) ready(what coll.Kind, root, count int) (*link, error) {
	l.what, l.root = what, root
	l.sign(what, root, count)
	l.requestArena(count)
	if l.sendViews != nil {
		if err := l.pack(); err != nil {
			return l.refuse(err)
		}
	}
	return l, nil
}

// signature holds the properties of a call that must be the same on all ranks, and their
// fingerprint.
type signature struct {
	signed     calls.Call
	sig        uint16 // fingerprint of signed; 0: this link has run no call yet
	unrecorded bool   // recordCall has not yet put the field signed into state.called
}

// sign sets the properties of this call that must be the same on all ranks. Programs repeat calls,
// so sign computes the fingerprint only if the call differs from the last call of this link. count
// is in bytes.
//
// Hot path: no allocation.
func (l *link) sign(what coll.Kind, root, count int) {
	if call := (calls.Call{What: what, Root: root, Count: count, Elem: l.elem, Type: l.typ, OpID: l.opID}); l.sig == 0 || call != l.signed {
		l.signed, l.sig = call, call.Fingerprint()
	}
	l.env.Sig = l.sig
	l.unrecorded = true
}

// recordCall puts the call into state.called, where this rank finds it when a query of another rank
// arrives; see disagree.go. It leaves out CreateGroup, which has no number. A call in shared memory runs
// recordCall when it first waits for another rank, or when it ends, so that it does not delay the
// other ranks.
func (l *link) recordCall() {
	l.unrecorded = false
	if seq := l.env.Tag; seq <= seqMask {
		l.s.called.Put(calls.NewRecord(uint32(seq), l.env.Sig, &l.signed))
	}
}

// refuse ends a collective whose arguments are wrong, and returns the error of the call. err is the
// reason.
func (l *link) refuse(err error) (*link, error) { return nil, l.end(err) }

// run performs the collective of l in the caller's goroutine. If err is not nil, the collective has
// already ended with err, and run returns it.
func run(l *link, err error) error {
	if err != nil {
		return err
	}
	if k := l.s.check; k != nil {
		return l.runChecked(k)
	}
	return l.run()
}

// spawn performs the collective of l in another goroutine. If err is not nil, the collective has
// already ended with err, which the request returns.
func (c *Comm) spawn(l *link, err error) Request {
	if err != nil {
		return c.refused("", noRank, noRank, err)
	}
	s := l.s // only the other goroutine may use l after the call of Engine.Go
	p, err := l.checkStart()
	if err != nil {
		return c.refused("", noRank, noRank, l.end(err))
	}
	l.leave()
	r := s.job.eng.Go(l.task)
	return c.withPending(p, r).startedRequest(r, opCollective, noRank, noRank, 0)
}

func (l *link) run() error { return l.end(l.perform()) }

// perform runs the algorithm. If the program's reduction operation (OpFunc) panics, perform returns
// the panic as an error.
func (l *link) perform() error {
	if l.opID == calls.OpOfProgram {
		return l.performUserOp()
	}
	return l.execute()
}

// performUserOp is perform for a reduction operation of the program (OpFunc). If the operation
// calls runtime.Goexit, the callers of perform do not continue, so performUserOp itself ends the
// collective.
func (l *link) performUserOp() (err error) {
	returned := false
	defer func() {
		if p := recover(); p != nil {
			err = opError(p)
		} else if !returned {
			_ = l.end(fmt.Errorf("%w: %w", ErrOp, engine.ErrGoexit))
		}
	}()
	err = l.execute()
	returned = true
	return err
}

// execute runs the algorithm of the call: if l.shared is set, that of coll.Host, in memory that all
// ranks share; otherwise the one that package coll chooses.
func (l *link) execute() error {
	cfg := l.s.job.coll
	if l.wantsArena {
		if err := l.enterArena(); err != nil {
			return err
		}
		if l.shared {
			h := l.arena.Host
			h.Enter(l, l.env.Sig) // release calls TakePendingWake, which Enter requires
			switch l.what {
			case coll.KindBarrier:
				return h.Barrier(cfg)
			case coll.KindBcast:
				return h.Bcast(l.recv, l.root)
			case coll.KindReduce:
				return h.Reduce(cfg, l.send, l.recv, l.op, l.root)
			case coll.KindAllreduce:
				return h.Allreduce(cfg, l.send, l.recv, l.op)
			case coll.KindAllgather:
				return h.Allgather(l.send, l.recv)
			case coll.KindAlltoall:
				return h.Alltoall(l.send, l.recv)
			default:
			}
		}
	}
	if l.hood != nil && l.arena != nil {
		return l.exchange()
	}
	l.recordCall()
	switch {
	case l.hood != nil:
		return l.exchange()
	case l.inter:
		return l.executeInter()
	}
	switch l.what {
	case coll.KindBarrier:
		if l.s.id == finalID { // many of its ranks may never have connected with each other
			return coll.SparseBarrier(l)
		}
		return coll.Barrier(l, cfg)
	case coll.KindBcast:
		return coll.Bcast(l, cfg, l.recv, l.root)
	case coll.KindReduce:
		return coll.Reduce(l, cfg, l.send, l.recv, l.op, l.root)
	case coll.KindAllreduce:
		return coll.Allreduce(l, cfg, l.send, l.recv, l.op)
	case coll.KindGather:
		return coll.Gather(l, cfg, l.send, l.recv, l.root)
	case coll.KindGatherv:
		return coll.Gatherv(l, cfg, l.send, l.recv, l.recvCounts, l.recvDispls, l.root)
	case coll.KindScatter:
		return coll.Scatter(l, cfg, l.send, l.recv, l.root)
	case coll.KindScatterv:
		return coll.Scatterv(l, cfg, l.send, l.sendCounts, l.sendDispls, l.recv, l.root)
	case coll.KindAllgather:
		return coll.Allgather(l, cfg, l.send, l.recv)
	case coll.KindAllgatherv:
		return coll.Allgatherv(l, cfg, l.send, l.recv, l.recvCounts, l.recvDispls)
	case coll.KindAlltoall:
		return coll.Alltoall(l, cfg, l.send, l.recv)
	case coll.KindAlltoallv:
		return coll.Alltoallv(l, cfg, l.send, l.sendCounts, l.sendDispls, l.recv, l.recvCounts, l.recvDispls)
	case coll.KindReduceScatterBlock:
		return coll.ReduceScatterBlock(l, cfg, l.send, l.recv, l.op)
	case coll.KindReduceScatter:
		return coll.ReduceScatter(l, cfg, l.send, l.recv, l.recvCounts, l.op)
	case coll.KindScan:
		return coll.Scan(l, cfg, l.send, l.recv, l.op)
	case coll.KindExscan:
		return coll.Exscan(l, cfg, l.send, l.recv, l.op)
	}
	return fmt.Errorf("%w: collective %d", ErrNotSupported, l.what)
}

// opPanic is the value with which Shield panics after the program's operation has panicked.
// performUserOp recovers it, above the algorithm.
type opPanic struct {
	value any
	stack []byte
}

// Error returns the value of the panic and its stack.
func (p *opPanic) Error() string { return fmt.Sprintf("panic: %v\n%s", p.value, p.stack) }

// opError returns the error of the collective for p, which recover has returned, if p is an
// opPanic. Otherwise opError panics with p again.
func opError(p any) error {
	op, ok := p.(*opPanic)
	if !ok {
		panic(p)
	}
	return fmt.Errorf("%w: %w", ErrOp, op)
}

// Shield calls f, which runs the program's function of a reduction operation. If f panics, the
// collective returns ErrOp with the value and the stack of the panic.
func Shield(f func()) {
	defer func() {
		if p := recover(); p != nil {
			panic(&opPanic{value: p, stack: debug.Stack()})
		}
	}()
	f()
}

// checkRoot returns ErrRank if the communicator does not have the rank root.
func (l *link) checkRoot(root int) error {
	if uint(root) >= uint(l.Size()) {
		return fmt.Errorf("%w: root %d in a communicator of %d ranks", ErrRank, root, l.Size())
	}
	return nil
}

// checkPair checks that the send and receive slices have the same length, and that they are the
// same slice or do not overlap.
func (l *link) checkPair(send, recv []byte) error {
	if len(send) != len(recv) {
		return l.wrongCount("recv", len(recv), len(send))
	}
	if elem.Overlap(send, recv) && !elem.SameStart(send, recv) {
		return ErrBuffer
	}
	return nil
}

// checkBlocks checks that the slice all consists of equal blocks, one for each rank. name is the
// name of the argument in errors.
func (l *link) checkBlocks(name string, all []byte) error {
	if size := max(l.elem, 1); len(all)/size%l.Size() != 0 {
		return fmt.Errorf("%w: %s has %d elements, which is not a multiple of %d ranks", ErrCount, name, len(all)/size, l.Size())
	}
	return nil
}

// ownBlock does what ownPart does, for a slice all that consists of equal blocks, one for each
// rank, of which the own part is the block of rank. It also checks the length of all. name and
// allName are the names of the arguments part and all in errors.
func (l *link) ownBlock(name string, part []byte, allName string, all []byte, rank int) ([]byte, error) {
	inPlace := elem.SameStart(part, all) && len(part) == len(all)
	if n := l.Size(); !inPlace && len(all) != n*len(part) {
		size := max(l.elem, 1)
		return nil, fmt.Errorf("%w: %s has %d elements and %s has %d: %d ranks × %d of %s are %d", ErrCount,
			name, len(part)/size, allName, len(all)/size, n, len(part)/size, name, n*len(part)/size)
	}
	if err := l.checkBlocks(allName, all); err != nil {
		return nil, err
	}
	block := len(all) / l.Size()
	return l.ownPart(name, part, all, rank*block, block)
}

// ownPart checks part, the argument for the rank's own part all[at:at+n] of a slice of all parts.
// part must be that own part itself, or all (which stands for the own part), or a slice of n bytes
// that does not overlap all. ownPart returns the n bytes that the collective uses. name is the name
// of the argument part in errors.
func (l *link) ownPart(name string, part, all []byte, at, n int) ([]byte, error) {
	own := all[at : at+n]
	if elem.SameStart(part, all) && len(part) == len(all) {
		return own, nil
	}
	if len(part) != n {
		size := max(l.elem, 1)
		return nil, fmt.Errorf("%w: %s has %d elements, and the counts give this rank %d", ErrCount, name, len(part)/size, n/size)
	}
	if elem.Overlap(part, all) && !elem.SameStart(part, own) {
		return nil, ErrBuffer
	}
	return part, nil
}

// layout checks the counts and displacements of the n parts of buf, one for each rank or neighbour; peer
// says which of the two. They are
// in elements; layout returns them in bytes, in scratch memory. If displs is nil, the parts follow
// each other and must fill buf. layout does not check whether parts overlap. name is the name of
// buf in errors.
func (l *link) layout(name string, buf []byte, counts, displs []int, n int, peer string) (cb, db []int, err error) {
	size := l.elem
	have := math.MaxInt // number of elements of buf; for elements of size 0 any number fits
	if size > 0 {
		have = len(buf) / size
	}
	if len(counts) != n {
		return nil, nil, fmt.Errorf("%w: %d counts for %s and %d %ss", ErrCount, len(counts), name, n, peer)
	}
	if displs != nil && len(displs) != n {
		return nil, nil, fmt.Errorf("%w: %d displacements for %s and %d %ss", ErrCount, len(displs), name, n, peer)
	}
	words := elem.Slice[int](l.Scratch(2 * n * elem.SizeOf[int]()))
	cb, db = words[:n:n], words[n:]
	next := 0
	for i, c := range counts {
		at := next
		if displs != nil {
			at = displs[i]
		}
		if c < 0 || at < 0 || c > have || at > have-c {
			return nil, nil, fmt.Errorf("%w: the part of %s %d, %d elements from %d on, is not within %s of %d", ErrCount, peer, i, c, at, name, have)
		}
		cb[i], db[i] = c*size, at*size
		next = at + c
	}
	if displs == nil && next != have && size > 0 {
		return nil, nil, fmt.Errorf("%w: %s has %d elements, and the counts add up to %d", ErrCount, name, have, next)
	}
	return cb, db, nil
}

// wrongCount returns the error of a slice or part that has have bytes instead of want. The text
// counts elements. name is the name of the slice or part in the text.
func (l *link) wrongCount(name string, have, want int) error {
	size := max(l.elem, 1)
	return fmt.Errorf("%w: %s has %d elements, not %d", ErrCount, name, have/size, want/size)
}
