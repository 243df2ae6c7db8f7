package local

import (
	"encoding/binary"

	"github.com/weft-hpc/weft/transport"
)

// selfLimit bounds SelfQueue.in, in bytes.
const selfLimit = 4 << 20

// SelfQueue is the queue of messages from a rank to itself. Send copies messages to the buffer in.
// Deliver returns messages in the buffer out. When all messages in out are delivered, the next
// Deliver exchanges the two buffers. The zero value is empty. The domain serialises calls.
//
//	in, out:  length (4 bytes)  header and data  length ...
type SelfQueue struct {
	in, out []byte
	at      int // number of bytes of out whose messages are delivered
}

// Waiting reports whether the queue has messages that Deliver has not returned yet.
func (q *SelfQueue) Waiting() bool { return len(q.in) > 0 || q.at < len(q.out) }

// Send copies op's header and data to the queue and returns true, so the caller may use op again.
// If the buffer in has no room for the message (selfLimit), Send returns [transport.ErrAgain].
//
// Hot path: no allocation once the buffers have grown to the size that the rank needs.
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

// Deliver appends messages to c.Out until c.Out is full or the buffer out has no more messages.
// self is this rank, which is the sender. If drop is set, Deliver drops all queued messages
// instead. A domain must call Deliver at most once in a Read: after the second call, Send may
// overwrite the messages that the first call has returned.
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
