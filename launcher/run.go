package launcher

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/procs"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/tree"
	"github.com/weft-hpc/weft/launcher/job"
)

// run is one start of the job. A goroutine, control, has it; what goes on elsewhere
// comes to it by the mailbox. It never blocks on what a rank, a host or a terminal
// does or does not do.
//
//	connecting ──Up──► preparing ──Prepared──► staging ──Staged──► starting
//	    │                  │   └────── no file is missing ──────────►  │ Started
//	    │ a failure        │                                           ▼
//	    └──────────────────┴─────────────────────────► over ◄─Ended─ running
type run struct {
	*session
	id    string
	began time.Time
	kind  job.Launcher
	hosts []host // by their index in the tree
	node  *tree.Node
	procs *procs.Manager // of this host; nil: it runs no ranks
	wants []int          // indexes of hosts in the order in which the user names them
	reach *reach         // how other hosts are reached; nil: there are none
	mail  mailbox

	allocated bool        // the hosts and slots are what a resource manager has given
	pending   proto.Start // when files are there
	phase     phase
	ranks     []rank
	plans     []proto.Plan
	used      int // hosts that have ranks
	prep      *proto.Prepare
	startSent time.Time // when the hosts were told to start the ranks, by the clock here
	startDone time.Time // when they had; zero: not yet
	released  int       // the last fence that was let go
	states    states
	names     map[string]string // services that ranks have published
	stdin     *stdin            // for hosts that do not read it themselves; nil: it goes nowhere
	lost      map[string]string // hosts that do not answer any more, and why
	tails     map[int][]string
	stagers   sync.WaitGroup
	stopped   context.Context // its end ends what stages files and connects with hosts
	stop      context.CancelFunc

	asks        *inspection      // the inspection under way; nil: none
	writing     int              // number of directories to which files of the last inspection are being written
	asked       []inspectRequest // inspections that have not begun
	inspections int

	verdict  *verdict
	first    cause          // the cause of the verdict
	signaled syscall.Signal // the last one passed on that asks a program to end
	interred bool           // ^C has come once
	termed   bool           // SIGTERM has come: gorun asks the ranks to end
	killed   bool
	ending   bool    // the ranks are told to end
	gone     [2]bool // hosts know that nobody reads stdout, stderr
	soft     int     // exit code of the first rank that ended with one, in a job that goes on without failed ranks
}

type phase int

const (
	phaseConnecting phase = iota
	phasePreparing
	phaseStaging
	phaseStarting
	phaseRunning
	phaseOver
)

// host is a machine of the job.
type host struct {
	hosts.Host
	agent proto.Agent
	state string // "", up, failed, lost
	cause string
}

// rank is what is known of a process.
type rank struct {
	app     int
	host    int
	pid     int
	started time.Time
	cpus    []int       // that it is bound to; nil: as planned
	exit    *proto.Exit // nil: it runs, or was never started, or its host is lost
	failed  bool        // the others go on without it
	abort   *abort      // nil: it has neither called Abort nor broken the protocol
}

func newRun(s *session, id string) *run {
	return &run{
		session: s, id: id, began: time.Now(), mail: mailbox{wake: make(chan struct{}, 1)},
		states: newStates(), names: make(map[string]string),
		lost: make(map[string]string), tails: make(map[int][]string), first: cause{rank: -1},
	}
}

// execute runs the job once; nil: it ended well.
func (r *run) execute() *verdict {
	ctx, stop := context.WithCancel(r.ctx)
	r.stop, r.stopped = stop, ctx
	defer stop()
	waits, waited := buildContext(ctx, r.signals)
	err := r.gather(waits)
	if sig := waited(); sig != 0 {
		r.reach.close()
		return r.refuse(endedEarly(sig))
	}
	if err != nil {
		r.reach.close()
		return r.refuse(err)
	}
	if err := r.open(ctx); err != nil {
		r.close()
		return r.refuse(err)
	}
	r.control()
	r.close()
	r.judgeSlurm()
	return r.verdict
}

