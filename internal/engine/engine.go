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

	leave  // of the engine's own MsgLeave
	probed // of a receive that Message.Irecv started
)

// The errors of the engine; wrapped with their cause.
var (
	ErrTruncate   = errors.New("message longer than the receive buffer")
	ErrProcFailed = errors.New("process failed")
	ErrRevoked    = errors.New("communicator revoked")
	ErrClosed     = errors.New("cannot be used any more")
	ErrFinalized  = errors.New("a rank that the call needs has finalized")
	ErrMismatch   = errors.New("ranks disagree")
)

// ReasonError is one failure that wraps its kind, such as ErrProcFailed, and its reason. An
// error of errors.Join, in contrast, wraps several failures.
type ReasonError struct{ err error }

func reasonError(format string, args ...any) error { return &ReasonError{fmt.Errorf(format, args...)} }

// Error returns the kind and the reason.
func (r *ReasonError) Error() string { return r.err.Error() }

// Unwrap returns an error that wraps both.
func (r *ReasonError) Unwrap() error { return r.err }

// The reasons why an operation finds its context or the engine closed.
var (
	errFinalize = fmt.Errorf("%w: Finalize was called", ErrClosed)
	errFree     = fmt.Errorf("%w: the communicator was freed", ErrClosed)
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
	link   transport.ConnectEndpoint    // nil: it reports every peer's end unasked
	cut    transport.DisconnectEndpoint // nil: it cannot give up a peer
	shared transport.SharedMemoryDomain // nil: no rank maps memory of others
	batch  transport.BatchEndpoint      // nil: a message that Send has taken leaves at once
	attr   transport.Attr
	eager  int  // largest data of an eager message
	index  int  // in Engine.rails
	pace   int  // how many calls of progress leave its queue out when it was empty
	skip   int  // how many more do; guarded by Engine.mu
	unsent bool // counted in Engine.unsent; guarded by Engine.mu
}

// open makes a rail of what New gets. Its eager limit is the transport's or, if set is
// not 0, set; but at most eagerMax and what fits the transport's largest message.
func (r *rail) open(given Rail, index, eagerMax, set int) error {
	a := given.Domain.Attr()
	*r = rail{
		Rail: given, attr: a, index: index,
		rma:    extension[transport.RMAEndpoint](a, transport.CapRead, given.Endpoint),
		atomic: extension[transport.AtomicEndpoint](a, transport.CapAtomic, given.Endpoint),
		link:   extension[transport.ConnectEndpoint](a, transport.CapConnect, given.Endpoint),
		cut:    extension[transport.DisconnectEndpoint](a, transport.CapDisconnect, given.Endpoint),
		batch:  extension[transport.BatchEndpoint](a, transport.CapBatch, given.Endpoint),
		shared: extension[transport.SharedMemoryDomain](a, transport.CapSharedMemory, given.Domain),
	}
	if a.Caps.Has(transport.CapRead) && r.rma == nil || a.Caps.Has(transport.CapAtomic) && r.atomic == nil ||
		a.Caps.Has(transport.CapConnect) && r.link == nil {
		return fmt.Errorf("engine: transport %s reports a capability and lacks its methods", a.Provider)
	}
	if r.batch != nil {
		r.batch.EnableBatch()
	}
	limit := a.EagerLimit
	if set > 0 {
		limit = set
	}
	r.eager = max(0, min(eagerMax, limit, a.MaxMsgSize-transport.HeaderSize))
	return nil
}

// extension returns v as an interface T if its transport reports the capability bit;
// nil: the transport does not, or a wrapper of v hides the methods.
func extension[T any](a transport.Attr, bit transport.Caps, v any) (t T) {
	if a.Caps.Has(bit) {
		t, _ = v.(T)
	}
	return t
}

// paceMax bounds rail.pace.
const paceMax = 64

// setPaces makes progress poll slow transports less often.
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
	Params     *params.Set             // nil: all defaults
	Rails      []Rail                  // in order of preference; closed by Close
	Route      []uint8                 // by world rank: the rail that leads to it; nil: the first rail
	LocalRanks int                     // ranks of this job on this host
	Cores      int                     // hardware threads that those ranks share; 0: those that this process may use
	TypeName   func(sig uint16) string // name of the types that a Sig of point-to-point messages stands for; nil: errors print the number
	Notice     func(error)             // gets warnings that fail no operation; called without a lock; may be nil
	Launcher   *os.File                // the launcher writes here which ranks have failed, see loss.go; may be nil. Close closes it
}

