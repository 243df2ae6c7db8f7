package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/mpi"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport/inproc"
)

// TestInspect has rank 1 wait for rank 0 in a call of each kind, and inspects rank 1 meanwhile.
// Then rank 0 makes its call.
func TestInspect(t *testing.T) {
	large := make([]int, 1<<20)
	for name, test := range map[string]struct {
		waits func(c *comm.Comm) error // the call of rank 1, which waits for rank 0
		comes func(c *comm.Comm) error // the call of rank 0, later, which ends the wait
		want  wire.RankCall
	}{
		"recv": {
			func(c *comm.Comm) error { _, err := comm.Recv(c, make([]int, 1), 0, 99); return err },
			func(c *comm.Comm) error { return comm.Send(c, []int{1}, 1, 99) },
			wire.RankCall{Name: "Recv", Wait: wire.WaitRecv, Tag: 99},
		},
		"any": {
			func(c *comm.Comm) error {
				_, err := comm.Recv(c, make([]int, 1), comm.AnySource, comm.AnyTag)
				return err
			},
			func(c *comm.Comm) error { return comm.Send(c, []int{1}, 1, 99) },
			wire.RankCall{Name: "Recv", Wait: wire.WaitRecv, Peer: -1, World: -1, Tag: -1},
		},
		"request": {
			func(c *comm.Comm) error { _, err := comm.Irecv(c, make([]int, 1), 0, 7).Wait(); return err },
			func(c *comm.Comm) error { return comm.Send(c, []int{1}, 1, 7) },
			wire.RankCall{Name: "Request.Wait", Wait: wire.WaitRecv, Tag: 7},
		},
		"send": {
			func(c *comm.Comm) error { return comm.Send(c, large, 0, 5) },
			func(c *comm.Comm) error { _, err := comm.Recv(c, make([]int, len(large)), 1, 5); return err },
			wire.RankCall{Name: "Send", Wait: wire.WaitSend, Tag: 5},
		},
		"ssend": {
			func(c *comm.Comm) error { return comm.Ssend(c, large[:1], 0, 5) },
			func(c *comm.Comm) error { _, err := comm.Recv(c, make([]int, 1), 1, 5); return err },
			wire.RankCall{Name: "Ssend", Wait: wire.WaitSend, Tag: 5},
		},
		"probe": {
			func(c *comm.Comm) error {
				if _, err := c.Probe(0, 3); err != nil {
					return err
				}
				_, err := comm.Recv(c, make([]int, 1), 0, 3)
				return err
			},
			func(c *comm.Comm) error { return comm.Send(c, []int{1}, 1, 3) },
			wire.RankCall{Name: "Probe", Wait: wire.WaitProbe, Tag: 3},
		},
		"barrier": {
			(*comm.Comm).Barrier, (*comm.Comm).Barrier,
			wire.RankCall{Name: "Barrier", Wait: wire.WaitCollective, Seq: 2, Tag: -1},
		},
		"allreduce": {
			func(c *comm.Comm) error { return comm.Allreduce(c, []int{1}, make([]int, 1), comm.Sum[int]) },
			func(c *comm.Comm) error { return comm.Allreduce(c, []int{1}, make([]int, 1), comm.Sum[int]) },
			wire.RankCall{Name: "Allreduce", Wait: wire.WaitCollective, Seq: 2, Tag: -1},
		},
		"dup": {
			func(c *comm.Comm) error { d, err := c.Dup(); return errors.Join(err, d.Free()) },
			func(c *comm.Comm) error { d, err := c.Dup(); return errors.Join(err, d.Free()) },
			wire.RankCall{Name: "Dup", Wait: wire.WaitCollective, Seq: 2, Tag: -1},
		},
	} {
		for _, shared := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/shared=%v", name, shared), func(t *testing.T) {
				provider := inproc.NewFabric(inproc.WithoutSharedMemory())
				if shared {
					provider = inproc.NewFabric()
				}
				asked := make(chan error, 1)
				ranks(t, 2, func(c *comm.Comm) error {
					if err := c.Barrier(); err != nil {
						return err
					}
					if c.Rank() == 0 {
						if err := <-asked; err != nil {
							return err
						}
						return test.comes(c)
					}
					// The goroutine ends when rank 1 waits. Rank 0 receives the result.
					go func() { asked <- inspected(c, test.want) }()
					return test.waits(c)
				}, commtest.WithProviders(provider))
			})
		}
	}
}

