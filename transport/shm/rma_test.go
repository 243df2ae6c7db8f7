//go:build linux && !portable

package shm

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/transporttest"
)

// side is a rank that a test of transfers drives.
type side struct {
	*domain
	q        transport.CompletionQueue
	e        *endpoint
	comp     []transport.Completion
	ends     []transport.Completion // PeerDown, PeerLeft
	received []uint64               // words of messages that hear has not returned
}

// copying returns parameters with transport.shm.single_copy set to how.
func copying(how string) *params.Set {
	set := &params.Set{}
	if err := set.Set("transport.shm.single_copy", how, params.FromFlag); err != nil {
		panic(err)
	}
	return set
}

// openSide opens one of n ranks that share a memory file.
func openSide(self, n int, memory *os.File, how string) (*side, error) {
	cfg := transport.Config{
		Self: transport.Addr(self), Size: n, JobID: "transfers", Secret: [32]byte{7}, OneHost: true,
		Params: copying(how), Memory: memory,
	}
	for i := range n {
		cfg.Locals = append(cfg.Locals, transport.Addr(i))
	}
	dom, err := New().Open(cfg)
	if err != nil {
		return nil, err
	}
	s := &side{domain: dom.(*domain), comp: make([]transport.Completion, 16)}
	av, err := s.OpenAV()
	if err != nil {
		return nil, err
	}
	if s.q, err = s.OpenCQ(); err != nil {
		return nil, err
	}
	ep, err := s.OpenEndpoint(av, s.q)
	if err != nil {
		return nil, err
	}
	s.e = ep.(*endpoint)
	return s, nil
}

// sides opens n ranks in this process.
func sides(t testing.TB, n int, how string) []*side {
	t.Helper()
	memory, err := newMemory()
	require.NoError(t, err)
	defer memory.Close()
	all := make([]*side, n)
	for i := range all {
		all[i], err = openSide(i, n, memory, how)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, all[i].Close()) })
	}
	return all
}

// outcome is how an operation ended.
type outcome struct {
	transport.Op
	done bool
	err  error
}

// poll reads the queue once.
func (s *side) poll() error {
	n, err := s.q.Read(s.comp)
	if err != nil {
		return err
	}
	for i := range n {
		switch c := &s.comp[i]; c.Kind {
		case transport.OpDone:
			o := c.Op.User.(*outcome)
			o.done, o.err = true, c.Err
		case transport.PeerDown, transport.PeerLeft:
			s.ends = append(s.ends, *c)
		case transport.RecvDone:
			for m := c.Msg; len(m) >= 8; m = m[8:] {
				s.received = append(s.received, binary.NativeEndian.Uint64(m))
			}
		case transport.PeerNotice:
		}
	}
	return nil
}

// post begins a Read or a Write of o. The caller has set the peer, the key, the address and Data.
func (s *side) post(o *outcome, write bool) error {
	o.done, o.err, o.User = false, nil, o
	for {
		var err error
		if write {
			err = s.e.Write(&o.Op)
		} else {
			err = s.e.Read(&o.Op)
		}
		if err != transport.ErrAgain { //nolint:errorlint // the very value
			return err
		}
		if err := s.poll(); err != nil {
			return err
		}
	}
}

// pollUntilDone polls the sides in turn until o has ended.
func pollUntilDone(t testing.TB, o *outcome, all ...*side) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !o.done; {
		for _, s := range all {
			if err := s.poll(); err != nil {
				require.NoError(t, err)
			}
		}
		if time.Now().After(end) {
			require.Fail(t, "an operation does not end")
		}
	}
}

// noise returns n random bytes.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	_, _ = rand.NewChaCha8(key).Read(b) // it never fails
	return b
}

// fenced returns n bytes, and a function that reports whether the bytes around them are
// unchanged.
func fenced(n int) (b []byte, intact func() bool) {
	const fence = 4096
	all := bytes.Repeat([]byte{0xC5}, n+2*fence)
	want := bytes.Repeat([]byte{0xC5}, fence)
	return all[fence : fence+n : fence+n], func() bool {
		return bytes.Equal(all[:fence], want) && bytes.Equal(all[fence+n:], want)
	}
}

// tuned is a provider that opens domains with parameters.
type tuned struct {
	transport.Provider
	params *params.Set
}

func (p tuned) Open(cfg transport.Config) (transport.Domain, error) {
	cfg.Params = p.params
	return p.Provider.Open(cfg)
}

// TestConformanceByMessages runs the conformance tests without copies by the kernel.
func TestConformanceByMessages(t *testing.T) {
	transporttest.Run(t, transporttest.OpenWith(func(testing.TB) (transport.Provider, func(int)) {
		return tuned{New(), copying("off")}, nil
	}))
}

// bothWays are the values of transport.shm.single_copy.
var bothWays = []string{"auto", "off"}

