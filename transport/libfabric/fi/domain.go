//go:build libfabric

package fi

// #include "shim.h"
import "C"

// Domain is an open network device, or a port of one (fi_domain(3)). Endpoints, completion queues,
// counters, address vectors and memory regions can be used together only if they are of one domain.
type Domain struct {
	object
	fabric *Fabric
	info   *Info
}

// OpenDomain opens the domain that info, an Info of this fabric, describes (fi_domain). The same
// domain may be opened several times.
func (f *Fabric) OpenDomain(info *Info) (*Domain, error) { return f.OpenDomain2(info, 0) }

// OpenDomain2 is OpenDomain with flags (fi_domain2): FlagPeer and flags of the provider.
func (f *Fabric) OpenDomain2(info *Info, flags Flags) (*Domain, error) {
	const function = "fi_domain"
	if !f.isOpen() {
		return nil, closedError(function)
	}
	if !f.matches(info) || info.Domain.Name == "" { // providers copy the name without checking that there is one
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

// Fabric returns the fabric that the domain was opened from.
func (d *Domain) Fabric() *Fabric { return d.fabric }

// Info returns the domain's copy of the Info that it was opened with. The caller must not modify
// it.
func (d *Domain) Info() *Info { return d.info }

// MRMode returns the domain's requirements on registered memory.
func (d *Domain) MRMode() MRMode { return d.info.Domain.MRMode }

// BindEQ makes eq report the completion of asynchronous memory registrations (fi_domain_bind). With
// FlagRegMR all registrations are asynchronous.
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

// CollectiveAttr is an argument and the result of QueryCollective (struct fi_collective_attr,
// fi_collective(3)).
type CollectiveAttr struct {
	Op            AtomicOp // argument: the operator, for a reduction
	Datatype      Datatype // argument
	DatatypeCount int      // result: largest number of elements
	DatatypeSize  int      // result: size of an element in bytes
	MaxMembers    int      // result: largest number of members
	Mode          Mode     // argument: what the caller supports; result: what the provider requires
}

// QueryCollective returns the limits of the collective operation coll with the operator and the
// datatype in attr (fi_query_collective), or an error if the domain does not support that.
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
