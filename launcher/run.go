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

// run is one start of the job. One goroutine, control, owns a run. Other goroutines send messages
// to control through the mailbox. control never waits for a rank, a host or a terminal.
//
//	connecting ──Up──► preparing ──Prepared──► staging ──Staged──► starting
//	    │                  │   └────── no file is missing ──────────►  │ Started
//	    │ a failure        │                                           ▼
//	    └──────────────────┴─────────────────────────► over ◄─Ended─ running
type run struct {
	*session
	id        string
	began     time.Time
	kind      job.Launcher
	hosts     []host // by index in the tree
	node      *tree.Node
	procs     *procs.Manager // runs the ranks of this host; nil: this host has no ranks
	hostOrder []int          // indexes of hosts in the order in which the user names them
	connector *connector     // connects with other hosts; nil: there are no other hosts
	mail      mailbox

	allocated  bool        // a resource manager's allocation gives the hosts and slots
	pending    proto.Start // sent when all files are staged
	phase      phase
	ranks      []rank
	plans      []proto.Plan
	used       int // number of hosts that have ranks
	prep       *proto.Prepare
	startSent  time.Time // when gorun sent Start to the hosts, by gorun's clock
	startDone  time.Time // when Started came, by gorun's clock; zero: not yet
	released   int       // number of the last fence for which gorun has sent Release
	states     states
	names      map[string]string // services that ranks have published
	stdin      *stdin            // sends gorun's standard input to the hosts; nil: gorun does not send it
	lost       map[string]string // by host that failed or was lost: the cause
	tails      map[int][]string  // by rank: its last lines of stderr
	background sync.WaitGroup    // goroutines that stage files or write stacks
	stopped    context.Context   // its end stops connecting with hosts and staging files
	stop       context.CancelFunc

	inspecting   *inspection      // the inspection under way; nil: none
	writing      int              // number of directories to which files of the last inspection are being written
	inspectQueue []inspectRequest // requests whose inspection has not begun
	inspectSeq   int              // number of the last Inspect

	outcome    *outcome       // how the run ends; nil: nothing has failed yet
	first      cause          // the cause of outcome
	signaled   syscall.Signal // the last signal passed to the ranks that terminates a process by default
	gotSIGINT  bool           // gorun has got SIGINT once
	gotSIGTERM bool           // gorun has got SIGTERM and ends the ranks
	killed     bool           // gorun has sent SIGKILL to the ranks
	ending     bool           // gorun has sent End
	readerGone [2]bool        // the hosts know that the reader of stdout, or of stderr, has closed it
	// nonzeroExit is the exit code of the first rank that exited with a code other than 0 but did
	// not fail, in a job that continues without failed ranks; 0: there is no such rank.
	nonzeroExit int
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

// host is a host of the job.
type host struct {
	hosts.Host
	agent proto.Agent
	state string // hostUp, hostFailed or hostLost; "": the host has not answered yet
	cause string // of the state hostFailed or hostLost
}

// rank is what gorun knows about a rank.
type rank struct {
	app     int // index in job.Apps
	host    int // index in run.hosts
	pid     int
	started time.Time
	cpus    []int       // that the rank is bound to; nil: those of the plan
	exit    *proto.Exit // nil: the rank runs, was never started, or its host is lost
	failed  bool        // the other ranks continue without it
	abort   *abort      // nil: the rank has neither called Abort nor broken the PMI protocol
}

func newRun(s *session, id string) *run {
	return &run{
		session: s, id: id, began: time.Now(), mail: mailbox{wake: make(chan struct{}, 1)},
		states: newStates(), names: make(map[string]string),
		lost: make(map[string]string), tails: make(map[int][]string), first: cause{rank: -1},
	}
}

// execute runs the job once. It returns nil if all ranks ended well.
func (r *run) execute() *outcome {
	ctx, stop := context.WithCancel(r.ctx)
	r.stop, r.stopped = stop, ctx
	defer stop()
	waits, waited := signalContext(ctx, r.signals)
	err := r.findHosts(waits)
	if sig := waited(); sig != 0 {
		r.connector.close()
		return r.startFailure(endedBeforeStart(sig))
	}
	if err != nil {
		r.connector.close()
		return r.startFailure(err)
	}
	if err := r.open(ctx); err != nil {
		r.close()
		return r.startFailure(err)
	}
	r.control()
	r.close()
	r.attributeToSlurm()
	return r.outcome
}

// open makes the tree of agents, which begins to connect with the hosts.
func (r *run) open(ctx context.Context) error {
	j := r.job
	launch := proto.Launch{
		JobID: r.id, Radix: j.Radix, AtOnce: j.AtOnce, SSH: r.connector.command(), Agent: j.AgentPath,
		Timeout: j.ConnectTimeout, Heartbeat: j.Heartbeat, Verbose: j.Verbose,
	}
	for _, h := range r.hosts {
		launch.Hosts = append(launch.Hosts, h.Host)
	}
	cfg := tree.Config{Up: r.post, Open: r.connector.open(ctx), OnPartialUp: func(some proto.Up) { r.mail.post(partialUp(some)) }}
	if r.usesThisHost() {
		var emit func(proto.Message)
		var err error
		// The process manager calls emit only after its first message, and by then emit is set.
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
	if r.connector != nil && r.connector.dialIn != nil { // each agent has connected with gorun directly
		launch.Radix, launch.AtOnce = len(launch.Hosts), len(launch.Hosts)
	}
	cfg.Launch = launch
	var err error
	r.node, err = tree.New(cfg)
	return err
}

// usesThisHost reports whether this host runs ranks. Its index is then 0.
func (r *run) usesThisHost() bool { return len(r.hosts) > 0 && hosts.IsLocal(r.hosts[0].Name) }

// onlyThisHost reports whether this host is the job's only host.
func (r *run) onlyThisHost() bool { return r.usesThisHost() && len(r.hosts) == 1 }

// procsConfig returns the configuration of this host's process manager.
func (r *run) procsConfig(emit func(proto.Message)) procs.Config {
	c := procs.Config{
		Index: 0, Host: r.hosts[0].Name, Emit: emit, Output: r.out.write, Own: true,
		Stored:   func(p proto.FilePart) { r.node.Stored(p) },
		Watchdog: r.watchdog,
	}
	if r.onlyThisHost() {
		c.Host, c.In = r.host, r.stdio.In
	} else {
		c.Environ = os.Environ()
		if r.job.Stdin == job.StdinRank0 {
			c.In = r.stdio.In
		}
	}
	return c
}

// close releases what the run holds: goroutines, the tree, the process manager and connections.
func (r *run) close() {
	r.stop()
	r.current.CompareAndSwap(r, nil)
	if r.stdin != nil {
		r.stdin.close()
	}
	r.background.Wait()
	r.dropInspections()
	if r.node != nil {
		r.node.Close()
	}
	if r.procs != nil {
		r.procs.Close()
	}
	r.connector.close()
}

// post takes a message from the tree. It queues output for the writer, and the rest for control.
func (r *run) post(m proto.Message) {
	if o, ok := m.(proto.Output); ok {
		r.out.put(o, func(err error) {
			r.node.Consumed(o)
			if err != nil {
				r.mail.post(writeError{o.Stderr, err})
			}
		})
		return
	}
	r.mail.post(m)
}

// writeError reports that a piece of output could not be written.
type writeError struct {
	stderr bool
	err    error
}

// mailbox holds messages of other goroutines for control.
type mailbox struct {
	mu   sync.Mutex
	mail []any
	over bool          // control reads no more mail
	wake chan struct{} // capacity 1; holds an element while there is mail
}

// post reports whether the mailbox has taken x. After close it takes nothing.
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

// close ends the mailbox and returns the mail that control has not read.
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

// control handles messages and signals until all ranks that were started have ended, or until the
// run has failed before it started any.
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
		if drain == nil && r.limitDrain && r.allExited() {
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
			r.limitDrain = true
			r.fail(cause{rank: -1, end: true}, Failure{Rank: -1, Host: r.host,
				Reason: "the job was cancelled: " + context.Cause(r.ctx).Error()}, proto.ExitFailed)
		}
	}
}

