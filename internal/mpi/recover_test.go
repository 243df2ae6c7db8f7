package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/fault"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/tcp"
)

// silent is the reason with which the launcher, in these tests, reports ranks as failed.
const silent = "host node1 does not answer"

// overAll runs f on n ranks over each provider of overEach, in a job that continues after ranks
// fail.
func overAll(t *testing.T, n int, f func(c *comm.Comm) error) {
	t.Helper()
	overEach(t, func(t *testing.T, p transport.Provider) {
		t.Helper()
		ranks(t, n, f, commtest.WithNotify(), commtest.WithProviders(p))
	})
}

// overEach runs f with each of several providers, in a subtest of its own.
func overEach(t *testing.T, f func(t *testing.T, p transport.Provider)) {
	t.Helper()
	for name, open := range map[string]func() transport.Provider{
		"inproc":      func() transport.Provider { return inproc.NewFabric() },
		"without RMA": func() transport.Provider { return inproc.NewFabric(inproc.WithoutRMA()) },
		"faults":      func() transport.Provider { return fault.Wrap(inproc.NewFabric(), fault.Legal(11)) },
		"tcp":         func() transport.Provider { return tcp.New() },
	} {
		t.Run(name, func(t *testing.T) { f(t, open()) })
	}
}

// barrierOf checks that a communicator has n ranks and works.
func barrierOf(c *comm.Comm, n int) error {
	if c.Size() != n {
		return fmt.Errorf("%d ranks, not %d", c.Size(), n)
	}
	sum := make([]int, 1)
	if err := comm.Allreduce(c, []int{c.Rank()}, sum, comm.Sum); err != nil {
		return err
	}
	return same("sum", sum, []int{n * (n - 1) / 2})
}

// TestShrinkAfterAHostIsGone: the launcher reports ranks 2 and 3 as failed, although they live.
// They send nothing, like ranks of a host without network.
func TestShrinkAfterAHostIsGone(t *testing.T) {
	for name, call := range map[string]func(c *comm.Comm) error{
		"Recv":     func(c *comm.Comm) error { _, err := comm.Recv(c, []int{1}, 3, 0); return err },
		"any":      func(c *comm.Comm) error { _, err := comm.Recv(c, []int{1}, comm.AnySource, 0); return err },
		"eager":    func(c *comm.Comm) error { return comm.Ssend(c, []int{1}, 2, 0) },
		"Send":     func(c *comm.Comm) error { return comm.Send(c, make([]int, 1<<18), 2, 0) },
		"Probe":    func(c *comm.Comm) error { _, err := c.Probe(2, 0); return err },
		"Barrier":  (*comm.Comm).Barrier,
		"Ibarrier": func(c *comm.Comm) error { return wait(c.Ibarrier()) },
		"Allreduce": func(c *comm.Comm) error {
			return comm.Allreduce(c, make([]int, 100000), make([]int, 100000), comm.Sum)
		},
		"NewWin": func(c *comm.Comm) error { _, err := comm.NewWin[int](c, 10); return err },
	} {
		t.Run(name, func(t *testing.T) {
			fabrics := []transport.Provider{inproc.NewFabric()}
			if name == "Barrier" {
				fabrics = append(fabrics, tcp.New(), fault.Wrap(inproc.NewFabric(), fault.Legal(11)))
			}
			for _, fabric := range fabrics {
				loseTwoOfFive(t, fabric, name, call)
			}
		})
	}
}

