package main

import (
	"github.com/weft-hpc/weft/comm"
)

// dup and dupUsed time the creation and release of a communicator. dupUsed also calls a collective on
// the communicator, because the ranks of a host allocate shared memory at the first collective.
var (
	dup = benchmark{
		name:    "dup",
		help:    "Dup and Free of the copy",
		alone:   true,
		prepare: func(c *comm.Comm, _ int) (*part, error) { return lives(c, nil), nil },
	}
	dupUsed = benchmark{
		name:    "dup-barrier",
		help:    "Dup, Barrier on the copy, and Free of it",
		alone:   true,
		prepare: func(c *comm.Comm, _ int) (*part, error) { return lives(c, (*comm.Comm).Barrier), nil },
	}
)

// lives returns a part that creates and frees communicators. If use is not nil, the part calls the
// function use once on each communicator.
func lives(c *comm.Comm, use func(*comm.Comm) error) *part {
	return &part{mean: true, repeat: timed(func() error {
		d, err := c.Dup()
		if err == nil && use != nil {
			err = use(d)
		}
		if err != nil {
			return err
		}
		return d.Free()
	})}
}
