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

	council council

	outlives bool        // ranks that fail; the launcher tells which
	shares   bool        // a transport is of shared memory; the same on all ranks
	remains  rma.Remains // of windows
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
	news := w.News
	w.News = nil
	defer func() {
		if news != nil { // the engine has not taken it
			_ = news.Close()
		}
	}()
	rails, ways, err := wireUp(ctx, w, s.Providers)
	if err != nil {
		return nil, err
	}
	local, localRank := 0, 0
	for i, n := range w.Nodes {
		if n == w.Nodes[w.Rank] {
			if local++; i < w.Rank {
				localRank++
			}
		}
	}
	j := &job{world: w, exit: s.Exit, shares: ways.shares, outlives: news != nil}
	if j.coll, err = coll.ConfigFrom(w.Params); err != nil {
		closeRails(rails)
		return nil, err
	}
	if ways.shares && local == w.Size {
		j.coll.OneHost()
	}
	j.eng, err = engine.New(engine.Config{
		Rank: w.Rank, Size: w.Size, Params: w.Params, Rails: rails, Route: ways.route,
		LocalRanks: local, LocalRank: localRank, Cores: w.Cores, Notice: noticer(w.Rank),
		Launcher: news,
	})
	if err != nil {
		closeRails(rails)
		return nil, err
	}
	news = nil
	j.eng.OnClose(j.leaveArenas)
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
	j.startWatch(local)
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

// Finalize ends weft in this process (MPI_Finalize). It blocks until every
// process of the job has called it, delivers what was sent, and closes all
// communicators; c may be any of them. An error does not keep it from closing, and
// once a process has died it does not wait for the others: ErrProcFailed. Only
// where the launcher lets a job outlive processes that fail (gorun -on-failure
// notify) it waits for those that live, and a failure is no error. A second
// Finalize is ErrClosed.
// ErrMismatch tells of the world what it does of others at Free.
//
// It must not run beside other calls.
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
	errs := []error{
		c.fail("Finalize", noRank, noRank, j.first.flushBsends(c.ctx)),
		run(barrier(world, "Finalize", kindFinalize)),
	}
	met := true
	if j.outlives {
		met, errs = world.parting(errs)
	}
	if met && errors.Join(errs...) == nil && j.first.coll.Err() == nil {
		errs = append(errs, c.fail("Finalize", noRank, noRank, errors.Join(j.first.leftover(), j.first.differs())))
	}
	if !j.closed.CompareAndSwap(false, true) {
		return c.fail("Finalize", noRank, noRank, ErrClosed)
	}
	j.stopWatch()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), finalizeTimeout)
	defer cancel()
	errs = append(errs, c.fail("Finalize", noRank, noRank, j.eng.Close(ctx)),
		c.fail("Finalize", noRank, noRank, j.world.KVS.Finalize()))
	started.Lock()
	if j.world == started.world {
		started.busy = false
	}
	started.Unlock()
	return errors.Join(errs...)
}

// parting replaces the errors that are of ranks which have failed by what becomes
// of a meeting of those that live; all: there is none. Some may have met all before
// one failed: they have left or will, and are waited for until then.
func (c *Comm) parting(errs []error) (all bool, rest []error) {
	ofFailure := func(err error) bool {
		return errors.Is(err, ErrProcFailed) || errors.Is(err, ErrRevoked) && !errors.Is(err, ErrMismatch)
	}
	if !slices.ContainsFunc(errs, ofFailure) {
		return true, errs
	}
	_, err := c.s.job.council.agree(c.ctx, c.s, finalizeCall, 0)
	return false, append(slices.DeleteFunc(errs, ofFailure), c.fail("Finalize", noRank, noRank, err))
}

// Abort ends the whole job at once, with an exit code of 1 to 255 (others are
// taken as 1), and does not return (MPI_Abort). It runs no deferred calls. A
// nil communicator ends this process.
func (c *Comm) Abort(code int) { c.abort(code, "") }

// abort ends the job for a reason that the launcher tells, if there is one.
func (c *Comm) abort(code int, reason string) {
	if code < 1 || code > 255 {
		code = 1
	}
	if c != nil && c.s != nil {
		j := c.s.job
		_ = j.world.KVS.Abort(code, reason) // whether or not the launcher hears it, this process ends
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
