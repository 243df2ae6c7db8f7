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

// Node is gorun's root of the tree, or an agent in the tree.
type Node struct {
	cfg         Config
	l           proto.Launch
	parent      *link              // nil: this is the root
	ctx         context.Context    // parent of the contexts that calls of Open get
	cancel      context.CancelFunc // ends ctx
	window      *window            // limits the output that the own process manager passes to Node.Output
	flowControl *fileFlowControl
	count       *counters

	wake  chan struct{} // capacity 1: wakes the goroutine loop after an append to inbox
	calls chan func()   // functions for loop from the readers of links, which block until loop takes them
	done  chan struct{} // closed when loop has ended

	mu        sync.Mutex // guards inbox and loopEnded
	inbox     []func()   // functions that loop must run, from callers that must not block
	loopEnded bool       // loop has ended

	// The following fields are used by loop alone. The subtrees are in the order of their hosts'
	// indexes. If this node has a process manager, that is the first.
	subtrees   []*subtree
	groups     []*group      // the groups of ranks that exist here or below, by their numbers; group 0 is the first
	world      *group        // group 0
	lastGroup  int           // highest number of a group whose Prepare has come
	waiting    []*subtree    // subtrees with which the node must still connect
	connecting int           // number of goroutines that call Open or close an unused stream
	links      int           // number of links that have not ended
	stored     ahead         // bytes of FilePart that the own process manager still needs; see Stored
	closing    bool          // shutDown has sent Bye to all subtrees
	ending     bool          // the node ends its ranks: the parent is lost, or the agent must end
	noParent   bool          // the parent is lost
	cause      error         // why ending is set; Serve returns it
	grace      time.Duration // Prepare.Grace: time between SIGTERM and SIGKILL if the agent must end
	timers     []*time.Timer

	routes
	output
}

// subtree is a part of the tree whose answers a node merges: its own process manager, or a child
// with everything below it. The head of a child's subtree is the host on which the child runs.
type subtree struct {
	index  int               // in Node.subtrees
	lo, hi int               // the subtree's hosts have the indexes lo to hi-1
	head   int               // index of the host on which the child runs; the hosts before it have failed
	failed []proto.HostError // errors of the hosts before head
	procs  Procs             // the node's own process manager; nil: the subtree is a child's
	link   *link             // to the child; nil: not connected, or lost
	up     proto.Up          // the child's answer to Launch

	ranks      int   // number of ranks of all groups on the subtree's hosts
	budget     int   // limit of the messages that relay still passes on for the subtree
	fetching   int   // number of Fetches that the subtree has not answered by a Part
	asked      int   // number of AskTimes that the subtree has not answered by a Time
	readsStdin bool  // ranks of the subtree read standard input
	taken      int64 // bytes of standard input for which the subtree has sent StdinCredit
	source     source
}

// stage is how far a group has come at a node. It never becomes less. The first two are stages of
// group 0 only; they are those of the node itself.
type stage int

const (
	stageLaunch   stage = iota // the node connects with its children and has not sent Up yet
	stageUp                    // the node has sent Up
	stagePrepared              // the node has got Prepare
	stageStarted               // the node has got Start
)

// New makes and starts gorun's root of the tree. It returns an error if cfg is not valid. The node
// may call cfg.Up before New returns. The caller must call Close.
func New(cfg Config) (*Node, error) { return newNode(cfg, nil, newFileFlowControl(), new(counters)) }

func newFileFlowControl() *fileFlowControl {
	g := new(fileFlowControl)
	g.room.L = &g.mu
	return g
}

func newNode(cfg Config, parent *link, g *fileFlowControl, c *counters) (*Node, error) {
	l, err := normalize(cfg.Launch)
	switch {
	case err != nil:
		return nil, err
	case cfg.Up == nil || cfg.Open == nil && len(l.Hosts) > 1:
		return nil, errors.New("a node needs Up, and Open if there are other hosts")
	case (cfg.Procs == nil) != (l.Index == -1):
		return nil, fmt.Errorf("ranks belong to host 0 or a later one, not to %d", l.Index)
	}
	n := &Node{
		cfg: cfg, l: l, parent: parent, flowControl: g, count: c, window: newWindow(),
		wake: make(chan struct{}, 1), calls: make(chan func()), done: make(chan struct{}),
	}
	n.credit = proto.Window
	n.ctx, n.cancel = context.WithCancel(context.Background())
	if cfg.Procs != nil {
		own := &subtree{lo: l.Index, hi: l.Index + 1, head: l.Index, budget: budgetPerHost}
		n.subtrees = append(n.subtrees, own)
		own.procs = cfg.Procs(n, func(m proto.Message) { n.post(func() { n.fromProcs(own, m) }) })
	}
	for _, p := range split(part{l.Index + 1, len(l.Hosts) - 1}, l.Radix) {
		m := &subtree{index: len(n.subtrees), lo: p.first, hi: p.first + p.count, head: p.first, budget: budgetPerHost * p.count}
		n.subtrees = append(n.subtrees, m)
		n.waiting = append(n.waiting, m)
	}
	n.world = newGroup(0, len(n.subtrees))
	n.groups = []*group{n.world}
	n.post(n.launch)
	go n.loop() // ends after Bye, when all links have ended; Close and Serve wait for it
	return n, nil
}