// Engine is the message engine of one rank.
type Engine struct {
	rank, size int
	rails      []rail
	policy     policy
	born       time.Time
	glances    atomic.Int32 // of an Await at its word before it takes the lock
	blind      bool         // a transport cannot end a sleep when something comes
	eagerLimit int          // the least of the rails', and of messages to this rank itself
	window     int          // credits per peer, bytes
	typeName   func(uint16) string
	notice     func(error)
	onClose    []func()
	launcher   *os.File
	news       atomic.Uint32 // see News

	mu mutex // guards everything below

	peers        []peer
	stalled      []int32 // peers with something queued
	stalledSpare []int32 // what retry works through while stalled fills again
	posted       postedQueue
	unexpected   unexpectedQueue
	buffers      bufferPool
	revoked      map[uint64]error    // by communicator: context id / 2
	hearsay      map[uint64]int32    // the same: the peer that sent the revocation, until repeat sends it on
	contexts     map[uint64]*Context // the same: one of the two
	ports        map[uint64]*Port    // by context id
	spans        []*Span             // what Alloc has allocated, by address

	slots    []*request // nil: no slot, see vacate
	vacant   []vacancy  // the indices of these
	finished list       // requests with a hint that have ended and are not collected; see several.go
	ended    int        // all that have ended and are not collected
	free     *request
	unused   int      // slots of free; at most slotsKept, since moreSlots adds to none
	spare    *request // a slot that is taken and not in use, for sendNow; may be nil
	active   int      // background requests that are not done
	large    int      // those of them that are rendezvous, as far as one can tell
	tasks    int      // functions under way on goroutines of their own
	exposed  int      // regions that peers reach by RMA which our progress serves
	unsent   int      // rails with messages that leave with the next Read of their queue
	moving   int      // requests whose data is on its way, perhaps by our progress alone

	leader      *waiter
	polls       int           // of leaders, ever
	unanswered  int           // questions in a row that found nothing; see found
	keepCore    time.Duration // until then such questions do not yield
	wanted      bool          // another thread wants the core: the last yield took long
	shownUp     time.Duration // when the last went through the scheduler
	leads       atomic.Uint64 // how often a goroutine led; written under mu
	parked      []*waiter     // waiters that sleep until tell
	followers   int           // of the parked, those that are not passive
	resuming    int           // waiters that are runnable and have yet to take the lock
	waking      int           // of those, the ready ones
	wakes       atomic.Uint64 // how many became ready while parked or standing by; written under mu
	watchers    []*waiter     // told of every request's end
	probes      []*waiter     // told of the next message with their key, and of peers' ends and revocations
	words       []*waiter     // those whose word in shared memory the leader looks at
	freeWaiters *waiter
	background  backgroundState
	now         bool          // the background goroutine need not wait for a tick
	lazy        bool          // it waits for a lazyTick
	holding     bool          // it holds a processor
	async       bool          // it looks after requests that no goroutine waits for, too
	asleep      bool          // a goroutine is in Wait:
	sleeper     *waiter       // this one, or the background goroutine
	nap         time.Duration // the limit of that Wait; negative: it has none
	failures    int           // peers known to have failed
	ends        uint32        // number of peers that have ended, plus calls of Nudge
	finals      int           // peers known to be in Finalize
	dropped     dropped       // see leftover.go
	origins     []origin      // by slot; empty unless SetOrigin was called
	originSeq   uint64        // of the last SetOrigin
	leaving     *Context      // in Finalize: the context in which this rank sends MsgLeave; else nil
	late        func()        // ends the transports' shutdown; nil: none is under way
	inquiry     inquiry
	account     account

	closed  bool
	fatal   error // why a transport is of no further use
	quiet   *sync.Cond
	entries [32]transport.Completion

	waitset    waitset       // set by New
	kick       chan struct{} // to the background goroutine; nil: there is none, for there is no transport
	goroutines sync.WaitGroup
	listening  sync.WaitGroup // the one of newsLoop
	workers    workers
}

