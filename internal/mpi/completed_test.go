package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weft-hpc/weft/comm"
)

// TestWaitContext ends the context of a wait for a receive and for a collective. Both operations continue,
// and a later Wait returns their result.
func TestWaitContext(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		other := 1 - c.Rank()
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		got, sum := make([]int, 1), make([]int, 1)
		recv := comm.Irecv(c, got, other, 1)
		reduce := comm.Request{}
		if c.Rank() == 0 { // the other rank calls later
			reduce = comm.Iallreduce(c, []int{1}, sum, comm.Sum)
			for name, r := range map[string]comm.Request{"Irecv": recv, "Iallreduce": reduce} {
				if _, err := r.WaitContext(ctx); !errors.Is(err, context.DeadlineExceeded) {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		} else {
			if _, err := comm.Recv(c, make([]int, 1), other, 2); err != nil {
				return err
			}
			reduce = comm.Iallreduce(c, []int{2}, sum, comm.Sum)
		}
		if err := comm.WaitAll([]comm.Request{comm.Isend(c, []int{7}, other, 1), comm.Isend(c, []int{0}, other, 2)}); err != nil {
			return err
		}
		if st, err := recv.WaitContext(context.Background()); err != nil || st.Count != 1 || got[0] != 7 {
			return fmt.Errorf("%+v %v: %w", st, got, err)
		}
		if _, err := reduce.Wait(); err != nil || sum[0] != 3 {
			return fmt.Errorf("sum %v: %w", sum, err)
		}
		if c.Rank() == 0 {
			_, err := comm.Recv(c, make([]int, 1), other, 2)
			return err
		}
		return nil
	})
}

// TestCompleted receives the messages of all ranks, including this one, in the order in which they arrive.
func TestCompleted(t *testing.T) {
	eachCount(t, func(c *comm.Comm) error {
		var rs []comm.Request
		bufs := make([][]int, c.Size())
		for r := range bufs {
			bufs[r] = make([]int, 9)
			rs = append(rs, comm.Irecv(c, bufs[r], r, 5))
		}
		var sends []comm.Request
		for r := range c.Size() {
			sends = append(sends, comm.Isend(c, count(1+c.Rank(), 0), r, 5))
		}
		seen := map[int]bool{}
		for done := range comm.Completed(rs) {
			if done.Err != nil || seen[done.Index] || done.Status.Source != done.Index || done.Status.Count != 1+done.Index || rs[done.Index] != (comm.Request{}) {
				return fmt.Errorf("%+v", done)
			}
			seen[done.Index] = true
		}
		if len(seen) != c.Size() {
			return fmt.Errorf("%d of %d requests", len(seen), c.Size())
		}
		for range comm.Completed(rs) {
			return errors.New("a completion after all")
		}
		return comm.WaitAll(sends)
	})
}

// TestCompletedWithContext ends the context while a request is in progress. The loop ends with the
// context's error, and the request stays in progress.
func TestCompletedWithContext(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		if c.Rank() == 1 {
			if _, err := comm.Recv(c, []int{0}, 0, 2); err != nil {
				return err
			}
			return comm.Send(c, []int{1}, 0, 1)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		rs := []comm.Request{comm.Irecv(c.WithContext(ctx), make([]int, 1), 1, 1)}
		n := 0
		for done := range comm.Completed(rs) {
			if n++; done.Index != -1 || !errors.Is(done.Err, context.DeadlineExceeded) {
				return fmt.Errorf("%+v", done)
			}
		}
		if n != 1 {
			return fmt.Errorf("%d completions", n)
		}
		if err := comm.Send(c, []int{0}, 1, 2); err != nil {
			return err
		}
		_, err := rs[0].WaitContext(context.Background())
		return err
	})
}
