package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/live"
	"github.com/weft-hpc/weft/launcher/internal/procs"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/tree"
	"github.com/weft-hpc/weft/launcher/job"
)

// run is one start of the job. A restart makes a new run. The goroutine that calls [run.execute]
// owns the run, and execute calls [run.control]. Other goroutines send messages to control through
// the mailbox. control does not wait for ranks, for terminals or, except for a short time in
// suspend, for hosts.
//
//	connecting ─Up─► preparing ─Prepared─► staging ─Staged─► starting ─Started─► running
//	                     └──── Prepared, no host lacks a file ───►┘
//
//	connecting, preparing, staging ── a failure ──► over
//	starting, running ── Ended of all groups ──► over
//
// Spawned groups go through the same phases from preparing on, while the run is in phaseRunning.
type run struct {
	*session
	*group             // group 0: the ranks that gorun starts by itself
	groups    []*group // all groups, by number; the first is group 0
	id        string   // the job id; each restart gets another one
	began     time.Time
	kind      job.Launcher // the launcher in use: [run.chooseHosts] replaces LaunchAuto
	hosts     []host       // the hosts of this run, by their index in the tree of agents
	node      *tree.Node   // the root of the tree of agents
	procs     *procs.Host  // runs the ranks of this host; nil: this host is not one of the job's hosts
	hostOrder []int        // indexes of hosts in the order in which the user names them
	connector *connector   // connects with other hosts; nil: there are no other hosts
	mail      mailbox
	files     *fetcher // reads files of ranks
	clocks    *clocks  // compares the hosts' clocks

	// allocated says that the hosts come from a resource manager's allocation, or are those whose
	// agents connect with gorun.
	allocated bool
	phase     phase
	ranks     []rank            // of all groups, by number of the rank in the job; empty before the ranks are placed
	tap       *tap              // notes the output for the live page; nil: the user wants none
	names     map[string]string // ports of the services that ranks have published by PMI, by service name
	stdin     *stdin            // sends gorun's standard input to the hosts; nil: gorun does not send it
	lost      map[string]string // by name: hosts that failed or were lost in this run, and the causes
	// tails has, by rank, the last lines that the rank wrote to stderr. [run.allEnded] sets it, and
	// only for some of the ranks that have not ended normally.
	tails   map[int][]string
	figures []record.Figures // of the ranks that have ended, if the user wants statistics
	// Bytes of files for the hosts: those that are to be sent, and those that have been sent.
	stageBytes, stagedBytes atomic.Int64
	background              sync.WaitGroup // goroutines that send files to the hosts or write stacks
	// stopped ends with the run. Its end stops attempts to connect with hosts, and the sending of
	// files to them.
	stopped context.Context
	stop    context.CancelFunc

	inspecting *inspection // the inspection under way; nil: none
	// writing is the number of goroutines that still write files of the last inspection. Each of
	// them writes to one directory.
	writing      int
	inspectQueue []inspectRequest // requests whose inspection has not begun
	inspectSeq   int              // field N of the last Inspect message; 0: none was sent

	reporting      bool             // the line of progress is about the job, and no longer about its start
	before, latest *live.Snapshot   // the two latest snapshots for the line of progress; nil: there is none
	measuring      *measurement     // the question for figures under way; nil: none
	measureQueue   []measureRequest // requests whose measurement has not begun
	measureSeq     int              // field N of the last Measure message; 0: none was sent
	capturing      *capture         // the capture under way; nil: none
	captures       int              // number of captures that were begun

	// outcome is the failure that gorun will report, unless another one replaces it. It is nil
	// while nothing has failed.
	outcome *outcome
	cause   cause // the cause of outcome; not used while outcome is nil
	// signaled is the last of INT, TERM, QUIT and HUP that gorun has passed on to the hosts; 0:
	// none.
	signaled    syscall.Signal
	warnedSpawn bool    // gorun has warned that spawned ranks share slots
	gotSIGINT   bool    // gorun has got SIGINT, so that the next one kills the job
	gotSIGTERM  bool    // gorun has got SIGTERM, and has sent End because of it
	killed      bool    // gorun has sent the hosts an End that makes them send SIGKILL to the ranks
	ending      bool    // gorun has sent the hosts an End because of outcome or a signal
	readerGone  [2]bool // gorun has sent the hosts OutputClosed for stdout (index 0) or stderr (index 1)
	// nonzeroExit is used in a job that continues without failed ranks. It is the exit code of the
	// first rank that exited with a code other than 0 but counts as not failed, because it had
	// called Finalize or had never called Init. 0: there is no such rank.
	nonzeroExit int
}

// phase is how far a run has come: see the diagram at run.
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
	agent proto.Agent // what the host's agent has reported; zero: nothing yet
	state string      // hostUp, hostFailed or hostLost; "": the host has not answered yet
	cause string      // why the host has state hostFailed or hostLost; "" otherwise
}

