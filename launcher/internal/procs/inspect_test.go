package procs

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// FuzzAnswer writes arbitrary bytes to a rank's channel for inspections, cut+1 bytes at a time. It
// checks that the process manager emits Inspected once, with or without the rank's state, that it
// passes on the rank's stacks at most once, and that it keeps at most one frame in memory.
func FuzzAnswer(f *testing.F) {
	const number = 7
	state := wire.AppendInspect(nil, number, wire.InspectState, []byte(`{"calls":[{"name":"Recv","peer":1,"world":1,"tag":3}]}`))
	stacks := wire.AppendInspect(nil, number, wire.InspectStacks, []byte("goroutine 1 [running]:"))
	f.Add(state, uint8(9))
	f.Add(append(wire.AppendInspect(nil, 0, wire.InspectReady, nil), append(stacks, state...)...), uint8(200))
	f.Add(append(wire.AppendInspect(nil, number-1, wire.InspectState, []byte("{}")), state[:20]...), uint8(3))
	f.Add(wire.AppendInspect(nil, number, wire.InspectState, []byte("[")), uint8(3))
	f.Add(append(stacks, stacks...), uint8(255))
	f.Add(append(wire.AppendInspect(nil, proto.FirstCapture, wire.InspectProfile, []byte("piece")), wire.AppendInspect(nil, proto.FirstCapture, wire.InspectProfile, nil)...), uint8(3))
	f.Add([]byte{7, 0, 0, 0, 255, 255, 255, 255, 2}, uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		require.NoError(t, err)
		defer unix.Close(fds[1])
		answered, stacks, kept := 0, 0, 0
		c := &Manager{phase: phaseRunning, plan: proto.Plan{Ranks: []proto.Rank{{Rank: 5}}}, ranks: make([]rank, 1)}
		c.poller, err = sys.NewPoller()
		require.NoError(t, err)
		defer c.poller.Close()
		c.cfg.Emit = func(m proto.Message) {
			switch m := m.(type) {
			case proto.Inspected:
				answered++
				require.Equal(t, []int{5}, m.Groups[0].Ranks)
				require.True(t, (m.Groups[0].State == nil) == (m.Groups[0].Process != ""))
			case proto.Captured:
				kept++
			case proto.Stacks:
				stacks++
				require.Equal(t, number, m.N)
				require.LessOrEqual(t, len(m.Data), wire.InspectMaxStacks)
			}
		}
		c.ranks[0].pid = os.Getpid()
		c.cfg.shared = new(shared)
		defer c.cfg.shared.files.close()
		c.captured = captured{Capture: proto.Capture{File: proto.FirstCapture, Kind: "heap"}, left: 1}
		file, err := c.cfg.shared.files.capture(5, c.captured.Capture)
		require.NoError(t, err)
		const room = 100
		c.ranks[0].answers = answers{fd: fds[0], asked: true, stacks: number, profile: file, room: room}
		c.inspection = inspection{Inspect: proto.Inspect{N: number, Stacks: true}, on: true, until: time.Now().Add(time.Hour), awaits: 1}
		for len(b) > 0 && c.ranks[0].answers.fd >= 0 {
			n := min(len(b), 1+int(cut))
			_, err := unix.Write(fds[1], b[:n])
			require.NoError(t, err)
			b = b[n:]
			c.readAnswer(0)
			require.LessOrEqual(t, len(c.ranks[0].answers.in), wire.InspectHead+wire.InspectMaxStacks)
		}
		c.closeAnswers(0)
		require.Equal(t, 1, answered)
		require.LessOrEqual(t, stacks, 1)
		require.Equal(t, 1, kept)
		require.Nil(t, c.ranks[0].answers.profile)
		st, err := file.Stat()
		require.NoError(t, err)
		require.LessOrEqual(t, st.Size(), int64(room))
	})
}

// TestStacksOfALateRank checks that the process manager passes on stacks even if they come after
// gorun's next Inspect, but only once.
func TestStacksOfALateRank(t *testing.T) {
	var emitted []proto.Message
	c := &Manager{phase: phaseRunning, plan: proto.Plan{Ranks: []proto.Rank{{Rank: 5}}}, ranks: make([]rank, 1)}
	c.cfg.Emit = func(m proto.Message) { emitted = append(emitted, m) }
	c.ranks[0].pid = os.Getpid()
	own, end, err := socketpair()
	require.NoError(t, err)
	defer unix.Close(own)
	defer unix.Close(end)
	c.ranks[0].answers = answers{fd: own, ready: true}
	c.inspect(proto.Inspect{N: 7, Stacks: true})
	c.inspection.until = time.Now()
	c.inspected() // the time is over, and the rank has not answered
	c.inspect(proto.Inspect{N: 8})
	require.Len(t, emitted, 1)
	emitted = nil
	for range 2 {
		c.answered(0, 7, wire.InspectStacks, []byte("goroutine 1"))
	}
	c.answered(0, 7, wire.InspectState, []byte(`{"busy":true}`))
	c.answered(0, 8, wire.InspectState, []byte("{}"))
	require.Equal(t, []proto.Message{
		proto.Stacks{N: 7, Rank: 5, Data: []byte("goroutine 1")},
		proto.Inspected{N: 8, Groups: []proto.Group{{Ranks: []int{5}, State: &wire.RankState{}}}},
	}, emitted)
	c.answered(0, 8, wire.InspectStacks, []byte("goroutine 1"))
	require.Len(t, emitted, 2, "gorun has not asked for these stacks")
}
