package mpi_test

import (
	"fmt"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/mpi"
)

// TestWindowThatNotAllRanksGoOnWith lets a rank end NewWin after its first step and revoke the
// parent communicator. It checks that NewWin fails on the other ranks, which wait in collectives of
// the window's own communicator.
func TestWindowThatNotAllRanksGoOnWith(t *testing.T) {
	ranks(t, 3, func(world *comm.Comm) error {
		c, err := world.Dup()
		if err != nil {
			return err
		}
		if c.Rank() == 1 {
			err = first(mpi.OpenWindow[int]((*mpi.Comm)(c), 4), c.Revoke())
		} else {
			_, err = comm.NewWin[int](c, 4)
			err = wantErr("NewWin", err, comm.ErrRevoked, "rank 1 of the world called Revoke")
		}
		return first(err, c.Free(), world.Barrier())
	})
}

// TestFinalizeDoesNotWaitAfterDeath checks that a rank in Finalize does not wait for a rank that
// does not call Finalize, after a third rank has died.
func TestFinalizeDoesNotWaitAfterDeath(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late=%t", late), func(t *testing.T) {
			dies, finalized := make(chan struct{}), make(chan struct{})
			ranks(t, 3, func(c *comm.Comm) error {
				switch c.Rank() {
				case 0:
					if err := c.Barrier(); err != nil {
						return err
					}
					<-dies
					commtest.Kill(c)
					return nil
				case 1:
					if err := c.Barrier(); err != nil {
						return err
					}
					if !late {
						close(dies)
					}
					<-finalized
					commtest.Kill(c) // otherwise Run would call Finalize, which returns an error after a failure
					return nil
				default:
					if err := c.Barrier(); err != nil {
						return err
					}
					if late {
						close(dies) // then rank 0 dies, before or while this rank waits in Finalize
					} else {
						_, err := comm.Recv(c, make([]int, 1), 0, 0)
						if err := wantErr("Recv", err, comm.ErrProcFailed, ""); err != nil {
							return err
						}
					}
					defer close(finalized)
					return wantErr("Finalize", c.Finalize(), comm.ErrProcFailed, "")
				}
			})
		})
	}
}
