// Package commtest runs ranks as goroutines of a test, so that programs that
// use package comm can be tested by go test alone.
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
package commtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
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

// Option changes how Run runs.
type Option func(*config)

type config struct {
	providers []transport.Provider
	params    *params.Set
	bad       error // of an option
	timeout   time.Duration
	nodes     []int
	outlive   bool
	epoch     int
}

// WithProviders joins the ranks by these transports, in order of preference,
// in place of one of goroutines: by transport/tcp, or by one that
// transport/fault wraps.
func WithProviders(p ...transport.Provider) Option { return func(c *config) { c.providers = p } }

// WithParam sets a tunable by its key in job files, such as
// "coll.bcast.algorithm", for all ranks.
func WithParam(key, value string) Option {
	return func(c *config) {
		if err := c.params.Set(key, value, params.FromFlag); err != nil && c.bad == nil {
			c.bad = err
		}
	}
}

// WithTimeout sets after what time ranks that have not ended are taken to be
// in a deadlock. The default is a little before the test's own deadline.
func WithTimeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }

// WithNodes says on which host each rank is to believe itself; the default is
// one host.
func WithNodes(nodes ...int) Option { return func(c *config) { c.nodes = nodes } }

// WithNotify has the job outlive ranks that fail, as under gorun -on-failure
// notify: who Kills itself is reported to the others, as is who Report names, and
// Finalize waits for those that live.
func WithNotify() Option { return func(c *config) { c.outlive = true } }

// WithEpoch says how often the job is to seem to have been started anew.
func WithEpoch(n int) Option { return func(c *config) { c.epoch = n } }

// Run runs f as each of n ranks, each a goroutine with a world of its own, and
// returns when all have ended. Where f returns nil the rank is finalized. The
// first rank whose f returns an error, panics, aborts, or ends by FailNow fails the
// test, and ends the other ranks: their calls fail. Ranks that do not end in
// time fail the test with the stack of each. Tests may call the methods of t
// in f, FailNow included. Of the tunables, Run reads only check from the environment
// (WEFT_CHECK).
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
	if cfg.nodes == nil {
		cfg.nodes = make([]int, n)
	}
	if len(cfg.nodes) != n {
		t.Fatalf("commtest: hosts for %d ranks, and there are %d", len(cfg.nodes), n)
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
		if cfg.outlive {
			if err := r.openNews(); err != nil {
				t.Fatalf("commtest: %v", err)
			}
			defer func() { _ = r.news.Close() }() // what is told is told
		}
	}
	for i := range j.ranks {
		r := &j.ranks[i]
		j.running.Add(1)
		go r.run(f) // ends by itself or is ended by fail; waited for below
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

// untilDeadline is the time that ranks have if nothing else is said; 0: no end.
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

// job is the ranks of one Run.
type job struct {
	kvs     *kvs
	ranks   []rank
	running sync.WaitGroup
	killing sync.WaitGroup

	mu      sync.Mutex
	culprit int   // guarded by mu; the rank that failed first, -1: none in particular
	first   error // guarded by mu; why
}

// rank is one of them.
type rank struct {
	job    *job
	number int
	setup  mpi.Setup
	news   *os.File // our end of its channel; nil: it has none

	mu        sync.Mutex
	engine    *engine.Engine // guarded by mu
	goroutine string         // guarded by mu; as the runtime names it
	dead      bool           // guarded by mu; killed by Kill
}

type rankKey struct{}

// errGoexit is the failure of a rank that has told t why.
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
	if err := c.Finalize(); err != nil && !errors.Is(err, comm.ErrClosed) { // f may have called it
		return err
	}
	return nil
}

func (r *rank) setEngine(e *engine.Engine) {
	r.mu.Lock()
	r.engine = e
	r.mu.Unlock()
	r.job.mu.Lock()
	failed := r.job.first != nil
	r.job.mu.Unlock()
	if failed {
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

// kill ends the rank's engine.
func (r *rank) kill() {
	r.mu.Lock()
	e := r.engine
	r.mu.Unlock()
	if e != nil {
		e.Kill()
	}
}

// Kill ends the calling rank, which has c, as the death of its process would:
// its calls fail, the other ranks see that it is gone. f should return nil then.
// It panics for a communicator that is not of Run.
func Kill(c *comm.Comm) {
	r, ok := c.Context().Value(rankKey{}).(*rank)
	if !ok {
		panic("commtest: Kill of a communicator that is not of Run")
	}
	r.mu.Lock()
	r.dead = true
	r.mu.Unlock()
	r.kill()
	r.job.report("killed by itself", []int{r.number})
}

// fail notes the first failure and ends all ranks.
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

// wait waits for the ranks to end.
func (j *job) wait(timeout time.Duration) bool {
	done := make(chan struct{})
	go func() { // ends when the ranks have ended; if they never do, the test fails
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
