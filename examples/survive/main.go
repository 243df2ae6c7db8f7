// Survive teaches how a program continues without ranks that have failed, with Revoke and Shrink.
// It computes π in rounds.
//
//	gorun -on-failure notify -np 4 ./examples/survive -die 2
//
// After each round every rank has the sum of all rounds. So if a rank dies, the others repeat only
// the current round. With -die N rank N kills itself, before the round that -at gives.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/examples/internal/args"
)

type options struct {
	rounds, terms int
	die, at       int
	kill          func() // kills this rank
}

func main() {
	o := options{kill: func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }}
	flag.IntVar(&o.rounds, "rounds", 20, "`number` of rounds")
	flag.IntVar(&o.terms, "n", 100000, "`intervals` per round")
	flag.IntVar(&o.die, "die", -1, "`rank` that kills itself; -1: none")
	flag.IntVar(&o.at, "at", 7, "`round` before which the rank of -die kills itself")
	comm.Main(func(c *comm.Comm) error {
		args.Parse(c, "-rounds >= 1, -n >= 1 and no arguments", func() bool {
			return flag.NArg() > 0 || o.rounds < 1 || o.terms < 1
		})
		return survive(c, &o, os.Stdout)
	})
}

// state is the result of the rounds so far, which all ranks have.
type state struct {
	rounds int
	sum    float64
}

func survive(world *comm.Comm, o *options, out io.Writer) error {
	c := world
	// If a rank dies, Allreduce may fail on one of the other ranks and succeed on another. The
	// second is then one round ahead, and must go back by one round. So each rank keeps the last
	// two states.
	var last, before state
	for last.rounds < o.rounds {
		if world.Rank() == o.die && last.rounds == o.at {
			o.kill()
			return nil
		}
		next, err := round(c, last, o)
		switch {
		case err == nil:
			last, before = next, last
		case failure(err):
			if c, err = shrink(c, err, out); err != nil {
				return err
			}
			least := []int{last.rounds}
			if err := comm.Allreduce(c, least, least, comm.Min); failure(err) {
				continue // one more rank has died, so the next round fails too and is handled there
			} else if err != nil {
				return err
			}
			if least[0] < last.rounds {
				last = before
			}
		default:
			return err
		}
	}
	if c.Rank() == 0 {
		pi := last.sum / float64(o.rounds*o.terms)
		fmt.Fprintf(out, "pi is about %.12f, %d rounds, %d of %d ranks\n", pi, last.rounds, c.Size(), world.Size())
	}
	return nil
}

// round returns the state after the next round. Each rank computes a part of the round's terms, and
// Allreduce adds them up.
func round(c *comm.Comm, s state, o *options) (state, error) {
	sum := []float64{0}
	width := 1 / float64(o.rounds*o.terms)
	for i := s.rounds*o.terms + c.Rank(); i < (s.rounds+1)*o.terms; i += c.Size() {
		x := (float64(i) + 0.5) * width
		sum[0] += 4 / (1 + x*x)
	}
	err := comm.Allreduce(c, sum, sum, comm.Sum)
	return state{s.rounds + 1, s.sum + sum[0]}, err
}

// failure reports whether err says that a rank has failed, or that another rank has detected a
// failure and has called Revoke.
func failure(err error) bool {
	return errors.Is(err, comm.ErrProcFailed) || errors.Is(err, comm.ErrRevoked)
}

// shrink revokes c and returns a communicator of the ranks that have not failed. why is the error that
// reported the failure.
func shrink(c *comm.Comm, why error, out io.Writer) (*comm.Comm, error) {
	if err := c.Revoke(); err != nil { // ends the calls of ranks that still wait in c
		return nil, err
	}
	next, err := c.Shrink()
	if err == nil && next.Rank() == 0 {
		fmt.Fprintf(out, "%v: %d of %d ranks go on\n", why, next.Size(), c.Size())
	}
	return next, err
}
