package main

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/weft-hpc/weft/comm"
)

// A benchmark is measured size by size, by all ranks in step:
//
//	prepare ─► verify ─► warm up, doubling ─► rank 0 chooses ─► batch … batch ─► reduce the samples
//	                          └── Bcast: go on? ──┘ └─ Bcast ─┘

// benchmark describes one; it is never changed.
type benchmark struct {
	name   string
	help   string
	sizes  string // by default; empty: there are no messages
	counts string // what sizes count; empty: bytes
	unit   int    // sizes are multiples of it; 0 is 1
	even   bool   // needs an even number of ranks, else at least two
	alone  bool   // one rank is enough

	// prepare makes this rank's part for messages of size bytes.
	prepare func(c *comm.Comm, size int) (*part, error)
	// measure is in place of prepare where the usual steps do not fit.
	measure func(c *comm.Comm, o *options, size int) (*result, error)
}

// part is one rank's part in a benchmark of one size.
type part struct {
	// verify does the operation once with data that it checks.
	verify func() error
	// repeat does the operation n times and returns the time that counts. On
	// ranks that only look on it is nil.
	repeat func(n int) (time.Duration, error)

	perOp   float64 // divides the time of an operation, for a time per message; 0 is 1
	bytes   float64 // that an operation moves, for a bandwidth; 0: it has none
	mean    bool    // samples are the mean over ranks, else rank 0's own
	message float64 // messages of an operation, for a rate; 0: it is not told

	sample time.Duration // least length of a batch; 0 is minSample

	// reset forgets what the warm-up has left in the part; nil: nothing.
	reset func()

	// more adds fields to the result on rank 0; samples are seconds per
	// operation. It is called on all ranks.
	more func(samples []float64, r *result) error

	// close releases what prepare made, on all ranks; nil: there is nothing.
	close func() error
}

// The samples of a size are at most this many, each long enough that reading
// the clock does not count.
const (
	maxSamples = 10_000
	minSample  = 10 * time.Microsecond
)

// sizeUnit is what sizes count.
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

// runSizes measures o.bench with every size.
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

// measure returns a result on rank 0.
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
		return r, comm.Barrier(c)
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

// warmUp repeats the operation, twice as often each time, for a fifth of the
// budget, and returns how long one takes. Rank 0 says whether to go on.
func warmUp(c *comm.Comm, p *part, o *options) (time.Duration, error) {
	n := []int{1}
	for {
		if err := comm.Barrier(c); err != nil {
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

// agree returns how many batches of how many operations all ranks do: rank 0
// decides. A batch takes at least the time least.
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

// sample times the batches. It returns seconds per operation, batch by batch,
// and the allocations per operation of the rank that has most.
func sample(c *comm.Comm, p *part, batches, per int) ([]float64, float64, error) {
	samples := make([]float64, batches)
	var before, after runtime.MemStats
	runtime.GC() // none of it falls into the time, unless the benchmark makes garbage
	runtime.ReadMemStats(&before)
	if err := comm.Barrier(c); err != nil {
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

// fill sets what all benchmarks tell.
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

// timed makes a repeat of an operation whose time is taken as a whole.
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

// apart makes a repeat of a collective whose calls are timed one by one, with
// a barrier after each so that they do not overlap, as OSU's.
func apart(c *comm.Comm, once func() error) func(n int) (time.Duration, error) {
	return func(n int) (time.Duration, error) {
		var sum time.Duration
		for range n {
			start := time.Now()
			if err := once(); err != nil {
				return 0, err
			}
			sum += time.Since(start)
			if err := comm.Barrier(c); err != nil {
				return 0, err
			}
		}
		return sum, nil
	}
}
