// Package agree lets the live ranks of a communicator agree on its failed ranks, although more
// ranks may fail meanwhile (ULFM). Agree and Shrink use it, and Finalize of a job that continues
// after ranks fail.
package agree

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/weft-hpc/weft/internal/engine"
)

// Ranks runs the agreements of one rank. The ranks of a communicator agree on its failed ranks,
// while more ranks may fail, and whether or not the communicator is revoked.
//
//	every rank ── vote ──────► the coordinator: the lowest rank that the sender does not know to have ended
//	                              │ decides when it has a vote of each rank that it does not know
//	                              │ to have ended
//	every rank ◄── decision ──────┘
//
// If the coordinator fails, the ranks vote for the next one, which also sends its own vote to them.
// A rank that has the decision answers any vote of this agreement with it. These rules hold for any
// order of messages and of failure notifications; k and l are ranks of the communicator, and k < l:
//
//   - A rank without a decision votes for k when it knows that all ranks below k have ended.
//   - A rank that has voted for l, or is coordinator l, accepts no decision of a rank below l. Such
//     a decision may arrive while the rank votes. So the goroutine that votes and the goroutine
//     that handles a message hold mu.
//   - Coordinator k decides when it has a vote of each rank that it does not know to have ended. If
//     it gets a decision instead of a vote, it adopts that decision.
//
// So when k decides, no live rank has a decision, and the live ranks accept only a decision of k or
// of a higher rank. A higher rank decides only when k has ended, and first asks all live ranks; if
// one of them has a decision, the higher rank adopts it. So if a rank that continues has a
// decision, every later decision is equal to it. If the other ranks regard a live rank as failed,
// the decision contains that rank, and the call of Do on that rank fails.
//
// A rank in Finalize does not take part in an agreement, except that of Finalize, in which it has
// not voted before. It answers each vote with a refusal. A rank that refuses has sent no vote and
// no decision of the agreement, and accepts none. So a rank that gets the refusal treats its sender
// like a rank that ended before the agreement, and all of the above holds: a rank votes for k when
// all ranks below k have ended or refused, and k needs no vote of a rank that has refused. The
// decision names a rank that has refused, and the call fails with ErrFinalized on all ranks. If
// votes are missing when Remind is called, the coordinator sends its vote once to the ranks that
// have not voted, so that those in Finalize refuse.
//
// A rank votes in an agreement of a communicator only when it has the decision of the previous one,
// or the context of the previous call has ended. So a rank keeps only the last decision of each
// communicator. A rank that computes, or is in Finalize, answers when its Answer is called.
//
// The messages use a context of the engine that spans the world, carries nothing else, and is never
// revoked (Config.Space).
type Ranks struct {
	cfg Config
	// send sends m to a world rank without blocking. It ignores errors, because a rank that has
	// ended needs no message.
	send func(m *message, world int)
	// wake makes the calls that are blocked in Attend of the engine return, so that their callers
	// run [participant.step] again.
	wake func()

	mu        sync.Mutex
	instances map[instanceID]*instance // agreements for which this rank has no decision yet; guarded by mu
	decided   map[uint64]*message      // the last decision of each communicator, by its id; guarded by mu
	// waiting is the number of goroutines that are in Attend of the engine, or about to call it;
	// guarded by mu.
	waiting int
	leaving bool // this rank is in Finalize; guarded by mu
}

// Config holds what the agreements of a rank need from its caller.
type Config struct {
	Engine *engine.Engine
	Space  *engine.Context // a context whose group is the world and that only agreements use
	Size   int             // number of ranks of the world
	NewID  func() uint64   // returns an unused id for a communicator
}

// Comm is a communicator whose ranks agree, as this rank sees it.
type Comm struct {
	ID           uint64
	Rank         int          // of this process in the communicator
	Ranks        []int        // world ranks of the communicator's ranks
	Acknowledged func() []int // returns the failed ranks that the program has acknowledged

	mu   sync.Mutex
	seq  uint32          // number of agreements on the communicator that this rank has started; guarded by mu
	last <-chan struct{} // done of the call that this rank has started last; nil: none; guarded by mu
}

