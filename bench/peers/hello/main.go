// Hello is the smallest program. The time to run it is the cost of a job.
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
