package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/mpi"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/shm"
)

// hosts is an inproc fabric that reaches only the ranks of the same host. It counts allocations of
// shared memory.
type hosts struct {
	transport.Provider
	of   []int        // host of each rank; nil: one host
	live atomic.Int64 // number of allocations of shared memory that are in use, on all ranks
	// arenas is the number of allocations so far of at least leastArena bytes, on all ranks.
	arenas atomic.Int64

	noAlloc, noMap int // the rank that cannot allocate, and the rank that cannot map, shared memory; -1: none
}

func newHosts(of ...int) *hosts {
	return &hosts{Provider: inproc.NewFabric(), of: of, noAlloc: -1, noMap: -1}
}

// providers returns an option with two providers: this fabric, and a fabric without shared memory
// that joins the hosts.
func (h *hosts) providers() commtest.Option {
	return commtest.WithProviders(h, inproc.NewFabric(inproc.WithoutSharedMemory()))
}

func (h *hosts) Open(cfg transport.Config) (transport.Domain, error) {
	d, err := h.Provider.Open(cfg)
	if err != nil {
		return nil, err
	}
	return &hostDomain{Domain: d, SharedMemoryDomain: d.(transport.SharedMemoryDomain), h: h, self: int(cfg.Self)}, nil
}

// leastArena is the size in bytes by which hosts distinguishes arenas from the memory of windows:
// in the tests that count arenas, these are at least as large, and windows are smaller.
const leastArena = 64 << 10

type hostDomain struct {
	transport.Domain
	transport.SharedMemoryDomain
	h    *hosts
	self int
}

type hostVector struct {
	transport.AddressVector
	d *hostDomain
}

func (v hostVector) Reaches(a transport.Addr) bool {
	return v.d.h.of == nil || v.d.h.of[a] == v.d.h.of[v.d.self]
}

func (d *hostDomain) OpenAV() (transport.AddressVector, error) {
	av, err := d.Domain.OpenAV()
	return hostVector{av, d}, err
}

func (d *hostDomain) OpenEndpoint(av transport.AddressVector, cq transport.CompletionQueue) (transport.Endpoint, error) {
	return d.Domain.OpenEndpoint(av.(hostVector).AddressVector, cq.(hostQueue).CompletionQueue)
}

func (d *hostDomain) OpenCQ() (transport.CompletionQueue, error) {
	cq, err := d.Domain.OpenCQ()
	return hostQueue{cq, d}, err
}

// hostQueue is a completion queue that drops the completions that concern ranks of other hosts.
type hostQueue struct {
	transport.CompletionQueue
	d *hostDomain
}

func (q hostQueue) Read(c []transport.Completion) (int, error) {
	n, err := q.CompletionQueue.Read(c)
	kept := 0
	for _, x := range c[:n] {
		if (hostVector{d: q.d}).Reaches(x.Peer) {
			c[kept] = x
			kept++
		}
	}
	return kept, err
}

type hostRegion struct {
	transport.MemoryRegion
	closed sync.Once
	live   *atomic.Int64
}

func (r *hostRegion) Close() error {
	r.closed.Do(func() { r.live.Add(-1) })
	return r.MemoryRegion.Close()
}

func (d *hostDomain) Alloc(n int) ([]byte, transport.MemoryRegion, error) {
	if d.self == d.h.noAlloc {
		return nil, nil, transport.ErrAgain
	}
	mem, mr, err := d.SharedMemoryDomain.Alloc(n)
	if err != nil {
		return nil, nil, err
	}
	if n >= leastArena {
		d.h.arenas.Add(1)
	}
	d.h.live.Add(1)
	return mem, &hostRegion{MemoryRegion: mr, live: &d.h.live}, nil
}

func (d *hostDomain) Map(peer transport.Addr, key uint64) ([]byte, error) {
	if d.self == d.h.noMap {
		return nil, transport.ErrKey
	}
	return d.SharedMemoryDomain.Map(peer, key)
}

