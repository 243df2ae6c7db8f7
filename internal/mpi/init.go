package mpi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/agree"
	"github.com/weft-hpc/weft/internal/mpi/arena"
	"github.com/weft-hpc/weft/internal/mpi/bufcheck"
	"github.com/weft-hpc/weft/internal/mpi/calls"
	"github.com/weft-hpc/weft/internal/mpi/inspect"
	"github.com/weft-hpc/weft/internal/mpi/profile"
	"github.com/weft-hpc/weft/internal/mpi/stack"
	"github.com/weft-hpc/weft/internal/mpi/wireup"
	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/internal/rma"
	"github.com/weft-hpc/weft/transport"
)

// Setup replaces parts of what Init would set up by itself. Init uses its defaults for nil fields.
// Tests and package commtest use Setup.
type Setup struct {
	World     *bootstrap.World     // instead of the world that the launcher of this process describes
	Providers []transport.Provider // in order of preference, instead of those that the tunable transport.use names
	// Engine is called with the engine of the job, and with those of its connections, before the
	// first message of each. It may be nil.
	Engine func(*engine.Engine)
	Exit   func(code int, reason string) // abort calls it instead of os.Exit

	// Of a connection: the own job of this process, and the identities of the ranks.
	home       *job
	identities []identity
}

// job holds the state of this process, as one rank of a job, from Init to Finalize or, for a job
// that is a connection with another one, until the end of the connection.
type job struct {
	world        *bootstrap.World
	home         *job // the own job of the process, which may be this one
	connections  connections
	sessionMu    sync.Mutex
	sessionComms map[sessionGroup]uint64 // number of communicators that sessions have made; guarded by sessionMu

	parent *Comm // the intercommunicator with the processes that have called Spawn; nil: there is none

	// The numbers of the processes of all jobs, and the number of this process.
	procs  *processes
	number int
	// By rank: the numbers of the processes of the job, and the reverse. nil: this is the own job of
	// the process, and numbers are ranks.
	numbers []int
	rankOf  map[int]int

	eng       *engine.Engine
	exit      func(code int, reason string)
	onEngine  func(*engine.Engine) // Setup.Engine
	nextID    atomic.Uint32        // number of ids that newID has returned on this rank
	ending    atomic.Bool          // Finalize has been called
	closed    atomic.Bool          // Finalize is about to close the engine, or has closed it; calls return ErrClosed
	coll      *coll.Config
	final     *state // a world communicator that only Finalize uses, so that the program cannot revoke it
	first     *state // the world communicator; Finalize waits for its buffered sends
	stall     stallDetector
	inspector *inspect.Inspector
	// The record of this process; nil in a job that is a connection with another one. opNumbers has the
	// numbers in it of the calls, by callName.
	record    *record.Recorder
	opNumbers [len(callNames)]record.Op
	profiler  *profile.Profiler // of the process's own job; nil: gorun wants no profiles

	agreements *agree.Ranks
	agreeSpace *engine.Context // carries the messages of agreements

	refusals refusals

	checks bool // value of the tunable check
	// check records the buffers that operations use. It is nil without the tunable check and
	// without -race.
	check *bufcheck.Checker
	// The job continues after ranks fail, and the launcher reports the failed ranks.
	survivesFailures bool
	shares           bool // one of the transports is shared memory; the same on all ranks
	// Memory of closed windows that package rma frees later, because other ranks may still use it.
	deferredFrees rma.DeferredFrees
	locks         atomic.Int64 // of the process in all windows; in the process's own job
	arenas        arena.Pool
}

// finalizeTimeout limits two waits of Finalize, each of which may take that long: for the
// nonblocking collectives in progress (leave), and for the engine to send the messages that it has
// not sent yet and to close.
const finalizeTimeout = 30 * time.Second

