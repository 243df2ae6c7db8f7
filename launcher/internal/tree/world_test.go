package tree

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/tree/treetest"
)

const (
	testLatency   = 200 * time.Microsecond
	testConnect   = 20 * time.Millisecond
	testHeartbeat = 5 * time.Second
)

// world is a tree in a bubble of testing/synctest: gorun's root, and agents in goroutines.
type world struct {
	t     *testing.T
	hosts int
	ranks int           // number of ranks on each host
	stdin string        // Prepare.Stdin
	each  bool          // Prepare.PerRank
	grace time.Duration // Prepare.Grace
	l     proto.Launch
	root  *Node

	// Behaviour of the hosts; set before start.
	procs  func(c *treetest.Procs)                  // changes a host's process manager before its first use
	open   func(index int) error                    // returns the error of the connection to a host
	agent  func(index int, s *treetest.Stream) bool // acts as the agent of a host; false: Serve runs instead
	mkErr  func(index int) error                    // returns the error of Serve's function mk
	see    func(w *world, m proto.Message)          // gets each message that the root passes to Up
	keep   bool                                     // the root does not consume Output at once
	pipeOf func(index int) *treetest.Pipe           // makes the pipe to a host; nil: one with testLatency

	auto     bool          // coordinate answers the messages, and closes jobEnded
	jobEnded chan struct{} // closed by coordinate when the job has ended
	event    func()        // called for each message to a process manager or to the root's Up

	mu        sync.Mutex              // guards the following fields
	lost      []bool                  // by host: coordinate has got Lost
	partial   map[int]bool            // by index: hosts that Config.OnPartialUp has got, up or failed
	hostProcs map[int]*treetest.Procs // by host
	nodes     map[int]*Node           // by host
	pipes     map[int]*treetest.Pipe  // by host: the pipe to its parent
	ups       []proto.Message         // all messages that the root has passed to Up
	serves    map[int]error           // by host: what Serve has returned
	under     int                     // number of calls of connect that run
	most      int                     // largest value of under
	wg        sync.WaitGroup
}

func hostName(i int) string { return "host" + strconv.Itoa(i) }

// newWorld returns a world of count agents, and a root without ranks.
func newWorld(t *testing.T, count, radix int) *world {
	w := &world{partial: make(map[int]bool), t: t, hosts: count, ranks: 2, stdin: "none", jobEnded: make(chan struct{}), event: func() {}, lost: make([]bool, count),
		hostProcs: make(map[int]*treetest.Procs), nodes: make(map[int]*Node), pipes: make(map[int]*treetest.Pipe), serves: make(map[int]error)}
	w.l = proto.Launch{JobID: "job", Index: -1, Radix: radix, AtOnce: 8, Timeout: 30 * time.Second, Heartbeat: testHeartbeat,
		Hosts: []hosts.Host{{Name: "gorun"}}}
	for i := range count {
		w.l.Hosts = append(w.l.Hosts, hosts.Host{Name: hostName(i)})
	}
	return w
}

// withRanks makes gorun's own host the first of the hosts, so that it has ranks.
func (w *world) withRanks() *world {
	w.l.Index, w.l.Hosts = 0, w.l.Hosts[1:]
	return w
}

func (w *world) mkProcs(index int) func(n *Node, emit func(proto.Message)) Procs {
	return func(n *Node, emit func(proto.Message)) Procs {
		c := &treetest.Procs{Index: index, Emit: emit, Fences: 2, Stored: n.Stored, See: func(proto.Message) { w.event() }}
		if w.procs != nil {
			w.procs(c)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.hostProcs[index], w.nodes[index] = c, n
		return c
	}
}

func (w *world) start() {
	cfg := Config{Launch: w.l, Open: w.connect, Up: w.up, OnPartialUp: func(some proto.Up) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, a := range some.Agents {
			w.partial[a.Index] = true
		}
		for _, f := range some.Failed {
			w.partial[f.Index] = true
		}
	}}
	if w.l.Index == 0 {
		cfg.Procs = w.mkProcs(0)
		cfg.Self = proto.Agent{Hostname: hostName(0)}
	}
	n, err := New(cfg)
	require.NoError(w.t, err)
	w.mu.Lock()
	w.root = n
	w.mu.Unlock()
}

func (w *world) up(m proto.Message) {
	w.mu.Lock()
	w.ups = append(w.ups, m)
	w.mu.Unlock()
	if o, ok := m.(proto.Output); ok && !w.keep {
		w.getRoot().Consumed(o)
	}
	w.event()
	if w.auto {
		w.coordinate(m)
	}
	if w.see != nil {
		w.see(w, m)
	}
}

