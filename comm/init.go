package comm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/comm/internal/setup"
	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/rma"
)

// Option changes how Init starts.
type Option func(*setup.Setup)

// WithSetup starts as s says. It is for this module's own tests and tools:
// nobody else can name its argument.
func WithSetup(s setup.Setup) Option { return func(to *setup.Setup) { *to = s } }

// job is this process's part in a job.
type job struct {
	world  *bootstrap.World
	eng    *engine.Engine
	exit   func(code int, reason string)
	nextID atomic.Uint32 // numbers communicators of which this process is rank 0
	ending atomic.Bool   // Finalize was called
	closed atomic.Bool   // finalized
	coll   *coll.Config
	final  *state // the world for Finalize alone: nobody else revokes it
	first  *state // the world, whose buffered sends Finalize waits for
	watch  watch
	asked  *inspector

	council council

	refusals refusals

	checks   bool        // the tunable check
	check    *checker    // nil: nothing is checked
	outlives bool        // ranks that fail; the launcher tells which
	shares   bool        // a transport is of shared memory; the same on all ranks
	remains  rma.Remains // of windows
	arenas   arenaPool
}

// finalizeTimeout bounds how long Finalize waits for what is still being sent.
const finalizeTimeout = 30 * time.Second

// started is the process's own world, which only one Init may take.
var started struct {
	sync.Mutex
	world *bootstrap.World // guarded; nil until the first Init
	busy  bool             // guarded; an Init that was not finalized
}

