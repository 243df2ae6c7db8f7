// Package crew runs the ranks of one host: it starts them, carries their input and
// output, serves PMI-1 to them, passes signals on, and ends them and whatever they
// leave behind. What it is to do comes as messages of package proto, and what has
// happened goes out as such; whether gorun or an agent sits above it, it does not
// know.
package crew

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
	"golang.org/x/sys/unix"
)

// Config is what a crew has from the process around it.
type Config struct {
	Index int    // of this host among the job's
	Host  string // its name, for messages and tags

	// Emit takes what the crew has to say: Prepared, Staged, Started, Fence, State,
	// Request, Stacks, Inspected, Aborted, Exited, StdinCredit and Ended, about itself alone. It must
	// not block.
	Emit func(proto.Message)

	// Output takes what the ranks write. It may block, which holds up their
	// writing; it is called by one goroutine. After an error that wraps EPIPE the
	// ranks find their pipes broken, after another what they write is dropped.
	Output func(proto.Output) error

	// Stored takes back each FilePart, whose data is on disk or of no use. It does not
	// block.
	Stored func(proto.FilePart)

	// In is what the ranks here read, as Prepare.Stdin says; nil: what comes in
	// messages.
	In *os.File

	Own      bool      // this is the host that the job's files come from
	Environ  []string  // base environment that App.Env extends; nil: App.Env is complete
	Watchdog *Watchdog // ends what outlives this process; not nil
}

// Crew is the ranks of this host. These goroutines carry it, however many ranks:
//
//	forkAll       on one thread for the whole job: starts ranks, then waits
//	output.loop   pipes → Config.Output
//	feed.pump     messages → a pipe, where standard input comes in messages
//	input.pump    standard input → ranks, where several read it, or it is a terminal
//	control       the rest: messages, ends of ranks, PMI-1, deadlines
//
// and at the end one that waits for output.loop.
//
// control never blocks on what a rank or a reader of output does or does not do, and
// no rank has it for longer than one read of a control channel brings.
//
//	new ──Prepare──► prepared ──Start──► running ──all ranks have ended──► ended
type Crew struct {
	cfg    Config
	begun  time.Time
	job    proto.Prepare
	plan   proto.Plan
	local  map[int]int // local number of a rank
	apps   []app
	unfit  error // why Prepare has failed: there is nothing to start
	files  *staging
	ports  *layout
	in     *input
	feed   *feed
	mem    *os.File // what the ranks share; nil: nothing
	noMem  error    // why there is no mem although the job wants it
	card   *os.File
	claims []int // sockets that claim the cores of ranks; see cores.go
	ranks  []rank
	output *output
	pmi    *pmiServer

	topology sync.Once // guards here
	here     place.Topology

	poller *sys.Poller
	wake   *sys.Waker    // the inbox has something
	forked chan struct{} // closed by forkAll at its end
	over   chan struct{} // closed when no rank lives: forkAll may end
	done   chan struct{} // closed when control has ended

	bound bool  // forkAll's: its thread was bound
	free  []int // forkAll's: the cpus of its thread before it was bound; nil: not known

	mu     sync.Mutex // guards what follows, and pid and pidfd of ranks that are being started
	inbox  []any
	stop   bool // start no more ranks
	closed bool // control has ended, and there is no wake

	// What control alone uses.
	patience time.Duration                // stuckLimit
	allowed  func(pid int) []int          // sys.Allowed; forkAll's
	exitOf   func(pid int) (status, bool) // exitStatus
	busyOf   func(pid int) bool           // busy
	phase    phase
	allUp    int // ranks that were started, once forkAll has said so; -1: not yet
	ended    int // ranks that have exited
	told     bool
	noted    bool      // the states of the other ranks at the first failure have been recorded
	askAt    time.Time // when to check again whether ranks without SIGTERM are busy
	askBy    time.Time // when all of them get SIGTERM
	killAt   time.Time // when the grace period after SIGTERM ends
	late     bool      // the grace period is over, and ranks got SIGKILL
	stuckAt  time.Time // when ranks that survive SIGKILL count as stuck
	reapAt   time.Time
	stateAt  time.Time // when to tell State unasked
	watched  bool      // State is told as it changes
	state    proto.State
	loops    bool // output.loop has been started
	bye      bool
	asks     inspection
	orphans  map[int]bool // children of ranks that have become ours
	oom      *oomCount
	cgroup   *cgroup
	others   *others // processes that do not belong to ranks; nil: only marks identify orphans
}

type phase int

