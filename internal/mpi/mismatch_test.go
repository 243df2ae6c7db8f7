package mpi_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// TestMismatchNamesBoth checks that two ranks that call different collectives both get an error
// that names both calls.
func TestMismatchNamesBoth(t *testing.T) {
	barrier := (*comm.Comm).Barrier
	for name, x := range map[string]struct {
		calls [2]func(c *comm.Comm) error // by rank
		texts [2]string
	}{
		"call": {
			[2]func(*comm.Comm) error{barrier, func(c *comm.Comm) error { return comm.Bcast(c, make([]float64, 10), 1) }},
			[2]string{"Barrier", "Bcast of 10 × float64 from root 1"},
		},
		"type": {
			[2]func(*comm.Comm) error{
				func(c *comm.Comm) error { return comm.Allreduce(c, []float64{1}, []float64{0}, comm.Sum) },
				func(c *comm.Comm) error { return comm.Allreduce(c, []int64{1}, []int64{0}, comm.Sum) },
			},
			[2]string{"Allreduce of 1 × float64 by Sum", "Allreduce of 1 × int64 by Sum"},
		},
		"op": {
			[2]func(*comm.Comm) error{
				func(c *comm.Comm) error { return comm.Allreduce(c, []int{1, 2}, []int{0, 0}, comm.Max) },
				func(c *comm.Comm) error { return comm.Allreduce(c, []int{1, 2}, []int{0, 0}, comm.Min) },
			},
			[2]string{"Allreduce of 2 × int64 by Max", "Allreduce of 2 × int64 by Min"},
		},
		"count": {
			[2]func(*comm.Comm) error{
				func(c *comm.Comm) error { return comm.Allgather(c, []int32{1}, make([]int32, 2)) },
				func(c *comm.Comm) error { return comm.Allgather(c, []int32{1, 2}, make([]int32, 4)) },
			},
			[2]string{"Allgather of 1 × int32 per rank", "Allgather of 2 × int32 per rank"},
		},
		"root": {
			[2]func(*comm.Comm) error{
				func(c *comm.Comm) error { return comm.Reduce(c, []uint8{1}, []uint8{1}, comm.Sum, 0) },
				func(c *comm.Comm) error { return comm.Reduce(c, []uint8{1}, []uint8{1}, comm.Sum, 1) },
			},
			[2]string{"Reduce of 1 × bytes by Sum to root 0", "Reduce of 1 × bytes by Sum to root 1"},
		},
		"Dup": {
			[2]func(*comm.Comm) error{barrier, func(c *comm.Comm) error { _, err := c.Dup(); return err }},
			[2]string{"Barrier", "Dup"},
		},
		"nonblocking": {
			[2]func(*comm.Comm) error{
				func(c *comm.Comm) error { return wait(c.Ibarrier()) },
				func(c *comm.Comm) error { return wait(comm.Iallreduce(c, []int{1}, []int{0}, comm.Sum)) },
			},
			[2]string{"Barrier", "Allreduce of 1 × int64 by Sum"},
		},
	} {
		for _, memory := range []string{"256k", "0"} {
			t.Run(name+"/shared memory "+memory, func(t *testing.T) {
				t.Parallel()
				ranks(t, 2, func(world *comm.Comm) error {
					c, err := world.Dup()
					if err != nil {
						return err
					}
					for range 3 {
						if err := comm.Allreduce(c, []int{1}, []int{0}, comm.Sum); err != nil {
							return err
						}
					}
					if err := x.calls[c.Rank()](c); err != nil {
						return first(says(err, x.texts), c.Free(), world.Barrier())
					}
					// The collective of this rank waited for no other rank. The next call returns
					// the error.
					_, err = comm.Recv(c, []int{1}, comm.AnySource, 0)
					return first(says(err, x.texts), c.Free(), world.Barrier())
				}, commtest.WithParam("coll.shared_memory", memory))
			})
		}
	}
}

// says returns an error unless the text of err names the calls of rank 0 and rank 1, which are
// texts.
func says(err error, texts [2]string) error {
	if !isErr(err, comm.ErrMismatch) && !isErr(err, comm.ErrRevoked) {
		return fmt.Errorf("want ErrMismatch or ErrRevoked, got: %s", text(err))
	}
	for r, what := range texts {
		if want := fmt.Sprintf("rank %d called %s", r, what); !strings.Contains(err.Error(), want) {
			return fmt.Errorf("%q does not say %q", err.Error(), want)
		}
	}
	return nil
}

