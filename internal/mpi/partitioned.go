package mpi

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"sync"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/arena"
	"github.com/weft-hpc/weft/internal/mpi/bufcheck"
)

// Partitioned communication (MPI 4.1 §4)
//
// The buffer of a send has partitions, which the program makes ready one by one, also on several
// goroutines. The receiver may divide its buffer into another number of partitions.
//
// PsendInit sends the receiver an offer: the number and the length of the sender's partitions, and
// the tag of the first message. PrecvInit posts the receive for the offer. Offers match in the
// order of these calls, as messages do. Each round has the same messages, with the same tags. If
// the transport can read a long buffer of the sender by RMA, the round is one partitioned message
// of the engine (internal/engine/partitioned.go). Otherwise each partition is a message:
//
//	sender                                     receiver
//	PsendInit ── offer, tag of the program ──► PrecvInit
//	Start                                      Start: waits for the offer on another goroutine (only
//	Ready(i) ─── partition i, tag base+i ────►        the first time), posts a receive per partition
//	Wait                                              of the sender
//	                                           Arrived(i): the receives that overlap its partition i
//
// The sender decides between the two, and the offer says which it is.
//
// Offers and partitions travel in separate contexts, so that no other receive matches them. The
// contexts belong to a second state of the communicator, which exists only for this purpose
// (state.partitions).

// partitionsBit is set in the id of a state that exists for partitioned communication. Of the other
// ids, only agreeID and finalID have this bit set. Nearly all of their lower bits are set too, so
// they differ from the ids of these states.
const partitionsBit = 1 << 61

// offerBytes is the length of an offer: the number of partitions, their length in bytes, the tag of
// the first message, and 1 if a round is one message.
const offerBytes = 32

// maxEmpty is the maximum number of partitions in an offer whose partitions have no data, and the
// maximum number of messages that PartRecv.refuse receives. The receiver allocates a request for each
// of them, and the length of its buffer does not limit their number.
const maxEmpty = 1 << 20

// partitions returns the state whose contexts carry partitioned messages. The first call makes it.
func (s *state) partitions() *state {
	s.partMu.Lock()
	defer s.partMu.Unlock()
	if s.parts == nil {
		p := s.newStateFor(s.id | partitionsBit)
		p.arena.Store(arena.None) // it does no collectives
		p.p2p.HideLeftovers()     // offers that no operation has received
		p.coll.HideLeftovers()
		s.parts = p
	}
	return s.parts
}

// closePartitions closes the state that partitions has made, if there is one.
func (s *state) closePartitions() {
	s.partMu.Lock()
	p := s.parts
	s.parts = nil
	s.partMu.Unlock()
	if p != nil {
		p.abandon()
	}
}

// partitioned is what PartSend and PartRecv have in common.
type partitioned struct {
	c         *Comm
	s         *state // see partitions
	mem       []byte // the buffer
	sig       uint16 // type signature of its elements
	peer, tag int
	member    int // the rank of peer in state.group: of an intercommunicator, that has both groups
	parts     int // number of partitions of this rank
	bytes     int // length of one partition
	active    atomic.Bool
	// The state of the single message of a round; nil: each partition of the sender is a message.
	single *engine.Partitions
	reqs   []engine.Request // by message of a round
	ended  []bool           // by message: wait has returned its result; only wait uses it
	// Of a send: the checker's records that the partitions are in use; nil without a checker.
	uses []*bufcheck.Operation
}

// init checks the arguments of the call with this name, and stores the arguments in p.
func (p *partitioned) init(c *Comm, name string, b elem.Buffer, parts, peer, tag int) error {
	s, err := c.checkSend(b.Type, peer, tag) // a receive has one peer and one tag too
	if err == nil && (parts < 1 || b.Count%parts != 0 || parts > MaxTag || b.Count == 0 && parts > maxEmpty) {
		err = fmt.Errorf("%w: %d elements in %d partitions", ErrCount, b.Count, parts)
	}
	if err != nil {
		return c.fail(name, peer, tag, err)
	}
	p.c, p.s, p.peer, p.tag, p.member = c, s.partitions(), peer, tag, peer
	if s.inter != nil && peer != ProcNull {
		p.member += s.inter.Remote.First
	}
	p.mem, p.sig, p.parts = b.Bytes(), b.Type.Sig, parts
	p.bytes = len(p.mem) / parts
	return nil
}

func (p *partitioned) fail(op string, err error) error { return p.c.fail(op, p.peer, p.tag, err) }