// Decision is what the ranks have agreed on. It is the same on all ranks.
type Decision struct {
	Flag      uint64 // bitwise and of the flags that the ranks that have voted passed to Do
	Next      uint64 // an unused id for a communicator, for Shrink
	Finalized int    // the lowest rank that has refused to vote because it is in Finalize; -1: none
	Failed    Bitmap // the ranks of the communicator that have failed or ended
	Known     Bitmap // the failed ranks that all ranks that have voted have acknowledged
}

// instance is one agreement for which this rank has no decision yet.
type instance struct {
	votes map[int]*message // the votes and refusals that this rank has received, by world rank of the sender
	own   *participant     // the call of Finish on this rank; nil: this rank has not voted yet
}

// instanceID identifies an agreement in the job.
type instanceID struct {
	id  uint64 // of the communicator
	seq uint32 // number of the agreement on the communicator, from 1 on
}

// New returns the agreements of a rank. There are none yet.
func New(cfg Config) *Ranks {
	return &Ranks{
		cfg: cfg,
		send: func(m *message, world int) {
			cfg.Space.Isend(m.append(nil), engine.Env{Peer: world}).Abandon()
		},
		wake: cfg.Engine.WakeAttend, instances: make(map[instanceID]*instance), decided: make(map[uint64]*message),
	}
}

// Do blocks until each rank of c has made the call, has ended, or has refused because it is in
// Finalize, and returns the decision. call says which call this is, and flag is this rank's
// contribution to Decision.Flag. If ctx ends, Do returns ctx's error, and the vote of this rank
// still counts. Other errors: ErrProcFailed if the other ranks regard this rank as failed;
// ErrMismatch if ranks made different calls; ErrClosed.
func (r *Ranks) Do(ctx context.Context, c *Comm, call Call, flag uint64) (*Decision, error) {
	return r.Begin(c, call, flag).Finish(ctx)
}

// Begin is the first half of Do, which does not block: it gives the call its place in the order of
// the calls of this rank. The caller must call Finish of the result, on any goroutine.
func (r *Ranks) Begin(c *Comm, call Call, flag uint64) *Started {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.Ranks)
	c.seq++
	own := &message{
		kind: vote, call: call, seq: c.seq, id: c.ID, flag: flag, next: r.cfg.NewID(),
		failed: newBitmap(n), known: newBitmap(n),
	}
	for _, rank := range c.Acknowledged() {
		own.known.set(rank)
	}
	s := &Started{p: &participant{Ranks: r, comm: c, own: own, votedFor: -1}, before: c.last, done: make(chan struct{})}
	c.last = s.done
	return s
}

// Started is a call that Begin has started. A rank votes in one agreement of a communicator after
// the other, so Finish waits until that of the call before has returned.
type Started struct {
	p      *participant
	before <-chan struct{} // closed when Finish of the call before on the communicator is over; nil: there was none
	done   chan struct{}   // closed when Finish is over
}

// Finish is the second half of Do.
func (s *Started) Finish(ctx context.Context) (*Decision, error) {
	p := s.p
	r, c, call, n := p.Ranks, p.comm, p.own.call, len(p.comm.Ranks)
	if s.before != nil {
		select {
		case <-s.before:
		case <-ctx.Done():
			// The agreement still needs this rank, so a goroutine continues. It ends as the one below.
			go func() {
				<-s.before
				close(s.done)
				p.background = true
				_, _ = p.wait(context.Background())
			}()
			return nil, ctx.Err()
		}
	}
	defer close(s.done)
	v, err := p.wait(ctx)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		if rank := p.missing(); rank >= 0 {
			err = &WaitError{rank, err}
		}
		p.background = true
		// The agreement still needs this rank, so a goroutine continues. It ends with the decision,
		// or when the engine closes; no call waits for it.
		go func() { _, _ = p.wait(context.Background()) }()
	}
	switch {
	case err != nil:
		return nil, err
	case v.call != call:
		return nil, fmt.Errorf("%w: ranks called different ones of Agree and Shrink", engine.ErrMismatch)
	case !v.fits(n):
		return nil, errMessage
	}
	if call != Finalize {
		err = r.markFailed(c, v.failed)
	}
	return &Decision{Flag: v.flag, Next: v.next, Finalized: int(v.final) - 1, Failed: v.failed, Known: v.known}, err
}