// TestMismatchBehind checks that the error names the first calls that differ, even if ranks detect
// the difference only in later calls.
func TestMismatchBehind(t *testing.T) {
	ranks(t, 2, func(world *comm.Comm) error {
		c, err := world.Dup()
		if err != nil {
			return err
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		// The root of a Bcast waits for no other rank, so it may be several calls ahead.
		for i := 0; i < 6 && err == nil; i++ {
			if c.Rank() == 0 || i != 0 {
				err = comm.Bcast(c, []int{i}, 0)
			} else {
				err = comm.Bcast(c, []int16{0}, 0)
			}
		}
		if err == nil {
			_, err = comm.Recv(c, []int{1}, comm.AnySource, 0)
		}
		return first(says(err, [2]string{"Bcast of 1 × int64 from root 0", "Bcast of 1 × int16 from root 0"}), c.Free(), world.Barrier())
	})
}

// TestCountsThatDoNotFit checks that the error of Alltoallv names the rank that sent another number
// of elements than expected, and both numbers.
func TestCountsThatDoNotFit(t *testing.T) {
	for _, memory := range []string{"256k", "0"} {
		ranks(t, 2, func(world *comm.Comm) error {
			c, err := world.Dup()
			if err != nil {
				return err
			}
			out, in := []int{1, 4}, []int{1, 5} // rank 0 expects 5 elements of rank 1, which sends 4
			if c.Rank() == 1 {
				out, in = []int{4, 1}, []int{4, 1}
			}
			err = comm.Alltoallv(c, make([]float64, 5), out, nil, make([]float64, in[0]+in[1]), in, nil)
			if err == nil {
				_, err = comm.Recv(c, []int{1}, comm.AnySource, 0)
			}
			if !strings.Contains(text(err), "rank 1 sent 4 elements, rank 0 expects 5") {
				return fmt.Errorf("got: %s", text(err))
			}
			return first(c.Free(), world.Barrier())
		}, commtest.WithParam("coll.shared_memory", memory))
	}
}

type particle struct {
	X, Y, Z float64
	ID      int32
}

type atom struct {
	Position [3]float64
	Number   int32
}

// TestTypesOfMessages checks that a receive of another element type than the sender's fails, and
// that the send fails too if it waits for the receiver. Types of the same layout match, and bytes
// match any type.
func TestTypesOfMessages(t *testing.T) {
	const large = 1 << 18
	for name, x := range map[string]struct {
		send, recv func(c *comm.Comm) error
		text       string // of the error; empty: the types match
	}{
		"float64 as int64":      {sends[float64](1), recvs[int64](1), "rank 0 sent elements of float64, and rank 1 receives int64"},
		"uint32 as int32":       {sends[uint32](5), recvs[int32](5), "rank 0 sent elements of uint32, and rank 1 receives int32"},
		"large":                 {sends[float64](large), recvs[int64](large), "rank 0 sent elements of float64, and rank 1 receives int64"},
		"struct as float64":     {sends[particle](2), recvs[float64](8), "rank 0 sent elements of a struct of another layout, and rank 1 receives float64"},
		"bool as int8":          {sends[bool](1), recvs[int8](1), "rank 0 sent elements of bool, and rank 1 receives int8"},
		"bytes as float64":      {sends[byte](16), recvs[float64](2), ""},
		"float64 as bytes":      {sends[float64](2), recvs[byte](16), ""},
		"a named type":          {sends[celsius](3), recvs[float64](3), ""},
		"int as int64":          {sends[int](3), recvs[int64](3), ""},
		"arrays of float64":     {sends[[3]float64](2), recvs[float64](6), ""},
		"structs of one layout": {sends[particle](3), recvs[atom](3), ""},
		"the rank itself":       {itself[float32, int32], func(*comm.Comm) error { return nil }, ""},
		"probed":                {sends[float64](1), mrecvs[int64](1), "rank 0 sent elements of float64, and rank 1 receives int64"},
		"a large one as bytes":  {sends[float64](large), recvs[byte](8 * large), ""},
		"in an array":           {sends[particle](4), recvs[[2]particle](2), ""},
		"of no size": {sends[[3]struct{}](0), recvs[struct {
			P [4]struct{}
			N [2][3][0]int
		}](0), ""},
		"a small Ssend":         {func(c *comm.Comm) error { return comm.Ssend(c, []float64{1}, 1, 0) }, recvs[int64](1), "rank 0 sent elements of float64, and rank 1 receives int64"},
		"an empty one":          {sends[float64](0), recvs[int64](1), "rank 0 sent elements of float64, and rank 1 receives int64"},
		"complex128 as float64": {sends[complex128](1), recvs[float64](2), "rank 0 sent elements of complex128, and rank 1 receives float64"},
		"a value and float64s":  {func(c *comm.Comm) error { return comm.SendValue(c, "a", 1, 0) }, valueAsBytes, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 2, func(c *comm.Comm) error {
				if c.Rank() == 0 {
					err := x.send(c)
					if name == "large" || name == "a small Ssend" {
						return wantErr("Send", err, comm.ErrMismatch, x.text)
					}
					return err
				}
				err := x.recv(c)
				if x.text == "" {
					return err
				}
				return wantErr("Recv", err, comm.ErrMismatch, x.text)
			})
		})
	}
}

func sends[T any](n int) func(c *comm.Comm) error {
	return func(c *comm.Comm) error { return comm.Send(c, make([]T, n), 1, 0) }
}

