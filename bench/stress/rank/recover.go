package main

import (
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/comm"
)

// recoverable are the operations that a job with -recover does until a rank is killed, all on the
// world. They make no communicator of their own. So a rank that revokes the world ends all calls in
// which another rank waits for it. (If a call that makes a communicator succeeds on some ranks only,
// they may wait in the new communicator for ranks that do not have it.)
var recoverable = names{"collectives", "messages", "ring", "barriers", "sums", "parts", "persistent", "sparse", "values", "views",
	"window", "regions", "contention", "requests"}

// Operations after a recovery. Their numbers begin with firstRecovered, whatever the number of the
// operation was that failed, because it may differ between ranks.
const (
	firstRecovered = 1_000_000
	recovered      = 12
)

// goOn continues after the failure of one rank of the world: the other ranks agree, make a
// communicator of themselves and do operations with it. The oracle: the ranks that are left are all
// ranks except one, they agree on the and of their flags, and all operations on the new
// communicator succeed. goOn prints the line "recovered".
func (j *job) goOn() error {
	world := j.world()
	// The failed call may have left the failure to other ranks: this rank may know only that a
	// communicator was revoked. So the first agreement reports the failure to all.
	if !world.IsRevoked() {
		return errors.New("the world is not revoked")
	}
	flag := func(rank, round int) int {
		return int(mix(j.seed, uint64(rank), uint64(round)) & mix(j.seed, 5, uint64(rank)))
	}
	results := make([]int, 3)
	for i := range results {
		mine, result, err := flag(world.Rank(), i), 0, error(nil)
		if j.own.IntN(2) == 0 {
			result, err = world.Agree(mine)
		} else {
			result = mine
			_, err = world.Iagree(&result).Wait()
		}
		results[i] = result
		switch i {
		case 0: // no rank has acknowledged the failure
			if !errors.Is(err, comm.ErrProcFailed) {
				return fmt.Errorf("agreement before AckFailed: %w", unexpected(err, comm.ErrProcFailed))
			}
			if failed := world.AckFailed(); len(failed) != 1 {
				return fmt.Errorf("AckFailed returned the ranks %v", failed)
			}
		default: // all ranks have
			if err != nil {
				return fmt.Errorf("agreement %d, after AckFailed: %w", i, err)
			}
		}
	}
	failed := world.FailedRanks()
	if len(failed) != 1 || failed[0] == world.Rank() {
		return fmt.Errorf("the ranks %v have failed", failed)
	}
	for i, result := range results {
		want := -1
		for r := range world.Size() {
			if r != failed[0] {
				want &= flag(r, i)
			}
		}
		if result != want {
			return fmt.Errorf("the ranks other than %d agreed on %#x instead of %#x in agreement %d", failed[0], result, want, i)
		}
	}
	c, err := j.shrink(world)
	if err != nil {
		return fmt.Errorf("shrink: %w", err)
	}
	rank := world.Rank()
	if rank > failed[0] {
		rank--
	}
	if c.Size() != world.Size()-1 || c.Rank() != rank || c.IsRevoked() || len(c.FailedRanks()) > 0 {
		return fmt.Errorf("rank %d of %d after the failure of rank %d of %d; failed: %v", c.Rank(), c.Size(), failed[0], world.Size(), c.FailedRanks())
	}
	for i := range j.groups[1:] {
		if g := &j.groups[1+i]; g.Comm != nil {
			_ = g.Free() // it was revoked, so the error may be ErrRevoked
			*g = group{}
		}
	}
	j.groups[0].Comm = c
	j.first, j.end = firstRecovered, firstRecovered+recovered
	if err := j.run(); err != nil {
		return err
	}
	if err := c.Free(); err != nil {
		return fmt.Errorf("free: %w", err)
	}
	printLine(fmt.Sprint("recovered ", c.Size()))
	return nil
}

// shrink makes a communicator of the ranks of c that live.
func (j *job) shrink(c *comm.Comm) (made *comm.Comm, err error) {
	if j.own.IntN(2) == 0 {
		return c.Shrink()
	}
	_, err = c.Ishrink(&made).Wait()
	return made, err
}
