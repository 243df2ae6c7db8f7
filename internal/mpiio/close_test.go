package mpiio_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/comm/pio"
)

// TestCloseBesideCalls closes a file while other goroutines make independent calls. Each call must
// either be complete or return ErrClosed, and none may use the descriptor of the file after that.
func TestCloseBesideCalls(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	commtest.Run(t, 1, func(c *comm.Comm) error {
		for range 20 {
			f, err := pio.Open(c, name, os.O_RDWR|os.O_CREATE, 0o600)
			if err != nil {
				return err
			}
			if err := f.SetAtomic(true); err != nil { // so that the calls have locks
				return err
			}
			v, err := pio.NewView[int](f, 0, comm.Contiguous(1))
			if err != nil {
				return err
			}
			var calls sync.WaitGroup
			begun, errs := make(chan struct{}, 4), make([]error, 4)
			for i, call := range []func() error{
				func() error { _, err := f.WriteAt(make([]byte, 10), 0); return err },
				func() error { _, err := f.ReadAt(make([]byte, 10), 0); return err },
				func() error { _, err := pio.ReadAt(v, make([]int, 10), 0); return err },
				func() error { _, err := pio.Iwrite(v, make([]int, 10)).Wait(); return err },
			} {
				calls.Go(func() {
					if i == 1 || i == 2 { // reads need data
						_, _ = f.WriteAt(make([]byte, 80), 0)
					}
					for n := 0; errs[i] == nil; n++ {
						if errs[i] = call(); n == 0 {
							begun <- struct{}{}
						}
					}
				})
			}
			for range errs {
				<-begun
			}
			err = f.Close()
			calls.Wait()
			for i, e := range errs {
				if !errors.Is(e, comm.ErrClosed) {
					return fmt.Errorf("goroutine %d: %w", i, e)
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// TestCallsAfterFinalize makes calls on a file after Finalize. All must fail, and none may wait for one
// before it.
func TestCallsAfterFinalize(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	commtest.Run(t, 2, func(c *comm.Comm) error {
		f, err := pio.Open(c, name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		v, err := pio.NewView[int](f, 0, comm.Contiguous(1))
		if err != nil {
			return err
		}
		if err := c.Finalize(); err != nil {
			return err
		}
		_, err1 := pio.IreadAll(v, make([]int, 1)).Wait()
		_, err2 := pio.Iread(v, make([]int, 1)).Wait()
		_, err3 := pio.WriteAll(v, make([]int, 1))
		return errors.Join(is(err1, comm.ErrClosed), is(err2, comm.ErrClosed), is(err3, comm.ErrClosed), is(f.Close(), comm.ErrClosed))
	})
}
