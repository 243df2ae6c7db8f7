package mpi_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// TestAttributes checks which communicators have an attribute, and the calls of OnDup and OnFree.
func TestAttributes(t *testing.T) {
	var mu sync.Mutex
	var finalized []string // values that Finalize has freed
	last := comm.NewKey(comm.OnFree(func(v string) {
		mu.Lock()
		finalized = append(finalized, v)
		mu.Unlock()
	}))
	ranks(t, 2, func(c *comm.Comm) error {
		var freed []int
		plain := comm.NewKey[string]()
		counted := comm.NewKey(
			comm.OnDup(func(n int) (int, bool) { return n + 1, n < 2 }),
			comm.OnFree(func(n int) { freed = append(freed, n) }))
		_, ok := plain.Get(c)
		require.False(t, ok)
		require.NoError(t, plain.Set(c, "here"))
		require.NoError(t, counted.Set(c, 9))
		require.NoError(t, counted.Set(c, 0))
		require.Equal(t, []int{9}, freed)
		v, ok := plain.Get(c.WithContext(t.Context()))
		require.True(t, ok)
		require.Equal(t, "here", v)

		d, err := c.Dup()
		require.NoError(t, err)
		_, ok = plain.Get(d)
		require.False(t, ok)
		n, ok := counted.Get(d)
		require.True(t, ok)
		require.Equal(t, 1, n)
		e, r := d.Idup()
		_, err = r.Wait()
		require.NoError(t, err)
		n, _ = counted.Get(e)
		require.Equal(t, 2, n)
		f, err := e.DupWith()
		require.NoError(t, err)
		_, ok = counted.Get(f)
		require.False(t, ok) // OnDup returns false for 2
		s, err := e.Split(0, 0)
		require.NoError(t, err)
		_, ok = counted.Get(s)
		require.False(t, ok)
		for _, x := range []*comm.Comm{s, f, e, d} {
			require.NoError(t, x.Free())
		}
		require.Equal(t, []int{9, 2, 1}, freed)
		require.NoError(t, counted.Delete(c))
		require.Equal(t, []int{9, 2, 1, 0}, freed)
		require.ErrorIs(t, counted.Delete(c), comm.ErrArg)
		require.ErrorIs(t, counted.Set(d, 1), comm.ErrClosed)
		require.ErrorIs(t, comm.Key[int]{}.Set(c, 1), comm.ErrArg)
		require.ErrorIs(t, counted.Set(nil, 1), comm.ErrClosed)
		_, ok = counted.Get((*comm.Comm)(nil))
		require.False(t, ok)

		empty := comm.NewKey(comm.OnFree(func(e error) { require.NoError(t, e) }))
		require.NoError(t, empty.Set(c, nil))
		e2, ok := empty.Get(c)
		require.True(t, ok && e2 == nil)
		require.NoError(t, empty.Delete(c))

		w, err := comm.NewWin[int32](c, 4)
		require.NoError(t, err)
		require.NoError(t, counted.Set(w, 5))
		n, ok = counted.Get(w)
		require.True(t, ok)
		require.Equal(t, 5, n)
		require.NoError(t, w.Free())
		require.Equal(t, 5, freed[len(freed)-1])

		first := comm.NewKey(comm.OnFree(func(string) {
			mu.Lock()
			finalized = append(finalized, "first")
			mu.Unlock()
		}))
		if c.Rank() == 0 {
			require.NoError(t, first.Set(c, ""))
			require.NoError(t, last.Set(c, "last"))
		}
		return nil
	})
	require.Equal(t, []string{"last", "first"}, finalized)
}

// TestFreeOrder: Free calls the functions of OnFree in the reverse order of the last calls of Set.
func TestFreeOrder(t *testing.T) {
	ranks(t, 1, func(c *comm.Comm) error {
		var freed []string
		free := comm.OnFree(func(v string) { freed = append(freed, v) })
		a, b := comm.NewKey(free), comm.NewKey(free)
		d, err := c.Dup()
		require.NoError(t, err)
		require.NoError(t, a.Set(d, "a"))
		require.NoError(t, b.Set(d, "b"))
		require.NoError(t, a.Set(d, "a again"))
		require.NoError(t, d.Free())
		require.Equal(t, []string{"a", "a again", "b"}, freed)
		return nil
	})
}

