// Package engine matches messages and moves their data. It implements the eager and rendezvous
// protocols, credits, requests and progress over the endpoints of one or several transports. It
// handles bytes, ranks, tags and contexts. Package comm, above it, handles element types; the
// transports, below it, handle sockets and memory mappings.
//
// Everything is safe for concurrent use. One lock, Engine.mu, guards an engine. A goroutine holds
// it for the time of a poll or a post. "The caller holds the lock" always means Engine.mu.
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
	Synchronous             // when, in addition, a receive has matched the message (MPI_Ssend)

	modeLeave  // of a MsgLeave, which the engine itself sends
	modeProbed // of a receive that Message.Irecv has started
)

// The errors of the engine. The errors that calls return wrap them, with the cause.
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

// The errors of operations on a closed engine and on a freed context.
var (
	errFinalize = fmt.Errorf("%w: Finalize was called", ErrClosed)
	errFree     = fmt.Errorf("%w: the communicator was freed", ErrClosed)
)

// Rail is one open transport of the engine.
type Rail struct {
	Domain   transport.Domain
	CQ       transport.CompletionQueue
	Endpoint transport.Endpoint
}

type rail struct {
	Rail
	rma        transport.RMAEndpoint        // nil: rendezvous by messages
	atomic     transport.AtomicEndpoint     // nil: no atomics
	connect    transport.ConnectEndpoint    // nil: the transport reports the end of every peer without a connection
	disconnect transport.DisconnectEndpoint // nil: the transport cannot disconnect one peer
	shared     transport.SharedMemoryDomain // nil: ranks cannot map each other's memory
	batch      transport.BatchEndpoint      // nil: Send transmits each message at once
	attr       transport.Attr
	eager      int  // largest data of an eager message
	index      int  // in Engine.rails
	pace       int  // after an empty Read, the next pace calls of progress do not read the queue
	skip       int  // number of next calls of progress that do not read the queue; guarded by Engine.mu
	unsent     bool // the endpoint keeps messages until the next Read; counted in Engine.unsent; guarded by Engine.mu
}