// Init starts weft in this process and returns the world: the communicator of
// all processes of the job (MPI_Init, MPI_COMM_WORLD). It blocks until every
// process has called it, or ctx ends. A process that was started by no
// launcher is a world of one, and opens no socket. ctx becomes the context of
// the world, and of what is made from it: when it ends, blocking calls do.
//
// A process calls Init once (ErrInit); a world of one may Init again after
// Finalize. Most programs call Main instead.
func Init(ctx context.Context, opts ...Option) (*Comm, error) {
	if ctx == nil {
		ctx = context.Background()
	}
	var s setup.Setup
	for _, o := range opts {
		if o != nil {
			o(&s)
		}
	}
	own := s.World == nil
	if own {
		w, err := claimWorld(ctx)
		if err != nil {
			return nil, &Error{Op: "Init", Peer: noRank, Tag: noRank, Err: err}
		}
		s.World = w
	}
	c, err := start(ctx, &s)
	if err != nil {
		if own {
			yieldWorld()
		}
		return nil, &Error{Op: "Init", Peer: noRank, Tag: noRank, Err: fmt.Errorf("rank %d: %w", s.World.Rank, err)}
	}
	if own {
		ownJob.Store(c.s.job)
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

// minProcs is what Init raises GOMAXPROCS to, unless the user has set it: on one
// processor a goroutine that computes would keep transfers from moving on for
// 10 ms at a time. Under gorun it is no less anyway.
const minProcs = 2

func yieldWorld() {
	started.Lock()
	started.busy = false
	started.Unlock()
}

// start makes this process's job and its world.
func start(ctx context.Context, s *setup.Setup) (*Comm, error) {
	w := s.World
	news, asked := w.News, startInspector(w.Inspect)
	w.News, w.Inspect = nil, nil
	defer func() {
		if news != nil { // the engine has not taken it
			_ = news.Close()
		}
		if asked != nil { // no job owns it
			asked.stop()
		}
	}()
	rails, ways, err := wireUp(ctx, w, s.Providers)
	if err != nil {
		return nil, err
	}
	local := 0
	for _, n := range w.HostOf {
		if n == w.HostOf[w.Rank] {
			local++
		}
	}
	j := &job{world: w, exit: s.Exit, shares: ways.shares, outlives: news != nil, checks: w.Params.Bool("check"), check: newChecker(w.Params.Bool("check"))}
	if j.coll, err = coll.ConfigFrom(w.Params); err != nil {
		closeRails(rails)
		return nil, err
	}
	if ways.shares && local == w.Size {
		j.coll.OneHost()
	}
	j.eng, err = engine.New(engine.Config{
		Rank: w.Rank, Size: w.Size, Params: w.Params, Rails: rails, Route: ways.route,
		LocalRanks: local, Cores: w.Cores, Notice: noticer(w.Rank), TypeName: typeName,
		Launcher: news,
	})
	if err != nil {
		closeRails(rails)
		return nil, err
	}
	news = nil
	j.eng.OnClose(j.leaveArenas)
	j.eng.OnClose(j.check.close)
	if s.Engine != nil {
		s.Engine(j.eng)
	}
	all := Group{ranks: make([]int, w.Size), self: w.Rank + 1}
	for i := range all.ranks {
		all.ranks[i] = i
	}
	j.openCouncil(all)
	j.first = j.newState(worldID, all, w.Rank)
	j.final = j.newState(finalID, all, w.Rank)
	j.final.p2p.KeepInFinalize()
	j.final.coll.KeepInFinalize()
	j.startWatch(local)
	j.asked, asked = asked, nil
	j.asked.job.Store(j)
	if w.Rank == 0 && verbose() {
		sayTransports(w, rails, ways.route)
	}
	return &Comm{s: j.first, ctx: ctx}, nil
}

// noticer tells the first oddity of a process on stderr: strangers at a
// listening port are worth a line, and no more than one.
func noticer(rank int) func(error) {
	var once sync.Once
	return func(err error) {
		once.Do(func() { fmt.Fprintf(os.Stderr, "weft: rank %d: %v (told once)\n", rank, err) })
	}
}

// verbose says whether WEFT_VERBOSE asks for a line about the transports.
func verbose() bool {
	v, _ := strconv.ParseBool(os.Getenv("WEFT_VERBOSE"))
	return v
}

// Finalize ends weft in this process (MPI_Finalize). It blocks until every process of the
// job has called it, delivers what was sent, and closes all communicators; c may be any
// of them. Finalize first waits for the nonblocking collectives that this rank has
// started. After that the rank sends and receives no messages of the program. Messages
// that it sent earlier can still be received.
//
// On other ranks, calls that wait for a call of this rank fail with [ErrFinalized]:
//   - receives and blocking probes that name this rank, and sends that this rank would have
//     to receive. A receive from AnySource continues to wait, because the caller can still
//     send to itself;
//   - collectives that need this rank, on communicators and windows, for example Dup, Split,
//     NewWin, Fence, [Comm.Free] and [Win.Free];
//   - Start and Wait of a window with this rank;
//   - Agree and Shrink of a communicator of this rank. They fail within about a second for
//     each rank in Finalize, or later if a host has more than 64 ranks.
//
// This rank still serves the operations of other ranks with its part of a window until all
// ranks have called Finalize. So Lock, LockAll, Put, Get, accumulates and Flush succeed.
// But Finalize does not release a lock that this rank holds: on another rank, Lock of the
// same part blocks until the context of that rank's window ends. Call Unlock before Finalize.
//
// Finalize closes everything even if it returns an error. If a process has failed,
// Finalize does not wait for the others and returns [ErrProcFailed]; but if the job
// outlives processes that fail (gorun -on-failure notify), Finalize waits for the
// processes that live, and a failure is not an error. A second Finalize returns
// [ErrClosed]. ErrMismatch has the same meaning as in [Comm.Free], for the world.
//
// If a request has failed and the program has neither waited for it nor tested it to its
// end, Finalize returns the request's error. This holds for wrong arguments, a message that
// is too long and types that differ; the failure of a process, Revoke and the end of a
// context do not count. If requests are not complete, or if messages have arrived that the
// program has not received, Finalize writes one line to stderr with their numbers, unless
// Finalize returns an error or a process has failed. If the tunable check is on
// (WEFT_CHECK=1), the error and the line name the calls and the lines of the program that
// started them. For these reports Finalize waits up to a second for the transfers of
// requests that the program has not waited for.
//
// Finalize must not run at the same time as other calls.
func (c *Comm) Finalize() error {
	if _, err := c.live(); err != nil {
		if c == nil || c.s == nil || c.s.job.closed.Load() {
			return c.fail("Finalize", noRank, noRank, ErrClosed)
		}
	}
	j := c.s.job
	world := &Comm{s: j.final, ctx: c.ctx}
	j.ending.Store(true)
	j.endOthers()
	j.council.leave()
	errs := []error{
		c.fail("Finalize", noRank, noRank, j.leave(c.ctx)),
		c.fail("Finalize", noRank, noRank, j.first.p2p.FlushBuffered(c.ctx)),
		run(barrier(world, "Finalize", kindFinalize)),
	}
	met := true
	if j.outlives {
		met, errs = world.parting(errs)
	}
	if met && errors.Join(errs...) == nil && j.first.coll.Err() == nil {
		errs = append(errs, c.fail("Finalize", noRank, noRank, errors.Join(j.first.leftover(), j.first.differs())))
	}
	good := met && errors.Join(errs...) == nil && len(j.eng.Failed()) == 0
	if good {
		j.settle()
	}
	neglected := j.neglected() // after settle, in which requests may fail
	if good && neglected == nil {
		j.tellLeft()
	}
	errs = append(errs, c.fail("Finalize", noRank, noRank, neglected))
	if !j.closed.CompareAndSwap(false, true) {
		return c.fail("Finalize", noRank, noRank, ErrClosed)
	}
	j.stopWatch()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), finalizeTimeout)
	defer cancel()
	errs = append(errs, c.fail("Finalize", noRank, noRank, j.eng.Close(ctx)),
		c.fail("Finalize", noRank, noRank, j.world.Finalize(j.eng.Account())))
	j.asked.stop()
	started.Lock()
	if j.world == started.world {
		ownJob.Store(nil)
		started.busy = false
	}
	started.Unlock()
	return errors.Join(errs...)
}