// markFailed makes the engine regard the ranks of failed, the decision's failed ranks, as failed.
// If this rank is one of them, markFailed returns ErrProcFailed.
func (r *Ranks) markFailed(c *Comm, failed Bitmap) error {
	absent := r.cfg.Engine.Absent(c.Ranks)
	var more []int
	for _, rank := range failed.Ranks(len(absent)) {
		if !absent[rank] {
			more = append(more, c.Ranks[rank])
		}
	}
	r.cfg.Engine.MarkFailed("the other ranks regard it as failed", more...)
	if failed.Has(c.Rank) {
		return fmt.Errorf("%w: the other ranks regard this rank as failed", engine.ErrProcFailed)
	}
	return nil
}

// WaitError is the error of Do if its context has ended.
type WaitError struct {
	Rank int   // rank of the communicator that the call waited for
	Err  error // error of the context
}

// Error returns the text of the context's error.
func (w *WaitError) Error() string { return w.Err.Error() }

// Unwrap returns the error of the context.
func (w *WaitError) Unwrap() error { return w.Err }

// participant is this rank's part in an agreement: one call of Begin and Finish. To vote for a rank is to send
// the vote to that rank, the coordinator.
type participant struct {
	*Ranks
	comm *Comm
	own  *message // this rank's vote
	// The rank of the communicator that this rank has voted for; its own rank: this rank is the
	// coordinator; -1: none; guarded by Ranks.mu.
	votedFor int

	// The fields ask and asked are only for the coordinator, and are guarded by Ranks.mu. If ask is
	// set, the next call of step sends this rank's vote to the ranks whose votes are missing, so
	// that they answer.
	ask   bool
	asked bool // step has sent this rank's vote to them

	background bool // the call of Do has returned because its context ended; a goroutine continues

	changes uint32 // the engine's ChangeCount when absent was set
	absent  []bool // by rank: the rank has ended or failed, as far as the engine knows; nil: not asked yet
	ended   int    // number of absent ranks
}

// wait runs steps until there is a decision, and returns the decision. Between steps it blocks
// until a message has arrived, a rank has ended, or another goroutine of this rank has called wake.
// It returns an error if step does, if ctx ends, or if the engine closes.
func (p *participant) wait(ctx context.Context) (*message, error) {
	for {
		if changes := p.cfg.Engine.ChangeCount(); p.absent == nil || changes != p.changes {
			p.changes = changes
			p.setAbsent(p.cfg.Engine.Absent(p.comm.Ranks))
		}
		v, err := p.step()
		if v != nil || err != nil {
			return v, err
		}
		m, st, err := p.cfg.Space.Attend(ctx, p.changes, p.background)
		p.mu.Lock()
		p.waiting--
		p.mu.Unlock()
		if err != nil {
			return nil, err
		}
		p.take(m, st)
	}
}

// missing returns a rank that p waits for: the coordinator, or a rank whose vote the coordinator
// does not have; -1: none.
func (p *participant) missing() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.votedFor != p.comm.Rank {
		return p.votedFor
	}
	in := p.instances[instanceID{p.own.id, p.own.seq}]
	if in == nil {
		return -1
	}
	for i, w := range p.comm.Ranks {
		if i != p.comm.Rank && in.votes[w] == nil && !p.absent[i] {
			return i
		}
	}
	return -1
}

// setAbsent records which ranks have ended or failed, and adds them to this rank's vote. absent is
// by rank.
func (p *participant) setAbsent(absent []bool) {
	p.absent, p.ended = absent, 0
	for i, ended := range absent {
		if ended {
			p.own.failed.set(i)
			p.ended++
		}
	}
}