const (
	phaseNew phase = iota
	phasePrepared
	phaseRunning
	phaseEnded // no rank lives; output may still be on the way
)

// started says that forkAll is through: n ranks run; err is why not all do.
type started struct {
	n   int
	err error
}

// childEnded says that a child of this process has ended, perhaps a rank.
type childEnded struct{}

// drained says that output.loop has ended.
type drained struct{}

// The numbers of events that are no rank's pidfd.
const wakeIndex = -1

func ctlIndex(i int) int    { return -2 - 3*i } // of rank i's control channel
func newsIndex(i int) int   { return -3 - 3*i } // of its channel for failure notifications
func answerIndex(i int) int { return -4 - 3*i } // of its channel for inspections

const (
	// reapEvery is how often children of ranks that have become ours are looked
	// for among the dead, and how often old kills for lack of memory are forgotten.
	reapEvery = 10 * time.Second
	// stateDelay is for how long ranks may go on after one of them has ended well
	// before somebody is told that they might wait for it.
	stateDelay = 100 * time.Millisecond
	// stuckLimit is how long a process may take to end by SIGKILL. One that the kernel
	// holds, as it waits for a disk or a file server, say, may never do so.
	stuckLimit = 10 * time.Second
)

// New makes a crew that waits for messages. Close ends it.
func New(cfg Config) (*Crew, error) {
	c := &Crew{
		cfg: cfg, begun: time.Now(), allUp: -1, exitOf: exitStatus, busyOf: busy, orphans: make(map[int]bool), patience: stuckLimit, allowed: sys.Allowed,
		forked: make(chan struct{}), over: make(chan struct{}), done: make(chan struct{}),
	}
	var err error
	if c.poller, c.wake, err = newPoller(wakeIndex); err != nil {
		return nil, err
	}
	c.noticeExits()
	go c.control() // ends with Close, which waits for it
	return c, nil
}

// newPoller makes a poller with a waker in it, whose events have a number.
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

// Do has the crew act on a message. It does not block.
func (c *Crew) Do(m proto.Message) { c.post(m) }

func (c *Crew) post(m any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.inbox = append(c.inbox, m)
	c.wake.Wake()
}

// Close kills the ranks that live, releases everything and waits, but not for
// output that cannot be written.
func (c *Crew) Close() {
	c.post(proto.Bye{})
	<-c.done
}

func (c *Crew) stopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stop
}

// control runs until Close.
func (c *Crew) control() {
	defer close(c.done)
	var events [64]sys.Event
	c.reapAt = time.Now().Add(reapEvery)
	for !c.bye || c.phase == phaseRunning {
		n, err := c.poller.Wait(events[:], c.timeout())
		if err != nil && !errors.Is(err, unix.EINTR) {
			if c.phase == phaseRunning {
				c.kill() // cannot be; nobody else would end them
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
				case newsIndex(i):
					c.sendNews(i)
				case answerIndex(i):
					c.readAnswer(i)
				}
			}
		}
		c.tellState()
		if c.phase == phaseRunning && c.allUp >= 0 && c.ended == c.allUp {
			c.finish()
		}
	}
	c.release()
}

