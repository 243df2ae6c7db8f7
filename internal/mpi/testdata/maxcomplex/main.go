// The program must not compile: the element type lacks the operation.
package main

import "github.com/weft-hpc/weft/comm"

func main() {
	comm.Main(func(c *comm.Comm) error {
		x := []complex128{1}
		return comm.Allreduce(c, x, x, comm.Max)
	})
}
