//go:build linux && !portable

package shm

import (
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// A ring carries messages from one rank, the writer, to another, the reader. Only the
// writer writes lines, and only the reader writes its progress:
//
//	line       lines
//	┌──────────┬────┬────────┬────┬────────┬────┬────────┬────┬─ … ─┬────┬────────┐
//	│ progress │word│ ≤ 56 B │word│ more than 56 B …     │word│     │skip│ unused │
//	└──────────┴────┴────────┴────┴────────┴────┴────────┴────┴─ … ─┴────┴────────┘
//	 lines freed one line     as many lines as it takes   next
//
// Positions count the lines that the writer has passed since the start of the job. A message
// is contiguous, so the reader can use it in place. The writer stores the message's word last.
// The word holds a sequence number: the word's position plus 1, modulo 2^32. The reader waits
// for the word with the sequence number of the position that it reads next. Before that word is
// stored, the reader finds there:
//
//   - 0: no rank has written the memory, or the writer has cleared it, or
//   - the word of a message that began there one round before.
//
// The reader never finds the middle of a longer message there, which could look like a
// word: stale marks the lines that the writer has filled with such data or passed over. The
// writer clears the word of a stale line before it publishes the message that ends just before
// that line. If all messages take one line, no line is stale. If the ring is full, the next
// line begins the oldest message that the reader still uses, and is not stale.
//
// A page of the ring takes memory once a rank has touched it. So the writer returns to the
// ring's beginning before the ring's end: if the next message would pass end (outRing.end),
// half of the lines before end are free again, and the writer has not lacked room since end
// last moved. The writer announces this by a skip, as at the ring's end.
//
//	beginning                end                                      ring's end
//	┌──────────┬─────────────┬─────────────────────────────────────────────────┐
//	│ progress │ used        │ never touched                                   │
//	└──────────┴─────────────┴─────────────────────────────────────────────────┘
//	                       ▲ the last line of the page holds at most a skip
//
// Otherwise the writer continues past end, and end moves to twice as many pages, up to the whole
// ring. So a ring takes about as many pages as its writer has ever been ahead of its reader,
// except a few busy rings, which are used in full (lap). The reader does not know end: it
// follows a skip wherever it finds one. A skip passes over the rest of the positions of its
// round. So every line belongs to one position of each round. The statements about the round
// before, and the count of free lines, rely on that.

// Kinds of messages in a ring.
const (
	kindMessage  = 1 + iota // a message of Send: header and data
	kindSkip                // the next message is at the ring's beginning; length 0
	firstControl = 16       // kinds from here on are control messages of transfers
)

// prefetchLines is the length in lines of the longest message whose lines are prefetched before the
// message is written or read. For longer messages the core's own prefetching suffices.
const prefetchLines = 32

// linesOf returns the number of lines that a message of n bytes takes, with its word.
func linesOf(n int) uint64 { return uint64(n+wordSize+lineSize-1) / lineSize }

// outRing is the writer's side of a ring. Its position is in private memory, where the
// reader cannot change it.
type outRing struct {
	lines []line // nil: not mapped
	bytes []byte // the same memory as lines
	// freed is the word of the progress line: how many lines the reader has freed since the start
	// of the job.
	freed *atomic.Uint64
	// stale has a bit for each line whose first 8 bytes are not a word of the round before. The
	// writer clears such bytes.
	stale []uint64
	mask  uint64 // number of lines - 1; a position & mask is an index of lines
	pos   uint64 // the position of the next line to write; the line's bit in stale is 0
	// The writer may write the lines before the position limit: the reader has freed what was
	// there.
	limit     uint64
	end       uint64 // messages lie before the line with this index; it only grows
	start     uint64 // the position of the first message
	wasFull   bool   // [outRing.reserve] has found no room since end last grew
	laps      int    // how often the writer has reached end, while end was before the ring's end
	wholeLeft *int   // how many more rings of this rank may be used in full because they are busy
	mem       []byte // the whole mapping, with the progress line
}

// init initializes r as an empty ring in mem, a mapping of ringSize bytes.
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

// ringBytes returns the lines of a ring's mapping.
func ringBytes(mem []byte) []byte { return mem[lineSize : len(mem)-pageSize+lineSize] }

// reserve returns the index of the first of k free lines, where the writer's next message begins.
// If there is no room, it returns ErrAgain; if the reader's progress is invalid, a protocol error.
//
// Hot path: no allocation, no system call.
func (r *outRing) reserve(k uint64) (i uint64, err error) {
	i = r.pos & r.mask
	if r.pos+k <= r.limit && i+k <= r.end {
		return i, nil
	}
	return r.reserveSlow(k)
}

// reserveSlow does what [outRing.reserve] does if the lines at the writer's position are not
// known to be free, or lie past end.
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

// minFree returns how many lines must be free at the ring's beginning before the writer returns
// there. With fewer, the writer would soon have to wait although most of the ring is free. If the
// ring is used in full, minFree returns 0.
func (r *outRing) minFree() uint64 {
	if r.end > r.mask {
		return 0
	}
	return r.end / 2
}

// lap counts that the writer has reached end. A ring that becomes busy is used in full from then
// on, if wholeLeft permits: each short lap costs some nanoseconds, which a pair that sends without
// a pause would notice.
func (r *outRing) lap() {
	if r.laps++; r.laps == busyLaps && *r.wholeLeft > 0 {
		*r.wholeLeft--
		r.end, r.wasFull = r.mask+1, false
	}
}

// grow moves end to twice as many pages, or to the ring's end if that is near. Before the ring's
// end, the last line of the last page stays free for a skip.
func (r *outRing) grow() {
	r.wasFull = false
	if r.end = 2*r.end + usedOfPage; r.end+usedOfPage >= r.mask+1 {
		r.end = r.mask + 1
	}
}

// readFreed updates limit from the reader's progress. It returns a protocol error if the
// progress is invalid.
func (r *outRing) readFreed() error {
	freed := r.freed.Load()
	limit := r.start + freed + r.mask + 1
	if freed > r.pos-r.start || limit < r.limit {
		return protocolError(errProgress)
	}
	r.limit = limit
	return nil
}

// publish makes a message of n bytes visible to the reader. The message takes the k lines from
// index i on, which is the index of the writer's position.
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
		// The reader sees this 0 before it sees the word that the Swap below stores.
		storePlain(&r.lines[next].word, 0)
	}
	// Next, the caller loads whether the reader polls the ring and whether the reader sleeps.
	// This needs a full barrier before those loads. In a program built with -race, Store is
	// only a release, so this is a Swap. On amd64 both are XCHG.
	r.lines[i].word.Swap(uint64(word))
}