// loseTwoOfFive runs call, which waits for rank 2 or 3, on the other three of five ranks while the
// launcher reports ranks 2 and 3 as failed. Then these three ranks must be able to Shrink.
func loseTwoOfFive(t *testing.T, fabric transport.Provider, name string, call func(c *comm.Comm) error) {
	t.Helper()
	var met, over sync.WaitGroup // met: all ranks have left the barrier; over: the live ranks have returned
	met.Add(5)
	over.Add(3)
	ranks(t, 5, func(c *comm.Comm) error {
		lost := c.Rank() == 2 || c.Rank() == 3
		if !lost {
			defer over.Done()
		}
		err := c.Barrier() // so that every rank has exchanged messages with the others
		met.Done()
		if err != nil {
			return err
		}
		met.Wait()
		if lost {
			over.Wait()
			err := comm.Ssend(c, []int{1}, 0, 0)
			commtest.Kill(c)
			return wantErr("a rank reported as failed", err, comm.ErrProcFailed, "")
		}
		if c.Rank() == 0 {
			commtest.Report(c, silent, 2, 3)
		}
		err = call(c)
		if !isErr(err, comm.ErrProcFailed) && !isErr(err, comm.ErrRevoked) {
			return fmt.Errorf("%s: %s", name, text(err))
		}
		if err := c.Revoke(); err != nil {
			return err
		}
		next, err := c.Shrink()
		if err != nil {
			return err
		}
		if _, err := comm.Recv(c, []int{1}, 2, 0); !isErr(err, comm.ErrRevoked) {
			return fmt.Errorf("Recv: %s", text(err))
		}
		if got := c.FailedRanks(); !slices.Equal(got, []int{2, 3}) {
			return fmt.Errorf("failed: %v", got)
		}
		return first(barrierOf(next, 3), next.Free(), c.Finalize())
	}, commtest.WithNotify(), commtest.WithProviders(fabric))
}

// TestReasonInErrors: if the launcher reports a rank as failed, the error of a call that needs the
// rank contains the launcher's reason.
func TestReasonInErrors(t *testing.T) {
	over := make(chan struct{})
	ranks(t, 3, func(c *comm.Comm) error {
		switch c.Rank() {
		case 1:
			_, err := comm.Recv(c, []int{1}, 0, 0)
			return err
		case 2:
			_, err := comm.Recv(c, []int{1}, 1, 0)
			<-over
			commtest.Kill(c)
			return wantErr("given up", err, comm.ErrProcFailed, "")
		}
		defer close(over)
		commtest.Report(c, silent, 2)
		_, err := comm.Recv(c, []int{1}, 2, 0)
		return first(wantErr("Recv", err, comm.ErrProcFailed, "comm: Recv (world, rank 2, tag 0): rank 2 of the world failed: "+silent),
			comm.Send(c, []int{1}, 1, 0))
	}, commtest.WithNotify())
}

