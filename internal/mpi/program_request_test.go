package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/weft-hpc/weft/comm"
)

var errDisk = errors.New("disk full")

// TestProgramRequests waits for requests that the program completes, in each way that there is to
// wait for a request.
func TestProgramRequests(t *testing.T) {
	st := comm.Status{Source: 3, Tag: 4, Bytes: 5}
	want := comm.Status{Source: 3, Tag: 4, Bytes: 5, Count: 5}
	for name, wait := range map[string]func(rs []comm.Request) (comm.Status, error){
		"Wait":        func(rs []comm.Request) (comm.Status, error) { return rs[0].Wait() },
		"WaitContext": func(rs []comm.Request) (comm.Status, error) { return rs[0].WaitContext(context.Background()) },
		"Test": func(rs []comm.Request) (comm.Status, error) {
			for {
				if st, ok, err := rs[0].Test(); ok {
					return st, err
				}
			}
		},
		"WaitAll": func(rs []comm.Request) (comm.Status, error) { return want, comm.WaitAll(rs) },
		"WaitEach": func(rs []comm.Request) (comm.Status, error) {
			done, err := comm.WaitEach(rs, nil)
			return done[0].Status, err
		},
		"TestEach": func(rs []comm.Request) (comm.Status, error) {
			for {
				if done, ok, err := comm.TestEach(rs, nil); ok {
					return done[0].Status, err
				}
			}
		},
		"WaitAny": func(rs []comm.Request) (comm.Status, error) {
			i, st, err := comm.WaitAny(rs)
			if i != 0 {
				return st, fmt.Errorf("index %d: %w", i, err)
			}
			return st, err
		},
		"WaitSome": func(rs []comm.Request) (comm.Status, error) {
			done, err := comm.WaitSome(rs, nil)
			return done[0].Status, first(done[0].Err, err)
		},
		"Completed": func(rs []comm.Request) (comm.Status, error) {
			for done := range comm.Completed(rs) {
				return done.Status, done.Err
			}
			return comm.Status{}, errors.New("no request")
		},
		"Peek": func(rs []comm.Request) (comm.Status, error) {
			for {
				if st, ok, err := rs[0].Peek(); ok {
					st2, err2 := rs[0].Wait()
					if st2 != st || (err == nil) != (err2 == nil) {
						return st, fmt.Errorf("Peek returns %v %w, Wait %v %w", st, err, st2, err2)
					}
					return st, err
				}
			}
		},
	} {
		for _, result := range []error{nil, errDisk} {
			for _, before := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%v/%t", name, result, before), func(t *testing.T) {
					ranks(t, 2, func(c *comm.Comm) error {
						r, complete := c.NewRequest(nil)
						if _, ok, err := r.Test(); ok || err != nil {
							return fmt.Errorf("complete from the start: %w", err)
						}
						if before {
							complete(st, result)
						} else {
							go complete(st, result)
						}
						rs := []comm.Request{r, {}}
						got, err := wait(rs)
						complete(comm.Status{}, errors.New("a second call"))
						if again, err := r.Wait(); err != nil || again != (comm.Status{}) {
							return fmt.Errorf("a copy: %+v %w", again, err)
						}
						if result != nil {
							return wantErr(name, err, errDisk, "NewRequest (world): disk full")
						}
						if err != nil || got != want {
							return fmt.Errorf("%+v %w", got, err)
						}
						return c.Barrier()
					})
				})
			}
		}
	}
}

// TestProgramRequestsBesideOthers completes requests of the program in an order that depends on
// messages, and waits for both in one list.
func TestProgramRequestsBesideOthers(t *testing.T) {
	overFabrics(t, []int{1, 2, 3}, func(c *comm.Comm) error {
		const n = 20
		next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
		var rs []comm.Request
		var ends []func(comm.Status, error)
		got := make([]int, n)
		for i := range n {
			r, end := c.NewRequest(nil)
			rs = append(rs, r, comm.Irecv(c, got[i:i+1], prev, i))
			ends = append(ends, end)
		}
		if err := comm.Send(c, []int{7}, next, 0); err != nil {
			return err
		}
		seen := 0
		for done := range comm.Completed(rs) {
			if done.Err != nil {
				return done.Err
			}
			seen++
			i := done.Index / 2
			switch {
			case done.Index%2 == 1: // the message has arrived: the operation ends
				ends[i](comm.Status{Bytes: i}, nil)
			case done.Status.Bytes != i:
				return fmt.Errorf("request %d: %+v", i, done.Status)
			case i+1 < n:
				if err := comm.Send(c, []int{7}, next, i+1); err != nil {
					return err
				}
			}
		}
		if seen != 2*n {
			return fmt.Errorf("%d requests have ended", seen)
		}
		return nil
	})
}

// TestCancelProgramRequest: Cancel calls the function of the program, once the operation has ended
// no more, and returns its panic.
func TestCancelProgramRequest(t *testing.T) {
	ranks(t, 1, func(c *comm.Comm) error {
		var complete func(comm.Status, error)
		var r comm.Request
		calls := 0
		r, complete = c.NewRequest(func() {
			calls++
			complete(comm.Status{Cancelled: true}, nil)
		})
		if err := first(r.Cancel(), r.Cancel()); err != nil {
			return err
		}
		st, err := r.Wait()
		if err != nil || !st.Cancelled || calls != 1 {
			return fmt.Errorf("%+v after %d calls: %w", st, calls, err)
		}
		bad, end := c.NewRequest(func() { panic("no way back") })
		plain, end2 := c.NewRequest(nil)
		cerr := bad.Cancel()
		err = plain.Cancel()
		end(comm.Status{}, nil)
		end2(comm.Status{}, nil)
		return first(wantErr("panic", cerr, comm.ErrOp, "no way back"), err, comm.WaitAll([]comm.Request{bad, plain}))
	})
}