// Do takes a message from gorun. The node keeps the message. Do does not block. If the message is
// invalid at this time, the node answers with a Log and otherwise ignores it.
func (n *Node) Do(m proto.Message) {
	_, file := m.(proto.FilePart)
	if file {
		n.flowControl.add(1)
	}
	n.post(func() {
		if file {
			defer n.flowControl.add(-1)
		}
		if err := n.down(m); err != nil {
			n.up(proto.Log{Index: n.l.Index, Line: err.Error()})
		}
	})
}

// Close sends Bye to the children, which pass it on, and waits for the end of the children. After
// byeLimit it closes the streams of children that have not ended. It also waits for running calls
// of Open, whose contexts it ends. It is idempotent. Config.Up must not call it, because Close
// waits for the goroutine that calls Up.
func (n *Node) Close() {
	n.post(n.shutDown)
	<-n.done
}

// Stored reports that the own process manager no longer needs the data of a FilePart.
func (n *Node) Stored(p proto.FilePart) {
	n.post(func() { n.stored.add(n.flowControl, -len(p.Data)) })
}

// AwaitRoom blocks while more than filesAhead bytes of files wait for a child or for the own
// process manager. If the caller calls AwaitRoom before it sends each FilePart, the node needs no
// memory for whole files. AwaitRoom also returns when ctx ends, with the error of ctx, and when the
// node ends, with nil.
func (n *Node) AwaitRoom(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		n.flowControl.mu.Lock()
		defer n.flowControl.mu.Unlock()
		n.flowControl.room.Broadcast()
	})
	defer stop()
	n.flowControl.wait(func() bool { return ctx.Err() != nil })
	return ctx.Err()
}

// Stats counts the messages and bytes on the node's links to its children, and at an agent also on
// the link to its parent. Heartbeats count only as bytes.
type Stats struct {
	MessagesIn, MessagesOut int64
	BytesIn, BytesOut       int64
	// PeakQueued is the largest number of bytes of Output, Stdin, FilePart, Stacks and Part that waited
	// to be sent or consumed.
	PeakQueued int64
}

// Stats returns the counts so far. It may be called at any time.
func (n *Node) Stats() Stats {
	c := n.count
	return Stats{c.in.Load(), c.out.Load(), c.bytesIn.Load(), c.bytesOut.Load(), c.peak.Load()}
}

