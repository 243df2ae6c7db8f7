//go:build linux && !portable

package shm

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/transport"
)

// Copies that both sides make
//
// Two processors copy one block faster than one, and the owner of memory that a
// peer reads often has nothing to do but wait until it has been read. So who
// begins a larger Read or Write asks the other side to help: it copies the
// same block towards the first, from the back.
//
//	           front, by who began          back, by who helps
//	          ──────────────────►          ◄──────────────────
//	block     ┌────┬────┬────┬────┬────┬────┬────┬────┬────┬──┐
//	pieces    │  0 │  1 │  2 │  3 │    │    │    │ 2  │ 1  │0 │
//	          └────┴────┴────┴────┴────┴────┴────┴────┴────┴──┘
//	           claimed: front = 4   nobody's   claimed: back = 3
//
//	          who began        claim line           who helps
//	Read      pull(source) ──►  turn, done  ◄── push(destination)
//	Write     push(target) ──►              ◄── pull(source)
//
// The claim line is one of who began, and what they share:
//
//	turn  63        32 31     16 15      0     done  63        32 31     16 15      0
//	      ┌───────────┬─────────┬─────────┐          ┌───────────┬─────────┬─────────┐
//	      │ generation│ front   │ back    │          │ generation│ failed  │ back    │
//	      └───────────┴─────────┴─────────┘          └───────────┴─────────┴─────────┘
//
// Pieces are claimed by a compare-and-swap that raises front or back, at first by
// several, to be copied at once, and towards the end by one, so that both sides
// end together (claimSize). Nobody does so once front + back is the number of pieces.
// Hence:
//
//   - the first front pieces and the last back ones have no piece in common,
//     and which they are follows from turn alone, so a request for help that
//     comes twice claims other pieces the second time;
//   - a generation is used for one transfer. It is odd while pieces may be
//     claimed; when who began has no more pieces to claim, or gives up, it
//     raises it, and a helper that comes late finds another generation and
//     lets it be.
//
// The helper raises done when pieces of its own are copied, or have failed,
// after which it claims no more; who began then copies all pieces of the back
// itself. It must not complete the operation before done has reached back: until
// then the helper may be touching its buffer. All that time, from before it
// claims until after it has raised done, the helper has the line's name on its
// desk (mr.go); so who began sees if done will never come: the name is gone, by
// a breach, or the helper's process is.
//
// Nothing that is read from the line says where memory is: both sides compute
// that from numbers of their own, and a word that does not fit them is a breach.

// claim is the line of one transfer.
type claim struct {
	claimed atomic.Uint64
	done    atomic.Uint64
	_       [lineSize - 16]byte
}

// claims is a rank's page of lines for copies.
type claims struct {
	hazards hazards
	probe   probeLine
	lines   [claimLines]claim
}

const (
	claimLines = claimCount - 2

	splitMin  = 48 << 10 // a smaller one is over before help comes
	pieceMin  = 32 << 10
	pieceMax  = 64 << 10 // so that both sides end together
	splitInto = 16       // pieces, where their size permits
	claimPart = 3        // a claim takes one of so many parts of what is left,
	claimMost = 8        // but no more pieces than this

	// A block up to halfMax is cut in two, of which the one that the helper takes
	// is shorter by about what it copies in the time that asking it takes.
	halfMax   = 96 << 10
	headStart = 4 << 10

	maxPieces = 1<<16 - 1
	failedBit = 1 << 16 // of done
	unknown   = -1
)

// pieceSize is what a block of n bytes is cut into.
func pieceSize(n int) int {
	if n <= halfMax {
		return (n/2 + headStart + pageSize - 1) &^ (pageSize - 1)
	}
	return min(max(n/splitInto+pageSize-1, pieceMin)&^(pageSize-1), pieceMax)
}

func pieceCount(n, piece int) int { return (n + piece - 1) / piece }

var errClaims = errors.New("a line of claims that does not fit its transfer")

// claimWord and claimParts make and take apart a claim line's turn.
func claimWord(gen uint32, front, back int) uint64 {
	return uint64(gen)<<32 | uint64(front)<<16 | uint64(back)
}

func claimParts(w uint64) (gen uint32, front, back int) {
	return uint32(w >> 32), int(w >> 16 & maxPieces), int(w & maxPieces)
}

// split is a transfer's part in a claim line of this rank.
type split struct {
	line *claim // nil: nobody helps
	slot uint8
	gen  uint32
	back int // pieces that the helper had claimed when no more could be, or unknown

	polls uint      // polls that found the helper at work since
	dead  time.Time // when its end, or that it was given up, was noticed; zero: neither
}