// TestFailedRanksInTexts: in the errors of a communicator whose ranks differ from those of the
// world, the text says whether a number is a rank of the communicator or of the world.
func TestFailedRanksInTexts(t *testing.T) {
	partOf := func(world *comm.Comm) (*comm.Comm, error) { return world.Split(min(world.Rank(), 1), 0) }
	t.Run("reported", func(t *testing.T) {
		var over sync.WaitGroup
		over.Add(2)
		ranks(t, 5, func(world *comm.Comm) error {
			part, err := partOf(world)
			if err := first(err, world.Barrier()); err != nil {
				return err
			}
			switch world.Rank() {
			case 0:
				commtest.Report(world, silent, 3, 4)
				return nil
			case 3, 4:
				over.Wait()
				commtest.Kill(world)
				return nil
			}
			defer over.Done()
			_, recv := comm.Recv(part, []int{1}, 2, 0)
			// This rank also knows of this failure, because the launcher has reported both at once.
			_, last := comm.Recv(part, []int{1}, 3, 0)
			_, agree := part.Agree(1)
			return first(wantErr("Recv", recv, comm.ErrProcFailed, "rank 2, tag 0): rank 3 of the world failed: "+silent),
				wantErr("Recv", last, comm.ErrProcFailed, "rank 3, tag 0): rank 4 of the world failed: "+silent),
				wantErr("Agree", agree, comm.ErrProcFailed, "): rank 3 of the world failed: "+silent+"; ranks [2 3] of the communicator failed in all"))
		}, commtest.WithNotify())
	})
	t.Run("noticed", func(t *testing.T) {
		ranks(t, 3, func(world *comm.Comm) error {
			defer commtest.Kill(world) // otherwise Run would call Finalize, which returns an error after a failure
			part, err := partOf(world)
			if err != nil {
				return err
			}
			switch world.Rank() {
			case 0: // rank 0 waits until rank 1 has ended
				_, err := comm.Recv(world, []int{1}, 1, 0)
				return unless(err, comm.ErrProcFailed)
			case 2:
				_, err := comm.Recv(part, []int{1}, 0, 0)
				return err
			}
			err = comm.Ssend(part, []int{1}, 1, 0)
			_, recv := comm.Recv(part, []int{1}, 1, 0)
			return first(err, wantErr("Recv", recv, comm.ErrProcFailed, "rank 1, tag 0): process failed: rank 2 of the world: "))
		})
	})
	t.Run("Start", func(t *testing.T) {
		ranks(t, 3, func(world *comm.Comm) error {
			part, err := partOf(world)
			if err != nil || world.Rank() == 0 {
				return err
			}
			ctx, cancel := context.WithCancel(world.Context())
			defer cancel()
			w, err := comm.NewWin[int](part.WithContext(ctx), 1)
			if err := first(err, part.Barrier()); err != nil {
				return err
			}
			if world.Rank() == 2 {
				cancel()
				err = wantErr("Start", w.Start([]int{0}), context.Canceled, "")
			} else {
				err = wantErr("Start", w.Start([]int{1}), comm.ErrRevoked, "revoked by rank 2 of the world: Start of rank 1 of win 1.")
			}
			return first(err, unless(w.Free(), comm.ErrRevoked, comm.ErrRMASync))
		})
	})
}

// TestRepeatedShrink: ranks die one after the other, always the one that would be the coordinator
// of the next agreement. Some of them die during an agreement. The others must be able to Shrink
// each time.
func TestRepeatedShrink(t *testing.T) {
	overAll(t, 6, func(c *comm.Comm) error {
		for n := 6; n > 1; n-- {
			if c.Rank() == 0 {
				if n%2 == 0 { // this rank dies during an agreement
					ctx, cancel := context.WithCancel(context.Background())
					cancel()
					_, err := c.WithContext(ctx).Shrink()
					if err == nil || n < 6 && !isErr(err, context.Canceled) {
						return fmt.Errorf("Shrink: %s", text(err))
					}
				}
				commtest.Kill(c)
				return nil
			}
			err := c.Barrier()
			if !isErr(err, comm.ErrProcFailed) && !isErr(err, comm.ErrRevoked) {
				return fmt.Errorf("Barrier: %s", text(err))
			}
			if err := c.Revoke(); err != nil {
				return err
			}
			next, err := c.Shrink()
			if err != nil {
				return err
			}
			if err := c.Free(); c.Size() < 6 && err != nil {
				return err
			}
			if c = next; c.Size() != n-1 {
				return fmt.Errorf("%d ranks, not %d", c.Size(), n-1)
			}
			_ = c.Barrier() // so that the next rank dies only when all ranks have the new communicator
		}
		return barrierOf(c, 1)
	})
}

// TestDecisionsSurviveCoordinators: each coordinator dies as soon as it has the decision. The other
// ranks still agree, and no rank waits for ever.
func TestDecisionsSurviveCoordinators(t *testing.T) {
	for range 5 {
		overAll(t, 6, func(c *comm.Comm) error {
			for c.Size() > 1 {
				if c.Rank() == 0 {
					commtest.Kill(c)
					return nil
				}
				next, err := c.Shrink()
				if err != nil {
					return err
				}
				c = next
			}
			return barrierOf(c, 1)
		})
	}
}

