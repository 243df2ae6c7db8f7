package shm

import (
	"encoding/binary"

	"github.com/weft-hpc/weft/transport"
)

// selfLimit is how many bytes of messages to itself a rank may have waiting.
const selfLimit = 4 << 20

// selfQueue is the way from a rank to itself: messages are copied to in and
// delivered from out, which stays as it is until all of it has been.
//
//	in, out:  length (4 bytes)  header and data  length ...
type selfQueue struct {
	in, out []byte
	at      int // delivered of out
}

func (q *selfQueue) waiting() bool { return len(q.in) > 0 || q.at < len(q.out) }

func (q *selfQueue) send(op *transport.Op) (bool, error) {
	n := op.HeaderLen + len(op.Data)
	if len(q.in)+4+n > selfLimit {
		return false, transport.ErrAgain
	}
	q.in = binary.LittleEndian.AppendUint32(q.in, uint32(n))
	q.in = append(q.in, op.Header[:op.HeaderLen]...)
	q.in = append(q.in, op.Data...)
	return true, nil
}

// deliver runs once in a Read, so that what it gives stays until the next.
func (q *selfQueue) deliver(d *domain) {
	if q.at == len(q.out) {
		q.in, q.out, q.at = q.out[:0], q.in, 0
	}
	for q.at < len(q.out) && (d.left || len(d.out) < cap(d.out)) {
		n := int(binary.LittleEndian.Uint32(q.out[q.at:]))
		b := q.out[q.at+4 : q.at+4+n : q.at+4+n]
		q.at += 4 + n
		if !d.left {
			d.out = append(d.out, transport.Completion{Kind: transport.RecvDone, Peer: d.rank, Msg: b})
		}
	}
}
