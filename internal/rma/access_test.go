package rma

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/layout"
	"github.com/weft-hpc/weft/transport/fault"
)

// elems returns a random layout of n int64, whose elements are all different and lie in the first
// room elements. nil: consecutive elements.
func elems(rng *rand.Rand, n, room int) *layout.Layout {
	var l layout.Layout
	one := layout.Bytes(1)
	switch k := rng.IntN(5); {
	case k == 0 || n == 0:
		return nil
	case k == 1: // a vector, also backwards
		stride := max(1, room/n)
		if rng.IntN(2) == 0 {
			l = layout.Vector(n, 1, stride, one)
		} else {
			l = layout.Shift((n-1)*stride, layout.Vector(n, 1, -stride, one))
		}
	case k == 2 && n%3 == 0:
		l = layout.Vector(n/3, 3, room/(n/3), one)
	default: // any elements in any order
		perm := rng.Perm(room)[:n]
		ones := make([]int, n)
		for i := range ones {
			ones[i] = 1
		}
		l = layout.Indexed(ones, perm, one)
	}
	l = layout.Scale(8, l)
	return &l
}

// at returns the offset of element i of the stream of a layout.
func at(l *layout.Layout, i int) int {
	if l == nil {
		return 8 * i
	}
	var list [1]layout.Range
	got, _ := l.Ranges(list[:0], 8*i, 8*i+8)
	return got[0].Off
}

// trial does one random operation with layouts on memory of size bytes at a target, and compares the
// memory and the result with what a loop over the elements computes. No other rank accesses the memory
// meanwhile. place fills in where the memory is.
func (m *member) trial(rng *rand.Rand, size int, place func(a *Access, disp int)) error {
	room := size / 8
	n := 1 + rng.IntN(room)
	disp := rng.IntN(room - n + 1)
	all := func() ([]byte, error) {
		b := make([]byte, size)
		a := Access{Result: Memory{Bytes: b}}
		place(&a, 0)
		_, err := m.GetAt(background, &a)
		return b, err
	}
	before, err := all()
	if err = firstOf(err, m.FlushAll(background)); err != nil {
		return err
	}
	a := Access{Layout: elems(rng, n, room-disp), Op: Op(rng.IntN(int(Ops))), Ticket: rng.IntN(3) == 0}
	user := make([]byte, 2*size)
	for i := 0; i < len(user); i += 8 {
		put(user[i:], rng.Int64N(1000)+1)
	}
	old := bytes.Clone(user)
	a.Src = Memory{user[:size], elems(rng, n, room)}
	a.Result = Memory{user[size:], elems(rng, n, room)}
	if a.Src.Layout == nil {
		a.Src.Bytes = user[:8*n]
	}
	if a.Result.Layout == nil {
		a.Result.Bytes = user[size:][:8*n]
	}
	place(&a, 8*disp)
	kind := rng.IntN(4)
	var q engine.Request
	switch kind {
	case 0:
		a.Result = Memory{}
		q, err = m.PutAt(background, &a)
	case 1:
		a.Src = Memory{}
		q, err = m.GetAt(background, &a)
	case 2:
		a.Result = Memory{}
		q, err = m.AccumulateAt(background, &a)
	default:
		q, err = m.GetAccumulateAt(background, &a)
	}
	if q != (engine.Request{}) {
		_, werr := q.Wait(background)
		err = firstOf(err, werr)
	}
	if err = firstOf(err, m.FlushAll(background)); err != nil {
		return fmt.Errorf("kind %d: %w", kind, err)
	}
	after, err := all()
	if err = firstOf(err, m.FlushAll(background)); err != nil {
		return err
	}
	want, wantUser := bytes.Clone(before), bytes.Clone(old)
	for i := range n {
		cell := want[8*disp+at(a.Layout, i):][:8]
		if kind == 1 || kind == 3 {
			copy(wantUser[size+at(a.Result.Layout, i):][:8], cell)
		}
		switch src := wantUser[at(a.Src.Layout, i):][:8]; {
		case kind == 0 || kind > 1 && a.Op == Replace:
			copy(cell, src)
		case kind > 1 && a.Op > NoOp:
			kernels(a.Op)(cell, src)
		}
	}
	what := fmt.Sprintf("kind %d, op %d, %d elements at %d of %d, ticket %v", kind, a.Op, n, disp, room, a.Ticket)
	if err := same(after, want); err != nil {
		return fmt.Errorf("target: %s: %w", what, err)
	}
	if err := same(user, wantUser); err != nil {
		return fmt.Errorf("origin: %s: %w", what, err)
	}
	return nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestLayouts does random operations with layouts over every method, on parts.
func TestLayouts(t *testing.T) {
	const size = 8 * 3000
	for _, n := range []int{1, 3} {
		everyFlavour(t, n, size, func(t *testing.T, ms []*member) {
			each(t, ms, func(m *member) error { return m.trials(10, size, nil) })
		})
	}
}

// trials does random operations on the memory of all ranks, one rank at a time. regions holds the
// region of each rank, or is nil for operations on parts.
func (m *member) trials(rounds, size int, regions []Region) error {
	rng := rand.New(rand.NewPCG(uint64(m.rank), uint64(m.size)))
	for range rounds {
		target := rng.IntN(m.size)
		if err := m.Lock(background, target, true); err != nil {
			return err
		}
		s := 8 * (1 + rng.IntN(size/8))
		var x *Remote
		if regions != nil {
			var err error
			if x, err = m.Lookup(&regions[target]); err != nil {
				return err
			}
		}
		err := m.trial(rng, s, func(a *Access, disp int) {
			a.Target, a.Disp, a.Region = target, disp, x
		})
		if err = firstOf(err, m.Unlock(background, target)); err != nil {
			return err
		}
	}
	return m.barrier() // without background progress, this rank serves the others only while it waits
}

// openDynamic opens dynamic windows on engines.
func openDynamic(t testing.TB, engines []*engine.Engine) []*member {
	cfg := ofInt64()
	cfg.Dynamic = true
	return openWindows(t, engines, 0, cfg)
}

// everyDynamic runs f over every fabric, with dynamic windows of n ranks. alloc returns memory of the
// engine's Alloc for every second call, and of Go's heap for the others.
func everyDynamic(t *testing.T, n int, f func(t *testing.T, ms []*member)) {
	for name, open := range flavours() {
		t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
			p, set := open()
			f(t, openDynamic(t, openEngines(t, n, p, set)))
		})
	}
}

