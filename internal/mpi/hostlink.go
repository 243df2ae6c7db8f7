package mpi

import (
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/arena"
)

var _ coll.HostLink = (*link)(nil)

// Host implements coll.HostLink.
func (l *link) Host() (*coll.Host, int) {
	if l.arena == nil {
		return nil, coll.Unpicked
	}
	return l.arena.Host, l.algorithm
}

// Sig implements coll.HostLink.
func (l *link) Sig() uint16 { return l.env.Sig }

// Await implements coll.HostLink.
func (l *link) Await(rank int, word *atomic.Uint64, least uint64) error {
	peer := l.arena.Members[rank]
	if l.unrecorded {
		l.recordCall()
	}
	l.noteWait(peer)
	return l.s.coll.Await(l.ctx, peer, word, least)
}

// Wake implements coll.HostLink.
//
// Hot path: no allocation, and no system call unless a rank sleeps.
func (l *link) Wake() { l.s.wake(l.arena) }

// wake wakes the other ranks of the arena a that sleep in Await, so that they load their words
// again.
func (s *state) wake(a *arena.Arena) { s.coll.WakeAll(a.Members) }

// Mismatch implements coll.HostLink.
func (l *link) Mismatch(rank int) error {
	return &engine.MismatchError{Rank: l.arena.Members[rank]}
}

// Miscount implements coll.HostLink.
func (l *link) Miscount(rank, have, want int) error {
	return l.wrongSent(l.arena.Members[rank], have, want)
}