// nilOperation returns the error of a call for an operation that does not exist.
func nilOperation(op string) error {
	return &Error{Op: op, Peer: noRank, Tag: noRank, Err: fmt.Errorf("%w: the operation is nil or freed", ErrArg)}
}

// start makes the operation active.
func (p *partitioned) start() error {
	if p.c == nil {
		return nilOperation("Start")
	}
	if _, err := p.c.live(); err != nil {
		return p.fail("Start", err)
	}
	if !p.active.CompareAndSwap(false, true) {
		return p.fail("Start", fmt.Errorf("%w: the operation is active: wait for it before it is started again", ErrArg))
	}
	return nil
}

// index returns an error unless i is a partition of an active operation.
func (p *partitioned) index(op string, i int) error {
	switch {
	case p.c == nil:
		return nilOperation(op)
	case i < 0 || i >= p.parts:
		return p.fail(op, fmt.Errorf("%w: partition %d of %d", ErrArg, i, p.parts))
	case !p.active.Load():
		return p.fail(op, fmt.Errorf("%w: the operation is not active: start it first", ErrArg))
	}
	return nil
}

// wait waits for the requests of a round and frees them. If the context ends first, wait returns
// the error of the context, and the operation stays active. For a receive, want is the length in
// bytes of each message. For a send, want is -1.
func (p *partitioned) wait(want int) error {
	var first error
	left := false
	if p.ended == nil {
		p.ended = make([]bool, len(p.reqs))
	}
	// Arrived may read reqs meanwhile, so they stay as they are.
	engine.WaitEach(len(p.reqs), func(i int) (engine.Request, context.Context) {
		if p.ended[i] {
			return engine.Request{}, nil
		}
		return p.reqs[i], p.c.ctx
	},
		func(i int, st engine.Status, done bool, err error) {
			if err == nil && want >= 0 && st.Bytes != want {
				err = fmt.Errorf("%w: message %d of the partitions has %d bytes, not %d", ErrCount, i, st.Bytes, want)
			}
			switch {
			case !done || p.uses == nil:
			case p.single == nil:
				err = p.uses[i].End(err)
			default:
				for _, use := range p.uses {
					err = use.End(err)
				}
			}
			if first == nil {
				first = err
			}
			p.ended[i] = done
			left = left || !done
		})
	for i, use := range p.uses {
		if p.single == nil && p.reqs[i] == (engine.Request{}) { // the send had ended when Ready returned, so WaitEach skips it
			if err := use.End(nil); first == nil {
				first = err
			}
		}
	}
	if !left {
		clear(p.ended)
		p.active.Store(false)
	}
	if first != nil {
		return p.fail("Wait", first)
	}
	return nil
}

func (p *partitioned) free() error {
	if p.c == nil {
		return nil
	}
	if p.active.Load() {
		return p.fail("Free", fmt.Errorf("%w: the operation is active: wait for it first", ErrArg))
	}
	p.c, p.reqs = nil, nil
	return nil
}

// PartSend is the type behind comm.PartSend.
type PartSend struct {
	partitioned
	base  int           // tag of the first message
	ready []atomic.Bool // by partition: the program has called Ready since Start
	left  atomic.Int32  // number of partitions that are not ready, or that the engine does not know to be ready
	all   chan struct{} // has capacity 1; Ready sends a value when left is 0
	given bool          // Wait has received that value
}

// PsendInit implements comm.PsendInit, which documents the call.
func (c *Comm) PsendInit(b elem.Buffer, parts, dest, tag int) (*PartSend, error) {
	p := &PartSend{all: make(chan struct{}, 1)}
	if err := p.init(c, "PsendInit", b, parts, dest, tag); err != nil {
		return nil, err
	}
	p.ready = make([]atomic.Bool, parts)
	messages, single := parts, 0
	if dest != ProcNull && parts > 1 && p.s.coll.Pulls(p.member, parts, p.bytes) {
		messages, single = 1, 1
		p.single = engine.NewPartitions(parts, p.bytes)
	}
	p.reqs = make([]engine.Request, messages)
	end := p.s.nextPart.Add(int64(messages))
	if end > MaxTag {
		p.s.nextPart.Add(-int64(messages))
		return nil, p.fail("PsendInit", fmt.Errorf("%w: the partitioned sends of the communicator need %d messages, and may have %d", ErrArg, end, MaxTag))
	}
	p.base = int(end) - messages
	if dest != ProcNull && p.s.check != nil {
		p.uses = make([]*bufcheck.Operation, parts)
	}
	if dest != ProcNull {
		offer := make([]byte, 0, offerBytes)
		for _, v := range []int{parts, p.bytes, p.base, single} {
			offer = binary.LittleEndian.AppendUint64(offer, uint64(v))
		}
		p.s.p2p.SendBuffered(offer, engine.Env{Peer: dest, Tag: tag})
	}
	return p, nil
}

