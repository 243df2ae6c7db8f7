package coll

import (
	"fmt"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/bytecopy"
)

// Collectives within a host
//
// Ranks that share memory have an arena each, which it alone writes and all of
// them map. What one has to say it says to all at once, by a store; what
// another has said is read where it lies.
//
//	arena of a rank
//	┌ arrival lines ─────────┬ put ┬ got ┬ bay 0 ────────┬ bay 1 ────────┐
//	│ ring of 8, by call     │     │     │ calls 0, 2, … │ calls 1, 3, … │
//	└────────────────────────┴─────┴─────┴───────────────┴───────────────┘
//
//	arrival  call << 16 | trace, and up to 56 bytes of data. Every rank writes
//	         one in every call. The trace is of the signatures of this call and
//	         of all before it, so that one in which ranks differed, and in which
//	         nobody waited for another, is noticed in a later one.
//	put      call << 24 | n: the first n pieces of the call lie in the bay
//	got      call << 24 | n: this rank has done with the first n pieces of others
//
// All ranks do the same calls in the same order, one at a time, and number them
// alike. Who has arrived at call k has done with what others wrote in call k-1
// and before. So a rank may write
//
//   - the arrival line of call k once all have arrived at call k-7, and
//   - its bay of call k once all have arrived at call k-1.
//
// It mostly knows that they have from having waited for all in call k-1, and
// looks only where it has not (settle). Nobody waits in vain: all ranks reach
// call k-1 without anything that this one does in call k.
//
// What is longer than a bay goes through it in pieces; then put and got say how
// far writer and readers are. A piece that needs no room of another is written
// ahead, so that ranks that share a core are switched as rarely as can be.
//
// Nothing that a rank reads from another's arena is taken for a length or a
// place: those come from the call's own arguments.

// HostLink is a Link whose ranks, or some of them, share memory.
type HostLink interface {
	Link
	// Host is the arena that this call may use, alone until it ends, and what
	// Pick answered for it, or Unpicked; nil: the call is to be made of messages.
	Host() (h *Host, picked int)
	// Sig is the call's signature, never 0.
	Sig() uint16
	// Await blocks until a word that a rank of the host sets has reached least,
	// as sequence numbers go. The rank is that within the host.
	Await(rank int, word *atomic.Uint64, least uint64) error
	// Wake rouses the host's other ranks that sleep in Await, after a store.
	Wake()
	// Mismatch is the error of a call that a rank of the host, by its number
	// there, made as another one or with other arguments, or did so before.
	Mismatch(rank int) error
	// Miscount is the error of a rank of the host that has written have bytes
	// where this one wants others.
	Miscount(rank, have, want int) error
}

// Host is a rank's view of the ranks that share memory with it, as the calls of
// one communicator use it. It is used by one call at a time.
type Host struct {
	Shape
	Rank int // this one's among those of its host
	Size int // of them

	peers    []peer // by rank within the host
	bay      int    // bytes
	unit     int    // the largest element that goes through the bays of all hosts
	most     int    // bytes that do so in no more than maxSteps steps
	reps     []int  // scratch: by host, who speaks for it
	speakers speakers

	call  uint64 // number of the call under way or of the last one
	known uint64 // all ranks of the host are known to have arrived at this call
	sig   uint16 // of the call under way
	trace uint16 // of it and all before it; see traceFactor
	lazy  bool   // the call's link wakes the others when it ends, if …
	owes  bool   // … this rank has arrived and not woken them since
	link  HostLink
	tmp   []byte // of the call under way; nil: not asked for
	slots int    // pieces of the call under way that a bay holds
}

// peer is the arena of a rank of the host.
type peer struct {
	*control
	bays []byte
}

// ringLines is the number of arrival lines: calls by which a rank that waits for
// nobody may be ahead of the others.
const ringLines = 8