// setStale sets the bits in stale of the lines with index i up to, but not including, j.
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

// inRing is the reader's side of a ring.
type inRing struct {
	lines []line
	bytes []byte         // the same memory as lines
	freed *atomic.Uint64 // the progress line's word: how many lines the writer may use again
	mask  uint64         // number of lines - 1; a position & mask is an index of lines
	start uint64         // the position of the first message
	// Positions, with published ≤ free ≤ pos.
	pos  uint64 // of the next line to read
	free uint64 // the reader does not use messages before this position any more
	// The writer may use the lines before the position published again. freed holds published -
	// start.
	published uint64
	batch     uint64 // if more than this number of lines are free and not published, they are published
	// idle is the number of polls since the last publishFree that found the ring empty and freed
	// lines not published.
	idle int
	mark uint64 // pos at the last call of retire
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

// next returns the next message, or kind 0 if there is none. If the word is not one that a correct
// writer stores there, next returns an error; but the caller checks the kind. The bytes stay valid
// until publishFree has published their lines as free.
//
// Hot path: no allocation, no system call.
func (r *inRing) next() (b []byte, kind uint8, err error) {
	i := r.pos & r.mask
	w := wire.ShmWord(r.lines[i].word.Load())
	if w.Seq() != uint32(r.pos)+1 || w == 0 {
		if w != 0 && w.Seq() != uint32(r.pos-r.mask) { // the sequence number of one round before
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
	if k > 2 && k <= prefetchLines { // the core itself prefetches the second line
		fetchLines(r.bytes[i+lineSize : i+k*lineSize])
	}
	return r.bytes[i+wordSize : i+wordSize+uint64(n) : i+wordSize+uint64(n)], w.Kind(), nil
}

// skip moves the position to the ring's beginning. next has returned a message of kind kindSkip; b
// is its data, which must be empty.
func (r *inRing) skip(b []byte) error {
	i := (r.pos - 1) & r.mask
	if i == 0 || len(b) != 0 {
		return errWord
	}
	r.pos += r.mask - i
	return nil
}

// waiting reports whether next would return a message or an error.
func (r *inRing) waiting() bool {
	w := wire.ShmWord(r.lines[r.pos&r.mask].word.Load())
	return w != 0 && w.Seq() != uint32(r.pos-r.mask)
}

// A reader that polls publishes the lines that it has freed if they are more than about 1/batchPart
// of the lines that the writer has used, or after publishIdle polls that found the ring empty.
// Without the second rule, a writer without room could wait forever for lines that are freed and
// not published.
const (
	batchPart      = 8
	firstBatchPart = 4 // instead of batchPart, while the writer uses only the first page
	publishIdle    = 64
)

// publishFree publishes to the writer that the lines before the position free are free.
func (r *inRing) publishFree() {
	r.published, r.idle = r.free, 0
	r.batch = max(r.batch, r.free&r.mask/batchPart)
	r.freed.Store(r.free - r.start)
}
