package rma

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/shm"
	"github.com/weft-hpc/weft/transport/tcp"
)

var background = context.Background()

// hangTimeout is the time after which a test counts as hanging.
const hangTimeout = 20 * time.Second

// member is one rank of a test's job, with its window.
type member struct {
	*Window
	rank, size int
	e          *engine.Engine
	world      *engine.Context // for messages
	ctx        *engine.Context // the window's
	local      []byte
}

// openEngines returns n engines over a provider. It closes them when the test ends.
func openEngines(t testing.TB, n int, provider transport.Provider, set map[string]string) []*engine.Engine {
	t.Helper()
	return openRails(t, n, set, provider)
}

// openRails returns n engines over several providers. Ranks i and j use the provider with number
// (i+j) modulo the number of providers.
func openRails(t testing.TB, n int, set map[string]string, providers ...transport.Provider) []*engine.Engine {
	t.Helper()
	p := &params.Set{}
	for k, v := range set {
		require.NoError(t, p.Set(k, v, params.FromFlag))
	}
	rails := make([][]engine.Rail, n)
	for _, provider := range providers {
		vectors := make([]transport.AddressVector, n)
		addrs := make([]transport.Address, n)
		for i := range n {
			d, err := provider.Open(transport.Config{Self: transport.Addr(i), Size: n, JobID: "test", OneHost: true, Params: p})
			require.NoError(t, err)
			cq, err := d.OpenCQ()
			require.NoError(t, err)
			vectors[i], err = d.OpenAV()
			require.NoError(t, err)
			ep, err := d.OpenEndpoint(vectors[i], cq)
			require.NoError(t, err)
			rails[i] = append(rails[i], engine.Rail{Domain: d, CQ: cq, Endpoint: ep})
			addrs[i] = ep.Address()
		}
		for _, av := range vectors {
			_, err := av.Insert(addrs)
			require.NoError(t, err)
		}
	}
	engines := make([]*engine.Engine, n)
	for i := range n {
		route := make([]uint8, n)
		for j := range route {
			route[j] = uint8((i + j) % max(1, len(providers)))
		}
		var err error
		engines[i], err = engine.New(engine.Config{Rank: i, Size: n, Params: p, Rails: rails[i], Route: route, LocalRanks: n})
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(background, 5*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for _, e := range engines {
			wg.Go(func() { _ = e.Close(ctx) })
		}
		wg.Wait()
	})
	return engines
}

// ofInt64 returns the configuration of a window of int64.
func ofInt64() Config {
	return Config{Elem: 8, Align: 8, Datatype: transport.Int64, HasType: true, Kernel: kernels}
}

// kernels returns the kernel of an operation on int64.
func kernels(op Op) func(inout, in []byte) { return table[op] }

var table = func() (all [Ops]func(inout, in []byte)) {
	truth := func(b bool) int64 {
		if b {
			return 1
		}
		return 0
	}
	for op, f := range map[Op]func(a, b int64) int64{
		Sum:  func(a, b int64) int64 { return a + b },
		Prod: func(a, b int64) int64 { return a * b },
		Min:  func(a, b int64) int64 { return min(a, b) },
		Max:  func(a, b int64) int64 { return max(a, b) },
		Band: func(a, b int64) int64 { return a & b },
		Bor:  func(a, b int64) int64 { return a | b },
		Bxor: func(a, b int64) int64 { return a ^ b },
		Land: func(a, b int64) int64 { return truth(a != 0 && b != 0) },
		Lor:  func(a, b int64) int64 { return truth(a != 0 || b != 0) },
		Lxor: func(a, b int64) int64 { return truth((a != 0) != (b != 0)) },
	} {
		all[op] = func(inout, in []byte) {
			for i := 0; i < len(inout); i += 8 {
				put(inout[i:], f(get(inout[i:]), get(in[i:])))
			}
		}
	}
	return all
}()

func get(b []byte) int64    { return int64(binary.LittleEndian.Uint64(b)) }
func put(b []byte, v int64) { binary.LittleEndian.PutUint64(b, uint64(v)) }

// word returns v as an element.
func word(v int64) []byte {
	b := make([]byte, 8)
	put(b, v)
	return b
}

// openWindows opens a window on every rank, with parts of size bytes that New allocates.
func openWindows(t testing.TB, engines []*engine.Engine, size int, cfg Config) []*member {
	t.Helper()
	n := len(engines)
	world := make([]int, n)
	for i := range world {
		world[i] = i
	}
	ms := make([]*member, n)
	parts := make([]Part, n)
	for i, e := range engines {
		m := &member{rank: i, size: n, e: e}
		m.world, m.ctx = e.OpenContext(0, world), e.OpenContext(2, world)
		c := cfg
		c.Ctx, c.Alloc = m.ctx, size
		w, part, err := New(c)
		require.NoError(t, err)
		var b [PartSize]byte
		part.Encode(b[:])
		require.NoError(t, parts[i].Decode(b[:]))
		m.Window, m.local = w, w.Local()
		ms[i] = m
		t.Cleanup(func() { require.NoError(t, m.Close()) })
	}
	connect(t, ms, parts)
	return ms
}

// connect calls Connect and Settle on all ranks.
func connect(t testing.TB, ms []*member, parts []Part) {
	t.Helper()
	all := ^Reach(0)
	for _, m := range ms {
		r, err := m.Connect(parts)
		require.NoError(t, err)
		all &= r
	}
	for _, m := range ms {
		require.NoError(t, m.Settle(all))
	}
}

