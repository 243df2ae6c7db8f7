package trace

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/weft-hpc/weft/internal/record"
)

// A spool holds the events of one rank's record in a compact form. If the rank has run several programs, one
// after the other, it holds those of several records. It is a sequence of items. An item begins with a
// byte:
//
//	│ flags 5 bits │ kind 3 bits │
//
// The rest of an item, by kind. Integers are varints of encoding/binary; an integer that can be
// negative is signed there, and "Δ" means the difference to the last item of the same kind.
//
//	begin           wall time in ns since 1970 │ monotonic time in ns
//	op, comm        number │ length of the name │ name
//	lost            number of events that the ring has lost here
//	cut             number of events that are missing at the end │ length of the reason │ reason
//	sent, received  Δ time (of both kinds together) │ message
//	call            Δ time │ duration │ op u8 │ message
//
// A message is comm and protocol u8 │ Δ peer │ Δ tag │ bytes │ Δ number among those of the peer. A
// call has no number. A flag says that a field is as expected, and then the field is left out:
//
//	1   comm and protocol are those of the last item of the kind
//	2   peer, in the same way
//	4   tag
//	8   bytes
//	16  sent, received: the message has the next number of the peer; call: op
type itemKind uint8

const (
	itemBegin itemKind = iota + 1
	itemOp
	itemComm
	itemLost
	itemSent
	itemReceived
	itemCall
	itemCut itemKind = 0 // so that the kinds fit into kindBits

	kindBits = 3
	itemMask = 1<<kindBits - 1
)

const (
	sameComm = 1 << (iota + kindBits)
	samePeer
	sameTag
	sameBytes
	nextSeq

	sameOp = nextSeq
)

const (
	maxName = 256     // bytes of a name in a spool
	seqBits = 24      // bits of record.Event.Seq
	maxTime = 1 << 60 // ns; a sum of a few times does not overflow
	maxSize = 1 << 40 // bytes of a message

	maxVarint = 1 << 62 // largest absolute value of a signed integer
)

// errSpool is the error for bytes that are no spool.
var errSpool = errors.New("not a spool of events")

// history is what the encoder and the decoder know of the items so far.
type history struct {
	times [2]time.Duration // latest time: of messages, and of calls
	last  [itemCall + 1]record.Event
	next  [2]map[int32]uint32 // next number of a message to (0) or from (1) the peer
}

// Encoder encodes the events of a rank. The zero Encoder is ready to use.
type Encoder struct {
	buf    []byte
	events uint64 // number of events in buf, and of the lost ones
	h      history
}

// Bytes returns the bytes that were encoded since the last call of Reset: whole items.
func (e *Encoder) Bytes() []byte { return e.buf }

// Events returns the number of events in Bytes, with those that are lost there.
func (e *Encoder) Events() uint64 { return e.events }

// Reset forgets the bytes that were encoded, but not what later items refer to.
func (e *Encoder) Reset() { e.buf, e.events = e.buf[:0], 0 }

// Cut returns the item at the end of a spool from which n events are missing, and why.
func Cut(n uint64, reason string) []byte {
	var e Encoder
	e.name(itemCut, n, reason)
	return e.buf
}

// Begin encodes the times of the record whose events follow. The spool has the events from the time from on, which
// is since the beginning of the record.
func (e *Encoder) Begin(t record.Times, from time.Duration) {
	e.h = history{}
	e.buf = append(e.buf, byte(itemBegin))
	e.buf = binary.AppendVarint(e.buf, t.Wall.UnixNano())
	e.buf = binary.AppendUvarint(e.buf, uint64(t.Monotonic))
	e.buf = binary.AppendUvarint(e.buf, uint64(from))
}

// Op encodes that the operation op has this name from now on.
func (e *Encoder) Op(op record.Op, name string) { e.name(itemOp, uint64(op), name) }

// Comm encodes that the communicator with this number has this name from now on.
func (e *Encoder) Comm(comm uint16, name string) { e.name(itemComm, uint64(comm), name) }

