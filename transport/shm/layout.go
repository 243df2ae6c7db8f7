//go:build linux && !portable

package shm

import (
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// What lies where in the memory file that the ranks of a host have in common.
// All follows from their number n, which every rank knows:
//
//	┌────────┬───────┬────────┬───────┬────────┬────────┬────────────┬────────────┬───┬────────┬────────┬───┐
//	│ header │ ended │ states │ cards │ claims │ tables │ inbox of 0 │ inbox of 1 │ … │ heap 0 │ heap 1 │ … │
//	└────────┴───────┴────────┴───────┴────────┴────────┴────────────┴────────────┴───┴────────┴────────┴───┘
//	 a page   4 pages  n × 8 B n pages n pages  n × 1 MiB  n rings: from 0, from 1, …     1 TiB each
//
// The file is sparse: what no rank has touched takes no memory. Everything up to
// the inboxes is mapped at once, and a rank's own inbox; rings to others and
// heaps are when they are needed.
const (
	lineSize   = 64   // what moves between the cores
	pageSize   = 4096 // what the layout counts in; a system's pages may be larger
	claimCount = pageSize / lineSize
	dirSize    = 64 << 10      // of a table: the directory of the rank's heap
	tableSize  = 1 << 20       // the rest of it: the rank's private memory regions
	heapSize   = 1 << 40       // of one rank
	heapAlign  = 2 << 20       // a huge page
	maxLocals  = bitWords * 64 // ranks of one host
	stateSize  = 8             // of a rankState

	bitWords = 64 // of a bitmap with a bit for each rank of the host

	wordSize       = 8
	largestMessage = 64<<10 + transport.HeaderSize
)

// layout is the places of all parts, in bytes from the file's beginning.
type layout struct {
	n         int // ranks of the host
	ringLines int // of a ring, a power of two; without its own line
	states    int64
	cards     int64
	claims    int64
	tables    int64
	inboxes   int64
	heaps     int64
	size      int64
}

// newLayout gives the layout for n ranks.
func newLayout(n int) layout {
	l := layout{n: n, ringLines: ringLines(n), states: wire.ShmEndedAt + 4*wire.ShmEndedMax}
	l.cards = l.states + (int64(n)*stateSize+pageSize-1)&^(pageSize-1)
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
// talk to every other: n rings each. A ring takes the memory of the pages that
// its writer uses; see outRing.
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

// The used part of a ring; see outRing.
const (
	usedOfPage = 2                              // lines of the used pages that messages do not take: one of progress, one for a skip
	firstLines = pageSize/lineSize - usedOfPage // lines that messages take of the first page
	busyLaps   = 16                             // a ring whose writer has come to end so often is busy
	busyRings  = 16                             // a rank uses at most so many busy rings as a whole
)

// maxMessage is the longest message of a ring of so many lines: half of it, so
// that there is room for one wherever in the ring the writer stands.
func maxMessage(ringLines int) int {
	return min(largestMessage, ringLines/2*lineSize-wordSize)
}

// ringSize is the bytes of a ring with the line of its reader's progress, in whole
// pages.
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

// rankState says whether a rank has joined, has left or has died. Its words change once
// or twice in a job, and every rank looks at those of all others now and then. So the
// states of all ranks lie side by side: a look at a thousand ranks needs two pages.
type rankState struct {
	state atomic.Uint32 // cardAbsent and so on
	alive atomic.Uint32 // the thread that lives as long as the process, or ownerDied; see liveness.go
}

// card is what a rank publishes about itself, on a page of the file. Each word that is
// written while others look at it has a line to itself.
type card struct {
	identity [2 * lineSize]byte // a wire.ShmCard; valid from cardPresent on

	// sleep is asleep while the rank is in Wait or about to be. Whoever has
	// something for it sets it to awake, and wakes it.
	sleep atomic.Uint32
	_     [lineSize - 4]byte

	// news counts what the rank should look at beside the rings that it polls: by
	// eventRing rings to poll, in polled, or that one has come that it waits for; by
	// eventState ranks that have changed their state or given this one up, in told.
	events atomic.Uint32
	_      [lineSize - 4]byte

	// polled has a bit for each rank whose ring this rank polls. The sender sets its
	// bit, this rank clears it when it takes the ring off its list:
	//
	//	sender                               this rank
	//	publishes a message                  clears the bit
	//	loads the bit                        looks at the ring once more
	//	if it is clear: sets it, then        if a message is there: sets the bit,
	//	counts news up and wakes this rank   the ring stays on the list
	//
	// Invariant: if a ring that is not on the list holds a message of a Send that
	// has returned, its bit is set, and news has been counted up since. Each side
	// stores before it loads, and both are full barriers, so at least one of them
	// sees what the other has stored. A sender that ends before it has set its bit
	// leaves its message to checkPeer.
	polled  [bitWords]atomic.Uint64
	refused [bitWords]atomic.Uint64 // a bit for each rank that has given this one up
	waiters [bitWords]atomic.Uint64 // a bit for each rank to notify when this one has come
	changed [bitWords]atomic.Uint64 // a bit for each rank to look at: its state has changed, or it has given this one up
}

var (
	_ [2*lineSize - wire.ShmCardSize]byte // the identity has room for it
	_ [wire.ShmEndedAt - pageSize]byte    // the notes are behind the header
	_ [wire.ShmEndedMax - maxLocals]byte  // and there is one for each rank
)

// What news counts by. Should the lower half run over, more is looked at than need be.
const (
	eventRing  = 1
	eventState = 1 << 16
)

// The states of a rank; they only grow.
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
