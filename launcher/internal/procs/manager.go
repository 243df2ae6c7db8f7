// Package procs is the process manager of one host. It starts the host's ranks, carries their
// input and output, serves PMI-1 to them, passes signals on to them, ends them, and kills the
// processes that they leave behind. It takes orders and reports events as messages of package
// proto. It works in the same way in gorun, for the ranks on gorun's host, and in agents.
package procs

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/place"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
	"golang.org/x/sys/unix"
)

// Config holds what the program that uses a Manager, gorun or an agent, gives to New.
type Config struct {
	Index int    // index of this host among the hosts of the job
	Host  string // name of this host, for the tags of output lines

	// Emit takes the messages about this host: Prepared, Staged, Started, Fence, State, Request, Spawn,
	// Stacks, Inspected, Measured, Captured, Aborted, Exited, StdinCredit, Ended, Part and Time. It must not
	// block. Several goroutines may call it at the same time.
	Emit func(proto.Message)

	// Output takes what the ranks write. One goroutine calls it. The Manager reuses Data after the
	// call. Output may block; meanwhile the ranks' pipes fill up and their writes block. If Output
	// returns an error that wraps EPIPE, later writes of the ranks to the same destination fail
	// with EPIPE. After another error the Manager drops later output for that destination.
	Output func(proto.Output) error

	// The Manager calls Stored once for each FilePart, after it has written the data of the
	// FilePart or has dropped them. It drops them if this host does not need the file, or if the
	// copy has failed. Stored must not block.
	Stored func(proto.FilePart)

	// In is the standard input for the ranks that Prepare.Stdin names. nil: the input comes
	// in Stdin messages.
	In *os.File

	Own      bool      // this is gorun's host, so the job's files are here and need not be copied
	Environ  []string  // environment that App.Env extends; nil: App.Env is the whole environment
	Watchdog *Watchdog // kills the job's processes if this process is killed; not nil

	shared *shared // what all Managers of this process share; nil: there is only one
}

