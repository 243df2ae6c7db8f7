package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

func TestRevokeEndsEverything(t *testing.T) {
	blocked := map[string]func(c *comm.Comm) error{
		"Recv":   func(c *comm.Comm) error { _, err := comm.Recv(c, []int{1}, 0, 0); return err },
		"any":    func(c *comm.Comm) error { _, err := comm.Recv(c, []int{1}, comm.AnySource, comm.AnyTag); return err },
		"Probe":  func(c *comm.Comm) error { _, err := c.Probe(0, 0); return err },
		"Mprobe": func(c *comm.Comm) error { _, _, err := c.Mprobe(comm.AnySource, 3); return err },
		"Ssend":  func(c *comm.Comm) error { return comm.Ssend(c, []int{1}, 0, 0) },
		"Send":   func(c *comm.Comm) error { return comm.Send(c, make([]int, 1<<18), 0, 0) },
		"Irecv":  func(c *comm.Comm) error { return wait(comm.Irecv(c, []int{1}, 0, 0)) },
		"WaitAny": func(c *comm.Comm) error {
			_, _, err := comm.WaitAny([]comm.Request{comm.Irecv(c, []int{1}, 0, 0)})
			return err
		},
		"Barrier": (*comm.Comm).Barrier,
		"Bcast":   func(c *comm.Comm) error { return comm.Bcast(c, []int{1}, 0) },
		"Ibarrier": func(c *comm.Comm) error {
			return wait(c.Ibarrier())
		},
		"Dup": func(c *comm.Comm) error { _, err := c.Dup(); return err },
	}
	for name, f := range blocked {
		t.Run(name, func(t *testing.T) {
			ranks(t, 3, func(world *comm.Comm) error {
				c, err := world.Dup()
				if err != nil {
					return err
				}
				if c.Rank() == 0 {
					// The other ranks are in f, or will call it soon. In both cases f must return.
					if err := first(world.Barrier(), c.Revoke(), c.Revoke()); err != nil {
						return err
					}
				} else {
					if err := world.Barrier(); err != nil {
						return err
					}
					if err := wantErr(name, f(c), comm.ErrRevoked, "rank 0 of the world called Revoke"); err != nil {
						return err
					}
				}
				_, err = c.Split(0, 0)
				return first(wantErr("Split", err, comm.ErrRevoked, ""), c.Free(), world.Barrier())
			})
		})
	}
}

// TestTestAllAfterRevoke: TestAll makes progress for a request although another request in the
// slice has failed, because its communicator was revoked. There is no background progress.
func TestTestAllAfterRevoke(t *testing.T) {
	ranks(t, 2, func(world *comm.Comm) error {
		c, err := world.Dup()
		if err != nil {
			return err
		}
		if world.Rank() == 1 {
			err := world.Barrier()
			_, rerr := comm.Recv(c, make([]int, 1), 0, 0)
			return first(err, wantErr("Recv", rerr, comm.ErrRevoked, ""), c.Free(), comm.Send(world, []int{7}, 0, 0))
		}
		got := make([]int, 1)
		rs := []comm.Request{comm.Irecv(c, make([]int, 1), 1, 0), comm.Irecv(world, got, 1, 0)}
		if err := first(world.Barrier(), c.Revoke()); err != nil {
			return err
		}
		for over, end := false, time.Now().Add(patience); !over; {
			if over, err = comm.TestAll(rs); time.Now().After(end) {
				return errors.New("the message does not come")
			}
		}
		return first(wantErr("TestAll", err, comm.ErrRevoked, ""), same("got", got, []int{7}), c.Free())
	}, commtest.WithParam("engine.async_progress", "false"))
}

func TestContextEndsWaiting(t *testing.T) {
	ranks(t, 2, func(world *comm.Comm) error {
		if world.Rank() == 1 {
			_, err := comm.Recv(world, make([]int, 1), 0, 9)
			return err
		}
		ctx, cancel := context.WithCancel(world.Context())
		defer cancel()
		c := world.WithContext(ctx)
		if c.Context() != ctx || c.Rank() != world.Rank() || world.Context() == ctx {
			return errors.New("WithContext")
		}
		r := comm.Irecv(c, []int{1}, 1, 1)
		cancel()
		_, err := comm.Recv(c, []int{1}, 1, 1)
		_, perr := c.Probe(1, 1)
		_, werr := r.Wait()
		_, _, aerr := comm.WaitAny([]comm.Request{{}, r})
		if err := first(
			wantErr("Recv", err, context.Canceled, "comm: Recv (world, rank 1, tag 1)"),
			wantErr("Probe", perr, context.Canceled, "Probe"),
			wantErr("Wait", werr, context.Canceled, "keeps its buffer"),
			wantErr("WaitAny", aerr, context.Canceled, "WaitAny"),
			wantErr("Ssend", comm.Ssend(c, []int{1}, 1, 8), context.Canceled, "Ssend"),
		); err != nil {
			return err
		}
		if err := r.Cancel(); err != nil {
			return err
		}
		if _, done, err := r.Test(); !done || err != nil {
			return fmt.Errorf("cancelled: %v %w", done, err)
		}
		return comm.Send(world, []int{1}, 1, 9) // the context of world has not ended
	})
}