// open makes the tree, which begins to connect with the hosts.
func (r *run) open(ctx context.Context) error {
	j := r.job
	launch := proto.Launch{
		JobID: r.id, Radix: j.Radix, AtOnce: j.AtOnce, SSH: r.reach.command(), Agent: j.AgentPath,
		Timeout: j.ConnectTimeout, Heartbeat: j.Heartbeat, Verbose: j.Verbose,
	}
	for _, h := range r.hosts {
		launch.Hosts = append(launch.Hosts, h.Host)
	}
	cfg := tree.Config{Up: r.post, Open: r.reach.open(ctx), OnPartialUp: func(some proto.Up) { r.mail.post(came(some)) }}
	if r.hasOwn() {
		var emit func(proto.Message)
		var err error
		// It says nothing before it gets its first message.
		if r.procs, err = procs.New(r.procsConfig(func(m proto.Message) { emit(m) })); err != nil {
			return err
		}
		cfg.Self = self(r.host)
		cfg.Procs = func(_ *tree.Node, e func(proto.Message)) tree.Procs {
			emit = e
			return r.procs
		}
	} else {
		launch.Index = -1
		launch.Hosts = append([]hosts.Host{{Name: r.host}}, launch.Hosts...)
	}
	if r.reach != nil && r.reach.dialIn != nil { // they come to gorun, each by itself
		launch.Radix, launch.AtOnce = len(launch.Hosts), len(launch.Hosts)
	}
	cfg.Launch = launch
	var err error
	r.node, err = tree.New(cfg)
	return err
}

// hasOwn says whether this host runs ranks.
func (r *run) hasOwn() bool { return len(r.hosts) > 0 && hosts.IsLocal(r.hosts[0].Name) }

// alone says whether it is the only one that does.
func (r *run) alone() bool { return r.hasOwn() && len(r.hosts) == 1 }

// procsConfig is what the process manager of this host needs to know.
func (r *run) procsConfig(emit func(proto.Message)) procs.Config {
	c := procs.Config{
		Index: 0, Host: r.hosts[0].Name, Emit: emit, Output: r.out.write, Own: true,
		Stored:   func(p proto.FilePart) { r.node.Stored(p) },
		Watchdog: r.watchdog,
	}
	if r.alone() {
		c.Host, c.In = r.host, r.stdio.In
	} else {
		c.Environ = os.Environ()
		if r.job.Stdin == job.StdinRank0 {
			c.In = r.stdio.In
		}
	}
	return c
}

// close ends what is left of the run.
func (r *run) close() {
	r.stop()
	r.current.CompareAndSwap(r, nil)
	if r.stdin != nil {
		r.stdin.close()
	}
	r.stagers.Wait()
	r.dropInspections()
	if r.node != nil {
		r.node.Close()
	}
	if r.procs != nil {
		r.procs.Close()
	}
	r.reach.close()
}

// post takes what the tree has to say.
func (r *run) post(m proto.Message) {
	if o, ok := m.(proto.Output); ok {
		r.out.put(o, func(err error) {
			r.node.Consumed(o)
			if err != nil {
				r.mail.post(unread{o.Stderr, err})
			}
		})
		return
	}
	r.mail.post(m)
}

// unread says that output could not be written.
type unread struct {
	stderr bool
	err    error
}

// mailbox is where control finds what others have to say to it.
type mailbox struct {
	mu   sync.Mutex
	mail []any
	over bool          // no goroutine reads mail any more
	wake chan struct{} // has an element when there is mail
}

// post reports whether the mailbox has taken x. It does not after close.
func (m *mailbox) post(x any) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return false
	}
	m.mail = append(m.mail, x)
	select {
	case m.wake <- struct{}{}:
	default:
	}
	return true
}

// close returns the mail that control has not read.
func (m *mailbox) close() []any {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = true
	return m.mail
}

func (m *mailbox) take() []any {
	m.mu.Lock()
	defer m.mu.Unlock()
	mail := m.mail
	m.mail = nil
	return mail
}

