//go:build libfabric

package fi

// #include "shim.h"
import "C"

// Domain is a device, or a port of one, opened for use: all that belongs to it
// can be used together (fi_domain(3)).
type Domain struct {
	object
	fabric *Fabric
	info   *Info
}

// OpenDomain opens the domain of an Info that is of this fabric (fi_domain). The
// same domain may be opened several times.
func (f *Fabric) OpenDomain(info *Info) (*Domain, error) { return f.OpenDomain2(info, 0) }

// OpenDomain2 is OpenDomain with flags (fi_domain2): FlagPeer and those of
// providers.
func (f *Fabric) OpenDomain2(info *Info, flags Flags) (*Domain, error) {
	const function = "fi_domain"
	if !f.isOpen() {
		return nil, closedError(function)
	}
	if !f.offers(info) || info.Domain.Name == "" { // providers copy the name without a look
		return nil, &Error{function, ErrInvalid}
	}
	var (
		c  *C.struct_fid_domain
		rc C.int
	)
	free, err := info.heldC(func(i *C.struct_fi_info) {
		rc = C.fi_domain2(f.c(), i, &c, C.uint64_t(flags), nil)
	})
	if err != nil {
		return nil, err
	}
	if err := check(function, rc); err != nil {
		free()
		return nil, err
	}
	d := &Domain{fabric: f, info: info.Dup()}
	d.open(&c.fid, &f.object)
	d.closed = append(d.closed, free)
	return d, nil
}

func (d *Domain) c() *C.struct_fid_domain { return (*C.struct_fid_domain)(d.pointer()) }

// Fabric is the fabric that the domain was opened from.
func (d *Domain) Fabric() *Fabric { return d.fabric }

// Info is what the domain was opened with, for reading.
func (d *Domain) Info() *Info { return d.info }

// MRMode is what the domain asks about registered memory.
func (d *Domain) MRMode() MRMode { return d.info.Domain.MRMode }

// BindEQ makes asynchronous registrations of memory tell the queue that they
// are done (fi_domain_bind); with FlagRegMR all registrations are.
func (d *Domain) BindEQ(eq *EQ, flags Flags) error {
	const function = "fi_domain_bind"
	if !d.isOpen() || !eq.isOpen() {
		return closedError(function)
	}
	if err := check(function, C.fi_domain_bind(d.c(), eq.fid, C.uint64_t(flags))); err != nil {
		return err
	}
	d.bind(&eq.object)
	return nil
}

// CollectiveAttr is what is asked about a collective operation, and the answer
// (struct fi_collective_attr, fi_collective(3)).
type CollectiveAttr struct {
	Op            AtomicOp // of operations that reduce
	Datatype      Datatype
	DatatypeCount int // answer: elements of the largest operation
	DatatypeSize  int // answer: bytes of an element
	MaxMembers    int // answer: ranks that may take part
	Mode          Mode
}

// QueryCollective says whether a collective operation is offered for an
// operator and a type, and within which limits (fi_query_collective).
func (d *Domain) QueryCollective(coll CollectiveOp, attr CollectiveAttr, flags Flags) (CollectiveAttr, error) {
	const function = "fi_query_collective"
	if !d.isOpen() {
		return CollectiveAttr{}, closedError(function)
	}
	c := C.struct_fi_collective_attr{
		op:       C.enum_fi_op(attr.Op),
		datatype: C.enum_fi_datatype(attr.Datatype),
		mode:     C.uint64_t(attr.Mode),
	}
	rc := C.fi_query_collective(d.c(), C.enum_fi_collective_op(coll), &c, C.uint64_t(flags))
	if err := check(function, rc); err != nil {
		return CollectiveAttr{}, err
	}
	attr.DatatypeCount = goSize(c.datatype_attr.count)
	attr.DatatypeSize = goSize(c.datatype_attr.size)
	attr.MaxMembers = goSize(c.max_members)
	attr.Mode = Mode(c.mode)
	return attr, nil
}
