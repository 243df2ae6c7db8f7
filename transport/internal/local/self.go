package local

import (
	"encoding/binary"

	"github.com/weft-hpc/weft/transport"
)

// selfLimit is the most bytes of messages to itself that a rank may have queued.
const selfLimit = 4 << 20

// SelfQueue is the queue of messages from a rank to itself. Send copies messages to in.
// Deliver returns messages from out, and exchanges the two when all of out is delivered. The
// zero value is empty. The caller serialises calls.
//
//	in, out:  length (4 bytes)  header and data  length ...
type SelfQueue struct {
	in, out []byte
	at      int // bytes of out that are delivered
}

// Waiting reports whether messages wait for Deliver.
func (q *SelfQueue) Waiting() bool { return len(q.in) > 0 || q.at < len(q.out) }

// Send copies op's header and data and returns true: the caller may use op again. If
// selfLimit is reached, it returns [transport.ErrAgain].
//
// Hot path: no allocation once the queue has grown to the size that is needed at a time.
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

// Deliver appends messages from the rank self to c.Out, as far as it has room. If drop is set,
// it drops all queued messages instead. A domain calls it at most once in a Read, so that the
// messages stay valid until the next Read.
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
