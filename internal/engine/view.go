package engine

import (
	"errors"

	"github.com/weft-hpc/weft/internal/layout"
	"github.com/weft-hpc/weft/internal/race"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// Data with a form
//
// The data of a send or receive with Env.Form is not one range of host memory (request.view): it has a
// layout, or lies in the memory of a device. It travels in the same messages as other data, so the sender
// and the receiver each may have a form or not:
//
//	sender with a form                             receiver with a form
//	part: packs an eager message or a segment      deliver: unpacks each message
//	      into a buffer of the engine ──► MsgEager, MsgData ──►  from the transport's memory
//
// A sender with a layout offers no memory region in its MsgRTS, and a receiver with a layout does not read by
// RMA. The same holds for device memory, unless the rail can register it (rail.device). Without RMA the
// receiver answers the MsgRTS by MsgCTS, and the data follows in segments (MsgData). So the sender packs
// one segment while the receiver unpacks the segment before it, and neither side needs memory for a copy of
// the whole message.
//
// A copy from or to a device can fail. Then the send or receive fails. If the copy for a segment fails, the
// first one included, the sender also ends the receive by a MsgFin with the error.

// viewSegment is the maximum length in bytes of the packed data in one MsgData. The sender writes a
// segment when it packs the data, and reads the segment when it sends it, so a segment should fit
// into the processor's second-level cache.
const viewSegment = 64 << 10

// setData stores the data of a send, or the buffer of a receive: the data of buf as f describes it, or all
// of buf if f is nil.
func (r *request) setData(buf []byte, f layout.Form) {
	r.buf, r.view, r.form = buf, nil, f
	if f != nil {
		r.buf, r.view, r.loaded = nil, buf, true
	}
}

// device is the form of data in the memory of a device.
type device interface {
	Memory() (kind string, ordinal int)
	// Allocation returns the number of the allocation that contains buf, as [transport.DeviceMemory] has it.
	Allocation(buf []byte) uint64
}

// whole returns all data of r as one range of memory, if a rail can register the range; otherwise nil. dev is
// the device that buf is memory of, without the number of the allocation; zero: the host.
func (r *request) whole(to *rail) (buf []byte, dev transport.DeviceMemory) {
	if r.form == nil {
		return r.buf, dev
	}
	if d, ok := r.form.(device); ok && to.device != nil {
		if kind, ordinal := d.Memory(); to.device.KnowsDevice(kind) {
			return r.view, transport.DeviceMemory{Kind: kind, Ordinal: ordinal}
		}
	}
	return nil, dev
}

// size returns the length in bytes of the data of a send, or of the buffer of a receive.
func (r *request) size() int {
	if r.form != nil {
		return r.form.DataSize(r.view)
	}
	return len(r.buf)
}

// acquire calls race.Acquire for the buffer of a receive. For data with a layout, the address of
// its first byte stands for the whole. The race detector knows nothing about the memory of devices.
func (r *request) acquire() {
	if !race.Enabled {
		return
	}
	if r.form == nil {
		race.Acquire(r.buf)
	} else if l, ok := r.form.(*layout.Layout); ok && l.Size() > 0 {
		race.Acquire(r.view[l.First():])
	}
}

// part returns n bytes of the data of a send, from the position off on. If the data has a form,
// part packs the bytes into a buffer, which dropPacked frees. If the endpoint had no room for the
// last part, the caller has not called dropPacked, and part returns the same buffer again.
//
// Hot path: no allocation in steady state.
func (e *Engine) part(r *request, off, n int) ([]byte, error) {
	if r.form == nil {
		return r.buf[off : off+n], nil
	}
	if r.packed == nil {
		r.packed = e.buffers.get(n)
		if err := r.form.Gather(r.packed, r.view, off); err != nil {
			e.dropPacked(r)
			return nil, err
		}
	}
	return r.packed, nil
}

// dropPacked frees the buffer that part has returned. The endpoint must not use it any more.
func (e *Engine) dropPacked(r *request) {
	if r.packed != nil {
		e.buffers.put(r.packed)
		r.packed = nil
	}
}

// deliver stores data, a part of a message from the position off on, in the buffer of a receive. It
// drops the bytes for which the buffer has no room. If a device does not take the data, the receive fails
// when the message is complete, and its buffer has undefined contents.
//
// Hot path: no allocation.
func (r *request) deliver(off int, data []byte) {
	if r.form == nil {
		copy(r.buf[off:], data)
		return
	}
	if err := r.form.Scatter(r.view, data, off); err != nil && (r.err == nil || errors.Is(r.err, ErrTruncate)) {
		r.err = err
	}
}

// copyTo copies the first len(dst) bytes of the data to dst.
func (r *request) copyTo(dst []byte) error {
	if r.form == nil {
		copy(dst, r.buf)
		return nil
	}
	return r.form.Gather(dst, r.view, 0)
}

// completeOwn is completeEager for a message from this rank to itself. The data is still in the
// buffer of the send s.
func (e *Engine) completeOwn(r, s *request, m *wire.Message) error {
	if s.form == nil {
		return e.completeEager(r, s.peer, m, s.buf)
	}
	if err := e.matched(r, s.peer, m); err != nil {
		return err
	}
	for off, n := 0, min(m.Length, r.size()); off < n; off += viewSegment {
		data, err := e.part(s, off, min(viewSegment, n-off))
		if err != nil {
			e.complete(r, err)
			return err
		}
		r.deliver(off, data)
		e.dropPacked(s)
	}
	e.complete(r, r.err)
	return nil
}
