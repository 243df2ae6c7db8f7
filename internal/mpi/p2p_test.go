package mpi_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

func isErr(err, kind error) bool { return errors.Is(err, kind) }

// sizes holds lengths of messages in elements of 8 bytes: of empty, short, eager and rendezvous
// messages.
var sizes = []int{0, 1, 5, 500, 20000, 200000}

func TestSendRecvRing(t *testing.T) {
	eachCount(t, func(c *comm.Comm) error {
		right, left := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
		for tag, n := range sizes {
			r := comm.Irecv(c, make([]int, 0), comm.ProcNull, 0)
			buf := make([]int, n+1)
			buf[n] = -7
			req := comm.Irecv(c, buf[:n], left, tag)
			if err := comm.Send(c, count(n, c.Rank()), right, tag); err != nil {
				return err
			}
			st, err := req.Wait()
			if err != nil {
				return err
			}
			if want := (comm.Status{Source: left, Tag: tag, Bytes: 8 * n, Count: n}); st != want {
				return fmt.Errorf("status %+v, want %+v", st, want)
			}
			if err := same("ring", buf, append(count(n, left), -7)); err != nil {
				return err
			}
			if st, err := r.Wait(); err != nil || st.Source != comm.ProcNull {
				return fmt.Errorf("from ProcNull: %v, %w", st, err)
			}
		}
		return nil
	})
}

func TestSendKinds(t *testing.T) {
	send := map[string]func(c *comm.Comm, buf []float32, dest, tag int) error{
		"Send": comm.Send[float32], "Ssend": comm.Ssend[float32], "Bsend": comm.Bsend[float32], "Rsend": comm.Rsend[float32],
		"Isend": func(c *comm.Comm, buf []float32, dest, tag int) error {
			_, err := comm.Isend(c, buf, dest, tag).Wait()
			return err
		},
		"Issend": func(c *comm.Comm, buf []float32, dest, tag int) error {
			_, err := comm.Issend(c, buf, dest, tag).Wait()
			return err
		},
	}
	for name, f := range send {
		for _, n := range []int{0, 3, 100000} {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				ranks(t, 3, func(c *comm.Comm) error {
					if c.Rank() == 0 {
						for i := range 2 * 5 {
							if err := f(c, slices.Repeat([]float32{float32(i)}, n), 1+i%2, i); err != nil {
								return err
							}
						}
						return f(c, nil, comm.ProcNull, 0)
					}
					for i := c.Rank() - 1; i < 10; i += 2 {
						buf := make([]float32, n)
						if st, err := comm.Recv(c, buf, 0, i); err != nil || st.Count != n {
							return fmt.Errorf("%v %w", st, err)
						}
						if err := same(name, buf, slices.Repeat([]float32{float32(i)}, n)); err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
	}
}

// TestSsendWaits: a synchronous send is not complete before a receive has matched it.
func TestSsendWaits(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		if c.Rank() == 0 {
			r := comm.Issend(c, []int{1}, 1, 7)
			// Rank 1 sends this message when it has probed the first one, but not received it.
			if _, err := comm.Recv(c, make([]int, 1), 1, 1); err != nil {
				return err
			}
			if _, done, err := r.Test(); done {
				return fmt.Errorf("complete before the receive, %w", err)
			}
			if err := comm.Send(c, []int{1}, 1, 2); err != nil {
				return err
			}
			_, err := r.Wait()
			return err
		}
		if _, err := c.Probe(0, 7); err != nil {
			return err
		}
		one := make([]int, 1)
		if err := comm.Send(c, one, 0, 1); err != nil {
			return err
		}
		_, err1 := comm.Recv(c, one, 0, 2)
		_, err2 := comm.Recv(c, one, 0, 7)
		return first(err1, err2)
	})
}

func TestSelf(t *testing.T) {
	eachCount(t, func(c *comm.Comm) error {
		for _, n := range sizes {
			r := comm.Isend(c, count(n, 3), c.Rank(), 9)
			buf := make([]int, n)
			st, err := comm.Recv(c, buf, c.Rank(), 9)
			if err != nil || st.Count != n || st.Source != c.Rank() {
				return fmt.Errorf("%+v: %w", st, err)
			}
			if _, err := r.Wait(); err != nil {
				return err
			}
			if err := same("self", buf, count(n, 3)); err != nil {
				return err
			}
		}
		return nil
	})
}

type celsius float64

type cell struct {
	X, Y int32
	T    celsius
	On   bool
	Name [5]byte
}

func TestElementTypes(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		other := 1 - c.Rank()
		cells := []cell{{1, 2, 36.6, true, [5]byte{'h'}}, {X: -1}}
		gotCells := make([]cell, 2)
		_, err := comm.Sendrecv(c, cells, other, 0, gotCells, other, 0)
		temps, gotTemps := []celsius{1.5, -2}, make([]celsius, 2)
		_, err2 := comm.Sendrecv(c, temps, other, 0, gotTemps, other, 0)
		none := make([]struct{}, 4)
		st, err3 := comm.Sendrecv(c, none, other, 0, none, other, 0)
		// A message of any element type may be received as bytes.
		raw := make([]byte, 16)
		st2, err4 := comm.Sendrecv(c, temps, other, 0, raw, other, 0)
		if st.Count != 0 || st2.Count != 16 {
			return fmt.Errorf("%+v %+v", st, st2)
		}
		return first(err, err2, err3, err4, same("cells", gotCells, cells), same("temperatures", gotTemps, temps))
	})
}

