package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/weft-hpc/weft/comm"
)

// crowd runs many goroutines on each rank that communicate at the same time. There are three kinds:
//
//	shift   sends to the next rank and receives from the previous one; 1 to 60 goroutines
//	reduce  calls collectives on a communicator of its own; 0 to 3 goroutines
//	idle    is blocked in Recv until all others have ended; 0 to 2 goroutines
//
// Sometimes a goroutine computes between two calls. So it is not always the same goroutine that drives
// the progress of the rank.
func crowd(k *call) error {
	p, me := k.c.Size(), k.c.Rank()
	members := 1 + k.rng.IntN(60)
	steps := 1 + k.rng.IntN(max(1, 600/members))
	own := k.rng.IntN(4) // number of communicators, and of goroutines of the kind reduce
	idle := k.rng.IntN(3)
	longest := k.length(8, members*2)
	var busy, idlers sync.WaitGroup
	errs := make(chan error, members+own+idle+1) // room for an error of each goroutine and of this one
	begin := func(wg *sync.WaitGroup, what string, f func(rng *rand.Rand) error) {
		rng := k.branch()
		wg.Go(func() {
			if err := f(rng); err != nil {
				errs <- k.fail(fmt.Errorf("crowd: %s: %w", what, err))
			}
		})
	}
	var comms []*comm.Comm
	for range own {
		c, err := k.c.Dup()
		if err != nil {
			return err
		}
		comms = append(comms, c)
	}
	for i := range idle {
		tag := k.tag + 60 + i
		begin(&idlers, "idle", func(*rand.Rand) error {
			got := []uint64{0}
			_, err := comm.Recv(k.c, got, (me+p-1)%p, tag)
			return errors.Join(err, same("idle", got, []uint64{uint64(i)}))
		})
	}
	for g := range members {
		s := shift{c: k.c, tag: k.tag + g, salt: mix(k.salt, uint64(g), 0), n: longest}
		begin(&busy, "shift", func(rng *rand.Rand) error { return s.run(k, rng, steps) })
	}
	for g, c := range comms {
		begin(&busy, "reduce", func(rng *rand.Rand) error {
			for i := range steps {
				sum := []int{0}
				r := comm.Iallreduce(c, []int{me + g + i}, sum, comm.Sum)
				computeBriefly(rng)
				if _, err := r.Wait(); err != nil {
					return err
				}
				if want := p*(p-1)/2 + p*(g+i); sum[0] != want {
					return fmt.Errorf("step %d: %d instead of %d", i, sum[0], want)
				}
			}
			return nil
		})
	}
	busy.Wait()
	for i := range idle {
		if err := comm.Send(k.c, []uint64{uint64(i)}, (me+1)%p, k.tag+60+i); err != nil {
			errs <- k.fail(err)
			break
		}
	}
	idlers.Wait()
	close(errs)
	var all error
	for err := range errs {
		all = errors.Join(all, err)
	}
	for _, c := range comms {
		if all == nil {
			all = c.Free()
		}
	}
	return all
}

// shift is the work of a goroutine that sends to the next rank and receives from the previous one. The
// ranks have the same number of these goroutines, and the i-th of each rank communicate with each
// other, with a tag of their own.
type shift struct {
	c    *comm.Comm
	tag  int
	salt uint64 // determines the test data
	n    int    // largest number of elements of a message
}

func (s shift) run(k *call, rng *rand.Rand, steps int) error {
	p, me := s.c.Size(), s.c.Rank()
	to, from := (me+1)%p, (me+p-1)%p
	waits := *k // a copy for the calls of wait, with a random number generator of this goroutine
	waits.own, waits.closers = rng, nil
	for i := range steps {
		n := int(mix(s.salt, uint64(i), 1) % uint64(s.n+1)) // the same on all ranks
		out, in, want := make([]uint64, n), make([]uint64, n), make([]uint64, n)
		for j := range out {
			out[j] = mix(s.salt, uint64(i<<32|j), uint64(me))
			want[j] = mix(s.salt, uint64(i<<32|j), uint64(from))
		}
		var err error
		switch rng.IntN(3) {
		case 0:
			_, err = comm.Sendrecv(s.c, out, to, s.tag, in, from, s.tag)
		case 1:
			err = comm.Bsend(s.c, out, to, s.tag)
			computeBriefly(rng)
			if err == nil {
				_, err = comm.Recv(s.c, in, from, s.tag)
			}
		default:
			rs := []comm.Request{comm.Irecv(s.c, in, from, s.tag), comm.Isend(s.c, out, to, s.tag)}
			computeBriefly(rng)
			_, err = waits.wait(rs)
		}
		if err == nil {
			err = same(fmt.Sprintf("step %d", i), in, want)
		}
		if err != nil {
			return err
		}
		computeBriefly(rng)
	}
	return nil
}

// computeBriefly computes for a short time in one of eight calls, and otherwise does nothing.
func computeBriefly(rng *rand.Rand) {
	if rng.IntN(8) == 0 {
		x := uint64(1)
		for i := range rng.IntN(20_000) {
			x = mix(x, uint64(i), 0)
		}
		computeSink.Store(x)
	}
}

// computeSink holds the result of computeBriefly, so that the compiler does not remove the computation.
var computeSink atomic.Uint64
