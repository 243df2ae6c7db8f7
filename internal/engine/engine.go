// Package engine matches messages and moves their data. It implements the eager and rendezvous
// protocols, credits, requests and progress over the endpoints of one or several transports. It
// transfers bytes: the packages above it know element types, and the transports below it know
// sockets and memory mappings.
//
// All exported functions are safe for concurrent use, unless their comments say otherwise. One
// lock, Engine.mu, guards the state of an engine, and the callers of most unexported functions hold
// it. A goroutine holds the lock for a short time only, for example for one poll of the transports,
// or to post one operation. "The caller holds the lock" always means Engine.mu.
//
// Words that the comments of this package use:
//
//   - The program is the code that calls the engine: the user's code, and the packages above this
//     one.
//   - A context is a communication context ([Context]), as in MPI. A Go context is called ctx, or
//     context.Context.
//   - A rail is one open transport ([Rail]).
//   - A slot is an entry of the engine's table of requests ([request]). After its request was
//     freed, another request may use it.
//   - To lead means to poll the transports for the whole rank. At most one goroutine, the leader,
//     does so at a time. Most other goroutines that wait are parked, as followers. See wait.go.
//   - The background goroutine belongs to the engine. It polls if work is left and no other
//     goroutine polls. See background.go.
//   - A task is a function that the program passes to [Engine.Go], for example the code of a
//     nonblocking collective.
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
	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/transport"
)

// AnySource and AnyTag are the wildcards of receives and probes, as values of Env.Peer and Env.Tag
// (MPI_ANY_SOURCE and MPI_ANY_TAG).
const (
	AnySource = wild
	AnyTag    = wild
)

// Mode says when a send is complete. Further modes, which only the engine uses, mark certain
// requests.
type Mode uint8

// The modes. The program uses the first two; only the engine uses the others.
const (
	Standard Mode = iota // a send that is complete when its buffer may be reused (MPI_Send)
	// A send that is complete when, in addition, a receive has matched the message (MPI_Ssend).
	Synchronous

	modeLeave       // the send of a MsgLeave, by which this rank informs a peer that this rank is in Finalize
	modeProbed      // a receive that Message.Irecv has started
	modePartitioned // a send that IsendPartitioned has started: a rendezvous also if the data is short
)

// The sentinel errors of the engine. A call that fails for one of these reasons returns an error
// that wraps the sentinel, so a caller tests for it by errors.Is.
var (
	ErrTruncate   = errors.New("message longer than the receive buffer")
	ErrProcFailed = errors.New("process failed")
	ErrRevoked    = errors.New("communicator revoked")
	ErrClosed     = errors.New("cannot be used any more")
	ErrFinalized  = errors.New("a rank that the call needs has finalized")
	ErrMismatch   = errors.New("ranks disagree")
	// ErrPending: a receive from any source stays posted although a process has failed. It wraps
	// ErrProcFailed.
	ErrPending = fmt.Errorf("%w while a receive from any source is posted", ErrProcFailed)
)

// ReasonError is the error of one failure. It wraps two errors: the kind of the failure, such as
// ErrProcFailed, and the reason. The type lets a caller distinguish it from an error of
// errors.Join, which wraps several failures.
type ReasonError struct {
	err  error
	rank int // world rank of the peer that has failed; -1: the error is not about one
}

func reasonError(format string, args ...any) error {
	return &ReasonError{fmt.Errorf(format, args...), -1}
}

// FailedRank returns the world rank of the process whose failure err reports. ok is false if err
// does not name one.
func FailedRank(err error) (rank int, ok bool) {
	var loss *lossError
	if errors.As(err, &loss) {
		return loss.rank, true
	}
	for r := (*ReasonError)(nil); errors.As(err, &r); err = r.err {
		if r.rank >= 0 {
			return r.rank, true
		}
	}
	return 0, false
}

// Error returns a text that contains the kind and the reason.
func (r *ReasonError) Error() string { return r.err.Error() }

// Unwrap returns an error that wraps the kind and the reason.
func (r *ReasonError) Unwrap() error { return r.err }

// errFinalize is the error of operations on an engine that Close or Kill has closed. errFree is the
// error of receives that were posted in a context when Context.Close freed it. If Context.Close
// drops a message whose sender waits for the receive, it reports errFree to the sender.
var (
	errFinalize = fmt.Errorf("%w: Finalize was called", ErrClosed)
	errFree     = fmt.Errorf("%w: the communicator was freed", ErrClosed)
)