// How many pieces of a vector a bay holds: many where one writes and others read,
// so that they soon begin, few where all do the same and each waits for all.
const (
	manyPieces = 16
	fewPieces  = 4
)

// The parts of put and got.
const (
	stepBits = 24
	maxSteps = 1<<stepBits - 1
)

// BayBytes is the size of a bay where size ranks share memory and each is to
// have about total bytes of arena, of many ranks less: they share what fullRanks
// have, but each has a half. There is room for a line per pair and piece.
func BayBytes(total, size int) int {
	const unit, fullRanks = 64 * manyPieces, 8
	total = max(total/2, total/max(size, fullRanks)*fullRanks)
	return (max(total/2, 2*64*size) + unit - 1) / unit * unit
}

// ArenaBytes is the size of the arena of each of size ranks.
func ArenaBytes(total, size int) int { return controlBytes + 2*BayBytes(total, size) + pageBytes }

// The arenas of ranks begin at different places of a page. A processor takes a
// load for one of what it is about to store where the last twelve bits of the
// addresses are the same, and lets it wait: that of another rank's line for the
// store of the own one, which waits for the line. Nor do lines of many ranks
// then fall into the same few places of a cache.
const (
	pageBytes    = 4096
	staggerBytes = 5 * 64 // 64 ranks in turn begin at 64 places
)

// stagger cuts off what lies before the arena of a rank of the host.
func stagger(arena []byte, rank int) []byte { return arena[rank*staggerBytes%pageBytes:] }

// NewHost makes the view of a rank whose number in the communicator is rank.
// arenas are those of its host's ranks, in the order of their ranks, zeroed,
// aligned to a line, and ArenaBytes(total, their number) long.
func NewHost(shape Shape, rank int, arenas [][]byte, total int) (*Host, error) {
	h := &Host{
		Shape: shape, Rank: -1, Size: len(arenas), bay: BayBytes(total, len(arenas)),
		unit: BayBytes(total, shape.largest) / max(2*shape.largest, manyPieces), reps: make([]int, shape.Hosts()),
	}
	own := shape.of[rank]
	n := 0
	for r, of := range shape.of {
		if of == own {
			if r == rank {
				h.Rank = n
			}
			n++
		}
	}
	if n != len(arenas) {
		return nil, fmt.Errorf("%d arenas for %d ranks of a host", len(arenas), n)
	}
	for r, a := range arenas {
		if len(a) < ArenaBytes(total, n) {
			return nil, fmt.Errorf("an arena of %d bytes, not %d", len(a), ArenaBytes(total, n))
		}
		a = stagger(a, r)
		h.peers = append(h.peers, peer{controlOf(a), a[controlBytes : controlBytes+2*h.bay]})
	}
	h.most = maxSteps / 4 * h.unit // slices take two steps, and a step may be half a unit
	return h, nil
}

// enter begins a call within the host.
func enter(l Link) *Host {
	hl := l.(HostLink)
	h, _ := hl.Host()
	h.Enter(hl, hl.Sig())
	h.lazy = false
	return h
}

// Enter begins a call for which SharedUpTo has said that it is made in shared
// memory, and that is made by Barrier, Bcast, Reduce, Allreduce, Allgather or
// Alltoall: those of the package without their checks and their choice. When it
// has ended, Owes says whether the link is to Wake the others, after a store by
// sync/atomic: so a rank that arrives pays for one store of that kind, not two.
//
// Hot path: no allocation.
func (h *Host) Enter(l HostLink, sig uint16) {
	h.link, h.sig, h.tmp = l, sig, nil
	h.lazy = true
	h.next()
}

// Mark is equal on all ranks of the communicator that have made the same calls.
func (h *Host) Mark() uint64 { return h.arrival() }

// Rest forgets the last call's link. Another link may Enter the next call.
func (h *Host) Rest() { h.link, h.tmp, h.speakers = nil, nil, speakers{} }