// Manager manages the ranks of one group on this host; Host has one Manager for each group. It uses these goroutines for any number of ranks:
//
//	forkAll       on one thread during the whole job: starts ranks, then waits
//	output.loop   pipes → Config.Output
//	feed.pump     Stdin messages → a pipe, if standard input comes in messages
//	input.pump    standard input → ranks, if they cannot inherit it; see input
//	drainer.run   rings of the ranks' records → spools, if the job is traced
//	control       everything else: messages, ends of ranks, PMI-1, deadlines
//
// At the end another goroutine waits for output.loop and drainer.run. Without pidfds, one more goroutine waits for
// SIGCHLD (noticeExits).
//
// While ranks run, control waits neither for a rank nor for Config.Output. For each event of a
// rank's control channel it reads at most once, so a rank that writes without end does not keep
// control from other events.
//
//	new ──Prepare──► prepared ──Start──► running ──all ranks have ended──► ended
type Manager struct {
	cfg        Config
	begun      time.Time     // when New was called
	job        proto.Prepare // what to start, as gorun has sent it
	plan       proto.Plan    // the part of job for this host
	local      map[int]int   // by rank: its local number, which is its index in ranks
	apps       []app
	wrap       *job.Wrapper // the command in whose arguments programs are started; nil: none
	prepareErr error        // error of prepareHost; not nil: Start starts no rank
	files      *staging
	ports      *layout
	in         *input
	feed       *feed
	mem        *os.File // memory file that the ranks share; nil: none
	noMem      error    // why mem is nil although the job asks for shared memory
	card       *os.File
	reserved   int   // number of descriptors that the Manager has reserved by shared.reserve
	claims     []int // sockets that claim the ranks' cores; see cores.go
	ranks      []rank
	records    *records
	drainer    *drainer // nil: the events of the ranks are not kept
	output     *output
	pmi        *pmiServer

	topology sync.Once      // lets topo set here once
	here     place.Topology // topology of this host

	poller    *sys.Poller
	wake      *sys.Waker    // wakes control after an append to inbox
	forked    chan struct{} // closed when forkAll has ended, or will not run
	allExited chan struct{} // closed when no rank runs any more: forkAll may end
	done      chan struct{} // closed when control has ended

	// Only forkAll uses bound and free. free lists the hardware threads that forkAll's thread could
	// use before forkAll bound it; nil: not known.
	bound bool // forkAll has bound its thread
	free  []int

	mu     sync.Mutex // guards inbox, stop and closed, and pid, pidfd and at of a rank until it has started
	inbox  []any      // messages that control has not handled yet
	stop   bool       // set when the ranks must end: forkAll must not start more ranks
	closed bool       // control has ended and has closed wake

	// Only control uses the following fields, except that forkAll uses allowed and cgroup. A field
	// of type time.Time holds when an action is due; if it is zero, the action is not due.
	stuckAfter    time.Duration                // stuckLimit, except in tests
	allowed       func(pid int) []int          // sys.Allowed, except in tests; used by forkAll alone
	exitOf        func(pid int) (status, bool) // exitStatus, except in tests
	busyOf        func(pid int) bool           // the function busy, except in tests
	phase         phase
	numStarted    int       // number of ranks that forkAll has started; -1: it has not finished yet
	ended         int       // number of ranks that have ended
	ending        bool      // control has begun to end the ranks
	refuse        bool      // an End has said that a rank or a host has failed
	recorded      bool      // recordFailure or end has recorded the ranks' states at the first failure
	termCheckAt   time.Time // when to check again which ranks without SIGTERM are busy
	termBy        time.Time // when busy ranks get SIGTERM, too
	killAt        time.Time // when the grace period after SIGTERM ends: ranks that still run then get SIGKILL
	graceOver     bool      // the grace period is over, and ranks got SIGKILL
	stuckAt       time.Time // when ranks that survive SIGKILL count as stuck
	reapAt        time.Time // when to search again for ended processes of ranks
	stateAt       time.Time // when to begin to emit State without a Watch message
	watchState    bool      // State is emitted whenever it changes
	state         proto.State
	outputStarted bool // output.loop has been started
	closing       bool // Close was called: end when no rank runs
	inspection    inspection
	captured      captured
	orphans       map[int]bool // by pid: descendants of ranks that have become children of this process
	cgroup        *cgroup
}

type phase int

const (
	phaseNew phase = iota
	phasePrepared
	phaseRunning
	phaseEnded // all ranks have ended; output may still be on the way to Config.Output
)

// started is the message in which [Manager.forkAll] reports that it has started n ranks and starts
// no more. err is why the next rank cannot be started; nil: all ranks were started, or Manager.stop
// is set.
type started struct {
	n   int
	err error
}

// childEnded is the message that a child of this process has ended. The child may be a rank.
type childEnded struct{}

// drained is the message that the goroutine [output.loop] has ended.
type drained struct{}

// Each descriptor in the poller has a number, by which [Manager.control] finds out what an event is
// about. The number of a rank's pidfd is the rank's local number i. The other numbers are negative.
const wakeIndex = -1

func ctlIndex(i int) int    { return -2 - 3*i } // number of rank i's control channel
func notifyIndex(i int) int { return -3 - 3*i } // number of rank i's channel for failure notifications
func answerIndex(i int) int { return -4 - 3*i } // number of rank i's channel for inspections

const (
	// reapEvery is the time between two calls of jobProcs.reapOrphans, and between two calls of
	// oomCount.forget. So if the kernel kills a rank because memory ran out, the Manager may
	// notice the rank's end up to reapEvery later, and Exit.Memory still reports the cause.
	reapEvery = 10 * time.Second
	// After the first normal end of a rank, the Manager waits for stateDelay before it emits State
	// without a Watch message. The other ranks usually end in this time; if not, they may wait for
	// that rank.
	stateDelay = 100 * time.Millisecond
	// stuckLimit is how long a process may take to end after SIGKILL. Then it counts as stuck: a
	// process that waits for a disk or a file server in the kernel may never end.
	stuckLimit = 10 * time.Second
)