// TestInspectConnection inspects rank 1 while it waits for the other side of a connection.
func TestInspectConnection(t *testing.T) {
	found := make(chan struct{}, 1)
	for name, test := range map[string]struct {
		waits func(inter *comm.Comm) error // the calls of rank 1, the last of which waits
		ready func(inter *comm.Comm) (*comm.Comm, error)
		comes func(c *comm.Comm) error // the call of rank 0, later
		want  wire.RankCall
	}{
		"recv": {
			waits: func(inter *comm.Comm) error { _, err := comm.Recv(inter, make([]int, 1), 0, 9); return err },
			comes: func(inter *comm.Comm) error { return comm.Send(inter, []int{1}, 0, 9) },
			want:  wire.RankCall{Name: "Recv", Wait: wire.WaitRecv, Tag: 9, Comm: "connection"},
		},
		"any": {
			waits: func(inter *comm.Comm) error {
				_, err := comm.Recv(inter, make([]int, 1), comm.AnySource, comm.AnyTag)
				return err
			},
			comes: func(inter *comm.Comm) error { return comm.Send(inter, []int{1}, 0, 9) },
			want:  wire.RankCall{Name: "Recv", Wait: wire.WaitRecv, Peer: -1, Tag: -1, Comm: "connection"},
		},
		"merged": {
			waits: func(inter *comm.Comm) error {
				m, err := inter.Merge(true)
				return first(err, m.Barrier())
			},
			ready: func(inter *comm.Comm) (*comm.Comm, error) { return inter.Merge(false) },
			comes: func(m *comm.Comm) error { return m.Barrier() },
			want:  wire.RankCall{Name: "Barrier", Wait: wire.WaitCollective, Tag: -1, Comm: "comm 0.1 of a connection"},
		},
		"nonblocking": { // the program has not called Wait
			waits: func(inter *comm.Comm) error {
				r := comm.Iallreduce(inter, []int{1}, make([]int, 1), comm.Sum[int])
				<-found
				_, err := r.Wait()
				return err
			},
			comes: func(inter *comm.Comm) error {
				return comm.Allreduce(inter, []int{1}, make([]int, 1), comm.Sum[int])
			},
			want: wire.RankCall{Name: "Allreduce", Wait: wire.WaitCollective, Tag: -1, Comm: "connection"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan error, 1)
			ranks(t, 2, func(c *comm.Comm) error {
				self, err := c.Self()
				if err != nil {
					return err
				}
				if c.Rank() == 0 {
					p, err := self.Listen(0)
					if err := first(err, comm.SendValue(c, p.Addr(), 1, 0)); err != nil {
						return err
					}
					other, err := p.Accept(self)
					if err == nil && test.ready != nil {
						other, err = test.ready(other)
					}
					if err := first(err, <-asked); err != nil {
						return err
					}
					return first(test.comes(other), p.Close())
				}
				addr, _, err := comm.RecvValue[string](c, 0, 0)
				if err != nil {
					return err
				}
				inter, err := self.Dial(0, addr)
				if err != nil {
					return err
				}
				// The goroutine ends when rank 1 waits. Rank 0 receives the result.
				go func() {
					err := connectionCall(c, test.want)
					found <- struct{}{}
					asked <- err
				}()
				return test.waits(inter)
			})
			if len(found) > 0 {
				<-found
			}
		})
	}
}

// connectionCall inspects a rank until it waits in the named call on a connection, and compares the
// call with want.
func connectionCall(c *comm.Comm, want wire.RankCall) error {
	for {
		s := <-mpi.Inspect((*mpi.Comm)(c))
		for _, call := range s.Calls {
			if !call.Still || !call.Connection || call.Name != want.Name || call.Comm != want.Comm {
				continue
			}
			want.Still, want.Connection, want.World, want.Peer = true, true, -1, min(want.Peer, call.Peer)
			want.Goroutine, want.Where, want.Event = call.Goroutine, call.Where, call.Event
			if call != want || call.Event == "" {
				return fmt.Errorf("it says %+v, want %+v", call, want)
			}
			return nil
		}
	}
}

// untilWaiting inspects a rank until one of its goroutines waits in the named call.
func untilWaiting(c *comm.Comm, name string) {
	waits := func(call wire.RankCall) bool { return call.Name == name && call.Still }
	for !slices.ContainsFunc((<-mpi.Inspect((*mpi.Comm)(c))).Calls, waits) {
		runtime.Gosched()
	}
}

// inspected inspects a rank until one of its goroutines waits in a call of package comm, and
// compares this call with want.
func inspected(c *comm.Comm, want wire.RankCall) error {
	for {
		s := <-mpi.Inspect((*mpi.Comm)(c))
		for _, call := range s.Calls {
			if !call.Still || call.Comm == "" {
				continue
			}
			want.Comm, want.Still, want.Goroutine, want.Where, want.Event = "world", true, call.Goroutine, call.Where, call.Event
			if call != want || call.Event == "" {
				return fmt.Errorf("it says %+v, want %+v", call, want)
			}
			if call.Where == "" || len(s.Comms) == 0 || s.Comms[0].Seq < want.Seq {
				return fmt.Errorf("it says %+v", s)
			}
			return nil
		}
	}
}

