// Heat2d lets heat spread over a plate, which the ranks share out in blocks:
// each holds a halo of its neighbours' cells and renews it before every step,
// with Irecv, Isend and WaitAll.
//
//	gorun -np 4 ./examples/heat2d -nx 512 -ny 512 -steps 200
//
// The walls stay at 0. Rank 0 gathers the blocks and compares them, bit for
// bit, with the plate that it computes alone.
package main

import (
	"flag"
	"fmt"
	"math"
	"time"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/examples/internal/args"
)

func main() {
	nx := flag.Int("nx", 256, "`cells` in x")
	ny := flag.Int("ny", 256, "`cells` in y")
	steps := flag.Int("steps", 100, "`steps` in time")
	comm.Main(func(c *comm.Comm) error {
		args.Parse(c, "-nx and -ny of 1 or more, -steps of 0 or more, and nothing else", func() bool {
			return flag.NArg() > 0 || *nx < 1 || *ny < 1 || *steps < 0
		})
		return solve(c, *nx, *ny, *steps)
	})
}

func solve(c *comm.Comm, nx, ny, steps int) error {
	px, py, ok := split(c.Size(), nx, ny)
	if !ok {
		return fmt.Errorf("a plate of %d x %d cells cannot be shared out to %d ranks", nx, ny, c.Size())
	}
	// Ranks count along x. A neighbour beyond the wall is ProcNull, with whom
	// transfers move nothing.
	x, y := c.Rank()%px, c.Rank()/px
	beside := func(x, y int) int {
		if x < 0 || x >= px || y < 0 || y >= py {
			return comm.ProcNull
		}
		return y*px + x
	}
	peers := [4]int{beside(x-1, y), beside(x+1, y), beside(x, y-1), beside(x, y+1)}
	p := newPlate(nx*x/px, nx*(x+1)/px, ny*y/py, ny*(y+1)/py)
	if err := comm.Barrier(c); err != nil {
		return err
	}
	start := time.Now()
	for range steps {
		if err := exchange(c, p, peers); err != nil {
			return err
		}
		p.step()
	}
	took := time.Since(start)

	// Block after block, in the order of ranks.
	var whole []float64
	counts := make([]int, c.Size())
	for r := range counts {
		x, y := r%px, r/px
		counts[r] = (nx*(x+1)/px - nx*x/px) * (ny*(y+1)/py - ny*y/py)
	}
	if c.Rank() == 0 {
		whole = make([]float64, nx*ny)
	}
	if err := comm.Gatherv(c, p.cells(), whole, counts, nil, 0); err != nil || c.Rank() != 0 {
		return err
	}
	alone := newPlate(0, nx, 0, ny)
	for range steps {
		alone.step()
	}
	for r := range counts {
		x0, y0, w := nx*(r%px)/px, ny*(r/px)/py, nx*(r%px+1)/px-nx*(r%px)/px
		for i, got := range whole[:counts[r]] {
			if want := alone.at(x0+i%w, y0+i/w); math.Float64bits(got) != math.Float64bits(want) {
				return fmt.Errorf("cell %d,%d of rank %d is %v, not %v as in the serial solution", x0+i%w, y0+i/w, r, got, want)
			}
		}
		whole = whole[counts[r]:]
	}
	fmt.Printf("%d x %d cells, %d steps on %d x %d ranks: equal to the serial solution, %v\n",
		nx, ny, steps, px, py, took.Round(time.Microsecond))
	return nil
}

// split finds px·py = ranks with the shortest borders, each rank at least a cell.
func split(ranks, nx, ny int) (px, py int, ok bool) {
	best := math.Inf(1)
	for x := 1; x <= ranks; x++ {
		y := ranks / x
		if ranks%x != 0 || x > nx || y > ny {
			continue
		}
		if border := float64(nx)/float64(x) + float64(ny)/float64(y); border < best {
			best, px, py, ok = border, x, y, true
		}
	}
	return px, py, ok
}

// exchange sends p's outermost cells to the neighbours and receives the halo,
// all sides at once. The tag is the direction in which the cells travel.
func exchange(c *comm.Comm, p *plate, peers [4]int) error {
	var reqs [8]comm.Request
	for side, peer := range peers {
		reqs[side] = comm.Irecv(c, p.in[side], peer, side^1)
	}
	p.pack()
	for side, peer := range peers {
		reqs[4+side] = comm.Isend(c, p.out[side], peer, side)
	}
	if err := comm.WaitAll(reqs[:]); err != nil {
		return err
	}
	p.unpack(peers)
	return nil
}
