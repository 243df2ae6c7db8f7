package crew

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/launcher/proto"
)

// TestForkUnwatched: a process that the crew cannot watch is ended at once, and is no
// rank that was started.
func TestForkUnwatched(t *testing.T) {
	for name, spoil := range map[string]func(*Crew, int){
		"output": func(c *Crew, bad int) { c.output.ep = bad },
		"end":    func(c *Crew, bad int) { c.ep = bad },
	} {
		t.Run(name, func(t *testing.T) {
			null, err := os.Open(os.DevNull)
			require.NoError(t, err)
			defer func() { _ = null.Close() }()
			var said []proto.Message
			c := &Crew{
				cfg: Config{Emit: func(m proto.Message) { said = append(said, m) }},
				job: proto.Prepare{Apps: []proto.App{{Argv: []string{"sleep", "1000"}, Wdir: "/"}}},
				// of two ranks, neither of which is rank 0
				plan: proto.Plan{Ranks: []proto.Rank{{Rank: 1}, {Rank: 2}}}, apps: []app{{path: "/bin/sleep", keep: true}},
				ranks: []rank{{ctl: -1, news: -1, pidfd: -1}, {ctl: -1, news: -1, pidfd: -1}}, ports: &layout{}, card: null,
			}
			c.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC)
			require.NoError(t, err)
			defer func(ep int) { _ = unix.Close(ep) }(c.ep)
			c.output, err = newOutput(c)
			require.NoError(t, err)
			ep := c.output.ep
			c.in, err = newInput(stdinNone, nil, 2)
			require.NoError(t, err)
			defer c.in.close()
			own, end, err := socketpair()
			require.NoError(t, err)
			defer func() { _ = unix.Close(own) }()
			before := children()
			spoil(c, int(null.Fd()))
			require.ErrorContains(t, c.fork(0, []int{end, -1}, nil), "epoll: ")
			require.Empty(t, c.pids())
			require.Equal(t, before, children())
			c.emitEnded()
			require.Equal(t, []proto.Message{proto.Ended{Exits: []proto.Exit{}}}, said)
			c.output.ep = ep
			c.output.finish()
			c.output.loop()
		})
	}
}