// TestNamesAndHints checks names, which stand in errors, and hints, which exclude wildcards.
func TestNamesAndHints(t *testing.T) {
	ranks(t, 3, func(c *comm.Comm) error {
		require.Equal(t, "world", c.Name())
		d, err := c.DupWith(comm.NoAnySource, comm.ExactLength)
		require.NoError(t, err)
		require.Regexp(t, `^comm 0\.\d+$`, d.Name())
		d.SetName("halo")
		require.Equal(t, "halo", d.Name())
		require.ErrorContains(t, comm.Send(d, []int{1}, 7, 0), "halo")
		require.Empty(t, c.Hints())
		require.Equal(t, []comm.Hint{comm.NoAnySource, comm.ExactLength}, d.Hints())
		e, err := d.Dup()
		require.NoError(t, err)
		require.Equal(t, d.Hints(), e.Hints())
		require.NotEqual(t, "halo", e.Name())
		_, err = comm.Recv(e, []int{0}, comm.AnySource, 0)
		require.ErrorIs(t, err, comm.ErrArg)
		_, _, err = e.Iprobe(comm.AnySource, 0)
		require.ErrorIs(t, err, comm.ErrArg)
		_, _, err = e.Iprobe(0, comm.AnyTag)
		require.NoError(t, err)
		f, err := e.DupWith(comm.NoAnyTag)
		require.NoError(t, err)
		_, _, err = f.Iprobe(0, comm.AnyTag)
		require.ErrorIs(t, err, comm.ErrArg)
		_, _, err = f.Iprobe(comm.AnySource, 0)
		require.NoError(t, err)
		for _, x := range []*comm.Comm{f, e, d} {
			require.NoError(t, x.Free())
		}
		g, err := c.Dup()
		require.NoError(t, err)
		_, err = g.DupWith(comm.Hint(64))
		require.Error(t, err) // ErrArg, or ErrRevoked after the other rank's ErrArg
		var nobody *comm.Comm
		nobody.SetName("x")
		require.Empty(t, nobody.Name())
		require.Nil(t, nobody.Hints())
		return nil
	})
}

// TestIdup checks that duplicates work after their requests are complete, also several at the same
// time, and not before.
func TestIdup(t *testing.T) {
	overFabrics(t, []int{1, 3}, func(c *comm.Comm) error {
		var dups []*comm.Comm
		var rs []comm.Request
		for range 5 {
			d, r := c.Idup()
			dups, rs = append(dups, d), append(rs, r)
		}
		for _, r := range rs {
			if _, err := r.Wait(); err != nil {
				return err
			}
		}
		for _, d := range dups {
			if d.Compare(c) != comm.Congruent {
				return errors.New("the duplicate is not congruent")
			}
			if err := first(barrierOf(d, c.Size()), d.Free()); err != nil {
				return err
			}
		}
		return nil
	})
	ranks(t, 2, func(c *comm.Comm) error {
		d, err := c.Dup()
		require.NoError(t, err)
		require.NoError(t, d.Revoke())
		e, r := d.Idup()
		_, err = r.Wait()
		require.ErrorIs(t, err, comm.ErrRevoked)
		require.ErrorIs(t, comm.Send(e, []int{1}, 0, 0), comm.ErrClosed)
		return nil
	})
}

// TestCompare compares communicators.
func TestCompare(t *testing.T) {
	ranks(t, 3, func(c *comm.Comm) error {
		d, err := c.Dup()
		require.NoError(t, err)
		reversed, err := c.Split(0, -c.Rank())
		require.NoError(t, err)
		self, err := c.Self()
		require.NoError(t, err)
		require.Equal(t, 1, self.Size())
		require.NoError(t, barrierOf(self, 1))
		var nobody *comm.Comm
		for _, x := range []struct {
			a, b *comm.Comm
			want comm.Comparison
		}{
			{c, c, comm.Ident}, {c, c.WithContext(t.Context()), comm.Ident}, {c, d, comm.Congruent}, {d, reversed, comm.Similar},
			{c, self, comm.Unequal}, {nobody, nobody, comm.Ident}, {nobody, c, comm.Unequal}, {c, nobody, comm.Unequal},
		} {
			require.Equal(t, x.want, x.a.Compare(x.b))
		}
		require.Equal(t, "congruent", comm.Congruent.String())
		return first(self.Free(), reversed.Free(), d.Free())
	})
}

// TestSplitHardware splits communicators by host, and into hardware that a rank of a test shares
// with all others, because the ranks are goroutines of one process.
func TestSplitHardware(t *testing.T) {
	ranks(t, 5, func(c *comm.Comm) error {
		h, err := c.SplitHardware(comm.Host, -c.Rank())
		require.NoError(t, err)
		require.Equal(t, []int{3, 2, 3, 2, 3}[c.Rank()], h.Size())
		require.Equal(t, h.Size()-1-c.Rank()/2, h.Rank())
		n, err := c.SplitHardware(comm.Narrower, 0) // the hosts differ
		require.NoError(t, err)
		require.Equal(t, h.Size(), n.Size())
		none, err := h.SplitHardware(comm.Narrower, 0) // the ranks are goroutines of one process
		require.NoError(t, err)
		require.Nil(t, none)
		for kind := comm.Package; kind <= comm.Core; kind++ {
			p, err := h.SplitHardware(kind, 0)
			require.NoError(t, err)
			if p != nil { // the process is bound to one piece of hardware of this kind
				require.Equal(t, h.Size(), p.Size())
				require.NoError(t, p.Free())
			}
		}
		require.NoError(t, first(n.Free(), h.Free()))
		d, err := c.Dup()
		require.NoError(t, err)
		_, err = d.SplitHardware(comm.Core+1, 0)
		require.Error(t, err)
		return nil
	}, commtest.WithNodes(0, 1, 0, 1, 0))
}
