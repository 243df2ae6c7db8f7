// Heat2d teaches the halo exchange of a grid in two dimensions. It computes how heat spreads over a
// plate. Each rank has one block of the plate's cells, and a halo: copies of its neighbors'
// outermost cells. Before every step the ranks update the halo with Irecv, Isend and WaitAll.
//
//	gorun -np 4 ./examples/heat2d -nx 512 -ny 512 -steps 200
//
// The cells around the plate stay at 0. At the end rank 0 gathers the blocks, computes the whole
// plate by itself, and checks that both are equal bit for bit.
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
		args.Parse(c, "-nx >= 1, -ny >= 1, -steps >= 0 and no arguments", func() bool {
			return flag.NArg() > 0 || *nx < 1 || *ny < 1 || *steps < 0
		})
		return solve(c, *nx, *ny, *steps)
	})
}

func solve(c *comm.Comm, nx, ny, steps int) error {
	px, py, ok := split(c.Size(), nx, ny)
	if !ok {
		return fmt.Errorf("cannot divide a plate of %d x %d cells among %d ranks", nx, ny, c.Size())
	}
	// Rank r has block x = r%px, y = r/px. At the border of the plate the neighbor is ProcNull:
	// transfers with ProcNull complete at once and move no data.
	x, y := c.Rank()%px, c.Rank()/px
	rankAt := func(x, y int) int {
		if x < 0 || x >= px || y < 0 || y >= py {
			return comm.ProcNull
		}
		return y*px + x
	}
	peers := [4]int{rankAt(x-1, y), rankAt(x+1, y), rankAt(x, y-1), rankAt(x, y+1)}
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
	elapsed := time.Since(start)

	// Rank 0 gathers the blocks, in the order of the ranks.
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
				return fmt.Errorf("cell %d,%d of rank %d is %v, want %v as in the serial solution", x0+i%w, y0+i/w, r, got, want)
			}
		}
		whole = whole[counts[r]:]
	}
	fmt.Printf("%d x %d cells, %d steps on %d x %d ranks: equal to the serial solution, %v\n",
		nx, ny, steps, px, py, elapsed.Round(time.Microsecond))
	return nil
}

// split returns the numbers of blocks in x and y, with px·py = ranks, for which the borders between blocks
// are shortest. Each block has at least one cell. If that is impossible, ok is false.
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

// exchange sends the outermost cells of p to the neighbors and receives the cells of the halo from them, on
// all sides at the same time. The tag of a message is the side of the sender's block from which its cells
// come.
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
