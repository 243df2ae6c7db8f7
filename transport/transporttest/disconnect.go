package transporttest

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/weft-hpc/weft/transport"
)

var disconnectCases = []testCase{
	{name: "disconnect", needs: transport.CapDisconnect, minRanks: 2, run: func(w *world) { testDisconnect(w, true) }},
	{name: "disconnect before contact", needs: transport.CapDisconnect, minRanks: 2, run: func(w *world) { testDisconnect(w, false) }},
}

// testDisconnect gives the last rank up, which does not move meanwhile, as one
// whose host is cut off: with operations under way that need it, or before
// anything was exchanged with it. Then it goes on, and nobody hears of it.
func testDisconnect(w *world, busy bool) {
	n := len(w.ranks)
	victim := transport.Addr(n - 1)
	if busy {
		w.traffic(traffic{count: 3, sizes: []int{100}, headers: []int{16}, window: 4})
	}
	all := make([]shared, n)
	if busy && w.attr.Caps.Has(transport.CapRead) {
		w.each(func(r *rank) error {
			return r.share(all, slices.Clone(pattern(r.id, 4, min(1<<20, w.attr.MaxRMASize))), transport.RemoteRead)
		})
	}
	var still, over sync.WaitGroup // the victim keeps still until this is done
	still.Add(n - 1)
	over.Add(1)
	w.each(func(r *rank) error {
		if r.id == victim {
			defer over.Done()
			if busy {
				spoilPeers(r) // what it has sent before may come, or not
			}
			still.Wait()
			return nil
		}
		var reqs []request
		if busy {
			reqs = make([]request, 64)
		}
		posted := 0
		r.onMsg = func(from transport.Addr, _ []byte) error {
			if from != victim || r.isDown[victim] > 0 {
				return fmt.Errorf("message from rank %d", from)
			}
			return nil
		}
		for i := range reqs {
			if !r.begin(&reqs[i], all, victim, i%4 == 3) {
				break
			}
			posted++
		}
		cut := r.ep.(transport.DisconnectEndpoint).Disconnect
		err := errors.Join(cut(victim), cut(victim))
		still.Done()
		if err != nil {
			return fmt.Errorf("disconnect: %w", err)
		}
		r.onMsg = nil
		if err := r.until("hear that the peer is down", func() bool { return r.isDown[victim] > 0 }); err != nil {
			return err
		}
		if !errors.Is(r.downErr, transport.ErrPeerDown) {
			return fmt.Errorf("PeerDown comes with %w", orNone(r.downErr))
		}
		for i := range reqs[:posted] {
			if err := r.wait(&reqs[i]); err != nil && !errors.Is(err, transport.ErrPeerDown) {
				return fmt.Errorf("operation %d: %w", i, err)
			}
		}
		err = r.again(func() error {
			_, err := r.ep.Send(&transport.Op{Peer: victim, HeaderLen: 8})
			return err
		})
		if !errors.Is(err, transport.ErrPeerDown) {
			return fmt.Errorf("a send after it: got %w, want %w", orNone(err), transport.ErrPeerDown)
		}
		if r.attr.Caps.Has(transport.CapConnect) {
			if err := r.ep.(transport.ConnectEndpoint).Connect(victim); !errors.Is(err, transport.ErrPeerDown) {
				return fmt.Errorf("connect after it: got %w, want %w", orNone(err), transport.ErrPeerDown)
			}
		}
		if cut(r.id) == nil || cut(-1) == nil || cut(transport.Addr(r.n)) == nil {
			return errors.New("disconnect from a peer that there is not")
		}
		over.Wait()
		return nil
	})
	w.each(func(r *rank) error { // the victim talks again, and nobody listens
		if r.id != victim {
			return nil
		}
		spoilPeers(r)
		return nil
	})
	w.rest(func(r *rank) bool { return r.id == victim }, func(r *rank) error {
		if r.isDown[victim] != 1 || r.hasLeft[victim] != 0 {
			return fmt.Errorf("the end of rank %d was reported %d times as down and %d as left", victim, r.isDown[victim], r.hasLeft[victim])
		}
		return nil
	})
	w.ranks[victim].onMsg = func(transport.Addr, []byte) error { return nil }
}

// begin posts a message or a Read with a peer that does not move; false: there is
// no room for more.
func (r *rank) begin(q *request, all []shared, peer transport.Addr, read bool) bool {
	q.op = transport.Op{Peer: peer, HeaderLen: 16, Data: make([]byte, r.attr.EagerLimit)}
	q.op.User, q.busy = q, true
	var err error
	if read && all[peer].key != 0 {
		q.op.HeaderLen, q.op.Data = 0, make([]byte, 1<<20)
		q.op.RemoteKey, q.op.RemoteAddr = all[peer].key, all[peer].at
		if _, err = r.local(q); err == nil { // released by Close
			err = r.rma.Read(&q.op)
		}
	} else {
		var done bool
		if done, err = r.ep.Send(&q.op); done {
			q.busy = false
		}
	}
	if err != nil {
		q.busy = false
	}
	return err == nil
}

// spoilPeers sends to all others what they may never get.
func spoilPeers(r *rank) {
	for p := range r.n - 1 {
		_, _ = r.ep.Send(&transport.Op{Peer: transport.Addr(p), HeaderLen: 8}) // whatever it answers
	}
}