// TestTransferSizes transfers blocks of the sizes at which the method changes.
func TestTransferSizes(t *testing.T) {
	for _, how := range bothWays {
		all := sides(t, 2, how)
		a, b := all[0], all[1]
		const most = 3<<20 + 5
		for i, n := range []int{0, 1, 4095, 16 << 10, splitMin - 1, splitMin, splitMin + 1, pieceMax, pieceMax + 1, 200_001, 1 << 20, most} {
			mem, intact := fenced(n)
			copy(mem, noise(uint64(i), n))
			mr, err := b.RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite)
			require.NoError(t, err)
			dst, dstIntact := fenced(n)
			o := &outcome{Op: transport.Op{Peer: 1, RemoteKey: mr.Key(), Data: dst}}
			require.NoError(t, a.post(o, false))
			pollUntilDone(t, o, b, a)
			require.NoError(t, o.err)
			require.True(t, bytes.Equal(mem, dst) && dstIntact(), "read of %d bytes, %s", n, how)

			src := noise(uint64(i)+100, n)
			o.Data = src
			require.NoError(t, a.post(o, true))
			pollUntilDone(t, o, b, a)
			require.NoError(t, o.err)
			require.True(t, bytes.Equal(mem, src) && intact(), "write of %d bytes, %s", n, how)
			require.NoError(t, mr.Close())
		}
	}
}

// TestRefusalIsNoEnd: the kernel refuses copies in the middle of a transfer. The transfer must
// continue by messages.
func TestRefusalIsNoEnd(t *testing.T) {
	for _, write := range []bool{false, true} {
		all := sides(t, 2, "auto")
		a, b := all[0], all[1]
		mem, mine := noise(1, 1<<20), noise(2, 1<<20)
		want := mem
		if write {
			want = mine
		}
		want = bytes.Clone(want)
		mr, err := b.RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite)
		require.NoError(t, err)
		o := &outcome{Op: transport.Op{Peer: 1, RemoteKey: mr.Key(), Data: mine}}
		require.NoError(t, a.post(o, write))
		require.NoError(t, b.poll()) // b helps
		require.NotNil(t, a.transfers.first)
		a.drain(a.transfers.first, syscall.EPERM) // as if copyPiece had returned it
		pollUntilDone(t, o, a, b)
		require.NoError(t, o.err)
		require.True(t, bytes.Equal(want, mem) && bytes.Equal(want, mine))
		require.False(t, a.direct(a.local(1)), "copies by the kernel must not be tried again")
		require.NotNil(t, a.local(1).stream)
	}
}

// TestTransferAllocations checks that transfers do not allocate.
func TestTransferAllocations(t *testing.T) {
	for _, how := range bothWays {
		all := sides(t, 2, how)
		a, b := all[0], all[1]
		mem := make([]byte, 1<<20)
		o := &outcome{}
		for _, n := range []int{8, 4096, 64 << 10, 1 << 20} {
			for _, write := range []bool{false, true} {
				once := func() {
					mr, err := b.RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite)
					if err != nil {
						require.NoError(t, err)
					}
					o.Op = transport.Op{Peer: 1, RemoteKey: mr.Key(), Data: mem[:n]}
					if err := a.post(o, write); err != nil {
						require.NoError(t, err)
					}
					pollUntilDone(t, o, b, a)
					if o.err != nil {
						require.NoError(t, o.err)
					}
					if err := mr.Close(); err != nil {
						require.NoError(t, err)
					}
				}
				for range 20 {
					once()
				}
				require.Zero(t, testing.AllocsPerRun(50, once), "%d bytes, write %v, %s", n, write, how)
			}
		}
	}
}

// TestCloseWithTransfers closes one of two ranks in the middle of a transfer. The other rank gets
// an error, and no rank may touch the closed rank's memory.
func TestCloseWithTransfers(t *testing.T) {
	for _, how := range bothWays {
		for _, write := range []bool{false, true} {
			for _, closed := range []int{0, 1} {
				all := sides(t, 2, how)
				a, b := all[0], all[1]
				mem, mine := make([]byte, 4<<20), make([]byte, 4<<20)
				mr, err := b.RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite)
				require.NoError(t, err)
				o := &outcome{Op: transport.Op{Peer: 1, RemoteKey: mr.Key(), Data: mine}}
				require.NoError(t, a.post(o, write))
				for range 5 {
					require.NoError(t, b.poll())
					require.NoError(t, a.poll())
				}
				require.False(t, o.done)
				require.NoError(t, all[closed].Close())
				left := mine
				if closed == 1 {
					left = mem
				}
				for i := range left {
					left[i] = 0xEE
				}
				if closed == 1 {
					pollUntilDone(t, o, a)
					require.ErrorIs(t, o.err, transport.ErrPeerDown)
				} else {
					for range 1000 {
						require.NoError(t, b.poll())
					}
				}
				for i := range left {
					if left[i] != 0xEE {
						require.Fail(t, "touched after Close")
					}
				}
			}
		}
	}
}
