package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/devicetest"
	"github.com/weft-hpc/weft/transport/inproc"
)

// gpu is a device for tests, with a function that allocates n elements there and fills them.
type gpu struct {
	*comm.Device
	mem *devicetest.Device
	t   testing.TB
}

func newGPU(t testing.TB) *gpu {
	t.Helper()
	mem := devicetest.New(t)
	return &gpu{comm.NewDevice("cuda", 0, mem), mem, t}
}

// of returns a view of new memory of the device with these elements.
func (g *gpu) of(vs []int64) (comm.View[int64], error) {
	v := comm.OnDevice[int64](g.Device, g.mem.Alloc(g.t, 8*len(vs)), len(vs))
	_, err := comm.Unpack(v, vs)
	return v, err
}

// deviceMemory returns a view of elements on the device if where is "device", otherwise of the same elements
// in host memory.
func deviceMemory(g *gpu, where string, vs []int64) (comm.View[int64], error) {
	if where == "device" {
		return g.of(vs)
	}
	return comm.Of(slices.Clone(vs), comm.Contiguous(len(vs))), nil
}

// has returns an error if the elements of v are not want.
func has(v comm.View[int64], want []int64) error {
	got := make([]int64, len(want))
	if _, err := comm.Pack(got, v); err != nil {
		return err
	}
	if !slices.Equal(got, want) {
		return errors.New("the view has wrong elements")
	}
	return nil
}

func numbers(n, from int) []int64 {
	vs := make([]int64, n)
	for i := range vs {
		vs[i] = int64(from + i)
	}
	return vs
}

// TestDeviceMessages sends messages between host memory and the memory of a device, by each kind of send and
// receive, also to the same rank.
func TestDeviceMessages(t *testing.T) {
	g := newGPU(t)
	kinds := []string{"Send", "Issend", "Bsend", "Sendrecv", "persistent", "Mrecv"}
	overFabrics(t, []int{1, 2, 3}, func(c *comm.Comm) error {
		for i, n := range []int{0, 1, 100, 5000, 70_001} {
			for j, kind := range kinds {
				pair := (i + j) % 3
				from, to := []string{"device", "host", "device"}[pair], []string{"device", "device", "host"}[pair]
				err := passOn(c, g, from, to, n, kind)
				if err == nil {
					err = c.Barrier()
				}
				if err != nil {
					return fmt.Errorf("%d elements by %s from %s to %s: %w", n, kind, from, to, err)
				}
			}
		}
		return nil
	})
	require.NotZero(t, g.mem.Copies.Load())
}

// passOn sends n elements to the next rank, and receives those of the previous one into memory with room for
// one more.
func passOn(c *comm.Comm, g *gpu, from, to string, n int, kind string) error {
	next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	out, err := deviceMemory(g, from, numbers(n, c.Rank()))
	if err != nil {
		return err
	}
	in, err := deviceMemory(g, to, make([]int64, n+1))
	if err != nil {
		return err
	}
	var st comm.Status
	switch kind {
	case "Send":
		r := in.Irecv(c, prev, 1)
		if err := out.Send(c, next, 1); err != nil {
			return err
		}
		st, err = r.Wait()
	case "Issend":
		r := out.Issend(c, next, 1)
		if st, err = in.Recv(c, prev, 1); err == nil {
			_, err = r.Wait()
		}
	case "Bsend":
		if err := out.Bsend(c, next, 1); err != nil {
			return err
		}
		st, err = in.Recv(c, prev, 1)
	case "Sendrecv":
		st, err = comm.SendrecvView(c, out, next, 1, in, prev, 1)
	case "persistent":
		st, err = passOnTwice(c, out, next, in, prev)
	case "Mrecv":
		r := out.Isend(c, next, 1)
		var m *comm.Message
		if m, _, err = c.Mprobe(prev, 1); err == nil {
			st, err = in.Mrecv(m)
		}
		if err == nil {
			_, err = r.Wait()
		}
	}
	if err != nil {
		return err
	}
	if st.Count != n {
		return fmt.Errorf("received %d elements", st.Count)
	}
	return has(in, append(numbers(n, prev), 0))
}

// passOnTwice runs two rounds of persistent requests.
func passOnTwice(c *comm.Comm, out comm.View[int64], next int, in comm.View[int64], prev int) (st comm.Status, err error) {
	send, err := out.SendInit(c, next, 1)
	if err != nil {
		return st, err
	}
	recv, err := in.RecvInit(c, prev, 1)
	if err != nil {
		return st, err
	}
	for range 2 {
		if err := comm.StartAll([]*comm.Persistent{recv, send}); err != nil {
			return st, err
		}
		if _, err := send.Wait(); err != nil {
			return st, err
		}
		if st, err = recv.Wait(); err != nil {
			return st, err
		}
	}
	return st, errors.Join(send.Free(), recv.Free())
}