// Rail is one transport that the engine uses, as this rank has opened it. A job may use several:
// for example shared memory for ranks of the same host, and a network for the others.
type Rail struct {
	Domain   transport.Domain
	CQ       transport.CompletionQueue
	Endpoint transport.Endpoint
}

// rail is a Rail with the optional interfaces of its transport and the engine's state for it.
type rail struct {
	Rail
	// RMA operations of the endpoint; nil: it has none, so the data of a rendezvous travels in
	// messages (MsgData).
	rma     transport.RMAEndpoint
	reacher transport.RegionReacher  // says which memory regions of peers rma can access; nil: all
	atomic  transport.AtomicEndpoint // nil: the transport has no remote atomics
	// Makes the connection without which the transport does not report a peer's end; nil: the
	// transport has no such operation.
	connect    transport.ConnectEndpoint
	disconnect transport.DisconnectEndpoint // nil: the transport cannot disconnect a single peer
	shared     transport.SharedMemoryDomain // nil: ranks cannot map each other's memory by this transport
	// Nil: Send keeps no message back; otherwise Send may keep small messages, at most until the next
	// Read of CQ.
	batch  transport.BatchEndpoint
	pin    transport.PinningDomain // nil: a registration is fast; see registrar.go
	device transport.DeviceDomain  // nil: the transport cannot access the memory of devices
	flush  transport.FlushEndpoint // nil: a message for which Send has returned done has left
	attr   transport.Attr          // what Domain.Attr has returned
	eager  int                     // maximum number of bytes of data in an eager message
	index  int                     // index of this rail in Engine.rails
	// After a Read of CQ that found nothing: number of calls of Engine.progress that leave CQ out; set
	// by setPaces.
	pace int
	skip int // number of the next calls of Engine.progress that leave CQ out; guarded by Engine.mu
	// The endpoint keeps messages until the next Read of CQ; Engine.unsent counts the rails for
	// which unsent is set; guarded by Engine.mu.
	unsent bool
}

