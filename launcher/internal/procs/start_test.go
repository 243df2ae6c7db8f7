//go:build linux && !portable

package procs

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/launcher/internal/place"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// TestForkUnwatched checks that a process whose pipes or pidfd cannot be added to a poller is killed
// at once and does not count as started.
func TestForkUnwatched(t *testing.T) {
	for name, spoil := range map[string]func(*Manager, *sys.Poller){
		"output": func(c *Manager, bad *sys.Poller) { c.output.poller = bad },
		"end":    func(c *Manager, bad *sys.Poller) { c.poller = bad },
	} {
		t.Run(name, func(t *testing.T) {
			null, err := os.Open(os.DevNull)
			require.NoError(t, err)
			defer func() { _ = null.Close() }()
			var emitted []proto.Message
			c := &Manager{
				cfg: Config{Emit: func(m proto.Message) { emitted = append(emitted, m) }},
				job: proto.Prepare{Apps: []proto.App{{Argv: []string{"sleep", "1000"}, Wdir: "/"}}},
				// two ranks, and rank 0 is on another host
				plan: proto.Plan{Ranks: []proto.Rank{{Rank: 1}, {Rank: 2}}}, apps: []app{{path: "/bin/sleep", keep: true}},
				ranks: []rank{{ctl: -1, notify: -1, pidfd: -1, answers: answers{fd: -1}}, {ctl: -1, notify: -1, pidfd: -1, answers: answers{fd: -1}}}, ports: &layout{}, card: null,
			}
			c.poller, err = sys.NewPoller()
			require.NoError(t, err)
			defer func(p *sys.Poller) { p.Close() }(c.poller)
			c.output, err = newOutput(c)
			require.NoError(t, err)
			good, goodOutput := c.poller, c.output.poller
			c.in, err = newInput(stdinNone, nil, 2)
			require.NoError(t, err)
			defer c.in.close()
			own, end, err := socketpair()
			require.NoError(t, err)
			defer func() { _ = unix.Close(own) }()
			before := children()
			spoil(c, &sys.Poller{}) // its descriptor is 0, which is not an epoll
			require.ErrorContains(t, c.fork(0, childEnds{control: []int{end, -1}, inspect: []int{-1, -1}}), "epoll_ctl: ")
			require.Empty(t, c.pids())
			require.Equal(t, before, children())
			c.emitEnded()
			require.Equal(t, []proto.Message{proto.Ended{Exits: []proto.Exit{}}}, emitted)
			c.poller, c.output.poller = good, goodOutput
			c.output.finish()
			c.output.loop()
		})
	}
}

// TestBindingIsNotKnown checks that a rank without binding does not start on the cpus of the rank
// before it if gorun cannot find out where it may run.
func TestBindingIsNotKnown(t *testing.T) {
	c, emitted := testManager(t, 3, "exit 0", func(_ *Config, m *proto.Prepare) {
		m.Plans[0].Ranks[1].CPUs = place.Allowed()[:1]
	})
	c.allowed = func(int) []int { return nil }
	c.Do(proto.Start{})
	require.Equal(t, &proto.StartFailure{Rank: 2, Code: proto.ExitFailed,
		Reason: "rank 2: cannot be started without binding after a rank that is bound: sched_getaffinity does not say where gorun may run",
	}, await[proto.Started](t, emitted).Failed)
}

// TestBinding checks that a rank that is not bound runs wherever gorun may run, also if it starts
// after a bound rank.
func TestBinding(t *testing.T) {
	all := place.Allowed()
	if len(all) < 2 {
		t.Skip("this host has one core")
	}
	first, last := all[:1], all[len(all)-1:]
	var out bytes.Buffer
	c, emitted := testManager(t, 5, "grep ^Cpus_allowed_list: /proc/self/status", func(cfg *Config, m *proto.Prepare) {
		for i, cpus := range [][]int{nil, first, nil, last, {}} {
			m.Plans[0].Ranks[i].CPUs = cpus
		}
		m.Tag = true
		cfg.Output = func(o proto.Output) error {
			_, err := out.Write(o.Data)
			return err
		}
	})
	c.Do(proto.Start{})
	await[proto.Ended](t, emitted)
	got := make(map[string][]int)
	for line := range strings.Lines(out.String()) {
		words := strings.Fields(line) // [RANK] Cpus_allowed_list: LIST
		require.Len(t, words, 3)
		got[words[0]] = place.ParseCPUs(words[2])
	}
	require.Equal(t, map[string][]int{"[0]": all, "[1]": first, "[2]": all, "[3]": last, "[4]": all}, got)
	require.Equal(t, all, place.Allowed())
}