// TestDeviceCollectives runs the collectives of views with some ranks' data in the memory of a device.
func TestDeviceCollectives(t *testing.T) {
	g := newGPU(t)
	overFabrics(t, []int{1, 2, 3, 5}, func(c *comm.Comm) error {
		size, me := c.Size(), c.Rank()
		on := func(r int) string { return []string{"device", "host"}[r%2] }
		for _, n := range []int{0, 3, 20_000} {
			for root := range min(size, 2) {
				b, err := deviceMemory(g, on(me), numbers(n, me))
				if err == nil {
					err = b.Bcast(c, root)
				}
				if err == nil {
					err = has(b, numbers(n, root))
				}
				if err != nil {
					return fmt.Errorf("Bcast of %d: %w", n, err)
				}
			}
			var out, in []comm.View[int64]
			for r := range size {
				o, oerr := deviceMemory(g, on(me+r), numbers(n, 100*me+r))
				i, ierr := deviceMemory(g, on(me+r+1), make([]int64, n))
				if err := errors.Join(oerr, ierr); err != nil {
					return err
				}
				out, in = append(out, o), append(in, i)
			}
			if err := comm.AlltoallView(c, out, in); err != nil {
				return err
			}
			for r, v := range in {
				if err := has(v, numbers(n, 100*r+me)); err != nil {
					return fmt.Errorf("AlltoallView of %d from %d: %w", n, r, err)
				}
			}
			if _, err := comm.IallgatherView(c, out[0], in).Wait(); err != nil {
				return err
			}
			for r, v := range in {
				if err := has(v, numbers(n, 100*r)); err != nil {
					return fmt.Errorf("IallgatherView of %d from %d: %w", n, r, err)
				}
			}
			if err := reduceViews(c, out[0], in[0], n); err != nil {
				return fmt.Errorf("of %d: %w", n, err)
			}
		}
		return nil
	})
}

// reduceViews checks the reductions of views. out has the numbers from 100 times the rank on.
func reduceViews(c *comm.Comm, out, in comm.View[int64], n int) error {
	sum := numbers(n, 0)
	for i := range sum {
		sum[i] = int64(c.Size()*i + 100*c.Size()*(c.Size()-1)/2)
	}
	root := c.Size() - 1
	recv := comm.View[int64]{}
	if c.Rank() == root {
		recv = in
	}
	if err := comm.ReduceView(c, out, recv, comm.Sum, root); err != nil {
		return err
	}
	if c.Rank() == root {
		if err := has(in, sum); err != nil {
			return fmt.Errorf("ReduceView: %w", err)
		}
	}
	if _, err := comm.IreduceView(c, out, recv, comm.Max, root).Wait(); err != nil {
		return err
	}
	if c.Rank() == root {
		if err := has(in, numbers(n, 100*(c.Size()-1))); err != nil {
			return fmt.Errorf("IreduceView: %w", err)
		}
	}
	if _, err := comm.IallreduceView(c, out, in, comm.Min).Wait(); err != nil {
		return err
	}
	if err := has(in, numbers(n, 0)); err != nil {
		return fmt.Errorf("IallreduceView: %w", err)
	}
	if err := comm.AllreduceView(c, out, out, comm.Sum); err != nil {
		return err
	}
	if err := has(out, sum); err != nil {
		return fmt.Errorf("AllreduceView: %w", err)
	}
	return nil
}

// TestDeviceFails checks that a copy that fails ends the send, and the receive if it has begun.
func TestDeviceFails(t *testing.T) {
	const n = 100_000 // 800 kB: several segments
	text := "the device has fallen off the bus"
	for _, at := range []int64{1, 3} {
		for _, from := range []string{"device", "host"} {
			t.Run(fmt.Sprintf("copy %d from the %s", at, from), func(t *testing.T) {
				g := newGPU(t)
				var failed [2]error
				commtest.Run(t, 2, func(world *comm.Comm) error {
					vs := make([]int64, n)
					var v comm.View[int64]
					var err error
					if (world.Rank() == 0) == (from == "device") {
						v, err = g.of(vs)
					} else {
						v = comm.Of(vs, comm.Contiguous(n))
					}
					if err == nil {
						err = world.Barrier()
					}
					if err != nil {
						return err
					}
					if world.Rank() == 0 {
						g.mem.FailAt.Store(g.mem.Copies.Load() + at)
						err = world.Barrier()
						if err == nil {
							failed[0] = v.Ssend(world, 1, 0)
						}
						return err
					}
					if err = world.Barrier(); err == nil {
						_, failed[1] = v.Recv(world, 0, 0)
					}
					return err
				}, commtest.WithProviders(inproc.NewFabric(inproc.WithoutRMA())))
				if from == "host" {
					require.NoError(t, failed[0])
					require.ErrorIs(t, failed[1], comm.ErrDevice)
					require.ErrorContains(t, failed[1], text)
					return
				}
				require.ErrorIs(t, failed[0], comm.ErrDevice)
				require.ErrorContains(t, failed[0], "copy from cuda:0")
				require.ErrorIs(t, failed[1], comm.ErrDevice)
				require.ErrorContains(t, failed[1], "rank 0 did not send all of the message")
			})
		}
	}
}

