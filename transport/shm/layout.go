//go:build linux && !portable

package shm

import (
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// The layout of the memory file that the ranks of a host share. It follows from their
// number n, which every rank knows:
//
//	┌────────┬───────┬────────┬───────┬────────┬────────┬────────────┬────────────┬───┬────────┬────────┬───┐
//	│ header │ ended │ states │ cards │ claims │ tables │ inbox of 0 │ inbox of 1 │ … │ heap 0 │ heap 1 │ … │
//	└────────┴───────┴────────┴───────┴────────┴────────┴────────────┴────────────┴───┴────────┴────────┴───┘
//	 a page   4 pages  n × 8 B n pages n pages  n × 1 MiB  n rings: from 0, from 1, …     1 TiB each
//
// The file is sparse: a page that no rank has touched takes no memory. A rank maps
// everything before the inboxes, and its own inbox, when it joins. It maps the rings to other
// ranks, and parts of heaps, at their first use.
const (
	lineSize   = 64   // a cache line
	pageSize   = 4096 // the unit of the layout; a system's pages may be larger
	claimCount = pageSize / lineSize
	// tableSize is the number of bytes of a rank's table: its directory, then the entries of its
	// private memory regions.
	tableSize = 1 << 20
	dirSize   = 64 << 10 // bytes of the directory of a rank's heap
	heapSize  = 1 << 40  // bytes of the heap of one rank
	// heapAlign is the number of bytes of a huge page. Heaps are aligned to it, and so are
	// extents of at least this size.
	heapAlign = 2 << 20
	maxLocals = bitWords * 64 // largest number of ranks of one host
	stateSize = 8             // bytes of a rankState

	bitWords = 64 // words of a bitmap with a bit for each rank of the host

	wordSize       = 8
	largestMessage = 64<<10 + transport.HeaderSize
)

// layout holds the offsets of all parts, in bytes from the file's beginning.
type layout struct {
	n         int // number of ranks of the host
	ringLines int // number of lines of a ring without the progress line, a power of two
	states    int64
	cards     int64
	claims    int64
	tables    int64
	inboxes   int64
	heaps     int64
	size      int64 // of the file, in bytes
}

// newLayout returns the layout for n ranks.
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

// ringLines returns the length of a ring in lines on a host with n ranks. If n is small,
// rings have the size that streams fastest. If n is large, rings are shorter to save
// memory, because each rank has n of them. A ring takes only the memory of the pages that
// its writer has used; see ring.go.
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

// The part of a ring that its writer uses; see ring.go.
const (
	// usedOfPage is the number of lines of the used pages that hold no messages: the progress
	// line, and one line for a skip.
	usedOfPage = 2
	firstLines = pageSize/lineSize - usedOfPage // number of lines of the first page that hold messages
	// A ring is busy once its writer has reached [outRing.end] busyLaps times.
	busyLaps = 16
	// A rank uses all pages of at most busyRings of its busy rings to peers.
	busyRings = 16
)

// maxMessage returns the length, in bytes of header and data, of the longest message in a ring of
// ringLines lines. Such a message takes at most half of the lines, so an empty ring has room for it
// at any position of the writer.
func maxMessage(ringLines int) int {
	return min(largestMessage, ringLines/2*lineSize-wordSize)
}

// ringSize returns the size of a ring in bytes, in whole pages, including the line of
// its reader's progress.
func (l *layout) ringSize() int64 { return pageSize + int64(l.ringLines)*lineSize }

func (l *layout) inboxSize() int64 { return int64(l.n) * l.ringSize() }

// ring returns the offset of the ring from one local rank to another.
func (l *layout) ring(from, to int) int64 {
	return l.inboxes + int64(to)*l.inboxSize() + int64(from)*l.ringSize()
}

// heap returns the offset of a local rank's part of the shared heap.
func (l *layout) heap(rank int) int64 { return l.heaps + int64(rank)*heapSize }

// fileHeader lies at the start of the file's first page.
type fileHeader struct {
	// label identifies the job and the ranks that share the file; see [wire.ShmJob]. It is 0
	// until a rank opens the file.
	label atomic.Uint64
	_     [lineSize - 8]byte

	// sleepers is the number of ranks that are in Wait or about to enter it. For a moment it may
	// be greater.
	sleepers atomic.Int32
	_        [lineSize - 4]byte
}

// rankState holds whether a rank has joined, has left or has died. Its words change a few
// times in a job, and every rank reads those of all others from time to time. So the
// states of all ranks lie side by side: to read those of a thousand ranks touches two pages.
type rankState struct {
	state atomic.Uint32 // cardAbsent, cardTaken, cardPresent or cardLeft
	// alive is 0 until the rank joins. After that the rank lives, unless the bit ownerDied is
	// set; see liveness.go.
	alive atomic.Uint32
}

// card is the page on which a rank publishes its identity and receives signals from
// other ranks. Each word that changes while other ranks read it has its own cache line.
type card struct {
	// identity is an encoded [wire.ShmCard]. It is valid once [rankState.state] is cardPresent or
	// cardLeft.
	identity [2 * lineSize]byte

	// sleep is asleep while the rank is in Wait or about to enter it. A rank that has
	// something for this rank sets sleep to awake and wakes this rank.
	sleep atomic.Uint32
	_     [lineSize - 4]byte

	// events counts events that this rank should look for beside the rings that it polls.
	// A sender adds eventRing after it has set its bit in polled, or when it has joined and
	// this rank waits for that. A rank adds eventState after it has set its bit in changed.
	events atomic.Uint32
	_      [lineSize - 4]byte

	// polled has a bit for each rank whose ring this rank polls. The sender sets its
	// bit; this rank clears the bit when it takes the ring off its list (domain.active):
	//
	//	sender                               this rank
	//	publishes a message                  clears the bit
	//	loads the bit                        looks at the ring again
	//	if the bit is clear: sets it, adds   if a message is there: sets the bit,
	//	to events and wakes this rank        the ring stays on the list
	//
	// Invariant: if a ring that is not on the list holds a message of a Send that
	// has returned, its bit is set, and events has increased after that. Each side
	// stores before it loads, and both stores are full barriers, so at least one
	// side sees what the other has stored. If a sender ends before it has set its
	// bit, checkPeer finds its message.
	polled [bitWords]atomic.Uint64
	// refused has a bit for each rank that refuses this one, after Disconnect or a protocol
	// error.
	refused [bitWords]atomic.Uint64
	// waiters has a bit for each rank to signal when this one has joined.
	waiters [bitWords]atomic.Uint64
	// changed has a bit for each rank to check: its state has changed, or it refuses this one.
	changed [bitWords]atomic.Uint64
}

var (
	_ [2*lineSize - wire.ShmCardSize]byte // identity has room for a wire.ShmCard
	// The words in which the launcher notes the ends of processes lie after the header.
	_ [wire.ShmEndedAt - pageSize]byte
	_ [wire.ShmEndedMax - maxLocals]byte // there is such a word for each rank
)

// Increments of card.events. The lower 16 bits count eventRing, and the upper 16 bits eventState.
// If the lower half overflows, the card's owner takes that for an eventState, which does no harm.
const (
	eventRing  = 1
	eventState = 1 << 16
)

// The states of a rank (rankState.state). A state only grows.
const (
	cardAbsent  = iota
	cardTaken   // the rank is writing its card
	cardPresent // identity is valid
	cardLeft    // the rank has called Shutdown: it sends nothing any more
)

// line is the unit of a ring. A message begins at the start of a line and takes as many
// lines as it needs.
type line struct {
	word atomic.Uint64 // a wire.ShmWord in the first line of a message; data in the others
	data [lineSize - wordSize]byte
}
