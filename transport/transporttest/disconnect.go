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

// testDisconnect has all other ranks disconnect from the last rank, the victim. The victim makes no
// progress meanwhile, as if its host were cut off. If busy is set, the other ranks have unfinished
// operations with the victim; otherwise they have never exchanged anything with it. The operations
// must end, and each of the other ranks must report PeerDown once. Then the victim sends again, and
// no rank may receive anything from it.
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
	// disconnected is done when all other ranks have disconnected, and sent is done when the
	// victim has sent.
	var disconnected, sent sync.WaitGroup
	disconnected.Add(n - 1)
	sent.Add(1)
	w.each(func(r *rank) error {
		if r.id == victim {
			defer sent.Done()
			if busy {
				sendToAll(r) // the other ranks may receive these messages before they disconnect
			}
			disconnected.Wait()
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
		disconnected.Done()
		if err != nil {
			return fmt.Errorf("disconnect: %w", err)
		}
		r.onMsg = nil
		if err := r.until("wait for PeerDown", func() bool { return r.isDown[victim] > 0 }); err != nil {
			return err
		}
		if !errors.Is(r.downErr, transport.ErrPeerDown) {
			return fmt.Errorf("PeerDown has error %w, want %w", orNone(r.downErr), transport.ErrPeerDown)
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
			return fmt.Errorf("send after disconnect: got %w, want %w", orNone(err), transport.ErrPeerDown)
		}
		if r.attr.Caps.Has(transport.CapConnect) {
			if err := r.ep.(transport.ConnectEndpoint).Connect(victim); !errors.Is(err, transport.ErrPeerDown) {
				return fmt.Errorf("connect after disconnect: got %w, want %w", orNone(err), transport.ErrPeerDown)
			}
		}
		if cut(r.id) == nil || cut(-1) == nil || cut(transport.Addr(r.n)) == nil {
			return errors.New("disconnect from a peer that does not exist: no error")
		}
		sent.Wait()
		return nil
	})
	// The victim sends again. w.survivors fails the test if a rank receives that.
	w.each(func(r *rank) error {
		if r.id != victim {
			return nil
		}
		sendToAll(r)
		return nil
	})
	w.survivors(func(r *rank) bool { return r.id == victim }, func(r *rank) error {
		if r.isDown[victim] != 1 || r.hasLeft[victim] != 0 {
			return fmt.Errorf("got %d PeerDown and %d PeerLeft for rank %d, want 1 and 0", r.isDown[victim], r.hasLeft[victim], victim)
		}
		return nil
	})
	w.ranks[victim].onMsg = func(transport.Addr, []byte) error { return nil }
}

// begin posts q without waiting for it: a message to a peer that makes no progress, or, if read is
// set and RMA reaches it, a Read from the peer's region in all. If the endpoint returns an error,
// begin returns false.
func (r *rank) begin(q *request, all []shared, peer transport.Addr, read bool) bool {
	q.op = transport.Op{Peer: peer, HeaderLen: 16, Data: make([]byte, r.attr.EagerLimit)}
	q.op.User, q.busy = q, true
	var err error
	if read && r.reaches(peer, all[peer].key) {
		q.op.HeaderLen, q.op.Data = 0, make([]byte, 1<<20)
		q.op.RemoteKey, q.op.RemoteAddr = all[peer].key, all[peer].at
		if _, err = r.local(q); err == nil { // Close of the domain releases the region
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

// sendToAll has r, which is the last rank, send a message to every other rank. The others may have
// disconnected from r.
func sendToAll(r *rank) {
	for p := range r.n - 1 {
		// The error does not matter: the peer may have disconnected.
		_, _ = r.ep.Send(&transport.Op{Peer: transport.Addr(p), HeaderLen: 8})
	}
}
