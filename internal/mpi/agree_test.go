package mpi_test

import (
	"testing"
	"time"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/mpi"
	"github.com/weft-hpc/weft/transport"
)

// TestComputingRankAnswers has rank 2 get the decision of an agreement before the coordinator, rank
// 0, dies. While rank 1, the next coordinator, asks rank 2 for the decision, rank 2 makes no call
// of weft, like a rank that computes. Both ranks must then have the same communicator.
func TestComputingRankAnswers(t *testing.T) {
	overEach(t, func(t *testing.T, p transport.Provider) {
		sent, computes, shrunk := make(chan struct{}), make(chan struct{}), make(chan struct{})
		ranks(t, 3, func(c *comm.Comm) error {
			switch c.Rank() {
			case 0:
				err := mpi.SendDecision((*mpi.Comm)(c))
				<-sent
				commtest.Kill(c)
				return err
			case 1:
				<-computes
				next, err := c.Shrink()
				close(shrunk)
				return first(err, barrierOf(next, 2))
			}
			next, err := c.Shrink()
			close(sent)
			for range 10000 {
				if len(c.FailedRanks()) > 0 { // FailedRanks handles no messages
					break
				}
				time.Sleep(time.Millisecond)
			}
			close(computes)
			<-shrunk
			return first(err, barrierOf(next, 2))
		}, commtest.WithNotify(), commtest.WithProviders(p), commtest.WithTimeout(20*time.Second))
	})
}

// TestLeftoverOfTheDead: in a job that continues after ranks fail, the check for messages of
// collectives that were not received returns no error after the failure of a rank.
func TestLeftoverOfTheDead(t *testing.T) {
	overAll(t, 3, func(c *comm.Comm) error {
		if c.Rank() == 2 {
			commtest.Kill(c)
			return nil
		}
		_, err := comm.Recv(c, []int{1}, 2, 0)
		return first(wantErr("Recv", err, comm.ErrProcFailed, ""), mpi.Leftover((*mpi.Comm)(c)))
	})
}

// TestDifferingAfterAFailure: ranks detect that their calls differ, also after another rank has
// failed. Each gets ErrMismatch, or ErrRevoked with the text of ErrMismatch.
func TestDifferingAfterAFailure(t *testing.T) {
	overEach(t, func(t *testing.T, p transport.Provider) {
		ranks(t, 3, func(c *comm.Comm) error {
			if c.Rank() == 2 {
				commtest.Kill(c)
				return nil
			}
			next, err := c.Shrink()
			if err != nil {
				return err
			}
			err = comm.Bcast(next, []int{1}, 1-next.Rank()) // each of the two ranks waits for the other
			if isErr(err, comm.ErrMismatch) {
				return nil
			}
			return wantErr("Bcast", err, comm.ErrRevoked, comm.ErrMismatch.Error())
		}, commtest.WithNotify(), commtest.WithProviders(p), commtest.WithTimeout(20*time.Second))
	})
}
