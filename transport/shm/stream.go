//go:build linux && !portable

package shm

import (
	"encoding/binary"
	"errors"

	"github.com/weft-hpc/weft/transport"
)

// Transfers by messages
//
// If the kernel does not let a rank copy from and to a peer, or the peer's
// table has no entry for a region, the peer copies in its own progress. The
// bytes go through the rings of the pair, in chunks, between the messages:
//
//	      initiator                                        owner of the region
//	Read   ── kindRead  id, size, key, addr ──────────────►  queues it
//	       ◄─ kindData  id, status, bytes … ───────────────  sends a chunk per advance
//	Write  ── kindWrite id, size, offset, key, addr, bytes … ►  copies at once
//	       ◄─ kindAck   id, status ────────────────────────  answers the last chunk
//
//	id     31          8 7    0        status  OK, or the reason of a refusal,
//	       ┌────────────┬──────┐               which ends the transfer
//	       │ generation │ slot │
//	       └────────────┴──────┘
//
// A rank has at most streamWindow transfers under way with a peer, so the peer
// queues at most streamWindow transfers. The owner checks the region for each chunk. So if
// it closes the region during a transfer, it does not touch the memory any more, and refuses
// the transfer: a Write at its last chunk, because a closed key never becomes valid again.

const (
	streamWindow = 32

	dataHeader  = 8
	readSize    = 24
	writeHeader = 32
	ackSize     = 8

	chunkMax   = 32 << 10
	chunkShare = 8 // a ring has room for at least this many chunks
)

// status is the owner's result of a transfer.
type status uint8

const (
	statusOK status = iota
	statusKey
	statusBounds
	statusAccess
	statuses
)

var statusErrors = [statuses]error{nil, transport.ErrKey, transport.ErrBounds, transport.ErrAccess}

func statusOf(err error) status {
	for s, e := range statusErrors {
		if errors.Is(err, e) {
			return status(s)
		}
	}
	return statusKey
}

var (
	errRequest = errors.New("a request for a transfer is invalid")
	errTooMany = errors.New("too many transfers at once")
	errAnswer  = errors.New("an answer matches no transfer")
)

// call is a transfer that this rank has begun.
type call struct {
	op    *transport.Op // nil: free
	gen   uint32
	write bool
	sent  bool // the whole request has been sent: an answer may come
	done  int  // bytes sent or received
}

// serve is a peer's Read that this rank answers.
type serve struct {
	id   uint32
	size int
	done int
	key  uint64
	addr uint64
}

// ack is an answer to a peer's Write.
type ack struct {
	id     uint32
	status status
}

// stream holds the transfers by messages between this rank and one peer.
type stream struct {
	p       *peer
	calls   [streamWindow]call
	free    [streamWindow]uint8
	nfree   int
	waiting opQueue     // operations that wait for a free slot
	asking  fifo[uint8] // slots of calls that have something to send
	serving fifo[serve] // Reads of the peer
	acks    fifo[ack]   // answers to the peer's Writes
	listed  bool        // in streams.active
}

// fifo is a queue of at most streamWindow items.
type fifo[T any] struct {
	items [streamWindow]T
	first int
	n     int
}

func (q *fifo[T]) push(x T) bool {
	if q.n == streamWindow {
		return false
	}
	q.items[(q.first+q.n)%streamWindow] = x
	q.n++
	return true
}

func (q *fifo[T]) head() *T { return &q.items[q.first] }

func (q *fifo[T]) drop() {
	q.first = (q.first + 1) % streamWindow
	q.n--
}

// opQueue is a linked queue of operations.
type opQueue struct{ head, tail *transport.Op }

func (q *opQueue) push(op *transport.Op) {
	op.Next = nil
	if q.head == nil {
		q.head = op
	} else {
		q.tail.Next = op
	}
	q.tail = op
}

func (q *opQueue) pop() *transport.Op {
	op := q.head
	q.head, op.Next = op.Next, nil
	return op
}

// streams is the domain's state of transfers by messages.
type streams struct {
	active []*stream // streams that have something to send
	chunk  int       // size of a chunk in bytes
	head   [writeHeader]byte
}

func (t *streams) init(ring int) {
	t.chunk = min(ring/chunkShare-writeHeader-wordSize, chunkMax)
}

func (t *streams) of(p *peer) *stream {
	s := p.stream
	if s == nil {
		s = &stream{p: p, nfree: streamWindow}
		for i := range s.free {
			s.free[i] = uint8(i)
		}
		p.stream = s
	}
	return s
}

func (t *streams) idle() bool { return len(t.active) == 0 }

