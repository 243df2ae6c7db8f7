package mpi

import (
	"sync"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/value"
)

// SendValue implements comm.SendValue, which documents the call.
func (c *Comm) SendValue(v any, dest, tag int) error {
	if _, err := c.checkSend(elem.Of[byte](), dest, tag); err != nil {
		return c.fail("SendValue", dest, tag, err)
	}
	buf := valueBuffers.Get().(*[]byte)
	b, err := value.Append(*buf, v)
	if err != nil {
		return c.fail("SendValue", dest, tag, err)
	}
	if err := c.send(opSend, elem.Raw(b), dest, tag, engine.Standard); err != nil {
		return renamed(err, "SendValue") // b is not reused, because a transfer may still read b
	}
	keepValueBuffer(buf, b)
	return nil
}

// RecvValue implements comm.RecvValue, which documents the call.
func (c *Comm) RecvValue(v any, source, tag int) (Status, error) {
	const op = "RecvValue"
	var m Message
	n, err := c.probeSized(op, &m, elem.Of[byte](), source, tag)
	if err != nil || m.null {
		return m.st, err
	}
	buf := valueBuffers.Get().(*[]byte)
	b := *buf
	if cap(b) < n {
		b = make([]byte, n)
	}
	b = b[:n]
	st, err := m.Mrecv(elem.Raw(b))
	if err != nil {
		return st, renamed(err, op) // b is not reused, because a transfer may still write to b
	}
	err = value.Decode(b, v)
	keepValueBuffer(buf, b)
	if err != nil {
		return st, c.fail(op, st.Source, st.Tag, err)
	}
	return st, nil
}

// valueBuffers holds empty slices that SendValue and RecvValue use as message buffers. Their
// capacities are at most value.Kept bytes.
var valueBuffers = sync.Pool{New: func() any { return new([]byte) }}

// keepValueBuffer returns buf to valueBuffers, from which the caller got it. From then on buf holds
// the memory of b, which the caller has used as the message buffer. If the capacity of b is larger
// than value.Kept, keepValueBuffer drops buf and b.
func keepValueBuffer(buf *[]byte, b []byte) {
	if cap(b) <= value.Kept {
		*buf = b[:0]
		valueBuffers.Put(buf)
	}
}