func (e *Encoder) name(k itemKind, number uint64, name string) {
	name = name[:min(len(name), maxName)]
	e.buf = append(e.buf, byte(k))
	e.buf = binary.AppendUvarint(e.buf, number)
	e.buf = binary.AppendUvarint(e.buf, uint64(len(name)))
	e.buf = append(e.buf, name...)
}

// Lost encodes that n events are missing here.
func (e *Encoder) Lost(n uint64) {
	e.events += n
	e.buf = append(e.buf, byte(itemLost))
	e.buf = binary.AppendUvarint(e.buf, n)
}

// Event encodes an event.
func (e *Encoder) Event(v *record.Event) {
	e.events++
	k, group := kindOf(v), 1
	if k != itemCall {
		group = 0
	}
	last := &e.h.last[k]
	head := byte(k)
	if v.Comm == last.Comm && v.Protocol == last.Protocol {
		head |= sameComm
	}
	if v.Peer == last.Peer {
		head |= samePeer
	}
	if v.Tag == last.Tag {
		head |= sameTag
	}
	if v.Bytes == last.Bytes {
		head |= sameBytes
	}
	var next uint32
	if k == itemCall {
		if v.Op == last.Op {
			head |= sameOp
		}
	} else if next = e.h.nextSeq(k, v.Peer, v.Seq); next == v.Seq {
		head |= nextSeq
	}
	b := append(e.buf, head)
	b = binary.AppendVarint(b, int64(v.Start-e.h.times[group]))
	e.h.times[group] = v.Start
	if k == itemCall {
		b = binary.AppendUvarint(b, uint64(v.Duration))
		if head&sameOp == 0 {
			b = append(b, byte(v.Op))
		}
	}
	if head&sameComm == 0 {
		b = append(binary.AppendUvarint(b, uint64(v.Comm)), byte(v.Protocol))
	}
	if head&samePeer == 0 {
		b = binary.AppendVarint(b, int64(v.Peer)-int64(last.Peer))
	}
	if head&sameTag == 0 {
		b = binary.AppendVarint(b, int64(v.Tag)-int64(last.Tag))
	}
	if head&sameBytes == 0 {
		b = binary.AppendUvarint(b, uint64(v.Bytes))
	}
	if k != itemCall && head&nextSeq == 0 {
		b = binary.AppendVarint(b, int64(v.Seq)-int64(next))
	}
	*last = *v
	e.buf = b
}

// kindOf returns the kind of the item of an event.
func kindOf(v *record.Event) itemKind {
	if v.Op == record.OpSent {
		return itemSent
	}
	if v.Op == record.OpReceived {
		return itemReceived
	}
	return itemCall
}

// nextSeq returns the number that the next message to or from a peer is expected to have, and expects
// the number after seq from then on.
func (h *history) nextSeq(k itemKind, peer int32, seq uint32) uint32 {
	m := &h.next[k-itemSent]
	if *m == nil {
		*m = make(map[int32]uint32)
	}
	next := (*m)[peer]
	(*m)[peer] = (seq + 1) & (1<<seqBits - 1)
	return next
}

// item is what a decoder has read.
type item struct {
	kind  itemKind
	event record.Event  // itemSent, itemReceived, itemCall
	times record.Times  // itemBegin
	from  time.Duration // itemBegin: see Encoder.Begin
	// itemOp, itemComm: the number and the name. itemLost: the number of events.
	number uint64
	name   string
}

// decoder decodes a spool. Its input is not trusted.
type decoder struct {
	in    *bufio.Reader
	ranks int32 // number of ranks of the job: bounds the peers of messages
	h     history
	err   error
}

func newDecoder(r io.Reader, ranks int) *decoder {
	return &decoder{in: bufio.NewReaderSize(r, 64<<10), ranks: int32(ranks)}
}

