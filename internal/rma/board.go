package rma

import (
	"math"
	"sync/atomic"
)

// board is what the ranks of one host note about a rank's part, in memory that
// all of them map:
//
//	0          64                                 128              128+8n
//	┌──────────┬──────────────────────────────────┬─────────────────┐
//	│ latch    │ tickets, waiting, sharing, owned │ n stands        │
//	└──────────┴──────────────────────────────────┴─────────────────┘
//
// The latch is 0, or 1 + the rank that has it. Who has it may change what is
// behind it: the lock, and elements that the processor cannot change in one
// step. It is held for the time of some stores, or of a chunk of elements.
//
// A stand says how a rank stands to the lock of the part:
//
//	  ┌──────────── ask, at once ───────────┐
//	  │                                     ▼
//	free ──── ask ────► asks ── grant ────► shares or owns ── drop ──► free
//	  ▲                   │
//	  └─────── drop ──────┘       left: the rank uses the window no more
//
// Stands are the truth. Each changes by one store, and the counts follow from
// them; so where a rank dies with the latch, who takes it over counts anew.
//
// All of it may be spoilt by a rank gone mad. That spoils locks, and nothing
// else: no word of it is an address or a length.
type board struct {
	*boardHead
	stands []atomic.Uint64 // by rank: ticket << standBits | stand
}

type boardHead struct {
	latch atomic.Uint64
	_     [56]byte

	tickets uint64 // given to those who had to wait, ever
	waiting uint64 // stands that ask
	sharing uint64 // that share
	owned   uint64 // that own
	_       [32]byte
}

// boardHeadSize is where the stands begin.
const boardHeadSize = 128

// boardAlign is what a board begins at a multiple of: a cache line.
const boardAlign = 64

// boardSize is the bytes of a board of n ranks.
func boardSize(n int) int { return boardHeadSize + 8*n }

// The stands.
const (
	standFree uint64 = iota
	standAsksShared
	standAsksAlone
	standShares
	standOwns
	standLeft

	standBits = 3
	standMask = 1<<standBits - 1
)

// stand is a rank's.
func (b board) stand(rank int) uint64 { return b.stands[rank].Load() & standMask }

// holds says whether a rank has the lock. It needs no latch.
func (b board) holds(rank int) bool {
	s := b.stand(rank)
	return s == standShares || s == standOwns
}

// try takes the latch if it is free.
func (b board) try(rank int) bool { return b.latch.CompareAndSwap(0, uint64(rank)+1) }

// open gives the latch back.
func (b board) open() { b.latch.Store(0) }

// What follows is for who has the latch.

// ask asks for the lock, which is the rank's at once where nobody waits and it
// can be had.
func (b board) ask(rank int, exclusive bool) {
	switch {
	case b.waiting == 0 && b.owned == 0 && !exclusive:
		b.stands[rank].Store(standShares)
		b.sharing++
	case b.waiting == 0 && b.owned == 0 && b.sharing == 0:
		b.stands[rank].Store(standOwns)
		b.owned++
	default:
		s := standAsksShared
		if exclusive {
			s = standAsksAlone
		}
		b.stands[rank].Store(b.tickets<<standBits | s)
		b.tickets++
		b.waiting++
	}
}

// drop gives the lock back, or the question for it up.
func (b board) drop(rank int) {
	switch b.stand(rank) {
	case standAsksShared, standAsksAlone:
		b.waiting--
	case standShares:
		b.sharing--
	case standOwns:
		b.owned--
	default:
		return
	}
	b.stands[rank].Store(standFree)
}

// grant gives the lock to who is first, as long as it can be had, and appends
// to ranks who has got it.
func (b board) grant(ranks []int) []int {
	if b.waiting == 0 || b.owned != 0 {
		return ranks
	}
	// Those who would share it go together, up to the first who would not.
	alone, first := -1, uint64(math.MaxUint64)
	for r := range b.stands {
		if s := b.stands[r].Load(); s&standMask == standAsksAlone && s>>standBits < first {
			alone, first = r, s>>standBits
		}
	}
	for r := range b.stands {
		if s := b.stands[r].Load(); s&standMask == standAsksShared && s>>standBits < first {
			b.stands[r].Store(standShares)
			b.waiting--
			b.sharing++
			ranks = append(ranks, r)
		}
	}
	if alone >= 0 && b.sharing == 0 {
		b.stands[alone].Store(standOwns)
		b.waiting--
		b.owned++
		ranks = append(ranks, alone)
	}
	return ranks
}

// repair takes back what ranks had that are gone, and counts anew.
func (b board) repair(gone func(rank int) bool) {
	b.waiting, b.sharing, b.owned = 0, 0, 0
	for r := range b.stands {
		s := b.stand(r)
		if s != standFree && s != standLeft && gone(r) {
			b.stands[r].Store(standFree)
			s = standFree
		}
		switch s {
		case standAsksShared, standAsksAlone:
			b.waiting++
		case standShares:
			b.sharing++
		case standOwns:
			b.owned++
		}
	}
}
