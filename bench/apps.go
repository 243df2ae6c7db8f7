package main

import (
	"fmt"
	"math"
	"time"

	"github.com/weft-hpc/weft/comm"
)

// The benchmarks of this file time communication as programs use it: each rank computes between its
// calls of package comm. The figures contain only the time in these calls. That includes the time
// that a rank waits for another rank that computes longer.

// computeExchange has pairs of ranks exchange messages after a computation. The pairs are those of
// the benchmark mr. A size is the time of the computation in microseconds.
var computeExchange = benchmark{
	name:   "compute",
	help:   "Sendrecv of 8 KiB between pairs of ranks after N us of computation; us in Sendrecv, mean over ranks",
	sizes:  "10,100,1000,10000",
	counts: "microseconds",
	even:   true,
	prepare: func(c *comm.Comm, micros int) (*part, error) {
		const bytes = 8 << 10
		peer := (c.Rank() + c.Size()/2) % c.Size()
		send, recv := make([]byte, bytes), make([]byte, bytes)
		fill(send, c.Rank())
		exchange := func() error {
			_, err := comm.Sendrecv(c, send, peer, tag, recv, peer, tag)
			return err
		}
		loops := max(int(float64(micros)*1e-6/loopTime()), 1)
		return &part{
			mean: true,
			verify: func() error {
				if err := exchange(); err != nil {
					return err
				}
				return compare(recv, peer)
			},
			repeat: func(n int) (time.Duration, error) {
				var sum time.Duration
				for range n {
					compute(loops)
					start := time.Now()
					if err := exchange(); err != nil {
						return 0, err
					}
					sum += time.Since(start)
				}
				return sum, nil
			},
		}, nil
	},
}

// jacobi does iterations of Jacobi's method on a grid. Each rank has N rows of N points, where N is
// the size.
var jacobi = benchmark{
	name:    "jacobi",
	help:    "Jacobi's method on N x N points per rank, rows in turn: halo of two rows, residual by Allreduce; us in comm per iteration, mean over ranks",
	sizes:   "64,256,1024",
	counts:  "rows",
	prepare: prepareJacobi,
}

// strip is what a rank needs to work on its rows of a grid. A buffer from grid holds these rows, and
// above and below them a row of each neighbour, the halo.
type strip struct {
	c        *comm.Comm
	n        int            // number of rows of this rank, and of points in a row
	up, down int            // the ranks with the rows above and below; comm.ProcNull: none
	reqs     []comm.Request // the requests of an exchange
	word     [1]float64     // the buffer of sum
	inComm   time.Duration  // time in the methods exchange and sum since the method repeat has set inComm to 0
}

func newStrip(c *comm.Comm, n int) *strip {
	s := &strip{c: c, n: n, up: c.Rank() - 1, down: c.Rank() + 1, reqs: make([]comm.Request, 4)}
	if s.up < 0 {
		s.up = comm.ProcNull
	}
	if s.down == c.Size() {
		s.down = comm.ProcNull
	}
	return s
}

// grid returns a buffer for n rows and the two rows of the halo.
func (s *strip) grid() []float64 { return make([]float64, (s.n+2)*s.n) }

// exchange sends this rank's outer rows of g to the neighbours, and receives their outer rows in the
// halo of g.
func (s *strip) exchange(g []float64) error {
	start, n := time.Now(), s.n
	s.reqs[0] = comm.Irecv(s.c, g[:n], s.up, tag)
	s.reqs[1] = comm.Irecv(s.c, g[(n+1)*n:], s.down, tag)
	s.reqs[2] = comm.Isend(s.c, g[n:2*n], s.up, tag)
	s.reqs[3] = comm.Isend(s.c, g[n*n:(n+1)*n], s.down, tag)
	err := comm.WaitAll(s.reqs)
	s.inComm += time.Since(start)
	return err
}

// sum returns the sum of x over all ranks.
func (s *strip) sum(x float64) (float64, error) {
	start := time.Now()
	s.word[0] = x
	err := comm.Allreduce(s.c, s.word[:], s.word[:], comm.Sum)
	s.inComm += time.Since(start)
	return s.word[0], err
}

// repeat returns a function for [part.repeat]. That function calls once n times, and returns the
// time that these calls spend in the methods exchange and sum.
func (s *strip) repeat(once func() error) func(n int) (time.Duration, error) {
	return func(n int) (time.Duration, error) {
		s.inComm = 0
		for range n {
			if err := once(); err != nil {
				return 0, err
			}
		}
		return s.inComm, nil
	}
}

// verify calls sum and checks the result, and exchange on a grid whose values identify their rank and
// position, and checks the halo.
func (s *strip) verify() error {
	ranks := s.c.Size()
	got, err := s.sum(float64(s.c.Rank() + 1))
	if err != nil {
		return err
	}
	if want := float64(ranks * (ranks + 1) / 2); got != want {
		return fmt.Errorf("the sum over ranks is %v, not %v", got, want)
	}
	g := s.grid()
	for i := range g {
		g[i] = float64(s.c.Rank()*len(g) + i)
	}
	if err := s.exchange(g); err != nil {
		return err
	}
	for i := range s.n {
		above, below := g[i], g[(s.n+1)*s.n+i]
		if want := float64(s.up*len(g) + s.n*s.n + i); s.up != comm.ProcNull && above != want {
			return fmt.Errorf("point %d from above is %v, not %v", i, above, want)
		}
		if want := float64(s.down*len(g) + s.n + i); s.down != comm.ProcNull && below != want {
			return fmt.Errorf("point %d from below is %v, not %v", i, below, want)
		}
	}
	return nil
}