func (w *world) getRoot() *Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.root
}

func (w *world) connect(ctx context.Context, h hosts.Host) (Stream, error) {
	w.mu.Lock()
	w.under++
	w.most = max(w.most, w.under)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.under--
		w.mu.Unlock()
	}()
	select {
	case <-time.After(testConnect):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	index, err := strconv.Atoi(strings.TrimPrefix(h.Name, "host"))
	if err != nil {
		return nil, err
	}
	if w.open != nil {
		if err := w.open(index); err != nil {
			return nil, err
		}
	}
	p := treetest.NewPipe(testLatency)
	if w.pipeOf != nil {
		p = w.pipeOf(index)
	}
	w.mu.Lock()
	w.pipes[index] = p
	w.mu.Unlock()
	w.wg.Go(func() {
		if w.agent != nil && w.agent(index, p.Child) {
			return
		}
		err := Serve(context.Background(), p.Child, func(l proto.Launch) (Config, error) {
			if w.mkErr != nil {
				if err := w.mkErr(index); err != nil {
					return Config{}, err
				}
			}
			cfg := Config{Self: proto.Agent{Hostname: h.Name}, Procs: w.mkProcs(index), Open: w.connect}
			return cfg, nil
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		w.serves[index] = err
	})
	return p.Parent, nil
}

// prepare returns a Prepare in which rank r runs on host r mod w.hosts.
func (w *world) prepare() proto.Prepare {
	p := proto.Prepare{Stdin: w.stdin, PerRank: w.each, Grace: w.grace, Card: bootstrap.Card{JobID: "job", Size: w.hosts * w.ranks}}
	for range w.ranks {
		for i := range w.hosts {
			p.Card.HostOf = append(p.Card.HostOf, bootstrap.Run{Value: i, Count: 1})
		}
	}
	for i := range w.hosts {
		plan := proto.Plan{Index: i}
		for r := range w.ranks {
			plan.Ranks = append(plan.Ranks, proto.Rank{Rank: r*w.hosts + i})
		}
		p.Plans = append(p.Plans, plan)
	}
	return p
}

// coordinate answers the messages of the root as gorun would, for a job with two fences in which
// every host needs one file.
func (w *world) coordinate(m proto.Message) {
	root := w.getRoot()
	switch m := m.(type) {
	case proto.Up:
		root.Do(w.prepare())
	case proto.Prepared:
		if len(m.Need) == 0 {
			root.Do(proto.FilePart{Hash: testHash, Last: true}) // all hosts that needed the file are lost
			return
		}
		root.Do(proto.FilePart{Hash: testHash, Data: []byte("a")})
		root.Do(proto.FilePart{Hash: testHash, Data: []byte("b"), Last: true})
	case proto.Staged:
		root.Do(proto.Start{})
	case proto.Fence:
		root.Do(proto.Release(m))
		if m.N == 2 {
			root.Do(proto.Stdin{Data: []byte("input")})
			root.Do(proto.Stdin{})
			root.Do(proto.End{Grace: time.Second})
		}
	case proto.Lost:
		w.mu.Lock()
		defer w.mu.Unlock()
		for i := range m.Count {
			w.lost[m.First+i] = true
		}
	case proto.Ended:
		close(w.jobEnded)
	}
}

const testHash = "0123456789012345678901234567890123456789012345678901234567890123"

// got returns the messages of type M that the root has passed to Up so far.
func got[M proto.Message](w *world) []M {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []M
	for _, m := range w.ups {
		if m, ok := m.(M); ok {
			list = append(list, m)
		}
	}
	return list
}

// one waits for a message of type M from the root, and checks that it is the only one so far.
func one[M proto.Message](w *world) M {
	w.t.Helper()
	for range 1000 {
		synctest.Wait()
		if list := got[M](w); len(list) > 0 {
			require.Len(w.t, list, 1)
			return list[0]
		}
		time.Sleep(time.Second)
	}
	var m M
	require.FailNow(w.t, fmt.Sprintf("no %T came", m))
	return m
}

// launch starts the tree, and then the ranks on all hosts.
func (w *world) launch() {
	w.t.Helper()
	w.start()
	one[proto.Up](w)
	w.root.Do(w.prepare())
	one[proto.Prepared](w)
	w.root.Do(proto.Start{})
	one[proto.Started](w)
}

// close closes the root and waits for the end of all agents.
func (w *world) close() {
	w.t.Helper()
	w.root.Close()
	w.root.Close()
	w.wg.Wait()
}

func bubble(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }
