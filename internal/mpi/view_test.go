package mpi_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// shape is a layout and the indices of its elements, in their order.
type shape struct {
	name    string
	layout  comm.Layout
	indices []int
}

// shapes returns layouts of about n elements, and the indices of their elements, which a separate
// loop computes for each layout.
func shapes(n int) []shape {
	var column, blocks, indexed, face, transposed, cyclic []int
	for i := range n {
		column = append(column, 3+5*i)
	}
	rows := n/3 + 1
	for i := range rows {
		for j := range 3 {
			blocks = append(blocks, 7*i+j)
		}
	}
	offs, lengths := []int{9 * n, 0, 4 * n}, []int{n / 2, 1, n / 3}
	for i, off := range offs {
		for j := range lengths[i] {
			indexed = append(indexed, off+j)
		}
	}
	side := int(math.Sqrt(float64(n))) + 1
	for x := range side {
		for z := range side {
			face = append(face, (x*(side+1)+1)*(side+2)+z+2)
		}
	}
	for j := range 4 {
		for i := range rows {
			transposed = append(transposed, i*4+j)
		}
	}
	for i := range n {
		if i/2%3 == 1 {
			cyclic = append(cyclic, i)
		}
	}
	return []shape{
		{"contiguous", comm.Contiguous(n).Shift(2), seq(2, n)},
		{"column", comm.Vector(n, 1, 5).Shift(3), column},
		{"blocks", comm.Vector(rows, 3, 7), blocks},
		{"indexed", comm.Indexed(lengths, offs), indexed},
		{"face", comm.Subarray([]int{side, side + 1, side + 2}, []int{side, 1, side}, []int{0, 1, 2}), face},
		{"transposed", comm.Vector(rows, 1, 4).Resized(0, 1).Repeat(4), transposed},
		{"cyclic", comm.Darray(comm.Dim{Size: n, Dist: comm.Cyclic, Block: 2, Ranks: 3, Coord: 1}), cyclic},
		{"nothing", comm.Vector(0, 1, 1), nil},
	}
}

func seq(from, n int) (s []int) {
	for i := range n {
		s = append(s, from+i)
	}
	return s
}

// point is an element of 24 bytes. The length of a segment is not a multiple of 24.
type point struct {
	x, y float64
	id   int32
}

// memory returns a slice that is long enough for the shape. All its elements are zero.
func (s *shape) memory() []point {
	_, high := s.layout.Span()
	return make([]point, high+1)
}

func element(rank, i int) point { return point{float64(i), float64(-rank), int32(i * 3)} }

// fill returns memory in which the i-th element of the layout is element(rank, i).
func (s *shape) fill(rank int) []point {
	mem := s.memory()
	for i, at := range s.indices {
		mem[at] = element(rank, i)
	}
	return mem
}

