// Hello is a program in which each rank only prints a line. The time to run it is the cost of starting
// and ending a job.
package main

import (
	"fmt"

	"github.com/weft-hpc/weft/comm"
)

func main() {
	comm.Main(func(c *comm.Comm) error {
		fmt.Println(c.Rank(), "of", c.Size())
		return nil
	})
}
