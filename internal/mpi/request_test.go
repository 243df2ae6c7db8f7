package mpi_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

func TestWaitAll(t *testing.T) {
	eachCount(t, func(c *comm.Comm) error {
		n := c.Size()
		in, out := make([][]int, n), make([][]int, n)
		var rs []comm.Request
		for r := range n {
			in[r], out[r] = make([]int, 1000), count(1000, 100*c.Rank()+r)
			rs = append(rs, comm.Irecv(c, in[r], r, 0), comm.Isend(c, out[r], r, 0))
		}
		rs = append(rs, comm.Request{}, comm.Isend(c, in[0], comm.ProcNull, 0))
		if err := comm.WaitAll(rs); err != nil {
			return err
		}
		for r := range n {
			if err := same("in", in[r], count(1000, 100*r+c.Rank())); err != nil {
				return err
			}
		}
		for i := range rs {
			if rs[i] != (comm.Request{}) {
				return fmt.Errorf("request %d is not zero", i)
			}
		}
		return first(comm.WaitAll(rs), comm.WaitAll(nil))
	})
}

// TestWaitAllError: WaitAll waits for all requests, and returns the error of the first one that
// failed.
func TestWaitAllError(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		other := 1 - c.Rank()
		buf := make([]int, 1)
		rs := []comm.Request{
			comm.Irecv(c, buf, other, 0),
			comm.Isend(c, buf, 9, 0),
			comm.Irecv(c, make([]int, 1), other, 1),
			comm.Isend(c, []int{c.Rank() + 5}, other, 0),
			comm.Isend(c, []int{1, 2}, other, 1),
		}
		return first(wantErr("WaitAll", comm.WaitAll(rs), comm.ErrRank, "Isend (world, rank 9"), same("buf", buf, []int{other + 5}), comm.WaitAll(rs))
	})
}