// TestSurvivorsAgree has ranks die before and after agreements, at random. All ranks that are alive
// at the end must have had the same sequence of communicators.
func TestSurvivorsAgree(t *testing.T) {
	const n, steps = 7, 8
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var dies [n]int // by rank: the step before which it dies; every other step is an agreement
		for r := range dies {
			dies[r] = rng.IntN(2 * steps)
		}
		dies[rng.IntN(n)] = steps // one rank does not die
		overEach(t, func(t *testing.T, p transport.Provider) {
			t.Logf("seed %d: %v", seed, dies)
			chains := make(chan string, n) // from each live rank: the members of its communicators, as text
			ranks(t, n, func(world *comm.Comm) error {
				c, chain := world, ""
				for step := range steps {
					if dies[world.Rank()] == step {
						commtest.Kill(c)
						return nil
					}
					if step%2 == 1 {
						continue
					}
					next, err := c.Shrink()
					if err != nil {
						return err
					}
					c = next
					members, err := c.Group().Translate(count(c.Size(), 0), world.Group())
					if err != nil {
						return err
					}
					chain += fmt.Sprint(members)
				}
				chains <- chain
				return nil
			}, commtest.WithNotify(), commtest.WithProviders(p))
			close(chains)
			want := <-chains
			for chain := range chains {
				require.Equal(t, want, chain)
			}
		})
	}
}

func TestAgree(t *testing.T) {
	overAll(t, 4, func(world *comm.Comm) error {
		c, err := world.Dup()
		if err != nil {
			return err
		}
		flag, err := c.Agree(0b1111 &^ (1 << c.Rank()))
		if err != nil || flag != 0 {
			return fmt.Errorf("%b: %w", flag, err)
		}
		if flag, err = c.Agree(-1); err != nil || flag != -1 {
			return fmt.Errorf("%b: %w", flag, err)
		}
		if c.Rank() == 3 {
			commtest.Kill(c)
			return nil
		}
		if c.Rank() == 1 {
			_ = c.Revoke()
		}
		flag, err = c.Agree(0b11<<c.Rank() | 0b100)
		if err := first(wantErr("Agree", err, comm.ErrProcFailed, ""), same("flag", []int{flag}, []int{0b100})); err != nil {
			return err
		}
		if got := c.AckFailed(); !slices.Equal(got, []int{3}) {
			return fmt.Errorf("acknowledged: %v", got)
		}
		if flag, err = c.Agree(c.Rank() + 4); err != nil || flag != 4 {
			return fmt.Errorf("%b: %w", flag, err)
		}
		return first(c.Revoke(), c.Free())
	})
}

// TestAckFailed: after AckFailed, a receive from AnySource ignores the failed rank.
func TestAckFailed(t *testing.T) {
	overAll(t, 3, func(c *comm.Comm) error {
		switch c.Rank() {
		case 2:
			commtest.Kill(c)
			return nil
		case 1:
			if _, err := comm.Recv(c, []int{1}, 0, 0); err != nil {
				return err
			}
			return comm.Send(c, []int{1}, 0, 0)
		}
		_, err := comm.Recv(c, []int{1}, comm.AnySource, 0)
		if err := wantErr("any", err, comm.ErrProcFailed, "2"); err != nil {
			return err
		}
		if got := c.AckFailed(); !slices.Equal(got, []int{2}) {
			return fmt.Errorf("acknowledged: %v", got)
		}
		r := comm.Irecv(c, []int{1}, comm.AnySource, 0)
		return first(comm.Send(c, []int{1}, 1, 0), wait(r))
	})
}

