package mpi

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/bootstrap"
)

// Publish implements comm.Port.Publish, which documents the call.
func (p *Port) Publish(name string) error {
	if p == nil || p.c == nil {
		return (*Comm)(nil).fail("Publish", noRank, noRank, fmt.Errorf("%w: the port is nil", ErrPort))
	}
	if p.port == nil {
		return nil // the root publishes
	}
	err := p.unpublish()
	if err == nil {
		p.file, err = p.port.Publish(p.c.s.job.home.world.Params, name)
	}
	return p.c.fail("Publish", noRank, noRank, portError(err))
}

// unpublish removes the published name of the port, if it has one.
func (p *Port) unpublish() error {
	if p.file == "" {
		return nil
	}
	file := p.file
	p.file = ""
	return p.port.Unpublish(file)
}

// Lookup implements comm.Comm.Lookup, which documents the call.
func (c *Comm) Lookup(name string) (addr string, err error) {
	s, err := c.live()
	if err == nil {
		addr, err = bootstrap.LookupPort(s.job.home.world.Params, name)
		err = portError(err)
	}
	return addr, c.fail("Lookup", noRank, noRank, err)
}

// portError returns err as an ErrPort, or nil if err is nil.
func portError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrPort, err)
}
