// Package engine matches messages and moves them: eager and rendezvous
// protocols, credits, requests and progress, over the endpoints of one or
// several transports. It knows bytes, ranks, tags and contexts; element types
// are above it, sockets and memory mappings below.
//
// Everything is safe for concurrent use. One lock guards an engine; it is held
// for the time of a poll or a post. Where code here says "the caller holds the
// lock", that is Engine.mu.
package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/transport"
)

// Wildcards of Env.Peer and Env.Tag for receives and probes.
const (
	AnySource = wild
	AnyTag    = wild
)

// Mode says when a send is complete.
type Mode uint8

// The modes.
const (
	Standard    Mode = iota // when the buffer may be reused
	Synchronous             // when, besides, the receive has been matched (MPI_Ssend)
)

// The errors of the engine; wrapped with their cause.
var (
	ErrTruncate   = errors.New("message longer than the receive buffer")
	ErrProcFailed = errors.New("process failed")
	ErrRevoked    = errors.New("communicator revoked")
	ErrClosed     = errors.New("engine is closed")
	ErrMismatch   = errors.New("ranks called different collectives, or the same with different arguments")
)

// Rail is one transport of the engine, ready to send.
type Rail struct {
	Domain   transport.Domain
	CQ       transport.CompletionQueue
	Endpoint transport.Endpoint
}

type rail struct {
	Rail
	rma    transport.RMAEndpoint        // nil: rendezvous by messages
	atomic transport.AtomicEndpoint     // nil: no atomics
	link   transport.ConnectEndpoint    // nil: it hears of every peer's end
	cut    transport.DisconnectEndpoint // nil: a peer cannot be given up
	shared transport.SharedMemoryDomain // nil: nobody maps memory of others
	attr   transport.Attr
	eager  int // largest data that goes without asking
	index  int // in Engine.rails
	pace   int // how many calls of progress leave its queue out when it was empty
	skip   int // how many more do; guarded by Engine.mu
}

// paceMax bounds rail.pace.
const paceMax = 64

// setPaces makes rails that are slow by nature be polled more seldom.
func setPaces(rails []rail) {
	fastest := math.MaxInt
	for i := range rails {
		fastest = min(fastest, max(1, rails[i].attr.LatencyNs))
	}
	for i := range rails {
		rails[i].pace = min(max(0, rails[i].attr.LatencyNs/fastest-1), paceMax)
	}
}

// Config is what an engine is made of.
type Config struct {
	Rank, Size int
	Params     *params.Set // nil: all defaults
	Rails      []Rail      // in order of preference; closed by Close
	Route      []uint8     // by world rank: which rail leads there; nil: the first
	LocalRanks int         // ranks of this job on this host
	LocalRank  int         // this one's number among them
	Cores      int         // hardware threads that they share; 0: those that this process may use
	Notice     func(error) // told, under no lock, of oddities that fail nothing; may be nil
	Launcher   *os.File    // where the launcher writes which ranks have failed, see loss.go; nil: nowhere. Close closes it
}

