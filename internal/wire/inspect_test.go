package wire

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestInspect(t *testing.T) {
	stream := AppendInspect(nil, 0, InspectReady, nil)
	stream = AppendInspect(stream, 7, InspectStacks, []byte("goroutine 1"))
	stream = AppendInspect(stream, 7, InspectState, []byte("{}"))
	for _, want := range []struct {
		number uint32
		kind   byte
		body   string
	}{{0, InspectReady, ""}, {7, InspectStacks, "goroutine 1"}, {7, InspectState, "{}"}} {
		for n := range InspectHead + len(want.body) {
			_, _, _, _, ok, err := ParseInspect(stream[:n])
			require.NoError(t, err)
			require.False(t, ok, "%d bytes", n)
		}
		number, kind, body, rest, ok, err := ParseInspect(stream)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, want.number, number)
		require.Equal(t, want.kind, kind)
		require.Equal(t, want.body, string(body))
		stream = rest
	}
	require.Empty(t, stream)
}

func TestInspectRefuses(t *testing.T) {
	for kind, limit := range map[byte]int{0: 0, InspectReady: 0, InspectState: InspectMaxState, InspectStacks: InspectMaxStacks, InspectProfile: InspectMaxPiece, 5: 0} {
		frame := AppendInspect(nil, 1, kind, nil)
		binary.LittleEndian.PutUint32(frame[4:], uint32(limit+1))
		_, _, _, _, _, err := ParseInspect(frame)
		require.ErrorIs(t, err, ErrInspect, "kind %d", kind)
	}
}

func TestProfileRequest(t *testing.T) {
	for _, kind := range ProfileKinds {
		got, d, err := ParseProfileRequest(AppendProfileRequest(nil, kind, time.Minute))
		require.NoError(t, err)
		require.Equal(t, kind, got)
		require.Equal(t, time.Minute, d)
	}
	for _, bad := range [][]byte{nil, make([]byte, 7), make([]byte, 8), AppendProfileRequest(nil, "heap", -1), AppendProfileRequest(nil, "heaps", 1)} {
		_, _, err := ParseProfileRequest(bad)
		require.ErrorIs(t, err, ErrInspect)
	}
}

func FuzzInspect(f *testing.F) {
	f.Add(AppendInspect(nil, 1, InspectState, []byte("{}")))
	f.Add(AppendInspect(AppendInspect(nil, 0, InspectReady, nil), 1<<31, InspectStacks, make([]byte, 100)))
	f.Fuzz(func(t *testing.T, b []byte) {
		number, kind, body, rest, ok, err := ParseInspect(b)
		if err != nil || !ok {
			return
		}
		again := append(AppendInspect(nil, number, kind, body), rest...)
		if !bytes.Equal(again, b) {
			t.Fatalf("%x became %x", b, again)
		}
	})
}