// TestCollectivesOnHosts runs all collectives with ranks on several hosts, with large arenas and
// with arenas so small that most data passes in several segments.
func TestCollectivesOnHosts(t *testing.T) {
	for _, of := range [][]int{
		{0, 0}, {0, 1}, {0, 0, 1}, {0, 1, 1, 1}, {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1, 1, 2}, {2, 0, 1, 0, 0, 2, 1},
		make([]int, 8), make([]int, 13),
	} {
		for _, algorithm := range []string{coll.Auto, "shared", "hierarchical"} {
			for _, memory := range []string{"256k", "1k"} {
				t.Run(fmt.Sprintf("%v/%s/%s", of, algorithm, memory), func(t *testing.T) {
					h := newHosts(of...)
					opts := []commtest.Option{h.providers(), commtest.WithParam("coll.shared_memory", memory)}
					for _, f := range coll.Families() {
						if coll.DefaultConfig().Force(f, algorithm) == nil {
							opts = append(opts, commtest.WithParam(f.Key(), algorithm))
						}
					}
					seed := rand.Uint64()
					ranks(t, len(of), func(c *comm.Comm) error {
						if err := rounds(c, seed); err != nil {
							return fmt.Errorf("seed %d: %w", seed, err)
						}
						if several := len(of) > 2 || of[0] == of[1]; several != (h.live.Load() > 0) {
							return fmt.Errorf("%d arenas", h.live.Load())
						}
						return nil
					}, opts...)
				})
			}
		}
	}
}

// TestSharedMemoryIsGivenBack makes and frees communicators. It checks that the number of arenas
// that ranks keep for later communicators is bounded, and that later communicators of the same
// processes allocate no more arenas.
func TestSharedMemoryIsGivenBack(t *testing.T) {
	for _, of := range [][]int{{0, 0, 0, 0}, {0, 0, 1, 1}, {0, 1, 2, 3}} {
		h := newHosts(of...)
		ranks(t, len(of), func(world *comm.Comm) error {
			if err := world.Barrier(); err != nil {
				return err
			}
			var allocated int64
			for i := range 20 {
				d, err := world.Dup()
				if err != nil {
					return err
				}
				s, err := d.Split(d.Rank()%2, 0)
				if err != nil {
					return err
				}
				w, err := comm.NewWin[int](s, 10)
				if err != nil {
					return err
				}
				got := make([]int, 3)
				err = first(comm.Bcast(d, count(3, i), i%4), wait(comm.Iallreduce(s, count(3, 0), got, comm.Sum)),
					same("sum", got, []int{0, 2, 4}), w.Fence(), w.Fence(), w.Free(), s.Free(), d.Free())
				if err != nil {
					return err
				}
				if i == 1 {
					err = world.Barrier()
					allocated = h.arenas.Load()
					err = errors.Join(err, world.Barrier())
				}
				if err != nil {
					return err
				}
			}
			if err := world.Barrier(); err != nil {
				return err
			}
			if n := h.arenas.Load(); n != allocated {
				return fmt.Errorf("%d arenas were allocated at first, %d in the end", allocated, n)
			}
			for round := range 10 { // in another order of ranks in each round
				order := rand.New(rand.NewPCG(uint64(world.Size()), uint64(round))).Perm(world.Size())
				c, err := world.Split(0, order[world.Rank()])
				if err != nil {
					return err
				}
				if err := first(c.Barrier(), c.Free()); err != nil {
					return err
				}
			}
			if n := h.live.Load(); n > int64((1+mpi.PoolSize)*len(of)) {
				return fmt.Errorf("%d arenas are left", n)
			}
			return world.Barrier()
		}, h.providers())
		require.Equal(t, of[1] == 0, h.arenas.Load() > 0, "%v", of)
	}
}

// TestSharedMemoryThatCannotBeHad checks that collectives work if one rank cannot allocate or map
// shared memory, and that all shared memory is freed at the end.
func TestSharedMemoryThatCannotBeHad(t *testing.T) {
	for _, of := range [][]int{{0, 0, 0, 0, 0}, {0, 0, 0, 1, 1}} {
		for rank := range of {
			for what := range 2 {
				h := newHosts(of...)
				if what == 0 {
					h.noAlloc = rank
				} else {
					h.noMap = rank
				}
				ranks(t, len(of), func(c *comm.Comm) error { return rounds(c, 1) }, h.providers())
				require.Zero(t, h.live.Load(), "%v, rank %d", of, rank)
			}
		}
	}
}