// rank is what gorun knows about a rank.
type rank struct {
	group   int       // number of its group
	app     int       // index of its program in group.apps
	host    int       // index in run.hosts of the host on which the rank runs
	pid     int       // process id on its host; 0: not started, as far as gorun knows
	started time.Time // when the rank was started, by its host's clock
	// cpus are the hardware threads to which the rank's host has bound it instead of those in
	// run.plans. It is nil if the host has not done that.
	cpus []int
	// exit says how the rank ended. It is nil if the rank runs or was never started, if its host is
	// lost, or if the rank ended normally and Ended has not come.
	exit   *proto.Exit
	failed bool   // the rank has failed, and the job continues without it
	abort  *abort // how the rank aborted; nil: it has neither called Abort nor broken the PMI protocol
}

func newRun(s *session, id string) *run {
	world := newGroup(0, id, -1)
	r := &run{
		session: s, group: world, groups: []*group{world}, id: id, began: time.Now(), mail: mailbox{wake: make(chan struct{}, 1)},
		names: make(map[string]string), tap: newTap(s),
		lost: make(map[string]string), tails: make(map[int][]string), cause: cause{rank: -1},
	}
	do := func(m proto.Message) { r.node.Do(m) }
	r.files, r.clocks = newFetcher(do), newClocks(do)
	return r
}

// execute runs the job once, and blocks until this run is over. It returns nil if the run ended
// well.
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
	r.dropRequests() // no goroutine handles requests from here on, and collect may take long
	r.collect(ctx)
	r.close()
	r.tap.end()
	r.attributeToSlurm()
	return r.outcome
}

// collect reads what the ranks have left for gorun. A signal that asks gorun to end ends the reading.
func (r *run) collect(ctx context.Context) {
	for _, part := range []struct {
		collect func(context.Context) error
		lost    string
	}{
		{r.collectProfiles, "the profiles are lost: gorun was ended by %s while it read them"},
		{r.collectTrace, "the trace is lost: gorun was ended by %s while it wrote it"},
	} {
		waits, waited := signalContext(ctx, r.signals)
		err := part.collect(waits)
		if sig := waited(); sig != 0 && err != nil {
			err = &startError{proto.ExitSignalFloor + int(sig), fmt.Sprintf(part.lost, signalName(sig))}
			r.collectErrs = append(r.collectErrs, err)
			return // the user does not want to wait for the rest
		}
		if err != nil {
			r.collectErrs = append(r.collectErrs, err)
		}
	}
}

// open makes the root of the tree of agents, which begins to connect with the hosts. The end of ctx
// ends attempts to connect.
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
		if r.procs, err = procs.NewHost(r.procsConfig(func(m proto.Message) { emit(m) })); err != nil {
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
	// Agents that connect with gorun themselves are all children of the root of the tree.
	if r.connector != nil && r.connector.dialIn != nil {
		launch.Radix, launch.AtOnce = len(launch.Hosts), len(launch.Hosts)
	}
	cfg.Launch = launch
	var err error
	r.node, err = tree.New(cfg)
	return err
}

// usesThisHost reports whether gorun itself runs ranks, without an agent. They run on the host with
// index 0 in r.hosts then.
func (r *run) usesThisHost() bool { return len(r.hosts) > 0 && r.isOwn(r.hosts[0].Name) }

// isOwn reports whether gorun itself runs the ranks of the named host. If gorun waits for agents, it runs no
// ranks: an agent on this machine may be in a container, whose files the ranks need.
func (r *run) isOwn(name string) bool { return !r.job.Dials() && hosts.IsLocal(name) }

// onlyThisHost reports whether this host is the job's only host.
func (r *run) onlyThisHost() bool { return r.usesThisHost() && len(r.hosts) == 1 }