// lines are this rank's claim lines.
type lines struct {
	gens [claimLines]uint32 // the last used; even: free
	free [claimLines]uint8
	n    int
}

func (l *lines) init() {
	l.n = claimLines
	for i := range l.free {
		l.free[i] = uint8(i)
	}
}

// help is a request that a peer has made.
type help struct {
	p      *peer
	slot   uint8
	write  bool // the peer writes: we pull, else we push
	gen    uint32
	n      int
	key    uint64 // of our region
	addr   uint64 // in it
	buffer uint64 // where the other end is, in the peer's memory
}

const helpSize = 40

func (h *help) put(b *[helpSize]byte) {
	b[0], b[1] = h.slot, 0
	if h.write {
		b[1] = 1
	}
	b[2], b[3] = 0, 0
	binary.LittleEndian.PutUint32(b[4:], h.gen)
	binary.LittleEndian.PutUint64(b[8:], uint64(h.n))
	binary.LittleEndian.PutUint64(b[16:], h.key)
	binary.LittleEndian.PutUint64(b[24:], h.addr)
	binary.LittleEndian.PutUint64(b[32:], h.buffer)
}

func (h *help) parse(b []byte) error {
	if len(b) != helpSize {
		return protocolError(errRequest)
	}
	h.slot, h.write = b[0], b[1] == 1
	h.gen = binary.LittleEndian.Uint32(b[4:])
	n := binary.LittleEndian.Uint64(b[8:])
	h.key = binary.LittleEndian.Uint64(b[16:])
	h.addr = binary.LittleEndian.Uint64(b[24:])
	h.buffer = binary.LittleEndian.Uint64(b[32:])
	if int(h.slot) >= claimLines || b[1] > 1 || b[2]|b[3] != 0 || h.gen%2 == 0 || n < splitMin || n > maxRMASize {
		return protocolError(errRequest)
	}
	h.n = int(n)
	return nil
}

// peerBusy says whether the other side of a transfer is likely to have no time for
// it: it sleeps, and to wake it takes longer than it would be of use; or this is
// a stream; or an exchange, in which all have messages to fetch. For one is taken
// that this rank has any for others, whoever they are.
func (d *domain) peerBusy(t *transfer) bool {
	streams := d.transfers.lastBegun == d.reads && len(t.op.Data) <= streamMax
	return streams || d.transfers.regions.readOnly > 0 || t.p.sleep.Load() == asleep
}

// requestHelp opens a claim line for a transfer and tells the other side. Where it
// cannot, or that side is busy, nobody helps.
func (d *domain) requestHelp(t *transfer) {
	l := &d.transfers.lines
	n := len(t.op.Data)
	if d.peerBusy(t) || n < splitMin || l.n == 0 {
		return
	}
	slot := l.free[l.n-1]
	h := help{
		slot: slot, write: t.write, gen: l.gens[slot] + 1, n: n,
		key: t.op.RemoteKey, addr: t.op.RemoteAddr, buffer: addressOf(t.op.Data),
	}
	line := &d.seg.claims(d.self).lines[slot]
	line.done.Store(uint64(h.gen) << 32)
	line.claimed.Store(claimWord(h.gen, 0, 0))
	l.gens[slot] = h.gen
	l.n--
	t.split = split{line: line, slot: slot, gen: h.gen}
	h.put(&d.transfers.small)
	if d.post(t.p, kindHelp, d.transfers.small[:]) {
		t.setPieces(pieceSize(n))
	} else if d.endClaims(t) == nil {
		d.freeLine(&t.split)
	}
}

// freeLine gives a line back for which endClaims has been called and which the
// helper no longer uses.
func (d *domain) freeLine(s *split) {
	l := &d.transfers.lines
	l.free[l.n] = s.slot
	l.n++
	s.line = nil
}

// claimSize is how many pieces to claim of those that are left.
func claimSize(left int) int { return min((left+claimPart-1)/claimPart, claimMost) }

// claimFront claims the transfer's next pieces and says how many; none: the helper
// has the rest.
func (t *transfer) claimFront() (n int, err error) {
	s := &t.split
	if s.line == nil {
		return min(1, t.pieces-t.front), nil
	}
	for last := 0; ; {
		w := s.line.claimed.Load()
		gen, front, back := claimParts(w)
		if gen != s.gen || front != t.front || back < last || front+back > t.pieces {
			return 0, protocolError(errClaims)
		}
		n = claimSize(t.pieces - front - back)
		if n == 0 || s.line.claimed.CompareAndSwap(w, claimWord(gen, front+n, back)) {
			return n, nil
		}
		last = back + 1 // it changed, so it has grown
	}
}