// New returns a Manager that waits for messages. The caller must call Close.
func New(cfg Config) (*Manager, error) {
	if cfg.shared == nil {
		cfg.shared = new(shared)
	}
	c := &Manager{
		cfg: cfg, begun: time.Now(), numStarted: -1, exitOf: exitStatus, busyOf: busy, orphans: make(map[int]bool), stuckAfter: stuckLimit, allowed: sys.Allowed,
		forked: make(chan struct{}), allExited: make(chan struct{}), done: make(chan struct{}),
	}
	var err error
	if c.poller, c.wake, err = newPoller(wakeIndex); err != nil {
		return nil, err
	}
	c.noticeExits()
	go c.control() // ends after Close was called; Close waits for its end
	return c, nil
}

// newPoller makes a poller with a waker in it. The waker's events have the number id.
func newPoller(id int) (*sys.Poller, *sys.Waker, error) {
	p, err := sys.NewPoller()
	if err != nil {
		return nil, nil, err
	}
	w, err := sys.NewWaker()
	if err != nil {
		p.Close()
		return nil, nil, err
	}
	if err := p.Add(w.FD(), id, sys.In); err != nil {
		p.Close()
		w.Close()
		return nil, nil, err
	}
	return p, w, nil
}

// Do passes a message to the goroutine control, and does not block. control handles the messages in
// the order of the calls. Several goroutines may call Do. After the end of control, Do has no
// effect.
func (c *Manager) Do(m proto.Message) { c.post(m) }

func (c *Manager) post(m any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.inbox = append(c.inbox, m)
	c.wake.Wake()
}

// Close kills the ranks that run, frees what the Manager uses, and waits until this is done. It
// does not wait until Config.Output has taken the ranks' last output.
func (c *Manager) Close() {
	c.post(proto.Bye{})
	<-c.done
}

func (c *Manager) stopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stop
}

// control handles messages, events of the poller and deadlines until Close was called and no rank
// runs, or until the poller fails.
func (c *Manager) control() {
	defer close(c.done)
	var events [64]sys.Event
	c.reapAt = time.Now().Add(reapEvery)
	for !c.closing || c.phase == phaseRunning {
		n, err := c.poller.Wait(events[:], c.timeout())
		if err != nil && !errors.Is(err, unix.EINTR) {
			if c.phase == phaseRunning {
				c.kill() // the poller should never fail; but if it does, no other goroutine ends the ranks
			}
			break
		}
		c.timers()
		for i := 0; i < n; i++ {
			switch index := events[i].ID(); {
			case index == wakeIndex:
				c.readInbox()
			case index >= 0:
				c.rankEnded(index)
			default:
				switch i := (ctlIndex(0) - index) / 3; index {
				case ctlIndex(i):
					c.readControl(i, controlBytes)
				case notifyIndex(i):
					c.sendNotify(i)
				case answerIndex(i):
					c.readAnswer(i)
				}
			}
		}
		c.sendState()
		if c.phase == phaseRunning && c.numStarted >= 0 && c.ended == c.numStarted {
			c.finish()
		}
	}
	c.release()
}

