package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/weft-hpc/weft/comm"
)

// initialize times Init and Finalize. It has neither prepare nor measure, because these get a
// communicator, which exists only after Init. main calls runInit instead.
var initialize = benchmark{
	name:  "init",
	help:  "Init, over ranks, and Finalize of rank 0; once",
	alone: true,
}

// runInit times Init on each rank and Finalize on rank 0. A process can call Init only once, so there
// is one sample per rank.
func runInit(o *options) error {
	start := time.Now()
	c, err := comm.Init(context.Background())
	if err != nil {
		return err
	}
	took := []float64{time.Since(start).Seconds()}
	all := make([]float64, c.Size())
	if err := comm.Gather(c, took, all, 0); err != nil {
		return errors.Join(err, c.Finalize())
	}
	rank, size := c.Rank(), c.Size()
	start = time.Now()
	if err := c.Finalize(); err != nil {
		return err
	}
	if rank != 0 {
		return nil
	}
	r := &result{Bench: initialize.name, Ranks: size, Iterations: 1}
	r.fill(all, new(part))
	r.Finalized = time.Since(start).Seconds() * 1e6
	return (&printer{c: c, o: o}).write(os.Stdout, r)
}
