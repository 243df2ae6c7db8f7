// Package colltest runs collective algorithms with goroutines as ranks. With the right [Options]
// its [Link] shows the worst permitted behaviour of a real one: a send blocks until it is received,
// transfers end late and in any order, and calls fail. The package detects deadlocks and reports
// what each rank waits for.
package colltest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
)

// Errors that ranks of a World get.
var (
	ErrDeadlock = errors.New("deadlock")
	ErrRevoked  = errors.New("revoked because of another rank")
	ErrInjected = errors.New("injected failure")
	ErrLength   = errors.New("the lengths of message and buffer differ")
	ErrLeft     = errors.New("transfers left pending")
	ErrUnread   = errors.New("message never received")
)

// Network determines when a matched transfer ends.
type Network int

// The networks.
const (
	// Immediate ends a transfer as soon as it is matched.
	Immediate Network = iota
	// Delayed ends transfers later, in random order, on another goroutine.
	Delayed
	// Scheduled runs one rank at a time. A seeded scheduler chooses the rank that runs and ends
	// transfers, so equal seeds give equal runs.
	Scheduled
)

// Options describe a World.
type Options struct {
	Eager    bool // a send copies its message and ends; otherwise it ends when it is received
	Network  Network
	Seed     uint64
	FailRank int // the rank on which a call to a method of Link fails
	FailCall int // the number of that call, counted from 1 over the methods that can fail; 0: no call fails

	Hosts       []int // by rank: ranks with equal numbers share memory; nil: no ranks share memory
	SharedBytes int   // approximate size of each rank's arena; see coll.ArenaBytes
}

// World is a set of ranks in one process.
type World struct {
	opt Options

	mu      sync.Mutex
	links   []*Link
	pairs   []pair      // by source*size + dest
	flight  []*transfer // receives that are matched and have not ended
	rng     *rand.Rand
	revoked error       // what transfers return since Revoke or a deadlock; nil before
	running int         // the rank that runs, if Scheduled; -1: none has run yet
	arrived sync.Cond   // signals deliver that flight or closing has changed
	closing bool        // all ranks have ended, so deliver must end
	free    []*transfer // transfers for reuse
}

// pair holds the unmatched sends and receives from one rank to another, in the order of the calls.
type pair struct{ sends, recvs []*transfer }

// transfer is one side of a message, a send or a receive.
type transfer struct {
	owner *Link
	peer  int  // the other rank
	send  bool // false: a receive
	buf   []byte
	from  *transfer // of a receive that is matched and has not ended: its send
	done  bool
	err   error // valid if done
}

// New returns a World of size ranks.
func New(size int, opt Options) *World {
	w := &World{opt: opt, pairs: make([]pair, size*size), rng: rand.New(rand.NewPCG(opt.Seed, 1))}
	w.arrived.L = &w.mu
	for r := range size {
		l := &Link{w: w, rank: r}
		l.wake.L = &w.mu
		w.links = append(w.links, l)
	}
	if opt.Hosts != nil {
		w.share()
	}
	return w
}

// Link returns the Link of a rank.
func (w *World) Link(rank int) *Link { return w.links[rank] }

// Run calls f for every rank on a goroutine of its own, waits for all of them, and returns their
// errors, by rank. If f fails on a rank, that rank revokes the world and ends its transfers, as
// package internal/mpi does. If f returns nil but leaves transfers pending, the rank's error is
// ErrLeft. Unless a rank has failed, the world can be used again.
func (w *World) Run(f func(l *Link) error) []error {
	errs := make([]error, len(w.links))
	var ranks, network sync.WaitGroup
	w.closing, w.running = false, -1
	for _, l := range w.links {
		l.finished, l.waiting = false, nil
	}
	if w.opt.Network == Delayed {
		network.Go(w.deliver) // ends when closing is set, below
	}
	for i, l := range w.links {
		ranks.Go(func() { // ends with f; Run waits
			l.begin()
			if errs[i] = f(l); errs[i] != nil {
				w.Revoke(errs[i])
				_ = l.drain() // errs[i] already has the first error
			} else if l.open > 0 {
				errs[i] = ErrLeft
				w.Revoke(errs[i])
				_ = l.drain()
			}
			l.Reset()
			l.end()
		})
	}
	if w.opt.Network == Scheduled {
		w.mu.Lock()
		w.schedule()
		w.mu.Unlock()
	}
	ranks.Wait()
	w.mu.Lock()
	w.closing = true
	w.arrived.Signal()
	w.mu.Unlock()
	network.Wait()
	for i := range w.pairs {
		if n := len(w.pairs[i].sends); n > 0 && w.revoked == nil {
			dest := i % len(w.links)
			errs[dest] = fmt.Errorf("%w: %d from rank %d", ErrUnread, n, i/len(w.links))
		}
	}
	return errs
}

