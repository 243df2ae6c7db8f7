//go:build linux && !portable

package shm

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/transport"
)

// Copies by both sides
//
// Two processors copy one block faster than one. A rank whose memory a peer reads often has
// nothing else to do than to wait for the end of the read. So the rank that begins a larger
// Read or Write, the initiator, asks the other rank, the helper, to copy a part of the same
// block, from the back towards the front.
//
//	           front, by the initiator       back, by the helper
//	          ──────────────────►          ◄──────────────────
//	block     ┌────┬────┬────┬────┬────┬────┬────┬────┬────┬──┐
//	pieces    │  0 │  1 │  2 │  3 │    │    │    │ 2  │ 1  │0 │
//	          └────┴────┴────┴────┴────┴────┴────┴────┴────┴──┘
//	           claimed: front = 4   unclaimed   claimed: back = 3
//
//	          initiator         claim line          helper
//	Read      pull(source) ──► claimed, done ◄── push(destination)
//	Write     push(target) ──►               ◄── pull(source)
//
// For a transfer, both ranks use one of the initiator's claim lines, a cache line of the segment
// with two words:
//
//	claimed  63        32 31     16 15      0     done  63        32 31     16 15      0
//	         ┌───────────┬─────────┬─────────┐          ┌───────────┬─────────┬─────────┐
//	         │ generation│ front   │ back    │          │ generation│ failed  │ back    │
//	         └───────────┴─────────┴─────────┘          └───────────┴─────────┴─────────┘
//
// A rank claims pieces by a compare-and-swap that increases front or back in the word claimed.
// It claims several pieces at a time at first and one piece towards the end, so that both ranks
// end at about the same time (claimSize). No rank claims more when front + back is the number
// of pieces. It follows that:
//
//   - The pieces of the initiator (the first ones, as many as front) and those of the helper
//     (the last ones, as many as back) are disjoint, and the word claimed alone says which they
//     are. So if a request for help comes twice, the helper claims other pieces for the second
//     request.
//   - A generation belongs to one transfer. It is odd while pieces may be
//     claimed. When the initiator has no more pieces to claim, or ends the transfer early, it
//     increases the generation in claimed. A helper that comes later finds another generation
//     than that of its request and does not help.
//
// The helper increases done's back when it has copied the pieces that it claimed. If a copy
// fails, it sets failed and claims no more; the initiator then copies all pieces of the back
// itself. The initiator must not complete the operation before done's back has reached
// claimed's back: until then the helper may be accessing the initiator's buffer. From before
// it claims until after it has increased done, the helper has the name of the claim line in
// its hazard line (mr.go). So the initiator detects a helper that will never increase done: the
// name is not in the hazard line, because the helper broke the protocol, or the helper's
// process has ended.
//
// No word of the claim line is an address: both ranks compute addresses from numbers of
// their own. A word that does not match those numbers is a protocol error.

// claim is a claim line: the two words that the ranks of one transfer share.
type claim struct {
	claimed atomic.Uint64
	done    atomic.Uint64
	_       [lineSize - 16]byte
}

// claims is the page of the segment with a rank's hazard line, probe line and claim lines.
type claims struct {
	hazards hazards
	probe   probeLine
	lines   [claimLines]claim
}

const (
	claimLines = claimCount - 2

	// splitMin is the number of bytes of the smallest transfer for which help is requested. A
	// smaller one ends before help comes.
	splitMin = 48 << 10
	pieceMin = 32 << 10 // bytes of the smallest piece of a block of more than halfMax
	// pieceMax is the number of bytes of the largest piece. It is small, so that both ranks end
	// at about the same time.
	pieceMax  = 64 << 10
	splitInto = 16 // number of pieces, if pieceMin and pieceMax permit
	claimPart = 3  // a claim takes 1/claimPart of the pieces that are left,
	claimMost = 8  // but at most claimMost pieces

	// A block of up to halfMax bytes is cut in two pieces. The initiator's piece is headStart bytes
	// longer than half of the block, because the initiator begins to copy before the helper gets
	// the request.
	halfMax   = 96 << 10
	headStart = 4 << 10

	maxPieces = 1<<16 - 1
	failedBit = 1 << 16 // the bit failed in the word done
	unknown   = -1      // a value of split.back
)

// pieceSize returns the size of the pieces of a block of n bytes.
func pieceSize(n int) int {
	if n <= halfMax {
		return (n/2 + headStart + pageSize - 1) &^ (pageSize - 1)
	}
	return min(max(n/splitInto+pageSize-1, pieceMin)&^(pageSize-1), pieceMax)
}

func pieceCount(n, piece int) int { return (n + piece - 1) / piece }

var (
	errClaims  = errors.New("a claim line does not match its transfer")
	errRequest = errors.New("a request for help is invalid")
)

// claimWord encodes the word claimed of a claim line, and claimParts decodes it.
func claimWord(gen uint32, front, back int) uint64 {
	return uint64(gen)<<32 | uint64(front)<<16 | uint64(back)
}

func claimParts(w uint64) (gen uint32, front, back int) {
	return uint32(w >> 32), int(w >> 16 & maxPieces), int(w & maxPieces)
}