// TestDeviceRefused calls functions that do not accept memory of a device.
func TestDeviceRefused(t *testing.T) {
	g := newGPU(t)
	commtest.Run(t, 1, func(c *comm.Comm) error {
		v, err := g.of(make([]int64, 4))
		if err != nil {
			return err
		}
		w, err := comm.NewWin[int64](c, 4)
		if err != nil {
			return err
		}
		cart, err := c.Cart([]int{1}, []bool{true})
		if err != nil {
			return err
		}
		host := comm.Of(make([]int64, 4), comm.Contiguous(4))
		nothing := comm.OnDevice[int64](g.Device, 0, 4)
		for name, c := range map[string]struct {
			err  error
			want error
		}{
			"Put":               {w.At(0, 0).Put(v), comm.ErrDevice},
			"Get":               {w.At(0, 0).Get(v), comm.ErrDevice},
			"NeighborAllgather": {comm.NeighborAllgatherView(cart, v, []comm.View[int64]{host, host}), comm.ErrDevice},
			"address 0":         {nothing.Err(), comm.ErrDevice},
			"low address":       {comm.OnDevice[int64](g.Device, 8, 4).Err(), comm.ErrDevice},
			"end of addresses":  {comm.OnDevice[int64](g.Device, math.MaxUint-16, 4).Err(), comm.ErrDevice},
			"nothing":           {comm.OnDevice[int64](g.Device, 0, 0).Err(), nil},
			"no device":         {comm.OnDevice[int64](nil, 8000, 1).Err(), comm.ErrDevice},
			"no kind":           {comm.OnDevice[int64](comm.NewDevice("", 1, g.mem), 8000, 1).Err(), comm.ErrDevice},
			"no copier":         {comm.OnDevice[int64](comm.NewDevice("cuda", 1, nil), 8000, 1).Err(), comm.ErrDevice},
			"negative length":   {comm.OnDevice[int64](g.Device, 8000, -1).Err(), comm.ErrCount},
			"length too great":  {comm.OnDevice[int64](g.Device, 8000, 1<<61).Err(), comm.ErrCount},
			"type":              {comm.OnDevice[string](g.Device, 8000, 1).Err(), comm.ErrType},
		} {
			if !errors.Is(c.err, c.want) {
				return fmt.Errorf("%s: %w, want %w", name, c.err, c.want)
			}
		}
		if err := w.Free(); err != nil {
			return err
		}
		other, err := c.Dup() // because a failure revokes the communicator
		if err != nil {
			return err
		}
		if err := comm.AllreduceView(other, v, comm.OnDevice[int64](nil, 8000, 4), comm.Sum); !errors.Is(err, comm.ErrDevice) {
			return fmt.Errorf("AllreduceView into no device: %w", err)
		}
		return nil
	})
}

// TestDeviceFailsInCollective checks that a copy that fails ends a collective on all ranks: from the device
// before the collective begins, to the device at its end, on this rank only.
func TestDeviceFailsInCollective(t *testing.T) {
	for at, others := range map[int64]error{1: comm.ErrRevoked, 2: nil} {
		t.Run(fmt.Sprintf("copy %d", at), func(t *testing.T) {
			g := newGPU(t)
			commtest.Run(t, 3, func(c *comm.Comm) error {
				v := comm.Of(make([]int64, 100), comm.Contiguous(100))
				if c.Rank() == 1 {
					var err error
					if v, err = g.of(make([]int64, 100)); err != nil {
						return err
					}
					g.mem.FailAt.Store(g.mem.Copies.Load() + at)
				}
				err := comm.AllreduceView(c, v, v, comm.Sum)
				want := others
				if c.Rank() == 1 {
					want = comm.ErrDevice
				}
				if !errors.Is(err, want) || want == nil && err != nil {
					return fmt.Errorf("got %w, want %w", err, want)
				}
				return nil
			})
		})
	}
}

// stopping is a device whose copy number 6 to the host waits until the test goes on, and then fails.
type stopping struct {
	*devicetest.Device
	at, goOn chan struct{}
	copies   atomic.Int64
}

