package transporttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

var endCases = []testCase{
	{name: "shutdown delivers", minRanks: 2, run: testShutdownDelivers},
	{name: "shutdown of all at once", run: testShutdownTogether},
	{name: "peer down", needs: transport.CapPeerDown, minRanks: 2, run: testPeerDown},
	{name: "peer down under reads", needs: transport.CapPeerDown | transport.CapRead | capReach, minRanks: 2, run: testPeerDownReads},
	{name: "close with operations in flight", run: testCloseInFlight},
	{name: "close ends a wait", run: testCloseEndsWait},
	{name: "use after close", run: testAfterClose},
}

func (r *rank) shutdown() error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	r.left = true
	if err := r.ep.Shutdown(ctx); err != nil {
		return fmt.Errorf("shutdown: %w", err)
	}
	return nil
}

// testShutdownDelivers has rank 0 send messages to all other ranks and then call Shutdown at once.
// All messages must arrive, in order, before PeerLeft.
func testShutdownDelivers(w *world) {
	const count = 500
	size := min(3000, w.attr.EagerLimit)
	w.each(func(r *rank) error {
		got := 0
		r.onMsg = func(from transport.Addr, msg []byte) error {
			if from != 0 || r.id == 0 {
				return fmt.Errorf("message from rank %d", from)
			}
			if err := sameAs(msg[16:], pattern(0, uint64(got), size)); err != nil {
				return fmt.Errorf("message %d: %w", got, err)
			}
			got++
			return nil
		}
		if err := r.sync(); err != nil {
			return err
		}
		if r.id == 0 {
			reqs := make([]request, count*r.n)
			for i := range count {
				for p := 1; p < r.n; p++ {
					q := &reqs[i*r.n+p]
					q.op = transport.Op{Peer: transport.Addr(p), HeaderLen: 16, Data: slices.Clone(pattern(0, uint64(i), size))}
					if err := r.send(q); err != nil {
						return err
					}
				}
			}
			return r.shutdown()
		}
		if err := r.until("wait for PeerLeft of rank 0", func() bool { return r.hasLeft[0] > 0 }); err != nil {
			return fmt.Errorf("%w; received %d of %d", err, got, count)
		}
		if got != count {
			return fmt.Errorf("%d of %d messages arrived before PeerLeft", got, count)
		}
		err := r.failing(0, transport.ErrPeerLeft)
		r.onMsg = nil
		return err
	})
	w.survivors(func(r *rank) bool { return r.id == 0 }, func(r *rank) error {
		if r.hasLeft[0] != 1 || r.isDown[0] != 0 {
			return fmt.Errorf("got %d PeerLeft and %d PeerDown for rank 0, want 1 and 0", r.hasLeft[0], r.isDown[0])
		}
		return nil
	})
}

// failing sends messages to rank p, which has ended, until one of them fails. That message must
// fail with the error want.
func (r *rank) failing(p transport.Addr, want error) error {
	end := time.Now().Add(timeout)
	for {
		q := &request{}
		q.op = transport.Op{Peer: p, HeaderLen: 8}
		err := r.finish(q, r.send)
		if errors.Is(err, want) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("send to rank %d: got %w, want %w", p, err, want)
		}
		if time.Now().After(end) {
			return fmt.Errorf("send to rank %d, which has ended, still succeeds", p)
		}
	}
}

// survivors checks that the ranks for which gone returns false can still exchange messages: each
// sends to the next of them, and receives only from the one before. Then survivors runs check on
// each.
func (w *world) survivors(gone func(*rank) bool, check func(*rank) error) {
	w.t.Helper()
	alive := slices.DeleteFunc(slices.Clone(w.ranks), gone)
	all := w.ranks
	w.ranks = alive
	w.each(func(r *rank) error {
		i := slices.Index(alive, r)
		next, prev := alive[(i+1)%len(alive)].id, alive[(i+len(alive)-1)%len(alive)].id
		got := 0
		r.onMsg = func(from transport.Addr, _ []byte) error {
			if from != prev {
				return fmt.Errorf("message from rank %d", from)
			}
			got++
			return nil
		}
		for n := range 20 {
			q := &request{}
			q.op = transport.Op{Peer: next, HeaderLen: 8}
			if err := r.finish(q, r.send); err != nil {
				return fmt.Errorf("send among the survivors: %w", err)
			}
			if err := r.until("receive among the survivors", func() bool { return got > n }); err != nil {
				return err
			}
		}
		// The last message may be in a batch, and the next rank waits for it.
		if err := r.flush(); err != nil {
			return err
		}
		return check(r)
	})
	w.ranks = all
}