// timeout is the time until the next deadline, in milliseconds.
func (c *Crew) timeout() int {
	next := c.reapAt
	for _, t := range []time.Time{c.askAt, c.killAt, c.stuckAt, c.stateAt, c.asks.until} {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	return int(max(time.Until(next)+time.Millisecond-1, 0) / time.Millisecond)
}

func (c *Crew) timers() {
	now := time.Now()
	if !c.askAt.IsZero() && !now.Before(c.askAt) {
		c.ask()
	}
	if !c.killAt.IsZero() && !now.Before(c.killAt) {
		c.late = true
		c.kill()
	}
	if !c.stuckAt.IsZero() && !now.Before(c.stuckAt) {
		c.giveUp()
	}
	if !c.stateAt.IsZero() && !now.Before(c.stateAt) {
		c.watched, c.stateAt = true, time.Time{}
	}
	if c.asks.on && !now.Before(c.asks.until) {
		c.inspected()
	}
	if !now.Before(c.reapAt) {
		c.reapAt = now.Add(reapEvery)
		if c.phase == phaseRunning {
			c.belongs(c.pids()).reapOrphans(c.orphans)
			c.oom.forget()
		}
	}
}

// belongs recognizes the processes of ranks, whose pids name their groups.
func (c *Crew) belongs(pids []int) belongs {
	b := newBelongs(c.job.Card.JobID, pids)
	if c.allUp >= 0 { // otherwise a child may be a rank whose pid is not recorded yet
		b.others = c.others
	}
	return b
}

func (c *Crew) readInbox() {
	c.wake.Clear()
	c.mu.Lock()
	messages := c.inbox
	c.inbox = nil
	c.mu.Unlock()
	for _, m := range messages {
		if c.bye && c.phase != phaseRunning {
			return // the end: nothing begins any more
		}
		c.act(m)
	}
}

func (c *Crew) act(m any) {
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
		c.watched = true
		c.state = proto.State{Index: -1} // so that it is told
	case proto.Reply:
		if i, ok := c.local[m.Rank]; ok {
			c.pmi.answered(i, m.Line)
		}
	case proto.Gone:
		if c.output != nil {
			c.output.broken(m.Stderr)
		}
	case proto.Stdin:
		if c.feed != nil {
			c.feed.add(m.Data)
		}
	case proto.Inspect:
		c.inspect(m)
	case proto.Signal:
		c.signal(syscall.Signal(m.Signal))
	case proto.News:
		c.news(m)
	case proto.End:
		c.end(m)
	case childEnded:
		for i := range c.ranks {
			c.rankEnded(i)
		}
	case drained:
		c.emitEnded()
	case proto.Bye:
		c.bye = true
		if c.phase == phaseRunning {
			c.kill()
		}
	}
}

// tellState tells what may be the sign of a job that hangs.
func (c *Crew) tellState() {
	if !c.watched || c.pmi == nil {
		return
	}
	s := c.pmi.state(func(i int) int { return c.plan.Ranks[i].Rank })
	s.Index, s.Gone = c.cfg.Index, c.phase == phaseEnded
	if s != c.state {
		c.state = s
		c.cfg.Emit(s)
	}
}

// noteEnd notes for the other ranks that a rank's process has ended, or will never be
// there. Those that do not end by SIGTERM would wait for one that has left no trace
// in the memory that they share.
func (c *Crew) noteEnd(i int) {
	if c.mem != nil {
		_ = wire.PutShmEnded(c.mem, i) // where it cannot be written to, the rank has its own way to tell
	}
}

// controlBytes is how much of a control channel is read at a time.
const controlBytes = 4 * wire.PMIMaxLine

// readControl takes up to most bytes of what has come over a rank's control channel,
// once, and returns how many these were. More makes another event, so that a rank
// which never stops keeps control from nothing.
func (c *Crew) readControl(i, most int) (n int) {
	rk := &c.ranks[i]
	if rk.ctl < 0 || rk.wanted {
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
	for rest := rk.in; rk.ctl >= 0 && !rk.wanted; {
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

// drainControl reads what a rank has written to its control channel before the call:
// requests, finalize, or abort. drainControl does not block, and it returns even if a process
// continues to write.
func (c *Crew) drainControl(i int) {
	left := sys.Unread(c.ranks[i].ctl) // 0 where it is closed
	for n := 1; left > 0 && n > 0; left -= n {
		n = c.readControl(i, left)
	}
}

// endControl reads the last lines of a rank that has ended, and closes its control channel.
// The rank's children may still have the other end open.
func (c *Crew) endControl(i int) {
	c.drainControl(i)
	c.closeControl(i)
}

// controlError tells of what a rank said, or did not say well. It is not heard any
// more.
func (c *Crew) controlError(i int, err error) {
	rk := &c.ranks[i]
	c.mu.Lock()
	a := proto.Aborted{Rank: c.plan.Ranks[i].Rank, PID: rk.pid, Code: proto.ExitFailed}
	c.mu.Unlock()
	var abort *pmiAbort
	if errors.As(err, &abort) {
		a.Code, a.Reason, a.Consequence = abort.code, abort.reason, abort.consequence
		c.poller.Remove(rk.ctl) // the channel stays open: it is not to fail of that
		rk.in = nil
	} else {
		a.Broken, a.Reason = true, err.Error()
		c.closeControl(i)
	}
	a.Told = rk.signaled
	c.note(i, a.Consequence || c.runs(i))
	rk.dying = false // it has said why
	rk.wanted = true
	c.cfg.Emit(a)
}

func (c *Crew) closeControl(i int) {
	rk := &c.ranks[i]
	if rk.ctl >= 0 {
		// Closing would not do: a rank that is being forked has a copy.
		c.poller.Remove(rk.ctl)
		_ = unix.Close(rk.ctl)
		rk.ctl, rk.in = -1, nil
	}
}
