//go:build libfabric

package fi

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestContextInFlight checks that posting calls refuse a context that is in flight or closed.
func TestContextInFlight(t *testing.T) {
	a, b := openPair(t, setup{prov: "shm"})
	recv, send := NewContext("recv"), NewContext("send")
	require.False(t, recv.InFlight())
	b.post(func() error { return b.ep.TRecv(make([]byte, 8), Desc{}, b.peer, 1, 0, recv) })
	require.True(t, recv.InFlight())
	require.ErrorIs(t, b.ep.TRecv(make([]byte, 8), Desc{}, b.peer, 2, 0, recv), ErrBusy)
	require.ErrorIs(t, b.ep.TSendV([][]byte{make([]byte, 8)}, nil, b.peer, 2, recv), ErrBusy)
	require.ErrorIs(t, recv.Close(), ErrBusy)
	require.ErrorIs(t, a.ep.Cancel(recv), ErrNoEntry, "the context is in flight on another endpoint")

	a.post(func() error { return a.ep.TSend(make([]byte, 8), Desc{}, a.peer, 1, send) })
	require.Same(t, recv, b.wait(recv).Context)
	a.wait(send)
	require.NoError(t, recv.Close())
	require.NoError(t, recv.Close())
	require.False(t, recv.InFlight())
	require.ErrorIs(t, b.ep.TRecv(make([]byte, 8), Desc{}, b.peer, 1, 0, recv), ErrClosed)
	require.NoError(t, (*Context)(nil).Close())
}

// TestZeroContext checks that the zero Context works like one that NewContext has returned.
func TestZeroContext(t *testing.T) {
	a, b := openPair(t, setup{prov: "shm"})
	var recv, send, never Context
	b.post(func() error { return b.ep.TRecv(make([]byte, 8), Desc{}, b.peer, 1, 0, &recv) })
	a.post(func() error { return a.ep.TSend(make([]byte, 8), Desc{}, a.peer, 1, &send) })
	b.wait(&recv)
	a.wait(&send)
	for _, c := range []*Context{&recv, &send, &never} {
		require.NoError(t, c.Close())
		require.ErrorIs(t, a.ep.TSend(nil, Desc{}, a.peer, 1, c), ErrClosed)
	}
}

// TestContextFailedPost checks that a failed post leaves nothing in flight and nothing pinned.
func TestContextFailedPost(t *testing.T) {
	a, _ := openPair(t, setup{prov: xnet})
	ctx := NewContext(nil)
	big := make([]byte, a.info.Tx.InjectSize+1)
	require.Error(t, a.ep.SendMsg(&Msg{Bufs: [][]byte{big}, Addr: a.peer, Context: ctx}, FlagInject))
	require.False(t, ctx.InFlight())
	requireUnpinned(t, big)
}

// requireUnpinned fails unless the garbage collector frees buf, which the caller must not keep
// alive. The runtime does not report pins, but it frees nothing that is pinned.
func requireUnpinned(t *testing.T, buf []byte) {
	t.Helper()
	freed := make(chan struct{})
	runtime.AddCleanup(&buf[0], func(c chan struct{}) { close(c) }, freed)
	buf = nil
	_ = buf
	require.True(t, collected(freed), "a buffer stays pinned")
}

// collected runs the garbage collector, at most 100 times, and reports whether a cleanup has closed
// c.
func collected(c chan struct{}) bool {
	for range 100 {
		runtime.GC()
		select {
		case <-c:
			return true
		default:
			runtime.Gosched()
		}
	}
	return false
}

// TestContextKeepsAlive posts a receive, and then drops its references to the buffer and the
// Context. Both must live until the completion has been read, and must be freed afterwards.
func TestContextKeepsAlive(t *testing.T) {
	a, b := openPair(t, setup{prov: "shm"})
	freed := make(chan struct{})
	func() {
		in := make([]byte, 4096)
		runtime.AddCleanup(&in[0], func(c chan struct{}) { close(c) }, freed)
		b.post(func() error { return b.ep.TRecv(in, Desc{}, b.peer, 1, 0, NewContext(in)) })
	}()
	for range 5 {
		runtime.GC()
	}
	select {
	case <-freed:
		t.Fatal("the buffer of a posted receive was freed")
	default:
	}
	out := pattern(make([]byte, 4096), 1)
	send := NewContext(nil)
	a.post(func() error { return a.ep.TSend(out, Desc{}, a.peer, 1, send) })
	a.wait(send)
	func() {
		e := b.next()
		require.Equal(t, out, e.Context.User)
		b.entries = [8]CQEntry{}
		b.events = nil
	}()
	require.True(t, collected(freed), "a buffer stays pinned after its completion")
}

