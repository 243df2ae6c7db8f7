package mpi

import (
	"context"
	"errors"
	"math/bits"
	"sync"
	"time"

	"github.com/weft-hpc/weft/internal/mpi/calls"
)

// stallDetector detects ranks that would wait for each other forever because they called different
// collectives, or one collective with different arguments. If a message of such a call arrives, its
// fingerprint shows the difference. But if each of two ranks passes the other one as the root of a
// Bcast, neither sends anything. And if counts differ, ranks may run different algorithms, so that
// a message goes to a rank that does not wait for it. So a rank that waits for a long time sends a
// query to the rank that it waits for:
//
//	rank 0 waits in its 7th collective for rank 3
//	   │
//	   └── query ──► rank 3: its own 7th collective was a different call; see disagree.go
//
// A rank that is only late does not reply, and the waiting rank repeats the query at growing
// intervals. If ranks wait in a circle, two neighbors in this circle have made different calls,
// because an algorithm never makes ranks that make the same call wait in a circle. Queries travel
// in the point-to-point context of Finalize's communicator, which carries no other messages.
//
// The goroutine of the stall detector also does other work that is needed at intervals: see
// stallLoop.
type stallDetector struct {
	interval time.Duration // between two rounds of stallLoop
	// stopStallDetector closes stop to end stallLoop. nil: the world has one rank, and stallLoop
	// does not run.
	stop chan struct{}
	done chan struct{} // stallLoop closes it when it ends

	mu     sync.Mutex
	states map[uint64]*state // open communicators, by id; guarded by mu
}

// stallInterval is the time after which a rank handles queries again, and the shortest time for
// which a collective waits before the rank sends a query. With many ranks on a host the interval is
// longer, so that all of them together do not use more of its processors.
const (
	stallInterval    = 500 * time.Millisecond
	ranksPerInterval = 64 // for every 64 ranks on the host, the interval is longer by stallInterval
)

func (d *stallDetector) add(s *state) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.states == nil {
		d.states = make(map[uint64]*state)
	}
	d.states[s.id] = s
}

func (d *stallDetector) remove(s *state) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.states, s.id)
}

// find returns the open communicator with the id, or nil.
func (d *stallDetector) find(id uint64) *state {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.states[id]
}

// startStallDetector starts the stall detector, if the job has several ranks. local is the number
// of ranks on this host.
func (j *job) startStallDetector(local int) {
	if j.world.Size == 1 {
		return
	}
	j.stall.interval = stallInterval * time.Duration(1+local/ranksPerInterval)
	j.stall.stop, j.stall.done = make(chan struct{}), make(chan struct{})
	go j.stallLoop() // Finalize ends it and waits for it; it also ends if the engine closes
}

// stopStallDetector ends the goroutine of the stall detector and waits for it.
func (j *job) stopStallDetector() {
	if j.stall.stop != nil {
		close(j.stall.stop)
		<-j.stall.done
	}
}

// stallLoop does in each interval what a rank must do even if no call of the program does it: it
// handles queries, answers messages of agreements and asks for missing votes, connects with ranks
// that calls wait for (so that these calls return if such a rank has ended), revokes dependent
// communicators, and sends queries.
func (j *job) stallLoop() {
	defer close(j.stall.done)
	tick := time.NewTicker(j.stall.interval)
	defer tick.Stop()
	for {
		select {
		case <-j.stall.stop:
			return
		case <-tick.C:
		}
		if !j.handleQueries() {
			return
		}
		j.agreements.Answer()
		j.agreements.Remind()
		j.eng.QueryPeers()
		j.revokeDependents()
		j.queryStalled()
	}
}

// handleQueries handles the queries that have arrived from other ranks. It returns false if the
// engine is closed.
func (j *job) handleQueries() bool {
	for {
		m, st, err := j.final.p2p.Iattend() // unlike Improbe, Iattend returns no error if a rank has failed
		if m.IsZero() || err != nil {
			return !errors.Is(err, ErrClosed)
		}
		// If the message is longer than MaxQuery, Recv truncates it and returns an error, or Parse
		// returns false for this length.
		q := make(calls.Query, min(st.Bytes, calls.MaxQuery+1))
		if _, err := m.Recv(context.Background(), q); err == nil {
			j.handleQuery(q, st.Source)
		}
	}
}

// queryStalled sends a query for each collective that has waited for the same rank for a long
// time.
func (j *job) queryStalled() {
	j.stall.mu.Lock()
	defer j.stall.mu.Unlock()
	for _, s := range j.stall.states {
		free := s.tryAcquireSlot() // if not nil, a link that no call uses, although its lastWait may be set
		s.linkMu.Lock()
		for _, l := range s.all {
			if l != free {
				s.checkProgress(l)
			}
		}
		s.linkMu.Unlock()
		if free != nil {
			s.releaseSlot(free)
		}
	}
}

// checkProgress counts the intervals in which l has waited for the same rank in the same
// collective, and sends a query to that rank after 1, 2, 4, … intervals. The caller holds linkMu.
func (s *state) checkProgress(l *link) {
	wait := l.lastWait.Load()
	if wait == 0 || wait != l.checkedWait {
		l.checkedWait, l.stalledTicks = wait, 0
		return
	}
	l.stalledTicks++
	seq, peer := uint32(wait>>32), int(uint32(wait))-1
	if bits.OnesCount(l.stalledTicks) != 1 || peer == s.rank {
		return
	}
	if q := s.called.Query(s.id, seq); q != nil {
		s.sendQuery(peer, q)
	}
}
