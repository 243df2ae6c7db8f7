package mpi_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// blocked holds calls, by name, that wait for rank 0: for a call of it, or for a lock, because rank
// 0 holds the locks of all parts of the window.
var blocked = map[string]func(w *comm.Win[int]) error{
	"Lock":  func(w *comm.Win[int]) error { return w.Lock(1, comm.LockShared) },
	"own":   func(w *comm.Win[int]) error { return w.Lock(w.Comm().Rank(), comm.LockExclusive) },
	"Fence": func(w *comm.Win[int]) error { return w.Fence() },
	"Start": func(w *comm.Win[int]) error { return w.Start([]int{0}) },
	"Wait":  func(w *comm.Win[int]) error { return first(w.Post([]int{0}), w.Wait()) },
	"Put":   func(w *comm.Win[int]) error { return first(w.LockAll(), w.Put([]int{1}, 2, 0)) },
	"RGet":  func(w *comm.Win[int]) error { return first(w.LockAll(), wait(w.RGet([]int{1}, 1, 0))) },
	"FetchOp": func(w *comm.Win[int]) error {
		if err := w.LockAll(); err != nil {
			return err
		}
		_, err := w.FetchOp(1, 1, 0, comm.Sum)
		return err
	},
}

// TestRevokedWindow: if a rank revokes a window, calls in progress and later calls fail with
// ErrRevoked, except Free. The communicator is not affected.
func TestRevokedWindow(t *testing.T) {
	for name, call := range blocked {
		t.Run(name, func(t *testing.T) {
			ranks(t, 3, func(c *comm.Comm) error {
				w, err := comm.NewWin[int](c, 4)
				if err != nil {
					return err
				}
				if c.Rank() == 0 {
					err = first(w.Lock(0, comm.LockExclusive), w.Lock(1, comm.LockExclusive), w.Lock(2, comm.LockExclusive),
						c.Barrier(), w.Revoke(), w.Revoke())
				} else {
					if err = c.Barrier(); err == nil {
						err = wantErr(name, call(w), comm.ErrRevoked, "rank 0 of the world called Revoke")
					}
				}
				return first(err, wantErr("later", w.Fence(), comm.ErrRevoked, "Fence"),
					wantErr("Lock", w.Lock(0, comm.LockShared), comm.ErrRevoked, ""), w.Free(), c.Barrier())
			})
		})
	}
}

// TestWindowOfRevokedComm: a window works after its communicator is revoked, because it has a
// message space of its own.
func TestWindowOfRevokedComm(t *testing.T) {
	ranks(t, 3, func(world *comm.Comm) error {
		c, err := world.Dup()
		if err != nil {
			return err
		}
		return withWindow(c, 1, func(w *comm.Win[int]) error {
			if err := first(world.Barrier(), c.Revoke()); err != nil {
				return err
			}
			_, err := comm.NewWin[int](c, 1)
			return first(wantErr("NewWin", err, comm.ErrRevoked, "NewWin"), c.Free(),
				w.Fence(), w.Put([]int{7}, (w.Comm().Rank()+1)%3, 0), w.Fence(), same("own", w.Local(), []int{7}))
		})
	})
}