// Revoke ends all pending and all later transfers with ErrRevoked.
func (w *World) Revoke(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.revokeLocked(fmt.Errorf("%w: %w", ErrRevoked, cause))
}

func (w *World) revokeLocked(err error) {
	if w.revoked != nil {
		return
	}
	w.revoked = err
	for _, l := range w.links {
		for _, t := range l.tickets {
			if t != nil && !t.done {
				t.done, t.err = true, err
			}
		}
		l.wake.Signal()
	}
	w.flight = w.flight[:0]
}

// post matches a transfer with its other side, or queues it.
func (w *World) post(t *transfer) {
	if w.revoked != nil {
		t.done, t.err = true, w.revoked
		return
	}
	size := len(w.links)
	if t.send {
		if w.opt.Eager {
			t.buf, t.done = append([]byte(nil), t.buf...), true
		}
		p := &w.pairs[t.owner.rank*size+t.peer]
		if r := pop(&p.recvs); r != nil {
			w.match(t, r)
		} else {
			p.sends = append(p.sends, t)
		}
		return
	}
	p := &w.pairs[t.peer*size+t.owner.rank]
	if s := pop(&p.sends); s != nil {
		w.match(s, t)
	} else {
		p.recvs = append(p.recvs, t)
	}
}

func pop(q *[]*transfer) *transfer {
	if len(*q) == 0 {
		return nil
	}
	t := (*q)[0]
	*q = (*q)[:copy(*q, (*q)[1:])]
	return t
}

func (w *World) match(s, r *transfer) {
	r.from = s
	if w.opt.Network == Immediate {
		w.complete(r)
		return
	}
	w.flight = append(w.flight, r)
	w.arrived.Signal()
}

func (w *World) complete(r *transfer) {
	s := r.from
	if len(s.buf) != len(r.buf) {
		r.err = fmt.Errorf("%w: %d bytes from rank %d, %d at rank %d", ErrLength, len(s.buf), s.owner.rank, len(r.buf), r.owner.rank)
	} else {
		copy(r.buf, s.buf)
	}
	r.done, r.from = true, nil
	r.owner.wake.Signal()
	if !s.done {
		s.done = true
		s.owner.wake.Signal()
	}
}

func (w *World) completeOne() {
	i := w.rng.IntN(len(w.flight))
	r := w.flight[i]
	w.flight[i] = w.flight[len(w.flight)-1]
	w.flight = w.flight[:len(w.flight)-1]
	w.complete(r)
}

// deliver is the goroutine of a Delayed network.
func (w *World) deliver() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for len(w.flight) == 0 && !w.closing {
			w.arrived.Wait()
		}
		if w.closing {
			return
		}
		for range w.rng.IntN(3) {
			w.mu.Unlock()
			runtime.Gosched()
			w.mu.Lock()
		}
		if len(w.flight) > 0 {
			w.completeOne()
		}
	}
}

// detectDeadlock revokes the world if no rank can run, no transfer is in flight, and not all ranks
// have ended.
func (w *World) detectDeadlock() {
	if len(w.flight) > 0 || w.revoked != nil {
		return
	}
	all := true
	for _, l := range w.links {
		if l.ready() {
			return
		}
		all = all && l.finished
	}
	if all {
		return
	}
	var b strings.Builder
	for _, l := range w.links {
		switch {
		case l.finished:
			fmt.Fprintf(&b, "; rank %d has ended", l.rank)
		case l.word != nil:
			fmt.Fprintf(&b, "; rank %d waits for a word of rank %d of its host", l.rank, l.source)
		case l.waiting.send:
			fmt.Fprintf(&b, "; rank %d sends %d bytes to %d", l.rank, len(l.waiting.buf), l.waiting.peer)
		default:
			fmt.Fprintf(&b, "; rank %d receives %d bytes from %d", l.rank, len(l.waiting.buf), l.waiting.peer)
		}
	}
	w.revokeLocked(fmt.Errorf("%w: %s", ErrDeadlock, b.String()[2:]))
}

// schedule chooses at random among the ranks that can run and the transfers in flight. While it
// chooses a transfer, it ends that transfer and chooses again; then it lets the chosen rank run.
func (w *World) schedule() {
	for {
		w.detectDeadlock()
		n := 0
		for _, l := range w.links {
			if l.ready() {
				n++
			}
		}
		if n+len(w.flight) == 0 {
			return // all have ended
		}
		k := w.rng.IntN(n + len(w.flight))
		if k >= n {
			w.completeOne()
			continue
		}
		for _, l := range w.links {
			if l.ready() {
				if k == 0 {
					w.running = l.rank
					l.wake.Signal()
					return
				}
				k--
			}
		}
	}
}
