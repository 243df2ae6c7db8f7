package rma

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
)

// sharer is the inproc transport, except that it counts shared memory and can refuse it.
type sharer struct {
	*inproc.Fabric
	alloc func(rank, n int) error    // the error of an allocation of n bytes by rank; nil: no allocation fails
	reach func(rank, peer int) error // the error of rank's mapping of peer's memory; nil: no mapping fails

	bytes, maps atomic.Int64 // bytes that are allocated, and number of mappings that exist
}

type sharerDomain struct {
	transport.Domain
	transport.SharedMemoryDomain
	f    *sharer
	rank int
}

type sharerRegion struct {
	transport.MemoryRegion
	f *sharer
	n int
}

func (f *sharer) Open(cfg transport.Config) (transport.Domain, error) {
	d, err := f.Fabric.Open(cfg)
	if err != nil {
		return nil, err
	}
	return sharerDomain{d, d.(transport.SharedMemoryDomain), f, int(cfg.Self)}, nil
}

func (d sharerDomain) Alloc(n int) ([]byte, transport.MemoryRegion, error) {
	if d.f.alloc != nil {
		if err := d.f.alloc(d.rank, n); err != nil {
			return nil, nil, err
		}
	}
	mem, mr, err := d.SharedMemoryDomain.Alloc(n)
	if err == nil {
		d.f.bytes.Add(int64(n))
	}
	return mem, sharerRegion{mr, d.f, n}, err
}

func (r sharerRegion) Close() error {
	r.f.bytes.Add(-int64(r.n))
	return r.MemoryRegion.Close()
}

func (d sharerDomain) Map(peer transport.Addr, key uint64) ([]byte, error) {
	if d.f.reach != nil {
		if err := d.f.reach(d.rank, int(peer)); err != nil {
			return nil, err
		}
	}
	mem, err := d.SharedMemoryDomain.Map(peer, key)
	if err == nil {
		d.f.maps.Add(1)
	}
	return mem, err
}

func (d sharerDomain) Unmap(mem []byte) error {
	d.f.maps.Add(-1)
	return d.SharedMemoryDomain.Unmap(mem)
}

// sharing opens a window on n ranks over a sharer.
func sharing(t *testing.T, f *sharer, n int, cfg Config) []*member {
	f.Fabric = inproc.NewFabric()
	return openWindows(t, openEngines(t, n, f, nil), 8*modelElems, cfg)
}

// leave ends the window as [Window.Close] requires: Fence, Leave, a barrier and Close. All ranks
// call it together.
func (m *member) leave() error {
	if err := m.Fence(background, true); err != nil {
		return err
	}
	m.Leave()
	if err := m.barrier(); err != nil {
		return err
	}
	return m.Close()
}

// TestHowRanksReachEachOther checks that all ranks choose the same methods for locks and
// accumulates, and that freeing the window frees all memory.
func TestHowRanksReachEachOther(t *testing.T) {
	no := errors.New("there is none")
	ofStructs := Config{Elem: 12, Align: 4}
	for name, x := range map[string]struct {
		f                   *sharer
		cfg                 Config
		locks, whole, words bool
	}{
		"all":         {cfg: ofInt64(), locks: true, whole: true, words: true},
		"structs":     {cfg: ofStructs, locks: true, whole: true},
		"own kernels": {cfg: Config{Elem: 8, Align: 8, Kernel: kernels}, locks: true, whole: true},
		"no parts": {cfg: ofInt64(), locks: true, f: &sharer{alloc: func(_, n int) error {
			if n == 8*modelElems {
				return no
			}
			return nil
		}}},
		"a part missing": {cfg: ofInt64(), locks: true, f: &sharer{alloc: func(rank, n int) error {
			if rank == 1 && n == 8*modelElems {
				return no
			}
			return nil
		}}},
		"a rank without":      {cfg: ofInt64(), f: &sharer{alloc: func(rank, _ int) error { return map[bool]error{true: no}[rank == 2] }}},
		"one that cannot map": {cfg: ofInt64(), f: &sharer{reach: func(rank, _ int) error { return map[bool]error{true: no}[rank == 0] }}},
		"none that can":       {cfg: ofInt64(), f: &sharer{reach: func(_, _ int) error { return no }}},
	} {
		t.Run(name, func(t *testing.T) {
			if x.f == nil {
				x.f = &sharer{}
			}
			ms := sharing(t, x.f, 3, x.cfg)
			for _, m := range ms {
				require.Equal(t, [3]bool{x.locks, x.whole, x.words}, [3]bool{m.tableLocks, m.allMapped, m.words})
			}
			if x.cfg.Elem == 8 {
				each(t, ms, func(m *member) error { return m.compare(3) })
			}
			each(t, ms, func(m *member) error { return m.leave() })
			for _, m := range ms {
				require.Empty(t, m.cfg.DeferredFrees.list)
			}
			require.Zero(t, x.f.bytes.Load())
			require.Zero(t, x.f.maps.Load())
		})
	}
}