func (s *stopping) ToHost(dst []byte, src uintptr) error {
	switch n := s.copies.Add(1); {
	case n < 6:
		return s.Device.ToHost(dst, src)
	case n == 6:
		close(s.at)
		<-s.goOn
	}
	return errors.New("the device has stopped")
}

// TestDeviceFailsAfterCut ends the context of a receive in the middle of a message whose sender then fails: the
// next receive of the message fails, too, whether it was posted before the failure or after it.
func TestDeviceFailsAfterCut(t *testing.T) {
	for _, posted := range []bool{false, true} {
		t.Run(fmt.Sprintf("next receive posted before: %v", posted), func(t *testing.T) {
			const n = 100_000
			s := &stopping{Device: devicetest.New(t), at: make(chan struct{}), goOn: make(chan struct{})}
			v := comm.OnDevice[int64](comm.NewDevice("cuda", 0, s), s.Alloc(t, 8*n), n)
			commtest.Run(t, 2, func(c *comm.Comm) error {
				if c.Rank() == 0 {
					err := wantErr("Send", v.Send(c, 1, 0), comm.ErrDevice, "the device has stopped")
					return errors.Join(err, comm.Send(c, []byte{1}, 1, 1))
				}
				goOn := sync.OnceFunc(func() { close(s.goOn) })
				defer goOn()
				ctx, cancel := context.WithCancel(t.Context())
				go func() { <-s.at; cancel() }()
				in := make([]int64, n)
				_, err := comm.Recv(c.WithContext(ctx), in, 0, 0)
				if err := wantErr("Recv", err, context.Canceled, ""); err != nil {
					return err
				}
				var r comm.Request
				if posted {
					r = comm.Irecv(c, in, 0, 0)
				}
				goOn()
				if !posted { // receive only after the sender's failure
					if _, err := comm.Recv(c, make([]byte, 1), 0, 1); err != nil {
						return err
					}
					r = comm.Irecv(c, in, comm.AnySource, comm.AnyTag)
				}
				_, err = r.Wait()
				return wantErr("Irecv", err, comm.ErrDevice, "rank 0 did not send all of the message")
			}, commtest.WithProviders(inproc.NewFabric(inproc.WithoutRMA())))
		})
	}
}

// panicking is a device whose copies panic.
type panicking struct{}

func (panicking) ToHost([]byte, uintptr) error   { panic("to host") }
func (panicking) ToDevice(uintptr, []byte) error { panic("to device") }

// TestDevicePanics checks that a panic of a DeviceCopier is an error, and that the rank continues. Messages are
// from the rank to itself, also short ones.
func TestDevicePanics(t *testing.T) {
	v := comm.OnDevice[int64](comm.NewDevice("board", 0, panicking{}), 1<<20, 4)
	commtest.Run(t, 1, func(c *comm.Comm) error {
		in := make([]int64, 4)
		r := comm.Irecv(c, in, 0, 0)
		if err := wantErr("Send", v.Send(c, 0, 0), comm.ErrDevice, "copy from board:0: panic: to host"); err != nil {
			return err
		}
		_, err := r.Wait()
		if err := wantErr("Irecv", err, comm.ErrDevice, "panic: to host"); err != nil {
			return err
		}
		if err := wantErr("Send", v.Send(c, 0, 0), comm.ErrDevice, "panic: to host"); err != nil {
			return err
		}
		if err := comm.Send(c, in, 0, 0); err != nil {
			return err
		}
		_, err = v.Recv(c, 0, 0)
		return wantErr("Recv", err, comm.ErrDevice, "copy to board:0: panic: to device")
	})
}

// TestViewsInPlace reduces views in place on ranks that check buffers.
func TestViewsInPlace(t *testing.T) {
	commtest.Run(t, 3, func(c *comm.Comm) error {
		v := comm.Of([]int{1, 2, 3, 4, 5, 6}, comm.Vector(3, 1, 2))
		if _, err := comm.IallreduceView(c, v, v, comm.Sum).Wait(); err != nil {
			return err
		}
		got := make([]int, 3)
		if _, err := comm.Pack(got, v); err != nil || !slices.Equal(got, []int{3, 9, 15}) {
			return fmt.Errorf("got %v, %w", got, err)
		}
		if _, err := comm.IreduceView(c, v, v, comm.Sum, 0).Wait(); err != nil {
			return err
		}
		alone, err := c.Split(c.Rank(), 0)
		if err != nil {
			return err
		}
		return wantErr("Reduce", comm.Reduce(alone, got, nil, comm.Sum, 0), comm.ErrCount, "")
	}, commtest.WithParam("check", "true"))
}
