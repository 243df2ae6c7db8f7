package mpiio_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/comm/pio"
)

// TestFullDisk lets rank 1 write to /dev/full. All ranks must get its error, and what the other
// ranks write must be in the file.
func TestFullDisk(t *testing.T) {
	for _, way := range []string{"automatic", "enable", "disable"} {
		t.Run(way, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "file")
			commtest.Run(t, 3, func(c *comm.Comm) error {
				own := name
				if c.Rank() == 1 {
					own = "/dev/full"
				} else if c.Rank() == 0 {
					if err := os.WriteFile(name, nil, 0o600); err != nil {
						return err
					}
				}
				if err := c.Barrier(); err != nil {
					return err
				}
				f, err := pio.Open(c, own, os.O_RDWR, 0, pio.Hint{Key: "romio_cb_write", Value: way},
					pio.Hint{Key: "cb_buffer_size", Value: "64"}, pio.Hint{Key: "cb_nodes", Value: "3"})
				if err != nil {
					return err
				}
				v, err := pio.NewView[byte](f, int64(100*c.Rank()), comm.Contiguous(1))
				if err != nil {
					return err
				}
				mem := make([]byte, 100)
				for i := range mem {
					mem[i] = byte(1 + c.Rank())
				}
				for _, write := range []func() error{
					func() error { _, err := pio.WriteAll(v, mem); return err },
					func() error { _, err := pio.IwriteAtAll(v, mem, 0).Wait(); return err },
				} {
					err := write()
					var e *comm.Error
					if !errors.Is(err, syscall.ENOSPC) || !errors.As(err, &e) || e.Peer != 1 {
						return fmt.Errorf("the error is %w", err)
					}
				}
				if _, err := v.Seek(0, 0); err != nil { // the file is usable
					return err
				}
				if n, err := pio.ReadAtAll(v, mem[:0], 0); n != 0 || err != nil {
					return fmt.Errorf("%d, %w", n, err)
				}
				return f.Close()
			}, commtest.WithNodes(0, 1, 2))
			got, err := os.ReadFile(name)
			require.NoError(t, err)
			for i, b := range got {
				require.True(t, b == byte(1+i/100) || b == 0, "byte %d is %d", i, b)
			}
			if way != "enable" { // then each rank writes its own bytes
				require.Len(t, got, 300)
				require.Equal(t, []byte{1, 1, 0, 0, 3, 3}, []byte{got[0], got[99], got[100], got[199], got[200], got[299]})
			}
		})
	}
}

// TestShorterFile lets rank 0 make the file shorter than rank 1 finds it, as on a file system whose
// hosts do not agree. The collective read must fail on all ranks.
func TestShorterFile(t *testing.T) {
	for _, way := range []string{"enable", "disable"} {
		t.Run(way, func(t *testing.T) {
			dir := t.TempDir()
			commtest.Run(t, 2, func(c *comm.Comm) error {
				own := filepath.Join(dir, fmt.Sprint(c.Rank()))
				if err := os.WriteFile(own, make([]byte, 50+50*c.Rank()), 0o600); err != nil {
					return err
				}
				f, err := pio.Open(c, own, os.O_RDONLY, 0, pio.Hint{Key: "romio_cb_read", Value: way})
				if err != nil {
					return err
				}
				v, err := pio.NewView[byte](f, int64(40*c.Rank()), comm.Contiguous(1))
				if err != nil {
					return err
				}
				if _, err := pio.ReadAll(v, make([]byte, 60)); !errors.Is(err, io.ErrUnexpectedEOF) {
					return fmt.Errorf("the error is %w", err)
				}
				return f.Close()
			})
		})
	}
}