// leave waits for the nonblocking collectives that this rank has started, for at most
// finalizeTimeout: a collective of another rank may wait for this one. Then leave tells
// the other ranks that this rank is in Finalize.
func (j *job) leave(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, finalizeTimeout)
	defer cancel()
	if err := j.final.p2p.Leave(limited); ctx.Err() != nil {
		return err
	}
	return nil
}

// parting replaces the errors that are of ranks which have failed by what becomes
// of a meeting of those that live; all: there is none. Some may have met all before
// one failed: they have left or will, and are waited for until then.
func (c *Comm) parting(errs []error) (all bool, rest []error) {
	if !slices.ContainsFunc(errs, isFailure) {
		return true, errs
	}
	_, err := c.s.job.council.agree(c.ctx, c.s, finalizeCall, 0)
	return false, append(slices.DeleteFunc(errs, isFailure), c.fail("Finalize", noRank, noRank, err))
}

// Abort ends the whole job at once, with an exit code of 1 to 255 (others are
// taken as 1), and does not return (MPI_Abort). It runs no deferred calls. A
// nil communicator ends this process.
func (c *Comm) Abort(code int) { c.abort(code, "", false) }

// abort ends the job. If consequence is set, the reason follows from the failure of another
// rank, and the launcher writes the reason if it knows no other failure. If the launcher does
// not get such a reason, abort writes the reason to stderr.
func (c *Comm) abort(code int, reason string, consequence bool) {
	if code < 1 || code > 255 {
		code = 1
	}
	if c != nil && c.s != nil {
		j := c.s.job
		if err := j.world.KVS.Abort(bootstrap.Abort{Code: code, Reason: reason, Consequence: consequence}); err != nil && consequence {
			c.write(reason)
		}
		if j.exit != nil {
			j.exit(code, reason)
			return
		}
	}
	os.Exit(code)
}

// worldRank is the process's rank in the world.
func (c *Comm) worldRank() int {
	if c == nil || c.s == nil {
		return 0
	}
	return c.s.job.world.Rank
}