// Engine is one rank's.
type Engine struct {
	rank, size int
	rails      []rail
	waitset    waitset
	policy     policy
	born       time.Time
	glances    atomic.Int32 // of an Await at its word before it takes the lock
	blind      bool         // a transport cannot end a sleep when something comes
	eagerLimit int          // the least of the rails', and of messages to this rank itself
	window     int          // credits per peer, bytes
	notice     func(error)
	onClose    []func()
	launcher   *os.File
	news       atomic.Uint32 // see News

	mu mutex // guards everything below

	open         bool // counted in engines
	peers        []peer
	stalled      []int32 // peers with something queued
	stalledSpare []int32 // what retry works through while stalled fills anew
	posted       postedQueue
	unexpected   unexpectedQueue
	buffers      bufferPool
	revoked      map[uint64]error    // by communicator: context id / 2
	hearsay      map[uint64]int32    // the same: the peer that said it is revoked, while nobody need repeat it
	contexts     map[uint64]*Context // the same: one of the two
	ports        map[uint64]*Port    // by context id
	spans        []*Span             // what Alloc has allocated, by address

	slots   []*request
	free    *request
	spare   *request // a slot that is taken and not in use, for sendNow; may be nil
	active  int      // background requests that are not done
	large   int      // those of them that are rendezvous, as far as one can tell
	tasks   int      // functions under way on goroutines of their own
	exposed int      // regions that peers reach by RMA which our progress serves
	moving  int      // requests whose data is on its way, perhaps by our progress alone

	leader      *waiter
	polls       int // of leaders, ever
	asked       int // questions that were answered with no; see offer
	home        home
	wanted      bool          // somebody else has use for the core: the last yield took long
	shownUp     time.Duration // when the last went through the scheduler
	leads       int           // how often somebody led
	leadsSeen   int
	followers   []*waiter
	watchers    []*waiter // told of every completion
	probes      []*waiter // told of the next message with their key
	words       []*waiter // those whose word in shared memory the leader looks at
	freeWaiters *waiter
	sleeping    bool
	asyncAsleep bool
	async       asyncState
	failures    int    // peers known to have failed
	ends        uint32 // of peers, ever; and calls of Nudge
	late        func() // ends the transports' shutdown; nil: there is none under way
	inquiry     inquiry

	closed  bool
	fatal   error // why a transport is of no further use
	quiet   *sync.Cond
	entries [32]transport.Completion

	kick       chan struct{} // nil: no asynchronous progress
	goroutines sync.WaitGroup
	listening  sync.WaitGroup // the one of newsLoop
	workers    workers
}

// peer is what the engine knows of another rank.
type peer struct {
	rail     *rail
	err      error         // why nothing more can be sent to it
	eager    int           // largest data that goes without asking; -1: to itself, or nothing can be sent any more
	sendSeq  uint32        // of the last message sent
	recvSeq  uint32        // of the last message received
	credit   int           // bytes of its unexpected-message memory that we may fill
	held     int           // bytes of ours that it fills
	owed     int           // bytes to give back to it
	control  fifo          // messages of the engine's own and reads: sent before
	data     fifo          // users' sends
	again    bool          // the endpoint said ErrAgain
	absent   bool          // and it was ErrAbsent
	waits    time.Duration // since when it has said so, counted from Engine.born; 0: napTime has not seen it
	isQueued bool          // in Engine.stalled
	left     bool          // it shut down in good order
	givenUp  bool          // by giveUp
}

// hold notes that the endpoint said ErrAgain.
func (p *peer) hold(err error) { p.again, p.absent = true, errors.Is(err, transport.ErrAbsent) }

// The bounds of the credits of one peer.
const (
	windowMin = 16 << 10
	windowMax = 1 << 20
)