// step votes, or acts as the coordinator, and returns the decision if there is one. If there is
// neither a decision nor an error, step counts the caller in waiting, and the caller must call
// Attend and then decrease waiting.
func (p *participant) step() (*message, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v := p.decided[p.comm.ID]; v != nil && v.seq >= p.own.seq {
		if v.seq > p.own.seq {
			return nil, fmt.Errorf("%w: the other ranks have continued without this rank", engine.ErrProcFailed)
		}
		return v, nil
	}
	// A rank in Finalize that has not voted may have sent refusals, so it must not vote any more.
	if p.leaving && p.votedFor < 0 && p.own.call != Finalize {
		return nil, fmt.Errorf("%w: Finalize was called", engine.ErrClosed)
	}
	in := p.instance(instanceID{p.own.id, p.own.seq})
	in.own = p
	ranks := p.comm.Ranks
	coordinator := 0
	// The loop ends at this rank at the latest, which is neither absent nor has refused.
	for p.absent[coordinator] || in.refused(ranks[coordinator]) {
		coordinator++
	}
	if p.votedFor != coordinator {
		p.votedFor = coordinator
		if coordinator != p.comm.Rank {
			p.send(p.own, ranks[coordinator])
		}
		// Some ranks may have a decision of the previous coordinator. They answer with it.
		p.ask = coordinator == p.comm.Rank && coordinator > 0
	}
	if coordinator == p.comm.Rank {
		if p.ask {
			p.ask, p.asked = false, true
			for i, w := range ranks {
				if i != coordinator && !p.absent[i] && in.votes[w] == nil {
					p.send(p.own, w)
				}
			}
		}
		if v := p.decide(in.votes); v != nil {
			p.setDecidedLocked(v)
			if p.waiting > 0 { // calls for earlier agreements of this communicator may wait
				p.wake()
			}
			return v, nil
		}
	}
	p.waiting++
	return nil, nil
}

// decide returns the decision of this rank as the coordinator, or nil if votes are missing. votes
// are the votes and refusals of other ranks, by world rank.
func (p *participant) decide(votes map[int]*message) *message {
	n := len(p.absent)
	if len(votes)+p.ended < n-1 {
		return nil
	}
	v := *p.own
	v.kind, v.failed, v.known = decision, newBitmap(n), newBitmap(n)
	v.final = 0
	v.failed.or(p.own.failed)
	v.known.or(p.own.known)
	for i, w := range p.comm.Ranks {
		if i == p.comm.Rank || p.absent[i] {
			continue
		}
		m := votes[w]
		if m == nil {
			return nil
		}
		if m.kind == refusal {
			if v.final == 0 {
				v.final = uint32(i) + 1
			}
			continue
		}
		if m.call != v.call || !m.fits(n) {
			v.call = differentCalls
			continue
		}
		v.flag &= m.flag
		v.failed.or(m.failed)
		v.known.and(m.known)
	}
	return &v
}

// refused reports whether a world rank has refused to vote.
func (in *instance) refused(world int) bool {
	m := in.votes[world]
	return m != nil && m.kind == refusal
}

// instance returns the agreement with the id, for which this rank has no decision yet. If the
// agreement is new to this rank, instance adds it. The caller holds mu.
func (r *Ranks) instance(id instanceID) *instance {
	in := r.instances[id]
	if in == nil {
		in = &instance{votes: make(map[int]*message)}
		r.instances[id] = in
	}
	return in
}

// setDecidedLocked records the decision v and sends it to the ranks whose votes this rank has
// received. It drops the state of this agreement and of earlier ones on the same communicator. The
// caller holds mu.
func (r *Ranks) setDecidedLocked(v *message) {
	r.decided[v.id] = v
	for w, m := range r.instances[instanceID{v.id, v.seq}].votes {
		if m.kind == vote {
			r.send(v, w)
		}
	}
	maps.DeleteFunc(r.instances, func(id instanceID, _ *instance) bool { return id.id == v.id && id.seq <= v.seq })
}

