package mpi_test

import (
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// TestWindowsBesideFinalize: a rank in Finalize still serves operations with its part of a window.
// Calls that wait for a call of this rank fail.
func TestWindowsBesideFinalize(t *testing.T) {
	type win = *comm.Win[int]
	for name, call := range map[string]func(w win) error{
		"Put": func(w win) error {
			// Exclusive, because two ranks put to the same place.
			return first(w.Lock(2, comm.LockExclusive), w.Put(make([]int, 5000), 2, 0), w.Unlock(2))
		},
		"Get": func(w win) error {
			return first(w.Lock(2, comm.LockShared), w.Get(make([]int, 5000), 2, 0), w.Flush(2), w.Unlock(2))
		},
		"Lock":  func(w win) error { return first(w.Lock(2, comm.LockExclusive), w.Unlock(2)) },
		"Fence": func(w win) error { return w.Fence() },
		"FetchOp": func(w win) error {
			if err := w.LockAll(); err != nil {
				return err
			}
			_, err := w.FetchOp(1, 2, 0, comm.Sum)
			return first(err, w.UnlockAll())
		},
		"Start": func(w win) error { return w.Start([]int{2}) },
		"Wait":  func(w win) error { return first(w.Post([]int{2}), w.Wait()) },
		"Free":  func(w win) error { return w.Free() },
	} {
		for _, p := range onEach() {
			t.Run(name+"/"+p().Name(), func(t *testing.T) {
				t.Parallel()
				ranks(t, 3, func(c *comm.Comm) error {
					w, err := comm.NewWin[int](c, 5000)
					// After the barrier, all ranks have the window.
					if err := first(err, c.Barrier()); err != nil {
						return err
					}
					if c.Rank() == 2 {
						return nil
					}
					_, err = comm.Recv(c, []int{1}, 2, 0)
					if err := wantErr("Recv", err, comm.ErrFinalized, ""); err != nil {
						return err
					}
					switch err := call(w); name {
					case "Put", "Get", "Lock", "FetchOp":
						return err
					case "Free": // another rank may have revoked the window before
						return unless(err, comm.ErrFinalized)
					default:
						kind := comm.ErrFinalized
						// With ErrRevoked, a call of another rank failed first, and revoked the
						// window.
						if isErr(err, comm.ErrRevoked) {
							kind = comm.ErrRevoked
						}
						return wantErr(name, err, kind, "called Finalize")
					}
				}, commtest.WithProviders(p()))
			})
		}
	}
}
