// Command inflight is a job of one rank that accesses buffers of operations in flight. Its argument
// selects the case. The cases whose names have a colon are wrong programs.
package main

import (
	"errors"
	"os"

	"github.com/weft-hpc/weft/comm"
)

func main() {
	comm.Main(func(c *comm.Comm) error {
		small, large, got := make([]int, 4), make([]int, 1<<17), make([]int, 1<<17)
		switch os.Args[1] {
		case "right":
			for range 1000 {
				in := comm.Irecv(c, got, 0, 1)
				out := comm.Isend(c, large, 0, 1)
				_ = large[1] // reading the buffer of a send is correct
				if err := errors.Join(wait(in), wait(out)); err != nil {
					return err
				}
				large[0]++
				got[0]--
				early := comm.Isend(c, small, 0, 2)
				late := comm.Irecv(c, got[:4], 0, 2)
				if err := errors.Join(wait(early), wait(late), comm.Allreduce(c, small, got[:4], comm.Sum)); err != nil {
					return err
				}
				small[0]++
				got[0]++
				if err := wait(comm.Iallreduce(c, small, got[:4], comm.Sum)); err != nil {
					return err
				}
				small[0]++
				got[0]++
			}
			return nil
		case "Isend: written before Wait":
			r := comm.Isend(c, small, 0, 1) // start Isend: written before Wait
			small[2]++
			return errors.Join(receive(c, got), wait(r))
		case "Isend: written after its receive":
			r := comm.Isend(c, large, 0, 1) // start Isend: written after its receive
			if err := receive(c, got); err != nil {
				return err
			}
			large[2]++
			return wait(r)
		case "Issend: written while others are in flight":
			r := comm.Issend(c, large, 0, 1) // start Issend: written while others are in flight
			if err := errors.Join(receive(c, got), others(c)); err != nil {
				return err
			}
			large[2]++
			return wait(r)
		case "Irecv: read before Wait":
			r := comm.Irecv(c, got[:4], 0, 1) // start Irecv: read before Wait
			small[0] = got[0]
			return errors.Join(comm.Send(c, small, 0, 1), wait(r))
		case "Irecv: written while others are in flight":
			r := comm.Irecv(c, got[:4], 0, 1) // start Irecv: written while others are in flight
			if err := others(c); err != nil {
				return err
			}
			got[1] = 1
			return errors.Join(comm.Send(c, small, 0, 1), wait(r))
		case "Irecv: read before Wait, the message has come":
			if err := comm.Send(c, small, 0, 1); err != nil {
				return err
			}
			r := comm.Irecv(c, got[:4], 0, 1) // start Irecv: read before Wait, the message has come
			small[0] = got[0]
			return wait(r)
		case "Iallreduce: written before Wait":
			r := comm.Iallreduce(c, small, got[:4], comm.Sum) // start Iallreduce: written before Wait
			small[0]++
			return wait(r)
		case "Ssend: written by another goroutine":
			start, end := make(chan int, 1), make(chan int, 1)
			go func() {
				<-start
				small[0]++
				_ = receive(c, got)
				end <- 1
			}()
			start <- 1
			err := comm.Ssend(c, small, 0, 1) // start Ssend: written by another goroutine
			<-end
			return err
		}
		return nil
	})
}

func wait(r comm.Request) error {
	_, err := r.Wait()
	return err
}

func receive(c *comm.Comm, buf []int) error {
	_, err := comm.Recv(c, buf, 0, 1)
	return err
}

// others starts and completes other operations.
func others(c *comm.Comm) error {
	for range 100 {
		in := comm.Irecv(c, make([]int, 1), 0, 2)
		if err := errors.Join(comm.Send(c, []int{1}, 0, 2), wait(in), c.Barrier()); err != nil {
			return err
		}
	}
	return nil
}