// started holds the world that the launcher of this process describes. Only one job at a time may
// use that world.
var started struct {
	sync.Mutex
	world *bootstrap.World // nil until the first Init; guarded by the mutex
	busy  bool             // a job that is not finalized uses world; guarded by the mutex
}

// Init implements comm.Init, which documents the call. With a zero Setup it is comm.Init.
func Init(ctx context.Context, s Setup) (*Comm, error) {
	if ctx == nil {
		ctx = context.Background()
	}
	if s.World != nil {
		return initIn(ctx, &s)
	}
	if c, err := takeJob(ctx); err != nil || c != nil {
		return c, (*Comm)(nil).fail("Init", noRank, noRank, err)
	}
	return initOwn(ctx, &s)
}

// initOwn joins the job that the launcher of this process describes.
func initOwn(ctx context.Context, s *Setup) (*Comm, error) {
	w, err := claimWorld(ctx)
	if err != nil {
		return nil, &Error{Op: "Init", Peer: noRank, Tag: noRank, Err: err}
	}
	s.World = w
	c, err := initIn(ctx, s)
	if err != nil {
		releaseWorld()
		return nil, err
	}
	ownJob.Store(c.s.job)
	return c, nil
}

// initIn joins the job of s.World.
func initIn(ctx context.Context, s *Setup) (*Comm, error) {
	c, err := start(ctx, s)
	if err != nil {
		return nil, &Error{Op: "Init", Peer: noRank, Tag: noRank, Err: fmt.Errorf("rank %d: %w", s.World.Rank, err)}
	}
	if err := c.meetParent(); err != nil {
		return nil, errors.Join(&Error{Op: "Init", Peer: noRank, Tag: noRank, Err: err}, c.Finalize())
	}
	return c, nil
}

func claimWorld(ctx context.Context) (*bootstrap.World, error) {
	started.Lock()
	defer started.Unlock()
	if started.busy || started.world != nil && started.world.Launcher != "none" {
		return nil, ErrInit
	}
	if started.world == nil {
		w, err := bootstrap.Open(ctx)
		if err != nil {
			return nil, err
		}
		started.world = w
		if w.Size > 1 && runtime.GOMAXPROCS(0) < minProcs && os.Getenv("GOMAXPROCS") == "" {
			runtime.GOMAXPROCS(minProcs)
		}
	}
	started.busy = true
	return started.world, nil
}

// minProcs is the value to which Init raises GOMAXPROCS in a job of several ranks, unless the user
// has set GOMAXPROCS. With GOMAXPROCS = 1, a goroutine that computes would stop the progress of
// transfers for 10 ms at a time. gorun sets at least minProcs.
const minProcs = 2

func releaseWorld() {
	started.Lock()
	started.busy = false
	started.Unlock()
}