// procsConfig returns the configuration of this host's process manager, which passes its messages
// to emit.
func (r *run) procsConfig(emit func(proto.Message)) procs.Config {
	c := procs.Config{
		Index: 0, Host: r.hosts[0].Name, Emit: emit, Output: func(o proto.Output) error { return r.out.write(r.tap.take(o)) }, Own: true,
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

// close ends the run's goroutines, the tree, the process manager and the connections, and waits for
// the goroutines.
func (r *run) close() {
	r.stop()
	r.current.CompareAndSwap(r, nil)
	if r.stdin != nil {
		r.stdin.close()
	}
	r.background.Wait()
	r.dropRequests()
	r.files.stop(errors.New("the job has ended")) // captures may be reading
	if r.node != nil {
		r.node.Close()
	}
	if r.procs != nil {
		r.procs.Close()
	}
	r.connector.close()
}

// post takes a message that the tree has received from a host. It queues output for the writer, and
// all other messages for [run.control], and does not block. The goroutine of the tree's root calls
// post.
func (r *run) post(m proto.Message) {
	if o, ok := m.(proto.Output); ok {
		r.out.put(r.tap.take(o), func(err error) {
			r.node.Consumed(o)
			if err != nil {
				r.mail.post(writeError{o.Stderr, err})
			}
		})
		return
	}
	switch m.(type) {
	case proto.Part:
		r.files.got(m)
		return
	case proto.Time:
		r.clocks.got(m)
		return
	case proto.Lost:
		r.files.got(m)
		r.clocks.got(m)
	}
	r.mail.post(m)
}

// writeError is a message to [run.control]: the writer could not write output of ranks.
type writeError struct {
	stderr bool // the output was for stderr; false: for stdout
	err    error
}

// control handles messages, signals, the job's timeout and the end of Run's ctx. It blocks until
// the run is over: until all ranks that were started have ended, or until the run has failed before
// it started ranks.
func (r *run) control() {
	var timeout <-chan time.Time
	if !r.deadline.IsZero() {
		t := time.NewTimer(time.Until(r.deadline))
		defer t.Stop()
		timeout = t.C
	}
	cancelled := r.ctx.Done()
	progress := newProgress(r.stdio.Err, startEvery)
	defer func() {
		progress.end()
		r.show("")
	}()
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
		case <-progress.tick:
			r.show(r.progressLine())
			if r.phase == phaseRunning && !r.reporting {
				r.reporting = r.job.Progress
				progress.end()
				if r.job.Progress {
					progress = newProgress(r.stdio.Err, jobEvery)
				}
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

// timedOut ends the job because its timeout has passed. If the ranks run and the job is not ending
// yet, timedOut first makes an inspection, and ends the job when it has written the answer to
// stderr. It does not block.
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
			return // the run ended before gorun had the ranks' answers
		}
		if r.outcome == nil {
			r.printInspected(fmt.Sprintf("after %v, its timeout, the job does this:", r.job.Timeout), a)
		}
		end("")
	}})
}

// allExited reports whether all ranks have exited, as far as the hosts have reported, or gorun has
// made the hosts send SIGKILL to all of them. If so, the end of the run usually waits only for
// output that no process reads.
func (r *run) allExited() bool {
	if r.killed {
		return true
	}
	if slices.ContainsFunc(r.groups, func(g *group) bool { return g.active() && !g.exited() }) {
		return false
	}
	return r.phase >= phaseRunning
}

// during returns the last part of a message: what gorun does in a phase before the ranks run. It
// returns "" if the ranks run or the run is over.
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

// handle handles a message from the mailbox. Only [run.control] and tests call it.
func (r *run) handle(m any) {
	switch m := m.(type) {
	case partialUp:
		r.recordHosts(proto.Up(m))
	case proto.Up:
		r.hostsUp(m)
	case proto.Prepared:
		r.hostsPrepared(m)
	case staged:
		r.failGroup(m.group, m.err)
	case proto.Staged:
		r.filesStaged(m)
	case proto.Started:
		r.ranksStarted(m)
	case proto.Fence:
		// If Waiting is false, all ranks have ended. If ranks that have ended count as being in
		// every fence, the hosts would answer each Release with the next Fence, without end.
		if g := r.find(m.Group); m.Waiting && g != nil {
			g.released = m.N
			r.node.Do(proto.Release(m))
		}
	case proto.State:
		r.checkState(m)
	case proto.Request:
		r.node.Do(proto.Reply{Rank: m.Rank, Line: r.service(m.Line)})
	case proto.Spawn:
		r.spawn(m)
	case located:
		r.programsLocated(m)
	case outputReady:
		r.outputReady(m)
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
	case proto.Measured:
		r.hostMeasured(m)
	case lateMeasurement:
		if r.measuring != nil && r.measuring.n == m.n {
			r.endMeasurement()
		}
	case captureRequest:
		r.beginCapture(m)
	case proto.Captured:
		r.captured(m)
	case lateCapture:
		if r.capturing != nil && r.capturing.file == m.file {
			r.endCapture()
		}
	case measureRequest:
		r.measure(m)
	case inspectRequest:
		r.inspect(m)
	case stateRequest:
		m.then(r.state())
	case writeError:
		r.stopOutput(m)
	case exitedWithoutFinalize:
		if g := r.find(r.ranks[m.rank].group); g != nil && !r.killed && !g.exited() {
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
		r.groupEnded(m)
	}
}

// partialUp is a message to [run.control]: it has the hosts that have answered or failed since the
// last partialUp, while gorun still waits for other hosts.
type partialUp proto.Up

// nameOf returns the name of the host with this index in r.hosts. If there is no such host, it
// returns the name of gorun's host.
func (r *run) nameOf(index int) string {
	if index < 0 || index >= len(r.hosts) {
		return r.host
	}
	return r.hosts[index].Name
}

// stopOutput handles an error of a write to stdout or stderr. If the output goes to a pipe whose
// reader has closed it, stopOutput reports that to the hosts, which close the ranks' pipes. A rank
// that then writes gets SIGPIPE. For all other errors stopOutput does nothing: gorun reports them
// at the end of the job.
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