// open initializes r from one rail of Config. Its eager limit is set if set is not 0, else the
// transport's; but at most eagerMax, and at most what fits into the transport's largest message.
func (r *rail) open(given Rail, index, eagerMax, set int) error {
	a := given.Domain.Attr()
	*r = rail{
		Rail: given, attr: a, index: index,
		rma:        extension[transport.RMAEndpoint](a, transport.CapRead, given.Endpoint),
		atomic:     extension[transport.AtomicEndpoint](a, transport.CapAtomic, given.Endpoint),
		connect:    extension[transport.ConnectEndpoint](a, transport.CapConnect, given.Endpoint),
		disconnect: extension[transport.DisconnectEndpoint](a, transport.CapDisconnect, given.Endpoint),
		batch:      extension[transport.BatchEndpoint](a, transport.CapBatch, given.Endpoint),
		shared:     extension[transport.SharedMemoryDomain](a, transport.CapSharedMemory, given.Domain),
	}
	if a.Caps.Has(transport.CapRead) && r.rma == nil || a.Caps.Has(transport.CapAtomic) && r.atomic == nil ||
		a.Caps.Has(transport.CapConnect) && r.connect == nil {
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

// extension returns v as an interface T if its transport reports the capability bit. It returns
// nil if the transport does not report the bit, or if a wrapper of v hides the methods.
func extension[T any](a transport.Attr, bit transport.Caps, v any) (t T) {
	if a.Caps.Has(bit) {
		t, _ = v.(T)
	}
	return t
}

// paceMax is the maximum of rail.pace.
const paceMax = 64

// setPaces makes progress read the queues of slow transports less often than those of fast ones.
func setPaces(rails []rail) {
	fastest := math.MaxInt
	for i := range rails {
		fastest = min(fastest, max(1, rails[i].attr.LatencyNs))
	}
	for i := range rails {
		rails[i].pace = min(max(0, rails[i].attr.LatencyNs/fastest-1), paceMax)
	}
}

// Config describes an engine for New.
type Config struct {
	Rank, Size int
	Params     *params.Set             // nil: all defaults
	Rails      []Rail                  // in order of preference; Close closes them
	Route      []uint8                 // by world rank: index of the rail that leads to the rank; nil: the first rail leads to all
	LocalRanks int                     // ranks of this job on this host
	Cores      int                     // hardware threads that the ranks of this host share; 0: the threads that this process may use
	TypeName   func(sig uint16) string // returns the name of the element type that Env.Sig stands for; nil: errors print the number
	Notice     func(error)             // called, without a lock, for warnings that fail no operation; may be nil
	Launcher   *os.File                // channel on which the launcher reports failed ranks, see loss.go; may be nil; Close closes it
}

// Engine is the message engine of one rank.
type Engine struct {
	rank, size   int
	rails        []rail
	policy       waitPolicy
	start        time.Time
	spinLimit    atomic.Int32 // number of times that Await loads its word before it yields or takes the lock
	napsOnly     bool         // a transport cannot end a sleep when something arrives, so sleeps are short naps
	eagerLimit   int          // smallest eager limit of all rails; also the limit of messages to this rank itself
	window       int          // credits per peer, bytes
	typeName     func(uint16) string
	notice       func(error)
	onClose      []func()
	launcher     *os.File
	stateVersion atomic.Uint32 // see StateVersion

	mu mutex // guards everything below

	peers        []peer
	stalled      []int32 // peers with queued requests
	stalledSpare []int32 // buffer that retry exchanges with stalled
	posted       postedQueue
	unexpected   unexpectedQueue
	buffers      bufferPool
	revoked      map[uint64]error    // by communicator (context id / 2): the error of its revocation
	revokedBy    map[uint64]int32    // by communicator: the peer that sent the revocation, until forwardRevokes forwards it
	contexts     map[uint64]*Context // by communicator: one of its two contexts
	ports        map[uint64]*Port    // by context id
	spans        []*Span             // memory of Alloc, sorted by address

	slots       []*request // the table of requests; nil: no slot, see vacate
	vacant      []vacancy  // the indices whose entry in slots is nil
	finished    list       // requests with a hint that have ended and were not collected yet; see several.go
	uncollected int        // number of named requests that have ended and were not collected yet
	free        *request
	unused      int      // number of slots in free; at most slotsKept, because moreSlots runs only when free is empty
	spare       *request // a slot that sendNow has taken and may use; may be nil
	active      int      // number of background requests that are not done, plus open ports that need progress
	large       int      // number of background requests that are larger than the eager limit
	tasks       int      // number of functions that Engine.Go runs now
	exposed     int      // number of regions that peers access by RMA which needs this rank's polls
	unsent      int      // number of rails whose endpoint keeps messages until the next Read
	moving      int      // number of requests whose data is being transferred, which may need this rank's polls

	leader            *waiter
	polls             int           // number of polls of leaders
	failedTests       int           // calls of Test, Iprobe and the like in a row that found nothing; see testFailed
	noYieldUntil      time.Duration // until this time on clock, such calls do not yield
	coreWanted        bool          // another thread wants the core: the last yield took wantedYield or longer
	lastGosched       time.Duration // when a leader last called enterScheduler
	leads             atomic.Uint64 // how often a goroutine has begun to lead; written under mu
	parked            []*waiter     // waiters that sleep until wake
	followers         int           // number of parked waiters that are not passive
	resuming          int           // number of waiters that are runnable and have not taken the lock yet
	waking            int           // number of ready waiters among those
	wakes             atomic.Uint64 // number of waiters that became ready while parked or on standby; written under mu
	completionWaiters []*waiter     // woken at the end of every request
	probeWaiters      []*waiter     // woken by a message that matches their key, the end of a peer, and a revocation
	wordWaiters       []*waiter     // waiters for words in shared memory, which the leader loads
	freeWaiters       *waiter
	background        backgroundState
	backgroundNow     bool          // the background goroutine leads at once instead of at the next tick
	backgroundLazy    bool          // the background goroutine waits for a lazyTick
	holdsProcessor    bool          // the background goroutine holds a processor; see holdProcessor
	async             bool          // asynchronous progress: the background goroutine also serves requests that no goroutine waits for
	asleep            bool          // a goroutine is in Wait
	sleeper           *waiter       // the goroutine in Wait; nil: the background goroutine, or none
	nap               time.Duration // time limit of that Wait; negative: none
	failures          int           // number of peers known to have failed
	changes           uint32        // number of peers that have ended, plus the number of calls of WakeAttend
	finalizing        int           // number of peers known to be in Finalize
	dropped           dropped       // see leftover.go
	origins           []origin      // by index of the slot; empty if SetOrigin was never called
	originSeq         uint64        // number of the last SetOrigin
	leaving           *Context      // if this rank is in Finalize, the context in which it sends MsgLeave; else nil
	cancelShutdown    func()        // ends the shutdown of the transports; nil: Close has not begun it
	query             peerQuery
	account           account

	closed  bool
	fatal   error      // why the engine has failed; nil: it has not
	quiet   *sync.Cond // signaled when a goroutine leaves await or the background goroutine ends, after closed was set
	entries [32]transport.Completion

	waitset       waitset       // set by New
	kick          chan struct{} // wakes the background goroutine; nil: the engine has no transport, and so no background goroutine
	goroutines    sync.WaitGroup
	failureReader sync.WaitGroup // the goroutine of failureLoop
	workers       workers
}

// peer holds what the engine knows about another rank.
type peer struct {
	rail            *rail
	err             error         // why no more messages can be sent to the peer; nil: they can
	eager           int           // largest data of an eager message; -1: the peer is this rank itself, or has ended
	sendSeq         uint32        // sequence number of the last message sent
	recvSeq         uint32        // sequence number of the last message received
	credit          int           // bytes of the peer's memory for unexpected messages that this rank may use
	unexpectedBytes int           // bytes of this rank's memory for unexpected messages that the peer uses
	owed            int           // bytes of credit to return to the peer
	control         list          // queued messages of the engine itself, and reads; they leave before data
	data            list          // queued sends of the program
	noRoom          bool          // the endpoint has returned ErrAgain
	absent          bool          // that error was ErrAbsent: the peer has not started yet
	noRoomSince     time.Duration // when napTime first found noRoom set, on clock; 0: it has not
	isQueued        bool          // in Engine.stalled
	left            bool          // the peer has shut down in good order
	markedFailed    bool          // markFailed was called for the peer
	inFinalize      bool          // the peer is in Finalize; counted in Engine.finalizing
	queried         bool          // connect has sent the peer a message, after which the peer reports its Finalize
	leaveSent       bool          // this rank has sent MsgLeave to the peer
}

// noteNoRoom records that the endpoint has returned err, which is ErrAgain or ErrAbsent.
func (p *peer) noteNoRoom(err error) { p.noRoom, p.absent = true, errors.Is(err, transport.ErrAbsent) }

// The limits of the credit that a peer gets, in bytes.
const (
	windowMin = 16 << 10
	windowMax = 1 << 20
)

// New returns the engine of a rank. The endpoints of the transports are open, and their address
// vectors hold every rank of the job.
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
		revoked: make(map[uint64]error), revokedBy: make(map[uint64]int32), contexts: make(map[uint64]*Context),
		ports:  make(map[uint64]*Port),
		notice: cfg.Notice, typeName: cfg.TypeName,
	}
	e.mu.init()
	e.start = time.Now()
	e.quiet = sync.NewCond(&e.mu)
	e.workers.tasks = make(chan task, maxIdleWorkers)
	e.window = min(max(p.Int("engine.unexpected_limit")/max(1, cfg.Size-1), windowMin), windowMax)
	eagerMax := e.window/4 - messageCost // so that the window has room for several messages
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
		// A sleep on several queues uses their descriptors; see waitset.
		a := &e.rails[i].attr
		e.napsOnly = e.napsOnly || a.NoWaitObject || len(e.rails) > 1 && !a.Caps.Has(transport.CapWaitFD)
	}
	e.policy = newWaitPolicy(p, cfg.LocalRanks, cfg.Cores)
	e.setCoreWanted(false)
	e.waitset.init(e.rails)
	engines.Add(1)
	if len(e.rails) > 0 {
		e.async = p.Bool("engine.async_progress")
		e.kick = make(chan struct{}, 1)
		e.goroutines.Add(1)
		go e.backgroundLoop() // Close ends it and waits for it
	}
	if e.launcher = cfg.Launcher; e.launcher != nil {
		e.failureReader.Add(1)
		go e.failureLoop() // Close ends it and waits for it
	}
	return e, nil
}

