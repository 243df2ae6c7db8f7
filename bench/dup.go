package main

import (
	"github.com/weft-hpc/weft/comm"
)

// dup and dupUsed time the creation and release of a communicator: dup without a collective on it,
// dupUsed with one, for which the ranks of a host allocate shared memory.
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
		prepare: func(c *comm.Comm, _ int) (*part, error) { return lives(c, comm.Barrier), nil },
	}
)

// lives creates and frees communicators. If use is not nil, it calls use once on each.
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