// Start implements comm.PartSend.Start, which documents the call.
func (p *PartSend) Start() error {
	if p == nil {
		return nilOperation("Start")
	}
	if err := p.start(); err != nil {
		return err
	}
	for i := range p.ready {
		p.ready[i].Store(false)
	}
	p.given = false
	if p.single != nil {
		p.reqs[0] = p.s.coll.IsendPartitioned(p.mem, engine.Env{Peer: p.member, Tag: p.base, Sig: p.sig}, p.single)
	}
	p.left.Store(int32(p.parts))
	return nil
}

// Ready implements comm.PartSend.Ready, which documents the call.
//
// Hot path: no allocation without check and -race.
func (p *PartSend) Ready(i int) error {
	if p == nil {
		return nilOperation("Ready")
	}
	if err := p.index("Ready", i); err != nil {
		return err
	}
	if !p.ready[i].CompareAndSwap(false, true) {
		return p.fail("Ready", fmt.Errorf("%w: partition %d is ready already", ErrArg, i))
	}
	if p.peer != ProcNull {
		part := p.mem[i*p.bytes : (i+1)*p.bytes]
		if p.uses != nil {
			var err error
			if p.uses[i], err = p.s.check.Start("Ready", [][]byte{part}, nil); err != nil {
				p.ready[i].Store(false)
				return p.fail("Ready", err)
			}
		}
		message := 0
		if p.single != nil {
			p.reqs[0].Ready(i)
		} else {
			message = i
			p.reqs[i] = p.s.coll.Isend(part, engine.Env{Peer: p.member, Tag: p.base + i, Sig: p.sig})
		}
		if p.uses != nil {
			p.uses[i].Began(p.s, p.reqs[message])
		}
	}
	if p.left.Add(-1) == 0 {
		p.all <- struct{}{}
	}
	return nil
}

// Wait implements comm.PartSend.Wait, which documents the call.
func (p *PartSend) Wait() error {
	if p == nil || !p.active.Load() {
		return nil
	}
	t := p.c.timing()
	if !p.given {
		select {
		case <-p.all: // even if the context has ended
		default:
			select {
			case <-p.all:
			case <-p.c.Context().Done():
				return p.fail("Wait", p.c.Context().Err())
			}
		}
		p.given = true
	}
	return p.waited(&t, -1)
}

// waited calls wait, and records the call, which began at t.
func (p *partitioned) waited(t *timing, n int) error {
	err := p.wait(n)
	if err == nil {
		t.end(opWait, p.peer, noRank, len(p.mem))
	}
	return err
}

// Test implements comm.PartSend.Test, which documents the call.
func (p *PartSend) Test() (bool, error) {
	switch {
	case p == nil || !p.active.Load():
		return true, nil
	case p.left.Load() > 0 || !engine.AllDone(len(p.reqs), func(i int) engine.Request { return p.reqs[i] }):
		return false, nil
	}
	if !p.given {
		<-p.all // the call of Ready that set left to 0 then sends to all
		p.given = true
	}
	return true, p.Wait()
}

// Free implements comm.PartSend.Free, which documents the call.
func (p *PartSend) Free() error {
	if p == nil {
		return nil
	}
	return p.free()
}

// PartRecv is the type behind comm.PartRecv.
type PartRecv struct {
	partitioned
	offered engine.Request // the receive of the offer
	offer   [offerBytes]byte

	mu sync.Mutex // guards the fields below, because several goroutines may call Arrived
	// The task of the first Start, which posts the receives. The zero Request means that there is
	// no task, or that it has ended.
	posting engine.Request
	known   bool  // the offer has arrived
	err     error // of the offer; each Wait returns it
	base    int   // tag of the first message
	sent    int   // length of a partition of the sender in bytes
	refused int   // number of messages of a round that refuse receives; 0 unless the offer has another length
}

// PrecvInit implements comm.PrecvInit, which documents the call.
func (c *Comm) PrecvInit(b elem.Buffer, parts, source, tag int) (*PartRecv, error) {
	p := new(PartRecv)
	if err := p.init(c, "PrecvInit", b, parts, source, tag); err != nil {
		return nil, err
	}
	if source != ProcNull {
		p.offered = p.s.p2p.Irecv(p.offer[:], engine.Env{Peer: source, Tag: tag})
	}
	return p, nil
}