func TestSendrecvShifts(t *testing.T) {
	eachCount(t, func(c *comm.Comm) error {
		n, me := c.Size(), c.Rank()
		for shift := range n {
			to, from := (me+shift)%n, (me-shift+n)%n
			got := make([]int, 30000)
			st, err := comm.Sendrecv(c, count(30000, me), to, shift, got, from, shift)
			if err != nil || st.Source != from {
				return fmt.Errorf("%+v: %w", st, err)
			}
			if err := same("shift", got, count(30000, from)); err != nil {
				return err
			}
			buf := count(2000, me)
			if _, err := comm.SendrecvReplace(c, buf, to, 1, from, comm.AnyTag); err != nil {
				return err
			}
			if err := same("replace", buf, count(2000, from)); err != nil {
				return err
			}
		}
		// Shifts along a line, whose ends have one neighbor only.
		up, down := me+1, me-1
		if me == n-1 {
			up = comm.ProcNull
		}
		if me == 0 {
			down = comm.ProcNull
		}
		got := []int{-1}
		st, err := comm.Sendrecv(c, []int{me}, up, 0, got, down, 0)
		if err != nil {
			return err
		}
		if me == 0 && (st != comm.Status{Source: comm.ProcNull, Tag: comm.AnyTag}) {
			return fmt.Errorf("from ProcNull: %+v", st)
		}
		return same("line", got, []int{me - 1})
	})
}

func TestWildcards(t *testing.T) {
	eachCount(t, func(c *comm.Comm) error {
		const each = 20
		if c.Rank() != 0 {
			for i := range each {
				if err := comm.Send(c, []int{c.Rank(), i}, 0, c.Rank()*100+i); err != nil {
					return err
				}
			}
			return nil
		}
		next := make([]int, c.Size())
		for range each * (c.Size() - 1) {
			buf := make([]int, 2)
			st, err := comm.Recv(c, buf, comm.AnySource, comm.AnyTag)
			if err != nil {
				return err
			}
			if buf[0] != st.Source || buf[1] != next[st.Source] || st.Tag != st.Source*100+buf[1] {
				return fmt.Errorf("message %v out of order: status %+v, expected %d", buf, st, next[st.Source])
			}
			next[st.Source]++
		}
		return nil
	})
}