// open initializes r from given, which is Config.Rails[index]. The argument set is the value of the
// parameter engine.eager_limit; 0 selects the transport's own limit. The eager limit of the rail is
// at most eagerMax, and at most the data that fits into the largest message of the transport.
func (r *rail) open(given Rail, index, eagerMax, set int) error {
	a := given.Domain.Attr()
	*r = rail{
		Rail: given, attr: a, index: index,
		rma:        extension[transport.RMAEndpoint](a, transport.CapRead, given.Endpoint),
		atomic:     extension[transport.AtomicEndpoint](a, transport.CapAtomic, given.Endpoint),
		connect:    extension[transport.ConnectEndpoint](a, transport.CapConnect, given.Endpoint),
		disconnect: extension[transport.DisconnectEndpoint](a, transport.CapDisconnect, given.Endpoint),
		batch:      extension[transport.BatchEndpoint](a, transport.CapBatch, given.Endpoint),
		flush:      extension[transport.FlushEndpoint](a, transport.CapFlush, given.Endpoint),
		shared:     extension[transport.SharedMemoryDomain](a, transport.CapSharedMemory, given.Domain),
		pin:        extension[transport.PinningDomain](a, transport.CapPin, given.Domain),
		device:     extension[transport.DeviceDomain](a, transport.CapDevice, given.Domain),
	}
	if a.Caps.Has(transport.CapRead) && r.rma == nil || a.Caps.Has(transport.CapAtomic) && r.atomic == nil ||
		a.Caps.Has(transport.CapConnect) && r.connect == nil {
		return fmt.Errorf("engine: transport %s reports a capability and lacks its methods", a.Provider)
	}
	if r.rma != nil {
		r.reacher, _ = given.Endpoint.(transport.RegionReacher)
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

// reaches reports whether this rank can access, by RMA, the memory region of a peer that has this
// key. peer is a world rank.
func (r *rail) reaches(peer int32, key uint64) bool {
	return r.rma != nil && (r.reacher == nil || r.reacher.ReachesRegion(transport.Addr(peer), key))
}

// extension returns v, which is the domain or the endpoint of a transport with the attributes a, as
// the optional interface T. It returns nil if the transport does not report bit, the capability
// that T needs, or if v lacks the methods of T, for example because v is a wrapper that hides them.
func extension[T any](a transport.Attr, bit transport.Caps, v any) (t T) {
	if a.Caps.Has(bit) {
		t, _ = v.(T)
	}
	return t
}

// paceMax is the maximum of rail.pace: Engine.progress reads the queue of each rail at least once
// in paceMax+1 calls.
const paceMax = 64

// setPaces sets the pace of each rail from its latency, so that Engine.progress reads the
// completion queues of slow transports less often than those of fast ones.
func setPaces(rails []rail) {
	fastest := math.MaxInt
	for i := range rails {
		fastest = min(fastest, max(1, rails[i].attr.LatencyNs))
	}
	for i := range rails {
		rails[i].pace = min(max(0, rails[i].attr.LatencyNs/fastest-1), paceMax)
	}
}

// Config describes the engine that New makes.
type Config struct {
	Rank, Size int
	Params     *params.Set // parameters of the job; nil: all have their default values
	// Open transports, the preferred one first; Engine.Close and Engine.Kill close their domains.
	Rails []Rail
	// By world rank: index in Rails of the rail that carries messages to the rank; nil: Rails[0]
	// leads to all ranks.
	Route      []uint8
	LocalRanks int // number of ranks of this job on this host, this rank included
	// Number of hardware threads that the ranks of this host share; 0: as many as this process may
	// use.
	Cores int
	// Returns, for the text of errors, the name of what Env.Sig stands for; nil: errors print the
	// number.
	TypeName func(sig uint16) string
	// The engine calls it, on a new goroutine, for each warning of a transport (PeerNotice), which
	// makes no operation fail; nil: warnings are dropped.
	Notice func(error)
	// Stream from which the engine reads the launcher's reports of failed ranks, see loss.go; nil: the
	// launcher sends none; Engine.Close and Engine.Kill close it.
	Launcher *os.File
	// The engine calls it for each report of Launcher, after it has handled the report, and without
	// its lock: ranks of the job with the id job have failed; "": of the engine's own job. It must not
	// block, nor call Close. nil: no call.
	Reported func(job string, ranks []int, reason string)
	// The recorder of this rank, whose field Messages the engine uses alone; nil: the engine records
	// nothing.
	Recorder *record.Recorder
}

// Engine is the message engine of one rank. Goroutines of the program wait, lead and park in it as
// wait.go describes.
type Engine struct {
	rank, size int // world rank of this rank, and number of ranks of the job
	rails      []rail
	policy     waitPolicy // how long goroutines poll and yield before they sleep
	start      time.Time  // when New made the engine; Engine.clock counts from then
	// Number of times that Context.Await loads its word before it yields or takes the lock.
	spinLimit atomic.Int32
	// Events of at least one rail cannot end a sleep on the transports, so each sleep is a short nap;
	// see napsPoll.
	napsOnly bool
	// Smallest eager limit of all rails, in bytes; also the limit for messages of this rank to itself.
	eagerLimit int
	// Credit that each peer gets, in bytes: limit for its unexpected messages in the memory of this
	// rank.
	window int
	// Copy of Config.TypeName: returns the name of what Env.Sig stands for; nil: errors print the
	// number.
	typeName func(uint16) string
	notice   func(error) // copy of Config.Notice: gets the warnings of transports; nil: they are dropped
	// Functions that Engine.close calls before it shuts down or closes the transports; OnClose adds
	// them.
	onClose []func()
	// Copy of Config.Launcher: stream of failure reports; nil: the launcher sends none.
	launcher *os.File
	// Number that changes when a communicator is revoked, and when the engine closes or fails.
	stateVersion atomic.Uint32
	record       *record.Messages // Config.Recorder's record of messages, guarded by mu; nil: there is none

	// mu guards the fields below, except atomic fields, channels, WaitGroups, and fields whose
	// comments say otherwise.
	mu mutex

	peers        []peer           // what the engine knows about each rank, by world rank
	stalled      []int32          // world ranks of the peers that have a request in one of their queues
	stalledSpare []int32          // buffer that Engine.retry exchanges with stalled, to avoid an allocation
	draining     bool             // Engine.drain is reading the queues, so Engine.progress does not call retry
	ownSeq       uint32           // number of messages of this rank to itself
	posted       postedQueue      // receives that have not matched a message
	unexpected   unexpectedQueue  // messages that have arrived and that no posted receive has matched
	buffers      bufferPool       // buffers for the data of unexpected messages
	revoked      map[uint64]error // by number of the communicator (context id / 2): the error of its revocation
	// By number of the communicator: the peer whose message revoked it; the entry exists until
	// forwardRevokes has forwarded the revocation.
	revokedBy map[uint64]int32
	contexts  map[uint64]*Context // by number of the communicator: one of its two contexts
	ports     map[uint64]*Port    // the open ports, by context id
	spans     []*Span             // memory of Alloc that Reap has not freed, sorted by address

	slots  []*request // table of requests, by request.index; nil: Engine.vacate has removed the slot
	vacant []vacancy  // indices whose entry in slots is nil
	// Requests with a hint that have ended and were not collected yet; see several.go.
	finished list
	// Number of requests that have ended, that a Request of the program identifies, and whose slots
	// were not freed yet.
	uncollected int
	free        *request // first slot in the list of unused slots; nil: the list is empty
	// Number of slots in the list that begins at free. It is at most slotsKept, because moreSlots adds
	// slots only when the list is empty.
	unused int
	spare  *request // slot that sendNow has taken for its next call; nil: none
	// Number of requests for which the background goroutine polls if no other goroutine does
	// (request.background), plus open ports that need the same (Port.counted).
	active int
	large  int // number of requests whose field background is set and whose buffer is longer than eagerLimit
	tasks  int // number of functions that Engine.Go runs now
	// Number of registered regions to which RMA writes of peers advance only while this rank polls
	// (Memory.served).
	exposed int
	unsent  int // number of rails whose endpoint keeps messages until the next Read (rail.unsent)
	// Number of requests whose data is being transferred (request.moving); the transfers may need
	// this rank's polls.
	moving int

	// Waiter of the goroutine that leads, which means that it polls the transports for all; nil: no
	// goroutine leads, or the background goroutine does.
	leader *waiter
	polls  int // number of polls that leaders have made
	// Number of calls of Test, Iprobe and the like that found nothing, since Engine.testFailed or
	// Engine.poll last set it to 0.
	failedTests  int
	noYieldUntil time.Duration // time on Engine.clock until which testFailed does not yield
	// The last yield of a core took longer than wantedYield, so another thread wants the core.
	coreWanted  bool
	lastGosched time.Duration // time on Engine.clock at which enterScheduler last called runtime.Gosched
	leads       atomic.Uint64 // number of calls of Engine.lead; written under mu
	parked      []*waiter     // waiters whose goroutines are blocked in Engine.park
	followers   int           // number of waiters in parked that are not passive (awaited.passive)
	// Number of waiters whose goroutines are runnable and have not taken the lock yet.
	resuming int
	waking   int // number of waiters in resuming whose event has happened (waiter.waking)
	// Number of times that the event of a parked waiter, or of one on standby, has happened;
	// written under mu.
	wakes             atomic.Uint64
	completionWaiters []*waiter // waiters that are woken at the end of every request
	// Waiters of probes and of Attend; woken by a message that their key accepts, and by each event
	// that may end such a wait without a message.
	probeWaiters []*waiter
	// Waiters for words in shared memory; the leader loads the words after each poll.
	wordWaiters []*waiter
	freeWaiters *waiter         // first waiter in the list of unused waiters; nil: the list is empty
	background  backgroundState // whether the background goroutine is parked, ticks or leads
	// At its next check the background goroutine may lead even if another goroutine has led since the
	// last check; see ensureRequestProgress.
	backgroundNow  bool
	backgroundLazy bool // the background goroutine waits for a lazyTick instead of a tick
	// The background goroutine keeps a processor of the Go scheduler busy; see holdProcessor.
	holdsProcessor bool
	// Asynchronous progress is on: the background goroutine also polls for requests that no
	// goroutine waits for.
	async  bool
	asleep bool // a goroutine sleeps on the transports, in waitset.wait
	// Waiter of the goroutine that sleeps on the transports; nil: none does, or the background
	// goroutine does.
	sleeper  *waiter
	nap      time.Duration // time limit of the current or the last sleep on the transports; negative: none
	failures int           // number of peers that this rank knows to have failed
	// Number of calls of Engine.markEnded, which handles the end of a peer, plus number of calls of
	// WakeAttend.
	changes uint32
	// By id: the Partitions of receives, until ForgetPartitions. The last id in use is lastPartitions.
	partitions     map[uint64]*Partitions
	lastPartitions uint64
	finalizing     int // number of peers that have reported that they are in Finalize
	// Messages that the engine has dropped, for the report at the end of the job; see leftover.go.
	dropped dropped
	// By index of the slot: text of SetOrigin. It may be shorter than slots, and is empty if SetOrigin
	// was never called.
	origins   []origin
	originSeq uint64 // number of calls of SetOrigin
	// Context in which this rank reports to peers that it is in Finalize (MsgLeave); nil: it is not
	// in Finalize.
	leaving        *Context
	cancelShutdown func()    // ends the Shutdown calls of Close; nil: Close has not begun them
	query          peerQuery // what QueryPeers needs to know at its next call about the last one
	account        account   // messages and time that Account returns

	closed        bool  // Close or Kill was called
	domainsClosed bool  // after closed was set, the domains of all rails were closed too
	fatal         error // why the engine has failed; nil: the engine has not failed
	// Signaled when, after closed was set, a goroutine leaves Engine.await or the background goroutine
	// ends.
	quiet   *sync.Cond
	entries [32]transport.Completion // buffer for one Read of a completion queue

	// The queues that a goroutine sleeps on. New sets it, and mu guards only its field fds.
	waitset waitset
	// A value wakes the background goroutine; nil: the engine has no transport, and so no background
	// goroutine.
	kick chan struct{}
	// Counts the background goroutine, that of the registrar, and calls of Alloc and Reap that began
	// before closed was set.
	goroutines    sync.WaitGroup
	failureReader sync.WaitGroup // counts the goroutine of failureLoop
	registrar     registrar      // registers memory without the lock
	workers       workers        // goroutines that run the functions of Engine.Go
}

// Limits of Engine.window, the credit in bytes that each peer gets.
const (
	windowMin = 16 << 10
	windowMax = 1 << 20
)

// New returns the engine of a rank. The caller has opened the endpoints of the transports, and has
// inserted the addresses of all ranks of the job into their address vectors. If New returns an
// error, the caller still owns the transports.
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
		ports:      make(map[uint64]*Port),
		partitions: make(map[uint64]*Partitions),
		notice:     cfg.Notice, typeName: cfg.TypeName,
	}
	if cfg.Recorder != nil {
		e.record = &cfg.Recorder.Messages
	}
	e.mu.init()
	e.start = time.Now()
	e.quiet = sync.NewCond(&e.mu)
	e.workers.tasks = make(chan task, maxIdleWorkers)
	e.window = min(max(p.Int("engine.unexpected_limit")/max(1, cfg.Size-1), windowMin), windowMax)
	// The credit of a peer suffices for several messages of this size.
	eagerMax := e.window/4 - messageCost
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
		// A sleep on one queue calls its Wait, and needs a wait object. A sleep on several queues
		// calls poll(2), and needs a descriptor of each; see waitset.
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
		go e.backgroundLoop() // Close ends this goroutine and waits for its end
	}
	if e.launcher = cfg.Launcher; e.launcher != nil {
		e.failureReader.Add(1)
		go e.failureLoop(cfg.Reported) // Close ends this goroutine and waits for its end
	}
	return e, nil
}

