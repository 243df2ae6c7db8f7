package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/mpi"
)

// end waits for the end of an operation. There are four ways to wait, and i selects one of them.
func end(p *comm.Persistent, i int) (comm.Status, error) {
	switch i % 4 {
	case 0:
		return p.Wait()
	case 1:
		for {
			if st, ok, err := p.Test(); ok {
				return st, err
			}
		}
	case 2:
		_, st, err := comm.WaitAny([]comm.Request{p.Request()})
		return st, err
	default:
		return comm.Status{}, comm.WaitAll([]comm.Request{p.Request()})
	}
}

// TestPersistentMessages starts sends and receives many times. They also match ordinary receives
// and sends.
func TestPersistentMessages(t *testing.T) {
	overFabrics(t, []int{1, 2, 3}, func(c *comm.Comm) error {
		next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
		for _, n := range []int{0, 5, 9000} {
			out, in := make([]int64, n), make([]int64, n)
			wide := make([]int64, 2*n)
			view := comm.Of(wide, comm.Vector(n, 1, 2))
			var ps []*comm.Persistent
			for _, make := range []func() (*comm.Persistent, error){
				func() (*comm.Persistent, error) { return comm.RecvInit(c, in, prev, n) },
				func() (*comm.Persistent, error) { return comm.SendInit(c, out, next, n) },
				func() (*comm.Persistent, error) { return view.RecvInit(c, prev, n+1) },
				func() (*comm.Persistent, error) { return comm.SsendInit(c, out, next, n+1) },
				func() (*comm.Persistent, error) { return comm.RecvInit(c, in, comm.ProcNull, n) },
			} {
				p, err := make()
				if err != nil {
					return err
				}
				ps = append(ps, p)
			}
			for round := range 4 {
				for i := range out {
					out[i] = int64(c.Rank()<<40 | round<<32 | i)
				}
				if err := comm.StartAll(ps); err != nil {
					return err
				}
				for i, p := range ps {
					st, err := end(p, round+i)
					if err != nil {
						return err
					}
					if want := (comm.Status{Source: prev, Tag: n, Bytes: 8 * n, Count: n}); i == 0 && (round+i)%4 != 3 && st != want {
						return fmt.Errorf("%+v, not %+v", st, want)
					}
				}
				want := make([]int64, n)
				for i := range want {
					want[i] = int64(prev<<40 | round<<32 | i)
				}
				if err := errors.Join(same("slice", in, want), holds("view", view, want)); err != nil {
					return err
				}
				// An ordinary receive and send match persistent ones.
				r := comm.Irecv(c, in, prev, n)
				if err := ps[1].Start(); err != nil {
					return err
				}
				if _, err := r.Wait(); err != nil {
					return err
				}
				if _, err := ps[1].Wait(); err != nil {
					return err
				}
			}
			for _, p := range ps {
				if err := p.Free(); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// persistentCalls has a function for each persistent collective. The function makes the operation
// p, and returns the slices that p sends and receives, and the function that does the blocking call
// with other slices.
var persistentCalls = map[string]func(c *comm.Comm, n int) (p *comm.Persistent, send, recv []int64, blocking func(send, recv []int64) error, err error){
	"Barrier": func(c *comm.Comm, _ int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		p, err := c.BarrierInit()
		return p, nil, nil, func(_, _ []int64) error { return c.Barrier() }, err
	},
	"Bcast": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		root, buf := c.Size()-1, make([]int64, n)
		p, err := comm.BcastInit(c, buf, root)
		send := buf
		if c.Rank() != root {
			send = nil
		}
		return p, send, buf, func(send, recv []int64) error {
			if c.Rank() == root {
				copy(recv, send)
			}
			return comm.Bcast(c, recv, root)
		}, err
	},
	"Bcast of a view": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		buf := make([]int64, 2*n)
		v := comm.Of(buf, comm.Vector(n, 1, 2))
		p, err := v.BcastInit(c, 0)
		send := buf
		if c.Rank() != 0 {
			send = nil
		}
		return p, send, buf, func(send, recv []int64) error {
			if c.Rank() == 0 {
				copy(recv, send)
			}
			return comm.Of(recv, comm.Vector(n, 1, 2)).Bcast(c, 0)
		}, err
	},
	"Gather": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		send, recv := make([]int64, n), make([]int64, n*c.Size())
		p, err := comm.GatherInit(c, send, recv, 0)
		return p, send, recv, func(s, r []int64) error { return comm.Gather(c, s, r, 0) }, err
	},
	"Gatherv": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		send, recv, counts := make([]int64, n), make([]int64, n*c.Size()), slices.Repeat([]int{n}, c.Size())
		p, err := comm.GathervInit(c, send, recv, counts, nil, 0)
		return p, send, recv, func(s, r []int64) error { return comm.Gatherv(c, s, r, slices.Repeat([]int{n}, c.Size()), nil, 0) }, err
	},
	"Scatter": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		send, recv := make([]int64, n*c.Size()), make([]int64, n)
		p, err := comm.ScatterInit(c, send, recv, 0)
		return p, send, recv, func(s, r []int64) error { return comm.Scatter(c, s, r, 0) }, err
	},
	"Scatterv": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		send, recv, counts := make([]int64, n*c.Size()), make([]int64, n), slices.Repeat([]int{n}, c.Size())
		p, err := comm.ScattervInit(c, send, counts, nil, recv, 0)
		return p, send, recv, func(s, r []int64) error { return comm.Scatter(c, s, r, 0) }, err
	},
	"Allgather": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		send, recv := make([]int64, n), make([]int64, n*c.Size())
		p, err := comm.AllgatherInit(c, send, recv)
		return p, send, recv, func(s, r []int64) error { return comm.Allgather(c, s, r) }, err
	},
	"Allgatherv": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		send, recv, counts := make([]int64, n), make([]int64, n*c.Size()), slices.Repeat([]int{n}, c.Size())
		p, err := comm.AllgathervInit(c, send, recv, counts, nil)
		return p, send, recv, func(s, r []int64) error { return comm.Allgather(c, s, r) }, err
	},
	"Alltoall": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		send, recv := make([]int64, n*c.Size()), make([]int64, n*c.Size())
		p, err := comm.AlltoallInit(c, send, recv)
		return p, send, recv, func(s, r []int64) error { return comm.Alltoall(c, s, r) }, err
	},
	"Alltoallv": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		send, recv, counts := make([]int64, n*c.Size()), make([]int64, n*c.Size()), slices.Repeat([]int{n}, c.Size())
		p, err := comm.AlltoallvInit(c, send, counts, nil, recv, counts, nil)
		return p, send, recv, func(s, r []int64) error { return comm.Alltoall(c, s, r) }, err
	},
	"GatherView": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		send, recv := make([]int64, 2*n), make([]int64, n*c.Size())
		in := viewsOf(recv, c.Size(), n)
		p, err := comm.GatherViewInit(c, comm.Of(send, comm.Vector(n, 1, 2)), in, 0)
		clear(in) // the operation has a copy of the slice
		return p, send, recv, func(s, r []int64) error {
			flat := make([]int64, len(r))
			if err := comm.Gather(c, everySecond(s), flat, 0); err != nil || c.Rank() > 0 {
				return err
			}
			spread(r, flat, n, c.Size())
			return nil
		}, err
	},
	"ScatterView": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		send, recv := make([]int64, n*c.Size()), make([]int64, 2*n)
		var out []comm.View[int64]
		for r := range c.Size() {
			out = append(out, comm.Of(send, comm.Contiguous(n).Shift(r*n)))
		}
		p, err := comm.ScatterViewInit(c, out, comm.Of(recv, comm.Vector(n, 1, 2)), 0)
		clear(out)
		return p, send, recv, func(s, r []int64) error {
			flat := make([]int64, n)
			err := comm.Scatter(c, s, flat, 0)
			for i, x := range flat {
				r[2*i] = x
			}
			return err
		}, err
	},
	"AllgatherView": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		send, recv := make([]int64, 2*n), make([]int64, n*c.Size())
		in := viewsOf(recv, c.Size(), n)
		p, err := comm.AllgatherViewInit(c, comm.Of(send, comm.Vector(n, 1, 2)), in)
		clear(in)
		return p, send, recv, func(s, r []int64) error {
			flat := make([]int64, len(r))
			err := comm.Allgather(c, everySecond(s), flat)
			spread(r, flat, n, c.Size())
			return err
		}, err
	},
	"AlltoallView": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		send, recv := make([]int64, n*c.Size()), make([]int64, n*c.Size())
		var out, in []comm.View[int64]
		for r := range c.Size() {
			out = append(out, comm.Of(send, comm.Contiguous(n).Shift(r*n)))
			in = append(in, comm.Of(recv, comm.Vector(n, 1, c.Size()).Shift(r)))
		}
		p, err := comm.AlltoallViewInit(c, out, in)
		clear(out) // the operation has copies of the slices
		clear(in)
		return p, send, recv, func(s, r []int64) error {
			flat := make([]int64, len(r))
			err := comm.Alltoall(c, s, flat)
			for i := range flat {
				r[i%n*c.Size()+i/n] = flat[i]
			}
			return err
		}, err
	},
	"Reduce": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		send, recv := make([]int64, n), make([]int64, n)
		p, err := comm.ReduceInit(c, send, recv, comm.Sum[int64], 0)
		return p, send, recv, func(s, r []int64) error { return comm.Reduce(c, s, r, comm.Sum[int64], 0) }, err
	},
	"Allreduce": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		send, recv := make([]int64, n), make([]int64, n)
		p, err := comm.AllreduceInit(c, send, recv, comm.Max[int64])
		return p, send, recv, func(s, r []int64) error { return comm.Allreduce(c, s, r, comm.Max[int64]) }, err
	},
	"Allreduce by a function": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		send, recv := make([]int64, n), make([]int64, n)
		op := comm.OpOf(func(a, b int64) int64 { return a ^ b })
		p, err := comm.AllreduceInit(c, send, recv, op)
		return p, send, recv, func(s, r []int64) error { return comm.Allreduce(c, s, r, op) }, err
	},
	"ReduceScatterBlock": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		send, recv := make([]int64, n*c.Size()), make([]int64, n)
		p, err := comm.ReduceScatterBlockInit(c, send, recv, comm.Sum[int64])
		return p, send, recv, func(s, r []int64) error { return comm.ReduceScatterBlock(c, s, r, comm.Sum[int64]) }, err
	},
	"ReduceScatter": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		send, recv, counts := make([]int64, n*c.Size()), make([]int64, n), slices.Repeat([]int{n}, c.Size())
		p, err := comm.ReduceScatterInit(c, send, recv, counts, comm.Sum[int64])
		clear(counts) // the operation has a copy
		return p, send, recv, func(s, r []int64) error { return comm.ReduceScatterBlock(c, s, r, comm.Sum[int64]) }, err
	},
	"Scan": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		send, recv := make([]int64, n), make([]int64, n)
		p, err := comm.ScanInit(c, send, recv, comm.Sum[int64])
		return p, send, recv, func(s, r []int64) error { return comm.Scan(c, s, r, comm.Sum[int64]) }, err
	},
	"Exscan": func(c *comm.Comm, n int) (*comm.Persistent, []int64, []int64, func(_, _ []int64) error, error) {
		send, recv := make([]int64, n), make([]int64, n)
		p, err := comm.ExscanInit(c, send, recv, comm.Sum[int64])
		return p, send, recv, func(s, r []int64) error { return comm.Exscan(c, s, r, comm.Sum[int64]) }, err
	},
}