// TestOrder: messages from one rank to another do not overtake each other, even if their lengths
// differ.
func TestOrder(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		size := func(i int) int { return sizes[i*7%len(sizes)] }
		if c.Rank() == 0 {
			var rs []comm.Request
			for i := range 60 {
				rs = append(rs, comm.Isend(c, count(size(i), i), 1, 5))
			}
			return comm.WaitAll(rs)
		}
		for i := range 60 {
			got, st, err := comm.RecvAlloc[int](c, 0, comm.AnyTag)
			if err != nil || st.Count != size(i) {
				return fmt.Errorf("%d: %+v: %w", i, st, err)
			}
			if err := same("order", got, count(size(i), i)); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestTagsOutOfOrder receives messages with different tags in another order than they were sent.
func TestTagsOutOfOrder(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		tags := []int{0, 1, 77, comm.MaxTag}
		if c.Rank() == 0 {
			for _, tag := range tags {
				if err := comm.Send(c, []int{tag}, 1, tag); err != nil {
					return err
				}
			}
			return nil
		}
		for _, tag := range slices.Backward(tags) {
			got := make([]int, 1)
			st, err := comm.Recv(c, got, 0, tag)
			if err != nil || got[0] != tag || st.Tag != tag {
				return fmt.Errorf("tag %d: %v %+v %w", tag, got, st, err)
			}
		}
		return nil
	})
}

func TestTruncation(t *testing.T) {
	for _, n := range []int{2, 1000, 100000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			ranks(t, 2, func(c *comm.Comm) error {
				if c.Rank() == 0 {
					for range 3 {
						if err := comm.Send(c, count(n, 0), 1, 0); err != nil {
							return err
						}
					}
					return comm.Send(c, []byte{1, 2, 3}, 1, 1)
				}
				buf := slices.Repeat([]int{-1}, n)
				st, err := comm.Recv(c, buf[:n-1], 0, 0)
				if err := wantErr("Recv", err, comm.ErrTruncate, "Recv (world, rank 0, tag 0)"); err != nil {
					return err
				}
				if st.Count != n {
					return fmt.Errorf("Count %d of %d", st.Count, n)
				}
				if err := same("truncated", buf, append(count(n-1, 0), -1)); err != nil {
					return err
				}
				_, err = comm.Irecv(c, buf[:0], 0, 0).Wait()
				if err := wantErr("Irecv", err, comm.ErrTruncate, "Irecv"); err != nil {
					return err
				}
				if st, err := comm.Recv(c, buf, 0, 0); err != nil || st.Count != n {
					return fmt.Errorf("after truncation: %+v, %w", st, err)
				}
				_, err = comm.Recv(c, make([]int32, 1), 0, 1)
				return wantErr("3 bytes as int32", err, comm.ErrCount, "3 bytes")
			})
		})
	}
}

func TestRecvAllocAndValues(t *testing.T) {
	type config struct {
		Name  string
		Sizes []int
		More  map[string]float64
	}
	eachCount(t, func(c *comm.Comm) error {
		next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
		var rs []comm.Request
		for _, n := range sizes {
			rs = append(rs, comm.Isend(c, count(n, n), next, 1))
		}
		for _, n := range sizes {
			got, st, err := comm.RecvAlloc[int](c, comm.AnySource, 1)
			if err != nil || st.Count != n || st.Source != prev {
				return fmt.Errorf("%+v: %w", st, err)
			}
			if got == nil {
				return fmt.Errorf("a message of %d elements came as nil, as if there were none", n)
			}
			if err := same("RecvAlloc", got, count(n, n)); err != nil {
				return err
			}
		}
		if err := comm.WaitAll(rs); err != nil {
			return err
		}
		in := config{"é", []int{1, 2}, map[string]float64{"x": 2.5}}
		if c.Rank()%2 == 0 || c.Size() == 1 {
			if err := comm.SendValue(c, in, next, 2); err != nil {
				return err
			}
		}
		if prev%2 == 0 || c.Size() == 1 {
			out, st, err := comm.RecvValue[config](c, prev, comm.AnyTag)
			if err != nil || st.Count != 1 || out.Name != in.Name || out.More["x"] != 2.5 || !slices.Equal(out.Sizes, in.Sizes) {
				return fmt.Errorf("%+v %+v: %w", st, out, err)
			}
		}
		return nil
	})
}