// start makes the job of this process: transports, engine, communicators of Init, stall detector.
// It returns the world communicator.
func start(ctx context.Context, s *Setup) (*Comm, error) {
	w := s.World
	failures, profiler := w.Failures, profile.Start(w.Files)
	inspector := inspect.Start(w.Inspect, profile.Take)
	w.Failures, w.Inspect = nil, nil
	defer func() {
		profiler.Close()     // nil unless start failed before the job owned the profiler
		if failures != nil { // start failed before the engine owned the file
			_ = failures.Close()
		}
		if inspector != nil { // start failed before the job owned the inspector
			inspector.Stop()
		}
	}()
	rails, routes, err := wireup.Open(ctx, w, s.Providers)
	if err != nil {
		return nil, err
	}
	local := 0
	for _, n := range w.HostOf {
		if n == w.HostOf[w.Rank] {
			local++
		}
	}
	j := &job{world: w, exit: s.Exit, onEngine: s.Engine, shares: routes.SharesMemory, survivesFailures: failures != nil, checks: w.Params.Bool("check"), check: bufcheck.New(bufcheck.Config{Check: w.Params.Bool("check"), Line: stack.ProgramLine})}
	j.know(s.home, s.identities)
	if j.coll, err = coll.ConfigFrom(w.Params); err != nil {
		wireup.Close(rails)
		return nil, err
	}
	if routes.SharesMemory && local == w.Size {
		j.coll.OneHost()
	}
	if s.home == nil {
		if err := j.openRecord(); err != nil {
			wireup.Close(rails)
			return nil, err
		}
	}
	j.eng, err = engine.New(engine.Config{
		Rank: w.Rank, Size: w.Size, Params: w.Params, Rails: rails, Route: routes.Rail,
		LocalRanks: local, Cores: w.Cores, Notice: firstNotice(w.Rank), TypeName: elem.SigName,
		Launcher: failures, Reported: j.reported, Recorder: j.record,
	})
	if err != nil {
		wireup.Close(rails)
		return nil, err
	}
	failures = nil
	j.eng.OnClose(j.closeSlots)
	j.eng.OnClose(j.check.Close)
	if s.Engine != nil {
		s.Engine(j.eng)
	}
	all := j.groupOf(countUp(w.Size))
	j.agreeSpace = j.eng.OpenContext(2*agreeID, countUp(w.Size))
	j.agreeSpace.KeepInFinalize()
	j.agreements = agree.New(agree.Config{Engine: j.eng, Space: j.agreeSpace, Size: w.Size, NewID: j.newID})
	j.first = j.newState(worldID, all, w.Rank)
	j.final = j.newState(finalID, all, w.Rank)
	j.final.p2p.KeepInFinalize()
	j.final.coll.KeepInFinalize()
	j.startStallDetector(local)
	j.inspector, inspector = inspector, nil
	j.profiler, profiler = profiler, nil
	j.inspector.Attach(j.inspected())
	if w.Rank == 0 && wireup.Verbose() {
		wireup.Report(w, rails, routes)
	}
	return &Comm{s: j.first, ctx: ctx}, nil
}

// firstNotice returns a function that writes the first error that it gets to stderr, and ignores
// later ones. The engine calls it for errors that do not end the job, such as connections from
// processes that do not belong to the job.
func firstNotice(rank int) func(error) {
	var once sync.Once
	return func(err error) {
		once.Do(func() { fmt.Fprintf(os.Stderr, "weft: rank %d: %v (reported once)\n", rank, err) })
	}
}

// Finalize implements comm.Comm.Finalize, which documents the call.
func (c *Comm) Finalize() error {
	if _, err := c.live(); err != nil {
		if c == nil || c.s == nil || c.s.job.closed.Load() {
			return c.fail("Finalize", noRank, noRank, ErrClosed)
		}
	}
	return c.s.job.home.first.end(c.Context())
}

// end ends the own job of the process, whose world communicator s is, and its connections.
func (s *state) end(ctx context.Context) error {
	s.attrs.free()
	err := s.job.connections.endAll(ctx, s.job.survivesFailures)
	return errors.Join(s.job.finalize(ctx), err)
}