// endClaims ends the claiming on a transfer's line, for good, and notes how
// much of it is the helper's. An error is a breach by the helper; the line is
// not used again then.
func (d *domain) endClaims(t *transfer) error {
	s := &t.split
	rest := s.gen + 1
	d.transfers.lines.gens[s.slot] = rest
	gen, front, back := claimParts(s.line.claimed.Swap(claimWord(rest, 0, 0)))
	if gen != s.gen || front != t.front || front+back > t.pieces {
		s.back = unknown
		return protocolError(errClaims)
	}
	s.back = back
	return nil
}

// helpName names a claim line in a generation of it.
func helpName(rank int, slot uint8, gen uint32) uint64 {
	return uint64(gen)<<32 | uint64(rank)<<8 | uint64(slot)
}

// helperDone says whether the helper has done with all that it claimed, and
// whether it could copy it.
func (s *split) helperDone() (done, ok bool) {
	w := s.line.done.Load()
	return uint32(w>>32) == s.gen && int(w&maxPieces) == s.back, w&failedBit == 0
}

// helperActive says whether the helper of a transfer may still be at it. It is not
// asked at each poll, so as not to take the helper's line away from it.
func (d *domain) helperActive(x *transfer) bool {
	s := &x.split
	if s.polls++; s.polls%256 != 0 {
		return true
	}
	if d.seg.claims(x.p.local).hazards.helping.Load() != helpName(d.self, s.slot, s.gen) {
		return false
	}
	switch {
	case !x.p.ended() && !x.p.disconnected:
		return true
	case x.p.vanished():
		return false
	case s.dead.IsZero():
		s.dead = time.Now()
	}
	return time.Since(s.dead) < exitGrace
}

// onHelp takes a peer's request. Help is a favour: where too many ask, some get
// none.
func (d *domain) onHelp(p *peer, b []byte) error {
	h := help{p: p}
	if err := h.parse(b); err != nil {
		return err
	}
	if q := &d.transfers.helps; q.n < len(q.list) && d.direct(p) {
		q.list[(q.first+q.n)%len(q.list)] = h
		q.n++
	}
	return nil
}

// helps are the requests that have come, first come first.
type helps struct {
	list  [64]help
	first int
	n     int
}

func (q *helps) drop() {
	q.list[q.first].p = nil
	q.first = (q.first + 1) % len(q.list)
	q.n--
}

// helpOn copies some pieces for a peer, and answers how many bytes that were.
func (d *domain) helpOn() int {
	q := &d.transfers.helps
	for q.n > 0 {
		h := &q.list[q.first]
		if h.p == nil { // down
			q.drop()
			continue
		}
		n, more := d.helpWith(h)
		if !more {
			q.drop()
		}
		if n > 0 {
			return n
		}
	}
	return 0
}

// helpWith claims and copies pieces; more: there may be others.
func (d *domain) helpWith(h *help) (n int, more bool) {
	line := &d.seg.claims(h.p.local).lines[h.slot]
	piece := pieceSize(h.n)
	pieces := pieceCount(h.n, piece)
	at := &d.seg.claims(d.self).hazards.helping
	at.Swap(helpName(h.p.local, h.slot, h.gen)) // a full barrier
	defer at.Store(0)
	w := line.claimed.Load()
	gen, front, back := claimParts(w)
	if gen != h.gen || front+back >= pieces {
		return 0, false
	}
	k := claimSize(pieces - front - back)
	if !line.claimed.CompareAndSwap(w, claimWord(gen, front, back+k)) {
		return 0, true
	}
	off := (pieces - back - k) * piece
	n = min(k*piece, h.n-off)
	err := d.helpCopy(h, off, n)
	// Only we change done in this generation.
	if w := line.done.Load(); uint32(w>>32) == h.gen && int(w&maxPieces) == back {
		w += uint64(k)
		if err != nil {
			w |= failedBit
		}
		line.done.Store(w)
	}
	return n, err == nil
}

// helpCopy copies n bytes at an offset of the block between this rank's region
// and the peer's buffer.
func (d *domain) helpCopy(h *help, off, n int) error {
	want := transport.RemoteRead
	if h.write {
		want = transport.RemoteWrite
	}
	mem, err := d.transfers.regions.find(h.key, h.addr+uint64(off), uint64(n), want)
	switch {
	case err != nil:
		return err
	case h.p.ended(): // its number may be another process's by now
		return h.p.endReason()
	case h.write:
		return h.p.pull(mem, h.buffer+uint64(off))
	default:
		return h.p.push(mem, h.buffer+uint64(off))
	}
}
