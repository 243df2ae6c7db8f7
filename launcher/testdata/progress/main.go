// Command progress is for two ranks. Rank 0 waits in a Barrier for rank 1, which sleeps for some
// seconds.
package main

import (
	"time"

	"github.com/weft-hpc/weft/comm"
)

func main() {
	comm.Main(func(c *comm.Comm) error {
		if c.Rank() == 1 {
			time.Sleep(5 * time.Second)
		}
		return c.Barrier()
	})
}