// timedOut writes what the ranks do to stderr, and then ends the job, because the job's timeout has
// passed.
func (r *run) timedOut() {
	end := func(during string) {
		r.limitDrain = true
		r.fail(cause{rank: -1, end: true}, Failure{Rank: -1, Host: r.host,
			Reason: fmt.Sprintf("the job ran longer than its timeout of %v%s", r.job.Timeout, during)}, proto.ExitTimeout)
	}
	if r.phase != phaseRunning || r.outcome != nil || r.ending {
		end(r.during())
		return
	}
	r.inspect(inspectRequest{stacks: r.stacksDir != "", dir: r.stacksDir, then: func(a inspected) {
		if r.phase != phaseRunning {
			return // the run ended before the ranks answered
		}
		if r.outcome == nil {
			r.printInspected(fmt.Sprintf("after %v, its timeout, the job does this:", r.job.Timeout), a)
		}
		end("")
	}})
}

// allExited reports whether all ranks have exited as far as gorun knows, or have got SIGKILL. Then
// only output that is not read can delay the end of the run.
func (r *run) allExited() bool {
	if r.killed {
		return true
	}
	if r.states.gone < r.used {
		return false
	}
	return r.phase >= phaseRunning
}

// during says what gorun does before the ranks run, as the end of a message. It returns "" if they
// run.
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
	case partialUp:
		r.recordHosts(proto.Up(m))
	case proto.Up:
		r.hostsUp(m)
	case proto.Prepared:
		r.hostsPrepared(m)
	case staged:
		r.failStart(m.err)
	case proto.Staged:
		r.filesStaged(m)
	case proto.Started:
		r.ranksStarted(m)
	case proto.Fence:
		if m.Waiting { // else all ranks have ended; they count as in every fence, so a Release would lead to the next Fence
			r.released = m.N
			r.node.Do(proto.Release(m))
		}
	case proto.State:
		r.checkState(m)
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
		if r.inspecting != nil && r.inspecting.n == m.n {
			r.endRound()
		}
	case filesWritten:
		r.stacksWritten(m)
	case inspectRequest:
		r.inspect(m)
	case writeError:
		r.stopOutput(m)
	case exitedWithoutFinalize:
		if !r.allExited() {
			r.fail(m.cause, m.Failure, proto.ExitFailed)
		}
	case proto.Aborted:
		r.aborted(m)
	case proto.Exited:
		r.exited(m.Exit)
	case proto.Lost:
		r.hostsLost(m)
	case proto.Log:
		r.printLine(r.nameOf(m.Index) + ": " + m.Line)
	case proto.Ended:
		r.allEnded(m)
	}
}