func prepareJacobi(c *comm.Comm, n int) (*part, error) {
	if n < 3 {
		return nil, fmt.Errorf("%d rows are too few", n)
	}
	s := newStrip(c, n)
	old, grid := s.grid(), s.grid()
	for i := range old {
		old[i] = float64(i % 17)
	}
	once := func() error {
		if err := s.exchange(old); err != nil {
			return err
		}
		change := 0.0
		for r := 1; r <= n; r++ {
			above, row, below, to := old[(r-1)*n:r*n], old[r*n:(r+1)*n], old[(r+1)*n:(r+2)*n], grid[r*n:(r+1)*n]
			for i := 1; i < n-1; i++ {
				x := 0.25 * (above[i] + below[i] + row[i-1] + row[i+1])
				change += (x - row[i]) * (x - row[i])
				to[i] = x
			}
		}
		old, grid = grid, old
		_, err := s.sum(change)
		return err
	}
	return &part{mean: true, verify: s.verify, repeat: s.repeat(once), sample: appSample}, nil
}

// appSample is the shortest time of a batch of iterations. It is longer than minSample, because only
// the communication counts, which is a small part of an iteration.
const appSample = time.Millisecond

// cg does iterations of the conjugate gradient method on the same grid as jacobi.
var cg = benchmark{
	name:    "cg",
	help:    "conjugate gradients on N x N points per rank: halo of two rows, two Allreduce of 8 B; us in comm per iteration, mean over ranks",
	sizes:   "64,256,1024",
	counts:  "rows",
	prepare: prepareCG,
}

func prepareCG(c *comm.Comm, n int) (*part, error) {
	if n < 3 {
		return nil, fmt.Errorf("%d rows are too few", n)
	}
	s := newStrip(c, n)
	x, r, p, q := s.grid(), s.grid(), s.grid(), s.grid()
	first, last := n, (n+1)*n // the rank's own points are those from first to last-1 of a grid
	inner := func(g []float64) []float64 { return g[first:last] }
	right := func(i int) float64 { return 1 + float64(i%7) } // the right-hand side
	var rho float64
	begin := func() error {
		clear(x)
		for i := first; i < last; i++ {
			r[i] = right(i)
			p[i] = r[i]
		}
		var err error
		rho, err = s.sum(dot(inner(r), inner(r)))
		return err
	}
	once := func() error {
		if rho < 1e-20 { // the system is solved, so start again
			if err := begin(); err != nil {
				return err
			}
		}
		if err := s.exchange(p); err != nil {
			return err
		}
		s.laplace(q, p)
		pq, err := s.sum(dot(inner(p), inner(q)))
		if err != nil {
			return err
		}
		alpha := rho / pq
		axpy(inner(x), alpha, inner(p))
		axpy(inner(r), -alpha, inner(q))
		next, err := s.sum(dot(inner(r), inner(r)))
		if err != nil {
			return err
		}
		beta := next / rho
		for i := first; i < last; i++ {
			p[i] = r[i] + beta*p[i]
		}
		rho = next
		return nil
	}
	// verify does some iterations and then compares the residual r, which the iterations update,
	// with the residual computed from x. If a halo or a sum was wrong, they differ by more than
	// rounding errors.
	verify := func() error {
		if err := s.verify(); err != nil {
			return err
		}
		if err := begin(); err != nil {
			return err
		}
		for range checkedIterations {
			if err := once(); err != nil {
				return err
			}
		}
		if err := s.exchange(x); err != nil {
			return err
		}
		s.laplace(q, x)
		for i := first; i < last; i++ {
			if want := right(i) - q[i]; math.Abs(r[i]-want) > 1e-6 {
				return fmt.Errorf("the residual of point %d is %v, not %v", i-first, r[i], want)
			}
		}
		return nil
	}
	return &part{mean: true, verify: verify, repeat: s.repeat(once), sample: appSample}, nil
}

// checkedIterations is the number of iterations that the function verify of [cg] does.
const checkedIterations = 20

// laplace applies the five-point operator of the Laplace equation to from, and writes the result to
// to, except to its halo.
func (s *strip) laplace(to, from []float64) {
	n := s.n
	for row := 1; row <= n; row++ {
		above, mid, below, out := from[(row-1)*n:row*n], from[row*n:(row+1)*n], from[(row+1)*n:(row+2)*n], to[row*n:(row+1)*n]
		out[0] = 4*mid[0] - above[0] - below[0] - mid[1]
		for i := 1; i < n-1; i++ {
			out[i] = 4*mid[i] - above[i] - below[i] - mid[i-1] - mid[i+1]
		}
		out[n-1] = 4*mid[n-1] - above[n-1] - below[n-1] - mid[n-2]
	}
}

func dot(a, b []float64) float64 {
	sum := 0.0
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

// axpy adds alpha·x to y.
func axpy(y []float64, alpha float64, x []float64) {
	for i := range y {
		y[i] += alpha * x[i]
	}
}