// TestPendingReceive: if a rank fails, a nonblocking receive from any source stays posted. Each call
// that waits for it returns ErrProcFailedPending, until the program has acknowledged the failure.
// Then the receive gets the message of another rank (as anysource.c of MPICH's tests expects).
func TestPendingReceive(t *testing.T) {
	for _, when := range []string{"before the failure", "after it"} {
		t.Run(when, func(t *testing.T) {
			overAll(t, 3, func(c *comm.Comm) error {
				switch c.Rank() {
				case 2:
					if when == "before the failure" {
						if _, err := comm.Recv(c, []int{1}, 0, 1); err != nil {
							return err
						}
					}
					commtest.Kill(c)
					return nil
				case 1:
					if _, err := comm.Recv(c, []int{1}, 0, 0); err != nil {
						return err
					}
					return comm.Send(c, []int{7}, 0, 0)
				}
				var r comm.Request
				buf := []int{0}
				if when == "before the failure" {
					r = comm.Irecv(c, buf, comm.AnySource, 0)
					if err := comm.Send(c, []int{0}, 2, 1); err != nil {
						return err
					}
				} else {
					for len(c.FailedRanks()) == 0 {
						if _, _, err := c.Iprobe(1, 5); err != nil {
							return err
						}
					}
					r = comm.Irecv(c, buf, comm.AnySource, 0)
				}
				if err := pendingEverywhere(r); err != nil {
					return err
				}
				if err := failedRanks(wait(r), 2); err != nil {
					return err
				}
				for done := range comm.Completed([]comm.Request{r}) {
					if !isErr(done.Err, comm.ErrProcFailedPending) {
						return fmt.Errorf("Completed: %+v", done)
					}
				}
				c.AckFailed()
				if _, ok, err := r.Test(); ok || err != nil {
					return fmt.Errorf("after AckFailed: %t %w", ok, err)
				}
				if err := comm.Send(c, []int{0}, 1, 0); err != nil {
					return err
				}
				st, err := r.Wait()
				if err != nil || st.Source != 1 || buf[0] != 7 {
					return fmt.Errorf("%+v %v %w", st, buf, err)
				}
				return nil
			})
		})
	}
}

// pendingEverywhere checks what each call that waits for r returns.
func pendingEverywhere(r comm.Request) error {
	rs := []comm.Request{{}, r}
	_, err := r.Wait()
	_, err2 := r.WaitContext(context.Background())
	i, _, err3 := comm.WaitAny(rs)
	done, err4 := comm.WaitSome(rs, nil)
	each, err5 := comm.WaitEach(rs, nil)
	_, ok, err6 := r.Test()
	j, _, ok2, err7 := comm.TestAny(rs)
	ok3, err8 := comm.TestAll(rs)
	_, ok4, err9 := r.Peek()
	if i != 1 || j != 1 || len(done) != 1 || len(each) != 2 || err4 != nil || ok || !ok2 || ok3 || ok4 || rs[1] != r {
		return fmt.Errorf("%d %d %v %v %w %t %t %t %t %v", i, j, done, each, err4, ok, ok2, ok3, ok4, rs)
	}
	for call, err := range map[string]error{"Wait": err, "WaitContext": err2, "WaitAny": err3, "WaitSome": done[0].Err, "WaitEach": err5,
		"a Completion": each[1].Err, "Test": err6, "TestAny": err7, "TestAll": err8, "Peek": err9, "WaitAll": comm.WaitAll(rs)} {
		if err := first(wantErr(call, err, comm.ErrProcFailedPending, "Irecv (world, any source, tag 0)"), wantErr(call, err, comm.ErrProcFailed, "")); err != nil {
			return err
		}
	}
	return nil
}

func TestDifferentAgreements(t *testing.T) {
	ranks(t, 3, func(c *comm.Comm) error {
		var err error
		if c.Rank() == 1 {
			_, err = c.Shrink()
		} else {
			_, err = c.Agree(1)
		}
		return first(wantErr("mismatch", err, comm.ErrMismatch, ""), barrierOf(c, 3))
	})
}

// TestAgreeCancelled: the context of rank 0 ends its Agree. The Agree of the other ranks completes.
func TestAgreeCancelled(t *testing.T) {
	ranks(t, 3, func(c *comm.Comm) error {
		if c.Rank() == 0 {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if _, err := c.WithContext(ctx).Agree(1); err != nil && !isErr(err, context.Canceled) {
				return err
			}
		} else if _, err := c.Agree(1); err != nil {
			return err
		}
		return barrierOf(c, 3)
	})
}

