package main

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/weft-hpc/weft/comm"
)

// All ranks measure a benchmark together, one size after another. In the warm-up, each round does
// twice as many operations as the one before. A batch is a number of operations that are timed
// together; each batch gives one sample.
//
//	prepare ─► verify ─► warm up, doubling ─► rank 0 chooses ─► batch … batch ─► reduce the samples
//	                        └── Bcast: continue? ─┘ └─ Bcast ─┘

// benchmark describes one benchmark. No field changes while the program runs.
type benchmark struct {
	name   string
	help   string
	sizes  string // default of -sizes; empty: the benchmark has no sizes
	counts string // the unit of sizes; empty: bytes
	unit   int    // sizes must be multiples of unit; 0 means 1
	even   bool   // the benchmark needs an even number of ranks
	alone  bool   // the benchmark can run with one rank; false: it needs two or more

	// prepare returns this rank's part in the benchmark of one size. All ranks call it.
	prepare func(c *comm.Comm, size int) (*part, error)
	// measure, if not nil, replaces [measure]: it measures one size, and prepare is nil.
	measure func(c *comm.Comm, o *options, size int) (*result, error)
}

// part is one rank's part in a benchmark of one size.
type part struct {
	// verify does the operation and checks the data. All ranks call it; nil: there is nothing
	// to check.
	verify func() error
	// repeat does the operation n times and returns the time to report. It is nil on
	// ranks that do not take part.
	repeat func(n int) (time.Duration, error)

	// perOp is the number by which the time of an operation is divided, for example the number of
	// its messages; 0 means 1.
	perOp   float64
	bytes   float64 // number of bytes that an operation moves, for the bandwidth; 0: no bandwidth
	mean    bool    // a sample is the mean over ranks; false: it is the time of rank 0
	message float64 // number of messages of an operation, for the message rate; 0: no rate

	sample time.Duration // shortest time of a batch; 0 means minSample

	// reset clears what the operations of the warm-up have stored; nil: nothing.
	reset func()

	// more adds fields to the result on rank 0. All ranks call it, with the samples in
	// seconds per operation; nil: there are none to add.
	more func(samples []float64, r *result) error

	// close releases the resources of prepare. All ranks call it, unless the measurement
	// fails; nil: there are none.
	close func() error
}

// Each size has at most maxSamples samples. A batch takes at least minSample, so that the time to
// read the clock is only a small part of it.
const (
	maxSamples = 10_000
	minSample  = 10 * time.Microsecond
)

// sizeUnit returns the unit of sizes.
func (b *benchmark) sizeUnit() string { return cmp.Or(b.counts, "bytes") }

func (b *benchmark) checkSizes(sizes []int) error {
	for _, n := range sizes {
		if b.unit > 1 && n%b.unit != 0 {
			return fmt.Errorf("%d is no multiple of %d, the size of an element", n, b.unit)
		}
	}
	return nil
}

func (b *benchmark) checkRanks(ranks int) error {
	switch {
	case b.alone:
	case ranks < 2:
		return fmt.Errorf("%s needs two ranks or more, and has %d", b.name, ranks)
	case b.even && ranks%2 != 0:
		return fmt.Errorf("%s needs an even number of ranks, and has %d", b.name, ranks)
	}
	return nil
}

// runSizes measures o.bench for each size.
func runSizes(c *comm.Comm, o *options) error {
	if err := o.bench.checkRanks(c.Size()); err != nil {
		return err
	}
	p, do := &printer{c: c, o: o}, o.bench.measure
	if do == nil {
		do = measure
	}
	for _, size := range o.sizes {
		r, err := do(c, o, size)
		if err != nil {
			return fmt.Errorf("%s of %d %s: %w", o.bench.name, size, o.bench.sizeUnit(), err)
		}
		if err := p.print(r); err != nil {
			return err
		}
	}
	return nil
}

// measure measures one size. Only the result of rank 0 has valid figures.
func measure(c *comm.Comm, o *options, size int) (*result, error) {
	p, err := o.bench.prepare(c, size)
	if err != nil {
		return nil, err
	}
	r, err := p.measure(c, o, size)
	if err == nil && p.close != nil {
		err = p.close()
	}
	return r, err
}

func (p *part) measure(c *comm.Comm, o *options, size int) (*result, error) {
	if p.verify != nil {
		if err := p.verify(); err != nil {
			return nil, fmt.Errorf("verify: %w", err)
		}
	}
	r := &result{Bench: o.bench.name, Size: size, Ranks: c.Size()}
	if o.check {
		return r, c.Barrier()
	}
	if p.repeat == nil {
		p.repeat = func(int) (time.Duration, error) { return 0, nil }
	}
	perOp, err := warmUp(c, p, o)
	if err != nil {
		return nil, err
	}
	batches, per, err := agree(c, o, perOp, max(p.sample, minSample))
	if err != nil {
		return nil, err
	}
	samples, allocs, err := sample(c, p, batches, per)
	if err != nil {
		return nil, err
	}
	if p.more != nil {
		if err := p.more(samples, r); err != nil {
			return nil, err
		}
	}
	r.fill(samples, p)
	r.Iterations, r.Allocs = batches*per, allocs
	return r, nil
}