// Transport returns the name of the provider that carries messages to a world rank. It returns ""
// for this rank itself, and for ranks that do not exist.
func (e *Engine) Transport(rank int) string {
	if rank < 0 || rank >= e.size || rank == e.rank {
		return ""
	}
	return e.peers[rank].rail.attr.Provider // set by New, and never changed
}

// Close ends the engine in good order: it sends what is queued, tells the peers that this rank
// leaves, and ends every request that is not complete with ErrClosed. The caller makes sure, by a
// barrier, that all ranks have ended their communication. If ctx ends first, Close drops what has
// not been sent.
func (e *Engine) Close(ctx context.Context) error { return e.close(ctx, true) }

// Kill ends the engine as if its process had died.
func (e *Engine) Kill() { _ = e.close(context.Background(), false) }

func (e *Engine) close(ctx context.Context, graceful bool) error {
	e.mu.Lock()
	if graceful && !e.closed {
		e.flush(ctx)
	}
	if e.closed { // already, or another goroutine closed it during flush
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	e.wakeBackground()
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
	e.cancelShutdown = func() { cancel(errShutdownCancelled) }
	for i := range e.peers {
		if e.cannotDisconnect(int32(i)) { // Shutdown would wait for this peer
			time.AfterFunc(shutdownGrace, e.cancelShutdown)
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
			if serr != nil && errors.Is(context.Cause(ctx), errShutdownCancelled) {
				serr = nil // Close has ended this wait itself, shutdownGrace after the failure of a rank
			}
			err = errors.Join(err, serr)
		}
	}
	cancel(nil)
	if e.launcher != nil {
		_ = e.launcher.Close() // the engine has only read from it
	}
	e.failureReader.Wait()
	e.mu.Lock()
	for _, s := range e.spans {
		err = errors.Join(err, s.closeRegionsLocked())
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

// flush sends what is queued and in flight until ctx ends.
func (e *Engine) flush(ctx context.Context) {
	for e.sending() && ctx.Err() == nil && e.fatal == nil {
		if e.awaitIn(ctx, &e.completionWaiters, awaited{}) != nil {
			return
		}
	}
}

// sending reports whether a message or transfer is still queued or in flight. It ignores requests
// to peers that have failed and cannot be disconnected.
func (e *Engine) sending() bool {
	for _, r := range e.slots {
		if r != nil && r.kind != kindFree && !r.done && (r.inflight && !e.cannotDisconnect(r.peer) || r.kind == kindControl) {
			return true
		}
	}
	return false
}

// failAll completes with err the requests under way for which which returns true. It leaves out
// tasks and the requests of Port.Begin.
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

// withdraw removes a request from the queue that it is in, if any. A transfer is in a queue while
// it waits for room in the endpoint.
func (e *Engine) withdraw(r *request) {
	if r.phase == phasePosted {
		e.posted.withdraw(r)
	} else {
		r.node.remove()
	}
	r.phase = phaseIdle
}

// finish ends a request, or a transfer of a port.
func (e *Engine) finish(r *request, err error) {
	if r.kind == kindTransfer {
		e.transferDone(r, err)
		return
	}
	e.complete(r, err)
}
