package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/place"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/tree"
	"github.com/weft-hpc/weft/launcher/internal/tree/treetest"
)

// phaseNames are the names of the columns of result.took.
var phaseNames = []string{"Launch → Up", "Prepare → Prepared", "Start → Started", "fence", "output", "End → Ended", "Bye"}

// result holds the measurements of one job.
type result struct {
	took    []time.Duration // how long each phase of the job took, in the order of phaseNames
	root    tree.Stats
	outputs int64 // number of Outputs that the root got
	busiest int64 // largest number of messages of an agent, to and from its parent and children
}

// job is a simulated job.
type job struct {
	setting
	root *tree.Node
	up   chan proto.Message
	wg   sync.WaitGroup

	mu        sync.Mutex // guards nodes and hostProcs
	nodes     []*tree.Node
	hostProcs map[int]*treetest.Procs
}

func hostName(i int) string { return fmt.Sprintf("node%05d.cluster", i) }

// here is the topology that every agent reports.
var here = sync.OnceValue(place.Here)

// agent returns what the agent of a typical host reports.
func agent(i int) proto.Agent {
	return proto.Agent{
		Index: i, Hostname: hostName(i), PID: 4000 + i, Topology: here(),
		Addrs: []proto.Address{
			{Interface: "eth0", Prefix: fmt.Sprintf("10.1.%d.%d/16", i>>8, i&255)},
			{Interface: "ib0", Prefix: fmt.Sprintf("10.2.%d.%d/16", i>>8, i&255)},
		},
		Reached: fmt.Sprintf("10.1.%d.%d", i>>8, i&255), Parent: "10.1.255.254",
	}
}

func (s setting) launch() proto.Launch {
	l := proto.Launch{JobID: "bench", Index: -1, Radix: s.radix, AtOnce: s.atOnce, Timeout: 30 * time.Second, Heartbeat: 5 * time.Second,
		SSH: []string{"ssh", "-o", "BatchMode=yes"}, Hosts: []hosts.Host{{Name: "login"}}}
	for i := range s.agents {
		l.Hosts = append(l.Hosts, hosts.Host{Name: hostName(i), Slots: s.ranks})
	}
	return l
}

func (s setting) prepare() proto.Prepare {
	size := s.agents * s.ranks
	p := proto.Prepare{Stdin: "none", BasePort: 20000, Grace: time.Second,
		Card: bootstrap.Card{JobID: "bench", Size: size, KVSName: "kvs", AppNums: []bootstrap.Run{{Value: 0, Count: size}}},
		Apps: []proto.App{{Name: "./a", Path: "/home/user/a", Argv: []string{"./a"}, Env: []string{"HOME=/home/user"}, Wdir: "/home/user"}}}
	for i := range s.agents {
		address := fmt.Sprintf("10.2.%d.%d", i>>8, i&255)
		p.Card.HostOf = append(p.Card.HostOf, bootstrap.Run{Value: i, Count: s.ranks})
		p.Card.Hosts = append(p.Card.Hosts, address)
		plan := proto.Plan{Index: i, Address: address}
		for r := range s.ranks {
			plan.Ranks = append(plan.Ranks, proto.Rank{Rank: i*s.ranks + r, CPUs: []int{r}})
		}
		p.Plans = append(p.Plans, plan)
	}
	return p
}

// putsOf returns the keys and values that the ranks of a host put before a fence.
func (s setting) putsOf(index, fence int) map[string]string {
	puts := make(map[string]string)
	for r := range s.ranks {
		if s.puts > 0 {
			puts["f"+strconv.Itoa(fence)+"r"+strconv.Itoa(index*s.ranks+r)] = strings.Repeat("x", s.puts)
		}
	}
	return puts
}

// simulate runs a job in a bubble of testing/synctest.
func simulate(t *testing.T, s setting) (r result) {
	synctest.Test(t, func(t *testing.T) { r = s.run(t) })
	return r
}

func (s setting) run(t *testing.T) (r result) {
	j := &job{setting: s, up: make(chan proto.Message, 16), hostProcs: make(map[int]*treetest.Procs)}
	at := time.Now()
	lap := func() {
		r.took = append(r.took, time.Since(at))
		at = time.Now()
	}
	var err error
	if j.root, err = tree.New(tree.Config{Launch: s.launch(), Open: j.connect, Up: func(m proto.Message) { j.up <- m }}); err != nil {
		t.Fatal(err)
	}
	if m := await[proto.Up](j); len(m.Agents) != s.agents {
		t.Errorf("%d agents are up", len(m.Agents))
	}
	lap()
	j.root.Do(s.prepare())
	await[proto.Prepared](j)
	lap()
	j.root.Do(proto.Start{})
	if m := await[proto.Started](j); len(m.Ranks) != s.agents*s.ranks {
		t.Errorf("%d ranks run", len(m.Ranks))
	}
	lap()
	for n := 1; n <= 2; n++ {
		f := await[proto.Fence](j)
		if n == 2 {
			// Ranks enter the first fence as soon as they run, so this is the time of the second
			// fence alone.
			lap()
		}
		j.root.Do(proto.Release(f))
	}
	for i, c := range j.hostProcs {
		j.wg.Go(func() { // ends when all is written
			for left := s.output; left > 0; left -= min(left, 4096) {
				if err := j.nodes[i].Output(proto.Output{Index: c.Index, Stream: proto.Merged, Data: bytes.Repeat([]byte("x"), min(left, 4096))}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for left := s.output * s.agents; left > 0; {
		o := await[proto.Output](j)
		left -= len(o.Data)
		r.outputs++
		j.root.Consumed(o)
	}
	lap()
	j.root.Do(proto.End{Except: -1})
	if m := await[proto.Ended](j); len(m.Exits) != s.agents*s.ranks {
		t.Errorf("%d ranks have ended", len(m.Exits))
	}
	lap()
	j.root.Close()
	lap()
	j.wg.Wait()
	r.root = j.root.Stats()
	for _, n := range j.nodes {
		st := n.Stats()
		r.busiest = max(r.busiest, st.MessagesIn+st.MessagesOut)
	}
	return r
}

// await waits for a message of type M from the root, and drops those before it.
func await[M proto.Message](j *job) M {
	for m := range j.up {
		if m, ok := m.(M); ok {
			return m
		}
	}
	panic("not reached: up is never closed")
}

// connect starts an agent in a goroutine, and returns the stream to it.
func (j *job) connect(_ context.Context, h hosts.Host) (tree.Stream, error) {
	time.Sleep(j.setting.connect)
	p := treetest.NewPipe(j.latency)
	j.wg.Go(func() { // ends when the root has closed the tree
		// An error need not be handled here: run notices missing agents.
		_ = tree.Serve(context.Background(), p.Child, func(l proto.Launch) (tree.Config, error) {
			return tree.Config{Self: agent(l.Index), Open: j.connect, Procs: func(n *tree.Node, emit func(proto.Message)) tree.Procs {
				c := &treetest.Procs{
					Index: l.Index, Emit: emit, Fences: 2, Stored: n.Stored,
					Puts: func(fence int) map[string]string { return j.putsOf(l.Index, fence) },
				}
				j.mu.Lock()
				defer j.mu.Unlock()
				j.hostProcs[len(j.nodes)] = c
				j.nodes = append(j.nodes, n)
				return c
			}}, nil
		})
	})
	return p.Parent, nil
}
