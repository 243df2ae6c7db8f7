package mpiio_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/comm/pio"
)

// TestFileCalls makes the calls that neither read nor write elements.
func TestFileCalls(t *testing.T) {
	overFabrics(t, []int{1, 3}, func(c *comm.Comm, name string) error {
		f, err := pio.Open(c, name, os.O_RDWR|os.O_CREATE|os.O_EXCL|pio.DeleteOnClose|pio.UniqueOpen, 0o600, pio.Hint{Key: "cb_nodes", Value: "2"})
		if err != nil {
			return err
		}
		size := func(want int64) error {
			if err := c.Barrier(); err != nil {
				return err
			}
			if n, err := f.Size(); err != nil || n != want {
				return fmt.Errorf("size %d instead of %d: %w", n, want, err)
			}
			return c.Barrier()
		}
		err = errors.Join(size(0), f.Truncate(100), size(100), f.Preallocate(5000), size(5000), f.Preallocate(10), size(5000),
			f.Preallocate(0), f.Truncate(9), size(9), f.Sync(), f.SetAtomic(true))
		switch {
		case err != nil:
			return err
		case !f.Atomic():
			return errors.New("the file is not atomic")
		case f.Name() != name || f.Flags()&pio.DeleteOnClose == 0 || f.Group().Size() != c.Size():
			return fmt.Errorf("name %q, flags %x, group of %d", f.Name(), f.Flags(), f.Group().Size())
		}
		part := []byte{byte(c.Rank()), 7}
		if n, err := f.WriteAt(part, int64(9+2*c.Rank())); n != 2 || err != nil {
			return fmt.Errorf("WriteAt: %d, %w", n, err)
		}
		if err := size(int64(9 + 2*c.Size())); err != nil {
			return err
		}
		got := make([]byte, 4)
		if n, err := f.ReadAt(got, int64(7+2*c.Size())); n != 2 || err != io.EOF || got[0] != byte(c.Size()-1) || got[1] != 7 { //nolint:errorlint // io.ReaderAt promises io.EOF itself
			return fmt.Errorf("ReadAt: %d, %v, %w", n, got, err)
		}
		if err := f.SetHints(pio.Hint{Key: "romio_ds_read", Value: "disable"}, pio.Hint{Key: "unknown", Value: "x"}); err != nil {
			return err
		}
		h := f.Hints()
		if !slices.Contains(h, pio.Hint{Key: "romio_ds_read", Value: "disable"}) || !slices.Contains(h, pio.Hint{Key: "cb_nodes", Value: fmt.Sprint(min(2, c.Size()))}) {
			return fmt.Errorf("hints %v", h)
		}
		v, err := pio.NewView[float64](f, 16, comm.Vector(2, 1, 2).Resized(0, 5), pio.InternalRepresentation())
		if err != nil {
			return err
		}
		disp, l, rep := v.Get()
		off, err := v.ByteOffset(3)
		if err != nil || disp != 16 || l.Len() != 2 || rep != "internal" || v.ElemSize() != 8 || v.File() != f || off != 16+7*8 {
			return fmt.Errorf("view %d, %d, %s, element 3 at %d: %w", disp, l.Len(), rep, off, err)
		}
		if err := f.Close(); err != nil {
			return err
		}
		if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("after Close: %w", err)
		}
		return nil
	})
}

// TestEmptyAndNil makes calls without elements, and calls on nil and closed files and views.
func TestEmptyAndNil(t *testing.T) {
	dir := t.TempDir()
	commtest.Run(t, 3, func(c *comm.Comm) error {
		name := filepath.Join(dir, "file")
		var v *pio.View[int64]
		err := withFile(c, name, func(f *pio.File) error {
			l := comm.Layout{}
			if c.Rank() == 1 {
				l = comm.Contiguous(1)
			}
			var err error
			if v, err = pio.NewView[int64](f, 8, l); err != nil {
				return err
			}
			if n, err := pio.WriteAtAll(v, []int64(nil), 5); n != 0 || err != nil {
				return fmt.Errorf("%d, %w", n, err)
			}
			if n, err := pio.ReadAll(v, []int64{}); n != 0 || err != nil {
				return fmt.Errorf("%d, %w", n, err)
			}
			if c.Rank() == 1 {
				return nil
			}
			_, err = pio.Write(v, []int64{1})
			return is(err, comm.ErrCount)
		})
		if err != nil {
			return err
		}
		var none *pio.View[int64]
		var noFile *pio.File
		for _, v := range []*pio.View[int64]{v, none} {
			_, err := pio.WriteAll(v, []int64{1})
			_, err2 := pio.ReadAt(v, []int64{1}, 0)
			_, err3 := pio.IwriteAll(v, []int64{1}).Wait()
			_, err4 := pio.Iread(v, []int64{1}).Wait()
			_, err5 := v.Seek(0, io.SeekStart)
			_, err6 := v.ByteOffset(0)
			_, err7 := pio.ReadOrderedEnd(none)
			for _, err := range []error{err, err2, err3, err4, err5, err6, err7, v.SeekShared(0, 0), pio.ReadAllBegin(v, []int64{1}), v.File().Close(), noFile.Sync()} {
				if err := is(err, comm.ErrClosed); err != nil {
					return err
				}
			}
		}
		_, err = pio.NewView[int](noFile, 0, comm.Contiguous(1))
		return errors.Join(is(err, comm.ErrClosed), is(noFile.Truncate(1), comm.ErrClosed))
	})
}

