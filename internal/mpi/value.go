package mpi

import (
	"sync"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/value"
)

// Codec encodes the values of SendValue and similar calls; nil stands for gob.
type Codec = value.Codec

// Gob and JSON are the codecs of comm.
var (
	Gob  Codec = value.Gob{}
	JSON Codec = value.JSON{}
)

// SendValue implements comm.SendValue, which documents the call.
func (c *Comm) SendValue(v any, codec Codec, dest, tag int) error {
	if _, err := c.checkSend(elem.Of[byte](), dest, tag); err != nil {
		return c.fail("SendValue", dest, tag, err)
	}
	buf := valueBuffers.Get().(*[]byte)
	b, err := value.Encode(*buf, v, codec)
	if err != nil {
		return c.fail("SendValue", dest, tag, err)
	}
	if err := c.send(opSend, elem.Raw(b), dest, tag, engine.Standard); err != nil {
		return renamed(err, "SendValue") // b is not reused, because a transfer may still read b
	}
	keepValueBuffer(buf, b)
	return nil
}

// IsendValue implements comm.IsendValue, which documents the call.
func (c *Comm) IsendValue(v any, codec Codec, dest, tag int) Request {
	if _, err := c.checkSend(elem.Of[byte](), dest, tag); err != nil {
		return c.refused("IsendValue", dest, tag, err)
	}
	b, err := value.Encode(nil, v, codec)
	if err != nil {
		return c.refused("IsendValue", dest, tag, err)
	}
	return c.isend(opIsendValue, elem.Raw(b), dest, tag, engine.Standard)
}

// RecvValue implements comm.RecvValue, which documents the call. It stores the value in the variable
// that v points to.
func (c *Comm) RecvValue(v any, codec Codec, source, tag int) (Status, error) {
	const op = "RecvValue"
	var m Message
	n, err := c.probeSized(op, &m, elem.Of[byte](), source, tag)
	if err != nil || m.null {
		return m.st, err
	}
	return m.recvValue(op, n, v, codec)
}

// MrecvValue implements comm.MrecvValue, which documents the call.
func (m *Message) MrecvValue(v any, codec Codec) (Status, error) {
	const op = "MrecvValue"
	if m == nil || m.c == nil || m.null {
		st, err := m.Mrecv(elem.Raw(nil))
		return st, renamed(err, op)
	}
	if err := tooLarge(m.st.Bytes); err != nil {
		_, _ = m.Mrecv(elem.Raw(nil)) // so that the sender does not wait forever
		return m.st, m.c.fail(op, m.st.Source, m.st.Tag, err)
	}
	return m.recvValue(op, m.st.Bytes, v, codec)
}

// recvValue receives m, whose length is n bytes, and decodes it into the variable that v points to,
// for the call op.
func (m *Message) recvValue(op string, n int, v any, codec Codec) (Status, error) {
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
	err = value.DecodeBy(b, v, codec)
	keepValueBuffer(buf, b)
	if err != nil {
		return st, m.c.fail(op, st.Source, st.Tag, err)
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