// Start implements comm.PartRecv.Start, which documents the call.
func (p *PartRecv) Start() error {
	if p == nil {
		return nilOperation("Start")
	}
	if err := p.start(); err != nil {
		return err
	}
	if p.peer == ProcNull {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.known:
		p.post()
	case p.err != nil && p.offered.Collected(): // the offer was wrong, or its sender has failed
		p.refuse()
	default:
		p.posting = p.s.job.eng.Go(p.prepare)
	}
	return nil
}

// prepare waits for the offer and posts the receives. Until prepare returns, no other goroutine
// uses known, err, base, sent, refused, single and reqs.
func (p *PartRecv) prepare() error {
	st, err := p.offered.Wait(p.c.Context())
	if err != nil {
		return err
	}
	word := func(i int) int { return int(binary.LittleEndian.Uint64(p.offer[8*i:])) }
	parts, sent, base, single := word(0), word(1), word(2), word(3)
	messages := parts
	if single == 1 {
		messages = 1
	}
	if st.Bytes != offerBytes || parts < 1 || parts > MaxTag || sent < 0 || sent == 0 && (parts > maxEmpty || single != 0) || base < 0 || base > MaxTag-messages ||
		sent > math.MaxInt/parts || single < 0 || single > 1 {
		return fmt.Errorf("%w: the offer of rank %d has %d bytes and wrong contents", engine.ErrMismatch, p.peer, st.Bytes)
	}
	if parts*sent != len(p.mem) {
		if messages <= maxEmpty {
			p.base, p.refused = base, messages
		}
		p.refuse()
		return fmt.Errorf("%w: rank %d sends %d bytes, this rank receives %d", ErrCount, p.peer, parts*sent, len(p.mem))
	}
	p.known, p.base, p.sent = true, base, sent
	if single == 1 {
		p.single = engine.NewPartitions(parts, sent)
	}
	p.reqs = make([]engine.Request, messages)
	p.post()
	return nil
}

// refuse releases the sender if the length of its buffer differs from that of this rank's: it posts receives
// without buffers for all messages of the round. No call waits for these receives.
func (p *PartRecv) refuse() {
	for i := range p.refused {
		p.s.coll.Irecv(nil, engine.Env{Peer: p.member, Tag: p.base + i, Sig: p.sig}).Abandon()
	}
}

// post posts the receives of a round.
func (p *PartRecv) post() {
	if p.single != nil {
		p.reqs[0] = p.s.coll.IrecvPartitioned(p.mem, engine.Env{Peer: p.member, Tag: p.base, Sig: p.sig}, p.single)
		return
	}
	for i := range p.reqs {
		part := p.mem[i*p.sent : (i+1)*p.sent]
		p.reqs[i] = p.s.coll.Irecv(part, engine.Env{Peer: p.member, Tag: p.base + i, Sig: p.sig})
	}
}

// posted reports whether the receives are posted. If block is true, posted waits until they are,
// or until the context ends; meanwhile it releases p.mu. If prepare has failed, posted returns its
// error, and p.posting is zero. The caller holds p.mu.
func (p *PartRecv) posted(op string, block bool) (done bool, err error) {
	for p.posting != (engine.Request{}) {
		posting := p.posting
		if block {
			p.mu.Unlock()
			_, err := engine.WaitAny(p.c.Context(), 1, func(int) engine.Request { return posting })
			p.mu.Lock()
			if err != nil {
				return false, p.fail(op, err)
			}
			if p.posting != posting { // another goroutine has collected it
				continue
			}
		}
		_, done, err := posting.Test()
		if !done {
			return false, nil
		}
		p.posting = engine.Request{}
		p.err = err
	}
	if p.err != nil {
		return false, p.fail(op, p.err)
	}
	return true, nil
}