// is returns an error unless err is target.
func is(err, target error) error {
	if !errors.Is(err, target) {
		return fmt.Errorf("got %w, expected %w", err, target)
	}
	return nil
}

// TestWrongOpen checks the errors of Open, of which some concern one rank only.
func TestWrongOpen(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	require.NoError(t, os.WriteFile(there, []byte("abc"), 0o600))
	program, err := os.Executable()
	require.NoError(t, err)
	for _, x := range []struct {
		what        string
		name, odd   string // odd: of rank 1
		flag, flag1 int
		hint        string // of rank 1
		want        error
		rank        int
	}{
		{what: "missing", name: filepath.Join(dir, "none"), flag: os.O_RDWR, want: fs.ErrNotExist},
		{what: "missing on rank 1", name: there, odd: filepath.Join(dir, "none"), flag: os.O_RDWR, want: fs.ErrNotExist, rank: 1},
		{what: "exists", name: there, flag: os.O_RDWR | os.O_CREATE | os.O_EXCL, want: fs.ErrExist},
		{what: "a directory", name: dir, flag: os.O_RDONLY, want: pio.ErrAccess},
		{what: "a directory on rank 1", name: there, odd: dir, flag: os.O_RDWR, want: syscall.EISDIR, rank: 1},
		{what: "not writable on rank 1", name: there, odd: program, flag: os.O_RDWR, want: syscall.ETXTBSY, rank: 1},
		{what: "flags differ", name: there, flag: os.O_RDWR, flag1: os.O_RDONLY, want: comm.ErrMismatch, rank: 1},
		{what: "hints differ", name: there, flag: os.O_RDWR, hint: "17", want: comm.ErrMismatch, rank: 1},
		{what: "a wrong hint on rank 1", name: there, flag: os.O_RDWR, hint: "-3", want: comm.ErrArg, rank: 1},
		{what: "two accesses", name: there, flag: os.O_RDWR | os.O_WRONLY, want: comm.ErrArg},
		{what: "read-only and new", name: there, flag: os.O_RDONLY | os.O_CREATE, want: comm.ErrArg},
		{what: "excl without create", name: there, flag: os.O_RDWR | os.O_EXCL, want: comm.ErrArg},
		{what: "sequential both ways", name: there, flag: os.O_RDWR | pio.Sequential, want: comm.ErrArg},
	} {
		t.Run(x.what, func(t *testing.T) {
			commtest.Run(t, 3, func(c *comm.Comm) error {
				name, flag := x.name, x.flag
				hint := pio.Hint{Key: "cb_buffer_size", Value: "100"}
				if c.Rank() == 1 {
					if x.odd != "" {
						name = x.odd
					}
					if x.what == "flags differ" {
						flag = x.flag1
					}
					if x.hint != "" {
						hint.Value = x.hint
					}
				}
				f, err := pio.Open(c, name, flag, 0o600, hint)
				if f != nil {
					return errors.New("there is a file")
				}
				if err := is(err, x.want); err != nil {
					return err
				}
				var e *comm.Error
				if !errors.As(err, &e) || e.Op != "Open" || x.want != comm.ErrMismatch && e.Peer != x.rank { //nolint:errorlint // want is that variable
					return fmt.Errorf("the error %w has the rank %d", err, e.Peer)
				}
				return c.Barrier()
			})
			text, err := os.ReadFile(there)
			require.NoError(t, err)
			require.Equal(t, "abc", string(text))
		})
	}
	// A file that Open has made with O_EXCL does not stay if another rank fails.
	fresh := filepath.Join(dir, "fresh")
	commtest.Run(t, 2, func(c *comm.Comm) error {
		name := fresh
		if c.Rank() == 1 {
			name = filepath.Join(dir, "none")
		}
		_, err := pio.Open(c, name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		return is(err, fs.ErrNotExist)
	})
	require.NoFileExists(t, fresh)
}

// TestWrongCalls checks that wrong arguments on one rank are an error on all ranks of a collective
// call, after which the file is usable.
func TestWrongCalls(t *testing.T) {
	overFabrics(t, []int{3}, func(c *comm.Comm, name string) error {
		odd := c.Rank() == 2
		return withFile(c, name, func(f *pio.File) error {
			pick := func(wrong, right int64) int64 {
				if odd {
					return wrong
				}
				return right
			}
			v, err := pio.NewView[int64](f, 0, comm.Contiguous(1))
			if err != nil {
				return err
			}
			_, err = pio.WriteAtAll(v, []int64{1}, pick(-1, 0))
			_, err2 := pio.ReadAtAll(v, []int64{1}, pick(1<<62, 0))
			mem := comm.Of(make([]int64, 3), comm.Contiguous(int(pick(4, 3))))
			_, err3 := pio.WriteAll(v, mem)
			var zero comm.View[int64]
			if !odd {
				zero = mem
			}
			_, err4 := pio.IreadAll(v, zero).Wait()
			l := comm.Vector(3, 2, int(pick(1, 4)))
			_, err5 := pio.NewView[int64](f, 0, l)
			_, err6 := pio.NewView[int64](f, pick(-8, 0), comm.Contiguous(1))
			_, err7 := pio.NewView[int64](f, 80, comm.Vector(2, 1, int(pick(-1, 1))))
			var err8 error
			if odd {
				_, err8 = pio.NewView[int32](f, 0, comm.Contiguous(1))
			} else {
				_, err8 = pio.NewView[int64](f, 0, comm.Contiguous(1))
			}
			_, err9 := pio.NewView[*int](f, 0, comm.Contiguous(1))
			_, err10 := pio.NewView[struct{}](f, 0, comm.Contiguous(1))
			for _, x := range []struct{ err, want error }{
				{err, comm.ErrArg}, {err2, comm.ErrArg}, {err3, comm.ErrCount}, {err4, comm.ErrType}, {err5, comm.ErrLayout}, {err6, comm.ErrArg},
				{err7, comm.ErrLayout}, {err8, comm.ErrMismatch}, {err9, comm.ErrType}, {err10, comm.ErrType},
				{f.Truncate(pick(-1, 0)), comm.ErrArg}, {f.Truncate(pick(1, 0)), comm.ErrMismatch}, {f.Preallocate(pick(-1, 0)), comm.ErrArg},
				{f.SetAtomic(odd), comm.ErrMismatch}, {f.SetHints(pio.Hint{Key: "cb_nodes", Value: fmt.Sprint(pick(-1, 1))}), comm.ErrArg},
			} {
				if err := is(x.err, x.want); err != nil {
					return err
				}
			}
			_, err = pio.ReadOrdered(v, []int64{1})
			_, err2 = pio.ReadShared(v, []int64{1})
			_, err3 = v.PositionShared()
			_, err4 = pio.WriteAllEnd(v)
			if err := errors.Join(is(err, pio.ErrNoShared), is(err2, pio.ErrNoShared), is(err3, pio.ErrNoShared), is(err4, pio.ErrSplit), is(v.SeekShared(0, 0), pio.ErrNoShared)); err != nil {
				return err
			}
			if n, err := f.Size(); n != 0 || err != nil {
				return fmt.Errorf("%d bytes were written: %w", n, err)
			}
			if err := c.Barrier(); err != nil {
				return err
			}
			if err := pio.WriteAllBegin(v, []int64{7}); err != nil {
				return err
			}
			if err := is(pio.ReadAllBegin(v, []int64{7}), pio.ErrSplit); err != nil {
				return err
			}
			if _, err := pio.ReadAllEnd(v); !errors.Is(err, pio.ErrSplit) {
				return fmt.Errorf("ReadAllEnd of a WriteAllBegin: %w", err)
			}
			if n, err := pio.WriteAllEnd(v); n != 1 || err != nil {
				return fmt.Errorf("%d, %w", n, err)
			}
			return nil
		})
	})
}

// TestAccess checks that the flags of Open restrict the calls.
func TestAccess(t *testing.T) {
	overFabrics(t, []int{2}, func(c *comm.Comm, name string) error {
		if err := withFile(c, name, func(*pio.File) error { return nil }); err != nil {
			return err
		}
		for _, flag := range []int{os.O_RDONLY, os.O_WRONLY, os.O_RDONLY | pio.Sequential} {
			f, err := pio.Open(c, name, flag, 0)
			if err != nil {
				return err
			}
			v, err := pio.NewView[byte](f, 0, comm.Vector(2, 1, 3), pio.SharedPointer())
			if err != nil {
				return err
			}
			write, read := pio.ErrAccess, error(nil)
			if flag == os.O_WRONLY {
				write, read = nil, pio.ErrAccess
			}
			_, err = pio.WriteOrdered(v, []byte{1})
			_, err2 := pio.ReadOrdered(v, []byte{1})
			if err := errors.Join(is(err, write), is(err2, read)); err != nil {
				return err
			}
			if flag&pio.Sequential != 0 {
				_, err = pio.ReadAll(v, []byte{1})
				_, err2 = pio.ReadAt(v, []byte{1}, 0)
				_, err3 := v.Seek(0, io.SeekStart)
				_, err4 := f.ReadAt([]byte{1}, 0)
				_, err5 := pio.NewView[byte](f, 4, comm.Contiguous(1))
				for _, err := range []error{err, err2, err3, err4, err5, f.Truncate(0)} {
					if err := is(err, pio.ErrAccess); err != nil {
						return err
					}
				}
			}
			if err := f.Close(); err != nil {
				return err
			}
		}
		return nil
	})
}