// Flush blocks until the links to the children have written the messages of their queues urgent
// (see queue.go) that Do has taken before Flush, at most for limit.
func (n *Node) Flush(limit time.Duration) {
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		flushed := make(chan bool, 1)
		n.post(func() {
			all := true
			for _, m := range n.subtrees {
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

// flushPause is the time between two checks of Flush.
const flushPause = time.Millisecond

// post makes the goroutine loop run f. It does not block. After loop's end it does nothing.
func (n *Node) post(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.loopEnded {
		return
	}
	n.inbox = append(n.inbox, f)
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// call makes the goroutine loop run f, and blocks until loop takes f or has ended.
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
	n.loopEnded, n.inbox = true, nil
}

// after makes the goroutine loop run f after d.
func (n *Node) after(d time.Duration, f func()) {
	n.timers = append(n.timers, time.AfterFunc(d, func() { n.post(f) })) // loop stops the timer when it ends
}

// up passes a message to the parent, or, at the root, to gorun.
func (n *Node) up(m proto.Message) { n.cfg.Up(m) }

// launch begins to connect with the children.
func (n *Node) launch() {
	n.begin(n.world, phaseUp, func(m *subtree) bool { return m.procs == nil })
	if n.cfg.Procs != nil {
		n.partialUp(proto.Up{Agents: []proto.Agent{n.self()}})
	}
	n.connect()
}

// connect opens streams to the heads of the subtrees in n.waiting, at most Launch.AtOnce at a time.
func (n *Node) connect() {
	for len(n.waiting) > 0 && n.connecting < n.l.AtOnce && !n.closing && !n.ending {
		m := n.waiting[0]
		n.waiting = n.waiting[1:]
		n.connecting++
		h := n.host(m.head)
		go func() { // ends when Open returns; loop waits for it
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

// opened runs when Open has returned a stream to the head of m, or an error. It starts a link on
// the stream and sends Launch. After an error, it tries the next host of m. If the node is ending,
// it closes the stream.
func (n *Node) opened(m *subtree, s Stream, err error) {
	n.connecting--
	if s == nil && err == nil {
		err = errors.New("no connection")
	}
	switch {
	case n.closing || n.ending:
		if err == nil {
			n.connecting++
			go func() { // ends when s.Close returns; loop waits for it
				_ = s.Close() // the stream was not used
				n.post(func() { n.connecting-- })
			}()
		}
		return
	case err != nil:
		n.headFailed(m, err)
	default:
		n.links++
		l := newLink(s, n.l, n.flowControl, n.count)
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

// headFailed records that the head of a subtree has failed. It makes the next host of the subtree its
// head, and connects with that host. If there is no other host, the subtree has failed.
func (n *Node) headFailed(m *subtree, cause error) {
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
		n.cancelOwed(m)
		return
	}
	n.owe(n.world, m, phaseUp)
	n.waiting = append(n.waiting, m)
	n.connect()
}

// exitCoder is an error of Open that determines gorun's exit code.
type exitCoder interface{ ExitCode() int }

// hostError is an error that a child has reported about its own host, in Up.
type hostError struct{ proto.HostError }

func (e *hostError) Error() string { return e.Cause }

func (n *Node) host(index int) hosts.Host { return n.l.Hosts[index-n.l.Index] }

// named returns the text of cause. If the text does not contain the name of the host, named puts the
// name before it.
func (n *Node) named(index int, cause error) string {
	text, name := cause.Error(), n.host(index).Name
	if strings.Contains(text, name) {
		return text
	}
	return name + ": " + text
}

// subtreeOf returns the subtree that a host belongs to; nil: none.
func (n *Node) subtreeOf(index int) *subtree {
	i, found := slices.BinarySearchFunc(n.subtrees, index, func(m *subtree, index int) int { return m.lo - index })
	if !found {
		i--
	}
	if i < 0 || index >= n.subtrees[i].hi {
		return nil
	}
	return n.subtrees[i]
}

// live reports whether messages can be sent to the subtree.
func (m *subtree) live() bool { return m.procs != nil || m.link != nil }

// has reports whether count hosts from first on all belong to the subtree, at or behind its head.
func (m *subtree) has(first, count int) bool {
	return first >= m.head && first < m.hi && count > 0 && count <= m.hi-first
}

// fromChild handles a message from a child.
func (n *Node) fromChild(m *subtree, l *link, msg proto.Message) {
	if m.link != l || l.done() {
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

// fromProcs handles a message from the own process manager. For an invalid message it sends a Log,
// as far as the budget allows.
func (n *Node) fromProcs(m *subtree, msg proto.Message) {
	if err := n.fromBelow(m, msg); err != nil && m.budget > 0 {
		m.budget--
		n.up(proto.Log{Index: n.l.Index, Line: n.named(n.l.Index, err)})
	}
}

// linkEnded handles the end of a child's link.
func (n *Node) linkEnded(m *subtree, l *link, err error) {
	n.links--
	if m.link != l {
		return
	}
	m.link = nil
	switch {
	case n.closing:
	case n.world.stage == stageLaunch:
		n.headFailed(m, err)
	default:
		n.subtreeLost(m, err)
	}
}

// shutDown drops all output and sends Bye to all subtrees. After byeLimit it ends the links that
// have not ended.
func (n *Node) shutDown() {
	if n.closing {
		return
	}
	n.closing, n.waiting = true, nil
	n.dropOutput()
	n.cancel()
	for _, m := range n.subtrees {
		if m.live() {
			m.send(proto.Bye{})
		}
	}
	n.after(byeLimit, func() {
		for _, m := range n.subtrees {
			if m.link != nil {
				m.link.fail(errNoBye)
			}
		}
	})
}

// parentLost ends all ranks here and below after the loss of the parent.
func (n *Node) parentLost(cause error) {
	if n.closing || n.noParent {
		return
	}
	n.noParent = true
	n.dropOutput()
	n.end(cause, 0)
}

// end ends all ranks here and below, because this agent must end or its parent is lost, and then
// shuts the node down. grace is the time between SIGTERM and SIGKILL. In this time the node still
// passes on the output of the ranks, unless the parent is lost.
func (n *Node) end(cause error, grace time.Duration) {
	if n.closing {
		return
	}
	if !n.ending {
		n.ending, n.cause, n.waiting = true, cause, nil
		n.cancel()
	}
	n.sendAll(proto.End{Grace: grace, Except: -1})
	if n.allEnded() {
		n.shutDown()
		return
	}
	n.after(grace+endLimit, n.shutDown)
}

// send sends a message to a live subtree.
func (m *subtree) send(msg proto.Message) {
	if m.procs != nil {
		m.procs.Do(msg)
		return
	}
	m.link.send(msg)
}