// TestNoMemoryForContiguous: if the ranks of a contiguous window do not all share memory, or rank 0
// cannot allocate it, rank 0 allocates no memory for the parts, and Settle returns ErrShared on all
// ranks.
func TestNoMemoryForContiguous(t *testing.T) {
	const n, size = 3, 1 << 12
	for name, p := range map[string]transport.Provider{
		"none": inproc.NewFabric(inproc.WithoutSharedMemory()),
		"full": &sharer{Fabric: inproc.NewFabric(), alloc: func(_, bytes int) error {
			if bytes == n*size {
				return errors.New("no memory")
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ms, parts, all := make([]*member, n), make([]Part, n), ^Reach(0)
			for i, e := range openEngines(t, n, p, nil) {
				cfg := ofInt64()
				cfg.Ctx, cfg.Alloc, cfg.Contiguous, cfg.Offset, cfg.Total = e.OpenContext(2, []int{0, 1, 2}), size, true, i*size, n*size
				w, part, err := New(cfg)
				require.NoError(t, err)
				require.Zero(t, len(w.Joint()))
				ms[i], parts[i] = &member{Window: w}, part
			}
			for _, m := range ms {
				reach, err := m.Connect(parts)
				require.NoError(t, err)
				all &= reach
			}
			for _, m := range ms {
				require.ErrorIs(t, m.Settle(all), ErrShared)
			}
			for _, m := range ms {
				require.NoError(t, m.Close())
			}
			if f, ok := p.(*sharer); ok {
				for _, m := range ms {
					require.NoError(t, m.cfg.DeferredFrees.Sweep())
				}
				require.Zero(t, f.bytes.Load())
			}
		})
	}
}

// TestClosedBeforeConnect: if the creation of a window fails after New, Close frees the part at once,
// although this rank does not know whether the others have left the window. Only the lock table stays.
func TestClosedBeforeConnect(t *testing.T) {
	const n, size = 2, 1 << 16
	f := &sharer{Fabric: inproc.NewFabric()}
	var ws []*Window
	for _, e := range openEngines(t, n, f, nil) {
		cfg := ofInt64()
		cfg.Ctx, cfg.Alloc = e.OpenContext(2, []int{0, 1}), size
		w, _, err := New(cfg)
		require.NoError(t, err)
		ws = append(ws, w)
	}
	require.GreaterOrEqual(t, f.bytes.Load(), int64(n*size))
	for _, w := range ws {
		require.NoError(t, w.Close())
		require.NoError(t, w.cfg.DeferredFrees.Sweep())
	}
	require.LessOrEqual(t, f.bytes.Load(), int64(n*lockTableSize(n)))
}

// TestUnalignedParts checks that accumulates work on a part in the user's memory that is not
// aligned for the processor's atomics.
func TestUnalignedParts(t *testing.T) {
	f := inproc.NewFabric()
	e := openEngines(t, 1, f, nil)[0]
	local := alignedBytes(64)[4:60]
	cfg := Config{Ctx: e.OpenContext(2, []int{0}), Local: local, Elem: 8, Align: 4}
	w, part, err := New(cfg)
	require.NoError(t, err)
	m := &member{Window: w, size: 1, e: e}
	connect(t, []*member{m}, []Part{part})
	require.True(t, w.allMapped)
	require.False(t, w.words)
	require.NoError(t, w.Fence(background, false))
	old := make([]byte, 8)
	require.NoError(t, w.GetAccumulate(background, 0, 8, word(5), old, Replace))
	require.NoError(t, w.CompareSwap(background, 0, 8, word(7), word(5), old))
	require.Equal(t, int64(5), get(old))
	require.Equal(t, int64(7), get(local[8:]))
	require.NoError(t, w.Close())
}

// TestWideElements checks that accumulates on elements that the processor cannot change atomically
// are atomic nevertheless.
func TestWideElements(t *testing.T) {
	const elem, elems, times = 24, 400, 50
	combine := func(op Op) func(inout, in []byte) {
		if op != Sum {
			return nil
		}
		return kernels(Sum) // of three int64
	}
	for _, fabric := range []string{"shared", "shm"} {
		p, set := flavours()[fabric]()
		ms := openWindows(t, openEngines(t, 4, p, set), elem*elems, Config{Elem: elem, Align: 8, Kernel: combine})
		require.True(t, ms[0].allMapped)
		each(t, ms, func(m *member) error {
			if err := m.LockAll(background); err != nil {
				return err
			}
			ones, old := make([]byte, elem*elems), make([]byte, elem*elems)
			for i := 0; i < len(ones); i += 8 {
				put(ones[i:], 1)
			}
			for i := range times {
				var err error
				if i%2 == 0 {
					err = m.GetAccumulate(background, 1, 0, ones, old, Sum)
				} else {
					err = m.Accumulate(background, 1, 0, ones, Sum)
				}
				if err != nil {
					return err
				}
				if err := m.GetAccumulate(background, 1, 0, nil, old, NoOp); err != nil {
					return err
				}
				for at := 0; at < len(old); at += elem {
					if get(old[at:]) != get(old[at+8:]) || get(old[at:]) != get(old[at+16:]) {
						return fmt.Errorf("torn: % x", old[at:at+elem])
					}
				}
				swapped := make([]byte, elem)
				if err := m.CompareSwap(background, 1, 0, old[:elem], ones[:elem], swapped); err != nil {
					return err
				}
			}
			if err := m.UnlockAll(background); err != nil {
				return err
			}
			return m.barrier()
		})
		for at := 0; at < elem*elems; at += 8 {
			require.Equal(t, int64(4*times), get(ms[1].local[at:]))
		}
	}
}

// TestWordsAgainstKernels checks that FetchWord yields the same results as the kernels.
func TestWordsAgainstKernels(t *testing.T) {
	var f sharer
	ms := sharing(t, &f, 2, ofInt64())
	m, local := ms[0], ms[1].local[8:16]
	require.NoError(t, m.Lock(background, 1, false))
	rng := rand.New(rand.NewPCG(1, 2))
	for op := Replace; op < Ops; op++ {
		for range 100 {
			a, b := rng.Int64()-rng.Int64(), rng.Int64N(3)-1
			want := word(a)
			switch {
			case op == Replace:
				want = word(b)
			case op > NoOp:
				kernels(op)(want, word(b))
			}
			put(local, a)
			old, ok := m.FetchWord(1, 8, op, uint64(b))
			require.True(t, ok)
			require.Equal(t, uint64(a), old)
			require.Equal(t, want, local, "%d %d %d", op, a, b)
		}
	}
	require.NoError(t, m.Unlock(background, 1))
}

// TestMemoryRemains checks that the memory of a window that one rank closes too early stays until
// the other ranks have left it or ended.
func TestMemoryRemains(t *testing.T) {
	for name, end := range map[string]func(m *member) error{
		"leaves": func(m *member) error { return m.Close() },
		"dies":   func(m *member) error { m.e.Kill(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			var f sharer
			ms := sharing(t, &f, 2, ofInt64())
			before := f.bytes.Load()
			each(t, ms, func(m *member) error { return m.fence() })
			require.NoError(t, ms[1].Close()) // before rank 0 has left
			require.NoError(t, ms[1].cfg.DeferredFrees.Sweep())
			require.Equal(t, before, f.bytes.Load())
			require.NoError(t, ms[0].Put(background, 1, 0, word(1)), "rank 0 does not know of the Close")
			require.NoError(t, end(ms[0]))
			_, _, err := ms[1].world.Iprobe(engine.Env{Peer: 0, Tag: 0}) // makes progress
			if name == "leaves" {
				require.NoError(t, err)
			}
			require.NoError(t, ms[1].cfg.DeferredFrees.Sweep())
			require.Empty(t, ms[1].cfg.DeferredFrees.list)
			require.LessOrEqual(t, f.bytes.Load(), before/2)
		})
	}
}

// TestManyWindows checks that windows that are created and freed leave no memory.
func TestManyWindows(t *testing.T) {
	var f sharer
	f.Fabric = inproc.NewFabric()
	engines := openEngines(t, 3, &f, nil)
	for i := range 50 {
		ms := openWindows(t, engines, 8*modelElems, ofInt64())
		each(t, ms, func(m *member) error {
			if err := m.fence(); err != nil {
				return err
			}
			if err := m.Accumulate(background, i%3, 0, word(1), Sum); err != nil {
				return err
			}
			return m.leave()
		})
		require.Zero(t, f.bytes.Load())
		require.Zero(t, f.maps.Load())
	}
}

// TestLeft checks that after Leave no operation or epoch begins.
func TestLeft(t *testing.T) {
	var f sharer
	ms := sharing(t, &f, 2, ofInt64())
	m := ms[0]
	require.NoError(t, m.Fence(background, false))
	m.Leave()
	m.Leave()
	for _, err := range []error{
		m.Put(background, 1, 0, word(1)), m.Get(background, 1, 0, word(1)), m.Accumulate(background, 1, 0, word(1), Sum),
		m.Lock(background, 1, true), m.LockAll(background), m.Start([]int{1}),
	} {
		require.ErrorIs(t, err, engine.ErrClosed)
	}
	require.Zero(t, get(ms[1].local))
}
