//go:build linux && !portable

package shm

import (
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// A ring carries messages from one rank to one other, of which only the first
// writes its lines, and only the second its progress:
//
//	line       lines
//	┌──────────┬────┬────────┬────┬────────┬────┬────────┬────┬─ … ─┬────┬────────┐
//	│ progress │word│ ≤ 56 B │word│ more than 56 B …     │word│     │skip│ unused │
//	└──────────┴────┴────────┴────┴────────┴────┴────────┴────┴─ … ─┴────┴────────┘
//	 lines freed one line     as many lines as it takes   next
//
// Positions count lines from the beginning of the job. A message lies in one
// piece, so that its reader can look at it where it is. Its word is stored last
// and holds its position as sequence number; the reader waits for the word of
// its own position and finds in that line, until then, one of these:
//
//   - 0: memory that nobody has written, or that the writer has cleared,
//   - the word that opened a message there one round before.
//
// It never finds the middle of a longer message, which might look like a word:
// the writer knows which lines it has filled so or passed over (stale), and clears
// the word of such a line before it publishes the message in front of it. Short
// messages among themselves never need this: each moves one line. Where the ring is
// full the next line opens the oldest message that the reader has, and is not stale.
//
// A page of the ring takes memory once a rank has touched it. So the writer goes back to
// the ring's beginning before the ring's end: if the message would go past end, and half of
// the lines before end are free again. The writer announces this by the same skip.
//
//	beginning                end                                      ring's end
//	┌──────────┬─────────────┬─────────────────────────────────────────────────┐
//	│ progress │ used        │ never touched                                   │
//	└──────────┴─────────────┴─────────────────────────────────────────────────┘
//	                       ▲ a skip at the latest: the first page ends behind it
//
// If less than half of these lines is free, the writer goes on, and end moves to twice as
// many pages, up to the whole ring. So a ring takes as many pages as its writer was once
// ahead of its reader. The reader takes a skip wherever it finds one, and does not
// know end. A skip passes over the rest of the positions of its round, so what
// is said above of one round before holds for every line, and the count of free lines
// covers the lines that a next round writes.

// kinds of what goes through a ring.
const (
	kindMessage  = 1 + iota // a user's header and data
	kindSkip                // the ring goes on at its beginning; of no length
	firstControl = 16       // from here on: transfers
)

// aheadLines are the lines of the longest message that is worth asking for as a
// whole before it is copied; longer copies are found out by the core itself.
const aheadLines = 32

// linesOf is how many lines n bytes take behind their word.
func linesOf(n int) uint64 { return uint64(n+wordSize+lineSize-1) / lineSize }

// outRing is the writer's side. Its own fields, not the shared ones, say where
// it stands.
type outRing struct {
	lines     []line // nil: not mapped
	bytes     []byte // the same
	freed     *atomic.Uint64
	stale     []uint64 // bits: the line's first bytes are no word of the round before
	mask      uint64
	pos       uint64 // the next line to write; never stale
	limit     uint64 // up to here lines are free, as far as we know
	end       uint64 // messages lie before this line of the ring; it only grows
	start     uint64
	wasFull   bool   // there was no room since end has grown
	laps      int    // how often the writer has come to end
	wholeLeft *int   // how many of this rank's rings may yet be used as a whole because they are busy
	mem       []byte // the mapping
}

// init makes mem, a ring's mapping, an empty ring.
func (r *outRing) init(mem []byte, start uint64, wholeLeft *int) {
	b := ringBytes(mem)
	lines := view[line](b)
	*r = outRing{
		lines: lines, bytes: b, freed: at[atomic.Uint64](mem, 0),
		stale: make([]uint64, (len(lines)+63)/64),
		mask:  uint64(len(lines) - 1), start: start, pos: start, limit: start + uint64(len(lines)),
		end: uint64(min(firstLines, len(lines))), wholeLeft: wholeLeft, mem: mem,
	}
}

// ringBytes is the lines of a ring's mapping.
func ringBytes(mem []byte) []byte { return mem[lineSize : len(mem)-pageSize+lineSize] }

// reserve gives the place for k lines: ErrAgain without room, or what the
// reader's progress is wrong in.
//
// Hot path: no allocation, no system call.
func (r *outRing) reserve(k uint64) (i uint64, err error) {
	i = r.pos & r.mask
	if r.pos+k <= r.limit && i+k <= r.end {
		return i, nil
	}
	return r.reserveSlow(k)
}

// reserveSlow looks for room here, at the ring's beginning and behind end.
func (r *outRing) reserveSlow(k uint64) (uint64, error) {
	if err := r.readFreed(); err != nil {
		return 0, err
	}
	i, size := r.pos&r.mask, r.mask+1
	if r.pos+k > r.limit {
		r.wasFull = r.end < size
		return 0, transport.ErrAgain
	}
	if i+k > r.end && r.end < size {
		r.lap()
	}
	for i+k > r.end {
		skip := size - i
		switch {
		case !r.wasFull && r.pos+skip+max(k, r.minFree()) <= r.limit:
			r.publish(i, skip, 0, kindSkip)
			return 0, nil
		case r.end == size:
			return 0, transport.ErrAgain
		}
		r.grow()
	}
	return i, nil
}

// minFree is how many lines must be free at the beginning of a ring that is not used as a
// whole: with fewer the writer would soon have to wait, though most of the ring is free.
func (r *outRing) minFree() uint64 {
	if r.end > r.mask {
		return 0
	}
	return r.end / 2
}

// lap counts that the writer has come to end. A busy ring is used as a whole from then
// on: short laps cost a pair that sends without a pause some nanoseconds each.
func (r *outRing) lap() {
	if r.laps++; r.laps == busyLaps && *r.wholeLeft > 0 {
		*r.wholeLeft--
		r.end, r.wasFull = r.mask+1, false
	}
}

// grow moves end to twice as many pages. The last line before a page's end stays for
// a skip.
func (r *outRing) grow() {
	r.wasFull = false
	if r.end = 2*r.end + usedOfPage; r.end+usedOfPage >= r.mask+1 {
		r.end = r.mask + 1
	}
}

// readFreed finds out how far the reader is.
func (r *outRing) readFreed() error {
	freed := r.freed.Load()
	limit := r.start + freed + r.mask + 1
	if freed > r.pos-r.start || limit < r.limit {
		return protocolError(errProgress)
	}
	r.limit = limit
	return nil
}

// publish shows the reader n bytes that have been written to k lines.
//
// Hot path: no allocation, no system call.
func (r *outRing) publish(i, k uint64, n int, kind uint8) {
	word := wire.NewShmWord(uint32(r.pos)+1, n, kind)
	if k > 1 {
		r.setStale(i+1, i+k)
	}
	r.pos += k
	if next := r.pos & r.mask; r.stale[next>>6]&(1<<(next&63)) != 0 {
		r.stale[next>>6] &^= 1 << (next & 63)
		storePlain(&r.lines[next].word, 0) // seen before what follows is
	}
	// The writer looks next whether the reader polls the ring, and whether it
	// sleeps. A Store would be the barrier that this takes, except in a program
	// built with -race, where it is no more than a release. On amd64 both are XCHG.
	r.lines[i].word.Swap(uint64(word))
}

// setStale sets the bits from i to before j.
func (r *outRing) setStale(i, j uint64) {
	for ; i < j && i&63 != 0; i++ {
		r.stale[i>>6] |= 1 << (i & 63)
	}
	for ; i+64 <= j; i += 64 {
		r.stale[i>>6] = 1<<64 - 1
	}
	for ; i < j; i++ {
		r.stale[i>>6] |= 1 << (i & 63)
	}
}

// inRing is the reader's side.
type inRing struct {
	lines []line
	bytes []byte
	freed *atomic.Uint64
	mask  uint64
	start uint64
	// shown ≤ free ≤ pos.
	pos       uint64 // the next line to read
	free      uint64 // nobody looks at what is before
	published uint64 // the writer has been told that what is before is free
	batch     uint64 // lines that are shown together; see publishFree
	idle      int    // polls that found nothing since
	mark      uint64 // pos when retire was called last
}

func (r *inRing) init(mem []byte, start uint64) {
	b := ringBytes(mem)
	lines := view[line](b)
	*r = inRing{
		lines: lines, bytes: b, freed: at[atomic.Uint64](mem, 0),
		mask: uint64(len(lines) - 1), start: start, pos: start, free: start, published: start,
		batch: uint64(min(firstLines/firstBatchPart, len(lines)/batchPart)),
	}
}

// next takes the next message: kind 0 where there is none. What is not as a
// correct writer leaves it is an error. The bytes stay until their lines are
// shown to be free.
//
// Hot path: no allocation, no system call.
func (r *inRing) next() (b []byte, kind uint8, err error) {
	i := r.pos & r.mask
	w := wire.ShmWord(r.lines[i].word.Load())
	if w.Seq() != uint32(r.pos)+1 || w == 0 {
		if w != 0 && w.Seq() != uint32(r.pos-r.mask) { // one round before
			return nil, 0, errWord
		}
		return nil, 0, nil
	}
	n := w.Length()
	k := linesOf(n)
	if i+k > r.mask+1 {
		return nil, 0, errLength
	}
	if w.Kind() == 0 {
		return nil, 0, errWord
	}
	r.pos += k
	i *= lineSize
	if k > 2 && k <= aheadLines { // the core's own guesses see to the second line
		fetchLines(r.bytes[i+lineSize : i+k*lineSize])
	}
	return r.bytes[i+wordSize : i+wordSize+uint64(n) : i+wordSize+uint64(n)], w.Kind(), nil
}

// skip goes on at the ring's beginning, from the position behind a kindSkip.
func (r *inRing) skip(b []byte) error {
	i := (r.pos - 1) & r.mask
	if i == 0 || len(b) != 0 {
		return errWord
	}
	r.pos += r.mask - i
	return nil
}

// waiting says whether there may be something to read.
func (r *inRing) waiting() bool {
	w := wire.ShmWord(r.lines[r.pos&r.mask].word.Load())
	return w != 0 && w.Seq() != uint32(r.pos-r.mask)
}

// A reader publishes the lines that it has freed if they are a part of the lines that the
// writer has used (see batchPart), or after publishIdle polls that found nothing. So a writer
// that has no room does not wait for a batch that never comes.
const (
	batchPart      = 8
	firstBatchPart = 4 // of the first page
	publishIdle    = 64
)

// publishFree tells the writer what is free.
func (r *inRing) publishFree() {
	r.published, r.idle = r.free, 0
	r.batch = max(r.batch, r.free&r.mask/batchPart)
	r.freed.Store(r.free - r.start)
}