// list adds a stream to those that advance continues.
func (t *streams) list(s *stream) {
	if !s.listed {
		s.listed = true
		t.active = append(t.active, s)
	}
}

// byMessages starts a transfer by messages, from its beginning.
func (d *domain) byMessages(x *transfer) {
	op, s := x.op, d.transfers.streams.of(x.p)
	op.Scratch = 0
	if x.write {
		op.Scratch = 1
	}
	d.transfers.put(x)
	s.waiting.push(op)
	if d.send(s) {
		d.transfers.streams.list(s)
	}
}

// stream continues each active stream by one chunk in each direction.
func (d *domain) stream() {
	t := &d.transfers.streams
	kept := 0
	for i := 0; i < len(t.active); i++ {
		s := t.active[i]
		if s.p.err == nil && d.send(s) {
			t.active[kept] = s
			kept++
			continue
		}
		s.listed = false
	}
	clear(t.active[kept:])
	t.active = t.active[:kept]
}

// send sends all answers of a stream to Writes, at most one chunk of the peer's Reads and at
// most one request or chunk of this rank. more reports that the stream has more to send.
func (d *domain) send(s *stream) (more bool) {
	for s.acks.n > 0 {
		if !d.sendAck(s, s.acks.head()) {
			return true
		}
		s.acks.drop()
	}
	if s.serving.n > 0 {
		sent, last := d.sendData(s, s.serving.head())
		if !sent {
			return true
		}
		if last {
			s.serving.drop()
		}
	}
	s.admit()
	if s.asking.n > 0 {
		sent, last := d.sendCall(s, *s.asking.head())
		if sent && last {
			s.calls[*s.asking.head()].sent = true
			s.asking.drop()
		}
	}
	return s.serving.n > 0 || s.asking.n > 0
}

// admit gives free slots to the transfers that wait for one.
func (s *stream) admit() {
	for s.waiting.head != nil && s.nfree > 0 {
		op := s.waiting.pop()
		s.nfree--
		i := s.free[s.nfree]
		c := &s.calls[i]
		*c = call{op: op, gen: c.gen + 1, write: op.Scratch == 1}
		s.asking.push(i)
	}
}

func (c *call) id(slot uint8) uint32 { return c.gen<<8 | uint32(slot) }

// sendCall sends the request of a Read, or the next chunk of a Write. sent is false if the ring
// has no room; last reports that the call has nothing more to send.
func (d *domain) sendCall(s *stream, slot uint8) (sent, last bool) {
	c := &s.calls[slot]
	op, t := c.op, &d.transfers.streams
	if !c.write {
		b := t.head[:readSize]
		binary.LittleEndian.PutUint32(b[0:], c.id(slot))
		binary.LittleEndian.PutUint32(b[4:], uint32(len(op.Data)))
		binary.LittleEndian.PutUint64(b[8:], op.RemoteKey)
		binary.LittleEndian.PutUint64(b[16:], op.RemoteAddr)
		return d.post(s.p, kindRead, b), true
	}
	n := min(len(op.Data)-c.done, t.chunk)
	b := t.head[:writeHeader]
	binary.LittleEndian.PutUint32(b[0:], c.id(slot))
	binary.LittleEndian.PutUint32(b[4:], uint32(len(op.Data)))
	binary.LittleEndian.PutUint32(b[8:], uint32(c.done))
	binary.LittleEndian.PutUint32(b[12:], 0)
	binary.LittleEndian.PutUint64(b[16:], op.RemoteKey)
	binary.LittleEndian.PutUint64(b[24:], op.RemoteAddr)
	if !d.postParts(s.p, kindWrite, b, op.Data[c.done:c.done+n]) {
		return false, false
	}
	c.done += n
	return true, c.done == len(op.Data)
}

// sendData sends the next chunk of a peer's Read, or its refusal. sent is false if the ring has
// no room; last reports that the Read is answered.
func (d *domain) sendData(s *stream, v *serve) (sent, last bool) {
	t := &d.transfers
	mem, err := t.regions.find(v.key, v.addr, uint64(v.size), transport.RemoteRead)
	if err == nil {
		mem = mem[v.done:min(v.done+t.streams.chunk, v.size)]
	}
	b := t.streams.head[:dataHeader]
	putAnswer(b, v.id, statusOf(err))
	if !d.postParts(s.p, kindData, b, mem) {
		return false, false
	}
	v.done += len(mem)
	return true, err != nil || v.done == v.size
}

func (d *domain) sendAck(s *stream, a *ack) bool {
	b := d.transfers.streams.head[:ackSize]
	putAnswer(b, a.id, a.status)
	return d.post(s.p, kindAck, b)
}