func TestWaitAnySome(t *testing.T) {
	eachCount(t, func(c *comm.Comm) error {
		const each = 5
		if c.Rank() != 0 {
			for range 2 { // for WaitAny and for WaitSome
				for i := range each {
					if err := comm.Send(c, count(10*i, 0), 0, i); err != nil {
						return err
					}
				}
			}
			return nil
		}
		for _, some := range []func(rs []comm.Request) ([]comm.Completion, error){
			func(rs []comm.Request) ([]comm.Completion, error) {
				i, st, err := comm.WaitAny(rs)
				if i < 0 {
					return nil, err
				}
				return []comm.Completion{{Index: i, Status: st, Err: err}}, nil
			},
			func(rs []comm.Request) ([]comm.Completion, error) { return comm.WaitSome(rs, nil) },
		} {
			var rs []comm.Request
			for i := range each {
				if i%2 == 0 {
					continue // the test receives the messages with these tags below, by Recv
				}
				for r := 1; r < c.Size(); r++ {
					rs = append(rs, comm.Irecv(c, make([]int, 100), r, i))
				}
			}
			rs = append(rs, comm.Isend(c, []int{}, -9, 0))
			todo := len(rs)
			for todo > 0 {
				done, err := some(rs)
				if err != nil || len(done) == 0 {
					return fmt.Errorf("%d left, nothing done: %w", todo, err)
				}
				for _, d := range done {
					switch {
					case d.Index == len(rs)-1:
						if err := wantErr("bad", d.Err, comm.ErrRank, "rank -9"); err != nil {
							return err
						}
					case d.Err != nil:
						return d.Err
					case d.Status.Count != 10*d.Status.Tag:
						return fmt.Errorf("%+v", d)
					}
					todo--
				}
			}
			if done, err := some(rs); err != nil || len(done) != 0 {
				return fmt.Errorf("after all: %v, %w", done, err)
			}
			if i, _, done, err := comm.TestAny(rs); i != -1 || !done || err != nil {
				return fmt.Errorf("TestAny of zero requests: %d %v %w", i, done, err)
			}
			for r := 1; r < c.Size(); r++ {
				for i := 0; i < each; i += 2 {
					if _, err := comm.Recv(c, make([]int, 100), r, i); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
}

func TestTestCalls(t *testing.T) {
	for _, async := range []string{"true", "false"} { // false: only the calls of Test make progress
		t.Run("async="+async, func(t *testing.T) {
			ranks(t, 2, testCalls, commtest.WithParam("engine.async_progress", async))
		})
	}
}

func testCalls(c *comm.Comm) error {
	other := 1 - c.Rank()
	rs := []comm.Request{comm.Irecv(c, make([]int, 1), other, 1), comm.Irecv(c, make([]int, 4), other, 2), {}}
	kept := append([]comm.Request{}, rs...)
	if done, err := comm.TestAll(rs); done || err != nil {
		return fmt.Errorf("before the sends: %v %w", done, err)
	}
	if i, _, done, err := comm.TestAny(rs); i != -1 || done || err != nil {
		return fmt.Errorf("before the sends: %d %v %w", i, done, err)
	}
	if done := comm.TestSome(rs, nil); len(done) != 0 {
		return fmt.Errorf("before the sends: %v", done)
	}
	if err := first(c.Barrier(), comm.Send(c, []int{1, 2, 3}, other, 2)); err != nil {
		return err
	}
	for {
		i, st, done, err := comm.TestAny(rs)
		if err != nil {
			return err
		}
		if done {
			if i != 1 || st.Count != 3 || rs[1] != (comm.Request{}) {
				return fmt.Errorf("TestAny: %d %+v", i, st)
			}
			break
		}
	}
	if err := first(c.Barrier(), comm.Send(c, []int{1}, other, 1)); err != nil {
		return err
	}
	for {
		done := comm.TestSome(rs, nil)
		if len(done) == 0 {
			continue
		}
		if d := done[0]; len(done) != 1 || d.Index != 0 || d.Status.Count != 1 || d.Err != nil {
			return fmt.Errorf("TestSome: %+v", done)
		}
		break
	}
	rs[1] = comm.Irecv(c, make([]int, 1), other, 3)
	if err := first(c.Barrier(), comm.Send(c, []int{1}, other, 3)); err != nil {
		return err
	}
	for {
		done, err := comm.TestAll(rs)
		if err != nil {
			return err
		}
		if done {
			break
		}
	}
	for _, r := range kept { // copies of requests that the program has waited for
		if st, done, err := r.Test(); !done || err != nil || st != (comm.Status{}) {
			return fmt.Errorf("copy: %+v %v %w", st, done, err)
		}
		if _, err := r.Wait(); err != nil {
			return err
		}
		if err := r.Cancel(); err != nil {
			return err
		}
	}
	i, _, err := comm.WaitAny(kept)
	if i != -1 || err != nil {
		return fmt.Errorf("WaitAny of copies: %d %w", i, err)
	}
	return nil
}

func TestCancel(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		other := 1 - c.Rank()
		buf := []int{-1}
		r := comm.Irecv(c, buf, other, 1)
		if err := r.Cancel(); err != nil {
			return err
		}
		st, err := r.Wait()
		if err != nil || !st.Cancelled {
			return fmt.Errorf("cancelled: %+v %w", st, err)
		}
		// The message goes to the next receive.
		if err := comm.Send(c, []int{4}, other, 1); err != nil {
			return err
		}
		got := make([]int, 1)
		if st, err = comm.Recv(c, got, other, 1); err != nil || st.Cancelled {
			return fmt.Errorf("%+v %w", st, err)
		}
		return first(same("got", got, []int{4}), same("cancelled", buf, []int{-1}))
	})
}

func TestZeroRequest(t *testing.T) {
	var r comm.Request
	st, err := r.Wait()
	require.NoError(t, err)
	require.Zero(t, st)
	_, done, err := r.Test()
	require.True(t, done)
	require.NoError(t, err)
	require.NoError(t, r.Cancel())
	i, _, err := comm.WaitAny([]comm.Request{{}, {}})
	require.Equal(t, -1, i)
	require.NoError(t, err)
	done, err = comm.TestAll([]comm.Request{{}})
	require.True(t, done)
	require.NoError(t, err)
}

func TestProbes(t *testing.T) {
	eachCount(t, func(c *comm.Comm) error {
		next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
		if _, ok, err := c.Iprobe(comm.AnySource, comm.AnyTag); ok || err != nil {
			return fmt.Errorf("Iprobe of nothing: %v %w", ok, err)
		}
		if m, _, err := c.Improbe(prev, 3); m != nil || err != nil {
			return fmt.Errorf("Improbe of nothing: %v %w", m, err)
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		for _, n := range sizes {
			r := comm.Isend(c, count(n, 1), next, 3)
			st, err := c.Probe(comm.AnySource, comm.AnyTag)
			want := comm.Status{Source: prev, Tag: 3, Bytes: 8 * n, Count: comm.Undefined}
			if err != nil || st != want {
				return fmt.Errorf("Probe: %+v, want %+v: %w", st, want, err)
			}
			elems, cerr := comm.CountOf[[2]int32](st)
			_, odd := comm.CountOf[[3]int64](st)
			if cerr != nil || elems != n || (odd == nil) != (n%3 == 0) {
				return fmt.Errorf("CountOf: %d of %d %w %w", elems, n, cerr, odd)
			}
			st, ok, err := c.Iprobe(prev, 3)
			if err != nil || !ok || st != want {
				return fmt.Errorf("Iprobe: %+v, want %+v: %w", st, want, err)
			}
			m, st, err := c.Mprobe(comm.AnySource, 3)
			if err != nil || st != want {
				return fmt.Errorf("Mprobe: %+v, want %+v: %w", st, want, err)
			}
			if _, ok, err := c.Iprobe(prev, 3); ok || err != nil {
				return fmt.Errorf("seen after Mprobe: %w", err)
			}
			buf := make([]int, n)
			if n%2 == 0 {
				st, err = comm.Mrecv(m, buf)
			} else {
				st, err = comm.Imrecv(m, buf).Wait()
			}
			if err != nil || st != (comm.Status{Source: prev, Tag: 3, Bytes: 8 * n, Count: n}) {
				return fmt.Errorf("Mrecv: %+v: %w", st, err)
			}
			_, again := comm.Mrecv(m, buf)
			if err := first(same("probed", buf, count(n, 1)), wantErr("again", again, comm.ErrArg, "has been received")); err != nil {
				return err
			}
			if err := first(wait(r), c.Barrier()); err != nil {
				return err
			}
		}
		nothing := comm.Status{Source: comm.ProcNull, Tag: comm.AnyTag}
		m, st, err := c.Mprobe(comm.ProcNull, 0)
		if err != nil || st != nothing {
			return fmt.Errorf("Mprobe: %+v %w", st, err)
		}
		if st, err := comm.Mrecv(m, []int{1}); err != nil || st != nothing {
			return fmt.Errorf("Mrecv: %+v %w", st, err)
		}
		if m, st, err = c.Improbe(comm.ProcNull, 0); err != nil || m == nil || st != nothing {
			return fmt.Errorf("Improbe: %v %+v %w", m, st, err)
		}
		if _, st, err := comm.RecvValue[int](c, comm.ProcNull, 0); err != nil || st != nothing {
			return fmt.Errorf("RecvValue: %+v %w", st, err)
		}
		self := comm.Isend(c, []int16{1, 2, 3}, c.Rank(), 9)
		if m, st, err = c.Improbe(c.Rank(), 9); err != nil || m == nil || st != (comm.Status{Source: c.Rank(), Tag: 9, Bytes: 6, Count: comm.Undefined}) {
			return fmt.Errorf("Improbe: %v %+v %w", m, st, err)
		}
		if _, err := comm.Mrecv(m, make([]int16, 3)); err != nil {
			return err
		}
		if err := wait(self); err != nil {
			return err
		}
		_, err = comm.Mrecv[int](nil, nil)
		_, err2 := comm.Mrecv(&comm.Message{}, []int{})
		return first(wantErr("nil", err, comm.ErrArg, "no message"), wantErr("zero", err2, comm.ErrArg, "no message"), c.Barrier())
	})
}

func TestMrecvTruncates(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		if c.Rank() == 0 {
			return first(comm.Send(c, count(9, 0), 1, 0), comm.Send(c, count(90000, 0), 1, 0), comm.Send(c, []int{1}, 1, 0))
		}
		for range 2 {
			m, _, err := c.Mprobe(0, 0)
			if err != nil {
				return err
			}
			_, bad := comm.Mrecv(m, []string{""})
			buf := make([]int, 2)
			_, err = comm.Mrecv(m, buf)
			if err := first(wantErr("strings", bad, comm.ErrType, "string"), wantErr("short", err, comm.ErrTruncate, "Mrecv"), same("buf", buf, []int{0, 1})); err != nil {
				return err
			}
		}
		_, err := comm.Recv(c, make([]int, 1), 0, 0)
		return err
	})
}

// TestOverlappingCollectives starts many collectives and waits for them in the reverse order.
func TestOverlappingCollectives(t *testing.T) {
	eachCount(t, func(c *comm.Comm) error {
		const n = 12
		var rs [n]comm.Request
		var sums, all [n][]int
		for i := range n {
			switch i % 3 {
			case 0:
				sums[i] = make([]int, 1+i*300)
				rs[i] = comm.Iallreduce(c, count(len(sums[i]), c.Rank()), sums[i], comm.Sum)
			case 1:
				all[i] = make([]int, c.Size())
				rs[i] = comm.Iallgather(c, []int{c.Rank() * i}, all[i])
			default:
				rs[i] = c.Ibarrier()
			}
		}
		for i := n - 1; i >= 0; i-- {
			if _, err := rs[i].Wait(); err != nil {
				return err
			}
			for k, v := range sums[i] {
				if want := k*c.Size() + c.Size()*(c.Size()-1)/2; v != want {
					return fmt.Errorf("sum %d is %d, want %d", k, v, want)
				}
			}
			for r, v := range all[i] {
				if v != r*i {
					return fmt.Errorf("gathered %v", all[i])
				}
			}
		}
		return comm.WaitAll(rs[:])
	})
}

// TestCollectivesOfManyComms runs collectives of several communicators at
// once, each in a goroutine of its own.
func TestCollectivesOfManyComms(t *testing.T) {
	ranks(t, 4, func(c *comm.Comm) error {
		var g errgroup.Group
		for range 6 {
			d, err := c.Dup()
			if err != nil {
				return err
			}
			g.Go(func() error {
				for i := range 30 {
					sum := make([]int, 100*i)
					if err := comm.Allreduce(d, count(len(sum), 0), sum, comm.Max); err != nil {
						return err
					}
					if err := same("max", sum, count(len(sum), 0)); err != nil {
						return err
					}
				}
				return d.Free()
			})
		}
		return g.Wait()
	})
}
