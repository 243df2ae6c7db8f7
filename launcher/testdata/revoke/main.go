// Command revoke is for two ranks. Rank 0 waits in a barrier. Rank 1 revokes the communicator, so
// the barrier fails and rank 0 ends with that error. Rank 1 waits until rank 0 has ended, and then
// ends with an error of its own, "no such mesh".
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/weft-hpc/weft/comm"
)

func main() {
	comm.Main(func(c *comm.Comm) error {
		pid := []int64{int64(os.Getpid())}
		if c.Rank() == 0 {
			if err := comm.Send(c, pid, 1, 0); err != nil {
				return err
			}
			return c.Barrier()
		}
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if _, err := comm.Recv(c, pid, 0, 0); err != nil {
			return err
		}
		if err := c.Revoke(); err != nil {
			return err
		}
		for !ended(pid[0]) {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		return errors.New("no such mesh")
	})
}

// ended reports whether a process is a zombie, or does not exist any more.
func ended(pid int64) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')'):], []byte(") Z"))
}
