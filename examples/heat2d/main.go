// Heat2d teaches the halo exchange of a grid in two dimensions. It computes how heat spreads over a
// plate. Each rank has one block of the plate's cells, and a halo: copies of its neighbors'
// outermost cells. Before every step the ranks update the halo with NeighborAlltoallView: a column of
// the block is sent and received where it lies.
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
	// The ranks form a grid, with y before x. At the border of the plate the neighbor is ProcNull, and the halo stays 0.
	grid, err := c.Cart([]int{py, px}, nil, comm.Reorder())
	if err != nil {
		return err
	}
	block := func(rank int) (x0, x1, y0, y1 int) {
		at := grid.Coords(rank)
		y, x := at[0], at[1]
		return nx * x / px, nx * (x + 1) / px, ny * y / py, ny * (y + 1) / py
	}
	p := newPlate(block(grid.Rank()))
	if err := grid.Barrier(); err != nil {
		return err
	}
	start := time.Now()
	for range steps {
		if err := comm.NeighborAlltoallView(grid, p.border, p.halo); err != nil {
			return err
		}
		p.step()
	}
	elapsed := time.Since(start)

	// Rank 0 gathers the blocks, each at its place in the plate.
	var whole []float64
	var places []comm.View[float64]
	if grid.Rank() == 0 {
		whole = make([]float64, nx*ny)
		for r := range grid.Size() {
			x0, x1, y0, y1 := block(r)
			places = append(places, comm.Of(whole, comm.Subarray([]int{ny, nx}, []int{y1 - y0, x1 - x0}, []int{y0, x0})))
		}
	}
	if err := comm.GatherView(grid.Comm, p.cells(), places, 0); err != nil || grid.Rank() != 0 {
		return err
	}
	alone := newPlate(0, nx, 0, ny)
	for range steps {
		alone.step()
	}
	for i, got := range whole {
		if want := alone.at(i%nx, i/nx); math.Float64bits(got) != math.Float64bits(want) {
			return fmt.Errorf("cell %d,%d is %v, want %v as in the serial solution", i%nx, i/nx, got, want)
		}
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
