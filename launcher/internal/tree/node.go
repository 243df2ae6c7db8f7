package tree

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// Node is gorun's root of the tree, or an agent in it.
type Node struct {
	cfg    Config
	l      proto.Launch
	parent *link // nil: this is the root
	ctx    context.Context
	cancel context.CancelFunc // ends what is connecting
	window *window            // of the own crew
	gate   *gate
	count  *counters

	wake  chan struct{} // capacity 1: the inbox has something
	calls chan func()   // from links' readers, which wait
	done  chan struct{} // closed when loop has ended

	mu    sync.Mutex // guards what follows
	inbox []func()   // from those who must not wait
	over  bool       // loop looks at it no more

	// What loop alone uses.
	members    []*member // by their hosts; the own one first, where there is a crew
	waiting    []*member // to be connected
	connecting int       // never more than Launch.AtOnce
	links      int       // that have not ended
	stage      stage
	stored     ahead // FilePart that the own crew has not stored yet
	closing    bool
	orphaned   bool          // the parent is lost, or the agent has to end
	alone      bool          // the parent is lost
	cause      error         // why, then
	grace      time.Duration // of the job's ranks
	timers     []*time.Timer

	merges
	routes
	output
}

// member is who takes part in what a node merges: its crew, or a child with all
// behind it.
type member struct {
	lo, hi int // hosts [lo, hi)
	head   int // host of the child; those before it have failed
	failed []proto.HostError
	crew   Crew
	link   *link    // nil: not connected, or lost
	up     proto.Up // what the child said

	owes   [phases]bool
	ranks  int
	may    int                 // messages of its own accord that may still come, see relay
	needs  map[string]struct{} // files
	taker  bool                // of stdin
	taken  int64               // bytes of stdin
	source source
}

// stage is how far a node has come. It only grows.
type stage int

const (
	stageLaunch   stage = iota // Up has not been said
	stageUp                    // until Prepare
	stagePrepared              // from Prepare on
	stageStarted               // from Start on
)

// New makes a root and sets it going. Up may be called before it returns. Close
// ends it.
func New(cfg Config) (*Node, error) { return newNode(cfg, nil, newGate(), new(counters)) }

func newGate() *gate {
	g := new(gate)
	g.room.L = &g.mu
	return g
}

func newNode(cfg Config, parent *link, g *gate, c *counters) (*Node, error) {
	l, err := sane(cfg.Launch)
	switch {
	case err != nil:
		return nil, err
	case cfg.Up == nil || cfg.Open == nil && len(l.Hosts) > 1:
		return nil, errors.New("a node needs Up, and Open where there are other hosts")
	case (cfg.Crew == nil) != (l.Index == -1):
		return nil, fmt.Errorf("a crew belongs to host 0 or a later one, not to %d", l.Index)
	}
	n := &Node{
		cfg: cfg, l: l, parent: parent, gate: g, count: c, window: newWindow(),
		wake: make(chan struct{}, 1), calls: make(chan func()), done: make(chan struct{}),
	}
	n.credit = proto.Window
	n.ctx, n.cancel = context.WithCancel(context.Background())
	if cfg.Crew != nil {
		own := &member{lo: l.Index, hi: l.Index + 1, head: l.Index, may: mayPerHost}
		n.members = append(n.members, own)
		own.crew = cfg.Crew(n, func(m proto.Message) { n.post(func() { n.fromCrew(own, m) }) })
	}
	for _, p := range split(part{l.Index + 1, len(l.Hosts) - 1}, l.Radix) {
		m := &member{lo: p.first, hi: p.first + p.count, head: p.first, may: mayPerHost * p.count}
		n.members = append(n.members, m)
		n.waiting = append(n.waiting, m)
	}
	n.post(n.launch)
	go n.loop() // ends after Bye, when all links have ended; Close and Serve wait for it
	return n, nil
}

// Do takes a message from gorun, and keeps it. It does not block. What makes no
// sense at its time is answered by a Log, and has no other effect.
func (n *Node) Do(m proto.Message) {
	_, file := m.(proto.FilePart)
	if file {
		n.gate.add(1)
	}
	n.post(func() {
		if file {
			defer n.gate.add(-1)
		}
		if err := n.down(m); err != nil {
			n.up(proto.Log{Index: n.l.Index, Line: err.Error()})
		}
	})
}

// Close says Bye to all agents, waits a while for them to end, and releases
// everything. It may be called several times, but not by Up.
func (n *Node) Close() {
	n.post(n.bye)
	<-n.done
}

// Stored says of a FilePart that the own crew has no more use for its data.
func (n *Node) Stored(p proto.FilePart) {
	n.post(func() { n.stored.add(n.gate, -len(p.Data)) })
}

