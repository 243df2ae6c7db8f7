// Command hang runs for ever: its argument says how its ranks wait. Tests know the numbers of its lines.
package main

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/comm"
)

func main() {
	comm.Main(func(c *comm.Comm) error {
		if err := c.Barrier(); err != nil {
			return err
		}
		fmt.Println("up")
		buf := make([]int, 1)
		switch os.Args[1] {
		case "barrier": // the last rank waits for a message that rank 0 never sends
			if c.Rank() < c.Size()-1 {
				return c.Barrier()
			}
			_, err := comm.Recv(c, buf, 0, 99)
			return err
		case "ring": // each rank waits for a message from the next rank, and none sends one
			_, err := comm.Recv(c, buf, (c.Rank()+1)%c.Size(), 5)
			return err
		case "compute": // the last rank does not call Allreduce
			if c.Rank() < c.Size()-1 {
				return comm.Allreduce(c, buf, buf, comm.Sum[int])
			}
			compute()
		case "helper": // both ranks wait for a message; a goroutine of rank 0 that sleeps sends one much later
			if c.Rank() == 0 {
				go func() { // ends with the process
					time.Sleep(time.Hour)
					_ = comm.Send(c, buf, 1, 5)
				}()
			}
			_, err := comm.Recv(c, make([]int, 1), 1-c.Rank(), 5)
			return err
		case "pingpong": // no deadlock: two ranks exchange messages without end
			for {
				if _, err := comm.Sendrecv(c, buf, 1-c.Rank(), 5, make([]int, 1), 1-c.Rank(), 5); err != nil {
					return err
				}
			}
		case "relay": // no deadlock: one rank at a time sleeps, and then sends
			for next, last := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size(); ; {
				if c.Rank() > 0 {
					if _, err := comm.Recv(c, buf, last, 5); err != nil {
						return err
					}
				}
				time.Sleep(120 * time.Millisecond)
				if err := comm.Send(c, buf, next, 5); err != nil {
					return err
				}
				if c.Rank() == 0 {
					if _, err := comm.Recv(c, buf, last, 5); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
}

func compute() {
	var n atomic.Int64
	for {
		n.Add(1)
	}
}