// TestViews sends views along a ring. The receiver uses a slice or another layout.
func TestViews(t *testing.T) {
	overFabrics(t, []int{1, 2, 3}, func(c *comm.Comm) error {
		next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
		for _, n := range []int{1, 40, 4000} {
			for _, s := range shapes(n) {
				mem := s.fill(c.Rank())
				v := comm.Of(mem, s.layout)
				if v.Len() != len(s.indices) || v.Err() != nil {
					return fmt.Errorf("%s: %d elements, not %d: %w", s.name, v.Len(), len(s.indices), v.Err())
				}
				flat, again := make([]point, v.Len()), s.memory()
				r := comm.Irecv(c, flat, prev, n)
				if err := v.Send(c, next, n); err != nil {
					return err
				}
				if st, err := r.Wait(); err != nil || st.Count != v.Len() {
					return fmt.Errorf("%s: %+v: %w", s.name, st, err)
				}
				want := make([]point, v.Len())
				for i := range want {
					want[i] = element(prev, i)
				}
				if err := same(s.name, flat, want); err != nil {
					return err
				}
				// Send from a slice to a view, and from a view to a view.
				r = comm.Of(again, s.layout).Irecv(c, next, n)
				q := comm.Isend(c, flat, prev, n)
				if err := comm.WaitAll([]comm.Request{r, q}); err != nil {
					return err
				}
				if err := same(s.name, again, mem); err != nil {
					return err
				}
				st, err := comm.SendrecvView(c, v, prev, n, comm.Of(again, s.layout), next, n)
				if err != nil || st.Count != v.Len() {
					return fmt.Errorf("%s: %+v: %w", s.name, st, err)
				}
				if err := same(s.name, again, s.fill(next)); err != nil {
					return err
				}
				if err := v.Bsend(c, next, n); err != nil {
					return err
				}
				m, _, err := c.Mprobe(prev, n)
				if err != nil {
					return err
				}
				if _, err := comm.Of(again, s.layout).Mrecv(m); err != nil {
					return err
				}
				if err := same(s.name, again, s.fill(prev)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// block returns the layout of the block with the coordinates i and j of a matrix of n × n blocks. A
// block has 3 × 5 elements.
func block(i, j, n int) comm.Layout {
	return comm.Subarray([]int{3 * n, 5 * n}, []int{3, 5}, []int{3 * i, 5 * j})
}

// cellOf returns the value of element k of the block that rank sends to peer.
func cellOf(rank, peer, k int) int64 { return int64(rank)<<32 | int64(peer)<<16 | int64(k) }

// cells returns the elements of the block that rank sends to peer.
func cells(rank, peer int) (s []int64) {
	for k := range 15 {
		s = append(s, cellOf(rank, peer, k))
	}
	return s
}

// blocksOf returns a matrix, and the blocks in its row at as views. If column is true, the blocks
// are those in column at.
func blocksOf(n, at int, column bool) (mem []int64, views []comm.View[int64]) {
	mem = make([]int64, 15*n*n)
	for r := range n {
		l := block(at, r, n)
		if column {
			l = block(r, at, n)
		}
		views = append(views, comm.Of(mem, l))
	}
	return mem, views
}

// holds returns an error if a view does not have these elements.
func holds(what string, v comm.View[int64], want []int64) error {
	got := make([]int64, v.Len())
	if _, err := comm.Pack(got, v); err != nil {
		return err
	}
	return same(what, got, want)
}

// TestLayoutsOfLayouts compares the layouts that other layouts are made of with lists of indices, and
// checks their lengths, extents and spans.
func TestLayoutsOfLayouts(t *testing.T) {
	pair := comm.Indexed([]int{1, 1}, []int{1, 3}) // elements 1 and 3; the extent is 1 to 4
	for name, x := range map[string]struct {
		layout        comm.Layout
		indices       []int
		lower, extent int
	}{
		"pair":     {pair, []int{1, 3}, 1, 3},
		"strided":  {pair.Strided(3, 5), []int{1, 3, 6, 8, 11, 13}, 1, 13},
		"backward": {pair.Shift(10).Strided(2, -7), []int{11, 13, 4, 6}, 4, 10},
		"repeated": {pair.Repeat(2), []int{1, 3, 4, 6}, 1, 6},
		"resized":  {pair.Resized(0, 6).Repeat(2), []int{1, 3, 7, 9}, 0, 12},
		"combined": {comm.Combine([]int{8, 0}, []comm.Layout{comm.Contiguous(2), pair}), []int{8, 9, 1, 3}, 1, 9},
		"nested": {
			comm.Combine([]int{0, 20}, []comm.Layout{pair.Strided(2, 4), comm.Vector(2, 2, 3)}),
			[]int{1, 3, 5, 7, 20, 21, 23, 24}, 1, 24,
		},
		"reversed": {comm.Contiguous(2).Shift(8).Resized(0, -3).Repeat(3), []int{8, 9, 5, 6, 2, 3}, -6, 3},
		"none":     {comm.Combine(nil, nil), nil, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, x.layout.Err())
			require.Equal(t, len(x.indices), x.layout.Len())
			lower, extent := x.layout.Extent()
			require.Equal(t, [2]int{x.lower, x.extent}, [2]int{lower, extent})
			low, high := x.layout.Span()
			if len(x.indices) > 0 {
				require.Equal(t, [2]int{slices.Min(x.indices), slices.Max(x.indices) + 1}, [2]int{low, high})
			}
			mem, got := make([]int, 30), make([]int, len(x.indices))
			for i := range mem {
				mem[i] = i
			}
			n, err := comm.Pack(got, comm.Of(mem, x.layout))
			require.NoError(t, err)
			require.Equal(t, len(x.indices), n)
			require.Equal(t, append([]int{}, x.indices...), got)
		})
	}
	for _, wrong := range []comm.Layout{
		comm.Combine([]int{1}, nil), pair.Strided(-1, 2), comm.Combine([]int{0}, []comm.Layout{comm.Contiguous(-1)}),
	} {
		require.ErrorIs(t, wrong.Err(), comm.ErrLayout)
		require.Zero(t, wrong.Len())
	}
}

// TestCollectivesOfViews checks the collectives with a view for each rank. Half of the ranks call
// the collectives with counts instead.
func TestCollectivesOfViews(t *testing.T) {
	overFabrics(t, []int{1, 3, 4}, func(c *comm.Comm) error {
		me, n := c.Rank(), c.Size()
		counts := make([]int, n)
		for i := range counts {
			counts[i] = 15
		}
		for root := range n {
			// Bcast: ranks with a column, and ranks with a slice.
			mem := make([]int64, 60)
			v := comm.Of(mem, comm.Vector(15, 1, 4))
			if me == root {
				if _, err := comm.Unpack(v, cells(root, 0)); err != nil {
					return err
				}
			}
			if me%2 == 1 {
				if err := v.Bcast(c, root); err != nil {
					return err
				}
				if err := holds("Bcast", v, cells(root, 0)); err != nil {
					return err
				}
			} else {
				flat := cells(root, 0)
				if me != root {
					clear(flat)
				}
				if err := comm.Bcast(c, flat, root); err != nil {
					return err
				}
				if err := same("Bcast", flat, cells(root, 0)); err != nil {
					return err
				}
			}

			_, in := blocksOf(n, root, true)
			if me == root {
				err := comm.GatherView(c, comm.Of(cells(me, root), comm.Contiguous(15)), in, root)
				if err != nil {
					return err
				}
				for r := range n {
					if err := holds("GatherView", in[r], cells(r, root)); err != nil {
						return err
					}
				}
				for r := range n {
					_, _ = comm.Unpack(in[r], cells(root, r))
				}
				if err := comm.ScatterView(c, in, comm.Of(mem, comm.Vector(15, 1, 4)), root); err != nil {
					return err
				}
			} else {
				if err := comm.Gatherv(c, cells(me, root), nil, nil, nil, root); err != nil {
					return err
				}
				if err := comm.ScatterView(c, nil, comm.Of(mem, comm.Vector(15, 1, 4)), root); err != nil {
					return err
				}
			}
			if err := holds("ScatterView", comm.Of(mem, comm.Vector(15, 1, 4)), cells(root, me)); err != nil {
				return err
			}
		}

		_, in := blocksOf(n, me, false)
		if err := comm.AllgatherView(c, comm.Of(cells(me, 0), comm.Contiguous(15)), in); err != nil {
			return err
		}
		for r := range n {
			if err := holds("AllgatherView", in[r], cells(r, 0)); err != nil {
				return err
			}
		}

		// A row of blocks becomes a column of blocks, in the same matrix.
		all, out := blocksOf(n, me, false)
		for r := range n {
			_, _ = comm.Unpack(out[r], cells(me, r))
		}
		for r := range n {
			in[r] = comm.Of(all, block(r, me, n))
		}
		var err error
		if me%2 == 0 {
			_, err = comm.IalltoallView(c, out, in).Wait()
		} else {
			err = comm.AlltoallView(c, out, in)
		}
		if err != nil {
			return err
		}
		for r := range n {
			if err := holds("AlltoallView", in[r], cells(r, me)); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestWrongViews: a view that is wrong makes the call fail on this rank, and a collective on all
// ranks.
func TestWrongViews(t *testing.T) {
	buf := make([]int64, 10)
	text := make([]string, 10)
	zero := comm.View[int64]{}
	for name, test := range map[string]struct {
		call func(c *comm.Comm) error
		want error
		text string
	}{
		"negative count": {func(c *comm.Comm) error { return comm.Of(buf, comm.Vector(-1, 1, 1)).Send(c, 0, 0) }, comm.ErrLayout, "a count of -1"},
		"from a wrong one": {func(c *comm.Comm) error {
			return comm.Of(buf, comm.Vector(-1, 1, 1).Shift(1).Repeat(2).Resized(0, 1)).Send(c, 0, 0)
		}, comm.ErrLayout, "a count of -1"},
		"behind the slice": {func(c *comm.Comm) error { return comm.Of(buf, comm.Vector(3, 1, 5)).Send(c, 0, 0) }, comm.ErrCount,
			"the layout uses the elements 0 to 10, and the slice has 10"},
		"before the slice": {func(c *comm.Comm) error {
			_, err := comm.Of(buf, comm.Vector(3, 1, 2).Shift(-1)).Recv(c, 0, 0)
			return err
		}, comm.ErrCount, "the layout uses the elements -1 to 3, and the slice has 10"},
		"zero view":       {func(c *comm.Comm) error { _, err := zero.Irecv(c, 0, 0).Wait(); return err }, comm.ErrType, "the view is zero"},
		"pointers":        {func(c *comm.Comm) error { return comm.Of(text, comm.Vector(3, 1, 2)).Ssend(c, 0, 0) }, comm.ErrType, "string holds pointers"},
		"Pack of nothing": {func(*comm.Comm) error { _, err := comm.Pack(buf, zero); return err }, comm.ErrType, "the view is zero"},
		"Pack too short": {func(*comm.Comm) error {
			n, err := comm.Pack(make([]int64, 2), comm.Of(buf, comm.Vector(3, 1, 2)))
			if n != 2 {
				return fmt.Errorf("%d elements", n)
			}
			return err
		}, comm.ErrTruncate, ""},
		"Unpack too long": {func(*comm.Comm) error {
			n, err := comm.Unpack(comm.Of(buf, comm.Vector(3, 1, 2)), buf)
			if n != 3 {
				return fmt.Errorf("%d elements", n)
			}
			return err
		}, comm.ErrTruncate, ""},
		"views and ranks": {func(c *comm.Comm) error { return comm.AlltoallView(c, []comm.View[int64]{}, nil) }, comm.ErrCount, "0 views in recv and 1 ranks"},
		"zero view of one": {func(c *comm.Comm) error {
			return comm.AlltoallView(c, make([]comm.View[int64], 1), make([]comm.View[int64], 1))
		}, comm.ErrType, "recv[0]: "},
		"own part": {func(c *comm.Comm) error {
			return comm.GatherView(c, comm.Of(buf, comm.Vector(2, 1, 2)), []comm.View[int64]{comm.Of(buf, comm.Vector(3, 1, 2))}, 0)
		}, comm.ErrCount, "send has 2 elements, not 3"},
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 1, func(c *comm.Comm) error {
				d, err := c.Dup()
				require.NoError(t, err)
				err = test.call(d)
				require.ErrorIs(t, err, test.want)
				require.ErrorContains(t, err, test.text)
				return nil
			})
		})
	}
	t.Run("elements of size 0", func(t *testing.T) {
		ranks(t, 1, func(c *comm.Comm) error {
			v := comm.Of(make([]struct{}, 10), comm.Vector(2, 1, 3))
			require.NoError(t, v.Bsend(c, 0, 1))
			_, err := v.Recv(c, 0, 1)
			return err
		})
	})
	t.Run("elements of size 0 that repeat", func(t *testing.T) {
		ranks(t, 1, func(c *comm.Comm) error {
			var v comm.View[struct{}]
			require.NotPanics(t, func() { v = comm.Of(make([]struct{}, 1), comm.Vector(3, 1, 0)) })
			require.NoError(t, v.Bsend(c, 0, 1))
			_, err := v.Recv(c, 0, 1)
			return err
		})
	})
	t.Run("other counts", func(t *testing.T) {
		ranks(t, 2, func(c *comm.Comm) error {
			d, err := c.Dup()
			require.NoError(t, err)
			l := comm.Vector(2+d.Rank(), 1, 2)
			require.Error(t, comm.Of(make([]int64, 10), l).Bcast(d, 0))
			return nil
		})
	})
	t.Run("other types", func(t *testing.T) {
		ranks(t, 2, func(c *comm.Comm) error {
			if c.Rank() == 0 {
				return comm.Of(buf, comm.Vector(3, 1, 2)).Send(c, 1, 0)
			}
			_, err := comm.Of(make([]float64, 10), comm.Vector(3, 1, 2)).Recv(c, 0, 0)
			require.ErrorIs(t, err, comm.ErrMismatch)
			return nil
		})
	})
}

// TestCheckOfViews: with the tunable check, columns of one matrix may be in flight at the same
// time, but views with a common element may not. The change of an element in flight is an error.
// The change of an element between such elements is not.
func TestCheckOfViews(t *testing.T) {
	ranks(t, 1, func(c *comm.Comm) error {
		m := make([]int64, 100)
		column := func(j int) comm.View[int64] { return comm.Of(m, comm.Vector(10, 1, 10).Shift(j)) }
		a, b := column(0).Irecv(c, 0, 0), column(1).Irecv(c, 0, 1)
		row := comm.Of(m, comm.Contiguous(10)).Irecv(c, 0, 2)
		_, err := row.Wait()
		require.ErrorIs(t, err, comm.ErrInUse)
		s := column(5).Isend(c, 0, 0)
		m[6] = 1
		require.NoError(t, column(6).Send(c, 0, 1))
		require.NoError(t, comm.WaitAll([]comm.Request{a, b, s}))
		require.EqualValues(t, 1, m[1])

		r := column(1).Irecv(c, 0, 1)
		s = column(5).Isend(c, 0, 1)
		m[95]++
		_, err = s.Wait()
		require.ErrorIs(t, err, comm.ErrInUse)
		_, err = r.Wait()
		require.NoError(t, err)
		return nil
	}, commtest.WithParam("check", "true"))
}