// AwaitRoom blocks while some child, or the own crew, still has much to take of the
// files that it needs. Who sends a FilePart when it has returned needs no memory for whole files.
func (n *Node) AwaitRoom(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		n.gate.mu.Lock()
		defer n.gate.mu.Unlock()
		n.gate.room.Broadcast()
	})
	defer stop()
	n.gate.wait(func() bool { return ctx.Err() != nil })
	return ctx.Err()
}

// Stats are what has gone over a node's links to its children so far, at an agent
// also to its parent. Beats count as bytes alone.
type Stats struct {
	MessagesIn, MessagesOut int64
	BytesIn, BytesOut       int64
	PeakQueued              int64 // bytes of Output, Stdin and FilePart that waited, or that nobody had consumed
}

// Stats may be called at any time.
func (n *Node) Stats() Stats {
	c := n.count
	return Stats{c.in.Load(), c.out.Load(), c.bytesIn.Load(), c.bytesOut.Load(), c.peak.Load()}
}

// Flush waits until what Do has taken for the children is written, where it is urgent,
// but not longer than limit.
func (n *Node) Flush(limit time.Duration) {
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		flushed := make(chan bool, 1)
		n.post(func() {
			all := true
			for _, m := range n.members {
				all = all && (m.link == nil || m.link.flushed())
			}
			flushed <- all
		})
		select {
		case all := <-flushed:
			if all {
				return
			}
		case <-late.C:
			return
		case <-n.done:
			return
		}
		time.Sleep(flushPause)
	}
}

// flushPause is the time after which Flush looks again.
const flushPause = time.Millisecond

