// Package commtest runs ranks as goroutines of a test, so that go test can test programs that use
// package comm without a launcher.
//
//	func TestSum(t *testing.T) {
//		commtest.Run(t, 4, func(c *comm.Comm) error {
//			sum := make([]int, 1)
//			if err := comm.Allreduce(c, []int{c.Rank()}, sum, comm.Sum); err != nil {
//				return err
//			}
//			if sum[0] != 6 {
//				return fmt.Errorf("sum %d", sum[0])
//			}
//			return nil
//		})
//	}
//
// With [Main] the same tests run on the processes of a launcher: go test -exec 'gorun -np 4'.
package commtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi"
	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
)

// Option is an option of [Run].
type Option func(*config)

type config struct {
	providers []transport.Provider
	params    *params.Set
	bad       error         // the first error of an option; nil: none
	timeout   time.Duration // 0 or less: no limit
	nodes     []int         // by rank: number of its host; nil: all ranks are on one host
	notify    bool
	epoch     int
	own       bool // an option needs ranks that are goroutines
}

// WithProviders connects the ranks by these transports, in order of preference: for example by
// transport/tcp, or by a transport with faults of transport/fault. The default is transport/inproc.
func WithProviders(p ...transport.Provider) Option {
	return func(c *config) { c.providers, c.own = p, true }
}

// WithParam sets a tunable for all ranks. key is its key in job files, such as
// "coll.bcast.algorithm". If the key or the value is wrong, Run fails the test.
func WithParam(key, value string) Option {
	return func(c *config) {
		c.own = true
		if err := c.params.Set(key, value, params.FromFlag); err != nil && c.bad == nil {
			c.bad = err
		}
	}
}

// WithTimeout sets the time after which Run fails the test if ranks have not ended. A time of 0 or
// less means no limit. By default the time ends a little before the test's own deadline, or there
// is no limit if the test has none.
func WithTimeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }

// WithNodes sets, for each rank, the number of the host on which it pretends to run. By default all
// ranks are on one host.
func WithNodes(nodes ...int) Option {
	return func(c *config) { c.nodes, c.own = nodes, true }
}

// WithNotify makes the job continue after ranks fail, as gorun -on-failure notify does. A rank that
// calls [Kill], and the ranks that [Report] names, are reported to the other ranks as failed.
// Finalize waits for the live ranks only.
func WithNotify() Option { return func(c *config) { c.notify, c.own = true, true } }

// WithEpoch sets the number of restarts of the job that [comm.Comm.Epoch] returns.
func WithEpoch(n int) Option { return func(c *config) { c.epoch, c.own = n, true } }

// Run runs f on n ranks, each in a goroutine of its own, and returns when all ranks have ended. c
// is the world communicator of the rank. If f returns nil and has not called Kill, Run calls
// Finalize for the rank, unless f has called Finalize.
//
// If f returns an error, panics, or calls Abort or t.FailNow on some rank, or if Finalize fails,
// Run fails the test with the first such failure, and the calls of the other ranks fail. If ranks
// do not end in time, Run fails the test with the stacks of all goroutines. f may call all methods
// of t.
//
// In a package whose TestMain calls [Main], Run uses the processes of a launcher.
//
// Run reads no tunable except check from the environment (WEFT_CHECK).
func Run(t testing.TB, n int, f func(c *comm.Comm) error, opts ...Option) {
	t.Helper()
	cfg := config{params: &params.Set{}, timeout: untilDeadline(t)}
	if p, ok := params.Lookup("check"); ok && os.Getenv(p.Env()) != "" {
		if cfg.bad = cfg.params.Set(p.Key, os.Getenv(p.Env()), params.FromEnv); cfg.bad != nil {
			cfg.bad = fmt.Errorf("%s: %w", p.Env(), cfg.bad)
		}
	}
	for _, o := range opts {
		o(&cfg)
	}
	if cfg.bad != nil {
		t.Fatalf("commtest: %v", cfg.bad)
	}
	if n < 1 {
		t.Fatalf("commtest: %d ranks", n)
	}
	if onProcesses(t, n, cfg.own) {
		runProcesses(t, n, f, cfg.timeout)
		return
	}
	if cfg.nodes == nil {
		cfg.nodes = make([]int, n)
	}
	if len(cfg.nodes) != n {
		t.Fatalf("commtest: WithNodes has hosts for %d ranks, but the job has %d", len(cfg.nodes), n)
	}
	if cfg.providers == nil {
		cfg.providers = []transport.Provider{inproc.NewFabric()}
	}
	j := &job{kvs: newKVS(n), ranks: make([]rank, n)}
	id, secret := bootstrap.NewJobID(), bootstrap.NewSecret()
	for i := range j.ranks {
		r := &j.ranks[i]
		r.job, r.number = j, i
		r.setup = mpi.Setup{
			World: &bootstrap.World{
				Rank: i, Size: n, HostOf: cfg.nodes, JobID: id, Secret: secret,
				Launcher: "commtest", Params: cfg.params, KVS: j.kvs, Epoch: cfg.epoch,
			},
			Providers: cfg.providers,
			Engine:    r.setEngine,
			Exit:      r.exit,
		}
		if cfg.notify {
			if err := r.openFailures(); err != nil {
				t.Fatalf("commtest: %v", err)
			}
			defer func() { _ = r.failures.Close() }() // no notification is sent after the ranks have ended
		}
	}
	for i := range j.ranks {
		r := &j.ranks[i]
		j.running.Add(1)
		// The goroutine ends when f and Finalize have returned. job.fail makes their calls return,
		// and job.wait waits for the goroutine.
		go r.run(f)
	}
	if !j.wait(cfg.timeout) {
		stacks := j.stacks()
		j.fail(-1, fmt.Errorf("deadlock: ranks have not ended after %v\n%s", cfg.timeout, stacks))
		if !j.wait(10 * time.Second) {
			t.Errorf("commtest: %v", j.first)
			t.Fatalf("commtest: ranks could not be ended\n%s", j.stacks())
		}
	}
	j.killing.Wait()
	if j.first == nil {
		return
	}
	if j.culprit < 0 {
		t.Fatalf("commtest: %v", j.first)
	}
	t.Fatalf("rank %d: %v", j.culprit, j.first)
}