// Transport returns the name of the provider that carries messages to a world rank. It returns ""
// for this rank itself, and for ranks that do not exist.
func (e *Engine) Transport(rank int) string {
	if rank < 0 || rank >= e.size || rank == e.rank {
		return ""
	}
	return e.peers[rank].rail.attr.Provider // without the lock: New sets the rail, and nothing changes it later
}

// Close ends the engine in good order. It first waits until the operations in flight have ended and
// the engine's own messages have left. Then it ends every other request with ErrClosed, for example
// a send that is still queued. At last it shuts the transports down, which informs the peers that
// this rank leaves. The caller makes sure, by a barrier, that all ranks have ended their
// communication. If ctx ends, Close no longer waits for operations and peers. It always waits for a
// registration of memory that is in progress, and for calls of Alloc and Reap. If another call of Close
// or Kill has closed the engine, Close returns nil, and does not wait for that call.
func (e *Engine) Close(ctx context.Context) error { return e.close(ctx, true) }

// Kill closes the engine as the end of its process would: it waits for no operation, and does not
// shut the transports down. The peers take this rank as failed.
func (e *Engine) Kill() { _ = e.close(context.Background(), false) }

// Flush blocks until the operations in flight have ended and all messages have left. The process may
// then end, as far as the other ranks do not need it. Errors: the error of ctx.
func (e *Engine) Flush(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.flush(ctx)
	}
	for e.holdsMessages() && ctx.Err() == nil && e.fatal == nil && !e.closed {
		e.poll()
		e.mu.Unlock()
		time.Sleep(flushPause)
		e.mu.Lock()
	}
	return ctx.Err()
}

