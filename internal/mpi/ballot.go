package mpi

import (
	"encoding/binary"
	"errors"
)

// ballot is a message of a council, little endian:
//
//	0      1      2      4      8      16     24     32      36
//	│ kind │ what │  0   │ seq  │  id  │ flag │ next │ final │ failed │ known │
//	                                                         └ a bit for each rank of the
//	                                                           communicator, in whole bytes
//
// A vote contains what a rank contributes. A verdict contains what the ranks have agreed
// on. A refusal says that its sender is in Finalize and will never vote in this agreement.
type ballot struct {
	kind   ballotKind
	what   byte   // which call it is of
	seq    uint32 // which of the communicator's agreements
	id     uint64 // the communicator's
	flag   uint64 // the bits that all votes have
	next   uint64 // a fresh id for a communicator
	final  uint32 // of a verdict: 1 + the lowest rank of the communicator that has refused; 0: none
	failed bitmap // the ranks that are given up
	known  bitmap // those that all have acknowledged
}

type ballotKind byte

const (
	vote ballotKind = iota + 1
	verdict
	refusal
)

// The calls that agree.
const (
	agreeCall byte = iota + 1
	shrinkCall
	finalizeCall
	differentCalls // of a verdict: the ranks have called different ones
)

const ballotHeader = 36

var errBallot = errors.New("not a ballot")

func (b *ballot) append(dst []byte) []byte {
	dst = append(dst, byte(b.kind), b.what, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, b.seq)
	for _, v := range []uint64{b.id, b.flag, b.next} {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}
	dst = binary.LittleEndian.AppendUint32(dst, b.final)
	return append(append(dst, b.failed...), b.known...)
}

// parse reads what append wrote. The bitmaps are parts of p.
func (b *ballot) parse(p []byte) error {
	if len(p) < ballotHeader || len(p)%2 != 0 || p[2]|p[3] != 0 {
		return errBallot
	}
	*b = ballot{
		kind: ballotKind(p[0]), what: p[1], seq: binary.LittleEndian.Uint32(p[4:]),
		id: getUint64(p[8:]), flag: getUint64(p[16:]), next: getUint64(p[24:]),
		final: binary.LittleEndian.Uint32(p[32:]),
	}
	maps := p[ballotHeader:]
	b.failed, b.known = maps[:len(maps)/2], maps[len(maps)/2:]
	if b.kind < vote || b.kind > refusal || b.what < agreeCall || b.what > differentCalls {
		return errBallot
	}
	return nil
}

// fits says whether a ballot is of a communicator of n ranks.
func (b *ballot) fits(n int) bool {
	return len(b.failed) == len(newBitmap(n)) && int64(b.final) <= int64(n)
}

// bitmap is a set of ranks.
type bitmap []byte

func newBitmap(n int) bitmap { return make(bitmap, (n+7)/8) }

func (m bitmap) set(i int)      { m[i/8] |= 1 << (i % 8) }
func (m bitmap) has(i int) bool { return m[i/8]&(1<<(i%8)) != 0 }

func (m bitmap) or(o bitmap) {
	for i := range m {
		m[i] |= o[i]
	}
}

func (m bitmap) and(o bitmap) {
	for i := range m {
		m[i] &= o[i]
	}
}

// ranks are the members below n.
func (m bitmap) ranks(n int) (ranks []int) {
	for i := range n {
		if m.has(i) {
			ranks = append(ranks, i)
		}
	}
	return ranks
}
