package engine

import (
	"github.com/weft-hpc/weft/internal/layout"
	"github.com/weft-hpc/weft/internal/race"
	"github.com/weft-hpc/weft/internal/wire"
)

// Data that is not contiguous
//
// The data of a send or receive with Env.Layout is not one range of memory (request.view). It
// travels in the same messages as contiguous data, so the sender and the receiver each may have a
// layout or not:
//
//	sender with a layout                           receiver with a layout
//	part: packs an eager message or a segment      deliver: unpacks each message
//	      into a buffer of the engine ──► MsgEager, MsgData ──►  from the transport's memory
//
// A sender with a layout offers no memory region in its MsgRTS, and a receiver with a layout does
// not read by RMA. In both cases the receiver answers the MsgRTS by MsgCTS, and the data follows in
// segments (MsgData). So the sender packs one segment while the receiver unpacks the segment before
// it, and neither side needs memory for a copy of the whole message.

// viewSegment is the maximum length in bytes of the packed data in one MsgData. The sender writes a
// segment when it packs the data, and reads the segment when it sends it, so a segment should fit
// into the processor's second-level cache.
const viewSegment = 64 << 10

// setData stores the data of a send, or the buffer of a receive: the bytes of buf that l describes,
// or all of buf if l is nil.
func (r *request) setData(buf []byte, l *layout.Layout) {
	r.buf, r.view, r.layout = buf, nil, l
	if l != nil {
		r.buf, r.view, r.loaded = nil, buf, true
	}
}

// size returns the length in bytes of the data of a send, or of the buffer of a receive.
func (r *request) size() int {
	if r.layout != nil {
		return r.layout.Size()
	}
	return len(r.buf)
}

// acquire calls race.Acquire for the buffer of a receive. For data with a layout, the address of
// its first byte stands for the whole.
func (r *request) acquire() {
	switch {
	case !race.Enabled:
	case r.layout == nil:
		race.Acquire(r.buf)
	case r.layout.Size() > 0:
		race.Acquire(r.view[r.layout.First():])
	}
}

// part returns n bytes of the data of a send, from the position off on. If the data has a layout,
// part packs the bytes into a buffer, which dropPacked frees. If the endpoint had no room for the
// last part, the caller has not called dropPacked, and part returns the same buffer again.
//
// Hot path: no allocation in steady state.
func (e *Engine) part(r *request, off, n int) []byte {
	if r.layout == nil {
		return r.buf[off : off+n]
	}
	if r.packed == nil {
		r.packed = e.buffers.get(n)
		r.layout.Pack(r.packed, r.view, 0, off)
	}
	return r.packed
}

// dropPacked frees the buffer that part has returned. The endpoint must not use it any more.
func (e *Engine) dropPacked(r *request) {
	if r.packed != nil {
		e.buffers.put(r.packed)
		r.packed = nil
	}
}

// deliver stores data, a part of a message from the position off on, in the buffer of a receive. It
// drops the bytes for which the buffer has no room.
//
// Hot path: no allocation.
func (r *request) deliver(off int, data []byte) {
	if r.layout == nil {
		copy(r.buf[off:], data)
		return
	}
	r.layout.Unpack(r.view, data, 0, off)
}

// copyTo copies the first len(dst) bytes of the data to dst.
func (r *request) copyTo(dst []byte) {
	if r.layout == nil {
		copy(dst, r.buf)
		return
	}
	r.layout.Pack(dst, r.view, 0, 0)
}

// completeOwn is completeEager for a message from this rank to itself. The data is still in the
// buffer of the send s.
func (e *Engine) completeOwn(r, s *request, m *wire.Message) error {
	if s.layout == nil {
		return e.completeEager(r, s.peer, m, s.buf)
	}
	if err := e.matched(r, s.peer, m); err != nil {
		return err
	}
	for off, n := 0, min(m.Length, r.size()); off < n; off += viewSegment {
		r.deliver(off, e.part(s, off, min(viewSegment, n-off)))
		e.dropPacked(s)
	}
	e.complete(r, r.err)
	return nil
}
