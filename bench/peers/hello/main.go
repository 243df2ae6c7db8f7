// Hello is the smallest program: what it takes to start it is what a job costs.
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