// handle handles a message from the world rank world.
func (r *Ranks) handle(m *message, world int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := instanceID{m.id, m.seq}
	last := r.decided[m.id]
	switch {
	case last != nil && last.seq > m.seq: // a later agreement is decided, so no rank needs an answer
	case last != nil && last.seq == m.seq:
		if m.kind == vote {
			r.send(last, world)
		}
	case m.kind == vote && r.refuses(id, m):
		r.send(&message{kind: refusal, call: m.call, seq: m.seq, id: m.id}, world)
	case m.kind == vote:
		r.instance(id).votes[world] = m
	case m.kind == refusal:
		// A refusal answers a vote. If own is nil, this rank has sent no vote.
		if in := r.instances[id]; in != nil && in.own != nil {
			in.votes[world] = m
		}
	case r.accepts(id, world):
		delete(r.instances[id].votes, world) // the sender of a decision needs no answer
		r.setDecidedLocked(m)
	}
	if r.waiting > 0 {
		r.wake()
	}
}

// accepts reports whether this rank accepts a decision of the world rank world in the agreement id:
// this rank has voted for that rank or for a lower one. The caller holds mu.
func (r *Ranks) accepts(id instanceID, world int) bool {
	in := r.instances[id]
	return in != nil && in.own != nil && slices.Index(in.own.comm.Ranks, world) >= in.own.votedFor
}

// refuses reports whether this rank refuses the vote m: this rank is in Finalize and has not voted
// in the agreement, and the agreement is not that of Finalize itself. The caller holds mu.
func (r *Ranks) refuses(id instanceID, m *message) bool {
	in := r.instances[id]
	return r.leaving && m.call != Finalize && (in == nil || in.own == nil)
}

// Leave records that this rank is in Finalize. It refuses the votes that have arrived for
// agreements in which this rank has not voted.
func (r *Ranks) Leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaving = true
	for id, in := range r.instances {
		for w, m := range in.votes {
			if r.refuses(id, m) {
				delete(in.votes, w)
				r.send(&message{kind: refusal, call: m.call, seq: m.seq, id: m.id}, w)
			}
		}
	}
}

// Leaving reports whether Leave was called.
func (r *Ranks) Leaving() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leaving
}

// Remind makes this rank ask once for the missing votes, in each agreement of which it is the
// coordinator. The owner of r must call Remind at intervals.
func (r *Ranks) Remind() {
	r.mu.Lock()
	defer r.mu.Unlock()
	wake := false
	for _, in := range r.instances {
		if p := in.own; p != nil && p.votedFor == p.comm.Rank && !p.asked {
			p.ask, wake = true, true
		}
	}
	if wake {
		r.wake()
	}
}

// take receives and handles the message em, whose status is st. If em is the zero Message, take
// does nothing.
func (r *Ranks) take(em engine.Message, st engine.Status) {
	if em.IsZero() {
		return
	}
	buf := make([]byte, min(st.Bytes, messageHeader+2*len(newBitmap(r.cfg.Size))))
	var m message
	if _, err := em.Recv(context.Background(), buf); err != nil || m.parse(buf) != nil {
		return // the sender has failed, or does not follow the protocol
	}
	r.handle(&m, st.Source)
}

// Answer handles the messages that have arrived and that no call of Do has taken. A rank that has
// no decision and is not in Finalize has no answers, so Answer then leaves the messages for a later
// call of Do. Answer does not block. The owner of r must call Answer at intervals.
func (r *Ranks) Answer() {
	r.mu.Lock()
	none := len(r.decided) == 0 && !r.leaving
	r.mu.Unlock()
	if none {
		return
	}
	for {
		m, st, err := r.cfg.Space.Iattend()
		if m.IsZero() || err != nil {
			return
		}
		r.take(m, st)
	}
}

// Forget drops the last decision of a communicator. All its ranks have freed it, so none needs the
// decision.
func (r *Ranks) Forget(id uint64) {
	r.mu.Lock()
	delete(r.decided, id)
	r.mu.Unlock()
}