// Owes says whether ranks that sleep are still to be woken, and that they will be.
func (h *Host) Owes() bool {
	owes := h.owes
	h.owes = false
	return owes
}

// next begins the next step of a call that takes several: to the host each is a
// call of its own.
func (h *Host) next() {
	h.call++
	h.trace = h.trace*traceFactor + h.sig
	if h.call&(1<<32-1) == 0 {
		// Calls that need no put or got leave them behind; in 2^39 calls they
		// would come to lie ahead.
		h.own().put.word.Store(h.call << stepBits)
		h.own().got.word.Store(h.call << stepBits)
	}
}

// traceFactor is odd, so that traces that differ stay different as long as the
// calls are the same again.
const traceFactor = 0x9e37

// arrival is the word of the arrival line of the call under way.
func (h *Host) arrival() uint64 { return h.call<<16 | uint64(h.trace) }

func (h *Host) own() *peer { return &h.peers[h.Rank] }

// after is the i-th rank after this one, which begins with its neighbour so
// that not all look at the same.
func (h *Host) after(i int) int {
	if r := h.Rank + i; r < h.Size {
		return r
	}
	return h.Rank + i - h.Size
}

// await waits for a word of a rank of the host.
//
// Hot path: no allocation, no lock and no system call where it is there soon.
func (h *Host) await(rank int, word *atomic.Uint64, least uint64) error {
	for range glances {
		if int64(word.Load()-least) >= 0 {
			return nil
		}
	}
	if h.owes {
		h.owes = false
		h.own().lines[h.call%ringLines].word.Add(0) // others see the arrival before this rank sees who sleeps
		h.link.Wake()
	}
	return h.link.Await(rank, word, least)
}

// glances is how often a rank looks for another before it wakes who sleeps: for
// about as long as a line takes to come.
const glances = 64

// settle waits until all have arrived at a call before this one.
func (h *Host) settle(call uint64) error {
	for i := 1; i < h.Size; i++ {
		r := h.after(i)
		word := &h.peers[r].lines[call%ringLines].word
		if err := h.await(r, word, call<<16); err != nil {
			return err
		}
		if v := word.Load(); v>>16 == call && v != h.own().lines[call%ringLines].word.Load() {
			return h.link.Mismatch(r)
		}
	}
	h.known = call
	return nil
}

// line is this rank's arrival line, to write data to.
func (h *Host) line() (*line, error) {
	if int64(h.known-(h.call-ringLines+1)) < 0 {
		// Further than need be, so that the next calls need not look.
		if err := h.settle(h.call - ringLines/2); err != nil {
			return nil, err
		}
	}
	return &h.own().lines[h.call%ringLines], nil
}

// arrive says that this rank has come to the call, and that what of it stands
// in its line and its bay may be read.
func (h *Host) arrive() error {
	l, err := h.line()
	if err != nil {
		return err
	}
	h.arrived(l)
	return nil
}

// arrived stores the word of the arrival line.
func (h *Host) arrived(l *line) {
	if h.owes = h.lazy; h.lazy {
		storeRelease(&l.word, h.arrival())
		return
	}
	h.say(&l.word, h.arrival())
}

// say stores a word that others may wait for.
func (h *Host) say(word *atomic.Uint64, v uint64) {
	// Wake looks next whether a rank sleeps, so the word needs a full barrier behind it. A
	// Store to shared memory has one, except in a program built with -race, where later
	// loads can pass it. On amd64 Store and Swap are both XCHG.
	word.Swap(v)
	h.link.Wake()
}

// step is what put and got are n steps into the call.
func (h *Host) step(n int) uint64 { return h.call<<stepBits | uint64(n) }

// meet waits until a rank has arrived, and sees to it that it made the same call.
func (h *Host) meet(rank int) error {
	word, want := &h.peers[rank].lines[h.call%ringLines].word, h.arrival()
	if word.Load() == want {
		return nil
	}
	if err := h.await(rank, word, h.call<<16); err != nil {
		return err
	}
	if word.Load() != want {
		return h.link.Mismatch(rank)
	}
	return nil
}