// TestProgramRequestOutlivesItsWait: a context ends the wait, and not the operation; a request of a
// communicator that was freed is refused.
func TestProgramRequestOutlivesItsWait(t *testing.T) {
	ranks(t, 1, func(c *comm.Comm) error {
		d, err := c.Dup()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		r, complete := d.WithContext(ctx).NewRequest(nil)
		cancel()
		_, werr := r.Wait()
		done, eerr := comm.WaitEach([]comm.Request{{}, r}, nil)
		if len(done) != 2 || done[0] != (comm.Completion{}) || done[1].Index != 1 {
			return fmt.Errorf("%+v", done)
		}
		complete(comm.Status{Bytes: 1}, nil)
		st, err := r.WaitContext(context.Background())
		if err != nil || st.Bytes != 1 {
			return fmt.Errorf("%+v %w", st, err)
		}
		ferr := d.Free()
		closed, complete := d.NewRequest(nil)
		complete(comm.Status{}, nil)
		_, cerr := closed.Wait()
		_, nerr := func() (comm.Status, error) { r, _ := (*comm.Comm)(nil).NewRequest(nil); return r.Wait() }()
		return first(ferr, wantErr("Wait", werr, context.Canceled, "NewRequest"), wantErr("WaitEach", eerr, context.Canceled, ""),
			wantErr("done", done[1].Err, context.Canceled, ""),
			wantErr("freed", cerr, comm.ErrClosed, "NewRequest"), wantErr("nil", nerr, comm.ErrClosed, "NewRequest"))
	})
}

// TestProgramRequestLeft: Finalize does not wait for a request that the program has not completed,
// and a late call of complete does no harm.
func TestProgramRequestLeft(t *testing.T) {
	var late []func(comm.Status, error)
	ranks(t, 1, func(c *comm.Comm) error {
		_, complete := c.NewRequest(nil)
		late = append(late, complete)
		return nil
	})
	late[0](comm.Status{}, nil)
}

// TestWaitEach compares the results of WaitEach and TestEach with the messages.
func TestWaitEach(t *testing.T) {
	eachCount(t, func(c *comm.Comm) error {
		next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
		for round := range 4 {
			var rs []comm.Request
			bufs := make([][]int, 6)
			for i := range bufs {
				bufs[i] = make([]int, 3)
				rs = append(rs, comm.Irecv(c, bufs[i], prev, i))
			}
			rs = append(rs, comm.Request{}, comm.Irecv(c, []int{0}, comm.ProcNull, 0))
			for i := len(bufs) - 1; i >= 0; i-- {
				if err := comm.Send(c, count(i+1, i), next, i); err != nil {
					return err
				}
			}
			kept := []comm.Completion{{Index: 99}}
			done, err := kept, error(nil)
			if round%2 == 0 {
				done, err = comm.WaitEach(rs, kept)
			} else {
				for ok := false; !ok; {
					done, ok, err = comm.TestEach(rs, kept)
				}
			}
			if len(done) != 9 || done[0].Index != 99 {
				return fmt.Errorf("%+v", done)
			}
			if err := wantErr("WaitEach", err, comm.ErrTruncate, "tag 3"); err != nil {
				return err
			}
			for i := range bufs {
				d := done[1+i]
				if d.Index != i || d.Status.Source != prev || d.Status.Tag != i || d.Status.Count != i+1 || (d.Err != nil) != (i > 2) {
					return fmt.Errorf("message %d: %+v", i, d)
				}
			}
			if done[7] != (comm.Completion{Index: 6}) || done[8].Status.Source != comm.ProcNull || done[8].Err != nil {
				return fmt.Errorf("%+v", done[7:])
			}
			for i, r := range rs {
				if r != (comm.Request{}) {
					return fmt.Errorf("request %d is not zero", i)
				}
			}
		}
		return nil
	})
}

// TestPeek: Peek returns the result of a request, which stays as it is.
func TestPeek(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		buf := []int{0}
		r := comm.Irecv(c, buf, 1-c.Rank(), 0)
		if err := c.Barrier(); err != nil {
			return err
		}
		if _, ok, err := r.Peek(); ok || err != nil {
			return fmt.Errorf("complete: %w", err)
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		if err := comm.Send(c, []int{4, 5}, 1-c.Rank(), 0); err != nil {
			return err
		}
		for range 3 {
			for {
				st, ok, err := r.Peek()
				if !ok {
					continue
				}
				if err := wantErr("Peek", err, comm.ErrTruncate, "Irecv"); err != nil || st.Count != 2 {
					return fmt.Errorf("%+v %w", st, err)
				}
				break
			}
		}
		_, err := r.Wait()
		bad := comm.Irecv(c, buf, 9, 0)
		_, ok, berr := bad.Peek()
		_, werr := bad.Wait()
		st, none, zerr := comm.Request{}.Peek()
		if !ok || !none || zerr != nil || st != (comm.Status{}) {
			return fmt.Errorf("refused: %t; zero: %t %+v %w", ok, none, st, zerr)
		}
		_, ok, serr := r.Peek()
		if !ok || serr != nil {
			return fmt.Errorf("after Wait: %t %w", ok, serr)
		}
		return first(wantErr("Wait", err, comm.ErrTruncate, ""), wantErr("Peek", berr, comm.ErrRank, ""), wantErr("Wait", werr, comm.ErrRank, ""))
	})
}