// memory returns n bytes of Go's heap or, if spans is set, of the engine's Alloc.
func (m *member) memory(t testing.TB, n int, spans bool) []byte {
	if !spans {
		return alignedBytes(n)
	}
	s, err := m.e.Alloc(n)
	require.NoError(t, err)
	return s.Bytes()
}

// TestRegions does random operations on regions over every method, with memory of Go's heap and of
// Alloc. After Detach every operation returns ErrRange and changes nothing.
func TestRegions(t *testing.T) {
	const size = 8 * 2500
	for _, spans := range []bool{false, true} {
		for _, n := range []int{1, 3} {
			t.Run(fmt.Sprintf("spans %v", spans), func(t *testing.T) {
				everyDynamic(t, n, func(t *testing.T, ms []*member) {
					regions := make([]Region, n)
					mems := make([][]byte, n)
					for i, m := range ms {
						whole := m.memory(t, size+64, spans)
						mems[i] = whole[32:][:size]
						var err error
						regions[i], err = m.Attach(mems[i])
						require.NoError(t, err)
						require.Equal(t, i, regions[i].Rank())
						require.Equal(t, size, regions[i].Size())
					}
					each(t, ms, func(m *member) error { return m.trials(10, size, regions) })
					for i, m := range ms {
						require.NoError(t, m.Detach(&regions[i]))
						require.ErrorIs(t, m.Detach(&regions[i]), ErrAttach)
					}
					each(t, ms, func(m *member) error {
						return firstOf(m.stale(&regions[(m.rank+1)%n], mems[(m.rank+1)%n]), m.barrier())
					})
				})
			})
		}
	}
}

// stale checks that operations on a detached region of memory mem fail, and that later operations of
// the window work.
func (m *member) stale(r *Region, mem []byte) error {
	x, err := m.Lookup(r)
	if err != nil {
		return err
	}
	want := bytes.Clone(mem)
	data, got := make([]byte, 64), make([]byte, 64)
	strided := layout.Scale(8, layout.Vector(8, 1, 3, layout.Bytes(1)))
	for i := range 10 {
		a := Access{Region: x, Disp: 8, Src: Memory{Bytes: data}, Op: Sum, Ticket: i < 5}
		if i%2 == 1 {
			a.Layout = &strided
		}
		var q engine.Request
		if err := m.Lock(background, r.Rank(), false); err != nil {
			return err
		}
		switch i % 5 {
		case 0:
			q, err = m.PutAt(background, &a)
		case 1:
			a.Src, a.Result = Memory{}, Memory{Bytes: got}
			q, err = m.GetAt(background, &a)
		case 2:
			q, err = m.AccumulateAt(background, &a)
		case 3:
			a.Result = Memory{Bytes: got}
			q, err = m.GetAccumulateAt(background, &a)
		default:
			a.Layout = nil
			a.Src.Bytes, a.Compare, a.Result.Bytes = data[:8], data[:8], got[:8]
			q, err = m.CompareSwapAt(background, &a)
		}
		if q != (engine.Request{}) {
			_, err = q.Wait(background)
		}
		if uerr := m.Unlock(background, int(r.rank)); err == nil {
			err = uerr
		}
		if err := wantErr(err, ErrRange); err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
	}
	if err := same(mem, want); err != nil {
		return err
	}
	return same(got, make([]byte, 64))
}

