package crew

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/launcher/proto"
)

// testCrew is a crew of np ranks that run a shell's script. What it says comes out of
// the channel, and what the ranks write goes nowhere.
func testCrew(t *testing.T, np int, script string) (*Crew, <-chan proto.Message) {
	t.Helper()
	said := make(chan proto.Message, 100)
	c, err := New(Config{
		Host: "node1", Own: true, Watchdog: &Watchdog{},
		Emit:   func(m proto.Message) { said <- m },
		Output: func(proto.Output) error { return nil },
	})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	m := proto.Prepare{
		Card: bootstrap.Card{JobID: "crew-" + strings.ReplaceAll(t.Name(), "/", "-"), Secret: make([]byte, 32), Size: np,
			Nodes: []bootstrap.Run{{Count: np}}, AppNums: []bootstrap.Run{{Count: np}}},
		Apps:  []proto.App{{Name: "sh", Path: "/bin/sh", Argv: []string{"sh", "-c", script}, Wdir: "/"}},
		Plans: []proto.Plan{{}}, Stdin: stdinNone,
	}
	for r := range np {
		m.Plans[0].Ranks = append(m.Plans[0].Ranks, proto.Rank{Rank: r})
	}
	c.Do(m)
	require.Equal(t, proto.Prepared{}, await[proto.Prepared](t, said))
	return c, said
}

// await is the next of a kind that a crew says.
func await[M proto.Message](t *testing.T, said <-chan proto.Message) M {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		select {
		case m := <-said:
			if m, ok := m.(M); ok {
				return m
			}
		case <-limit:
			require.FailNow(t, "nothing is said")
		}
	}
}

// TestStuck: a rank that does not end by SIGKILL is told of, and holds up neither the
// others nor the end.
func TestStuck(t *testing.T) {
	c, said := testCrew(t, 2, "test $PMI_RANK = 1 || exit 3; exec sleep 1000")
	c.patience = 20 * time.Millisecond
	c.exitOf = func(pid int) (status, bool) {
		if pid == c.ranks[1].pid {
			return status{}, false // as in uninterruptible sleep
		}
		return exitStatus(pid)
	}
	c.Do(proto.Start{})
	var first proto.Exit
	for up := false; !up || first.Code == 0; { // in either order
		switch m := await[proto.Message](t, said).(type) {
		case proto.Started:
			up = true
			require.Len(t, m.Ranks, 2)
		case proto.Exited:
			first = m.Exit
		}
	}
	require.Equal(t, 3, first.Code)
	c.Do(proto.End{Except: -1})
	second := await[proto.Exited](t, said).Exit
	require.True(t, second.Stuck)
	require.True(t, second.Final)
	require.Equal(t, int(syscall.SIGKILL), second.Signal)
	require.Equal(t, 1, second.Rank)
	require.Equal(t, []proto.Exit{first, second}, await[proto.Ended](t, said).Exits)
}