// control runs until every rank that was started has ended, or it is clear that
// none will be.
func (r *run) control() {
	var timeout <-chan time.Time
	if !r.deadline.IsZero() {
		t := time.NewTimer(time.Until(r.deadline))
		defer t.Stop()
		timeout = t.C
	}
	cancelled := r.ctx.Done()
	starting := newProgress(r.stdio.Err)
	defer starting.end()
	var drain <-chan time.Time
	for r.phase != phaseOver {
		if drain == nil && r.hurried && r.allGone() {
			drain = time.After(drainLimit)
		}
		select {
		case <-drain:
			r.out.abandon()
		case <-r.mail.wake:
			for _, m := range r.mail.take() {
				r.handle(m)
			}
		case s := <-r.signals:
			if sig, ok := s.(syscall.Signal); ok {
				r.signal(sig)
			}
		case <-starting.tick:
			r.show(r.progressLine())
			if r.phase >= phaseRunning {
				starting.end()
			}
		case <-timeout:
			r.timedOut()
		case <-cancelled:
			cancelled = nil
			r.hurried = true
			r.fail(cause{rank: -1, end: true}, Failure{Rank: -1, Host: r.host,
				Reason: "the job was cancelled: " + context.Cause(r.ctx).Error()}, proto.ExitFailed)
		}
	}
}

// timedOut reports what the ranks of a job do that has run for too long, and ends the job.
func (r *run) timedOut() {
	end := func(during string) {
		r.hurried = true
		r.fail(cause{rank: -1, end: true}, Failure{Rank: -1, Host: r.host,
			Reason: fmt.Sprintf("the job ran longer than its timeout of %v%s", r.job.Timeout, during)}, proto.ExitTimeout)
	}
	if r.phase != phaseRunning || r.verdict != nil || r.ending {
		end(r.during())
		return
	}
	r.inspect(inspectRequest{stacks: r.stacksDir != "", dir: r.stacksDir, then: func(a inspected) {
		if r.phase != phaseRunning {
			return // the job has ended meanwhile
		}
		if r.verdict == nil {
			r.tellInspected(fmt.Sprintf("after %v, its timeout, the job does this:", r.job.Timeout), a)
		}
		end("")
	}})
}

// allGone says whether no rank lives, for all that is known; then only output that
// nobody reads holds up the end.
func (r *run) allGone() bool {
	if r.killed {
		return true
	}
	if r.states.gone < r.used {
		return false
	}
	return r.phase >= phaseRunning
}

// during says what a job does that does not run yet.
func (r *run) during() string {
	switch r.phase {
	case phaseConnecting:
		return ", while it waited for hosts to answer"
	case phasePreparing, phaseStaging, phaseStarting:
		return ", while the ranks were being started"
	default:
		return ""
	}
}

func (r *run) handle(m any) {
	switch m := m.(type) {
	case came:
		r.noteHosts(proto.Up(m))
	case proto.Up:
		r.hostsUp(m)
	case proto.Prepared:
		r.hostsPrepared(m)
	case staged:
		r.refuseWith(m.err)
	case proto.Staged:
		r.filesStaged(m)
	case proto.Started:
		r.ranksStarted(m)
	case proto.Fence:
		if m.Waiting { // else all ranks have ended, and would be in one fence after the other
			r.released = m.N
			r.node.Do(proto.Release(m))
		}
	case proto.State:
		r.judgeState(m)
	case proto.Request:
		r.node.Do(proto.Reply{Rank: m.Rank, Line: r.service(m.Line)})
	case proto.StdinCredit:
		if r.stdin != nil {
			r.stdin.credit(m.Bytes)
		}
	case proto.Stacks:
		r.stacksOf(m)
	case proto.Inspected:
		r.hostInspected(m)
	case lateInspection:
		if r.asks != nil && r.asks.n == m.n {
			r.endRound()
		}
	case filesWritten:
		r.stacksWritten(m)
	case inspectRequest:
		r.inspect(m)
	case unread:
		r.stopOutput(m)
	case deserted:
		if !r.allGone() {
			r.fail(m.cause, m.Failure, proto.ExitFailed)
		}
	case proto.Aborted:
		r.aborted(m)
	case proto.Exited:
		r.exited(m.Exit)
	case proto.Lost:
		r.hostsLost(m)
	case proto.Log:
		r.tell(r.nameOf(m.Index) + ": " + m.Line)
	case proto.Ended:
		r.allEnded(m)
	}
}

// came is of hosts that have answered, while others have not.
type came proto.Up