// viewsOf returns a view for each rank: every size-th element of mem, from element r on.
func viewsOf(mem []int64, size, n int) (views []comm.View[int64]) {
	for r := range size {
		views = append(views, comm.Of(mem, comm.Vector(n, 1, size).Shift(r)))
	}
	return views
}

// spread sets mem, whose views viewsOf returns, to the elements of flat, rank by rank.
func spread(mem, flat []int64, n, size int) {
	for i := range flat {
		mem[i%n*size+i/n] = flat[i]
	}
}

// everySecond returns the elements with even indices.
func everySecond(mem []int64) (list []int64) {
	for i := 0; i < len(mem); i += 2 {
		list = append(list, mem[i])
	}
	return list
}

// TestPersistentCollectives starts each persistent collective several times, and compares the
// results with those of the blocking call.
func TestPersistentCollectives(t *testing.T) {
	names := slices.Sorted(func(yield func(string) bool) {
		for name := range persistentCalls {
			if !yield(name) {
				return
			}
		}
	})
	overFabrics(t, []int{1, 2, 3}, func(c *comm.Comm) error {
		for _, name := range names {
			for _, n := range []int{1, 7, 2000} {
				p, send, recv, blocking, err := persistentCalls[name](c, n)
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				want := slices.Clone(recv)
				for round := range 5 {
					for i := range send {
						send[i] = int64((c.Rank()+1)*(i+1) + round*1000)
					}
					if err := p.Start(); err != nil {
						return fmt.Errorf("%s: %w", name, err)
					}
					_, err := end(p, round+c.Rank())
					if err == nil {
						err = blocking(send, want)
					}
					if err == nil {
						err = same(name, recv, want)
					}
					if err != nil {
						return fmt.Errorf("%s of %d, round %d: %w", name, n, round, err)
					}
				}
				if err := p.Free(); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}
		return nil
	})
}

// TestPersistentOrder starts the persistent collectives of a communicator in an order that differs
// between ranks, and waits for them in another order. Other collectives run meanwhile.
func TestPersistentOrder(t *testing.T) {
	overFabrics(t, []int{2, 3}, func(c *comm.Comm) error {
		var ps []*comm.Persistent
		var outs [][]int64
		for i := range 6 {
			in, out := []int64{int64(i + 1)}, make([]int64, 1)
			p, err := comm.AllreduceInit(c, in, out, comm.Sum[int64])
			if err != nil {
				return err
			}
			ps, outs = append(ps, p), append(outs, out)
		}
		for round := range 10 {
			for i := range ps {
				// 1 and 5 are coprime to 6, so each rank starts all operations.
				if err := ps[(i*(1+4*(c.Rank()%2))+round)%6].Start(); err != nil {
					return err
				}
			}
			if err := c.Barrier(); err != nil {
				return err
			}
			for i := range ps {
				if _, err := end(ps[(i+3*c.Rank())%6], i+round); err != nil {
					return err
				}
			}
			for i, out := range outs {
				if want := int64((i + 1) * c.Size()); out[0] != want {
					return fmt.Errorf("sum %d is %d, not %d", i, out[0], want)
				}
				out[0] = 0
			}
		}
		return nil // without Free: the end of the job frees the operations
	})
}

// TestPersistentProgress: after a rank has started a persistent collective, the other ranks can
// complete it before this rank calls Wait.
func TestPersistentProgress(t *testing.T) {
	overFabrics(t, []int{3}, func(c *comm.Comm) error {
		for _, n := range []int{1, 50_000} {
			in, out := slices.Repeat([]int64{1}, n), make([]int64, n)
			p, err := comm.AllreduceInit(c, in, out, comm.Sum[int64])
			if err != nil {
				return err
			}
			for range 3 {
				if err := p.Start(); err != nil {
					return err
				}
				if c.Rank() == 0 { // waits for a message that the others send after the collective
					for source := 1; source < 3; source++ {
						if _, err := comm.Recv(c, make([]int, 1), source, 0); err != nil {
							return err
						}
					}
				}
				if _, err := p.Wait(); err != nil {
					return err
				}
				if c.Rank() != 0 {
					if err := comm.Send(c, []int{1}, 0, 0); err != nil {
						return err
					}
				}
				if out[0] != 3 || out[n-1] != 3 {
					return fmt.Errorf("sums %d and %d", out[0], out[n-1])
				}
			}
		}
		return nil
	})
}

// TestPersistentErrors checks the errors of wrong uses.
func TestPersistentErrors(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		_, err := comm.SendInit(c, []int{1}, 2, 0)
		require.ErrorIs(t, err, comm.ErrRank)
		_, err = comm.RecvInit(c, []string{""}, 0, 0)
		require.ErrorIs(t, err, comm.ErrType)
		var none *comm.Persistent
		require.ErrorIs(t, none.Start(), comm.ErrArg)
		_, err = none.Wait()
		require.NoError(t, err)
		require.NoError(t, none.Free())

		p, err := comm.RecvInit(c, make([]int, 1), 1-c.Rank(), 0)
		require.NoError(t, err)
		_, err = p.Wait() // not active
		require.NoError(t, err)
		require.NoError(t, p.Start())
		require.ErrorIs(t, p.Start(), comm.ErrArg)
		require.ErrorIs(t, p.Free(), comm.ErrArg)
		// A send that is complete at once is active, too.
		early, err := comm.SendInit(c, []int{1}, 1-c.Rank(), 0)
		require.NoError(t, err)
		require.NoError(t, early.Start())
		require.ErrorIs(t, early.Start(), comm.ErrArg)
		_, err = early.Wait()
		require.NoError(t, err)
		_, err = p.Wait()
		require.NoError(t, err)
		require.NoError(t, p.Start())
		require.NoError(t, p.Request().Cancel())
		st, err := p.Wait()
		require.NoError(t, err)
		require.True(t, st.Cancelled)
		require.NoError(t, p.Free())
		require.ErrorIs(t, p.Start(), comm.ErrArg)

		// If the context ends before the message arrives, the receive stays active.
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		p, err = comm.RecvInit(c.WithContext(ctx), make([]int, 1), 1-c.Rank(), 0)
		require.NoError(t, err)
		require.NoError(t, p.Start())
		_, err = p.Wait()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, p.Start(), comm.ErrArg)
		require.NoError(t, c.Barrier())
		require.NoError(t, comm.Send(c, []int{1}, 1-c.Rank(), 0))
		_, err = p.Request().WaitContext(context.Background())
		require.NoError(t, err)
		return nil
	})
}