// hasFailed reports whether this rank knows that a peer has ended.
func (e *Engine) hasFailed(peer transport.Addr) bool { return e.peers[peer].err != nil }

// flushPause is the time between two polls of Flush, while a transport holds messages back. Flush
// cannot sleep on the transports, because no completion reports that such a message has left.
const flushPause = 20 * time.Microsecond

// holdsMessages reports whether a transport has messages that have not left.
func (e *Engine) holdsMessages() bool {
	for i := range e.rails {
		switch r := &e.rails[i]; {
		case r.flush != nil:
			if !r.flush.Flushed(e.hasFailed) {
				return true
			}
		case r.batch != nil && r.batch.Unsent():
			return true
		}
	}
	return false
}

// close is Close if graceful is set, and Kill if not.
func (e *Engine) close(ctx context.Context, graceful bool) error {
	e.mu.Lock()
	if graceful && !e.closed {
		e.flush(ctx)
	}
	if e.closed { // before this call, or by another goroutine during flush
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
		if e.cannotDisconnect(int32(i)) { // Shutdown would wait for an answer of this failed peer
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
				// The failure of a rank has ended the Shutdown after shutdownGrace, which is no error of Close.
				serr = nil
			}
			err = errors.Join(err, serr)
		}
	}
	cancel(nil)
	if e.launcher != nil {
		// This ends failureLoop. An error has no effect, because the engine only reads from the file.
		_ = e.launcher.Close()
	}
	e.failureReader.Wait()
	e.mu.Lock()
	for _, s := range e.spans {
		err = errors.Join(err, s.closeRegions(false), s.closeRegions(true)) // nothing else needs the lock any more
	}
	e.mu.Unlock()
	for i := range e.rails {
		err = errors.Join(err, e.rails[i].Domain.Close())
	}
	e.mu.Lock()
	e.domainsClosed = true
	e.failAll(func(*request) bool { return true }, errFinalize)
	e.mu.Unlock()
	e.endWorkers()
	err = errors.Join(err, e.Reap())
	if err != nil {
		return fmt.Errorf("engine: close: %w", err)
	}
	return nil
}