// TestOutstandingCollectives runs many collectives of two communicators at the same time: long and
// short, blocking and nonblocking, with messages between them.
func TestOutstandingCollectives(t *testing.T) {
	for _, of := range [][]int{{0, 0}, {0, 0, 0, 0, 0}, {0, 0, 0, 1, 1}, nil} {
		over, n := newHosts(of...).providers(), len(of)
		if of == nil {
			over, n = commtest.WithProviders(shm.New()), 4
		}
		ranks(t, n, func(world *comm.Comm) error {
			d, err := world.Dup()
			if err != nil {
				return err
			}
			rng := rand.New(rand.NewPCG(1, 2)) // the same on all ranks
			size, me := world.Size(), world.Rank()
			for round := range 15 {
				var open []comm.Request
				var checks []func() error
				for range 12 {
					c, n := []*comm.Comm{world, d}[rng.IntN(2)], []int{1, 5, 700, 30000}[rng.IntN(4)]
					send, recv := count(n, me), make([]int, n)
					sum := func() error {
						want := make([]int, n)
						for i := range want {
							want[i] = size*i + size*(size-1)/2
						}
						return same("sum", recv, want)
					}
					switch rng.IntN(5) {
					case 0:
						open, checks = append(open, comm.Iallreduce(c, send, recv, comm.Sum)), append(checks, sum)
					case 1:
						if err := first(comm.Allreduce(c, send, recv, comm.Sum), sum()); err != nil {
							return err
						}
					case 2:
						root := rng.IntN(size)
						if me == root {
							copy(recv, count(n, round))
						}
						open = append(open, comm.Ibcast(c, recv, root))
						checks = append(checks, func() error { return same("bcast", recv, count(n, round)) })
					case 3:
						open = append(open, c.Ibarrier())
					case 4:
						open = append(open, comm.Isend(c, send, (me+1)%size, 3), comm.Irecv(c, recv, (me+size-1)%size, 3))
						checks = append(checks, func() error { return same("message", recv, count(n, (me+size-1)%size)) })
					}
				}
				if err := comm.WaitAll(open); err != nil {
					return err
				}
				for _, check := range checks {
					if err := check(); err != nil {
						return fmt.Errorf("round %d: %w", round, err)
					}
				}
			}
			return d.Free()
		}, over)
	}
}

// TestDeathInACollective kills a rank at a random moment during collectives of each kind. It checks
// that the other ranks get an error within the time limit.
func TestDeathInACollective(t *testing.T) {
	for name, call := range map[string]func(c *comm.Comm, send, recv []int) error{
		"Barrier":   func(c *comm.Comm, _, _ []int) error { return c.Barrier() },
		"Bcast":     func(c *comm.Comm, _, recv []int) error { return comm.Bcast(c, recv, 1) },
		"Reduce":    func(c *comm.Comm, send, recv []int) error { return comm.Reduce(c, send, recv, comm.Sum, 1) },
		"Allreduce": func(c *comm.Comm, send, recv []int) error { return comm.Allreduce(c, send, recv, comm.Sum) },
		"Iallreduce": func(c *comm.Comm, send, recv []int) error {
			return wait(comm.Iallreduce(c, send, recv, comm.Sum))
		},
		"Scan":      func(c *comm.Comm, send, recv []int) error { return comm.Scan(c, send, recv, comm.Sum) },
		"Allgather": func(c *comm.Comm, send, recv []int) error { return comm.Allgather(c, send[:len(send)/4], recv) },
		"Alltoall":  func(c *comm.Comm, send, recv []int) error { return comm.Alltoall(c, send, recv) },
		"Gather": func(c *comm.Comm, send, recv []int) error {
			return comm.Gather(c, send[:len(send)/4], recv, 2)
		},
		"Scatter": func(c *comm.Comm, send, recv []int) error {
			return comm.Scatter(c, send, recv[:len(send)/4], 2)
		},
		"ReduceScatterBlock": func(c *comm.Comm, send, recv []int) error {
			return comm.ReduceScatterBlock(c, send, recv[:len(send)/4], comm.Sum)
		},
	} {
		for _, of := range [][]int{{0, 0, 0, 0}, {0, 0, 1, 1}, nil} {
			for _, n := range []int{4, 4000, 200000} {
				t.Run(fmt.Sprintf("%s/%v/%d", name, of, n), func(t *testing.T) {
					over := commtest.WithProviders(shm.New())
					if of != nil {
						over = newHosts(of...).providers()
					}
					after := time.Duration(rand.IntN(3000)) * time.Microsecond
					ranks(t, 4, func(c *comm.Comm) error {
						dead := make(chan struct{})
						if c.Rank() == 1 {
							go func() { // ends after the kill; rank 1 waits for it below
								time.Sleep(after)
								commtest.Kill(c)
								close(dead)
							}()
						}
						send, recv := make([]int, n), make([]int, n)
						var err error
						for err == nil {
							if err = call(c, send, recv); err == nil {
								// Some ranks, such as the root of a Bcast, wait for no other rank
								// in the collective, but they do in Barrier.
								err = c.Barrier()
							}
						}
						if c.Rank() == 1 {
							<-dead
							return nil
						}
						commtest.Kill(c) // otherwise Run would call Finalize, which returns an error after a failure
						if !isErr(err, comm.ErrProcFailed) && !isErr(err, comm.ErrRevoked) {
							return err
						}
						return nil
					}, over, commtest.WithParam("coll.shared_memory", "4k"), commtest.WithTimeout(20*time.Second))
				})
			}
		}
	}
}

