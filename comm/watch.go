package comm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"time"

	"github.com/weft-hpc/weft/internal/engine"
)

// The watch finds ranks that would wait for each other for ever because they
// called different collectives, or one with different arguments. Where their
// messages meet, signatures tell; but two ranks that both take the other for
// the root send nothing at all, and with different counts they may run
// algorithms whose messages go to other ranks. So who waits for long asks:
//
//	rank 0 waits in its 7th collective for rank 3
//	   │
//	   └── question: communicator, 7, signature ──► rank 3 looks up what it called
//	                                                  │ as its 7th: something else
//	 everybody ◄────────────── revoke ────────────────┘
//
// A rank that is merely late answers nothing, and is asked again, ever more
// rarely. Of ranks that wait in a circle two neighbours differ, or the
// algorithm would not have them wait. Questions travel in the space of
// Finalize's communicator, where nobody else sends such messages.
//
// At the same time the engine sees to it that whoever waits for long, in these
// and in all other calls, hears of the end of those that it waits for.
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

// signedCalls is how many collectives of a communicator are remembered.
const signedCalls = 64

// question is what a rank that waits asks: is your collective like mine?
//
//	0        8       12      14
//	│ id     │ seq   │ sig   │
type question [14]byte

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
		j.council.answer()
		j.eng.Inquire()
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
		var q question
		if _, err := m.Recv(context.Background(), q[:]); err == nil && st.Bytes == len(q) {
			j.compare(&q, st.Source)
		}
	}
}

// compare revokes the communicator that a world rank asks about where its call
// was not this rank's.
func (j *job) compare(q *question, asker int) {
	id, seq, sig := getUint64(q[:]), binary.LittleEndian.Uint32(q[8:]), binary.LittleEndian.Uint16(q[12:])
	j.watch.mu.Lock()
	s := j.watch.states[id]
	j.watch.mu.Unlock()
	if s == nil || seq == 0 {
		return
	}
	own := s.signed[seq%signedCalls].Load()
	if own>>16 != uint64(seq) || uint16(own) == sig {
		return
	}
	for r, world := range s.group.ranks {
		if world == asker {
			s.revoke(fmt.Errorf("%w: rank %d waits for rank %d", ErrMismatch, r, s.rank))
		}
	}
}

// ask sends a question for each collective that has waited for the same rank
// for long.
func (j *job) ask() {
	j.watch.mu.Lock()
	defer j.watch.mu.Unlock()
	for _, s := range j.watch.states {
		resting := s.takeTurn() // whose waits are over, whatever it says
		s.linkMu.Lock()
		for _, l := range s.all {
			if l != resting {
				s.askFor(l)
			}
		}
		s.linkMu.Unlock()
		if resting != nil {
			s.freeTurn(resting)
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
	signed := s.signed[seq%signedCalls].Load()
	if bits.OnesCount(l.ticks) != 1 || signed>>16 != uint64(seq) || peer == s.rank {
		return
	}
	var q question
	putUint64(q[:], s.id)
	binary.LittleEndian.PutUint32(q[8:], seq)
	binary.LittleEndian.PutUint16(q[12:], uint16(signed))
	f := s.job.final
	f.keepBsend(f.p2p.Isend(q[:], engine.Env{Peer: s.group.ranks[peer]}))
}