func testShutdownTogether(w *world) {
	w.traffic(traffic{count: 10, sizes: []int{100}, headers: []int{16}, window: 4})
	w.each((*rank).shutdown)
	w.each(func(r *rank) error { // a second Shutdown may return ErrClosed, and has no other effect
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		if err := r.ep.Shutdown(ctx); err != nil && !errors.Is(err, transport.ErrClosed) {
			return fmt.Errorf("second shutdown: %w", err)
		}
		return nil
	})
}

// kill ends the last rank as the death of its process would. No goroutine may be in a call of that
// rank.
func (w *world) kill() {
	victim := w.ranks[len(w.ranks)-1]
	victim.closed = true
	if w.job.Kill != nil {
		w.job.Kill(int(victim.id))
		_, err := victim.cq.Read(victim.entries)
		require.ErrorIs(w.t, err, transport.ErrClosed)
	}
	require.NoError(w.t, victim.dom.Close())
}

func testPeerDown(w *world) {
	w.traffic(traffic{count: 3, sizes: []int{100}, headers: []int{16}, window: 4})
	w.peerDown(func(*rank) error { return nil }, func(*rank) error { return nil })
}

// peerDown has all ranks call the function before, then kills the last rank, and checks that each
// of the other ranks reports PeerDown once. Then the other ranks call the function after.
func (w *world) peerDown(before, after func(*rank) error) {
	w.t.Helper()
	victim := transport.Addr(len(w.ranks) - 1)
	var ready sync.WaitGroup
	ready.Add(len(w.ranks))
	w.each(func(r *rank) error {
		err := before(r)
		ready.Done()
		if r.id == victim || err != nil {
			return err
		}
		if r.id == 0 {
			ready.Wait()
			w.kill()
		}
		err = r.until(fmt.Sprintf("wait for PeerDown of rank %d", victim), func() bool { return r.isDown[victim] > 0 })
		if err != nil {
			return err
		}
		if !errors.Is(r.downErr, transport.ErrPeerDown) {
			return fmt.Errorf("PeerDown has error %w, want %w", orNone(r.downErr), transport.ErrPeerDown)
		}
		if err := r.failing(victim, transport.ErrPeerDown); err != nil {
			return err
		}
		return after(r)
	})
	w.survivors(func(r *rank) bool { return r.id == victim }, func(r *rank) error {
		if r.isDown[victim] != 1 || r.hasLeft[victim] != 0 {
			return fmt.Errorf("got %d PeerDown and %d PeerLeft for rank %d, want 1 and 0", r.isDown[victim], r.hasLeft[victim], victim)
		}
		return nil
	})
}

// testPeerDownReads kills a rank while the others read its memory. Each read must either return the
// right bytes or fail with ErrPeerDown.
func testPeerDownReads(w *world) {
	w.traffic(traffic{count: 3, sizes: []int{100}, headers: []int{16}, window: 4})
	n := len(w.ranks)
	size := min(1<<20, w.attr.MaxRMASize)
	all := make([]shared, n)
	reqs := make([][]request, n)
	w.peerDown(func(r *rank) error {
		if err := r.share(all, slices.Clone(pattern(r.id, 4, size)), transport.RemoteRead); err != nil {
			return err
		}
		if int(r.id) == n-1 {
			return nil
		}
		reqs[r.id] = make([]request, 8)
		for i := range reqs[r.id] {
			q := &reqs[r.id][i]
			q.op = transport.Op{Peer: transport.Addr(n - 1), RemoteKey: all[n-1].key, RemoteAddr: all[n-1].at, Data: make([]byte, size)}
			if _, err := r.local(q); err != nil { // Close of the domain releases the region
				return err
			}
			if err := r.read(q); err != nil {
				return err
			}
		}
		return nil
	}, func(r *rank) error {
		for i := range reqs[r.id] {
			q := &reqs[r.id][i]
			switch err := r.wait(q); {
			case err == nil:
				if err := sameAs(q.op.Data, pattern(transport.Addr(n-1), 4, size)); err != nil {
					return err
				}
			case !errors.Is(err, transport.ErrPeerDown):
				return fmt.Errorf("read from a peer that died: %w", err)
			}
		}
		err := r.access(r.read, transport.Addr(n-1), all[n-1].key, all[n-1].at, make([]byte, 8))
		if !errors.Is(err, transport.ErrPeerDown) {
			return fmt.Errorf("new read from a peer that died: got %w, want %w", orNone(err), transport.ErrPeerDown)
		}
		return nil
	})
}

