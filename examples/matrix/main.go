// Matrix teaches files that all ranks read and write together. The ranks have a matrix in the
// distribution of ScaLAPACK: square blocks go to a grid of ranks in turn, in both dimensions. Each
// rank has its blocks in one slice. One call of WriteAll puts all elements to their places in a file,
// which then has the matrix row by row, as a serial program would write it.
//
//	gorun -np 4 ./examples/matrix -rows 1000 -cols 800 -block 64
//
// Then the ranks read the file in another distribution, in which each rank has some whole rows, and
// check every element. The file is deleted at the end, unless -keep is set.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/pio"
	"github.com/weft-hpc/weft/examples/internal/args"
)

// matrix is the shape of the matrix, and its distribution to the ranks.
type matrix struct {
	rows, cols, block int
}

func main() {
	var m matrix
	flag.IntVar(&m.rows, "rows", 1000, "`rows` of the matrix")
	flag.IntVar(&m.cols, "cols", 800, "`columns` of the matrix")
	flag.IntVar(&m.block, "block", 64, "rows and columns of a `block`")
	name := flag.String("file", "matrix.data", "name of the `file`")
	keep := flag.Bool("keep", false, "keep the file")
	comm.Main(func(c *comm.Comm) error {
		args.Parse(c, "-rows >= 1, -cols >= 1, -block >= 1 and no arguments", func() bool {
			return flag.NArg() > 0 || m.rows < 1 || m.cols < 1 || m.block < 1
		})
		mode := os.O_RDWR | os.O_CREATE | os.O_TRUNC
		if !*keep {
			mode |= pio.DeleteOnClose
		}
		f, err := pio.Open(c, *name, mode, 0o644)
		if err != nil {
			return err
		}
		if err := m.store(c, f); err != nil {
			return err
		}
		return f.Close()
	})
}

// store writes the matrix to the file, and reads and checks it.
func (m matrix) store(c *comm.Comm, f *pio.File) error {
	dims, err := comm.Dims(c.Size(), 0, 0)
	if err != nil {
		return err
	}
	grid, err := c.Cart(dims, nil)
	if err != nil {
		return err
	}
	at := grid.Coords(grid.Rank())
	down := comm.Dim{Size: m.rows, Dist: comm.Cyclic, Block: m.block, Ranks: dims[0], Coord: at[0]}
	right := comm.Dim{Size: m.cols, Dist: comm.Cyclic, Block: m.block, Ranks: dims[1], Coord: at[1]}
	own := make([]float64, comm.Darray(down, right).Len())
	width := comm.Darray(right).Len() // number of columns that this rank has
	for i := range own {
		own[i] = m.value(global(down, i/width), global(right, i%width))
	}
	cyclic, err := pio.NewView[float64](f, 0, comm.Darray(down, right))
	if err != nil {
		return err
	}
	start := time.Now()
	if _, err := pio.WriteAll(cyclic, own); err != nil {
		return err
	}
	written := time.Since(start)

	// The same file with other parts: each rank has consecutive rows.
	rows := comm.Dim{Size: m.rows, Dist: comm.Blocks, Ranks: c.Size(), Coord: c.Rank()}
	byRows := comm.Darray(rows, comm.Dim{Size: m.cols, Ranks: 1})
	some, err := pio.NewView[float64](f, 0, byRows)
	if err != nil {
		return err
	}
	got := make([]float64, byRows.Len())
	start = time.Now()
	n, err := pio.ReadAll(some, got)
	if err != nil {
		return err
	}
	read := time.Since(start)
	if n != len(got) {
		return fmt.Errorf("the file has %d of %d elements", n, len(got))
	}
	first := c.Rank() * ((m.rows + c.Size() - 1) / c.Size())
	for i, x := range got {
		if want := m.value(first+i/m.cols, i%m.cols); x != want {
			return fmt.Errorf("element %d,%d is %v, want %v", first+i/m.cols, i%m.cols, x, want)
		}
	}
	if err := c.Barrier(); err != nil || c.Rank() > 0 {
		return err
	}
	mb := float64(8*m.rows*m.cols) / 1e6
	fmt.Printf("%d x %d matrix, blocks of %d on %d x %d ranks: read by rows and correct, write %.0f MB/s, read %.0f MB/s\n",
		m.rows, m.cols, m.block, dims[0], dims[1], mb/written.Seconds(), mb/read.Seconds())
	return nil
}

// global returns the index in the whole dimension of element i of the rank's part.
func global(d comm.Dim, i int) int {
	return (i/d.Block*d.Ranks+d.Coord)*d.Block + i%d.Block
}

// value returns the element of a row and a column.
func (m matrix) value(row, col int) float64 { return float64(row*m.cols + col) }