// finalize ends the job. It blocks until all its ranks have called it.
func (j *job) finalize(ctx context.Context) error {
	c, world := &Comm{s: j.first, ctx: ctx}, &Comm{s: j.final, ctx: ctx}
	j.ending.Store(true)
	// Before the barrier, because a rank may end while it waits for others there.
	j.profiler.Close()
	j.revokeDependents()
	j.agreements.Leave()
	errs := []error{
		c.fail("Finalize", noRank, noRank, j.leave(c.ctx)),
		c.fail("Finalize", noRank, noRank, j.first.p2p.FlushBuffered(c.ctx)),
		run(barrier(world, "Finalize", calls.KindFinalize)),
	}
	met := true
	if j.survivesFailures {
		met, errs = world.finishWithSurvivors(errs)
	}
	if met && errors.Join(errs...) == nil && j.first.coll.Err() == nil {
		errs = append(errs, c.fail("Finalize", noRank, noRank, errors.Join(j.first.leftover(), j.first.arenaMismatch())))
	}
	good := met && errors.Join(errs...) == nil && len(j.eng.Failed()) == 0
	if good {
		j.settle()
	}
	unreported := j.unreportedFailures() // after j.settle, because requests may fail while it waits
	if good && unreported == nil {
		j.reportLeftovers()
	}
	errs = append(errs, c.fail("Finalize", noRank, noRank, unreported))
	if !j.closed.CompareAndSwap(false, true) {
		return c.fail("Finalize", noRank, noRank, ErrClosed)
	}
	if j.record != nil {
		j.record.End()
	}
	j.stopStallDetector()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), finalizeTimeout)
	defer cancel()
	errs = append(errs, c.fail("Finalize", noRank, noRank, j.eng.Close(ctx)),
		c.fail("Finalize", noRank, noRank, j.world.Finalize(j.eng.Account())))
	j.inspector.Stop()
	started.Lock()
	if j.world == started.world {
		ownJob.Store(nil)
		started.busy = false
	}
	started.Unlock()
	return errors.Join(errs...)
}

// leave waits, for at most finalizeTimeout, for the nonblocking collectives that this rank has
// started, because other ranks may need messages of this rank in them. Then leave notifies the
// other ranks that this rank is in Finalize. If ctx has ended, leave returns its error, but not
// after finalizeTimeout alone.
func (j *job) leave(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, finalizeTimeout)
	defer cancel()
	if err := j.final.p2p.Leave(limited); ctx.Err() != nil {
		return err
	}
	return nil
}

// finishWithSurvivors handles failed ranks in Finalize. errs are the errors of Finalize so far. If
// isFailure returns false for all of them, finishWithSurvivors returns true and errs. Otherwise it
// blocks until the live ranks have agreed on the failed ranks, and returns false. Then rest is errs
// without the errors of failures and with the error of the agreement. A rank whose barrier in
// Finalize succeeded before another rank failed does not take part in the agreement; the agreement
// waits until that rank has ended.
func (c *Comm) finishWithSurvivors(errs []error) (all bool, rest []error) {
	if !slices.ContainsFunc(errs, isFailure) {
		return true, errs
	}
	_, err := c.s.job.agreements.Do(c.ctx, c.s.agreements, agree.Finalize, 0)
	return false, append(slices.DeleteFunc(errs, isFailure), c.fail("Finalize", noRank, noRank, err))
}

// Abort implements comm.Comm.Abort, which documents the call.
func (c *Comm) Abort(code int) { c.abort(code, "", false) }

// abort ends the job with the exit code, or with 1 if code is not from 1 to 255. If consequence is
// set, the reason follows from the failure of another rank, and the launcher writes the reason only
// if it knows no other failure. If the launcher cannot be reached, abort writes such a reason to
// stderr. abort returns only if Setup.Exit does.
func (c *Comm) abort(code int, reason string, consequence bool) {
	if code < 1 || code > 255 {
		code = 1
	}
	if c != nil && c.s != nil {
		j, a := c.s.job.home, bootstrap.Abort{Code: code, Reason: reason, Consequence: consequence}
		wait := func() {}
		if x := c.s.job; x != j { // end the job at the other end of the connection, too
			// Send that abort first, because the launcher may end this process at once. But wait for
			// the other end afterwards, because the launcher should get this abort before theirs.
			wait = x.world.StartAbort(a)
		}
		if err := j.world.KVS.Abort(a); err != nil && consequence {
			c.write(reason)
		}
		wait()
		if j.exit != nil {
			j.exit(code, reason)
			return
		}
	}
	os.Exit(code)
}

// worldRank returns the process's rank in the world, or 0 for a nil communicator.
func (c *Comm) worldRank() int {
	if c == nil || c.s == nil {
		return 0
	}
	return c.s.job.home.world.Rank
}