// TestDeadRank kills a rank. The collective calls of the others must return an error, and so must
// Close.
func TestDeadRank(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	commtest.Run(t, 3, func(c *comm.Comm) error {
		f, err := pio.Open(c, name, os.O_RDWR|os.O_CREATE, 0o600, pio.Hint{Key: "romio_cb_write", Value: "enable"})
		if err != nil {
			return err
		}
		v, err := pio.NewView[int64](f, int64(8*c.Rank()), comm.Contiguous(1).Resized(0, 3), pio.SharedPointer())
		if err != nil {
			return err
		}
		if _, err := pio.WriteAll(v, make([]int64, 100)); err != nil {
			return err
		}
		if c.Rank() == 2 {
			commtest.Kill(c)
			return nil
		}
		_, err = pio.WriteAll(v, make([]int64, 100000))
		if !errors.Is(err, comm.ErrProcFailed) && !errors.Is(err, comm.ErrRevoked) {
			return fmt.Errorf("the error is %w", err)
		}
		if _, err = pio.Iread(v, make([]int64, 1)).Wait(); err != nil { // independent calls go on
			return err
		}
		if err := f.Close(); err == nil {
			return errors.New("Close returns no error")
		}
		return nil
	}, commtest.WithNotify())
}

// TestOrderOfTwoGoroutines checks that a collective call that begins while another goroutine is in a
// blocking one fails.
func TestOrderOfTwoGoroutines(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	commtest.Run(t, 2, func(c *comm.Comm) error {
		f, err := pio.Open(c, name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		if c.Rank() == 1 {
			if err := c.Barrier(); err != nil { // rank 0 has both goroutines in the call
				return err
			}
			return is(f.Sync(), comm.ErrRevoked)
		}
		errs := make(chan error, 2)
		go func() { errs <- f.Sync() }() // both end because the second one revokes the communicator
		go func() { errs <- f.Sync() }()
		err = errors.Join(<-errs, <-errs) // in any order
		if err := errors.Join(is(err, comm.ErrConcurrent), is(err, comm.ErrRevoked)); err != nil {
			return err
		}
		return c.Barrier()
	})
}

// TestDifferentCalls lets rank 0 make another collective call than the others. All ranks must get an
// error.
func TestDifferentCalls(t *testing.T) {
	b := make([]int64, 1000)
	for _, x := range []struct {
		name       string
		odd, other func(f *pio.File, v, w *pio.View[int64]) error
	}{
		{"read and write", func(_ *pio.File, v, _ *pio.View[int64]) error { _, err := pio.ReadAll(v, b); return err },
			func(_ *pio.File, v, _ *pio.View[int64]) error {
				_, err := pio.WriteAll(v, make([]int64, 10))
				return err
			}},
		{"two views", func(_ *pio.File, v, _ *pio.View[int64]) error { _, err := pio.WriteAll(v, b); return err },
			func(_ *pio.File, _, w *pio.View[int64]) error {
				_, err := pio.WriteAll(w, make([]int64, 10))
				return err
			}},
		{"ordered", func(_ *pio.File, v, _ *pio.View[int64]) error { _, err := pio.WriteAll(v, b); return err },
			func(_ *pio.File, v, _ *pio.View[int64]) error {
				_, err := pio.WriteOrdered(v, make([]int64, 10))
				return err
			}},
		{"sync and truncate", func(f *pio.File, _, _ *pio.View[int64]) error { return f.Sync() },
			func(f *pio.File, _, _ *pio.View[int64]) error { return f.Truncate(0) }},
		{"truncate and preallocate", func(f *pio.File, _, _ *pio.View[int64]) error { return f.Preallocate(0) },
			func(f *pio.File, _, _ *pio.View[int64]) error { return f.Truncate(0) }},
		{"a view and a write", func(f *pio.File, _, _ *pio.View[int64]) error {
			_, err := pio.NewView[int64](f, 0, comm.Contiguous(1))
			return err
		}, func(_ *pio.File, v, _ *pio.View[int64]) error {
			_, err := pio.WriteAll(v, make([]int64, 10))
			return err
		}},
		{"close and sync", func(f *pio.File, _, _ *pio.View[int64]) error { return f.Close() },
			func(f *pio.File, _, _ *pio.View[int64]) error { return f.Sync() }},
	} {
		t.Run(x.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "file")
			commtest.Run(t, 3, func(c *comm.Comm) error {
				f, err := pio.Open(c, name, os.O_RDWR|os.O_CREATE, 0o600)
				if err != nil {
					return err
				}
				var views [2]*pio.View[int64]
				for i := range views {
					if views[i], err = pio.NewView[int64](f, int64(8*c.Rank()), comm.Contiguous(1).Resized(0, 3), pio.SharedPointer()); err != nil {
						return err
					}
				}
				call := x.other
				if c.Rank() == 0 {
					call = x.odd
				}
				err = call(f, views[0], views[1])
				if !errors.Is(err, comm.ErrMismatch) && !errors.Is(err, comm.ErrRevoked) {
					return fmt.Errorf("the error is %w", err)
				}
				_ = f.Close() // it may fail
				return nil
			})
		})
	}
}

