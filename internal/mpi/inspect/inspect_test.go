package inspect

import (
	"bytes"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/wire"
)

// TestSeveralRequests: if several requests have arrived, the inspector answers only the last one,
// and also sends the stacks that an earlier request asked for.
func TestSeveralRequests(t *testing.T) {
	ours, theirs := channel(t)
	var questions []byte
	for n, kind := range []byte{wire.InspectStacks, wire.InspectState, wire.InspectState} {
		questions = wire.AppendInspect(questions, uint32(n+1), kind, nil)
	}
	_, err := ours.Write(questions)
	require.NoError(t, err)
	in := Start(theirs, fakeProfile)
	type frame struct {
		number uint32
		kind   byte
	}
	var frames []frame
	var got []byte
	for buf := make([]byte, 64<<10); !slices.Contains(frames, frame{3, wire.InspectState}); {
		n, err := ours.Read(buf)
		require.NoError(t, err)
		got = append(got, buf[:n]...)
		for {
			number, kind, _, rest, ok, err := wire.ParseInspect(got)
			require.NoError(t, err)
			if !ok {
				break
			}
			frames, got = append(frames, frame{number, kind}), rest
		}
	}
	require.Equal(t, []frame{{0, wire.InspectReady}, {1, wire.InspectStacks}, {3, wire.InspectState}}, frames)
	in.Stop()
	require.NoError(t, ours.Close())
}

// channel returns both ends of a channel for inspections.
func channel(t *testing.T) (gorun, rank *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	require.NoError(t, unix.SetNonblock(fds[0], true)) // so that Close ends a Read
	require.NoError(t, unix.SetNonblock(fds[1], true))
	return os.NewFile(uintptr(fds[0]), "gorun"), os.NewFile(uintptr(fds[1]), "rank")
}

// fakeProfile is a Profile that has one byte more than fits into a piece.
func fakeProfile(_ string, d time.Duration, stop <-chan struct{}) []byte {
	select {
	case <-time.After(d):
	case <-stop:
	}
	return wire.AppendProfile(wire.AppendProfile(nil, wire.ProfileBegun, nil), wire.ProfileData, make([]byte, wire.InspectMaxPiece+1-2*wire.ProfileHead))
}

// TestProfile: the inspector answers requests for profiles, and requests for the state meanwhile. A later request ends
// the profile under way, and so does Stop.
func TestProfile(t *testing.T) {
	ours, theirs := channel(t)
	in := Start(theirs, fakeProfile)
	ask := func(number uint32, kind byte, body []byte) {
		_, err := ours.Write(wire.AppendInspect(nil, number, kind, body))
		require.NoError(t, err)
	}
	var got []byte
	next := func() (number uint32, kind byte, body []byte) {
		for buf := make([]byte, 64<<10); ; {
			number, kind, body, rest, ok, err := wire.ParseInspect(got)
			require.NoError(t, err)
			if ok {
				got = rest
				return number, kind, body
			}
			n, err := ours.Read(buf)
			require.NoError(t, err)
			got = append(got, buf[:n]...)
		}
	}
	// frames returns the answer to a request for a profile, and the number of answers for the state before its end.
	frames := func(want uint32) (kinds []byte, bodies []string, states int) {
		var all []byte
		for {
			number, kind, body := next()
			if kind == wire.InspectState {
				states++
				continue
			}
			require.EqualValues(t, wire.InspectProfile, kind)
			require.Equal(t, want, number)
			if len(body) == 0 {
				break
			}
			all = append(all, body...)
		}
		for r := bytes.NewReader(all); ; {
			kind, body, err := wire.ReadProfile(r)
			if err != nil {
				require.Equal(t, io.EOF, err)
				return kinds, bodies, states
			}
			kinds, bodies = append(kinds, kind), append(bodies, string(body))
		}
	}
	_, kind, _ := next()
	require.EqualValues(t, wire.InspectReady, kind)

	ask(1, wire.InspectState, nil)
	ask(7, wire.InspectProfile, wire.AppendProfileRequest(nil, "goroutine", 0))
	kinds, bodies, states := frames(7)
	require.Equal(t, []byte{wire.ProfileBegun, wire.ProfileData}, kinds)
	require.Len(t, bodies[1], wire.InspectMaxPiece+1-2*wire.ProfileHead)
	if states == 0 {
		_, kind, _ = next()
		require.EqualValues(t, wire.InspectState, kind)
	}

	ask(8, wire.InspectProfile, wire.AppendProfileRequest(nil, "cpu", time.Hour))
	ask(9, wire.InspectProfile, wire.AppendProfileRequest(nil, "heap", 0))
	for left := map[uint32]bool{8: true, 9: true}; len(left) > 0; { // the later request ends the earlier one
		number, kind, body := next()
		require.EqualValues(t, wire.InspectProfile, kind)
		require.True(t, left[number])
		if len(body) == 0 {
			delete(left, number)
		}
	}
	ask(10, wire.InspectProfile, wire.AppendProfileRequest(nil, "cpu", time.Hour))
	in.Stop()
	require.NoError(t, ours.Close())

	for _, bad := range [][]byte{nil, wire.AppendProfileRequest(nil, "all", 0), wire.AppendProfileRequest(nil, "heap", -1), make([]byte, 1000)} {
		ours, theirs := channel(t)
		in := Start(theirs, fakeProfile)
		ask := wire.AppendInspect(nil, 1, wire.InspectProfile, bad)
		_, err := ours.Write(ask)
		require.NoError(t, err)
		<-in.done // the channel is of no use any more
		in.Stop()
		require.NoError(t, ours.Close())
	}
}
