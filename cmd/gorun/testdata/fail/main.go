// Command fail makes rank 1 fail as its argument says. The other ranks wait for rank 1 in a barrier.
package main

import (
	"errors"
	"os"

	"github.com/weft-hpc/weft/comm"
)

func main() {
	comm.Main(func(c *comm.Comm) error {
		if c.Rank() != 1 {
			return c.Barrier()
		}
		switch os.Args[1] {
		case "error":
			return errors.New("no such mesh")
		case "panic":
			panic("no such mesh")
		case "abort":
			c.Abort(7)
		case "exit":
			_, _ = os.Stderr.WriteString("no such mesh\n")
			os.Exit(5)
		}
		return nil
	})
}
