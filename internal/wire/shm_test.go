package wire

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestShmCard(t *testing.T) {
	j := &ShmJob{Secret: [32]byte{1, 2}, JobID: "job"}
	c := ShmCard{Rank: 7, Size: 9, PID: 4711, Nonce: [32]byte{3, 31: 4}}
	b := make([]byte, ShmCardSize)
	c.Put(b, j)
	var got ShmCard
	require.True(t, got.Parse(b, j))
	require.Equal(t, c, got)
	for i := range b {
		for bit := range 8 {
			b[i] ^= 1 << bit
			require.False(t, got.Parse(b, j), "byte %d, bit %d", i, bit)
			b[i] ^= 1 << bit
		}
	}
	require.False(t, got.Parse(b[:ShmCardSize-1], j))
	require.False(t, got.Parse(b, &ShmJob{Secret: j.Secret, JobID: "joc"}))
	require.False(t, got.Parse(b, &ShmJob{Secret: [32]byte{1, 3}, JobID: "job"}))
	require.True(t, got.Parse(b, j))
}

func TestPutShmEnded(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	for _, rank := range []int{2, 0, -1, ShmEndedMax} {
		require.NoError(t, PutShmEnded(f, rank))
	}
	text, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	require.Len(t, text, ShmEndedAt+3*4)
	require.Equal(t, []byte{1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}, text[ShmEndedAt:])
	require.Equal(t, make([]byte, ShmEndedAt), text[:ShmEndedAt])
}

func TestShmLabel(t *testing.T) {
	j := &ShmJob{Secret: [32]byte{1, 2}, JobID: "job"}
	l := j.Label("a", []byte("b"))
	require.Equal(t, l, j.Label("a", []byte("b")))
	require.NotEqual(t, l, j.Label("a", []byte("c")))
	require.NotEqual(t, l, j.Label("b", []byte("b")))
	require.NotEqual(t, l, (&ShmJob{JobID: "job"}).Label("a", []byte("b")))
	require.NotEqual(t, l, (&ShmJob{Secret: j.Secret, JobID: "jo"}).Label("a", []byte("b")))
}

func TestShmWord(t *testing.T) {
	for _, seq := range []uint32{0, 1, 1<<32 - 1} {
		for _, length := range []int{0, 1, 56, ShmMaxLength} {
			for _, kind := range []uint8{1, 255} {
				w := NewShmWord(seq, length, kind)
				require.NotZero(t, w)
				require.Equal(t, seq, w.Seq())
				require.Equal(t, length, w.Length())
				require.Equal(t, kind, w.Kind())
			}
		}
	}
}

// FuzzShmCard: if Parse accepts bytes as a card, Put writes the same bytes for that card.
func FuzzShmCard(f *testing.F) {
	j := &ShmJob{Secret: [32]byte{1}, JobID: "job"}
	b := make([]byte, ShmCardSize)
	(&ShmCard{Rank: 1, Size: 2, PID: 3}).Put(b, j)
	f.Add(b)
	f.Add(b[:40])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var c ShmCard
		if !c.Parse(b, j) {
			require.Zero(t, c)
			return
		}
		again := make([]byte, ShmCardSize)
		c.Put(again, j)
		require.Equal(t, b, again)
	})
}
