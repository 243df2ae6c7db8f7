//go:build linux

// Hello is a program for tests of launchers other than gorun. The ranks exchange messages, and each
// prints its rank and host.
//
//	srun -n 4 ./hello
//
// With "abort N" rank N aborts the job, and with "die N" it kills itself, while the others wait for
// a message from it.
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"github.com/weft-hpc/weft/comm"
)

func main() { comm.Main(hello) }

func hello(c *comm.Comm) error {
	rank, size := c.Rank(), c.Size()
	sum := []int{rank + 1}
	if err := comm.Allreduce(c, sum, sum, comm.Sum); err != nil {
		return err
	}
	if want := size * (size + 1) / 2; sum[0] != want {
		return fmt.Errorf("allreduce: got %d, want %d", sum[0], want)
	}
	const tag = 1
	left, right := (rank+size-1)%size, (rank+1)%size
	from := make([]int, 1000)
	to := make([]int, len(from))
	for i := range to {
		to[i] = rank*len(to) + i
	}
	if _, err := comm.Sendrecv(c, to, right, tag, from, left, tag); err != nil {
		return err
	}
	for i, v := range from {
		if v != left*len(from)+i {
			return fmt.Errorf("ring: element %d from rank %d is %d, want %d", i, left, v, left*len(from)+i)
		}
	}
	if len(os.Args) == 3 {
		return fail(c, os.Args[1], os.Args[2])
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	_, err = fmt.Printf("rank %d of %d on %s\n", rank, size, host)
	return err
}

// fail has one rank abort or kill itself, as action says. The other ranks wait for a message from that rank.
func fail(c *comm.Comm, action, rank string) error {
	const tag = 2
	failing, err := strconv.Atoi(rank)
	if err != nil {
		return err
	}
	if c.Rank() == failing {
		switch action {
		case "abort":
			c.Abort(5)
		case "die":
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return errors.New("usage: hello [abort N | die N]")
	}
	_, err = comm.Recv(c, make([]int, 1), failing, tag)
	return err
}