// TestContextEndsCollective ends the context of a collective on one rank. The ranks that wait for
// this rank must get an error.
func TestContextEndsCollective(t *testing.T) {
	for _, nonblocking := range []bool{false, true} {
		ranks(t, 3, func(world *comm.Comm) error {
			c, err := world.Dup()
			if err != nil {
				return err
			}
			call := (*comm.Comm).Barrier
			if nonblocking {
				call = func(c *comm.Comm) error { return wait(c.Ibarrier()) }
			}
			switch c.Rank() {
			case 0: // rank 0 does not call the barrier
				_, err := comm.Recv(c, []int{1}, 1, 0)
				if err := wantErr("Recv", err, comm.ErrRevoked, "context canceled"); err != nil {
					return err
				}
			case 1:
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				if err := wantErr("Barrier", call(c.WithContext(ctx)), context.Canceled, "arrier"); err != nil {
					return err
				}
			default:
				if err := wantErr("Barrier", call(c), comm.ErrRevoked, "context canceled"); err != nil {
					return err
				}
			}
			return first(c.Free(), world.Barrier())
		})
	}
}

// TestDeadRank kills a rank while the other ranks wait for it in calls of each kind. These calls
// must fail, over each fabric.
func TestDeadRank(t *testing.T) {
	calls := map[string]func(c *comm.Comm) error{
		"Recv":      func(c *comm.Comm) error { _, err := comm.Recv(c, []int{1}, 1, 0); return err },
		"Send":      func(c *comm.Comm) error { return comm.Send(c, make([]int, 1<<18), 1, 0) },
		"Ssend":     func(c *comm.Comm) error { return comm.Ssend(c, []int{1}, 1, 0) },
		"Probe":     func(c *comm.Comm) error { _, err := c.Probe(1, 0); return err },
		"Barrier":   (*comm.Comm).Barrier,
		"Allreduce": func(c *comm.Comm) error { return comm.Allreduce(c, []int{1}, []int{1}, comm.Sum) },
	}
	overMortal(t, func(run runJob) {
		for name, f := range calls {
			run(name, 3, func(world *comm.Comm) error {
				c, err := world.Dup()
				if err != nil {
					return err
				}
				if c.Rank() == 1 {
					commtest.Kill(c)
					return wantErr("the dead", comm.Send(c, []int{1}, 0, 0), comm.ErrClosed, "")
				}
				if err = f(c); !isErr(err, comm.ErrProcFailed) && !isErr(err, comm.ErrRevoked) {
					return fmt.Errorf("%s: %w", name, err)
				}
				commtest.Kill(c) // otherwise Run would call Finalize, which returns an error after a failure
				return nil
			})
		}
	})
}

// TestFinalizeAfterDeath: if a rank has died, Finalize returns an error and closes everything.
func TestFinalizeAfterDeath(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		if c.Rank() == 1 {
			commtest.Kill(c)
			return nil
		}
		if err := c.Finalize(); !isErr(err, comm.ErrProcFailed) {
			return fmt.Errorf("Finalize: %w", err)
		}
		return wantErr("after", c.Barrier(), comm.ErrClosed, "")
	})
}

func TestFinalize(t *testing.T) {
	eachCount(t, func(c *comm.Comm) error {
		d, err := c.Dup()
		if err != nil {
			return err
		}
		if err := comm.Bsend(c, count(1000, 0), (c.Rank()+1)%c.Size(), 0); err != nil {
			return err
		}
		if _, _, err := comm.RecvAlloc[int](c, comm.AnySource, 0); err != nil {
			return err
		}
		if err := d.Barrier(); err != nil {
			return err
		}
		if c.Rank() == 0 { // Finalize also works after Revoke of the world
			if err := c.Revoke(); err != nil {
				return err
			}
		}
		if err := d.Finalize(); err != nil {
			return err
		}
		return first(wantErr("again", c.Finalize(), comm.ErrClosed, "Finalize"), wantErr("dup", d.Barrier(), comm.ErrClosed, "the job was finalized"),
			wantErr("world", comm.Send(c, []int{1}, 0, 0), comm.ErrClosed, "the job was finalized"))
	})
}

func TestInitAlone(t *testing.T) {
	for range 2 {
		c, err := comm.Init(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, c.Size())
		_, err = comm.Init(t.Context())
		require.ErrorIs(t, err, comm.ErrInit)
		require.NoError(t, c.Barrier())
		require.NoError(t, c.Finalize())
	}
}
