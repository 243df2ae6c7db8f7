//go:build linux

package mpi_test

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/sys"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/shm"
	"github.com/weft-hpc/weft/transport/tcp"
)

// counted is a provider that counts the memory registrations of all ranks in n.
type counted struct {
	transport.Provider
	n *atomic.Int64
}

func (p counted) Open(cfg transport.Config) (transport.Domain, error) {
	d, err := p.Provider.Open(cfg)
	if err != nil {
		return nil, err
	}
	return countedDomain{d, p.n}, nil
}

type countedDomain struct {
	transport.Domain
	n *atomic.Int64
}

func (d countedDomain) RegisterMemory(buf []byte, access transport.Access) (transport.MemoryRegion, error) {
	d.n.Add(1)
	return d.Domain.RegisterMemory(buf, access)
}

// TestSendsFromAllocRegisterNothing: sends from memory of Alloc register no memory, also after many
// sends, with several sizes and from many parts of the memory.
func TestSendsFromAllocRegisterNothing(t *testing.T) {
	sends := 1_000_000
	if testing.Short() || raceEnabled {
		sends = 100_000
	}
	for name, p := range map[string]transport.Provider{
		"inproc": inproc.NewFabric(),
		"verbs": inproc.NewFabric(inproc.WithMaxRMASize(3000),
			inproc.WithMRMode(transport.MRVirtAddr|transport.MRLocal)),
		"tcp": tcp.New(),
	} {
		sends := sends
		if name != "verbs" {
			sends /= 50
		}
		t.Run(name, func(t *testing.T) {
			var n atomic.Int64
			ranks(t, 2, func(c *comm.Comm) error {
				return sendFrom(c, sends, &n)
			}, commtest.WithProviders(counted{p, &n}), commtest.WithParam("engine.eager_limit", "64"))
		})
	}
}

func sendFrom(c *comm.Comm, sends int, n *atomic.Int64) error {
	const words = 4096
	mem, free, err := comm.Alloc[int](c, words)
	if err != nil {
		return err
	}
	defer free()
	if at := reflect.ValueOf(mem).Pointer(); at%uintptr(os.Getpagesize()) != 0 {
		return fmt.Errorf("the memory begins at %#x", at)
	}
	if err := same("fresh", mem, make([]int, words)); err != nil {
		return err
	}
	if err := first(c.Barrier(), c.Barrier()); err != nil {
		return err
	}
	before := n.Load()
	if before != 2 {
		return fmt.Errorf("%d registrations by two ranks for an Alloc each", before)
	}
	copy(mem, count(words, c.Rank()))
	length := func(i int) int { return []int{1, 8, 9, 33, 700}[i%5] }
	// Rank 0 has several sends under way. On a busy machine each wait takes a few milliseconds.
	var under []comm.Request
	for i := range sends {
		at, l := i*13%(words/2-700), length(i)
		if c.Rank() == 0 {
			if under = append(under, comm.Isend(c, mem[at:at+l], 1, 0)); len(under) == 100 {
				err, under = comm.WaitAll(under), under[:0]
			}
		} else if _, err = comm.Recv(c, mem[words/2+at:words/2+at+l], 0, 0); err == nil && mem[words/2+at+l-1] != at+l-1 {
			err = fmt.Errorf("message %d ends in %d", i, mem[words/2+at+l-1])
		}
		if err != nil {
			return err
		}
	}
	if err := first(comm.WaitAll(under), c.Barrier()); err != nil {
		return err
	}
	if now := n.Load(); now != before {
		return fmt.Errorf("%d registrations for %d sends", now-before, sends)
	}
	if err := c.Barrier(); err != nil {
		return err
	}
	// Check that the counter works: a rendezvous message from other memory registers the memory.
	if c.Rank() == 0 {
		err = comm.Send(c, make([]int, 1<<16), 1, 0)
	} else {
		_, err = comm.Recv(c, make([]int, 1<<16), 0, 0)
	}
	if err := first(err, c.Barrier()); err != nil {
		return err
	}
	if n.Load() == before {
		return errors.New("registrations are not counted")
	}
	return nil
}