// New makes the engine of a rank from transports whose endpoints are open and
// whose address vectors hold every rank of the job.
func New(cfg Config) (*Engine, error) {
	if cfg.Size < 1 || cfg.Rank < 0 || cfg.Rank >= cfg.Size {
		return nil, fmt.Errorf("engine: rank %d of %d", cfg.Rank, cfg.Size)
	}
	if len(cfg.Rails) == 0 && cfg.Size > 1 {
		return nil, errors.New("engine: no transport")
	}
	p := cfg.Params
	e := &Engine{
		rank: cfg.Rank, size: cfg.Size,
		peers:   make([]peer, cfg.Size),
		revoked: make(map[uint64]error), hearsay: make(map[uint64]int32), contexts: make(map[uint64]*Context),
		ports:  make(map[uint64]*Port),
		notice: cfg.Notice,
	}
	e.mu.init()
	e.born = time.Now()
	e.quiet = sync.NewCond(&e.mu)
	e.window = min(max(p.Int("engine.unexpected_limit")/max(1, cfg.Size-1), windowMin), windowMax)
	e.eagerLimit = e.window/4 - messageCost // a message must leave room for others within the window
	e.rails = make([]rail, len(cfg.Rails))
	for i, r := range cfg.Rails {
		a := r.Domain.Attr()
		e.rails[i] = rail{Rail: r, attr: a, index: i}
		if a.Caps.Has(transport.CapRead) {
			rma, ok := r.Endpoint.(transport.RMAEndpoint)
			if !ok {
				return nil, fmt.Errorf("engine: %s says CapRead and has no Read", a.Provider)
			}
			e.rails[i].rma = rma
		}
		if a.Caps.Has(transport.CapAtomic) {
			atomic, ok := r.Endpoint.(transport.AtomicEndpoint)
			if !ok {
				return nil, fmt.Errorf("engine: %s says CapAtomic and has no Atomic", a.Provider)
			}
			e.rails[i].atomic = atomic
		}
		if a.Caps.Has(transport.CapConnect) {
			link, ok := r.Endpoint.(transport.ConnectEndpoint)
			if !ok {
				return nil, fmt.Errorf("engine: %s says CapConnect and has no Connect", a.Provider)
			}
			e.rails[i].link = link
			e.inquiry.on = true
		}
		if a.Caps.Has(transport.CapDisconnect) {
			e.rails[i].cut, _ = r.Endpoint.(transport.DisconnectEndpoint) // a wrapper may hide it
		}
		if a.Caps.Has(transport.CapSharedMemory) {
			e.rails[i].shared, _ = r.Domain.(transport.SharedMemoryDomain) // a wrapper may hide it
		}
		limit := a.EagerLimit
		if l := p.Int("engine.eager_limit"); l > 0 {
			limit = l
		}
		e.rails[i].eager = max(0, min(e.window/4-messageCost, limit, a.MaxMsgSize-transport.HeaderSize))
		e.eagerLimit = min(e.eagerLimit, e.rails[i].eager)
	}
	for r := range e.peers {
		i := 0
		if cfg.Route != nil {
			i = int(cfg.Route[r])
		}
		if r != cfg.Rank {
			if i >= len(e.rails) {
				return nil, fmt.Errorf("engine: no transport leads to rank %d", r)
			}
			e.peers[r].rail = &e.rails[i]
			e.peers[r].eager = e.rails[i].eager
		} else {
			e.peers[r].eager = -1
		}
		e.peers[r].credit = e.window
	}
	setPaces(e.rails)
	for i := range e.rails {
		// Several queues are slept on by their descriptors; see waitset.
		a := &e.rails[i].attr
		e.blind = e.blind || a.Naps || len(e.rails) > 1 && !a.Caps.Has(transport.CapWaitFD)
	}
	e.policy = newPolicy(p, cfg.LocalRanks, cfg.Cores)
	e.home = newHome(cfg.LocalRank, cfg.LocalRanks)
	e.want(false)
	if err := e.waitset.open(e.rails); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	e.open = true
	engines.Add(1)
	if p.Bool("engine.async_progress") && cfg.Size > 1 {
		e.kick = make(chan struct{}, 1)
		e.goroutines.Add(1)
		go e.asyncLoop() // ended by Close, which waits for it
	}
	if e.launcher = cfg.Launcher; e.launcher != nil {
		e.listening.Add(1)
		go e.newsLoop() // ended by Close, which waits for it
	}
	return e, nil
}

// Rank is the world rank of this engine, Size the number of ranks of the job.
func (e *Engine) Rank() int { return e.rank }

// Size is the number of ranks of the job.
func (e *Engine) Size() int { return e.size }

// Close ends the engine in good order: what was sent is delivered, peers are
// told, and every request that is not complete ends with ErrClosed. The caller
// sees to it that all ranks are through with each other (a barrier). ctx bounds
// the time; what is left then is cut off.
func (e *Engine) Close(ctx context.Context) error { return e.close(ctx, true) }

// Kill ends the engine as if its process had died.
func (e *Engine) Kill() { _ = e.close(context.Background(), false) }