// TestPersistentArguments: rank 1 passes a wrong root or count. All ranks get an error: rank 1 from
// Init, and the others from Init, Start or Wait.
func TestPersistentArguments(t *testing.T) {
	for name, make := range map[string]func(c *comm.Comm) (*comm.Persistent, error){
		"root":  func(c *comm.Comm) (*comm.Persistent, error) { return comm.BcastInit(c, []int{1}, 5*c.Rank()) },
		"count": func(c *comm.Comm) (*comm.Persistent, error) { return comm.BcastInit(c, make([]int, 1+c.Rank()), 0) },
		"kind": func(c *comm.Comm) (*comm.Persistent, error) {
			if c.Rank() == 1 {
				return c.BarrierInit()
			}
			return comm.BcastInit(c, []int{1}, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 3, func(c *comm.Comm) error {
				d, err := c.Dup()
				require.NoError(t, err)
				p, err := make(d)
				for range 3 {
					if err == nil {
						err = p.Start()
					}
					if err == nil {
						_, err = p.Wait()
					}
				}
				if name != "kind" || c.Rank() != 2 { // a barrier and a bcast may end on some ranks
					require.Error(t, err)
				}
				return nil
			})
		})
	}
}

// TestPersistentFailure: a rank ends while a persistent collective is active on the other ranks.
// Each way to wait returns ErrProcFailed or ErrRevoked to them.
func TestPersistentFailure(t *testing.T) {
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			ranks(t, 3, func(c *comm.Comm) error {
				p, err := comm.AllreduceInit(c, []int64{1}, make([]int64, 1), comm.Sum[int64])
				require.NoError(t, err)
				for range 3 {
					require.NoError(t, p.Start())
					_, err = p.Wait()
					require.NoError(t, err)
				}
				if c.Rank() == 1 {
					commtest.Kill(c)
					return nil
				}
				// If Start fails, the other survivor has revoked the operation.
				if err = p.Start(); err == nil {
					_, err = end(p, i)
				}
				require.Error(t, err)
				require.True(t, errors.Is(err, comm.ErrProcFailed) || errors.Is(err, comm.ErrRevoked), err)
				err = p.Start()
				require.True(t, errors.Is(err, comm.ErrProcFailed) || errors.Is(err, comm.ErrRevoked), err)
				require.NoError(t, p.Free())
				return nil
			}, commtest.WithNotify())
		})
	}
}