// TestPanicInSharedMemory checks that a reduction operation that panics ends its collective on all
// ranks, and that later collectives, which are queued for the slot (see slot.go), fail too.
func TestPanicInSharedMemory(t *testing.T) {
	bad := comm.OpFunc(true, func(_, _ []int) { panic("out of cheese") })
	ranks(t, 3, func(world *comm.Comm) error {
		c, err := world.Dup()
		if err != nil {
			return err
		}
		open := []comm.Request{
			comm.Iallreduce(c, count(9, 0), make([]int, 9), bad), c.Ibarrier(), comm.Iallreduce(c, count(9, 0), make([]int, 9), comm.Sum),
		}
		for _, r := range open {
			if _, err := r.Wait(); !isErr(err, comm.ErrOp) && !isErr(err, comm.ErrRevoked) {
				return fmt.Errorf("after a panic: %w", err)
			}
		}
		return first(wantErr("later", c.Barrier(), comm.ErrRevoked, ""), c.Free(), world.Barrier())
	})
}

// TestQueueEndsWithContext checks that a collective that waits for the communicator's slot (see
// slot.go) ends if its context ends.
func TestQueueEndsWithContext(t *testing.T) {
	ranks(t, 2, func(world *comm.Comm) error {
		c, err := world.Dup()
		if err != nil {
			return err
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		if c.Rank() == 1 { // rank 1 does not call the collectives
			_, err := comm.Recv(c, []int{0}, 0, 0)
			return first(wantErr("Recv", err, comm.ErrRevoked, ""), c.Free(), world.Barrier())
		}
		r := c.Ibarrier()
		ctx, cancel := context.WithCancel(c.Context())
		defer cancel()
		done := make(chan error, 1)
		// The goroutine ends when ctx ends. Its error is received below.
		go func() { done <- c.WithContext(ctx).Barrier() }()
		for mpi.Queued((*mpi.Comm)(c)) == 0 {
			runtime.Gosched()
		}
		cancel()
		err = <-done
		if !errors.Is(err, ctx.Err()) {
			return fmt.Errorf("Barrier: %w", err)
		}
		if _, err := r.Wait(); !isErr(err, comm.ErrRevoked) {
			return fmt.Errorf("Ibarrier: %w", err)
		}
		return first(c.Free(), world.Barrier())
	})
}

// TestGoexitInAnOperation checks that a reduction operation that calls runtime.Goexit ends its
// collective on all ranks.
func TestGoexitInAnOperation(t *testing.T) {
	bad := comm.OpFunc(true, func(_, _ []int) { runtime.Goexit() })
	call := map[string]func(c *comm.Comm) error{
		"blocking": func(c *comm.Comm) (err error) {
			returned := make(chan struct{})
			go func() { // ends when its call returns or calls runtime.Goexit
				defer close(returned)
				err = comm.Allreduce(c, count(9, 0), make([]int, 9), bad)
			}()
			<-returned
			return err
		},
		"nonblocking": func(c *comm.Comm) error {
			_, err := comm.Iallreduce(c, count(9, 0), make([]int, 9), bad).Wait()
			if err == nil {
				return errors.New("no error")
			}
			return err
		},
	}
	for name, f := range call {
		for _, shared := range []string{"0", "1m"} {
			t.Run(name+" "+shared, func(t *testing.T) {
				commtest.Run(t, 3, func(world *comm.Comm) error {
					c, err := world.Dup()
					if err != nil {
						return err
					}
					if err := f(c); err != nil && !isErr(err, comm.ErrOp) && !isErr(err, comm.ErrRevoked) {
						return err
					}
					// This rank's collective may have ended before the operation of another rank
					// called Goexit.
					for err == nil {
						err = c.Barrier()
					}
					return first(wantErr("later", err, comm.ErrRevoked, "Goexit"), c.Free(), world.Barrier())
				}, commtest.WithParam("coll.shared_memory", shared))
			})
		}
	}
}