// timeout returns the time until the next deadline, in milliseconds.
func (c *Manager) timeout() int {
	next := c.reapAt
	for _, t := range []time.Time{c.termCheckAt, c.killAt, c.stuckAt, c.stateAt, c.inspection.until, c.captured.until} {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	return int(max(time.Until(next)+time.Millisecond-1, 0) / time.Millisecond)
}

func (c *Manager) timers() {
	now := time.Now()
	if !c.termCheckAt.IsZero() && !now.Before(c.termCheckAt) {
		c.terminate()
	}
	if !c.killAt.IsZero() && !now.Before(c.killAt) {
		c.graceOver = true
		c.kill()
	}
	if !c.stuckAt.IsZero() && !now.Before(c.stuckAt) {
		c.abandonStuck()
	}
	if !c.stateAt.IsZero() && !now.Before(c.stateAt) {
		c.watchState, c.stateAt = true, time.Time{}
	}
	if c.inspection.on && !now.Before(c.inspection.until) {
		c.inspected()
	}
	if until := c.captured.until; !until.IsZero() && !now.Before(until) {
		c.endCapture()
	}
	if !now.Before(c.reapAt) {
		c.reapAt = now.Add(reapEvery)
		if c.phase == phaseRunning {
			c.jobProcs(c.pids(), true).reapOrphans(c.orphans)
			c.cfg.shared.forgetKills(now)
		}
	}
}

// jobProcs returns a jobProcs that recognizes the group's processes. pids are the pids of the ranks,
// and so also the numbers of their process groups. adopt says that it also takes a child of this
// process that has no mark: see others.
func (c *Manager) jobProcs(pids []int, adopt bool) jobProcs {
	b := newJobProcs(c.job.Card.JobID, pids)
	if adopt && c.numStarted >= 0 { // otherwise a child may be a rank whose pid is not recorded yet
		b.others = c.cfg.shared.notRanks()
	}
	return b
}

func (c *Manager) readInbox() {
	c.wake.Clear()
	c.mu.Lock()
	messages := c.inbox
	c.inbox = nil
	c.mu.Unlock()
	for _, m := range messages {
		if c.closing && c.phase != phaseRunning {
			return // when no rank runs any more, messages after Bye have no effect
		}
		c.act(m)
	}
}

func (c *Manager) act(m any) {
	switch m := m.(type) {
	case proto.Prepare:
		if c.phase == phaseNew {
			c.prepare(m)
		}
	case proto.FilePart:
		c.store(m)
		c.cfg.Stored(m)
	case proto.Start:
		if c.phase == phasePrepared {
			c.start(m)
		}
	case started:
		c.allStarted(m)
	case proto.Release:
		if c.pmi != nil {
			c.pmi.release(m)
		}
	case proto.Watch:
		c.watchState = true
		c.state = proto.State{Index: -1} // differs from each real State, so the next one is emitted
	case proto.Reply:
		if i, ok := c.local[m.Rank]; ok {
			c.pmi.answered(i, m.Line)
		}
	case proto.OutputClosed:
		if c.output != nil {
			c.output.broken(m.Stderr)
		}
	case proto.Stdin:
		if c.feed != nil {
			c.feed.add(m.Data)
		}
	case proto.Inspect:
		c.inspect(m)
	case proto.Capture:
		c.capture(m)
	case proto.Measure:
		c.cfg.Emit(proto.Measured{N: m.N, Index: c.cfg.Index, Figures: c.measure(m)})
	case proto.Signal:
		c.signal(syscall.Signal(m.Signal))
	case proto.RanksFailed:
		c.notify(m)
	case proto.End:
		c.end(m)
	case childEnded:
		for i := range c.ranks {
			c.rankEnded(i)
		}
	case drained:
		c.emitEnded()
	case spooled:
		c.spooled(m)
	case proto.Bye:
		c.closing = true
		if c.phase == phaseRunning {
			c.kill()
		}
	}
}

// sendState emits State if watchState is set and State has changed. gorun uses State to detect a
// job that hangs.
func (c *Manager) sendState() {
	if !c.watchState || c.pmi == nil {
		return
	}
	s := c.pmi.state(func(i int) int { return c.plan.Ranks[i].Rank })
	s.Group, s.Index, s.Ended = c.job.Card.Group, c.cfg.Index, c.phase == phaseEnded
	if s != c.state {
		c.state = s
		c.cfg.Emit(s)
	}
}

// markEnded records in the shared memory that a rank's process has ended, or was never started.
// The other ranks need this if a process dies by SIGKILL, because it cannot record its end itself.
func (c *Manager) markEnded(i int) {
	if c.mem != nil {
		// After an error, other ranks notice only an end that the rank itself has recorded.
		_ = wire.PutShmEnded(c.mem, i)
	}
}

// controlBytes is the largest number of bytes that the Manager reads from a control channel at
// once.
const controlBytes = 4 * wire.PMIMaxLine

// readControl reads once from rank i's control channel, and handles the complete lines. It reads at
// most as many bytes as most says, and at most controlBytes. It returns how many it has read; 0 if
// the channel is empty or closed. If more bytes are there, the poller reports another event. So a
// rank that writes without end does not keep control from other events.
func (c *Manager) readControl(i, most int) (n int) {
	rk := &c.ranks[i]
	if rk.ctl < 0 || rk.ctlDone {
		return 0
	}
	var buf [controlBytes]byte
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		n, _, err = unix.Recvfrom(rk.ctl, buf[:min(most, len(buf))], unix.MSG_DONTWAIT)
	}
	switch {
	case errors.Is(err, unix.EAGAIN):
		return 0
	case err != nil || n == 0:
		c.closeControl(i)
		return 0
	}
	rk.in = append(rk.in, buf[:n]...)
	for rest := rk.in; rk.ctl >= 0 && !rk.ctlDone; {
		line, behind, ok, err := wire.PMILine(rest)
		if err == nil && !ok {
			rk.in = append(rk.in[:0], rest...)
			break
		}
		if err == nil {
			err = c.pmi.line(i, line)
		}
		if err != nil {
			c.controlError(i, err)
		}
		rest = behind
	}
	return n
}