// mapped reports whether the first byte of b is mapped into the process.
func mapped(b []int) bool {
	at := reflect.ValueOf(b).Pointer()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(maps)) {
		var low, high uintptr
		if _, err := fmt.Sscanf(line, "%x-%x ", &low, &high); err == nil && low <= at && at < high {
			return true
		}
	}
	return false
}

// peek returns the last element of mem, whose memory may have been unmapped. If it is unmapped,
// there is false. If other memory has been mapped at the same address since, peek returns an
// element of that memory.
func peek(mem []int) (last int, there bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			there = false
		}
	}()
	return mem[len(mem)-1], true
}

// TestFreeOfAllocWhileInUse: operations that use memory of Alloc when it is freed complete
// correctly, and then the memory is given back.
func TestFreeOfAllocWhileInUse(t *testing.T) {
	t.Run("pages of its own", func(t *testing.T) {
		testFreeWhileInUse(t, func() transport.Provider { return inproc.NewFabric() })
	})
	t.Run("pages of the shared heap", func(t *testing.T) { testFreeWhileInUse(t, shm.New) })
}

func testFreeWhileInUse(t *testing.T, open func() transport.Provider) {
	const words = 1 << 16
	for name, use := range map[string]func(c *comm.Comm, mem []int) comm.Request{
		"sends": func(c *comm.Comm, mem []int) comm.Request { return comm.Isend(c, mem, 1-c.Rank(), 1) },
		"receives": func(c *comm.Comm, mem []int) comm.Request {
			return comm.Irecv(c, mem, 1-c.Rank(), 2)
		},
		"collectives": func(c *comm.Comm, mem []int) comm.Request {
			return comm.Iallreduce(c, mem, mem, comm.Sum)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 2, func(c *comm.Comm) error {
				d, err := c.Dup()
				if err != nil {
					return err
				}
				mem, free, err := comm.Alloc[int](c, words)
				if err != nil {
					return err
				}
				copy(mem, count(words, c.Rank()))
				var r comm.Request
				uses := name != "collectives" || c.Rank() == 0
				if uses {
					r = use(d, mem) // this request cannot complete before the other rank makes a call
				}
				var wg sync.WaitGroup
				for range 3 {
					wg.Go(free)
				}
				wg.Wait()
				if err := c.Barrier(); err != nil {
					return err
				}
				if uses && !mapped(mem) {
					return errors.New("the memory was unmapped while an operation used it")
				}
				switch name {
				case "sends":
					got := make([]int, words)
					_, err = comm.Recv(d, got, 1-c.Rank(), 1)
					err = first(err, wait(r), same("received", got, count(words, 1-c.Rank())))
				case "receives":
					err = first(comm.Send(d, count(words, 7), 1-c.Rank(), 2), wait(r), same("received", mem, count(words, 7)))
				case "collectives":
					if c.Rank() == 0 {
						err = wait(r)
					} else {
						err = comm.Allreduce(d, make([]int, words), make([]int, words), comm.Sum)
					}
				}
				if err != nil {
					return err
				}
				was, there := peek(mem)
				free() // no operation uses the memory any more, so this call gives it back
				// On a rank that did not use the memory, the first call of free has given it back,
				// and other memory may have the same address since.
				if is, still := peek(mem); uses && there && still && is == was && was != 0 {
					return errors.New("the memory was not given back")
				}
				return d.Free()
			}, commtest.WithProviders(open()))
		})
	}
}