func TestValueErrors(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		if c.Rank() == 0 {
			var nothing *int
			return first(
				wantErr("chan", comm.SendValue(c, make(chan int), 1, 0), comm.ErrType, "SendValue"),
				wantErr("nil pointer", comm.SendValue(c, nothing, 1, 0), comm.ErrType, ""),
				wantErr("rank", comm.SendValue(c, 1, 2, 0), comm.ErrRank, "SendValue (world, rank 2"),
				comm.SendValue(c, "text", 1, 0),
				comm.Send(c, []byte("weft-gob but not really"), 1, 0), comm.Send(c, []byte{1}, 1, 0),
				comm.Send(c, []int32{1, 2, 3}, 1, 0),
			)
		}
		recv := func() error {
			_, _, err := comm.RecvValue[int](c, 0, 0)
			return err
		}
		if err := first(
			wantErr("other type", recv(), comm.ErrType, "RecvValue (world, rank 0, tag 0)"),
			wantErr("garbage", recv(), comm.ErrType, ""),
			wantErr("a plain message", recv(), comm.ErrType, "not sent as a value"),
		); err != nil {
			return err
		}
		_, _, err := comm.RecvAlloc[int64](c, 0, 0)
		return wantErr("12 bytes as int64", err, comm.ErrCount, "RecvAlloc")
	})
}

// TestConcurrentTags: eight goroutines of each rank send and receive on one communicator at the
// same time, each with a tag of its own.
func TestConcurrentTags(t *testing.T) {
	for _, n := range []int{2, 3} {
		ranks(t, n, func(c *comm.Comm) error {
			const workers, rounds = 8, 50
			var g errgroup.Group
			for w := range workers {
				g.Go(func() error {
					next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
					for i := range rounds {
						size := sizes[(w+i)%4]
						got := make([]int, size)
						if _, err := comm.Sendrecv(c, count(size, w*i), next, w, got, prev, w); err != nil {
							return err
						}
						if err := same("worker", got, count(size, w*i)); err != nil {
							return err
						}
					}
					return nil
				})
			}
			return g.Wait()
		})
	}
}

// TestEagerLimits exchanges messages of all sizes with several eager limits, so that each size is
// sent by each protocol.
func TestEagerLimits(t *testing.T) {
	for _, limit := range []string{"1", "100", "1m"} {
		t.Run(limit, func(t *testing.T) {
			ranks(t, 3, func(c *comm.Comm) error {
				for _, n := range sizes {
					for peer := range c.Size() {
						got := make([]int, n)
						if _, err := comm.Sendrecv(c, count(n, c.Rank()), peer, 0, got, peer, 0); err != nil {
							return err
						}
						if err := same("exchange", got, count(n, peer)); err != nil {
							return err
						}
					}
				}
				return nil
			}, commtest.WithParam("engine.eager_limit", limit))
		})
	}
}

func TestNilComm(t *testing.T) {
	var c *comm.Comm
	for _, c := range []*comm.Comm{c, {}} {
		_, err := comm.Recv(c, []int{1}, 0, 0)
		require.ErrorIs(t, err, comm.ErrClosed)
		require.ErrorIs(t, comm.Send(c, []int{1}, 0, 0), comm.ErrClosed)
		require.ErrorIs(t, c.Barrier(), comm.ErrClosed)
		require.ErrorIs(t, c.Free(), comm.ErrClosed)
		require.ErrorIs(t, c.Revoke(), comm.ErrClosed)
		require.ErrorIs(t, c.Finalize(), comm.ErrClosed)
		_, err = c.Dup()
		require.ErrorIs(t, err, comm.ErrClosed)
		_, err = c.Split(0, 0)
		require.ErrorIs(t, err, comm.ErrClosed)
		_, err = c.SplitNode(0)
		require.ErrorIs(t, err, comm.ErrClosed)
		_, err = c.Create(comm.Group{})
		require.ErrorIs(t, err, comm.ErrClosed)
		_, err = c.CreateGroup(comm.Group{}, 0)
		require.ErrorIs(t, err, comm.ErrClosed)
		_, err = c.Probe(0, 0)
		require.ErrorIs(t, err, comm.ErrClosed)
		_, err = c.Ibarrier().Wait()
		require.ErrorIs(t, err, comm.ErrClosed)
		_, err = comm.Isend(c, []int{1}, 0, 0).Wait()
		require.ErrorIs(t, err, comm.ErrClosed)
		require.Equal(t, comm.Undefined, c.Rank())
		require.Zero(t, c.Size())
		require.Zero(t, c.Group().Size())
		require.NotNil(t, c.Context())
	}
}