// TestAgreeOnClosed calls the functions of ULFM on a freed and on a nil communicator. They must
// return ErrClosed, no ranks, or epoch 0.
func TestAgreeOnClosed(t *testing.T) {
	ranks(t, 2, func(world *comm.Comm) error {
		c, err := world.Dup()
		if err != nil {
			return err
		}
		if err := c.Free(); err != nil {
			return err
		}
		var none *comm.Comm
		_, err1 := c.Agree(1)
		_, err2 := none.Shrink()
		if c.FailedRanks() != nil || none.AckFailed() != nil || none.Epoch() != 0 || world.Epoch() != 3 {
			return errors.New("a freed or nil communicator has failed ranks, or the epoch is wrong")
		}
		return first(wantErr("Agree", err1, comm.ErrClosed, "Agree"), wantErr("Shrink", err2, comm.ErrClosed, "nil"))
	}, commtest.WithEpoch(3))
}

// TestFinalizeOfSurvivors: Finalize of the live ranks returns no error, although two ranks die, the
// second one when it has learned of the death of the first. The others may be in Finalize by then.
func TestFinalizeOfSurvivors(t *testing.T) {
	overAll(t, 5, func(c *comm.Comm) error {
		if c.Rank() == 1 || c.Rank() == 4 {
			if c.Rank() == 4 {
				if _, err := comm.Recv(c, []int{1}, 1, 0); !isErr(err, comm.ErrProcFailed) {
					return fmt.Errorf("Recv: %s", text(err))
				}
			}
			commtest.Kill(c)
		}
		return nil
	})
}

// TestFailureDuringFinalize: if the launcher reports a rank as failed while the other ranks wait
// for it in Finalize, Finalize returns no error on these.
func TestFailureDuringFinalize(t *testing.T) {
	overAll(t, 4, func(c *comm.Comm) error {
		if c.Rank() < 3 {
			return nil
		}
		commtest.Report(c, silent, 3)
		_, err := comm.Recv(c, []int{1}, 0, 0)
		commtest.Kill(c)
		return wantErr("given up", err, comm.ErrProcFailed, "")
	})
}

// TestWindowCallsAfterFailure: every call on a window that waits for a failed rank ends.
func TestWindowCallsAfterFailure(t *testing.T) {
	for name, call := range map[string]func(w *comm.Win[int]) error{
		"Lock":  func(w *comm.Win[int]) error { return first(w.Lock(2, comm.LockExclusive), w.Unlock(2)) },
		"Fence": func(w *comm.Win[int]) error { return w.Fence() },
		"RGet":  func(w *comm.Win[int]) error { return first(w.LockAll(), wait(w.RGet([]int{1}, 2, 0))) },
		"Wait":  func(w *comm.Win[int]) error { return first(w.Post([]int{2}), w.Wait()) },
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 3, func(c *comm.Comm) error {
				w, err := comm.NewWin[int](c, 10)
				// Rank 2 holds the lock of its own part, so that no other rank gets the lock.
				if err == nil && c.Rank() == 2 {
					err = w.Lock(2, comm.LockExclusive)
				}
				if err := first(err, c.Barrier()); err != nil {
					return err
				}
				switch c.Rank() {
				case 2:
					commtest.Report(c, silent, 2)
					_, rerr := comm.Recv(c, []int{1}, 0, 0)
					commtest.Kill(c)
					return wantErr("given up", rerr, comm.ErrProcFailed, "")
				case 1: // rank 1 makes the call after it knows of the failure
					_, err := comm.Recv(c, []int{1}, 2, 0)
					if err := wantErr("Recv", err, comm.ErrProcFailed, ""); err != nil {
						return err
					}
				}
				err = call(w)
				if !isErr(err, comm.ErrProcFailed) && !isErr(err, comm.ErrRevoked) {
					return fmt.Errorf("%s: %s", name, text(err))
				}
				_ = w.Free()
				next, err := c.Shrink()
				return first(err, barrierOf(next, 2))
			}, commtest.WithNotify())
		})
	}
}
