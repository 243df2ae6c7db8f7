// Survive computes pi in rounds, and goes on without ranks that die.
//
//	gorun -on-failure notify -np 4 ./examples/survive -die 2
//
// Every rank keeps what all have found so far, so the ranks that are left have
// lost nothing but the round in which one died. With -die a rank kills itself,
// before the round that -at names.
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
	kill          func() // ends this rank
}

func main() {
	o := options{kill: func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }}
	flag.IntVar(&o.rounds, "rounds", 20, "`number` of rounds")
	flag.IntVar(&o.terms, "n", 100000, "`intervals` that a round adds up")
	flag.IntVar(&o.die, "die", -1, "`rank` that is to kill itself")
	flag.IntVar(&o.at, "at", 7, "`round` before which it does")
	comm.Main(func(c *comm.Comm) error {
		args.Parse(c, "-rounds and -n of 1 or more and no arguments", func() bool {
			return flag.NArg() > 0 || o.rounds < 1 || o.terms < 1
		})
		return survive(c, &o, os.Stdout)
	})
}

// state is what all ranks know after some rounds.
type state struct {
	rounds int
	sum    float64
}

func survive(world *comm.Comm, o *options, out io.Writer) error {
	c := world
	// An Allreduce that fails on one rank may have ended well on another, which is
	// a round ahead then. It must be able to go back to where the others are.
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
			if c, err = goOn(c, err, out); err != nil {
				return err
			}
			least := []int{last.rounds}
			if err := comm.Allreduce(c, least, least, comm.Min); failure(err) {
				continue // one more has died; the next round fails too
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

// round adds the next terms to the sum, each rank its share.
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

// failure says whether ranks have died: this one was told, or one that was.
func failure(err error) bool {
	return errors.Is(err, comm.ErrProcFailed) || errors.Is(err, comm.ErrRevoked)
}

// goOn makes a communicator of the ranks that are left.
func goOn(c *comm.Comm, why error, out io.Writer) (*comm.Comm, error) {
	if err := c.Revoke(); err != nil { // so that no rank waits in the old one
		return nil, err
	}
	next, err := c.Shrink()
	if err == nil && next.Rank() == 0 {
		fmt.Fprintf(out, "%v: %d of %d ranks go on\n", why, next.Size(), c.Size())
	}
	return next, err
}
