package local

import (
	"encoding/binary"

	"github.com/weft-hpc/weft/transport"
)

// selfLimit is how many bytes of messages to itself a rank may have waiting.
const selfLimit = 4 << 20

// SelfQueue is the way from a rank to itself: messages are copied to in and
// delivered from out, which stays as it is until all of it has been. The zero
// value is empty; the domain's user serialises calls.
//
//	in, out:  length (4 bytes)  header and data  length ...
type SelfQueue struct {
	in, out []byte
	at      int // delivered of out
}

// Waiting says whether messages are to be delivered.
func (q *SelfQueue) Waiting() bool { return len(q.in) > 0 || q.at < len(q.out) }

// Send copies op's header and data and answers true: nothing of op is needed any
// more. Where too much waits already, the error is transport.ErrAgain.
//
// Hot path: no allocation once the queue has grown to what waits at a time.
func (q *SelfQueue) Send(op *transport.Op) (bool, error) {
	n := op.HeaderLen + len(op.Data)
	if len(q.in)+4+n > selfLimit {
		return false, transport.ErrAgain
	}
	q.in = binary.LittleEndian.AppendUint32(q.in, uint32(n))
	q.in = append(q.in, op.Header[:op.HeaderLen]...)
	q.in = append(q.in, op.Data...)
	return true, nil
}

// Deliver gives messages to c as from the rank self, as far as there is room; or
// drops all that wait. It runs at most once in a Read, so that what it gives stays
// until the next.
//
// Hot path: no allocation, no copy.
func (q *SelfQueue) Deliver(c *Completions, self transport.Addr, drop bool) {
	if drop {
		q.in, q.at = q.in[:0], len(q.out)
		return
	}
	if q.at == len(q.out) {
		q.in, q.out, q.at = q.out[:0], q.in, 0
	}
	for q.at < len(q.out) && !c.Full() {
		n := int(binary.LittleEndian.Uint32(q.out[q.at:]))
		b := q.out[q.at+4 : q.at+4+n : q.at+4+n]
		q.at += 4 + n
		c.Out = append(c.Out, transport.Completion{Kind: transport.RecvDone, Peer: self, Msg: b})
	}
}
