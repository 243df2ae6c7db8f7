//go:build libfabric

package libfabric

import (
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// atomicEndpoint is an endpoint whose libfabric provider supports RMA and atomic operations.
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

// family selects the libfabric call that an atomic operation needs.
type family uint8

const (
	plain    family = iota // Op.Compare and Op.Fetch are nil: fi_atomicmsg
	fetching               // Op.Compare is nil, Op.Fetch is not: fi_fetch_atomic
	swapping               // Op.Compare is not nil: fi_compare_atomic
	families               // number of families
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

// atomicTable holds the largest number of elements that one call of Atomic takes, for each family,
// operation and element type; 0: such a call is not supported.
type atomicTable [families][transport.AtomicOps][transport.Datatypes]int32

// operandSize is the space in bytes that the arena's buffer for a [slot] has for each of the three
// operands of an atomic operation: data, compare and fetch. Atomic and slotDone copy the operands
// between this buffer and the caller's memory, so the caller's memory needs neither a pin nor a
// registration.
const operandSize = slotSize / 3 &^ 63

// probeAtomics asks the provider about every family, operation and element type, and stores the
// answers in d.atomics. If the provider supports any, probeAtomics sets CapAtomic. A provider may
// have FI_ATOMIC and support no operation, as net does. probeAtomics does not ask rxd, whose
// fetching operations crash the process in libfabric 1.17, so over rxd no operation is supported.
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

// AtomicValid returns the largest number of elements that op may have, and whether Atomic supports
// op.
func (e atomicEndpoint) AtomicValid(op *transport.Op) (int, bool) {
	if op.Atomic >= transport.AtomicOps || op.Datatype >= transport.Datatypes {
		return 0, false
	}
	n := int(e.d.atomics[familyOf(op)][op.Atomic][op.Datatype])
	return n, n > 0
}

// Atomic calls fi_atomicmsg (with FI_DELIVERY_COMPLETE), fi_fetch_atomic or fi_compare_atomic. It
// does so also for an operation on memory of this process, so that the operation is atomic with
// respect to operations of peers on the same memory.
//
// Hot path: no allocation, one call to C.
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
		// d.check accepts this process as the peer even before its own address is inserted, but
		// libfabric needs the address.
		return transport.ErrAddress
	case n == 0:
		d.opDone(op, nil)
		return nil
	}
	a := d.arena
	i := a.acquire(opAtomic, op.Peer, op)
	if i < 0 {
		return transport.ErrAgain
	}
	data, compare, fetch := operands(a.slotBuf(i))
	copy(data, operand)
	copy(compare, op.Compare)
	req := &d.request
	*req = fi.RawAtomic{
		Op: atomicOps[op.Atomic], Type: datatypes[op.Datatype], Count: n / size,
		Data: fi.AddressOf(data), Compare: fi.AddressOf(compare), Fetch: fi.AddressOf(fetch),
		Desc: a.desc, Dest: d.av.at(op.Peer), Addr: op.RemoteAddr, Key: d.laneKey(op.Peer, op.RemoteKey, 0), Context: a.context(i),
	}
	how := familyOf(op)
	if how == plain && d.info.Fabric.ProvName == "shm" {
		how = fetching // shm of libfabric 1.17 frees a buffer twice in fi_atomicmsg with FI_DELIVERY_COMPLETE
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
		a.free(i)
		return d.postFailed(op.Peer, opAtomic.String(), rc)
	}
	d.peers[op.Peer].clearNoRoom()
	return nil
}

// operands splits b, the arena's buffer for a [slot], into the three operands of an atomic
// operation.
func operands(b []byte) (data, compare, fetch []byte) {
	return b[:operandSize], b[operandSize : 2*operandSize], b[2*operandSize : 3*operandSize]
}
