//go:build libfabric

package libfabric

import (
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// rmaEndpoint is an endpoint whose libfabric provider supports RMA.
type rmaEndpoint struct{ *endpoint }

// Read posts a copy from the peer's memory to op.Data (fi_read). If the peer is this rank or
// op.Data is empty, Read completes op without libfabric.
//
// Hot path: no allocation, one call to C.
func (e rmaEndpoint) Read(op *transport.Op) error { return e.d.rma(op, opRead) }

// Write posts a copy of op.Data to the peer's memory (fi_writemsg). The operation completes when
// the data is in that memory; see domain.writeFlags. If the peer is this rank or op.Data is empty,
// Write completes op without libfabric.
//
// Hot path: no allocation, one call to C.
func (e rmaEndpoint) Write(op *transport.Op) error { return e.d.rma(op, opWrite) }

func (d *domain) rma(op *transport.Op, what operation) error {
	if err := d.check(op); err != nil {
		return err
	}
	if len(op.Data) > d.attr.MaxRMASize {
		return transport.ErrTooLarge
	}
	if op.Peer == d.cfg.Self {
		d.selfRMA(op, what)
		return nil
	}
	if len(op.Data) == 0 {
		d.opDone(op, nil)
		return nil
	}
	if err := d.checkLocal(op); err != nil {
		return err
	}
	p := &d.peers[op.Peer]
	if d.alternateRMA && p.rmaInFlight > 0 && p.rmaKind != what {
		return transport.ErrAgain
	}
	a := d.arena
	i := a.acquire(what, op.Peer, op)
	if i < 0 {
		return transport.ErrAgain
	}
	d.rmaStarted++
	s := &a.slots[i]
	s.order = d.rmaStarted
	s.pin.Pin(&op.Data[0])
	if n := min(len(d.lanes), d.av.width(op.Peer)); n > 1 && len(op.Data) >= d.stripeMin && !p.narrow {
		s.div = divide(len(op.Data), n)
	}
	if rc := d.postPart(i, 0, 0); rc != 0 {
		a.free(i)
		return d.postFailed(op.Peer, what.String(), rc)
	}
	p.rmaKind = what
	p.rmaInFlight++
	p.clearNoRoom()
	if v := &s.div; v.parts > 0 {
		v.inMain, v.todo = true, 1<<v.parts-2
		d.advance(i)
	}
	return nil
}

// postPart posts a part of the read or write in the [slot] with index i, in the lane with index k. An
// operation that is not divided has one part.
//
// Hot path: no allocation, one call to C.
func (d *domain) postPart(i, part, k int) fi.Errno {
	s, l := &d.arena.slots[i], d.lanes[k]
	op := s.op
	from, to := 0, len(op.Data)
	if s.div.parts > 0 {
		from, to = s.div.bounds(part)
	}
	data, dest := op.Data[from:to], l.av.at(op.Peer)
	addr, key := op.RemoteAddr+uint64(from), d.laneKey(op.Peer, op.RemoteKey, k)
	if s.what == opRead {
		return l.raw.Read(fi.AddressOf(data), len(data), d.local(op, k), dest, addr, key, l.context(i))
	}
	return l.raw.Write(fi.AddressOf(data), len(data), d.local(op, k), dest, addr, key, l.context(i), d.writeFlags)
}

// selfRMA copies between op.Data and a region of this process, and emits an OpDone.
func (d *domain) selfRMA(op *transport.Op, what operation) {
	want := transport.RemoteWrite
	if what == opRead {
		want = transport.RemoteRead
	}
	mem, err := d.mrs.find(op.RemoteKey, op.RemoteAddr, uint64(len(op.Data)), want)
	switch {
	case err != nil:
		err = d.peerError(what.String(), d.cfg.Self, err)
	case what == opRead:
		copy(op.Data, mem)
	default:
		copy(mem, op.Data)
	}
	d.opDone(op, err)
}
