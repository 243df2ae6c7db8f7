package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
)

var sizes = []int{0, 1, 7, 64, 511, 512, 513, 4000, 5000, 65536, 70000, 1 << 20}

func TestSendRecvOfAllSizes(t *testing.T) {
	everyFlavour(t, 2, func(t *testing.T, _ []*Engine, cs []*Context) {
		ranks(t, cs, func(c *Context, rank int) error {
			for i, n := range sizes {
				for _, mode := range []Mode{Standard, Synchronous} {
					if rank == 0 {
						if err := c.Send(background, pattern(n, i), Env{Peer: 1, Tag: i, Mode: mode}); err != nil {
							return err
						}
						continue
					}
					buf := make([]byte, n)
					st, err := c.Recv(background, buf, Env{Peer: 0, Tag: i})
					if err != nil {
						return err
					}
					if st != (Status{Source: 0, Tag: i, Bytes: n}) {
						return fmt.Errorf("status %+v for %d bytes", st, n)
					}
					if err := check(buf, pattern(n, i)); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
}

func TestMessagesDoNotOvertake(t *testing.T) {
	const count = 3000
	everyFlavour(t, 3, func(t *testing.T, _ []*Engine, cs []*Context) {
		ranks(t, cs, func(c *Context, rank int) error {
			rng := rand.New(rand.NewPCG(1, uint64(rank)))
			if rank > 0 {
				for i := range count {
					n := 8 + rng.IntN(1500)
					b := make([]byte, n)
					b[0], b[1], b[2] = byte(i), byte(i>>8), byte(rank)
					if err := c.Send(background, b, Env{Peer: 0, Tag: i % 3}); err != nil {
						return err
					}
				}
				return nil
			}
			next := [3]int{}
			buf := make([]byte, 2000)
			for range 2 * count {
				st, err := c.Recv(background, buf, Env{Peer: AnySource, Tag: AnyTag})
				if err != nil {
					return err
				}
				i := int(buf[0]) | int(buf[1])<<8
				if i != next[st.Source] || int(buf[2]) != st.Source || st.Tag != i%3 {
					return fmt.Errorf("message %d of rank %d instead of %d: %+v", i, buf[2], next[st.Source], st)
				}
				next[st.Source]++
			}
			return nil
		})
	})
}

func TestUnexpectedMessagesFindTheirReceives(t *testing.T) {
	everyFlavour(t, 2, func(t *testing.T, _ []*Engine, cs []*Context) {
		const count = 40
		ranks(t, cs, func(c *Context, rank int) error {
			if rank == 0 {
				var rs []Request
				for i := range count {
					rs = append(rs, c.Isend(pattern(100*i, i), Env{Peer: 1, Tag: i}))
				}
				for _, r := range rs {
					if _, err := r.Wait(background); err != nil {
						return err
					}
				}
				return nil
			}
			for i := count - 1; i >= 0; i-- { // in reverse order, so most of the messages are unexpected
				buf := make([]byte, 100*i)
				if _, err := c.Recv(background, buf, Env{Peer: AnySource, Tag: i}); err != nil {
					return err
				}
				if err := check(buf, pattern(100*i, i)); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func TestTruncationLosesNothingElse(t *testing.T) {
	everyFlavour(t, 2, func(t *testing.T, _ []*Engine, cs []*Context) {
		ranks(t, cs, func(c *Context, rank int) error {
			for _, n := range []int{10, 600, 100000} {
				if rank == 0 {
					if err := c.Send(background, pattern(n, 1), Env{Peer: 1}); err != nil {
						return err
					}
					if err := c.Send(background, pattern(n, 2), Env{Peer: 1}); err != nil {
						return err
					}
					continue
				}
				buf := make([]byte, n)
				st, err := c.Recv(background, buf[:n/2], Env{Peer: 0})
				if err := wantErr(err, ErrTruncate); err != nil {
					return err
				}
				if st.Bytes != n {
					return fmt.Errorf("status says %d of %d bytes", st.Bytes, n)
				}
				if err := check(buf, append(pattern(n, 1)[:n/2], make([]byte, n-n/2)...)); err != nil {
					return err
				}
				if _, err := c.Recv(background, buf, Env{Peer: 0}); err != nil {
					return err
				}
				if err := check(buf, pattern(n, 2)); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func TestSelfMessages(t *testing.T) {
	everyFlavour(t, 1, func(t *testing.T, engines []*Engine, cs []*Context) {
		ranks(t, cs, func(c *Context, _ int) error {
			for i, n := range sizes {
				s := c.Isend(pattern(n, i), Env{Peer: 0, Tag: i})
				buf := make([]byte, n)
				if _, err := c.Recv(background, buf, Env{Peer: AnySource, Tag: i}); err != nil {
					return err
				}
				if _, err := s.Wait(background); err != nil {
					return err
				}
				if err := check(buf, pattern(n, i)); err != nil {
					return err
				}
				r := c.Irecv(buf, Env{Peer: 0, Tag: AnyTag})
				if err := c.Send(background, pattern(n, i+1), Env{Peer: 0, Tag: i, Mode: Synchronous}); err != nil {
					return err
				}
				if _, err := r.Wait(background); err != nil {
					return err
				}
				if err := check(buf, pattern(n, i+1)); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func TestFloodWithinCredits(t *testing.T) {
	p := inproc.NewFabric()
	engines := openJob(t, 2, p, map[string]string{"engine.unexpected_limit": "16k"})
	cs := world(engines)
	const count = 5000
	ranks(t, cs, func(c *Context, rank int) error {
		buf := make([]byte, 1000)
		if rank == 0 {
			var rs []Request
			for i := range count {
				rs = append(rs, c.Isend(pattern(1000, i), Env{Peer: 1, Tag: 1}))
			}
			if err := c.Send(background, nil, Env{Peer: 1, Tag: 2}); err != nil {
				return err
			}
			for _, r := range rs {
				if _, err := r.Wait(background); err != nil {
					return err
				}
			}
			return nil
		}
		for i := range count {
			if _, err := c.Recv(background, buf, Env{Peer: 0, Tag: 1}); err != nil {
				return err
			}
			if err := check(buf, pattern(1000, i)); err != nil {
				return err
			}
			if held := engines[1].peers[0].unexpectedBytes; held > 16<<10 {
				return fmt.Errorf("%d bytes of unexpected messages in a window of 16 KiB", held)
			}
		}
		_, err := c.Recv(background, nil, Env{Peer: 0, Tag: 2})
		return err
	})
}

func TestProbes(t *testing.T) {
	everyFlavour(t, 2, func(t *testing.T, _ []*Engine, cs []*Context) {
		ranks(t, cs, func(c *Context, rank int) error {
			const n = 3000
			if rank == 0 {
				var rs [3]Request
				for i := range rs {
					rs[i] = c.Isend(pattern(n, i), Env{Peer: 1, Tag: i})
				}
				for _, r := range rs {
					if _, err := r.Wait(background); err != nil {
						return err
					}
				}
				return nil
			}
			st, err := c.Probe(background, Env{Peer: AnySource, Tag: 0})
			if err != nil || st != (Status{Tag: 0, Bytes: n}) {
				return fmt.Errorf("probe: %+v, %w", st, err)
			}
			m, st, err := c.Mprobe(background, Env{Peer: 0, Tag: AnyTag})
			if err != nil || st != (Status{Tag: 0, Bytes: n}) {
				return fmt.Errorf("mprobe: %+v, %w", st, err)
			}
			buf := make([]byte, n)
			// Receives the message with tag 1, because Mprobe has taken the one with tag 0 out of matching.
			if _, err := c.Recv(background, buf, Env{Peer: 0, Tag: AnyTag}); err != nil {
				return err
			}
			if err := check(buf, pattern(n, 1)); err != nil {
				return err
			}
			if _, err := m.Recv(background, buf); err != nil {
				return err
			}
			if err := check(buf, pattern(n, 0)); err != nil {
				return err
			}
			if _, err := m.Recv(background, buf); err == nil {
				return fmt.Errorf("a message was received twice")
			}
			for {
				m, _, ok, err := c.Improbe(Env{Peer: 0, Tag: 2})
				if err != nil {
					return err
				}
				if ok {
					if _, err := m.Recv(background, buf); err != nil {
						return err
					}
					return check(buf, pattern(n, 2))
				}
			}
		})
	})
}

func TestCancelOfAReceive(t *testing.T) {
	engines := openJob(t, 2, inproc.NewFabric(), nil)
	cs := world(engines)
	r := cs[0].Irecv(make([]byte, 8), Env{Peer: 1, Tag: 3})
	require.NoError(t, r.Cancel())
	st, err := r.Wait(background)
	require.NoError(t, err)
	require.True(t, st.Cancelled)
	st, err = r.Wait(background) // the first Wait has freed the request
	require.NoError(t, err)
	require.Equal(t, Status{}, st)
	require.Zero(t, engines[0].posted.n)
}

func TestContextsOfGoEndCalls(t *testing.T) {
	everyFlavour(t, 2, func(t *testing.T, engines []*Engine, cs []*Context) {
		ctx, cancel := context.WithCancel(background)
		ended := make(chan error, 4)
		go func() { // this goroutine and the next three end when ctx ends
			_, err := cs[0].Recv(ctx, make([]byte, 8), Env{Peer: 1, Tag: 1})
			ended <- err
		}()
		go func() { _, err := cs[0].Probe(ctx, Env{Peer: 1, Tag: 2}); ended <- err }()
		var unfinished *Unfinished
		go func() {
			err := cs[0].Send(ctx, make([]byte, 1<<20), Env{Peer: 1, Tag: 1, Mode: Synchronous})
			errors.As(err, &unfinished)
			ended <- err
		}()
		r := cs[0].Irecv(make([]byte, 8), Env{Peer: 1, Tag: 4})
		go func() { _, err := r.Wait(ctx); ended <- err }()
		cancel()
		for range 4 {
			require.ErrorIs(t, <-ended, context.Canceled)
		}
		// Wait has returned an error, but the receive r is still posted, and gets its message.
		require.NoError(t, cs[1].Send(background, make([]byte, 8), Env{Peer: 0, Tag: 4}))
		_, err := r.Wait(background)
		require.NoError(t, err)
		if unfinished == nil && engines[0].rails[0].pin != nil {
			return // the send was withdrawn, because its buffer was being registered
		}
		// The send above has returned an error, but the engine still sends its message.
		ranks(t, cs[1:], func(c *Context, _ int) error {
			_, err := c.Recv(background, make([]byte, 1<<20), Env{Peer: 0, Tag: 1})
			return err
		})
	})
}

func TestWaitAny(t *testing.T) {
	everyFlavour(t, 2, func(t *testing.T, engines []*Engine, cs []*Context) {
		ranks(t, cs, func(c *Context, rank int) error {
			const n = 20
			if rank == 0 {
				for i := range n {
					if err := c.Send(background, []byte{byte(i)}, Env{Peer: 1, Tag: (i * 7) % n}); err != nil {
						return err
					}
				}
				return nil
			}
			rs := make([]Request, n)
			bufs := make([][1]byte, n)
			for i := range rs {
				rs[i] = c.Irecv(bufs[i][:], Env{Peer: 0, Tag: i})
			}
			at := func(i int) Request { return rs[i] }
			for range n {
				i, err := WaitAny(background, n, at)
				if err != nil {
					return err
				}
				if _, err := rs[i].Wait(background); err != nil {
					return err
				}
				if int(bufs[i][0])*7%n != i {
					return fmt.Errorf("request %d got message %d", i, bufs[i][0])
				}
				rs[i] = Request{}
			}
			if i, err := WaitAny(background, n, at); i != -1 || err != nil {
				return fmt.Errorf("wait on nothing: %d, %w", i, err)
			}
			return nil
		})
	})
}

// TestWaitEach: WaitEach collects requests in their order, whether they were complete before or
// not. It reports the zero Status for a request that was collected before, leaves out the zero
// request, and continues after a request that has failed.
func TestWaitEach(t *testing.T) {
	everyFlavour(t, 2, func(t *testing.T, _ []*Engine, cs []*Context) {
		ranks(t, cs, func(c *Context, rank int) error {
			if rank == 1 {
				for i := range 4 {
					if err := c.Send(background, pattern(10+i, i), Env{Peer: 0, Tag: i}); err != nil {
						return err
					}
				}
				return nil
			}
			var bufs [4][16]byte
			rs := make([]Request, 0, 6)
			for i := range bufs {
				// The buffer of the last receive is a byte too short.
				rs = append(rs, c.Irecv(bufs[i][:10+i-i/3], Env{Peer: 1, Tag: i}))
			}
			if _, err := rs[1].Wait(background); err != nil {
				return err
			}
			rs = append(rs, Request{})
			order := []int{}
			var last error
			WaitEach(len(rs), func(i int) (Request, context.Context) { return rs[i], background },
				func(i int, st Status, done bool, err error) {
					order = append(order, i)
					if last = err; !done || i != 1 && st.Bytes != 10+i {
						panic(fmt.Sprintf("request %d: %v, %d bytes", i, done, st.Bytes))
					}
				})
			if fmt.Sprint(order) != "[0 1 2 3]" {
				return fmt.Errorf("ended in the order %v", order)
			}
			return wantErr(last, ErrTruncate)
		})
	})
}

func TestManyGoroutinesPerRank(t *testing.T) {
	everyFlavour(t, 3, func(t *testing.T, engines []*Engine, cs []*Context) {
		ranks(t, cs, func(c *Context, rank int) error {
			const threads, rounds = 8, 150
			var group errgroup.Group
			for g := range threads {
				group.Go(func() error { // ends after its rounds
					next, prev := (rank+1)%3, (rank+2)%3
					rng := rand.New(rand.NewPCG(7, uint64(g)))
					for i := range rounds {
						n := rng.IntN(2000)
						s := c.Isend(pattern(n, g), Env{Peer: next, Tag: g})
						buf := make([]byte, n)
						if _, err := c.Recv(background, buf, Env{Peer: prev, Tag: g}); err != nil {
							return err
						}
						if err := check(buf, pattern(n, g)); err != nil {
							return fmt.Errorf("round %d: %w", i, err)
						}
						if _, err := s.Wait(background); err != nil {
							return err
						}
					}
					return nil
				})
			}
			return group.Wait()
		})
	})
}

func TestTasks(t *testing.T) {
	engines := openJob(t, 2, inproc.NewFabric(), nil)
	cs := world(engines)
	ranks(t, cs, func(c *Context, rank int) error {
		var rs []Request
		for i := range 50 { // more than maxIdleWorkers; each function waits for one of the other rank
			rs = append(rs, c.e.Go(func() error {
				if err := c.Send(background, []byte{1}, Env{Peer: 1 - rank, Tag: i}); err != nil {
					return err
				}
				_, err := c.Recv(background, make([]byte, 1), Env{Peer: 1 - rank, Tag: i})
				return err
			}))
		}
		for i := len(rs) - 1; i >= 0; i-- {
			if _, err := rs[i].Wait(background); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestStreamBurst sends a long message in segments, which the endpoint takes at once. In one call
// of Engine.progress the sender sends at most two bursts, and Engine.progress counts the request as
// continued.
func TestStreamBurst(t *testing.T) {
	es := openJob(t, 2, inproc.NewFabric(inproc.WithoutRMA()), noAsync)
	cs := world(es)
	data, got := pattern(5<<20, 1), make([]byte, 5<<20)
	s, r := cs[0].Isend(data, Env{Peer: 1}), cs[1].Irecv(got, Env{Peer: 0})
	progress := func(e *Engine) int {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.progress()
	}
	progress(es[1]) // answers the RTS
	for sent := 0; !s.Done(); {
		require.NotZero(t, progress(es[0]))
		es[0].mu.Lock()
		now := len(data)
		if !s.doneLocked() {
			now = s.r.offset
			require.Zero(t, es[0].peers[1].noRoomSince)
		}
		es[0].mu.Unlock()
		require.Greater(t, now, sent)
		require.LessOrEqual(t, now-sent, 2*(streamBurst+64<<10))
		sent = now
		progress(es[1])
	}
	for !r.Done() {
		progress(es[1])
	}
	require.NoError(t, check(got, data))
}

// TestDrainSendsLittle calls Engine.drain when the peer's request for the data of a long message
// has arrived. Engine.drain reads the request, and sends at most one burst of segments afterwards.
// The message continues later.
func TestDrainSendsLittle(t *testing.T) {
	es := openJob(t, 2, inproc.NewFabric(inproc.WithoutRMA()), noAsync)
	cs := world(es)
	data, got := pattern(5<<20, 1), make([]byte, 5<<20)
	s, r := cs[0].Isend(data, Env{Peer: 1}), cs[1].Irecv(got, Env{Peer: 0})
	poll := func(e *Engine) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.progress()
	}
	poll(es[1]) // answers the RTS
	es[0].mu.Lock()
	es[0].drain()
	sent, segment := s.r.offset, es[0].peers[1].rail.attr.MaxMsgSize
	es[0].mu.Unlock()
	require.Positive(t, sent)
	require.LessOrEqual(t, sent, streamBurst+segment)
	for !s.Done() || !r.Done() {
		poll(es[0])
		poll(es[1])
	}
	require.NoError(t, check(got, data))
}

// TestSmallMessageBesideStream sends a small message while a long one is sent in segments, and the
// endpoint had no room for the small one. The small message arrives before the long one is
// complete.
func TestSmallMessageBesideStream(t *testing.T) {
	h := &hooks{}
	c, s := openHooked(t, h, noAsync, inproc.WithoutRMA())
	long := c.Isend(make([]byte, 64<<20), Env{Peer: 1, Tag: 1})
	h.again = true
	s.sendMessage(t, wire.Message{Kind: wire.MsgCTS, Length: 64 << 20}) // the handle 0 identifies long
	_, _, err := long.Test()
	require.NoError(t, err)
	small := c.Isend([]byte{1}, Env{Peer: 1, Tag: 2})
	require.False(t, small.Done())
	h.again = false
	c.e.mu.Lock()
	c.e.retry() // the stream comes first, because it has not moved
	c.e.retry()
	c.e.mu.Unlock()
	require.True(t, small.Done())
	require.False(t, long.Done())
	_, err = small.Wait(background)
	require.NoError(t, err)
}

// TestStreamIsNotStarved: the endpoint has room for small messages, but not for a segment of a long one. Since
// the stream has not moved, the next retry tries its segment first, and keeps small messages back. After
// the stream has moved, small messages come first again.
func TestStreamIsNotStarved(t *testing.T) {
	h := &hooks{}
	c, s := openHooked(t, h, noAsync, inproc.WithoutRMA())
	long := c.Isend(make([]byte, 2<<20), Env{Peer: 1, Tag: 1})
	onlySmall := func(op *transport.Op) bool { return len(op.Data) > 100 }
	h.refuses = onlySmall
	s.sendMessage(t, wire.Message{Kind: wire.MsgCTS, Length: 2 << 20}) // the handle 0 identifies long
	_, _, err := long.Test()
	require.NoError(t, err)
	small := func() Request { // a small send that is queued
		h.again = true
		r := c.Isend([]byte{1}, Env{Peer: 1, Tag: 2})
		h.again = false
		require.False(t, r.Done())
		return r
	}
	retry := func() {
		c.e.mu.Lock()
		c.e.retry()
		c.e.mu.Unlock()
	}
	first := small()
	retry()
	require.False(t, first.Done(), "the stream has not moved, so it comes first")
	h.refuses = nil
	retry()
	require.False(t, first.Done(), "the stream has sent a burst")
	h.refuses = onlySmall
	retry()
	require.True(t, first.Done())
	second := small()
	retry()
	require.False(t, second.Done())
	h.refuses = nil
	retry()
	retry()
	require.True(t, second.Done())
	for _, r := range []Request{first, second} {
		_, err = r.Wait(background)
		require.NoError(t, err)
	}
	require.False(t, long.Done())
}
