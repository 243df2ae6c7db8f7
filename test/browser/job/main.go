// Command job exchanges data between its ranks until a file named end is in the directory that is its
// first argument. If a file named fail is there, rank 3 fails. While a file named stall is there, ranks 2
// and 7 do not enter the barrier of each step. Each rank writes its number and the second argument to
// stderr.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/weft-hpc/weft/comm"
)

// What rank 0 tells the other ranks in each step.
const (
	goOn = iota
	stall
	end
	fail
)

func main() {
	dir := os.Args[1]
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	}
	comm.Main(func(c *comm.Comm) error {
		right, left := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
		send, recv := make([]float64, 512*(1+c.Rank())), make([]float64, 512*c.Size())
		fmt.Fprintf(os.Stderr, "rank %d \x1b[31m%s\x1b[0m\n", c.Rank(), os.Args[2])
		for step := 0; ; step++ {
			if _, err := comm.Sendrecv(c, send, right, 1, recv, left, 1); err != nil {
				return err
			}
			order := []int{goOn}
			switch {
			case c.Rank() > 0:
			case exists("end"):
				order[0] = end
			case exists("fail"):
				order[0] = fail
			case exists("stall"):
				order[0] = stall
			}
			if err := comm.Bcast(c, order, 0); err != nil {
				return err
			}
			if order[0] == end {
				return nil
			}
			if order[0] == fail && c.Rank() == 3 {
				os.Exit(7)
			}
			for order[0] == stall && (c.Rank() == 2 || c.Rank() == 7) && exists("stall") {
				time.Sleep(10 * time.Millisecond)
			}
			if err := c.Barrier(); err != nil {
				return err
			}
			if c.Rank() == 0 && step%2000 == 0 {
				fmt.Printf("step %d\n", step)
			}
		}
	})
}
