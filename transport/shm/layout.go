package shm

import (
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// What lies where in the memory file that the ranks of a host have in common.
// All follows from their number n, so that nobody has to be told:
//
//	┌────────┬───────┬───────┬────────┬────────┬────────────┬────────────┬───┬────────┬────────┬───┐
//	│ header │ ended │ cards │ claims │ tables │ inbox of 0 │ inbox of 1 │ … │ heap 0 │ heap 1 │ … │
//	└────────┴───────┴───────┴────────┴────────┴────────────┴────────────┴───┴────────┴────────┴───┘
//	 a page   4 pages n pages n pages  n × 1 MiB  n rings: from 0, from 1, …     1 TiB each
//
// The file is sparse: what nobody has touched takes no memory. Everything up to
// the inboxes is mapped at once, and a rank's own inbox; rings to others and
// heaps are when they are needed.
const (
	lineSize   = 64   // what moves between the cores
	pageSize   = 4096 // what the layout counts in; a system's pages may be larger
	claimCount = pageSize / lineSize
	dirSize    = 64 << 10         // of a table: the directory of the rank's heap
	tableSize  = 1 << 20          // the rest of it: the rank's private memory regions
	heapSize   = 1 << 40          // of one rank
	heapAlign  = 2 << 20          // a huge page
	maxLocals  = joinedWords * 64 // ranks of one host

	joinedWords = 64

	wordSize       = 8
	largestMessage = 64<<10 + transport.HeaderSize
)

// layout is the places of all parts, in bytes from the file's beginning.
type layout struct {
	n         int // ranks of the host
	ringLines int // of a ring, a power of two; without its own line
	cards     int64
	claims    int64
	tables    int64
	inboxes   int64
	heaps     int64
	size      int64
}

// newLayout gives the layout for n ranks.
func newLayout(n int) layout {
	l := layout{n: n, ringLines: ringLines(n), cards: wire.ShmEndedAt + 4*wire.ShmEndedMax}
	l.claims = l.cards + int64(n)*pageSize
	l.tables = l.claims + int64(n)*pageSize
	l.inboxes = l.tables + int64(n)*tableSize
	l.heaps = l.inboxes + int64(n)*l.inboxSize()
	l.heaps = (l.heaps + heapAlign - 1) &^ (heapAlign - 1)
	l.size = l.heaps + int64(n)*heapSize
	return l
}

// ringLines is the length of a ring in lines. Few ranks have rings of the size
// that streams best; with many it is the memory that counts, as every rank may
// talk to every other: n rings each.
func ringLines(n int) int {
	switch {
	case n <= 2:
		return 1 << 20 / lineSize
	case n <= 4:
		return 512 << 10 / lineSize
	case n <= 16:
		return 128 << 10 / lineSize
	case n <= 128:
		return 64 << 10 / lineSize
	default:
		return 32 << 10 / lineSize
	}
}

// maxMessage is the longest message of a ring of so many lines: half of it, so
// that there is room for one wherever in the ring the writer stands.
func maxMessage(ringLines int) int {
	return min(largestMessage, ringLines/2*lineSize-wordSize)
}

// ringSize is the bytes of a ring with the page of its reader's progress.
func (l *layout) ringSize() int64 { return pageSize + int64(l.ringLines)*lineSize }

func (l *layout) inboxSize() int64 { return int64(l.n) * l.ringSize() }

// ring is where the ring from one rank to another lies.
func (l *layout) ring(from, to int) int64 {
	return l.inboxes + int64(to)*l.inboxSize() + int64(from)*l.ringSize()
}

// heap is where a rank's part of the shared heap lies.
func (l *layout) heap(rank int) int64 { return l.heaps + int64(rank)*heapSize }

// fileHeader is the file's first page.
type fileHeader struct {
	label atomic.Uint64 // what the ranks agree on, see wire.ShmJob
	_     [lineSize - 8]byte

	sleepers atomic.Int32 // ranks in Wait or about to be; never too small
	_        [lineSize - 4]byte
}

// card is what a rank tells of itself, on a page of the file. Each word that is
// written while others look at it has a line to itself.
type card struct {
	identity [2 * lineSize]byte // a wire.ShmCard; valid from cardPresent on

	state atomic.Uint32 // how far it is: cardAbsent and so on
	_     [lineSize - 4]byte

	alive atomic.Uint32 // the thread that lives as long as the process; see liveness.go
	_     [lineSize - 4]byte

	// sleep is asleep while the rank is in Wait or about to be. Whoever has
	// something for it sets it to awake, and wakes it.
	sleep atomic.Uint32
	_     [lineSize - 4]byte

	// news counts what the rank should look at beside the rings that it polls: by
	// newsJoined new sources in joined, or that one has come that it waits for; by
	// newsState the states of all other cards, a ring given up.
	news atomic.Uint32
	_    [lineSize - 4]byte

	joined  [joinedWords]atomic.Uint64 // a bit for each rank that has ever sent to this one
	refused [joinedWords]atomic.Uint64 // a bit for each rank that this one has given up
	awaited [joinedWords]atomic.Uint64 // a bit for each rank that is to be told when this one has come
}

var (
	_ [2*lineSize - wire.ShmCardSize]byte // the identity has room for it
	_ [wire.ShmEndedAt - pageSize]byte    // the notes are behind the header
	_ [wire.ShmEndedMax - maxLocals]byte  // and there is one for each rank
)

// What news counts by. Should the lower half run over, more is looked at than need be.
const (
	newsJoined = 1
	newsState  = 1 << 16
)

// The states of a card; they only grow.
const (
	cardAbsent  = iota
	cardTaken   // its rank is writing it
	cardPresent // identity is valid
	cardLeft    // the rank has shut down: it sends nothing any more
)

// line is what a ring consists of. A message begins at a line, and fills the
// next ones where it does not fit.
type line struct {
	word atomic.Uint64 // a wire.ShmWord, of the line that a message begins at
	data [lineSize - wordSize]byte
}