// TestContextAbandoned checks that closing an endpoint ends the operations in flight. A completion
// that is still in the queue then, or that the provider writes while it closes, must not lead to a
// context that has been posted again.
func TestContextAbandoned(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		a, b := openPair(t, setup{prov: prov})
		contexts := make([]*Context, 20)
		for i := range contexts {
			contexts[i] = NewContext(i)
			b.post(func() error { return b.ep.TRecv(make([]byte, 64), Desc{}, b.peer, uint64(i), 0, contexts[i]) })
		}
		for tag := range uint64(2) {
			a.post(func() error { return a.ep.TSend(make([]byte, 8), Desc{}, a.peer, tag, NewContext("send")) })
		}
		// Read one of the two completions, and leave the other in the queue if it has arrived.
		for deadline := time.Now().Add(testTimeout); contexts[0].InFlight(); a.poll() {
			require.True(t, time.Now().Before(deadline))
			_, _ = b.cq.Read(b.entries[:1])
		}
		before := contexts[9].address()
		require.NoError(t, b.ep.Close())
		for _, c := range contexts {
			require.False(t, c.InFlight())
		}
		b.events = nil
		b.poll()
		for _, e := range b.events {
			require.Nil(t, e.Context)
		}
		// As long as the queue is open, the next operation of contexts[9] must use another slot.
		a.post(func() error { return a.ep.TRecv(make([]byte, 8), Desc{}, a.peer, 9, 0, contexts[9]) })
		require.True(t, contexts[9].InFlight())
		require.NotEqual(t, before, contexts[9].address())
		require.NoError(t, a.ep.Close())
		require.False(t, contexts[9].InFlight())
		for _, c := range contexts {
			require.NoError(t, c.Close())
		}
		slots.mu.Lock()
		spare := len(slots.spare)
		slots.mu.Unlock()
		require.NoError(t, b.cq.Close())
		slots.mu.Lock()
		defer slots.mu.Unlock()
		require.GreaterOrEqual(t, len(slots.spare), spare+18)
	})
}

// TestContextSlots checks that a freed slot is taken again, and that finishContext returns nil for
// addresses that are no slot in flight.
func TestContextSlots(t *testing.T) {
	var c Context
	c.slot = new(slot)
	require.True(t, c.slot.take())
	index := c.slot.index
	require.NotZero(t, index)
	require.Zero(t, c.address()%slotSize)
	c.slot.free()
	again := new(slot)
	require.True(t, again.take())
	require.Equal(t, index, again.index)
	require.Nil(t, finishContext(again.address(), 0, false), "nothing is in flight")
	require.Nil(t, finishContext(again.address()+8, 0, false))
	require.Nil(t, finishContext(0, 0, false))
	require.Nil(t, finishContext(slots.base.Load()-slotSize, 0, false))
	require.Nil(t, finishContext(slots.base.Load()+slotsLimit*slotSize, 0, false))
	again.free()

	// Take more slots than a chunk has. All must be different and have memory.
	many := make([]slot, 3*chunkSlots)
	seen := map[uint32]bool{}
	for i := range many {
		require.True(t, many[i].take())
		require.False(t, seen[many[i].index])
		seen[many[i].index] = true
		*(*byte)(pointerTo(many[i].address())) = 1
	}
	for i := range many {
		many[i].free()
	}
}

// TestGarbageCollection sends messages while the garbage collector runs without pause. Every byte
// must arrive, although only libfabric and the contexts refer to the buffers.
func TestGarbageCollection(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // ends when the test closes stop; the test then waits for it
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	eachRDM(t, func(t *testing.T, prov string) {
		a, b := openPair(t, setup{prov: prov})
		for i := range 40 {
			size := 100 << (i % 8)
			b.post(func() error {
				in := make([]byte, size)
				return b.ep.TRecv(in, Desc{}, b.peer, uint64(i), 0, NewContext(in))
			})
			b.post(func() error {
				in := make([]byte, size)
				return b.ep.TRecvV(halves(in), nil, b.peer, uint64(1000+i), 0, NewContext(in))
			})
			a.post(func() error {
				return a.ep.TSend(pattern(make([]byte, size), i), Desc{}, a.peer, uint64(i), NewContext(nil))
			})
			a.post(func() error {
				return a.ep.TSendV(halves(pattern(make([]byte, size), 1000+i)), nil, a.peer, uint64(1000+i), NewContext(nil))
			})
			for range 2 {
				require.NoError(t, a.fail(a.next()))
				e := b.next()
				require.NoError(t, b.fail(e))
				require.Equal(t, pattern(make([]byte, size), int(e.Tag)), e.Context.User)
			}
		}
	})
}
