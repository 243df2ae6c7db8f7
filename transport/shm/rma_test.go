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

// side is a rank without weft's engine, for tests of RMA: the test itself calls its domain, queue
// and endpoint.
type side struct {
	*domain
	q        transport.CompletionQueue
	e        *endpoint
	comp     []transport.Completion
	ends     []transport.Completion // the PeerDown and PeerLeft completions so far
	received []uint64               // received messages as 64-bit words, without those that hear has returned
}

// copying returns parameters with transport.shm.single_copy set to how: "auto" or "off".
func copying(how string) *params.Set {
	set := &params.Set{}
	if err := set.Set("transport.shm.single_copy", how, params.FromFlag); err != nil {
		panic(err)
	}
	return set
}

// openSide opens rank self of n ranks that share a memory file. how is as for copying.
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

// sides opens the n ranks of a job in this process. how is as for copying.
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

// outcome is an operation and its result.
type outcome struct {
	transport.Op
	done bool  // the completion has come
	err  error // Err of the completion
}

// poll reads the queue once and records the completions in s and in their outcomes.
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

// post posts o as a Write or a Read. The caller has set the peer, the key, the address and Data.
// While the endpoint returns ErrAgain, post polls and tries again.
func (s *side) post(o *outcome, write bool) error {
	o.done, o.err, o.User = false, nil, o
	for {
		var err error
		if write {
			err = s.e.Write(&o.Op)
		} else {
			err = s.e.Read(&o.Op)
		}
		if err != transport.ErrAgain { //nolint:errorlint // the endpoint does not wrap it
			return err
		}
		if err := s.poll(); err != nil {
			return err
		}
	}
}

// pollUntilDone polls the ranks in all, one after the other, until o has ended.
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

// noise returns n random bytes, which depend only on seed and n.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	_, _ = rand.NewChaCha8(key).Read(b) // Read never fails
	return b
}

// fenced returns n bytes in the middle of a larger block, and a function that reports whether the
// 4096 bytes before them and the 4096 bytes after them are unchanged.
func fenced(n int) (b []byte, intact func() bool) {
	const fence = 4096
	all := bytes.Repeat([]byte{0xC5}, n+2*fence)
	want := bytes.Repeat([]byte{0xC5}, fence)
	return all[fence : fence+n : fence+n], func() bool {
		return bytes.Equal(all[:fence], want) && bytes.Equal(all[fence+n:], want)
	}
}

// tuned is a provider that opens its domains with the given parameters.
type tuned struct {
	transport.Provider
	params *params.Set
}

func (p tuned) Open(cfg transport.Config) (transport.Domain, error) {
	cfg.Params = p.params
	return p.Provider.Open(cfg)
}

// TestConformanceUncopied runs the conformance tests without copies by the kernel.
func TestConformanceUncopied(t *testing.T) {
	transporttest.Run(t, transporttest.OpenWith(func(testing.TB) (transport.Provider, func(int)) {
		return tuned{New(), copying("off")}, nil
	}))
}

// TestTransferSizes transfers blocks of the sizes at which the method changes.
func TestTransferSizes(t *testing.T) {
	all := sides(t, 2, "auto")
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
		require.True(t, bytes.Equal(mem, dst) && dstIntact(), "read of %d bytes", n)

		src := noise(uint64(i)+100, n)
		o.Data = src
		require.NoError(t, a.post(o, true))
		pollUntilDone(t, o, b, a)
		require.NoError(t, o.err)
		require.True(t, bytes.Equal(mem, src) && intact(), "write of %d bytes", n)
		require.NoError(t, mr.Close())
	}
}

// TestLateRefusal simulates that the kernel refuses a copy in the middle of a transfer. The
// transfer fails, and both ranks report each other as down.
func TestLateRefusal(t *testing.T) {
	for _, write := range []bool{false, true} {
		all := sides(t, 2, "auto")
		a, b := all[0], all[1]
		mr, err := b.RegisterMemory(make([]byte, 1<<20), transport.RemoteRead|transport.RemoteWrite)
		require.NoError(t, err)
		var ops [2]outcome
		for i := range ops {
			ops[i].Op = transport.Op{Peer: 1, RemoteKey: mr.Key(), Data: make([]byte, 1<<20)}
			require.NoError(t, a.post(&ops[i], write))
		}
		require.NoError(t, b.poll()) // b helps
		require.NotNil(t, a.transfers.first)
		a.drain(a.transfers.first, syscall.EPERM) // as if copyPiece had returned it
		for i := range ops {
			pollUntilDone(t, &ops[i], a, b)
			require.ErrorIs(t, ops[i].err, transport.ErrPeerDown)
		}
		for _, s := range all {
			for end := time.Now().Add(deadline); len(s.ends) == 0 && time.Now().Before(end); {
				require.NoError(t, s.poll())
			}
			require.Len(t, s.ends, 1)
			require.Equal(t, transport.PeerDown, s.ends[0].Kind)
		}
		require.ErrorIs(t, a.post(&ops[0], write), transport.ErrPeerDown)
	}
}

// TestReach opens three ranks. Rank 1 must not copy, by its parameter, so it neither reaches
// private memory of the others, nor do they reach its own.
func TestReach(t *testing.T) {
	memory, err := newMemory()
	require.NoError(t, err)
	defer memory.Close()
	var all [3]*side
	for i := range all {
		how := "auto"
		if i == 1 {
			how = "off"
		}
		all[i], err = openSide(i, 3, memory, how)
		require.NoError(t, err)
		defer all[i].Close()
	}
	for owner, o := range all {
		private, err := o.RegisterMemory(make([]byte, 8), transport.RemoteRead|transport.RemoteWrite)
		require.NoError(t, err)
		_, heap, err := o.Alloc(8)
		require.NoError(t, err)
		for self, s := range all {
			reaches := owner == self || owner != 1 && self != 1
			require.Equal(t, reaches, s.e.ReachesRegion(transport.Addr(owner), private.Key()), "%d to %d", self, owner)
			require.True(t, s.e.ReachesRegion(transport.Addr(owner), heap.Key()))
			for _, key := range []uint64{private.Key(), heap.Key()} {
				x := &outcome{Op: transport.Op{Peer: transport.Addr(owner), RemoteKey: key, Data: make([]byte, 8)}}
				if err := s.post(x, true); key == private.Key() && !reaches {
					require.ErrorIs(t, err, transport.ErrNotSupported)
					continue
				}
				require.NoError(t, err)
				pollUntilDone(t, x, s)
				require.NoError(t, x.err)
			}
		}
	}
	require.False(t, all[0].e.ReachesRegion(3, keyValid))
	require.NoError(t, all[0].Close())
	require.False(t, all[0].e.ReachesRegion(2, keyValid))
}

// TestTransferAllocations checks that transfers do not allocate.
func TestTransferAllocations(t *testing.T) {
	all := sides(t, 2, "auto")
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
			require.Zero(t, testing.AllocsPerRun(50, once), "%d bytes, write %v", n, write)
		}
	}
}

// TestCloseWithTransfers closes one of two ranks in the middle of a transfer that rank 0 has begun.
// If rank 1 is closed, the operation ends with ErrPeerDown. After Close, the closed rank's memory
// must not change.
func TestCloseWithTransfers(t *testing.T) {
	for _, write := range []bool{false, true} {
		for _, closed := range []int{0, 1} {
			all := sides(t, 2, "auto")
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
