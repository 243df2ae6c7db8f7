package agree

import (
	"encoding/binary"
	"errors"
)

// message is a message of an agreement. Offsets are in bytes, and numbers are little endian:
//
//	0      1      2      4      8      16     24     32      36
//	│ kind │ call │  0   │ seq  │  id  │ flag │ next │ final │ failed │ known │
//	                                                         └ a bit for each rank of the
//	                                                           communicator, in whole bytes
//
// A vote holds what a rank contributes. A decision holds what the ranks have agreed on. A
// refusal says that its sender is in Finalize and will never vote in this agreement.
type message struct {
	kind messageKind
	call Call
	seq  uint32 // number of the agreement on its communicator, from 1 on
	id   uint64 // of the communicator
	flag uint64 // of a vote: the rank's flag; of a decision: bitwise and of the flags of all votes
	// An unused id for a new communicator. In a vote it is from Config.NewID of the sender, in a
	// decision from that of the coordinator.
	next  uint64
	final uint32 // of a decision: 1 + the lowest rank of the communicator that has refused; 0: none
	// In a vote: the ranks that its sender knows to have ended. In a decision: those in any vote.
	failed Bitmap
	// In a vote: the failed ranks that the program of its sender has acknowledged. In a decision:
	// those in all votes.
	known Bitmap
}

type messageKind byte

const (
	vote messageKind = iota + 1
	decision
	refusal
)

// Call is a call that starts an agreement.
type Call byte

// The calls that start agreements.
const (
	Agree Call = iota + 1
	Shrink
	Finalize
	differentCalls // of a decision: the ranks have made different calls
)

const messageHeader = 36 // number of bytes before the bitmaps

var errMessage = errors.New("malformed message of an agreement")

func (m *message) append(dst []byte) []byte {
	dst = append(dst, byte(m.kind), byte(m.call), 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, m.seq)
	for _, v := range []uint64{m.id, m.flag, m.next} {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}
	dst = binary.LittleEndian.AppendUint32(dst, m.final)
	return append(append(dst, m.failed...), m.known...)
}

// parse decodes p, which append has encoded. The bitmaps of m are parts of p, not copies. If p is
// malformed, parse returns errMessage.
func (m *message) parse(p []byte) error {
	if len(p) < messageHeader || len(p)%2 != 0 || p[2]|p[3] != 0 {
		return errMessage
	}
	word := binary.LittleEndian.Uint64
	*m = message{
		kind: messageKind(p[0]), call: Call(p[1]), seq: binary.LittleEndian.Uint32(p[4:]),
		id: word(p[8:]), flag: word(p[16:]), next: word(p[24:]),
		final: binary.LittleEndian.Uint32(p[32:]),
	}
	maps := p[messageHeader:]
	m.failed, m.known = maps[:len(maps)/2], maps[len(maps)/2:]
	if m.kind < vote || m.kind > refusal || m.call < Agree || m.call > differentCalls {
		return errMessage
	}
	return nil
}

// fits reports whether the message's bitmaps and final are valid for a communicator of n ranks.
func (m *message) fits(n int) bool {
	return len(m.failed) == len(newBitmap(n)) && int64(m.final) <= int64(n)
}

// Bitmap is a set of ranks of a communicator, with one bit for each rank.
type Bitmap []byte

func newBitmap(n int) Bitmap { return make(Bitmap, (n+7)/8) }

func (b Bitmap) set(i int) { b[i/8] |= 1 << (i % 8) }

// Has reports whether rank i is in the set.
func (b Bitmap) Has(i int) bool { return b[i/8]&(1<<(i%8)) != 0 }

func (b Bitmap) or(o Bitmap) {
	for i := range b {
		b[i] |= o[i]
	}
}

func (b Bitmap) and(o Bitmap) {
	for i := range b {
		b[i] &= o[i]
	}
}

// Ranks returns the ranks of the set that are below n, in ascending order.
func (b Bitmap) Ranks(n int) (ranks []int) {
	for i := range n {
		if b.Has(i) {
			ranks = append(ranks, i)
		}
	}
	return ranks
}