// warmUp repeats the operation in rounds, each with twice as many operations as the one before.
// Rank 0 decides when to stop: if a round took more than a tenth of the time budget, or the next
// round would have more than o.iters operations. warmUp returns the time of one operation in the
// last round.
func warmUp(c *comm.Comm, p *part, o *options) (time.Duration, error) {
	n := []int{1}
	for {
		if err := c.Barrier(); err != nil {
			return 0, err
		}
		start := time.Now()
		if _, err := p.repeat(n[0]); err != nil {
			return 0, err
		}
		took := time.Since(start)
		done := n[0]
		n[0] *= 2
		if took > o.time/10 || o.iters > 0 && n[0] > o.iters {
			n[0] = 0
		}
		if err := comm.Bcast(c, n, 0); err != nil {
			return 0, err
		}
		if n[0] == 0 {
			return took / time.Duration(done), nil
		}
	}
}

// agree returns the number of batches and the number of operations per batch. Rank 0 chooses them for
// all ranks, so that a batch takes about the time least or longer, unless a single batch of all
// operations is shorter. perOp is the time of an operation.
func agree(c *comm.Comm, o *options, perOp, least time.Duration) (batches, per int, err error) {
	perOp = max(perOp, 1)
	iters := o.iters
	if iters == 0 {
		iters = int(max(o.time/perOp, 10))
	}
	per = max(int((least+perOp-1)/perOp), (iters+maxSamples-1)/maxSamples)
	per = min(per, iters)
	plan := []int{iters / per, per}
	if err := comm.Bcast(c, plan, 0); err != nil {
		return 0, 0, err
	}
	return plan[0], plan[1], nil
}

// sample times the batches. On rank 0 it returns the samples, which are seconds per operation, one for
// each batch, and the number of allocations per operation of the rank that allocates most.
func sample(c *comm.Comm, p *part, batches, per int) ([]float64, float64, error) {
	samples := make([]float64, batches)
	var before, after runtime.MemStats
	runtime.GC() // now, so that no garbage collection runs during the batches unless the benchmark allocates
	runtime.ReadMemStats(&before)
	if err := c.Barrier(); err != nil {
		return nil, 0, err
	}
	if p.reset != nil {
		p.reset()
	}
	for i := range samples {
		took, err := p.repeat(per)
		if err != nil {
			return nil, 0, err
		}
		samples[i] = took.Seconds() / float64(per)
	}
	runtime.ReadMemStats(&after)
	allocs := []float64{float64(after.Mallocs-before.Mallocs) / float64(batches*per)}
	if err := comm.Reduce(c, allocs, allocs, comm.Max, 0); err != nil {
		return nil, 0, err
	}
	if p.mean {
		if err := comm.Reduce(c, samples, samples, comm.Sum, 0); err != nil {
			return nil, 0, err
		}
		for i := range samples {
			samples[i] /= float64(c.Size())
		}
	}
	return samples, allocs[0], nil
}

// fill sets the times and rates of r. samples are the samples of the part p, in seconds per
// operation.
func (r *result) fill(samples []float64, p *part) {
	perOp := p.perOp
	if perOp == 0 {
		perOp = 1
	}
	s := slices.Clone(samples)
	slices.Sort(s)
	at := func(q float64) float64 { return s[int(q*float64(len(s)-1)+0.5)] }
	median, sum := at(0.5), 0.0
	for _, x := range s {
		sum += x
	}
	r.Mean = sum / float64(len(s)) * 1e6 / perOp
	r.Min, r.Median, r.P99, r.Max = s[0]*1e6/perOp, median*1e6/perOp, at(0.99)*1e6/perOp, s[len(s)-1]*1e6/perOp
	if median > 0 {
		r.Bandwidth = p.bytes / median
		r.Rate = p.message / median
	}
}

// timed returns a function for [part.repeat] that times n calls of once together.
func timed(once func() error) func(n int) (time.Duration, error) {
	return func(n int) (time.Duration, error) {
		start := time.Now()
		for range n {
			if err := once(); err != nil {
				return 0, err
			}
		}
		return time.Since(start), nil
	}
}

// apart returns a function for [part.repeat] that times each call of once, which is a collective,
// separately, and returns the sum. After each call there is a barrier, which is not timed, so that
// consecutive calls do not overlap. OSU's benchmarks do the same.
func apart(c *comm.Comm, once func() error) func(n int) (time.Duration, error) {
	return func(n int) (time.Duration, error) {
		var sum time.Duration
		for range n {
			start := time.Now()
			if err := once(); err != nil {
				return 0, err
			}
			sum += time.Since(start)
			if err := c.Barrier(); err != nil {
				return 0, err
			}
		}
		return sum, nil
	}
}