// peer is what the engine knows of another rank.
type peer struct {
	rail     *rail
	err      error         // why nothing more can be sent to it
	eager    int           // largest data of an eager message; -1: to itself, or nothing can be sent any more
	sendSeq  uint32        // of the last message sent
	recvSeq  uint32        // of the last message received
	credit   int           // bytes of its unexpected-message memory that we may fill
	held     int           // bytes of ours that it fills
	owed     int           // bytes to give back to it
	control  list          // messages of the engine's own and reads: sent before
	data     list          // users' sends
	again    bool          // the endpoint said ErrAgain
	absent   bool          // and it was ErrAbsent
	waits    time.Duration // since when it has said so, counted from Engine.born; 0: napTime has not seen it
	isQueued bool          // in Engine.stalled
	left     bool          // the peer shut down in good order
	givenUp  bool          // by giveUp
	final    bool          // the peer is in Finalize; counted in Engine.finals
	asked    bool          // Inquire has sent the peer a message
	told     bool          // this rank has sent the peer MsgLeave
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
		notice: cfg.Notice, typeName: cfg.TypeName,
	}
	e.mu.init()
	e.born = time.Now()
	e.quiet = sync.NewCond(&e.mu)
	e.workers.tasks = make(chan task, maxIdleWorkers)
	e.window = min(max(p.Int("engine.unexpected_limit")/max(1, cfg.Size-1), windowMin), windowMax)
	eagerMax := e.window/4 - messageCost // a message must leave room for others within the window
	e.eagerLimit = eagerMax
	e.rails = make([]rail, len(cfg.Rails))
	for i, r := range cfg.Rails {
		if err := e.rails[i].open(r, i, eagerMax, p.Int("engine.eager_limit")); err != nil {
			return nil, err
		}
		e.eagerLimit = min(e.eagerLimit, e.rails[i].eager)
	}
	for r := range e.peers {
		to, i := &e.peers[r], 0
		to.credit, to.eager = e.window, -1
		if r == cfg.Rank {
			continue
		}
		if cfg.Route != nil {
			i = int(cfg.Route[r])
		}
		if i >= len(e.rails) {
			return nil, fmt.Errorf("engine: no transport leads to rank %d", r)
		}
		to.rail, to.eager = &e.rails[i], e.rails[i].eager
	}
	setPaces(e.rails)
	for i := range e.rails {
		// A sleep on several queues waits for their descriptors; see waitset.
		a := &e.rails[i].attr
		e.blind = e.blind || a.NoWaitObject || len(e.rails) > 1 && !a.Caps.Has(transport.CapWaitFD)
	}
	e.policy = newPolicy(p, cfg.LocalRanks, cfg.Cores)
	e.want(false)
	e.waitset.init(e.rails)
	engines.Add(1)
	if len(e.rails) > 0 {
		e.async = p.Bool("engine.async_progress")
		e.kick = make(chan struct{}, 1)
		e.goroutines.Add(1)
		go e.backgroundLoop() // ended by Close, which waits for it
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

// Transport returns the provider's name of the transport to a world rank. It is empty
// for this rank itself, whose messages use none, and for ranks that do not exist.
func (e *Engine) Transport(rank int) string {
	if rank < 0 || rank >= e.size || rank == e.rank {
		return ""
	}
	return e.peers[rank].rail.attr.Provider // New sets it, and it never changes
}

// Close ends the engine in good order: it delivers what was sent, tells the peers,
// and ends every request that is not complete with ErrClosed. The caller makes
// sure, by a barrier, that all ranks have ended their communication. ctx bounds the
// time; Close drops what has not left by then.
func (e *Engine) Close(ctx context.Context) error { return e.close(ctx, true) }

// Kill ends the engine as if its process had died.
func (e *Engine) Kill() { _ = e.close(context.Background(), false) }

func (e *Engine) close(ctx context.Context, graceful bool) error {
	e.mu.Lock()
	if graceful && !e.closed {
		e.flush(ctx)
	}
	if e.closed { // before, or by another while this one flushed
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	e.rouseBackground()
	e.endAll(nil, errFinalize)
	for len(e.parked) > 0 {
		e.unpark(e.parked[0])
	}
	for e.leader != nil || e.resuming > 0 || e.asleep {
		e.signal()
		e.quiet.Wait()
	}
	engines.Add(-1)
	ctx, cancel := context.WithCancelCause(ctx)
	e.late = func() { cancel(errLate) }
	for i := range e.peers {
		if e.clings(int32(i)) { // Shutdown would say goodbye to it and wait
			time.AfterFunc(lateGrace, e.late)
			break
		}
	}
	e.mu.Unlock()
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
	e.mu.Lock()
	for _, s := range e.spans {
		err = errors.Join(err, s.withdrawLocked())
	}
	e.mu.Unlock()
	for i := range e.rails {
		err = errors.Join(err, e.rails[i].Domain.Close())
	}
	e.mu.Lock()
	e.failAll(func(*request) bool { return true }, errFinalize)
	e.mu.Unlock()
	e.endWorkers()
	err = errors.Join(err, e.Reap())
	if err != nil {
		return fmt.Errorf("engine: close: %w", err)
	}
	return nil
}

// flush moves what is queued and in flight out, for as long as ctx allows.
func (e *Engine) flush(ctx context.Context) {
	for e.sending() && ctx.Err() == nil && e.fatal == nil {
		if e.awaitIn(ctx, &e.watchers, awaited{}) != nil {
			return
		}
	}
}

// sending reports whether anything posted is still on its way out.
func (e *Engine) sending() bool {
	for _, r := range e.slots {
		if r != nil && r.kind != kindFree && !r.done && (r.inflight && !e.clings(r.peer) || r.kind == kindControl) {
			return true
		}
	}
	return false
}

// failAll completes the requests under way that which picks.
func (e *Engine) failAll(which func(*request) bool, err error) {
	for _, r := range e.slots {
		if r == nil || r.kind == kindFree || r.kind == kindTask || r.kind == kindOp || r.done || !which(r) {
			continue
		}
		e.cancel(r, err)
	}
}

// cancel completes a request under way with an error.
func (e *Engine) cancel(r *request, err error) {
	e.withdraw(r)
	r.inflight = false
	e.finish(r, err)
}

// withdraw takes a request out of the queue that it is in. A transfer is in one, too,
// while it waits for room in the endpoint.
func (e *Engine) withdraw(r *request) {
	if r.phase == phasePosted {
		e.posted.withdraw(r)
	} else {
		r.node.remove()
	}
	r.phase = phaseIdle
}

// finish ends a request or a transfer.
func (e *Engine) finish(r *request, err error) {
	if r.kind == kindTransfer {
		e.transferDone(r, err)
		return
	}
	e.complete(r, err)
}