// partialUp reports the hosts that have answered or failed, before all have.
type partialUp proto.Up

// nameOf returns a host's name. If there is no host with this index, it returns the name of this
// host.
func (r *run) nameOf(index int) string {
	if index < 0 || index >= len(r.hosts) {
		return r.host
	}
	return r.hosts[index].Name
}

// stopOutput tells the hosts that the reader of stdout, or of stderr, has closed it, so that writes
// of the ranks fail with SIGPIPE. gorun reports other write errors at the end of the job.
func (r *run) stopOutput(u writeError) {
	k := 0
	if u.stderr {
		k = 1
	}
	if r.readerGone[k] || !r.out.sinks[k].broken.Load() {
		return
	}
	r.readerGone[k] = true
	r.node.Do(proto.OutputClosed{Stderr: u.stderr})
}

// signal handles a signal to gorun. It passes most signals to the ranks. A second INT, or any INT
// while the job is ending, kills the job. TERM ends the job: ranks that still run after the grace
// period get SIGKILL.
func (r *run) signal(s syscall.Signal) {
	switch {
	case s == syscall.SIGTSTP:
		r.suspend()
		return
	case s == inspectSignal:
		r.inspect(inspectRequest{stacks: r.stacksDir != "", dir: r.stacksDir, then: func(a inspected) { r.printInspected("the job does this:", a) }})
		return
	case s == syscall.SIGQUIT && r.phase == phaseRunning && r.outcome == nil && !r.ending:
		r.quit()
		return
	}
	if s == syscall.SIGINT && r.allExited() {
		r.limitDrain = true
		return
	}
	if s == syscall.SIGINT && (r.gotSIGINT || r.ending || r.outcome != nil) {
		r.limitDrain = true
		r.fail(cause{rank: -1, end: true}, Failure{Rank: -1, Host: r.host, Signal: s, Reason: "interrupted twice"}, proto.ExitSignalFloor+int(s))
		r.kill()
		return
	}
	r.gotSIGINT = r.gotSIGINT || s == syscall.SIGINT
	if terminates(s) {
		r.signaled = s
		if r.phase < phaseRunning { // ranks that are not started yet would not get the signal
			r.fail(cause{rank: -1, end: true}, Failure{Rank: -1, Host: r.host, Signal: s}, proto.ExitSignalFloor+int(s))
		}
	}
	if s == syscall.SIGTERM {
		r.terminate()
		return
	}
	r.node.Do(proto.Signal{Signal: int(s)})
}

// terminate sends SIGTERM to the ranks, and SIGKILL after the grace period. fail determines the
// exit code of the job if a rank then does not exit with 0.
func (r *run) terminate() {
	if r.ending || r.killed || r.outcome != nil {
		return // the ranks have got SIGTERM already
	}
	r.gotSIGTERM, r.ending = true, true
	r.node.Do(proto.End{Grace: r.job.Grace, Except: -1})
}

// quit writes what the ranks do to stderr, and ends the job. Ranks that have answered end as in a
// job that fails. Other ranks get SIGQUIT, which may or may not end them.
func (r *run) quit() {
	r.inspect(inspectRequest{stacks: true, dir: r.stacksDir, then: func(a inspected) {
		if a.weft { // even if the job has ended: the answer names the files with the stacks
			r.printInspected("signal 3 (SIGQUIT): the job does this:", a)
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

// suspendLimit bounds the time that suspend waits for its message to leave gorun.
const suspendLimit = time.Second

// suspend stops the ranks and then gorun itself, as ^Z does. It continues the ranks when the shell
// continues gorun. The terminal does not stop the ranks, because they are in process groups of
// their own.
func (r *run) suspend() {
	r.node.Do(proto.Signal{Signal: int(syscall.SIGTSTP)})
	r.node.Flush(suspendLimit)
	suspend()
	r.node.Do(proto.Signal{Signal: int(syscall.SIGCONT)})
}

// kill ends every rank with SIGKILL.
func (r *run) kill() {
	if !r.killed {
		r.killed = true
		r.node.Do(proto.End{Except: -1})
	}
}