// next returns the next item. The error is io.EOF at the end, io.ErrUnexpectedEOF if the spool ends
// within an item, errSpool if its bytes are no spool, and otherwise that of the reader.
func (d *decoder) next(it *item) error {
	head, err := d.in.ReadByte()
	if err != nil {
		return err
	}
	d.err = nil
	it.kind = itemKind(head & itemMask)
	switch it.kind {
	case itemBegin:
		d.h = history{}
		wall := d.varint()
		it.times = record.Times{Wall: time.Unix(0, wall), Monotonic: time.Duration(d.uvarint(maxTime))}
		it.from = time.Duration(d.uvarint(maxTime))
	case itemOp:
		it.number = d.uvarint(math.MaxUint8)
		it.name = d.name()
	case itemComm:
		it.number = d.uvarint(math.MaxUint16)
		it.name = d.name()
	case itemLost:
		it.number = d.uvarint(math.MaxInt64)
	case itemCut:
		it.number = d.uvarint(math.MaxInt64)
		it.name = d.name()
	case itemSent, itemReceived, itemCall:
		d.event(head, &it.event)
	default:
		return fmt.Errorf("%w: item of kind %d", errSpool, it.kind)
	}
	if errors.Is(d.err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return d.err
}

func (d *decoder) event(head byte, v *record.Event) {
	k := itemKind(head & itemMask)
	group := 0
	if k == itemCall {
		group = 1
	}
	last := &d.h.last[k]
	*v = *last
	v.Start = d.h.times[group] + time.Duration(d.varint())
	d.check(v.Start >= 0 && v.Start <= maxTime)
	d.h.times[group] = v.Start
	switch k {
	case itemSent:
		v.Op = record.OpSent
	case itemReceived:
		v.Op = record.OpReceived
	default:
		v.Duration = time.Duration(d.uvarint(maxTime))
		if head&sameOp == 0 {
			v.Op = record.Op(d.byte())
		}
	}
	if head&sameComm == 0 {
		v.Comm = uint16(d.uvarint(math.MaxUint16))
		v.Protocol = record.Protocol(d.byte())
	}
	if head&samePeer == 0 {
		v.Peer = d.delta(last.Peer)
	}
	if head&sameTag == 0 {
		v.Tag = d.delta(last.Tag)
	}
	if head&sameBytes == 0 {
		v.Bytes = int64(d.uvarint(maxSize))
	}
	if k != itemCall {
		d.check(v.Peer >= 0 && v.Peer < d.ranks)
		if d.err != nil {
			return // the map of numbers holds no other peers
		}
		more := int64(0)
		if head&nextSeq == 0 {
			more = d.varint()
		}
		next := d.h.next[k-itemSent][v.Peer]
		v.Seq = uint32(int64(next)+more) & (1<<seqBits - 1)
		d.h.nextSeq(k, v.Peer, v.Seq)
	}
	*last = *v
}

func (d *decoder) check(ok bool) {
	if !ok && d.err == nil {
		d.err = fmt.Errorf("%w: a field is out of range", errSpool)
	}
}

func (d *decoder) byte() byte {
	b, err := d.in.ReadByte()
	d.fail(err)
	return b
}

func (d *decoder) fail(err error) {
	if err != nil && d.err == nil {
		d.err = err
	}
}

// uvarint reads an unsigned integer, at most most.
func (d *decoder) uvarint(most uint64) (v uint64) {
	for shift := 0; ; shift += 7 {
		b := d.byte()
		if d.err != nil {
			return 0
		}
		if shift == 63 && b > 1 {
			d.check(false)
			return 0
		}
		if v |= uint64(b&0x7f) << shift; b < 0x80 {
			d.check(v <= most)
			return min(v, most)
		}
	}
}

// varint reads a signed integer, of at most maxVarint.
func (d *decoder) varint() int64 {
	v := d.uvarint(2 * maxVarint)
	return int64(v>>1) ^ -int64(v&1)
}

// delta returns the sum of from and an integer in the spool.
func (d *decoder) delta(from int32) int32 {
	v := int64(from) + d.varint()
	d.check(v >= math.MinInt32 && v <= math.MaxInt32)
	return int32(v)
}

func (d *decoder) name() string {
	b := make([]byte, d.uvarint(maxName))
	if d.err == nil {
		_, err := io.ReadFull(d.in, b)
		d.fail(err)
	}
	return string(b)
}