func recvs[T any](n int) func(c *comm.Comm) error {
	return func(c *comm.Comm) error {
		st, err := comm.Recv(c, make([]T, n), 0, 0)
		if err == nil && st.Count != n {
			return fmt.Errorf("%d elements", st.Count)
		}
		return err
	}
}

func mrecvs[T any](n int) func(c *comm.Comm) error {
	return func(c *comm.Comm) error {
		m, _, err := c.Mprobe(0, 0)
		if err != nil {
			return err
		}
		_, err = comm.Mrecv(m, make([]T, n))
		return err
	}
}

func itself[S, R any](c *comm.Comm) error {
	for _, before := range []bool{false, true} {
		var err error
		if before {
			r := comm.Irecv(c, make([]R, 1), 0, 1)
			err = comm.Send(c, make([]S, 1), 0, 1)
			_, rerr := r.Wait()
			err = first(err, wantErr("Irecv", rerr, comm.ErrMismatch, "float32"))
		} else {
			err = comm.Send(c, make([]S, 1), 0, 1)
			_, rerr := comm.Recv(c, make([]R, 1), 0, 1)
			err = first(err, wantErr("Recv", rerr, comm.ErrMismatch, "float32"))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func valueAsBytes(c *comm.Comm) error {
	if s, _, err := comm.RecvValue[string](c, 0, 0); err != nil || s != "a" {
		return fmt.Errorf("%q %w", s, err)
	}
	return nil
}

// TestCollectivesAtOnce checks that two goroutines that run collectives of one communicator at the
// same time get an error, on all ranks.
func TestCollectivesAtOnce(t *testing.T) {
	for name, call := range map[string]func(c *comm.Comm, v int) error{
		"blocking": func(c *comm.Comm, v int) error {
			return comm.Allreduce(c, []int{v}, make([]int, 1), comm.Sum)
		},
		"beside a Barrier": func(c *comm.Comm, v int) error {
			if v == 1 {
				return c.Barrier()
			}
			return wait(comm.Iallreduce(c, []int{v}, make([]int, 1), comm.Sum))
		},
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 2, func(world *comm.Comm) error {
				c, err := world.Dup()
				if err != nil {
					return err
				}
				errs := make(chan error)
				for _, v := range []int{1, 100} {
					go func() { // ends when a call fails, at the latest when the communicator is revoked
						for {
							if err := call(c, v); err != nil {
								errs <- err
								return
							}
						}
					}()
				}
				one, other := <-errs, <-errs
				for _, err := range []error{one, other} {
					if !strings.Contains(err.Error(), comm.ErrConcurrent.Error()) && !isErr(err, comm.ErrMismatch) && !strings.Contains(err.Error(), comm.ErrMismatch.Error()) {
						return fmt.Errorf("got: %w", err)
					}
				}
				return first(c.Free(), world.Barrier())
			})
		})
	}
}

// TestErrConcurrent checks that a collective that begins while another goroutine is in a collective
// returns ErrConcurrent, and that it revokes the communicator.
func TestErrConcurrent(t *testing.T) {
	ranks(t, 2, func(world *comm.Comm) error {
		c, err := world.Dup()
		if err != nil {
			return err
		}
		inside, goOn := make(chan struct{}), make(chan struct{})
		op := comm.OpFunc(true, func([]int, []int) {
			close(inside)
			<-goOn
		})
		if c.Rank() == 0 {
			reduced := make(chan error, 1)
			go func() { reduced <- comm.Reduce(c, []int{1}, []int{1}, op, 0) }()
			<-inside
			err := c.Barrier()
			close(goOn)
			return first(wantErr("Barrier", err, comm.ErrConcurrent, ""), <-reduced,
				wantErr("the next", c.Barrier(), comm.ErrRevoked, "another goroutine is in a collective"), c.Free(), world.Barrier())
		}
		if err := comm.Reduce(c, []int{1}, nil, op, 0); err != nil && !isErr(err, comm.ErrRevoked) {
			return err
		}
		_, err = comm.Recv(c, []int{1}, 0, 0)
		return first(wantErr("Recv", err, comm.ErrRevoked, "another goroutine is in a collective"), c.Free(), world.Barrier())
	})
}

// TestGatherNamesBothLengths checks that the error for lengths that do not fit together has both
// lengths.
func TestGatherNamesBothLengths(t *testing.T) {
	const want = "send has 4 elements and recv has 4: 2 ranks × 4 of send are 8"
	ranks(t, 2, func(world *comm.Comm) error {
		for name, call := range map[string]func(c *comm.Comm) error{
			"Gather":    func(c *comm.Comm) error { return comm.Gather(c, make([]int, 4), make([]int, 4), c.Rank()) },
			"Allgather": func(c *comm.Comm) error { return comm.Allgather(c, make([]int, 4), make([]int, 4)) },
		} {
			c, err := world.Dup()
			if err != nil {
				return err
			}
			if err := call(c); !strings.Contains(text(err), want) {
				return fmt.Errorf("%s: %s", name, text(err))
			}
			if err := first(c.Free(), world.Barrier()); err != nil {
				return err
			}
		}
		return nil
	})
}