// post has loop run f. It does not block; after the end it does nothing.
func (n *Node) post(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over {
		return
	}
	n.inbox = append(n.inbox, f)
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// call has loop run f, and blocks until it is about to.
func (n *Node) call(f func()) {
	select {
	case n.calls <- f:
	case <-n.done:
	}
}

func (n *Node) loop() {
	defer close(n.done)
	for !n.closing || n.connecting > 0 || n.links > 0 {
		select {
		case <-n.wake:
			n.mu.Lock()
			fs := n.inbox
			n.inbox = nil
			n.mu.Unlock()
			for _, f := range fs {
				f()
			}
		case f := <-n.calls:
			f()
		}
		n.forward()
	}
	for _, t := range n.timers {
		t.Stop()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.over, n.inbox = true, nil
}

// after has loop run f later.
func (n *Node) after(d time.Duration, f func()) {
	n.timers = append(n.timers, time.AfterFunc(d, func() { n.post(f) })) // loop stops it
}

// up passes a message on to the parent, or to gorun.
func (n *Node) up(m proto.Message) { n.cfg.Up(m) }

// launch sets out to connect with the children.
func (n *Node) launch() {
	n.begin(phaseUp, func(m *member) bool { return m.crew == nil })
	if n.cfg.Crew != nil {
		n.partialUp(proto.Up{Agents: []proto.Agent{n.self()}})
	}
	n.connect()
}

// connect opens streams to heads of subtrees, AtOnce at a time.
func (n *Node) connect() {
	for len(n.waiting) > 0 && n.connecting < n.l.AtOnce && !n.closing && !n.orphaned {
		m := n.waiting[0]
		n.waiting = n.waiting[1:]
		n.connecting++
		h := n.host(m.head)
		go func() { // ends with Open; loop waits for it
			ctx, cancel := context.WithTimeoutCause(n.ctx, n.l.Timeout+openExtra, fmt.Errorf("no answer within %v", n.l.Timeout+openExtra))
			defer cancel()
			s, err := n.cfg.Open(ctx, h)
			if errors.Is(err, context.DeadlineExceeded) {
				err = context.Cause(ctx)
			}
			n.post(func() { n.opened(m, s, err) })
		}()
	}
}

// opened takes over a stream to a child.
func (n *Node) opened(m *member, s Stream, err error) {
	n.connecting--
	if s == nil && err == nil {
		err = errors.New("no connection")
	}
	switch {
	case n.closing || n.orphaned:
		if err == nil {
			n.connecting++
			go func() { // ends with Close; loop waits for it
				_ = s.Close() // nobody has used it
				n.post(func() { n.connecting-- })
			}()
		}
		return
	case err != nil:
		n.headFailed(m, err)
	default:
		n.links++
		l := newLink(s, n.l, n.gate, n.count)
		l.got = func(msg proto.Message) { n.call(func() { n.fromChild(m, l, msg) }) }
		l.ended = func(err error) { n.post(func() { n.linkEnded(m, l, err) }) }
		m.link = l
		launch := n.l
		launch.Index, launch.Hosts = m.head, n.l.Hosts[m.head-n.l.Index:m.hi-n.l.Index]
		l.send(launch)
		l.start()
	}
	n.connect()
}

// headFailed makes the next host of a subtree its head.
func (n *Node) headFailed(m *member, cause error) {
	he := proto.HostError{Index: m.head, Cause: n.named(m.head, cause)}
	var own *hostError
	if errors.As(cause, &own) {
		he = own.HostError
	}
	var code exitCoder
	if errors.As(cause, &code) {
		he.Code = code.ExitCode()
	}
	m.failed = append(m.failed, he)
	m.up = proto.Up{}
	n.partialUp(proto.Up{Failed: []proto.HostError{he}})
	if m.head++; m.head == m.hi {
		n.excuse(m)
		return
	}
	n.owe(m, phaseUp)
	n.waiting = append(n.waiting, m)
	n.connect()
}

// exitCoder is an error of Open that gorun is to end with a code of its own for.
type exitCoder interface{ ExitCode() int }

// hostError is what a head says of itself.
type hostError struct{ proto.HostError }

func (e *hostError) Error() string { return e.Cause }

func (n *Node) host(index int) hosts.Host { return n.l.Hosts[index-n.l.Index] }

// named is a cause that names its host.
func (n *Node) named(index int, cause error) string {
	text, name := cause.Error(), n.host(index).Name
	if strings.Contains(text, name) {
		return text
	}
	return name + ": " + text
}

// member is who a host belongs to; nil: nobody.
func (n *Node) member(index int) *member {
	i, found := slices.BinarySearchFunc(n.members, index, func(m *member, index int) int { return m.lo - index })
	if !found {
		i--
	}
	if i < 0 || index >= n.members[i].hi {
		return nil
	}
	return n.members[i]
}

// live says whether a member can be spoken with.
func (m *member) live() bool { return m.crew != nil || m.link != nil }

// has says whether hosts are a member's.
func (m *member) has(first, count int) bool {
	return first >= m.head && first < m.hi && count > 0 && count <= m.hi-first
}

// fromChild takes a message of a child.
func (n *Node) fromChild(m *member, l *link, msg proto.Message) {
	if m.link != l || l.over() {
		return
	}
	if _, ok := msg.(proto.Bye); ok {
		l.fail(errAgentEnd)
		return
	}
	if err := n.fromBelow(m, msg); err != nil {
		l.fail(err)
	}
}

// fromCrew takes a message of the own crew.
func (n *Node) fromCrew(m *member, msg proto.Message) {
	if err := n.fromBelow(m, msg); err != nil && m.may > 0 {
		m.may--
		n.up(proto.Log{Index: n.l.Index, Line: n.named(n.l.Index, err)})
	}
}

// linkEnded is told when a child's link has ended.
func (n *Node) linkEnded(m *member, l *link, err error) {
	n.links--
	if m.link != l {
		return
	}
	m.link = nil
	switch {
	case n.closing:
	case n.stage == stageLaunch:
		n.headFailed(m, err)
	default:
		n.lose(m, err)
	}
}

// bye has all links end.
func (n *Node) bye() {
	if n.closing {
		return
	}
	n.closing, n.waiting = true, nil
	n.silence()
	n.cancel()
	for _, m := range n.members {
		if m.live() {
			m.send(proto.Bye{})
		}
	}
	n.after(byeLimit, func() {
		for _, m := range n.members {
			if m.link != nil {
				m.link.fail(errNoBye)
			}
		}
	})
}

// orphan ends everything below when there is no parent any more.
func (n *Node) orphan(cause error) {
	if n.closing || n.alone {
		return
	}
	n.alone = true
	n.silence()
	n.end(cause, 0)
}

// end ends everything below when the agent has to end. Ranks have a grace between
// SIGTERM and SIGKILL, and what they write then is passed on.
func (n *Node) end(cause error, grace time.Duration) {
	if n.closing {
		return
	}
	if !n.orphaned {
		n.orphaned, n.cause, n.waiting = true, cause, nil
		n.cancel()
	}
	n.tellAll(proto.End{Grace: grace, Except: -1})
	if n.stage < stageStarted || n.merge[phaseEnd].over() && !n.endHeld {
		n.bye()
		return
	}
	n.after(grace+endLimit, n.bye)
}

// send passes a message to a member that is live.
func (m *member) send(msg proto.Message) {
	if m.crew != nil {
		m.crew.Do(msg)
		return
	}
	m.link.send(msg)
}