// TestPersistentAfterFinalize: the calls for an operation that was started before the end of the job
// return ErrClosed.
func TestPersistentAfterFinalize(t *testing.T) {
	for i := range 3 {
		var ps [2]*comm.Persistent
		ranks(t, 2, func(c *comm.Comm) error {
			p, err := comm.AllreduceInit(c, []int64{1}, make([]int64, 1), comm.Sum[int64])
			if err != nil {
				return err
			}
			for range 3 {
				if err := p.Start(); err != nil {
					return err
				}
				if _, err := p.Wait(); err != nil {
					return err
				}
			}
			ps[c.Rank()] = p
			if i == 2 {
				return nil
			}
			return p.Start()
		})
		for _, p := range ps {
			var err error
			switch i {
			case 0:
				for ok := false; !ok && err == nil; {
					_, ok, err = p.Test()
				}
			case 1:
				_, err = p.Wait()
			default:
				err = p.Start()
			}
			require.ErrorIs(t, err, comm.ErrClosed)
		}
	}
}

// TestPersistentBesideStallDetector: the stall detector looks at the links of all communicators, and
// acquires their slots for that. A persistent collective is not disturbed.
func TestPersistentBesideStallDetector(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		stop := make(chan struct{})
		var looking sync.WaitGroup
		looking.Go(func() { mpi.LookForStalls((*mpi.Comm)(c), stop) }) // ends when stop is closed
		defer looking.Wait()
		defer close(stop)
		in, out := []int64{1}, []int64{0}
		p, err := comm.AllreduceInit(c, in, out, comm.Sum[int64])
		if err != nil {
			return err
		}
		for i := range 5000 {
			if err := p.Start(); err != nil {
				return err
			}
			if _, err := end(p, i); err != nil {
				return fmt.Errorf("round %d: %w", i, err)
			}
			if out[0] != 2 {
				return fmt.Errorf("round %d: %d", i, out[0])
			}
			out[0] = 0
		}
		return p.Free()
	})
}