// drainControl reads and handles what a rank has written to its control channel before the call. It
// does not block, and it returns even if a process continues to write.
func (c *Manager) drainControl(i int) {
	left := sys.Unread(c.ranks[i].ctl) // 0 if the channel is closed
	for n := 1; left > 0 && n > 0; left -= n {
		n = c.readControl(i, left)
	}
}

// endControl reads and handles the last lines of a rank that has ended, and closes its control
// channel. It does not wait for the end of the stream, because children of the rank may still have
// the other end open.
func (c *Manager) endControl(i int) {
	c.drainControl(i)
	c.closeControl(i)
}

// controlError emits Aborted: the rank has called Abort, or has broken the PMI-1 protocol.
// Afterwards control no longer reads from the rank's control channel.
func (c *Manager) controlError(i int, err error) {
	rk := &c.ranks[i]
	c.mu.Lock()
	a := proto.Aborted{Rank: c.plan.Ranks[i].Rank, PID: rk.pid, Code: proto.ExitFailed}
	c.mu.Unlock()
	var abort *pmiAbort
	if errors.As(err, &abort) {
		a.Code, a.Reason, a.Consequence = abort.code, abort.reason, abort.consequence
		c.poller.Remove(rk.ctl) // but do not close the channel: the rank would get an error from it
		rk.in = nil
	} else {
		a.Broken, a.Reason = true, err.Error()
		c.closeControl(i)
	}
	a.AfterEnd = rk.signaled
	c.recordFailure(i, a.Consequence || c.runs(i))
	rk.exiting = false // the abort or the protocol error says why the rank ends
	rk.ctlDone = true
	c.cfg.Emit(a)
}

func (c *Manager) closeControl(i int) {
	rk := &c.ranks[i]
	if rk.ctl >= 0 {
		// unix.Close alone does not remove ctl from the poller, because a rank that is being forked
		// may have a copy of it.
		c.poller.Remove(rk.ctl)
		_ = unix.Close(rk.ctl)
		rk.ctl, rk.in = -1, nil
	}
}