// TestContext ends the context of rank 0 while it waits in a collective call. The call must return
// the error of the context, and the other rank must get an error, too.
func TestContext(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	commtest.Run(t, 2, func(c *comm.Comm) error {
		ctx, cancel := context.WithCancel(c.Context())
		defer cancel()
		f, err := pio.Open(c.WithContext(ctx), name, os.O_RDWR|os.O_CREATE, 0o600, pio.Hint{Key: "romio_cb_write", Value: "enable"})
		if err != nil {
			return err
		}
		v, err := pio.NewView[int64](f, int64(8*c.Rank()), comm.Contiguous(1).Resized(0, 2))
		if err != nil {
			return err
		}
		b := make([]int64, 1000)
		if c.Rank() == 0 {
			r := pio.IwriteAll(v, b)
			if _, done, _ := r.Test(); done {
				return errors.New("the call does not wait for rank 1")
			}
			cancel()
			if _, err := r.WaitContext(context.Background()); !errors.Is(err, context.Canceled) {
				return fmt.Errorf("the error is %w", err)
			}
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		if _, err := pio.WriteAll(v, b); !errors.Is(err, comm.ErrRevoked) && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("the error is %w", err)
		}
		if err := f.Close(); err == nil {
			return errors.New("Close returns no error")
		}
		return is(f.Close(), comm.ErrClosed)
	})
}

// TestSplitTwice lets rank 1 begin a split operation while another one is active. The other ranks,
// which begin it when the first one has ended, must get the error of rank 1.
func TestSplitTwice(t *testing.T) {
	overFabrics(t, []int{1, 2, 3}, func(c *comm.Comm, name string) error {
		return withFile(c, name, func(f *pio.File) error {
			v, err := pio.NewView[int64](f, int64(8*c.Rank()), comm.Contiguous(1).Resized(0, c.Size()), pio.SharedPointer())
			if err != nil {
				return err
			}
			b := make([]int64, 10)
			for _, begin := range []func() error{
				func() error { return pio.ReadAllBegin(v, b) },
				func() error { return pio.ReadOrderedBegin(v, b) },
			} {
				if err := pio.WriteAllBegin(v, b); err != nil {
					return err
				}
				twice := c.Rank() == 1 || c.Size() == 1
				if twice {
					if err := is(begin(), pio.ErrSplit); err != nil {
						return err
					}
				}
				if n, err := pio.WriteAllEnd(v); n != len(b) || err != nil {
					return fmt.Errorf("%d elements: %w", n, err)
				}
				if err := c.Barrier(); err != nil { // rank 1 waits for no other rank
					return err
				}
				if twice {
					continue
				}
				if err := begin(); err != nil {
					return err
				}
				_, err := pio.ReadAllEnd(v)
				if errors.Is(err, pio.ErrSplit) && strings.Contains(err.Error(), "no ReadAll") {
					_, err = pio.ReadOrderedEnd(v)
				}
				if err := errors.Join(is(err, pio.ErrSplit), saysRank(err, 1)); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// saysRank returns an error unless err is that of a call that has failed on this rank.
func saysRank(err error, rank int) error {
	if e := (*comm.Error)(nil); !errors.As(err, &e) || e.Peer != rank {
		return fmt.Errorf("not an error of rank %d: %w", rank, err)
	}
	return nil
}
