//go:build libfabric

package libfabric

import (
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// atomicEndpoint is an endpoint of a fabric with atomics.
type atomicEndpoint struct{ rmaEndpoint }

var atomicOps = [transport.AtomicOps]fi.AtomicOp{
	transport.AtomicMin: fi.AtomicMin, transport.AtomicMax: fi.AtomicMax,
	transport.AtomicSum: fi.AtomicSum, transport.AtomicProd: fi.AtomicProd,
	transport.AtomicLor: fi.AtomicLogicalOr, transport.AtomicLand: fi.AtomicLogicalAnd,
	transport.AtomicBor: fi.AtomicBitOr, transport.AtomicBand: fi.AtomicBitAnd,
	transport.AtomicLxor: fi.AtomicLogicalXor, transport.AtomicBxor: fi.AtomicBitXor,
	transport.AtomicRead: fi.AtomicRead, transport.AtomicWrite: fi.AtomicWrite,
	transport.AtomicCswap: fi.AtomicCompareSwap,
}

var datatypes = [transport.Datatypes]fi.Datatype{
	transport.Int8: fi.TypeInt8, transport.Uint8: fi.TypeUint8,
	transport.Int16: fi.TypeInt16, transport.Uint16: fi.TypeUint16,
	transport.Int32: fi.TypeInt32, transport.Uint32: fi.TypeUint32,
	transport.Int64: fi.TypeInt64, transport.Uint64: fi.TypeUint64,
	transport.Float32: fi.TypeFloat32, transport.Float64: fi.TypeFloat64,
	transport.Complex64: fi.TypeComplex64, transport.Complex128: fi.TypeComplex128,
}

// family is which of libfabric's calls an atomic needs.
type family uint8

const (
	plain    family = iota // fi_atomic
	fetching               // fi_fetch_atomic
	swapping               // fi_compare_atomic
	families
)

func familyOf(op *transport.Op) family {
	switch {
	case op.Compare != nil:
		return swapping
	case op.Fetch != nil:
		return fetching
	}
	return plain
}

// atomicTable is how many elements at once the provider takes; 0: none.
type atomicTable [families][transport.AtomicOps][transport.Datatypes]int32

// operandSize is the room in a slot for each of an atomic's three operands,
// which are copied there: so they need neither pin nor region.
const operandSize = slotSize / 3 &^ 63

// probeAtomics fills the table. A provider may say FI_ATOMIC and have none, as
// net; those of rxd that fetch end the process in 1.17.
func (d *domain) probeAtomics() {
	if d.info.Caps&fi.CapAtomic == 0 || d.info.EP.Protocol == fi.ProtoRXD {
		return
	}
	for op, fiOp := range atomicOps {
		for t, fiType := range datatypes {
			for f, valid := range [families]func(fi.Datatype, fi.AtomicOp) (int, error){
				d.fiep.AtomicValid, d.fiep.FetchAtomicValid, d.fiep.CompareAtomicValid,
			} {
				n, err := valid(fiType, fiOp)
				if err != nil || n <= 0 {
					continue
				}
				d.atomics[f][op][t] = int32(min(n, operandSize/transport.Datatype(t).Size()))
				d.attr.Caps |= transport.CapAtomic
			}
		}
	}
}

// AtomicValid looks the operation up in what the provider said when it was opened.
func (e atomicEndpoint) AtomicValid(op *transport.Op) (int, bool) {
	if op.Atomic >= transport.AtomicOps || op.Datatype >= transport.Datatypes {
		return 0, false
	}
	n := int(e.d.atomics[familyOf(op)][op.Atomic][op.Datatype])
	return n, n > 0
}

// Atomic is one of fi_atomicmsg (with FI_DELIVERY_COMPLETE), fi_fetch_atomic and
// fi_compare_atomic, also from a process to itself: what peers do there at the
// same time must be seen.
//
// Hot path: no allocation, one crossing to C.
func (e atomicEndpoint) Atomic(op *transport.Op) error {
	d := e.d
	if err := d.check(op); err != nil {
		return err
	}
	limit, ok := e.AtomicValid(op)
	if !ok {
		return transport.ErrNotSupported
	}
	size := op.Datatype.Size()
	operand := op.Data
	if op.Atomic == transport.AtomicRead {
		operand = op.Fetch
	}
	n := len(operand)
	switch {
	case n%size != 0, op.Fetch != nil && len(op.Fetch) != n, op.Compare != nil && len(op.Compare) != n,
		op.Compare != nil && op.Fetch == nil:
		return transport.ErrBounds
	case n/size > limit:
		return transport.ErrTooLarge
	case int(op.Peer) >= d.av.n:
		return transport.ErrAddress // of this process itself, before addresses are there
	case n == 0:
		d.opDone(op, nil)
		return nil
	}
	a := d.arena
	i := a.take(opAtomic, op.Peer, op)
	if i < 0 {
		return transport.ErrAgain
	}
	data, compare, fetch := operands(a.buf(i))
	copy(data, operand)
	copy(compare, op.Compare)
	req := &d.request
	*req = fi.RawAtomic{
		Op: atomicOps[op.Atomic], Type: datatypes[op.Datatype], Count: n / size,
		Data: a.address(data), Compare: a.address(compare), Fetch: a.address(fetch),
		Desc: a.desc, Dest: d.av.at(op.Peer), Addr: op.RemoteAddr, Key: op.RemoteKey, Context: a.context(i),
	}
	how := familyOf(op)
	if how == plain && d.info.Fabric.ProvName == "shm" {
		how = fetching // 1.17 frees the buffer of a plain one twice if its delivery is asked for
	}
	var rc fi.Errno
	switch how {
	case swapping:
		rc = d.raw.CompareAtomic(req)
	case fetching:
		rc = d.raw.FetchAtomic(req)
	default:
		rc = d.raw.Atomic(req, fi.FlagCompletion|fi.FlagDeliveryComplete)
	}
	if rc != 0 {
		a.put(i)
		return d.postFailed(op.Peer, opAtomic.String(), rc)
	}
	d.peers[op.Peer].roomy()
	return nil
}

// operands are the parts of a slot's buffer that an atomic uses.
func operands(b []byte) (data, compare, fetch []byte) {
	return b[:operandSize], b[operandSize : 2*operandSize], b[2*operandSize : 3*operandSize]
}