// Arrived implements comm.PartRecv.Arrived, which documents the call.
//
// Hot path: no allocation.
func (p *PartRecv) Arrived(i int) (bool, error) {
	if p == nil {
		return false, nilOperation("Arrived")
	}
	if err := p.index("Arrived", i); err != nil {
		return false, err
	}
	if p.peer == ProcNull {
		return true, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if done, err := p.posted("Arrived", false); !done {
		return false, err
	}
	done, err := p.arrived(i)
	if !done && err == nil && p.single == nil {
		p.s.job.eng.Poll()
		done, err = p.arrived(i)
	}
	if err != nil {
		return false, p.fail("Arrived", err)
	}
	return done, nil
}

// arrived reports whether all partitions of the sender that overlap partition i have arrived. The
// caller holds p.mu.
func (p *PartRecv) arrived(i int) (bool, error) {
	if p.sent == 0 {
		return true, nil
	}
	if p.single != nil {
		return p.reqs[0].Arrived(i*p.bytes/p.sent, ((i+1)*p.bytes+p.sent-1)/p.sent)
	}
	for j := i * p.bytes / p.sent; j < len(p.reqs) && j*p.sent < (i+1)*p.bytes; j++ {
		if done, err := p.reqs[j].Peek(); !done || err != nil {
			return false, err
		}
	}
	return true, nil
}

// Wait implements comm.PartRecv.Wait, which documents the call.
func (p *PartRecv) Wait() error {
	if p == nil || !p.active.Load() {
		return nil
	}
	if p.peer == ProcNull {
		p.active.Store(false)
		return nil
	}
	t := p.c.timing()
	p.mu.Lock()
	done, err := p.posted("Wait", true)
	if !done && p.posting == (engine.Request{}) {
		p.active.Store(false)
	}
	p.mu.Unlock()
	if !done {
		return err
	}
	if p.single != nil {
		return p.waited(&t, len(p.mem))
	}
	return p.waited(&t, p.sent)
}

// Test implements comm.PartRecv.Test, which documents the call.
func (p *PartRecv) Test() (bool, error) {
	if p == nil || !p.active.Load() || p.peer == ProcNull {
		return true, p.Wait()
	}
	p.mu.Lock()
	done, err := p.posted("Test", false)
	done = done && engine.AllDone(len(p.reqs), func(i int) engine.Request { return p.reqs[i] })
	p.mu.Unlock()
	if err != nil || done {
		return true, p.Wait()
	}
	return false, nil
}

// All implements comm.PartRecv.All, which documents the call.
func (p *PartRecv) All() iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		if p == nil {
			yield(-1, nilOperation("All"))
			return
		}
		seen := make([]bool, p.parts)
		for left := p.parts; left > 0; {
			missing := p.missing()
			found := false
			for i := range seen {
				if seen[i] {
					continue
				}
				done, err := p.Arrived(i)
				if err != nil {
					yield(-1, err)
					return
				}
				if done {
					seen[i], found = true, true
					left--
					if !yield(i, nil) {
						return
					}
				}
			}
			if !found {
				if err := p.awaitOne(missing); err != nil {
					yield(-1, err)
					return
				}
			}
		}
	}
}

// missing returns the number of messages of a round that have not arrived. If the round is one
// message, missing returns the number of its partitions that have not arrived.
func (p *PartRecv) missing() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.posting != (engine.Request{}):
		return math.MaxInt // so that awaitOne does not wait once the receives are posted
	case p.err != nil || len(p.reqs) == 0: // the last one: the operation was freed
		return 0
	case p.single != nil:
		return p.reqs[0].Missing()
	}
	n := 0
	for _, r := range p.reqs {
		if arrived, _ := r.Peek(); !arrived {
			n++
		}
	}
	return n
}

// awaitOne blocks until fewer than before messages or partitions are missing, or none. before is an earlier
// result of missing. If one has arrived since then, awaitOne returns at once.
func (p *PartRecv) awaitOne(before int) error {
	t := p.c.timing()
	p.mu.Lock()
	done, err := p.posted("All", true)
	p.mu.Unlock()
	if !done {
		return err
	}
	if p.single != nil {
		if err := p.reqs[0].AwaitPartition(p.c.Context(), before); err != nil {
			return p.fail("All", err)
		}
		t.end(opWait, p.peer, noRank, 0)
		return nil
	}
	var missing []engine.Request
	for _, r := range p.reqs {
		if arrived, _ := r.Peek(); !arrived {
			missing = append(missing, r)
		}
	}
	if len(missing) < before {
		return nil
	}
	if _, err := engine.WaitAny(p.c.Context(), len(missing), func(i int) engine.Request { return missing[i] }); err != nil {
		return p.fail("All", err)
	}
	t.end(opWait, p.peer, noRank, 0)
	return nil
}

// Free implements comm.PartRecv.Free, which documents the call.
func (p *PartRecv) Free() error {
	if p == nil || p.c == nil {
		return nil
	}
	if err := p.free(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.single != nil {
		p.s.job.eng.ForgetPartitions(p.single)
	}
	if !p.known {
		// The receive stays posted, because the offer that it matches must not match a later
		// operation.
		p.offered.Abandon()
		p.offered = engine.Request{}
	}
	return nil
}