// putAnswer writes the header of a kindData message, or a whole kindAck message.
func putAnswer(b []byte, id uint32, s status) {
	binary.LittleEndian.PutUint32(b, id)
	binary.LittleEndian.PutUint32(b[4:], uint32(s))
}

// answered returns the slot of the call to which the answer b belongs, and its status.
func (d *domain) answered(p *peer, b []byte, write bool) (*stream, uint8, status, error) {
	s := p.stream
	if s == nil || len(b) < dataHeader {
		return nil, 0, 0, protocolError(errAnswer)
	}
	id, st := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	slot := uint8(id)
	if slot >= streamWindow || st >= uint32(statuses) {
		return nil, 0, 0, protocolError(errAnswer)
	}
	c := &s.calls[slot]
	if c.op == nil || !c.sent || c.id(slot) != id || c.write != write {
		return nil, 0, 0, protocolError(errAnswer)
	}
	return s, slot, status(st), nil
}

// onData handles a chunk of a Read of this rank.
func (d *domain) onData(p *peer, b []byte) error {
	s, slot, st, err := d.answered(p, b, false)
	if err != nil {
		return err
	}
	b = b[dataHeader:]
	c := &s.calls[slot]
	left := len(c.op.Data) - c.done
	if len(b) > left || st == statusOK && len(b) == 0 && left > 0 || st != statusOK && len(b) > 0 {
		return protocolError(errAnswer)
	}
	c.done += copy(c.op.Data[c.done:], b)
	if st != statusOK || c.done == len(c.op.Data) {
		d.endCall(s, slot, st)
	}
	return nil
}

// onAck handles the answer to a Write of this rank.
func (d *domain) onAck(p *peer, b []byte) error {
	s, slot, st, err := d.answered(p, b, true)
	if err != nil {
		return err
	}
	if len(b) != ackSize {
		return protocolError(errAnswer)
	}
	d.endCall(s, slot, st)
	return nil
}

// endCall completes a call and frees its slot.
func (d *domain) endCall(s *stream, slot uint8, st status) {
	c := &s.calls[slot]
	op := c.op
	c.op = nil
	s.free[s.nfree] = slot
	s.nfree++
	d.completed(op, d.transferError(s.p, c.write, statusErrors[st]))
	if s.waiting.head != nil {
		d.transfers.streams.list(s)
	}
}

// onRead queues a peer's Read.
func (d *domain) onRead(p *peer, b []byte) error {
	if len(b) != readSize {
		return protocolError(errRequest)
	}
	v := serve{
		id: binary.LittleEndian.Uint32(b), size: int(binary.LittleEndian.Uint32(b[4:])),
		key: binary.LittleEndian.Uint64(b[8:]), addr: binary.LittleEndian.Uint64(b[16:]),
	}
	if v.size > maxRMASize {
		return protocolError(errRequest)
	}
	s := d.transfers.streams.of(p)
	if !s.serving.push(v) {
		return protocolError(errTooMany)
	}
	d.transfers.streams.list(s)
	return nil
}

// onWrite handles a chunk of a peer's Write.
func (d *domain) onWrite(p *peer, b []byte) error {
	if len(b) < writeHeader {
		return protocolError(errRequest)
	}
	id := binary.LittleEndian.Uint32(b)
	size, off := int(binary.LittleEndian.Uint32(b[4:])), int(binary.LittleEndian.Uint32(b[8:]))
	key, addr := binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
	b = b[writeHeader:]
	if size > maxRMASize || off > size || len(b) > size-off || len(b) == 0 && size > 0 {
		return protocolError(errRequest)
	}
	mem, err := d.transfers.regions.find(key, addr, uint64(size), transport.RemoteWrite)
	if err == nil {
		copy(mem[off:], b)
	}
	if off+len(b) < size {
		return nil
	}
	s := d.transfers.streams.of(p)
	if !s.acks.push(ack{id, statusOf(err)}) {
		return protocolError(errTooMany)
	}
	d.transfers.streams.list(s)
	return nil
}

// dropStream ends all transfers by messages with a peer that is closed.
func (d *domain) dropStream(p *peer, err error) {
	s := p.stream
	if s == nil {
		return
	}
	for i := range s.calls {
		if c := &s.calls[i]; c.op != nil {
			op := c.op
			c.op = nil
			d.completed(op, d.transferError(p, c.write, err))
		}
	}
	for s.waiting.head != nil {
		op := s.waiting.pop()
		d.completed(op, d.transferError(p, op.Scratch == 1, err))
	}
	s.asking, s.serving, s.acks = fifo[uint8]{}, fifo[serve]{}, fifo[ack]{}
	p.stream = nil // the next call of stream removes it from active
}