// meetAll waits for all.
func (h *Host) meetAll() error {
	for i := 1; i < h.Size; i++ {
		if err := h.meet(h.after(i)); err != nil {
			return err
		}
	}
	h.known = h.call
	return nil
}

// Differs tells a rank of the host that made other calls than this one and was
// not noticed, since nobody had to wait for it; ok: there is one. All ranks have
// made all their calls. Of one that has given its arena back nothing is known:
// it reads as zero.
func (h *Host) Differs() (rank int, ok bool) {
	for r := range h.peers {
		for i := range h.own().lines {
			v := h.peers[r].lines[i].word.Load()
			if v != 0 && v != h.own().lines[i].word.Load() {
				return r, true
			}
		}
	}
	return 0, false
}

// ownBay is this rank's bay of the call, to write to.
func (h *Host) ownBay() ([]byte, error) {
	if int64(h.known-(h.call-1)) < 0 {
		if err := h.settle(h.call - 1); err != nil {
			return nil, err
		}
	}
	return h.bayOf(h.Rank), nil
}

// bayOf is a rank's bay of the call.
func (h *Host) bayOf(rank int) []byte {
	at := int(h.call%2) * h.bay
	return h.peers[rank].bays[at : at+h.bay : at+h.bay]
}

// offer puts what is not longer than a bay where all can read it, and arrives.
// Readers find it by offered.
func (h *Host) offer(data []byte) error {
	l, err := h.line()
	if err != nil {
		return err
	}
	if len(data) <= inlineBytes {
		copy(l.data[:], data)
	} else {
		bay, err := h.ownBay()
		if err != nil {
			return err
		}
		bytecopy.Share(bay, data)
	}
	h.arrived(l)
	return nil
}

// offered is the n bytes that a rank, which has been met, has offered.
func (h *Host) offered(rank, n int) []byte {
	if n <= inlineBytes {
		return h.peers[rank].lines[h.call%ringLines].data[:n]
	}
	return h.bayOf(rank)[:n]
}

// pieces divides the bays for a call; it answers how many bytes of whole
// elements go through one at a time.
func (h *Host) pieces(slots, elem int) int {
	h.slots = slots
	return h.bay / slots / elem * elem
}

// place is where the i-th piece lies in a bay.
func (h *Host) place(i int) int { return i % h.slots * (h.bay / h.slots) }

// pieceAt is the i-th piece in a bay.
func (h *Host) pieceAt(bay []byte, i, n int) []byte {
	at := h.place(i)
	return bay[at : at+n]
}

// count is the number of pieces of n bytes.
func count(n, piece int) int { return (n + piece - 1) / piece }

// cutOut is piece i of buf.
func cutOut(buf []byte, i, piece int) []byte { return buf[i*piece : min((i+1)*piece, len(buf))] }

// room waits until a reader, or everybody, has done with the piece whose place
// piece i takes.
func (h *Host) room(i, reader int) error {
	switch {
	case i < h.slots:
		return nil
	case reader != everybody:
		return h.await(reader, &h.peers[reader].got.word, h.step(i-h.slots+1))
	}
	for x := 1; x < h.Size; x++ {
		if err := h.room(i, h.after(x)); err != nil {
			return err
		}
	}
	return nil
}

// everybody stands for all ranks of the host.
const everybody = -1

// done says that this rank has done with piece i of n, where anybody waits for it.
func (h *Host) done(i, n int) {
	if i+h.slots < n {
		h.say(&h.own().got.word, h.step(i+1))
	}
}

// scratch is memory for n bytes until the call ends.
func (h *Host) scratch(n int) []byte {
	if len(h.tmp) < n {
		h.tmp = h.link.Scratch(n)
	}
	return h.tmp[:n]
}
