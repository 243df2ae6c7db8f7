// Ring teaches Send and Recv. The ranks form a ring, and a token goes around it many times.
//
//	gorun -np 4 ./examples/ring -rounds 1000
//
// Each rank checks the token and adds its rank to the token's sum. At the end rank 0 checks the sum
// and prints the time per hop.
package main

import (
	"flag"
	"fmt"
	"time"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/examples/internal/args"
)

// token is the type of the message. Any type without pointers can be the element type of a message.
type token struct {
	Hops int64
	Sum  int64 // sum of the ranks that the token has visited
}

const tag = 7

func main() {
	rounds := flag.Int("rounds", 1000, "`number` of times that the token goes around")
	comm.Main(func(c *comm.Comm) error {
		args.Parse(c, "-rounds >= 1 and no arguments", func() bool {
			return flag.NArg() > 0 || *rounds < 1
		})
		return pass(c, *rounds)
	})
}

func pass(c *comm.Comm, rounds int) error {
	rank, size := c.Rank(), c.Size()
	left, right := (rank+size-1)%size, (rank+1)%size
	out, in := make([]token, 1), make([]token, 1)
	if err := c.Barrier(); err != nil {
		return err
	}
	start := time.Now()
	for round := range rounds {
		// Rank 0 sends first and receives at the end of the round. It uses Isend, because in a
		// job of one rank it sends to itself, and Send may wait for the matching Recv.
		var sent comm.Request
		if rank == 0 {
			out[0] = in[0]
			out[0].Hops++
			sent = comm.Isend(c, out, right, tag)
		}
		if _, err := comm.Recv(c, in, left, tag); err != nil {
			return err
		}
		if _, err := sent.Wait(); err != nil {
			return err
		}
		hops := int64(round*size + rank)
		if rank == 0 {
			hops += int64(size)
		}
		if in[0].Hops != hops {
			return fmt.Errorf("round %d: the token has made %d hops, want %d", round, in[0].Hops, hops)
		}
		in[0].Sum += int64(rank)
		if rank != 0 {
			out[0] = token{Hops: in[0].Hops + 1, Sum: in[0].Sum}
			if err := comm.Send(c, out, right, tag); err != nil {
				return err
			}
		}
	}
	if rank != 0 {
		return nil
	}
	elapsed, hops := time.Since(start), rounds*size
	if want := int64(rounds) * int64(size*(size-1)/2); in[0].Sum != want {
		return fmt.Errorf("the sum in the token is %d, want %d", in[0].Sum, want)
	}
	fmt.Printf("%d hops over %d ranks: correct, %.2f us per hop\n", hops, size, float64(elapsed.Nanoseconds())/1e3/float64(hops))
	return nil
}