// flush waits until sending returns false, ctx ends, or the engine fails or is closed.
func (e *Engine) flush(ctx context.Context) {
	for e.sending() && ctx.Err() == nil && e.fatal == nil {
		if e.awaitIn(ctx, &e.completionWaiters, awaited{}) != nil {
			return
		}
	}
}

// sending reports whether an operation is in flight, or a message of the engine itself has not
// left. It ignores requests in flight to peers that are marked as failed and that the transport
// cannot disconnect: they might never end.
func (e *Engine) sending() bool {
	for _, r := range e.slots {
		if r != nil && r.kind != kindFree && !r.done && (r.inflight && !e.cannotDisconnect(r.peer) || r.kind == kindControl) {
			return true
		}
	}
	return false
}

// failAll completes, with err, the requests under way that fulfill the predicate which. It leaves
// out tasks (Engine.Go) and requests of Port.Begin and Engine.Begin, which their owners complete.
func (e *Engine) failAll(which func(*request) bool, err error) {
	for _, r := range e.slots {
		if r == nil || r.kind == kindFree || r.kind == kindTask || r.kind == kindOp || r.kind == kindProgram ||
			r.done || !which(r) {
			continue
		}
		e.cancel(r, err)
	}
}

// cancel ends a request or transfer under way with err, which may be nil.
func (e *Engine) cancel(r *request, err error) {
	e.withdraw(r)
	r.inflight = false
	e.finish(r, err)
}

// withdraw removes a request from the queue that it is in, if any: that of posted receives, or a
// queue of its peer for requests that wait for room in the endpoint.
func (e *Engine) withdraw(r *request) {
	if r.phase == phasePosted {
		e.posted.withdraw(r)
	} else {
		r.node.remove()
	}
	r.phase = phaseIdle
}

// finish ends a request. If the request belongs to a Transfer, finish reports the end to the port's
// service.
func (e *Engine) finish(r *request, err error) {
	if r.kind == kindTransfer {
		e.transferDone(r, err)
		return
	}
	e.complete(r, err)
}
