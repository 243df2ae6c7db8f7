package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/weft-hpc/weft/comm"
)

// In the benchmarks of this file, rank 0 has many operations in flight with rank 1, which does not
// call the matching operations meanwhile.

// bsends times Bsend to a rank that does not receive meanwhile.
var bsends = benchmark{
	name:   "bsend",
	help:   "Bsend of 8 B, N of them to a rank that does not receive; us per call",
	sizes:  "20000",
	counts: "messages",
	measure: once(func(c *comm.Comm, n int) (time.Duration, error) {
		x := []int64{7}
		if c.Rank() == 0 {
			start := time.Now()
			for range n {
				if err := comm.Bsend(c, x, 1, tag); err != nil {
					return 0, err
				}
			}
			took := time.Since(start)
			return took / time.Duration(n), comm.Send(c, x, 1, tag+1)
		}
		if _, err := comm.Recv(c, x, 0, tag+1); err != nil {
			return 0, err
		}
		for i := range n {
			x[0] = 0
			if _, err := comm.Recv(c, x, 0, tag); err != nil {
				return 0, err
			}
			if x[0] != 7 {
				return 0, fmt.Errorf("message %d is %d", i, x[0])
			}
		}
		return 0, nil
	}),
}

// testAny times TestAny over receives, none of which is complete.
var testAny = benchmark{
	name:   "testany",
	help:   "TestAny over N incomplete receives, while the other rank computes; us per call",
	sizes:  "1,1000",
	counts: "requests",
	measure: once(func(c *comm.Comm, n int) (time.Duration, error) {
		const calls = 20_000
		rs, bufs := make([]comm.Request, n), make([]byte, n)
		if c.Rank() == 0 {
			for i := range rs {
				rs[i] = comm.Irecv(c, bufs[i:i+1], 1, tag+1+i)
			}
			start := time.Now()
			for range calls {
				if _, _, done, err := comm.TestAny(rs); done || err != nil {
					return 0, errors.Join(errors.New("a receive is complete"), err)
				}
			}
			took := time.Since(start)
			if err := comm.Send(c, bufs[:1], 1, tag); err != nil {
				return 0, err
			}
			return took / calls, comm.WaitAll(rs)
		}
		r := comm.Irecv(c, bufs[:1], 0, tag)
		for done := false; !done; { // compute, and call Test now and then, so that rank 1 makes progress
			compute(100_000)
			var err error
			if _, done, err = r.Test(); err != nil {
				return 0, err
			}
		}
		for i := range n {
			if err := comm.Send(c, bufs[:1], 0, tag+1+i); err != nil {
				return 0, err
			}
		}
		return 0, nil
	}),
}

// revoke times Revoke of a communicator after many sends that the other rank does not receive.
var revoke = benchmark{
	name:   "revoke",
	help:   "Revoke of a communicator with N sends to a rank that does not receive",
	sizes:  "80000",
	counts: "messages",
	measure: once(func(c *comm.Comm, n int) (time.Duration, error) {
		d, err := c.Dup()
		if err != nil {
			return 0, err
		}
		var took time.Duration
		if c.Rank() == 0 {
			x := make([]byte, 8)
			rs := make([]comm.Request, n)
			for i := range rs {
				rs[i] = comm.Isend(d, x, 1, tag)
			}
			start := time.Now()
			if err := d.Revoke(); err != nil {
				return 0, err
			}
			took = time.Since(start)
			// If WaitAll returns nil, all sends were complete before Revoke.
			if err := comm.WaitAll(rs); err != nil && !errors.Is(err, comm.ErrRevoked) {
				return 0, fmt.Errorf("sends on a revoked communicator: %w", err)
			}
			if err := comm.Send(c, x, 1, tag); err != nil {
				return 0, err
			}
		} else if _, err := comm.Recv(c, make([]byte, 8), 0, tag); err != nil {
			return 0, err
		}
		return took, d.Free()
	}),
}

// once returns a function for benchmark.measure. It calls do once on ranks 0 and 1, with a
// communicator of these two ranks. The result on rank 0 is the time that do returns there.
func once(do func(c *comm.Comm, n int) (time.Duration, error)) func(c *comm.Comm, o *options, n int) (*result, error) {
	return func(c *comm.Comm, o *options, n int) (*result, error) {
		if n < 1 {
			return nil, errors.New("expected 1 or more")
		}
		pair, err := c.Split(c.Rank()/2, c.Rank())
		if err != nil {
			return nil, err
		}
		r := &result{Bench: o.bench.name, Size: n, Ranks: c.Size(), Iterations: 1}
		if c.Rank() < 2 {
			took, err := do(pair, n)
			if err != nil {
				return nil, err
			}
			r.fill([]float64{took.Seconds()}, new(part))
		}
		return r, errors.Join(pair.Free(), c.Barrier())
	}
}