// untilDeadline returns the default of WithTimeout: at least a second, or 0 if the test has no
// deadline.
func untilDeadline(t testing.TB) time.Duration {
	d, ok := t.(interface{ Deadline() (time.Time, bool) })
	if !ok {
		return 0
	}
	end, ok := d.Deadline()
	if !ok {
		return 0
	}
	left := time.Until(end)
	return max(left-max(left/20, 2*time.Second), time.Second)
}

// job holds the state of one call of Run: of its ranks and of the first failure.
type job struct {
	kvs     *kvs
	ranks   []rank
	running sync.WaitGroup // counts the ranks whose goroutines have not ended
	killing sync.WaitGroup // counts the calls of rank.kill that job.fail has started

	mu sync.Mutex
	// The rank that failed first. -1: the failure is not that of a rank, for example the timeout.
	// Guarded by mu.
	culprit int
	first   error // the first failure; guarded by mu
}

// rank is one rank of a job.
type rank struct {
	job      *job
	number   int
	setup    mpi.Setup
	failures *os.File // failure notifications for the rank are written here; nil without WithNotify

	mu sync.Mutex
	// The engines of the rank: that of its job, since Init, and those of its connections; guarded
	// by mu.
	engines []*engine.Engine
	// Name of the rank's goroutine in the output of runtime.Stack; empty until the goroutine runs;
	// guarded by mu.
	goroutine string
	dead      bool // Kill was called for the rank; guarded by mu
}

type rankKey struct{}

// errGoexit is the failure of a rank that has called t.FailNow or runtime.Goexit.
var errGoexit = errors.New("the rank ended its goroutine")

func (r *rank) run(f func(c *comm.Comm) error) {
	defer r.job.running.Done()
	r.mu.Lock()
	r.goroutine = goroutineName()
	r.mu.Unlock()
	ended := false
	defer func() {
		if ended {
			return
		}
		if p := recover(); p != nil {
			r.job.fail(r.number, fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
			return
		}
		r.job.fail(r.number, errGoexit)
	}()
	if err := r.program(f); err != nil {
		r.job.fail(r.number, err)
	}
	ended = true
}

func (r *rank) program(f func(c *comm.Comm) error) error {
	ctx := context.WithValue(context.Background(), rankKey{}, r)
	world, err := mpi.Init(ctx, r.setup)
	if err != nil {
		return err
	}
	c := (*comm.Comm)(world)
	if err := f(c); err != nil {
		return err
	}
	r.mu.Lock()
	dead := r.dead
	r.mu.Unlock()
	if dead {
		return nil
	}
	if err := c.Finalize(); err != nil && !errors.Is(err, comm.ErrClosed) { // ErrClosed: f has called Finalize
		return err
	}
	return nil
}

func (r *rank) setEngine(e *engine.Engine) {
	r.mu.Lock()
	r.engines = append(r.engines, e)
	dead := r.dead
	r.mu.Unlock()
	r.job.mu.Lock()
	failed := r.job.first != nil
	r.job.mu.Unlock()
	if failed || dead {
		e.Kill()
	}
}

func (r *rank) exit(code int, reason string) {
	if reason == "" {
		reason = "the program called Abort"
	}
	r.job.fail(r.number, fmt.Errorf("abort with exit code %d: %s", code, reason))
	runtime.Goexit()
}

// kill closes the rank's engines, so that all calls of the rank fail.
func (r *rank) kill() {
	r.mu.Lock()
	engines := slices.Clone(r.engines)
	r.mu.Unlock()
	for _, e := range engines {
		e.Kill()
	}
}

// Kill makes the calling rank fail as if its process had died: its calls fail, and the other ranks
// get ErrProcFailed. f should return nil after Kill. c is a communicator of the rank. Its context
// must be derived from that of the communicator that Run has passed to f; otherwise Kill panics.
func Kill(c *comm.Comm) {
	r, ok := c.Context().Value(rankKey{}).(*rank)
	if !ok {
		panic("commtest: Kill with a communicator that does not come from Run")
	}
	r.mu.Lock()
	r.dead = true
	r.mu.Unlock()
	r.kill()
	r.job.report("killed by itself", []int{r.number})
}

// fail records the failure and kills all ranks, unless a failure was recorded before. rank is the
// rank that failed, or -1 (see culprit).
func (j *job) fail(rank int, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.first != nil {
		return
	}
	j.culprit, j.first = rank, err
	j.kvs.close()
	for i := range j.ranks {
		j.killing.Go(j.ranks[i].kill)
	}
}

// wait blocks until the goroutines of all ranks have ended. It returns false if timeout passes
// first. A timeout of 0 or less means no limit.
func (j *job) wait(timeout time.Duration) bool {
	done := make(chan struct{})
	go func() { // ends when all ranks have ended, perhaps after wait has returned
		j.running.Wait()
		close(done)
	}()
	if timeout <= 0 {
		<-done
		return true
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