// barrier is a barrier of all ranks, by messages.
func (m *member) barrier() error {
	for d := 1; d < m.size; d *= 2 {
		r := m.world.Irecv(nil, engine.Env{Peer: (m.rank - d + m.size) % m.size, Tag: d, Attended: true})
		if err := m.world.Send(background, nil, engine.Env{Peer: (m.rank + d) % m.size, Tag: d}); err != nil {
			return err
		}
		if _, err := r.Wait(background); err != nil {
			return err
		}
	}
	return nil
}

// fence is MPI_Win_fence: Fence and a barrier.
func (m *member) fence() error {
	if err := m.Fence(background, false); err != nil {
		return err
	}
	return m.barrier()
}

// each runs f on every rank, and fails the test if f returns an error or hangs on any rank.
func each(t testing.TB, ms []*member, f func(m *member) error) {
	t.Helper()
	errs := make(chan error, len(ms))
	for _, m := range ms {
		go func() { // ends with f; the loop below waits for it
			if err := f(m); err != nil {
				errs <- fmt.Errorf("rank %d: %w", m.rank, err)
				return
			}
			errs <- nil
		}()
	}
	deadline := time.After(hangTimeout)
	for range ms {
		select {
		case err := <-errs:
			require.NoError(t, err)
		case <-deadline:
			buf := make([]byte, 1<<20)
			t.Fatalf("hang:\n%s", buf[:runtime.Stack(buf, true)])
		}
	}
}

// flavours returns fabrics, with parameters of the engine, that together cover every method by
// which a window accesses parts; see the package comment.
func flavours() map[string]func() (transport.Provider, map[string]string) {
	return map[string]func() (transport.Provider, map[string]string){
		"shared": func() (transport.Provider, map[string]string) { return inproc.NewFabric(), nil },
		"rma": func() (transport.Provider, map[string]string) {
			return inproc.NewFabric(inproc.WithoutSharedMemory()), nil
		},
		"some reach": func() (transport.Provider, map[string]string) {
			return inproc.NewFabric(inproc.WithReach(func(from, to transport.Addr) bool { return from < to })), nil
		},
		"messages": func() (transport.Provider, map[string]string) {
			return inproc.NewFabric(inproc.WithoutRMA()), nil
		},
		"small messages": func() (transport.Provider, map[string]string) {
			return inproc.NewFabric(inproc.WithoutRMA(), inproc.WithMaxMsgSize(100), inproc.WithInjectSize(0)),
				map[string]string{"engine.eager_limit": "1"}
		},
		"no room": func() (transport.Provider, map[string]string) {
			return inproc.NewFabric(inproc.WithoutRMA(), inproc.WithBacklog(1), inproc.WithInjectSize(70)), nil
		},
		"like verbs": func() (transport.Provider, map[string]string) {
			return inproc.NewFabric(inproc.WithMRMode(transport.MRVirtAddr|transport.MRLocal), inproc.WithInjectSize(0),
				inproc.WithMaxRMASize(40), inproc.WithRMADelay(2)), nil
		},
		"no async": func() (transport.Provider, map[string]string) {
			return inproc.NewFabric(inproc.WithoutRMA()), map[string]string{"engine.async_progress": "false"}
		},
		"shm":                 func() (transport.Provider, map[string]string) { return shm.New(), nil },
		"shm, private memory": func() (transport.Provider, map[string]string) { return private{shm.New()}, nil },
		"shm, no copies": func() (transport.Provider, map[string]string) {
			return private{shm.New()}, map[string]string{"transport.shm.single_copy": "off"}
		},
		"tcp":    func() (transport.Provider, map[string]string) { return tcp.New(), nil },
		"native": func() (transport.Provider, map[string]string) { return &atomicFabric{Fabric: inproc.NewFabric()}, nil },
		"native, slow": func() (transport.Provider, map[string]string) {
			return &atomicFabric{Fabric: inproc.NewFabric(inproc.WithRMADelay(1)), count: 2, delay: 3}, nil
		},
	}
}

// everyFlavour runs f over every fabric, with n ranks and parts of size bytes.
func everyFlavour(t *testing.T, n, size int, f func(t *testing.T, ms []*member)) {
	for name, open := range flavours() {
		t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
			p, set := open()
			ms := openWindows(t, openEngines(t, n, p, set), size, ofInt64())
			f(t, ms)
		})
	}
}

// private is a provider without CapSharedMemory, so that all memory is private.
type private struct{ transport.Provider }

type privateDomain struct{ transport.Domain }

func (p private) Open(cfg transport.Config) (transport.Domain, error) {
	d, err := p.Provider.Open(cfg)
	return privateDomain{d}, err
}

func (d privateDomain) Attr() transport.Attr {
	a := d.Domain.Attr()
	a.Caps &^= transport.CapSharedMemory
	return a
}

func wantErr(err, want error) error {
	if !errors.Is(err, want) {
		return fmt.Errorf("got error %q, want %q", fmt.Sprint(err), want.Error())
	}
	return nil
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + seed*13 + i>>8)
	}
	return b
}

func same(got, want []byte) error {
	if len(got) != len(want) {
		return fmt.Errorf("got %d bytes, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d of %d is %d, want %d", i, len(want), got[i], want[i])
		}
	}
	return nil
}
