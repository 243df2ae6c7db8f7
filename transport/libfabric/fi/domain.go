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

// OpenDomain opens the domain of an Info (fi_domain).
func (f *Fabric) OpenDomain(info *Info) (*Domain, error) { return f.OpenDomain2(info, 0) }

// OpenDomain2 is OpenDomain with flags (fi_domain2): FlagPeer and those of
// providers.
func (f *Fabric) OpenDomain2(info *Info, flags Flags) (*Domain, error) {
	if !f.isOpen() {
		return nil, closedError("fi_domain")
	}
	var (
		c  *C.struct_fid_domain
		rc C.int
	)
	if err := info.withC(func(i *C.struct_fi_info) {
		rc = C.fi_domain2(f.c(), i, &c, C.uint64_t(flags), nil)
	}); err != nil {
		return nil, err
	}
	if err := check("fi_domain", rc); err != nil {
		return nil, err
	}
	d := &Domain{fabric: f, info: info.Dup()}
	d.open(&c.fid, &f.object)
	return d, nil
}

func (d *Domain) c() *C.struct_fid_domain { return (*C.struct_fid_domain)(d.pointer()) }

// Fabric is the fabric that the domain was opened from.
func (d *Domain) Fabric() *Fabric { return d.fabric }

// Info is what the domain was opened with, for reading.
func (d *Domain) Info() *Info { return d.info }

// BindEQ makes asynchronous registrations of memory tell the queue that they
// are done (fi_domain_bind); with FlagRegMR all registrations are.
func (d *Domain) BindEQ(eq *EQ, flags Flags) error {
	if !d.isOpen() || !eq.isOpen() {
		return closedError("fi_domain_bind")
	}
	if err := check("fi_domain_bind", C.fi_domain_bind(d.c(), eq.fid, C.uint64_t(flags))); err != nil {
		return err
	}
	d.bind(&eq.object)
	return nil
}