// TestBadRegions: a region that is damaged, of another window, or too small is an error.
func TestBadRegions(t *testing.T) {
	everyDynamic(t, 2, func(t *testing.T, ms []*member) {
		mem := make([]byte, 128)
		good, err := ms[0].Attach(mem[:64])
		require.NoError(t, err)
		require.ErrorIs(t, value(ms[0].Attach(mem[56:80])), ErrAttach)
		require.ErrorIs(t, value(ms[0].Attach(mem)), ErrAttach)
		require.ErrorIs(t, value(ms[0].Attach(mem[8:16])), ErrAttach)
		if ofInt64().Align > 1 {
			require.ErrorIs(t, value(ms[0].Attach(mem[65:73])), ErrAttach)
		}
		next, err := ms[0].Attach(mem[64:])
		require.NoError(t, err)
		empty, err := ms[0].Attach(nil)
		require.NoError(t, err)
		require.ErrorIs(t, ms[1].Detach(&good), ErrAttach)
		require.NoError(t, ms[0].Detach(&next))
		again, err := ms[0].Attach(mem[64:])
		require.NoError(t, err)
		require.Equal(t, next.slot(), again.slot())
		require.NotEqual(t, next.id, again.id)

		ones := bytes.Repeat([]byte{1}, 80)
		put := func(m *member, r Region, disp, n int) error {
			if err := m.Lock(background, 0, true); err != nil {
				return err
			}
			x, err := m.Lookup(&r)
			if err == nil {
				_, err = m.PutAt(background, &Access{Region: x, Disp: disp, Src: Memory{Bytes: ones[:n]}})
			}
			return firstOf(err, m.Unlock(background, 0))
		}
		bad := []Region{next, {}, good, good, good, good, good, good}
		bad[2].id += maxRegions
		bad[3].size++
		bad[4].rank = 1
		bad[5].rank = 1 << 31
		bad[6].keys[0].Base++
		bad[7].seal ^= 1
		each(t, ms, func(m *member) error {
			for i, r := range bad {
				if err := wantErr(put(m, r, 0, 8), ErrRange); err != nil {
					return fmt.Errorf("region %d: %w", i, err)
				}
			}
			return firstOf(wantErr(put(m, good, 0, 72), ErrRange), wantErr(put(m, good, 60, 8), ErrRange),
				wantErr(put(m, good, -1, 8), ErrRange), wantErr(put(m, empty, 0, 1), ErrRange), put(m, empty, 0, 0),
				wantErr(m.Put(background, 0, 0, []byte{1}), ErrRange), m.barrier(), m.check(mem, make([]byte, 128)), m.barrier())
		})
		want := make([]byte, 128)
		copy(want, ones[:64])
		copy(want[72:], ones[:8])
		each(t, ms, func(m *member) error {
			var err error
			if m.rank == 1 {
				err = firstOf(put(m, good, 0, 64), put(m, again, 8, 8))
			}
			return firstOf(err, m.barrier(), m.check(mem, want))
		})
	})
	shared, set := flavours()["shared"]()
	m := openWindows(t, openEngines(t, 1, shared, set), 64, ofInt64())
	require.ErrorIs(t, value(m[0].Attach(make([]byte, 8))), ErrAttach)
}

// check compares memory of rank 0, on rank 0.
func (m *member) check(mem, want []byte) error {
	if m.rank != 0 {
		return nil
	}
	return firstOf(m.Sync(), same(mem, want))
}

// TestRegionsComeAndGo attaches and detaches while another rank uses other regions.
func TestRegionsComeAndGo(t *testing.T) {
	everyDynamic(t, 2, func(t *testing.T, ms []*member) {
		var fixed [2]Region
		mem := [2][]byte{ms[0].memory(t, 800, true), ms[1].memory(t, 800, false)}
		for i, m := range ms {
			var err error
			fixed[i], err = m.Attach(mem[i])
			require.NoError(t, err)
		}
		each(t, ms, func(m *member) error {
			if err := m.LockAll(background); err != nil {
				return err
			}
			one := word(1)
			x, err := m.Lookup(&fixed[1-m.rank])
			if err != nil {
				return err
			}
			for i := range 100 {
				r, err := m.Attach(make([]byte, 8*(1+i%7)))
				if err != nil {
					return err
				}
				_, err = m.AccumulateAt(background, &Access{Region: x, Disp: 8 * i, Src: Memory{Bytes: one}, Op: Sum})
				if err = firstOf(err, m.Detach(&r)); err != nil {
					return err
				}
			}
			return firstOf(m.UnlockAll(background), m.barrier())
		})
		for i := range mem {
			for at := 0; at < 800; at += 8 {
				require.EqualValues(t, 1, get(mem[i][at:]))
			}
			require.Len(t, ms[i].attached.slots, 2)
		}
	})
}

// TestLayoutsUnderFaults repeats the random operations over a fabric that delays and splits at random.
func TestLayoutsUnderFaults(t *testing.T) {
	for _, flavour := range []string{"rma", "messages", "native", "small messages"} {
		t.Run(flavour, func(t *testing.T) {
			p, set := flavours()[flavour]()
			ms := openDynamic(t, openEngines(t, 2, fault.Wrap(p, fault.Legal(5)), set))
			regions := make([]Region, 2)
			for i, m := range ms {
				var err error
				regions[i], err = m.Attach(alignedBytes(8 * 500))
				require.NoError(t, err)
			}
			each(t, ms, func(m *member) error { return m.trials(20, 8*500, regions) })
		})
	}
}