// TestInspectCollectiveUnderWay inspects a rank whose nonblocking collective runs on another
// goroutine than the one that waits for it.
func TestInspectCollectiveUnderWay(t *testing.T) {
	asked := make(chan error, 1)
	ranks(t, 2, func(c *comm.Comm) error {
		if c.Rank() == 0 {
			if err := <-asked; err != nil {
				return err
			}
			return c.Barrier()
		}
		r := c.Ibarrier()
		go func() { // ends when rank 1 waits; rank 0 receives the result
			for {
				var follows, runs bool
				for _, call := range (<-mpi.Inspect((*mpi.Comm)(c))).Calls {
					follows = follows || call.Name == "Request.Wait" && call.Follows && call.Still
					runs = runs || call.Name == "Barrier" && call.Where == "" && call.Wait == wire.WaitCollective && call.Seq == 1 && call.World == 0
				}
				if follows && runs {
					asked <- nil
					return
				}
			}
		}()
		_, err := r.Wait()
		return err
	}, commtest.WithProviders(inproc.NewFabric(inproc.WithoutSharedMemory())))
}

// TestInspectManyComms: if a rank has more communicators than an answer holds, the answer still has
// the world, Finalize's communicator and the one of a call.
func TestInspectManyComms(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		last := c
		for range 100 {
			d, err := c.Dup()
			if err != nil {
				return err
			}
			last = d
		}
		if c.Rank() == 0 {
			if _, err := comm.Recv(c, make([]int, 1), 1, 1); err != nil {
				return err
			}
			return comm.Send(last, []int{1}, 1, 5)
		}
		asked := make(chan error, 1)
		go func() { // ends when the rank waits
			for {
				s := <-mpi.Inspect((*mpi.Comm)(c))
				// The calls may also be those of rank 0, which is in the same process.
				i := slices.IndexFunc(s.Calls, func(c wire.RankCall) bool { return c.Still })
				if i < 0 {
					continue
				}
				has := func(id uint64) bool {
					return slices.ContainsFunc(s.Comms, func(c wire.RankComm) bool { return c.ID == id })
				}
				err := comm.Send(c, []int{1}, 0, 1)
				if !s.MoreComms || !has(0) || !has(1<<63-1) || !has(s.Calls[i].ID) || s.Calls[i].ID == 0 {
					err = fmt.Errorf("it says %+v", s)
				}
				asked <- err
				return
			}
		}()
		if _, err := comm.Recv(last, make([]int, 1), 0, 5); err != nil {
			return err
		}
		return <-asked
	})
}

// TestInspectLater inspects a rank whose goroutines wait. RankState.Later must hold the states of
// the goroutines that a timer or an event outside of the process can wake, and not the state of one
// that waits for a mutex.
func TestInspectLater(t *testing.T) {
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	var wg sync.WaitGroup
	mu.Lock()
	wg.Go(func() { _, _ = reader.Read(make([]byte, 1)) })
	wg.Go(func() {
		select {
		case <-ctx.Done():
		case <-time.After(time.Hour):
		}
	})
	wg.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(time.Second)
		}
	})
	wg.Go(func() { mu.Lock() })
	ranks(t, 1, func(c *comm.Comm) error {
		for {
			s := <-mpi.Inspect((*mpi.Comm)(c))
			has := func(state string) bool { return slices.Contains(s.Later, state) }
			if has("sync.Mutex.Lock") {
				return fmt.Errorf("it says %+v", s)
			}
			// If one of these states is missing, a goroutine does not wait yet.
			if !s.Busy && has("IO wait") && has("select") && has("sleep") {
				return nil
			}
		}
	})
	cancel()
	mu.Unlock()
	require.NoError(t, writer.Close())
	wg.Wait()
	require.NoError(t, reader.Close())
}

// TestInspectBounded inspects a rank whose wait ends with a context.
func TestInspectBounded(t *testing.T) {
	ranks(t, 1, func(c *comm.Comm) error {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		asked := make(chan error, 1)
		go func() { // ends when the rank waits
			s := <-mpi.Inspect((*mpi.Comm)(c))
			for len(s.Calls) == 0 || !s.Calls[0].Still {
				s = <-mpi.Inspect((*mpi.Comm)(c))
			}
			var err error
			if !s.Calls[0].Bounded {
				err = fmt.Errorf("it says %+v", s)
			}
			asked <- err
			cancel()
		}()
		if _, err := comm.Recv(c.WithContext(ctx), make([]int, 1), 0, 1); !errors.Is(err, context.Canceled) {
			return err
		}
		return <-asked
	})
}

// TestInspectComputing inspects a rank that computes.
func TestInspectComputing(t *testing.T) {
	ranks(t, 1, func(c *comm.Comm) error {
		s := compute(mpi.Inspect((*mpi.Comm)(c)))
		if !s.Busy || !strings.HasPrefix(s.At, "mpi_test.compute at inspect_test.go:") {
			return fmt.Errorf("it says %+v", s)
		}
		return nil
	})
}

var busy atomic.Int64

func compute(done <-chan *wire.RankState) *wire.RankState {
	for len(done) == 0 {
		busy.Add(1)
	}
	return <-done
}
