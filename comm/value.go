package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
	"sync"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/value"
)

// SendValue sends any Go value that encoding/gob can encode, and blocks as
// Send does. Values of interface fields need gob.Register.
//
// Cost: for a small struct, SendValue and RecvValue together take about 1.2 µs and
// three allocations more than Send and Recv. For the first value of a type, for values above
// 64 KiB, and for types that hold interfaces, they take about ten times as long, because
// encoding/gob then describes the types again. Send of elements without pointers has none
// of this cost.
//
// Errors: those of Send; ErrType if gob cannot encode v.
func SendValue(c *Comm, v any, dest, tag int) error {
	if _, err := c.checkSend(dest, tag); err != nil {
		return c.fail("SendValue", dest, tag, err)
	}
	buf := valueBuffers.Get().(*[]byte)
	b, err := value.Append(*buf, v)
	if err != nil {
		return c.fail("SendValue", dest, tag, err)
	}
	if err := c.send(opSend, b, elem.RawSig, dest, tag, engine.Standard); err != nil {
		return renamed(err, "SendValue") // a transfer may still read b
	}
	keepValueBuffer(buf, b)
	return nil
}

// RecvValue receives a value sent by SendValue into what v points to, by the
// rules of encoding/gob, and blocks. Status.Count is 1. From ProcNull nothing
// is received and Count is 0. A GobDecode method copies the bytes that it keeps, because
// a gob.Decoder uses its buffer again for the next value. Errors: those of Recv without ErrTruncate;
// ErrType where v is no pointer, the message is none of SendValue's, or it
// does not fit v; the message is lost then.
func RecvValue(c *Comm, v any, source, tag int) (Status, error) {
	buf := valueBuffers.Get().(*[]byte)
	b, st, err := recvGrown(c, "RecvValue", source, tag, *buf)
	if err != nil || st.Source == ProcNull {
		return st, err // after an error, a transfer may still write to b
	}
	st.Count = 0
	err = value.Decode(b, v)
	keepValueBuffer(buf, b)
	if err != nil {
		return st, c.fail("RecvValue", st.Source, st.Tag, err)
	}
	st.Count = 1
	return st, nil
}

// valueBuffers holds empty slices for messages of up to value.Kept bytes.
var valueBuffers = sync.Pool{New: func() any { return new([]byte) }}

// keepValueBuffer puts buf, which came from valueBuffers, back with the memory of b. It drops
// both if b is larger than value.Kept.
func keepValueBuffer(buf *[]byte, b []byte) {
	if cap(b) <= value.Kept {
		*buf = b[:0]
		valueBuffers.Put(buf)
	}
}
