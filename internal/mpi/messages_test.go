package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// TestMessages: rank 0 answers the messages of the others in a loop, until all have said that they
// are done. Messages with another tag, and those after the end of the loop, stay.
func TestMessages(t *testing.T) {
	overFabrics(t, []int{1, 2, 4}, func(c *comm.Comm) error {
		const n, question, answer, later = 20, 1, 2, 3
		ask := func() error {
			if err := comm.Send(c, []int{c.Rank()}, 0, later); err != nil {
				return err
			}
			for i := range n + 1 {
				if err := comm.Send(c, make([]int, i*i), 0, question); err != nil {
					return err
				}
				if i < n {
					if err := expect(c, i*i, 0, answer); err != nil {
						return err
					}
				}
			}
			return nil
		}
		asked := make(chan error, 1)
		go func() { asked <- ask() }()
		if c.Rank() > 0 {
			return <-asked
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		done := 0
		for m, err := range c.Messages(ctx, question) {
			if err != nil {
				return err
			}
			st := m.Status()
			count, err := comm.CountOf[int](st)
			if err != nil || st.Tag != question || st.Count != comm.Undefined {
				return fmt.Errorf("%+v %w", st, err)
			}
			if count == n*n {
				if done++; done == c.Size() {
					cancel() // the message is still received
				}
			}
			if _, err := comm.Mrecv(m, make([]int, count)); err != nil {
				return err
			}
			if count < n*n {
				if err := comm.Send(c, []int{count}, st.Source, answer); err != nil {
					return err
				}
			}
		}
		if done != c.Size() {
			return fmt.Errorf("the loop has ended after %d ranks were done", done)
		}
		for range c.Size() {
			if _, err := comm.Recv(c, []int{0}, comm.AnySource, later); err != nil {
				return err
			}
		}
		return <-asked
	})
}

// expect receives an element and compares it.
func expect(c *comm.Comm, want, source, tag int) error {
	got := []int{0}
	_, err := comm.Recv(c, got, source, tag)
	return first(err, same("Recv", got, []int{want}))
}

// TestMessagesEnd: errors end the loop, and so does a break.
func TestMessagesEnd(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		if c.Rank() == 1 {
			if err := comm.Send(c, []int{1}, 0, 0); err != nil {
				return err
			}
			if _, err := comm.Recv(c, []int{0}, 0, 0); err != nil {
				return err
			}
			commtest.Kill(c)
			return nil
		}
		var errs []error
		for m, err := range c.Messages(context.Background(), -5) {
			errs = append(errs, wantErr("tag", err, comm.ErrTag, "Messages"))
			if m != nil {
				return errors.New("a message")
			}
		}
		for m, err := range (*comm.Comm)(nil).Messages(context.Background(), 0) {
			errs = append(errs, wantErr("nil", err, comm.ErrClosed, ""))
			if st := m.Status(); st != (comm.Status{}) {
				return fmt.Errorf("%+v", st)
			}
		}
		for m, err := range c.Messages(context.Background(), 0) {
			if err != nil {
				return err
			}
			_, err = comm.Mrecv(m, []int{0})
			errs = append(errs, err)
			break
		}
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		for m, err := range c.Messages(ended, 0) {
			return fmt.Errorf("message %v after the end of the context: %w", m, err)
		}
		errs = append(errs, comm.Send(c, []int{1}, 1, 0))
		for _, err := range c.Messages(context.Background(), 0) {
			errs = append(errs, wantErr("failure", err, comm.ErrProcFailed, ""))
		}
		if len(errs) != 5 {
			return fmt.Errorf("%d errors: %w", len(errs), errors.Join(errs...))
		}
		return first(errs...)
	}, commtest.WithNotify())
}
