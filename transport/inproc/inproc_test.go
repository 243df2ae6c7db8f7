package inproc

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// rank is one rank of a job: its domain and what the test has opened from it.
type rank struct {
	dom transport.Domain
	cq  transport.CompletionQueue
	av  transport.AddressVector
	ep  transport.Endpoint
}

func open(t testing.TB, n int, opts ...Option) (*Fabric, []rank) {
	t.Helper()
	f := NewFabric(opts...)
	ranks := make([]rank, n)
	for i := range ranks {
		r := &ranks[i]
		var err error
		r.dom, err = f.Open(transport.Config{Self: transport.Addr(i), Size: n, JobID: "test"})
		require.NoError(t, err)
		r.cq, err = r.dom.OpenCQ()
		require.NoError(t, err)
		r.av, err = r.dom.OpenAV()
		require.NoError(t, err)
		_, err = r.av.InsertSym("process", 1, "0", n)
		require.NoError(t, err)
		r.ep, err = r.dom.OpenEndpoint(r.av, r.cq)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.dom.Close()) })
	}
	return f, ranks
}

func one(t testing.TB, r rank) transport.Completion {
	t.Helper()
	var c [1]transport.Completion
	n, err := r.cq.Read(c[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	return c[0]
}

func TestOpenChecksTheJob(t *testing.T) {
	f := NewFabric()
	_, err := f.Open(transport.Config{Self: 2, Size: 2})
	require.ErrorIs(t, err, transport.ErrAddress)
	d, err := f.Open(transport.Config{Self: 0, Size: 2, JobID: "a"})
	require.NoError(t, err)
	defer d.Close()
	for _, cfg := range []transport.Config{
		{Self: 1, Size: 3, JobID: "a"},
		{Self: 1, Size: 2, JobID: "b"},
		{Self: 1, Size: 2, JobID: "a", Secret: [32]byte{1}},
		{Self: 0, Size: 2, JobID: "a"},
	} {
		_, err := f.Open(cfg)
		require.Error(t, err, "%+v", cfg)
	}
}

func TestBacklogIsBounded(t *testing.T) {
	_, ranks := open(t, 2, WithBacklog(64<<10))
	op := &transport.Op{Peer: 1, HeaderLen: 8, Data: make([]byte, 1000)}
	sent := 0
	for {
		_, err := ranks[0].ep.Send(op)
		if err != nil {
			require.ErrorIs(t, err, transport.ErrAgain)
			break
		}
		sent++
	}
	require.Equal(t, 64, sent)
	for range sent {
		require.Len(t, one(t, ranks[1]).Msg, 1008)
	}
	_, err := ranks[0].ep.Send(op)
	require.NoError(t, err)
}

func TestMessageBeforeItsReceiver(t *testing.T) {
	f := NewFabric()
	d0, err := f.Open(transport.Config{Self: 0, Size: 2})
	require.NoError(t, err)
	defer d0.Close()
	cq0, _ := d0.OpenCQ()
	av0, _ := d0.OpenAV()
	_, err = av0.Insert([]transport.Address{"0", "1"})
	require.NoError(t, err)
	ep0, err := d0.OpenEndpoint(av0, cq0)
	require.NoError(t, err)
	done, err := ep0.Send(&transport.Op{Peer: 1, Data: []byte("early")})
	require.NoError(t, err)
	require.True(t, done)

	d1, err := f.Open(transport.Config{Self: 1, Size: 2})
	require.NoError(t, err)
	defer d1.Close()
	cq1, err := d1.OpenCQ()
	require.NoError(t, err)
	require.Equal(t, "early", string(one(t, rank{cq: cq1}).Msg))
}

func TestWithoutRMA(t *testing.T) {
	_, ranks := open(t, 2, WithoutRMA())
	require.False(t, ranks[0].dom.Attr().Caps.Has(transport.CapRead))
	_, ok := ranks[0].ep.(transport.RMAEndpoint)
	require.False(t, ok)
}

func TestRMADelay(t *testing.T) {
	_, ranks := open(t, 2, WithRMADelay(3))
	src, dst := []byte("data"), make([]byte, 4)
	mr, err := ranks[1].dom.RegisterMemory(src, transport.RemoteRead)
	require.NoError(t, err)
	op := &transport.Op{Peer: 1, Data: dst, RemoteKey: mr.Key()}
	require.NoError(t, ranks[0].ep.(transport.RMAEndpoint).Read(op))
	for range 2 {
		require.False(t, ranks[0].cq.Arm())
		n, err := ranks[0].cq.Read(make([]transport.Completion, 4))
		require.NoError(t, err)
		require.Zero(t, n)
		require.Equal(t, make([]byte, 4), dst)
	}
	c := one(t, ranks[0])
	require.NoError(t, c.Err)
	require.Same(t, op, c.Op)
	require.Equal(t, "data", string(dst))
}

func TestInjectSize(t *testing.T) {
	_, ranks := open(t, 2, WithInjectSize(16))
	done, err := ranks[0].ep.Send(&transport.Op{Peer: 1, Data: make([]byte, 16)})
	require.NoError(t, err)
	require.True(t, done)
	op := &transport.Op{Peer: 1, Data: make([]byte, 17)}
	done, err = ranks[0].ep.Send(op)
	require.NoError(t, err)
	require.False(t, done)
	require.Same(t, op, one(t, ranks[0]).Op)
}

func TestMRMode(t *testing.T) {
	_, ranks := open(t, 2, WithMRMode(transport.MRVirtAddr|transport.MRLocal))
	src, dst := []byte("0123456789"), make([]byte, 4)
	mr, err := ranks[1].dom.RegisterMemory(src, transport.RemoteRead)
	require.NoError(t, err)
	require.NotZero(t, mr.Base())
	local, err := ranks[0].dom.RegisterMemory(dst, transport.Local)
	require.NoError(t, err)
	ep := ranks[0].ep.(transport.RMAEndpoint)
	try := func(addr uint64, region transport.MemoryRegion) error {
		require.NoError(t, ep.Read(&transport.Op{Peer: 1, Data: dst, RemoteKey: mr.Key(), RemoteAddr: addr, Region: region}))
		return one(t, ranks[0]).Err
	}
	require.ErrorIs(t, try(mr.Base(), nil), transport.ErrAccess)
	require.ErrorIs(t, try(mr.Base()-1, local), transport.ErrBounds)
	require.ErrorIs(t, try(0, local), transport.ErrBounds)
	require.NoError(t, try(mr.Base()+2, local))
	require.Equal(t, "2345", string(dst))
}

func TestKill(t *testing.T) {
	f, ranks := open(t, 3)
	_, err := ranks[1].ep.Send(&transport.Op{Peer: 0, Data: []byte("last words")})
	require.NoError(t, err)
	f.Kill(1)
	f.Kill(1)
	require.Equal(t, "last words", string(one(t, ranks[0]).Msg))
	for _, r := range []rank{ranks[0], ranks[2]} {
		c := one(t, r)
		require.Equal(t, transport.PeerDown, c.Kind)
		require.Equal(t, transport.Addr(1), c.Peer)
		require.ErrorIs(t, c.Err, transport.ErrPeerDown)
		n, err := r.cq.Read(make([]transport.Completion, 1))
		require.NoError(t, err)
		require.Zero(t, n)
	}
	_, err = ranks[0].ep.Send(&transport.Op{Peer: 1})
	require.ErrorIs(t, err, transport.ErrPeerDown)
	_, err = ranks[1].ep.Send(&transport.Op{Peer: 0})
	require.ErrorIs(t, err, transport.ErrClosed)
	_, err = ranks[1].cq.Read(make([]transport.Completion, 1))
	require.ErrorIs(t, err, transport.ErrClosed)
	require.ErrorIs(t, ranks[1].cq.Wait(time.Minute), transport.ErrClosed)
	_, err = ranks[1].dom.RegisterMemory(make([]byte, 1), transport.RemoteRead)
	require.ErrorIs(t, err, transport.ErrClosed)
}

func TestShutdownThenSend(t *testing.T) {
	_, ranks := open(t, 2)
	require.NoError(t, ranks[1].ep.Shutdown(context.Background()))
	_, err := ranks[0].ep.Send(&transport.Op{Peer: 1})
	require.ErrorIs(t, err, transport.ErrPeerLeft)
	require.Equal(t, transport.PeerLeft, one(t, ranks[0]).Kind)
	require.NoError(t, ranks[1].dom.Close())
	n, err := ranks[0].cq.Read(make([]transport.Completion, 1))
	require.NoError(t, err)
	require.Zero(t, n, "Close after Shutdown reports nothing more")
}

func TestNoAllocation(t *testing.T) {
	_, ranks := open(t, 2)
	op := &transport.Op{Peer: 1, HeaderLen: 16, Data: make([]byte, 1000)}
	var c [4]transport.Completion
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		_, _ = ranks[0].ep.Send(op)
		_, _ = ranks[1].cq.Read(c[:])
	}), "Send and Read of the queue")

	rma := ranks[0].ep.(transport.RMAEndpoint)
	buf := make([]byte, 1000)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		mr, _ := ranks[1].dom.RegisterMemory(buf, transport.RemoteRead|transport.RemoteWrite)
		op.RemoteKey = mr.Key()
		_ = rma.Read(op)
		_, _ = ranks[0].cq.Read(c[:])
		_ = rma.Write(op)
		_, _ = ranks[0].cq.Read(c[:])
		_ = mr.Close()
	}), "register, Read, Write, close")

	require.Zero(t, testing.AllocsPerRun(1000, func() {
		ranks[1].cq.Signal()
		if ranks[1].cq.Arm() {
			_ = ranks[1].cq.Wait(time.Minute)
		}
	}), "Arm and Wait")
}

func BenchmarkSend(b *testing.B) {
	for _, size := range []int{8, 4096} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			_, ranks := open(b, 2)
			op := &transport.Op{Peer: 1, HeaderLen: 16, Data: make([]byte, size)}
			var c [4]transport.Completion
			b.ReportAllocs()
			for b.Loop() {
				_, _ = ranks[0].ep.Send(op)
				_, _ = ranks[1].cq.Read(c[:])
			}
		})
	}
}