func (e *Engine) close(ctx context.Context, graceful bool) error {
	e.mu.lock()
	if graceful && !e.closed {
		e.flush(ctx)
	}
	if e.closed { // before, or by another while this one flushed
		e.mu.unlock()
		return nil
	}
	e.closed = true
	e.news.Add(1)
	for i := range e.peers {
		e.peers[i].eager = -1
	}
	if e.kick != nil {
		select {
		case e.kick <- struct{}{}:
		default:
		}
	}
	e.failAll(func(r *request) bool { return !r.inflight }, ErrClosed)
	e.endPorts(func(*Port) bool { return true }, ErrClosed)
	for _, w := range append([]*waiter{}, e.followers...) {
		e.wake(w)
	}
	for e.leader != nil || e.asyncAsleep {
		e.signal()
		e.quiet.Wait()
	}
	if e.open {
		engines.Add(-1)
		e.open = false
	}
	ctx, cancel := context.WithCancelCause(ctx)
	e.late = func() { cancel(errLate) }
	for i := range e.peers {
		if e.clings(int32(i)) { // it would be said goodbye to
			time.AfterFunc(lateGrace, e.late)
			break
		}
	}
	e.mu.unlock()
	e.goroutines.Wait()
	for _, f := range e.onClose {
		f()
	}

	var err error
	for i := range e.rails {
		if graceful {
			serr := e.rails[i].Endpoint.Shutdown(ctx)
			if serr != nil && errors.Is(context.Cause(ctx), errLate) {
				serr = nil // the others have had their time
			}
			err = errors.Join(err, serr)
		}
	}
	cancel(nil)
	if e.launcher != nil {
		_ = e.launcher.Close() // nothing was written to it
	}
	e.listening.Wait()
	e.mu.lock()
	for _, s := range e.spans {
		err = errors.Join(err, s.withdrawLocked())
	}
	e.mu.unlock()
	for i := range e.rails {
		err = errors.Join(err, e.rails[i].Domain.Close())
	}
	e.waitset.close()
	e.mu.lock()
	e.failAll(func(*request) bool { return true }, ErrClosed)
	e.mu.unlock()
	e.workers.close()
	err = errors.Join(err, e.Reap())
	if err != nil {
		return fmt.Errorf("engine: close: %w", err)
	}
	return nil
}

// flush moves what is queued and in flight out, for as long as ctx allows.
func (e *Engine) flush(ctx context.Context) {
	w := e.newWaiter()
	defer e.freeWaiter(w)
	for e.sending() && ctx.Err() == nil && e.fatal == nil {
		w.ready = false
		e.watchers = append(e.watchers, w)
		err := e.await(ctx, w)
		e.unwatch(w)
		if err != nil {
			return
		}
	}
}

// sending reports whether anything posted is still on its way out.
func (e *Engine) sending() bool {
	for _, r := range e.slots {
		if r.kind != kindFree && !r.done && (r.inflight && !e.clings(r.peer) || r.kind == kindControl) {
			return true
		}
	}
	return false
}

// failAll completes the requests under way that which picks.
func (e *Engine) failAll(which func(*request) bool, err error) {
	for _, r := range e.slots {
		if r.kind == kindFree || r.kind == kindTask || r.kind == kindOp || r.done || !which(r) {
			continue
		}
		e.withdraw(r)
		r.inflight = false
		e.finish(r, err)
	}
}

// withdraw takes a request out of the queue it stands in. A transfer stands in
// one too while it waits for room in the endpoint.
func (e *Engine) withdraw(r *request) {
	switch {
	case r.phase == phasePosted:
		e.posted.withdraw(r)
	case r.phase == phaseQueued && r.kind == kindSend:
		e.peers[r.peer].data.drop(r)
	case r.phase == phaseQueued, r.phase == phasePumping, r.phase == phaseReading:
		e.peers[r.peer].control.drop(r)
	}
	r.phase = phaseIdle
}

// finish completes a request, or frees it if no Request names it.
func (e *Engine) finish(r *request, err error) {
	if r.kind == kindTransfer {
		e.transferDone(r, err)
		return
	}
	if r.kind == kindControl {
		e.redeem(r)
		e.release(r)
		e.tellWatchers()
		return
	}
	e.complete(r, err)
}
