// Command account is for one or two ranks. With two, rank 0 sends ten messages of 8 bytes and two of
// 1 MiB to rank 1, which answers with a message of 100 bytes. If the command has an argument, rank 1
// then kills itself by SIGKILL.
package main

import (
	"os"
	"syscall"

	"github.com/weft-hpc/weft/comm"
)

func main() {
	comm.Main(func(c *comm.Comm) error {
		if c.Size() == 1 {
			return nil
		}
		answer := make([]byte, 100)
		for i := range 12 {
			n := 1
			if i >= 10 {
				n = 1 << 17
			}
			data := make([]int64, n)
			var err error
			if c.Rank() == 0 {
				err = comm.Send(c, data, 1, i)
			} else {
				_, err = comm.Recv(c, data, 0, i)
			}
			if err != nil {
				return err
			}
		}
		if c.Rank() == 0 {
			_, err := comm.Recv(c, answer, 1, 0)
			return err
		}
		if err := comm.Ssend(c, answer, 0, 0); err != nil {
			return err
		}
		if len(os.Args) > 1 {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return nil
	})
}