// split is the initiator's state of a transfer that the peer may help with.
type split struct {
	line *claim // the claim line; nil: the peer does not help, or not any more
	slot uint8  // index of line in claims.lines
	gen  uint32 // the line's generation for this transfer
	// back is set by [domain.endClaims]: the number of pieces that the helper has claimed, or the
	// constant unknown if the line was invalid.
	back int

	polls uint // number of polls since endClaims that found that the helper is not done
	// goneSince is when this rank noticed that the helper had ended or was disconnected. It is
	// zero if this rank has noticed neither.
	goneSince time.Time
}

// lines are this rank's claim lines.
type lines struct {
	gens [claimLines]uint32 // by line: its last generation; even: no pieces may be claimed
	free [claimLines]uint8  // its first n elements are the indexes of the free lines
	n    int                // number of free lines
}

func (l *lines) init() {
	l.n = claimLines
	for i := range l.free {
		l.free[i] = uint8(i)
	}
}

// help is a peer's request for help with a transfer.
type help struct {
	p    *peer // the initiator; nil: it is closed, so this rank does not help
	slot uint8 // index of the claim line among those of the peer
	// If write is set, the peer writes to this rank's region, so this rank copies from the peer's
	// buffer. Otherwise this rank copies to that buffer.
	write  bool
	gen    uint32 // the line's generation for the transfer
	n      int    // bytes of the block
	key    uint64 // of this rank's region
	addr   uint64 // offset of the block in the region
	buffer uint64 // address of the peer's buffer in the peer's process
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

// peerBusy reports whether the other rank of a transfer is likely to help too late. This is so if
// that rank sleeps, because to wake it takes longer than its help saves; if the transfer is one of
// a stream (streamMax); or in an exchange, in which each rank fetches messages of others. This rank
// assumes an exchange if it has messages that peers will fetch.
func (d *domain) peerBusy(t *transfer) bool {
	streams := d.transfers.lastBegun == d.reads && len(t.op.Data) <= streamMax
	return streams || d.transfers.regions.messages > 0 || t.p.sleep.Load() == asleep
}

// requestHelp opens a claim line for a transfer and sends the peer a request for help. If the
// transfer is smaller than splitMin, no line is free, peerBusy returns true, or post fails, the
// transfer has no helper.
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

// freeLine makes a transfer's claim line free. endClaims has been called for the line, and the
// helper does not use it any more.
func (d *domain) freeLine(s *split) {
	l := &d.transfers.lines
	l.free[l.n] = s.slot
	l.n++
	s.line = nil
}

// claimSize returns how many pieces a rank claims at once if left pieces are unclaimed.
func claimSize(left int) int { return min((left+claimPart-1)/claimPart, claimMost) }

// claimFront claims the transfer's next pieces from the front and returns their number; 0 if all
// pieces are claimed. The caller adds the number to t.front. An error is a protocol error of the
// helper.
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
		last = back + 1 // the swap failed, so the helper has increased back
	}
}

// endClaims ends all claiming on a transfer's line, and records how many pieces the helper has
// claimed. An error is a protocol error of the helper; then the line must not be used again.
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

// helpName returns a number that identifies a claim line and its generation. rank is the local rank
// that the line belongs to, and slot the line's index.
func helpName(rank int, slot uint8, gen uint32) uint64 {
	return uint64(gen)<<32 | uint64(rank)<<8 | uint64(slot)
}

// helperDone reports whether the helper is done with all pieces that it has claimed, and whether no
// copy of the helper has failed (ok).
func (s *split) helperDone() (done, ok bool) {
	w := s.line.done.Load()
	return uint32(w>>32) == s.gen && int(w&maxPieces) == s.back, w&failedBit == 0
}

// helperActive reports whether the helper of a transfer may still be copying. It reads the helper's
// hazard line only at every 256th call for the transfer, because each read takes the cache line
// away from the helper. At the other calls it returns true.
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
	case d.vanished(x.p):
		return false
	case s.goneSince.IsZero():
		s.goneSince = time.Now()
	}
	return time.Since(s.goneSince) < exitGrace
}

// onHelp queues a peer's request for help. Help is optional: if the queue is full, or this rank
// cannot copy from and to the peer's memory, onHelp drops the request. If the request is invalid,
// onHelp returns a protocol error.
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

// helps is the queue of the peers' requests for help: n elements of list from index first, where
// index 0 follows the last index.
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

// helpOn copies some pieces for the first request that has unclaimed pieces, and returns how
// many bytes it has copied.
func (d *domain) helpOn() int {
	q := &d.transfers.helps
	for q.n > 0 {
		h := &q.list[q.first]
		if h.p == nil { // the peer is closed
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

// helpWith claims pieces of a transfer from the back and copies them. It returns the number of
// bytes of these pieces, and more if it may claim further pieces.
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
	// Since its request, the initiator does not change done in this generation.
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
	case h.p.ended(): // its process id may be that of another process
		return h.p.endReason()
	case h.write:
		return h.p.pull(mem, h.buffer+uint64(off))
	default:
		return h.p.push(mem, h.buffer+uint64(off))
	}
}
