package mpi

import (
	"context"
	"errors"
	"math/bits"
	"sync"
	"time"
)

// The watch detects ranks that would wait for each other for ever because they called
// different collectives, or one collective with different arguments. If a message arrives,
// its fingerprint shows the difference. But two ranks that both take the other one for the
// root send nothing, and with different counts ranks may run algorithms whose messages go
// to other ranks. So a rank that waits for a long time asks:
//
//	rank 0 waits in its 7th collective for rank 3
//	   │
//	   └── question ──► rank 3 has called something else as its 7th: see disagree.go
//
// A rank that is only late sends no answer, and the waiting rank asks it again at growing
// intervals. If ranks wait in a circle, two neighbors have made different calls, because
// otherwise the algorithm would not make them wait. Questions travel in the message space
// of Finalize's communicator, which has no other such messages.
//
// At the same time the engine makes sure that a call that waits for a long time, a
// collective or any other, learns of the end of the ranks that it waits for.
type watch struct {
	interval time.Duration
	stop     chan struct{} // nil: nothing to watch in a world of one
	done     chan struct{}

	mu     sync.Mutex
	states map[uint64]*state // guarded by mu; open communicators, by id
}

// watchInterval is how often a rank looks for questions, and how long a
// collective waits at least before it asks one. Where there are many ranks on a host it
// is longer, so that all of them together do not take more of it.
const (
	watchInterval = 500 * time.Millisecond
	watchRanks    = 64 // of a host, that it is for
)

func (w *watch) add(s *state) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.states == nil {
		w.states = make(map[uint64]*state)
	}
	w.states[s.id] = s
}

func (w *watch) remove(s *state) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.states, s.id)
}

// startWatch starts the watch of a job of several ranks.
func (j *job) startWatch(local int) {
	if j.world.Size == 1 {
		return
	}
	j.watch.interval = watchInterval * time.Duration(1+local/watchRanks)
	j.watch.stop, j.watch.done = make(chan struct{}), make(chan struct{})
	go j.watchLoop() // ended and waited for by Finalize; ends by itself with the engine
}

// stopWatch ends the watch and waits until it has ended.
func (j *job) stopWatch() {
	if j.watch.stop != nil {
		close(j.watch.stop)
		<-j.watch.done
	}
}

func (j *job) watchLoop() {
	defer close(j.watch.done)
	tick := time.NewTicker(j.watch.interval)
	defer tick.Stop()
	for {
		select {
		case <-j.watch.stop:
			return
		case <-tick.C:
		}
		if !j.answer() {
			return
		}
		j.agreements.Answer()
		j.agreements.Remind()
		j.eng.QueryPeers()
		j.endOthers()
		j.ask()
	}
}

// answer looks at the questions that have come; false: the engine has ended.
func (j *job) answer() bool {
	for {
		m, st, err := j.final.p2p.Iattend() // whoever has failed
		if m.IsZero() || err != nil {
			return !errors.Is(err, ErrClosed)
		}
		q := make(question, min(st.Bytes, maxQuestion+1)) // a longer message is not a question
		if _, err := m.Recv(context.Background(), q); err == nil {
			j.compare(q, st.Source)
		}
	}
}

// ask sends a question for each collective that has waited for the same rank
// for long.
func (j *job) ask() {
	j.watch.mu.Lock()
	defer j.watch.mu.Unlock()
	for _, s := range j.watch.states {
		resting := s.tryAcquireSlot() // whose waits are over, whatever it says
		s.linkMu.Lock()
		for _, l := range s.all {
			if l != resting {
				s.askFor(l)
			}
		}
		s.linkMu.Unlock()
		if resting != nil {
			s.releaseSlot(resting)
		}
	}
}

// askFor notes how long l has waited, and asks after 1, 2, 4, … intervals.
func (s *state) askFor(l *link) {
	waits := l.waits.Load()
	if waits == 0 || waits != l.watched {
		l.watched, l.ticks = waits, 0
		return
	}
	l.ticks++
	seq, peer := uint32(waits>>32), int(uint32(waits))-1
	if bits.OnesCount(l.ticks) != 1 || peer == s.rank {
		return
	}
	if q := s.question(seq); len(q) > 8 {
		s.ask(peer, q)
	}
}