// testCloseInFlight has all ranks close their domains while messages and reads are in flight. After
// that, the domain must not use the ranks' memory any more.
func testCloseInFlight(w *world) {
	w.traffic(traffic{count: 2, sizes: []int{100}, headers: []int{16}, window: 4})
	n := len(w.ranks)
	all := make([]shared, n)
	w.each(func(r *rank) error {
		size := 100_000
		r.onMsg = func(transport.Addr, []byte) error { return nil }
		if err := r.share(all, make([]byte, size), transport.RemoteRead|transport.RemoteWrite); err != nil {
			return err
		}
		reqs := make([]request, 4*n)
		for i := range reqs {
			q := &reqs[i]
			q.op = transport.Op{Peer: transport.Addr(i % n), HeaderLen: 16, Data: make([]byte, min(size, r.attr.EagerLimit))}
			q.op.User = q
			q.busy = true
			if i%2 == 0 || r.rma == nil || !r.attr.Caps.Has(transport.CapRead) {
				_, _ = r.ep.Send(&q.op) // the error does not matter: the peer may be closed
				continue
			}
			q.op.RemoteKey, q.op.RemoteAddr = all[q.op.Peer].key, all[q.op.Peer].at
			if _, err := r.local(q); err != nil { // Close of the domain releases the region
				return err
			}
			_ = r.rma.Read(&q.op)
		}
		r.closed = true
		if err := r.dom.Close(); err != nil {
			return fmt.Errorf("close: %w", err)
		}
		// With -race, the race detector reports an endpoint that uses the memory after Close.
		for i := range reqs {
			overwrite(&reqs[i])
		}
		copy(all[r.id].buf, garbage)
		return nil
	})
}

func testCloseEndsWait(w *world) {
	w.each(func(r *rank) error {
		if err := r.arm(); err != nil {
			return err
		}
		ended := make(chan error)
		go func() { // ends when Wait returns an error; the test receives from ended below
			for {
				err := r.cq.Wait(-1)
				if err != nil {
					ended <- err
					return
				}
			}
		}()
		r.closed = true
		if err := r.dom.Close(); err != nil {
			return fmt.Errorf("close: %w", err)
		}
		select {
		case err := <-ended:
			if !errors.Is(err, transport.ErrClosed) {
				return fmt.Errorf("wait, ended by Close: got %w, want %w", err, transport.ErrClosed)
			}
			return nil
		case <-time.After(timeout):
			return errors.New("wait did not end after Close")
		}
	})
}

func testAfterClose(w *world) {
	w.traffic(traffic{count: 1, sizes: []int{8}, headers: []int{16}, window: 1})
	w.each(func(r *rank) error {
		mr, err := r.dom.RegisterMemory(make([]byte, 8), transport.RemoteRead)
		if err != nil {
			return err
		}
		r.closed = true
		for range 2 {
			if err := r.dom.Close(); err != nil {
				return fmt.Errorf("close: %w", err)
			}
		}
		next := transport.Addr((int(r.id) + 1) % r.n)
		calls := map[string]func() error{
			"OpenCQ":         func() error { _, err := r.dom.OpenCQ(); return err },
			"OpenAV":         func() error { _, err := r.dom.OpenAV(); return err },
			"OpenEndpoint":   func() error { _, err := r.dom.OpenEndpoint(r.av, r.cq); return err },
			"RegisterMemory": func() error { _, err := r.dom.RegisterMemory(make([]byte, 8), transport.RemoteRead); return err },
			"Send":           func() error { _, err := r.ep.Send(&transport.Op{Peer: next, HeaderLen: 8}); return err },
			"Read of the queue": func() error {
				_, err := r.cq.Read(r.entries)
				return err
			},
			"Wait": func() error { return r.cq.Wait(timeout) },
		}
		if r.attr.Caps.Has(transport.CapRead) {
			calls["Read"] = func() error { return r.rma.Read(&transport.Op{Peer: next, Data: make([]byte, 1)}) }
		}
		if r.attr.Caps.Has(transport.CapWrite) {
			calls["Write"] = func() error { return r.rma.Write(&transport.Op{Peer: next, Data: make([]byte, 1)}) }
		}
		for name, call := range calls {
			if err := call(); !errors.Is(err, transport.ErrClosed) {
				return fmt.Errorf("%s after Close: got %w, want %w", name, orNone(err), transport.ErrClosed)
			}
		}
		// The results of these calls do not matter, but the calls must not panic or hang.
		r.cq.Signal()
		r.cq.Arm()
		r.cq.FD()
		r.dom.Attr()
		r.av.Len()
		r.ep.Address()
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		if err := r.ep.Shutdown(ctx); err != nil && !errors.Is(err, transport.ErrClosed) {
			return fmt.Errorf("shutdown after Close: %w", err)
		}
		if err := mr.Close(); err != nil && !errors.Is(err, transport.ErrClosed) {
			return fmt.Errorf("close a region after Close of its domain: %w", err)
		}
		return nil
	})
}
