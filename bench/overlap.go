package main

import (
	"time"

	"github.com/weft-hpc/weft/comm"
)

// overlap measures how much of the time of an Iallreduce overlaps with computation, as
// osu_iallreduce does. It measures pure, overall and compute, and calculates the overlap in
// percent:
//
//	pure      time of Iallreduce and Wait
//	overall   time of Iallreduce, a computation that takes about as long as pure, and Wait
//	compute   time of that computation
//	overlap   100 · (1 - (overall - compute) / pure), but at least 0
var overlap = benchmark{
	name:    "iallreduce-overlap",
	help:    "Iallreduce of float32 during computation, mean over ranks",
	sizes:   "4..4m",
	unit:    elementBytes,
	alone:   true,
	prepare: prepareOverlap,
}

// overlapTrials is the number of operations over which the time pure is averaged.
const overlapTrials = 100

func prepareOverlap(c *comm.Comm, size int) (*part, error) {
	send, recv := make([]element, size/elementBytes), make([]element, size/elementBytes)
	fillValues(send, c.Rank())
	start := func() comm.Request { return comm.Iallreduce(c, send, recv, comm.Sum) }
	alone := func() error {
		_, err := start().Wait()
		return err
	}
	// loops is the argument of the function compute in an operation. done is the number of
	// operations so far.
	var loops, done int
	var computed time.Duration
	var pure float64
	both := func() error {
		r := start()
		begun := time.Now()
		compute(loops)
		computed += time.Since(begun)
		done++
		_, err := r.Wait()
		return err
	}
	return &part{
		mean:   true,
		bytes:  float64(size),
		repeat: apart(c, both),
		verify: func() (err error) {
			if err := alone(); err != nil {
				return err
			}
			if err := compareSum(recv, c.Size()); err != nil {
				return err
			}
			if pure, err = meanTime(c, apart(c, alone)); err != nil {
				return err
			}
			loops = max(int(pure/loopTime()), 1)
			return nil
		},
		reset: func() { computed, done = 0, 0 },
		more: func(samples []float64, r *result) error {
			mean := []float64{computed.Seconds() / float64(max(done, 1))}
			if err := comm.Allreduce(c, mean, mean, comm.Sum); err != nil {
				return err
			}
			calculated, overall := mean[0]/float64(c.Size()), 0.0
			for _, s := range samples {
				overall += s / float64(len(samples))
			}
			percent := max(0, 100*(1-(overall-calculated)/pure))
			r.Overlap, r.Pure, r.Compute = &percent, pure*1e6, calculated*1e6
			return nil
		},
	}, nil
}

// meanTime returns the time of an operation in seconds, as a mean over overlapTrials operations and over
// all ranks. Before that it does a tenth as many operations to warm up.
func meanTime(c *comm.Comm, repeat func(int) (time.Duration, error)) (float64, error) {
	if _, err := repeat(overlapTrials / 10); err != nil {
		return 0, err
	}
	took, err := repeat(overlapTrials)
	if err != nil {
		return 0, err
	}
	sum := []float64{took.Seconds() / overlapTrials}
	err = comm.Allreduce(c, sum, sum, comm.Sum)
	return sum[0] / float64(c.Size()), err
}

// compute keeps the core busy for about n times 50 ns.
func compute(n int) {
	x := computeSink
	for range n {
		for range 16 {
			x = x*0.999 + 0.5
		}
	}
	computeSink = x
}

// computeSink holds the result of compute, so that the compiler does not remove the computation.
var computeSink = 1.0

// loopTime returns the time of compute(1) in seconds: the shortest of several measurements.
func loopTime() float64 {
	const loops = 2000
	best := time.Duration(1 << 62)
	for range 20 {
		start := time.Now()
		compute(loops)
		best = min(best, time.Since(start))
	}
	return max(best.Seconds(), 1e-9) / loops
}