// nameOf is a host's name, whatever a peer says its index is.
func (r *run) nameOf(index int) string {
	if index < 0 || index >= len(r.hosts) {
		return r.host
	}
	return r.hosts[index].Name
}

// stopOutput tells the hosts that nobody reads stdout, or stderr, any more, so that
// what the ranks write fails. Other errors are told at the end of the job.
func (r *run) stopOutput(u unread) {
	k := 0
	if u.stderr {
		k = 1
	}
	if r.gone[k] || !r.out.sinks[k].broken.Load() {
		return
	}
	r.gone[k] = true
	r.node.Do(proto.OutputClosed{Stderr: u.stderr})
}

// signal handles a signal to gorun; it passes most signals to the ranks. A second ^C, or
// any ^C while the job is ending, kills the job. SIGTERM ends the job: ranks that it does
// not end get SIGKILL after the grace period.
func (r *run) signal(s syscall.Signal) {
	switch {
	case s == syscall.SIGTSTP:
		r.suspend()
		return
	case s == inspectSignal:
		r.inspect(inspectRequest{stacks: r.stacksDir != "", dir: r.stacksDir, then: func(a inspected) { r.tellInspected("the job does this:", a) }})
		return
	case s == syscall.SIGQUIT && r.phase == phaseRunning && r.verdict == nil && !r.ending:
		r.quit()
		return
	}
	if s == syscall.SIGINT && r.allGone() {
		r.hurried = true
		return
	}
	if s == syscall.SIGINT && (r.interred || r.ending || r.verdict != nil) {
		r.hurried = true
		r.fail(cause{rank: -1, end: true}, Failure{Rank: -1, Host: r.host, Signal: s, Reason: "interrupted twice"}, proto.ExitSignalFloor+int(s))
		r.kill()
		return
	}
	r.interred = r.interred || s == syscall.SIGINT
	if asksToEnd(s) {
		r.signaled = s
		if r.phase < phaseRunning { // some ranks would never get it
			r.fail(cause{rank: -1, end: true}, Failure{Rank: -1, Host: r.host, Signal: s}, proto.ExitSignalFloor+int(s))
		}
	}
	if s == syscall.SIGTERM {
		r.terminate()
		return
	}
	r.node.Do(proto.Signal{Signal: int(s)})
}

// terminate sends SIGTERM to the ranks, and SIGKILL after the grace period. If a rank then
// does not exit with 0, that rank determines the verdict; see fail.
func (r *run) terminate() {
	if r.ending || r.killed || r.verdict != nil {
		return // the ranks have got SIGTERM
	}
	r.termed, r.ending = true, true
	r.node.Do(proto.End{Grace: r.job.Grace, Except: -1})
}

// quit reports what the ranks do, and ends the job. Ranks that have answered are ended as
// in a job that fails. Other ranks get SIGQUIT, which may end them or not.
func (r *run) quit() {
	r.inspect(inspectRequest{stacks: true, dir: r.stacksDir, then: func(a inspected) {
		if a.weft { // also if the job has ended meanwhile: the answer says where the stacks are
			r.tellInspected("signal 3 (SIGQUIT): the job does this:", a)
		}
		if r.phase != phaseRunning {
			return
		}
		r.signaled = syscall.SIGQUIT
		r.node.Do(proto.Signal{Signal: int(syscall.SIGQUIT)})
		if a.weft {
			r.fail(cause{rank: -1, end: true}, Failure{Rank: -1, Host: r.host, Signal: syscall.SIGQUIT}, proto.ExitSignalFloor+int(syscall.SIGQUIT))
		}
	}})
}

// suspendLimit is for how long a suspension waits until the hosts are told of it.
const suspendLimit = time.Second

// suspend does what ^Z means: the ranks are in process groups of their own,
// which the terminal does not stop.
func (r *run) suspend() {
	r.node.Do(proto.Signal{Signal: int(syscall.SIGTSTP)})
	r.node.Flush(suspendLimit)
	suspend()
	r.node.Do(proto.Signal{Signal: int(syscall.SIGCONT)})
}

// kill ends every rank at once.
func (r *run) kill() {
	if !r.killed {
		r.killed = true
		r.node.Do(proto.End{Except: -1})
	}
}
