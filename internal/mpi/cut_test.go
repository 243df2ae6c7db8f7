package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/mpi"
	"github.com/weft-hpc/weft/transport/inproc"
)

// ended returns a copy of c with a context that has ended already. A call on the copy does what it
// can without waiting. If that does not complete the call, it returns the error of the context.
func ended(c *comm.Comm) *comm.Comm {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return c.WithContext(ctx)
}

// TestSendrecvCancelled: if the context of a Sendrecv ends, the receive is withdrawn, and a later
// receive gets the message. If the transfer of the send has begun, it continues, as the Unfinished
// says.
func TestSendrecvCancelled(t *testing.T) {
	const n = 300000 // elements; longer than the eager limit of every transport
	ranks(t, 2, func(c *comm.Comm) error {
		one := make([]int, 1)
		if c.Rank() == 1 {
			if _, err := comm.Recv(c, one, 0, 1); err != nil {
				return err
			}
			if err := comm.Send(c, []int{5}, 0, 2); err != nil {
				return err
			}
			if _, err := comm.Recv(c, one, 0, 3); err != nil {
				return err
			}
			st, err := comm.Recv(c, make([]int, n), 0, 4)
			if err == nil && st.Count != n {
				err = fmt.Errorf("%d elements of the send", st.Count)
			}
			return err
		}
		// No message has arrived for the receive.
		recv := []int{-1}
		st, err := comm.Sendrecv(ended(c), []int{1}, 1, 1, recv, 1, 2)
		if err := wantErr("Sendrecv", err, context.Canceled, ""); err != nil || !st.Cancelled {
			return fmt.Errorf("%+v: %w", st, err)
		}
		if _, err := c.Probe(1, 2); err != nil {
			return err
		}
		if recv[0] != -1 {
			return errors.New("a withdrawn receive got a message")
		}
		if _, err := comm.Recv(c, one, 1, 2); err != nil || one[0] != 5 {
			return fmt.Errorf("received %v: %w", one, err)
		}
		// No receive has matched the send.
		big := make([]int, n)
		st, err = comm.Sendrecv(ended(c), big, 1, 4, recv, 1, 5)
		var u *comm.Unfinished
		if !errors.As(err, &u) || !st.Cancelled || !errors.Is(err, context.Canceled) {
			return fmt.Errorf("%+v: %w", st, err)
		}
		if err := comm.Send(c, one, 1, 3); err != nil {
			return err
		}
		return u.Wait(context.Background())
	})
}

// TestSendValueCancelled: after a context has ended a SendValue, later calls of SendValue do not
// overwrite its message, which the receiver has not received yet.
func TestSendValueCancelled(t *testing.T) {
	first, second := strings.Repeat("a", 1000), strings.Repeat("b", 1000)
	ranks(t, 2, func(c *comm.Comm) error {
		if c.Rank() == 1 {
			if _, err := comm.Recv(c, []int{0}, 0, 2); err != nil {
				return err
			}
			got, _, err := comm.RecvValue[string](c, 0, 1)
			if err == nil && got != first {
				err = fmt.Errorf("received %q", got)
			}
			return err
		}
		var u *comm.Unfinished
		if err := comm.SendValue(ended(c), first, 1, 1); !errors.As(err, &u) {
			return fmt.Errorf("SendValue: %w", err)
		}
		var g errgroup.Group
		g.Go(func() error {
			_, _, err := comm.RecvValue[string](c, 0, 3)
			return err
		})
		g.Go(func() error { return comm.SendValue(c, second, 0, 3) })
		if err := g.Wait(); err != nil {
			return err
		}
		if err := comm.Send(c, []int{1}, 1, 2); err != nil {
			return err
		}
		return u.Wait(context.Background())
	}, commtest.WithParam("engine.eager_limit", "64"))
}

// TestSendrecvFailsTwice: if both the send and the receive of a Sendrecv fail, the error holds both
// errors.
func TestSendrecvFailsTwice(t *testing.T) {
	const n = 300000 // elements; longer than the eager limit of every transport
	ranks(t, 2, func(c *comm.Comm) error {
		if c.Rank() == 1 {
			if err := comm.Send(c, []int32{1}, 0, 2); err != nil {
				return err
			}
			_, err := comm.Recv(c, make([]uint16, n), 0, 1)
			return wantErr("Recv", err, comm.ErrMismatch, "rank 0 sent elements of int64, and rank 1 receives uint16")
		}
		st, err := comm.Sendrecv(c, make([]int64, n), 1, 1, make([]float64, 1), 1, 2)
		if st.Cancelled || st.Source != 1 || st.Tag != 2 {
			return fmt.Errorf("%+v: %w", st, err)
		}
		return first(wantErr("send", err, comm.ErrMismatch, "rank 0 sent elements of int64, and rank 1 receives uint16; the receive failed too"),
			wantErr("receive", err, comm.ErrMismatch, "rank 1 sent elements of int32, and rank 0 receives float64"))
	})
}

// TestUnfinishedOfTwoParts: if the context ends a Sendrecv while both transfers are in progress,
// Unfinished.Wait waits for both.
func TestUnfinishedOfTwoParts(t *testing.T) {
	const n = 300000 // elements; longer than the eager limit of every transport
	slow := inproc.NewFabric(inproc.WithRMADelay(1000))
	ranks(t, 2, func(c *comm.Comm) error {
		buf := make([]int, n)
		if c.Rank() == 1 {
			r := comm.Isend(c, count(n, 1), 0, 2)
			_, ready := comm.Recv(c, make([]int, 1), 0, 3)
			_, err := comm.Recv(c, buf, 0, 1)
			return first(ready, err, same("sent", buf, count(n, 0)), wait(r))
		}
		if _, err := c.Probe(1, 2); err != nil {
			return err
		}
		st, err := comm.Sendrecv(ended(c), count(n, 0), 1, 1, buf, 1, 2)
		var u *comm.Unfinished
		if !errors.As(err, &u) || !st.Cancelled || mpi.Parts(u) != 2 {
			return fmt.Errorf("%+v: %w", st, err)
		}
		if err := u.Wait(ended(c).Context()); !isErr(err, context.Canceled) {
			return fmt.Errorf("Wait: %w", err)
		}
		if err := comm.Send(c, []int{1}, 1, 3); err != nil {
			return err
		}
		if err := u.Wait(context.Background()); err != nil {
			return err
		}
		clear(buf)
		_, err = comm.Recv(c, buf, 1, 2)
		return first(err, same("received", buf, count(n, 1)))
	}, commtest.WithProviders(slow), commtest.WithParam("engine.async_progress", "false"))
}