// TestKilledTarget: every call that needs a dead rank fails in bounded time, with the documented
// error. Then Free frees the window.
func TestKilledTarget(t *testing.T) {
	type win = *comm.Win[int]
	calls := map[string]func(w win) error{
		"Put": func(w win) error {
			return first(w.Lock(1, comm.LockShared), w.Put(make([]int, 5000), 1, 0), w.Unlock(1))
		},
		"Get": func(w win) error {
			return first(w.Lock(1, comm.LockShared), w.Get(make([]int, 5000), 1, 0), w.Flush(1))
		},
		"RGet":  func(w win) error { return first(w.Lock(1, comm.LockShared), wait(w.RGet([]int{1}, 1, 0))) },
		"Fence": func(w win) error { return w.Fence() },
		"FetchOp": func(w win) error {
			if err := w.LockAll(); err != nil {
				return err
			}
			_, err := w.FetchOp(1, 1, 0, comm.Sum)
			return err
		},
		"CompareSwap": func(w win) error {
			if err := w.Lock(1, comm.LockExclusive); err != nil {
				return err
			}
			_, err := w.CompareSwap(0, 1, 1, 0)
			return err
		},
		"Start": func(w win) error { return w.Start([]int{1}) },
		"Wait":  func(w win) error { return first(w.Post([]int{1}), w.Wait()) },
		"Free":  func(w win) error { return w.Free() },
	}
	overMortal(t, func(run runJob) {
		for name, call := range calls {
			dead := make(chan struct{})
			run(name, 3, func(c *comm.Comm) error {
				w, err := comm.NewWin[int](c, 5000)
				if err != nil {
					return err
				}
				meet := c.Barrier()
				if c.Rank() == 1 {
					commtest.Kill(c)
					close(dead)
					return first(meet, wantErr("the dead", w.Lock(0, comm.LockShared), comm.ErrClosed, "Lock"))
				}
				// Fence and Wait wait for a call of rank 1, so they may also start before its
				// death.
				if name != "Fence" && name != "Wait" {
					<-dead
				}
				err = call(w)
				// Free returns nil if another rank has revoked the window, because its own Free
				// failed.
				if unless(err, comm.ErrProcFailed, comm.ErrRevoked) != nil || err == nil && name != "Free" {
					return fmt.Errorf("%s: %w", name, err)
				}
				if err := unless(w.Free(), comm.ErrWin, comm.ErrProcFailed, comm.ErrRMASync); err != nil {
					return err
				}
				commtest.Kill(c) // otherwise Run would call Finalize, which returns an error after a failure
				return nil
			})
		}
	})
}

// TestLockOfFailedRank: if a rank that holds a lock dies, the next rank gets the lock.
func TestLockOfFailedRank(t *testing.T) {
	holder := func(c *comm.Comm) error {
		w, err := comm.NewWin[int](c, 1)
		if err != nil {
			return err
		}
		if c.Rank() == 1 {
			if err := first(w.Lock(0, comm.LockExclusive), c.Barrier()); err != nil {
				return err
			}
			commtest.Kill(c)
			return nil
		}
		if err := unless(c.Barrier(), comm.ErrProcFailed, comm.ErrRevoked); err != nil {
			return err
		}
		if err := w.Lock(0, comm.LockExclusive); err != nil {
			return err
		}
		if _, err := w.FetchOp(1, 0, 0, comm.Sum); err != nil {
			return err
		}
		if err := w.Unlock(0); err != nil {
			return err
		}
		if c.Rank() == 0 { // rank 0 takes the lock again and again, until the other live rank has had it
			for n := 0; n < 2; {
				if err := w.Lock(0, comm.LockShared); err != nil {
					return err
				}
				n = w.Local()[0]
				if err := w.Unlock(0); err != nil {
					return err
				}
			}
		}
		commtest.Kill(c)
		return nil
	}
	overMortal(t, func(run runJob) { run("3", 3, holder) })
}

// TestFreeWhileOthersAreInEpochs: Free waits for other ranks that are in an epoch, and meanwhile
// serves their operations. Free of a rank that itself is in an epoch returns ErrRMASync.
func TestFreeWhileOthersAreInEpochs(t *testing.T) {
	overFabrics(t, []int{2, 3, 5}, func(c *comm.Comm) error {
		return withWindow(c, 1, func(w *comm.Win[int]) error {
			if c.Rank() == 0 {
				return nil // then this rank calls Free at once
			}
			for range 20 {
				if err := first(w.Lock(0, comm.LockExclusive), w.Accumulate([]int{1}, 0, 0, comm.Sum), w.Unlock(0)); err != nil {
					return err
				}
			}
			return nil
		})
	})
	ranks(t, 3, func(c *comm.Comm) error {
		w, err := comm.NewWin[int](c, 1)
		if err := first(err, c.Barrier()); err != nil {
			return err
		}
		if c.Rank() == 1 {
			err := first(w.Lock(2, comm.LockExclusive), wantErr("Free", w.Free(), comm.ErrRMASync, "comm: Free (win 0.1)"))
			return first(err, wantErr("again", w.Free(), comm.ErrWin, "freed"), c.Barrier())
		}
		return first(w.Free(), c.Barrier())
	})
}