func TestAllocArguments(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		call := func(_ any, free func(), err error) error { free(); free(); return err }
		empty, free, err := comm.Alloc[int](c, 0)
		free()
		none, freeNone, err2 := comm.Alloc[struct{}](c, 5)
		freeNone()
		if err := first(err, err2); err != nil || len(empty) != 0 || len(none) != 5 {
			return fmt.Errorf("%d and %d elements: %w", len(empty), len(none), err)
		}
		d, err := c.Dup()
		if err := first(err, d.Free()); err != nil {
			return err
		}
		return first(
			wantErr("negative", call2(call, comm.Alloc[int], c, -1), comm.ErrCount, "comm: Alloc (world): counts disagree: -1 elements"),
			wantErr("vast", call2(call, comm.Alloc[int], c, 1<<60), comm.ErrCount, "memory"),
			wantErr("pointers", call2(call, comm.Alloc[string], c, 1), comm.ErrType, "Alloc"),
			wantErr("nil", call2(call, comm.Alloc[int], nil, 1), comm.ErrClosed, "Alloc"),
			wantErr("freed", call2(call, comm.Alloc[int], d, 1), comm.ErrClosed, "freed"),
		)
	})
}

func call2[T any](check func(any, func(), error) error, f func(*comm.Comm, int) ([]T, func(), error), c *comm.Comm, n int) error {
	mem, free, err := f(c, n)
	return check(mem, free, err)
}

// TestFreeOfAllocAfterFinalize: memory of Alloc stays valid after Finalize, until it is freed.
func TestFreeOfAllocAfterFinalize(t *testing.T) {
	for _, p := range []transport.Provider{inproc.NewFabric(), shm.New()} {
		var mem [2][]int
		var free [2]func()
		ranks(t, 2, func(c *comm.Comm) (err error) {
			mem[c.Rank()], free[c.Rank()], err = comm.Alloc[int](c, 5000)
			return err
		}, commtest.WithProviders(p))
		for r := range mem {
			mem[r][4999] = 0x77656674 + r
			was, there := peek(mem[r])
			require.True(t, there)
			free[r]()
			free[r]()
			is, still := peek(mem[r])
			require.False(t, still && is == was, "the memory was not given back")
		}
	}
}

// TestAllocTooMuch: Alloc reserves shared memory when it is called. If the host has too little
// memory, Alloc fails, and not a later access.
func TestAllocTooMuch(t *testing.T) {
	all := int(sys.Memory()) - 1
	ranks(t, 2, func(c *comm.Comm) error {
		_, _, err := comm.Alloc[byte](c, all)
		if !errors.Is(err, unix.ENOMEM) {
			return fmt.Errorf("all memory of the host: %w", err)
		}
		mem, free, err := comm.Alloc[byte](c, 100)
		if err != nil {
			return err
		}
		defer free()
		return same("fresh", mem, make([]byte, 100))
	}, commtest.WithProviders(shm.New()))
}

// TestSharedAllocs sends messages of every protocol from and to memory of the shared heap. There
// are more allocations than the heap's directory has entries.
func TestSharedAllocs(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		var frees []func()
		defer func() {
			for _, free := range frees {
				free()
			}
		}()
		for range 2500 {
			mem, free, err := comm.Alloc[int](c, 1)
			if err != nil {
				return err
			}
			mem[0] = 1
			frees = append(frees, free)
		}
		frees[0]()
		for _, n := range []int{1, 100, 5000, 1 << 18} {
			mem, free, err := comm.Alloc[int](c, 2*n)
			if err != nil {
				return err
			}
			frees = append(frees, free)
			copy(mem, count(n, 7*c.Rank()))
			if _, err := comm.Sendrecv(c, mem[:n], 1-c.Rank(), 1, mem[n:], 1-c.Rank(), 1); err != nil {
				return err
			}
			if err := same("received", mem[n:], count(n, 7*(1-c.Rank()))); err != nil {
				return err
			}
			w, err := comm.WinOf(c, mem)
			if err != nil {
				return err
			}
			got := make([]int, n)
			err = first(w.Fence(), w.Put([]int{c.Rank() + 100}, 1-c.Rank(), n-1), w.Fence(),
				w.Get(got, 1-c.Rank(), 0), w.Fence(), w.Free())
			if err != nil {
				return err
			}
			want := append(count(n-1, 7*(1-c.Rank())), c.Rank()+100)
			if err := same("got", got, want); err != nil {
				return err
			}
		}
		return nil
	}, commtest.WithProviders(shm.New()))
}
