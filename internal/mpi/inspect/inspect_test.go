package inspect

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/wire"
)

// TestSeveralRequests: if several requests have arrived, the inspector answers only the last one,
// and also sends the stacks that an earlier request asked for.
func TestSeveralRequests(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	require.NoError(t, unix.SetNonblock(fds[0], true)) // so that Close ends a Read
	require.NoError(t, unix.SetNonblock(fds[1], true))
	ours, theirs := os.NewFile(uintptr(fds[0]), "gorun"), os.NewFile(uintptr(fds[1]), "rank")
	var questions []byte
	for n, kind := range []byte{wire.InspectStacks, wire.InspectState, wire.InspectState} {
		questions = wire.AppendInspect(questions, uint32(n+1), kind, nil)
	}
	_, err = ours.Write(questions)
	require.NoError(t, err)
	in := Start(theirs)
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