// TestContextEndsWindowCalls: if the context ends Lock, the rank does not hold the lock, and can
// get it later.
func TestContextEndsWindowCalls(t *testing.T) {
	overFabrics(t, []int{2}, func(world *comm.Comm) error {
		ctx, cancel := context.WithCancel(world.Context())
		defer cancel()
		return withWindow(world, 1, func(v *comm.Win[int]) error {
			w, err := comm.WinOf(world.WithContext(ctx), make([]int, 1))
			if err != nil {
				return err
			}
			if world.Rank() == 0 {
				return first(w.Lock(0, comm.LockExclusive), world.Barrier(), world.Barrier(), w.Unlock(0),
					world.Barrier(), v.Fence(), w.Free())
			}
			if err := world.Barrier(); err != nil {
				return err
			}
			cancel()
			err = w.Lock(0, comm.LockShared)
			_, ferr := w.FetchOp(1, 0, 0, comm.Sum)
			// Free returns the error of the context only if Free has to wait.
			return first(wantErr("Lock", err, context.Canceled, "comm: Lock ("), wantErr("FetchOp", ferr, comm.ErrRMASync, ""),
				world.Barrier(), world.Barrier(), v.Fence(), unless(w.Free(), context.Canceled))
		})
	})
}

// unless returns nil if err wraps one of the kinds. Otherwise it returns err.
func unless(err error, kinds ...error) error {
	for _, k := range kinds {
		if isErr(err, k) {
			return nil
		}
	}
	return err
}

// TestFenceBesidePost: Fence and Free return ErrRMASync while an epoch of Post is open.
func TestFenceBesidePost(t *testing.T) {
	for name, call := range map[string]func(w *comm.Win[int]) error{
		"Fence": func(w *comm.Win[int]) error { return w.Fence() },
		"Free":  func(w *comm.Win[int]) error { return w.Free() },
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 2, func(c *comm.Comm) error {
				w, err := comm.NewWin[int](c, 1)
				// After the barrier, all ranks have the window.
				if err := first(err, c.Barrier()); err != nil {
					return err
				}
				if c.Rank() == 0 {
					err = first(w.Post([]int{1}), wantErr(name, call(w), comm.ErrRMASync, "Wait has not been called"))
				} else {
					err = unless(call(w), comm.ErrRevoked)
				}
				if name == "Fence" {
					err = first(err, w.Free())
				}
				return first(err, c.Barrier())
			})
		})
	}
}

// TestWaitAgain: if the context ends Wait, the epoch of Post stays open, and Wait may be called
// again. The Wait that closes the epoch returns the failure of an origin.
func TestWaitAgain(t *testing.T) {
	ranks(t, 3, func(c *comm.Comm) error {
		ctx, cancel := context.WithCancel(c.Context())
		defer cancel()
		w, err := comm.NewWin[int](c.WithContext(ctx), 1)
		if err != nil {
			return err
		}
		one := make([]int, 1)
		switch c.Rank() {
		case 0:
			if err := first(w.Post([]int{1, 2}), comm.Send(c, one, 1, 0)); err != nil {
				return err
			}
			_, err := comm.Recv(c, one, 1, 0)
			if err := wantErr("the dead", err, comm.ErrProcFailed, ""); err != nil {
				return err
			}
			cancel()
			if err := first(wantErr("one is missing", w.Wait(), context.Canceled, "Wait"),
				wantErr("still", w.Wait(), context.Canceled, "Wait"), comm.Send(c, one, 2, 0)); err != nil {
				return err
			}
			if _, err := comm.Recv(c, one, 2, 0); err != nil {
				return err
			}
			if err := first(wantErr("all have ended", w.Wait(), comm.ErrProcFailed, "Wait"),
				wantErr("closed", w.Wait(), comm.ErrRMASync, "Wait")); err != nil {
				return err
			}
		case 1: // rank 1 dies after the other ranks have got the window
			for range 2 {
				if _, err := comm.Recv(c, one, comm.AnySource, 0); err != nil {
					return err
				}
			}
		case 2:
			if err := first(comm.Send(c, one, 1, 0), w.Start([]int{0})); err != nil {
				return err
			}
			if _, err := comm.Recv(c, one, 0, 0); err != nil {
				return err
			}
			if err := first(w.Complete(), comm.Send(c, one, 0, 0)); err != nil {
				return err
			}
		}
		if c.Rank() == 2 { // rank 2 waits until rank 0 has ended
			_, err := comm.Recv(c, one, 0, 1)
			if err := unless(err, comm.ErrProcFailed); err != nil {
				return err
			}
		}
		commtest.Kill(c)
		return nil
	})
}
