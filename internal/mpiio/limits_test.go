package mpiio_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/comm/pio"
)

// TestHighestOffsets writes near the highest offset that an int64 has. The call must return the error
// of the system.
func TestHighestOffsets(t *testing.T) {
	for _, nodes := range []string{"1", "2"} {
		name := filepath.Join(t.TempDir(), "file")
		commtest.Run(t, 2, func(c *comm.Comm) error {
			return withFile(c, name, func(f *pio.File) error {
				v, err := pio.NewView[byte](f, 0, comm.Contiguous(1))
				if err != nil {
					return err
				}
				if _, err := pio.WriteAtAll(v, make([]byte, 100), math.MaxInt64-200_000); err == nil {
					return errors.New("WriteAtAll returns no error")
				}
				n, err := pio.ReadAtAll(v, make([]byte, 100), math.MaxInt64-200_000)
				if n != 0 || err != nil {
					return fmt.Errorf("%d, %w", n, err)
				}
				return nil
			}, pio.Hint{Key: "romio_cb_write", Value: "enable"}, pio.Hint{Key: "cb_nodes", Value: nodes})
		})
	}
}

// TestPointerOfRefusedCalls: a call at the file pointer of the rank that returns an error for its
// arguments leaves the pointer where it is.
func TestPointerOfRefusedCalls(t *testing.T) {
	five := make([]byte, 5)
	wait := func(r comm.Request) error { _, err := r.Wait(); return err }
	value := func(_ int, err error) error { return err }
	for _, x := range []struct {
		at   int64
		mem  comm.View[byte]
		want error
	}{
		{math.MaxInt64 - 2, comm.Of(five, comm.Contiguous(5)), comm.ErrArg}, // leaves the file
		{5, comm.Of(five[:4], comm.Contiguous(5)), comm.ErrCount},           // leaves the memory
		{5, comm.Of(five, comm.Contiguous(-5)), comm.ErrLayout},
	} {
		overFabrics(t, []int{1, 3}, func(c *comm.Comm, name string) error {
			return withFile(c, name, func(f *pio.File) error {
				v, err := pio.NewView[byte](f, 0, comm.Contiguous(1))
				if err != nil {
					return err
				}
				if _, err := v.Seek(x.at, io.SeekStart); err != nil {
					return err
				}
				for i, call := range []func() error{ // the same order on all ranks
					func() error { return value(pio.Write(v, x.mem)) }, func() error { return wait(pio.Iwrite(v, x.mem)) },
					func() error { return value(pio.Read(v, x.mem)) }, func() error { return wait(pio.Iread(v, x.mem)) },
					func() error { return value(pio.WriteAll(v, x.mem)) }, func() error { return wait(pio.IwriteAll(v, x.mem)) },
					func() error { return value(pio.ReadAll(v, x.mem)) }, func() error { return wait(pio.IreadAll(v, x.mem)) },
					func() error { return errors.Join(pio.WriteAllBegin(v, x.mem), value(pio.WriteAllEnd(v))) },
				} {
					if err := is(call(), x.want); err != nil {
						return fmt.Errorf("call %d: %w", i, err)
					}
					if v.Position() != x.at {
						return fmt.Errorf("after call %d the pointer is %d instead of %d", i, v.Position(), x.at)
					}
				}
				return nil
			})
		})
	}
}

// TestTooWideView makes a view whose first and last byte are further apart than an int64 can count.
func TestTooWideView(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	commtest.Run(t, 2, func(c *comm.Comm) error {
		return withFile(c, name, func(f *pio.File) error {
			l := comm.Contiguous(1)
			if c.Rank() == 1 {
				l = comm.Indexed([]int{1, 4}, []int{-(1<<62 - 1), 1<<62 - 1}).Resized(0, 0)
			}
			_, err := pio.NewView[byte](f, 1<<62-1, l)
			return is(err, comm.ErrLayout)
		})
	})
}

// TestFileAfterDifferentCalls lets the ranks make different collective calls, which must return
// ErrMismatch on all ranks. After that the file must be usable: also its views, and views made later.
func TestFileAfterDifferentCalls(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	commtest.Run(t, 3, func(c *comm.Comm) error {
		return withFile(c, name, func(f *pio.File) error {
			view := func() (*pio.View[int], error) {
				return pio.NewView[int](f, int64(8*c.Rank()), comm.Contiguous(1).Resized(0, 3))
			}
			use := func(v *pio.View[int]) error {
				n, err := pio.WriteAtAll(v, []int{c.Rank(), 5}, 0)
				if n != 2 || err != nil {
					return fmt.Errorf("%d, %w", n, err)
				}
				return nil
			}
			v, err := view()
			if err != nil {
				return err
			}
			calls := []func() error{
				f.Close, f.Sync, func() error { return f.Truncate(100) }, func() error { return f.SetAtomic(true) },
				func() error { return f.SetHints() }, func() error { return use(v) },
				func() error { _, err := view(); return err },
			}
			for i := range calls {
				for j := range calls {
					if i == j {
						continue
					}
					call := calls[i]
					if c.Rank() == 1 {
						call = calls[j]
					}
					if err := is(call(), comm.ErrMismatch); err != nil {
						return fmt.Errorf("calls %d and %d: %w", i, j, err)
					}
				}
			}
			w, err := view()
			return errors.Join(err, use(v), use(w))
		})
	})
}

// TestStridedToContiguous writes memory with gaps to a view without gaps, through a small buffer and at once. The
// bytes must follow each other in the file.
func TestStridedToContiguous(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	commtest.Run(t, 1, func(c *comm.Comm) error {
		return withFile(c, name, func(f *pio.File) error {
			v, err := pio.NewView[uint16](f, 2, comm.Contiguous(1))
			if err != nil {
				return err
			}
			const n = 300_000
			mem := make([]uint16, 2*n)
			for i := range mem {
				mem[i] = uint16(i / 2 * (1 - i%2))
			}
			if k, err := pio.WriteAt(v, comm.Of(mem, comm.Vector(n, 1, 2)), 1); k != n || err != nil {
				return fmt.Errorf("%d, %w", k, err)
			}
			got := make([]uint16, n)
			if k, err := pio.ReadAt(v, got, 1); k != n || err != nil {
				return fmt.Errorf("%d, %w", k, err)
			}
			for i, x := range got {
				if x != uint16(i) {
					return fmt.Errorf("element %d is %d", i, x)
				}
			}
			info, err := os.Stat(name)
			if err == nil && info.Size() != 2+2*(n+1) {
				err = fmt.Errorf("the file has %d bytes", info.Size())
			}
			return err
		}, pio.Hint{Key: "ind_wr_buffer_size", Value: "100001"})
	})
}
