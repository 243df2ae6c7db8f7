package mpi_test

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/mpi"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/shm"
	"github.com/weft-hpc/weft/transport/tcp"
)

// onEach returns functions that make a provider for a job: of shared memory, of TCP, and of
// goroutines of one process.
func onEach() []func() transport.Provider {
	return []func() transport.Provider{shm.New, tcp.New, func() transport.Provider { return inproc.NewFabric() }}
}

// needsTheLastRank holds calls, by name, that cannot complete without a call of the last rank of
// the communicator.
var needsTheLastRank = map[string]func(c *comm.Comm) error{
	"Recv":   func(c *comm.Comm) error { _, err := comm.Recv(c, []int{1}, c.Size()-1, 0); return err },
	"Probe":  func(c *comm.Comm) error { _, err := c.Probe(c.Size()-1, 0); return err },
	"Mprobe": func(c *comm.Comm) error { _, _, err := c.Mprobe(c.Size()-1, 3); return err },
	"Ssend":  func(c *comm.Comm) error { return comm.Ssend(c, []int{1}, c.Size()-1, 0) },
	"Send":   func(c *comm.Comm) error { return comm.Send(c, make([]int, 1<<18), c.Size()-1, 0) },
	"Irecv":  func(c *comm.Comm) error { return wait(comm.Irecv(c, []int{1}, c.Size()-1, 0)) },
	"WaitAny": func(c *comm.Comm) error {
		_, _, err := comm.WaitAny([]comm.Request{comm.Irecv(c, []int{1}, c.Size()-1, 0)})
		return err
	},
	"Test": func(c *comm.Comm) error {
		for r := comm.Irecv(c, []int{1}, c.Size()-1, 0); ; {
			if _, done, err := r.Test(); done {
				return err
			}
		}
	},
	"Sendrecv": func(c *comm.Comm) error {
		_, err := comm.Sendrecv(c, []int{1}, c.Size()-1, 0, []int{2}, c.Size()-1, 0)
		return err
	},
	"Barrier":   (*comm.Comm).Barrier,
	"Bcast":     func(c *comm.Comm) error { return comm.Bcast(c, []int{1}, c.Size()-1) },
	"Allreduce": func(c *comm.Comm) error { return comm.Allreduce(c, []int{1}, []int{2}, comm.Sum) },
	"Alltoall":  func(c *comm.Comm) error { return comm.Alltoall(c, count(9*c.Size(), 0), make([]int, 9*c.Size())) },
	"Ibarrier":  func(c *comm.Comm) error { return wait(c.Ibarrier()) },
	"Split":     func(c *comm.Comm) error { _, err := c.Split(0, 0); return err },
}

// TestRanksInFinalize: a call that needs a rank in Finalize fails, whether or not the two ranks
// have exchanged messages before.
func TestRanksInFinalize(t *testing.T) {
	for name, call := range needsTheLastRank {
		for _, p := range onEach() {
			for _, met := range []bool{false, true} {
				for _, memory := range []string{"256k", "0"} {
					t.Run(fmt.Sprintf("%s/%s/met=%v/shared memory %s", name, p().Name(), met, memory), func(t *testing.T) {
						t.Parallel()
						const n = 3
						ranks(t, n, func(c *comm.Comm) error {
							var err error
							if met {
								err = comm.Alltoall(c, make([]int, n), make([]int, n))
							}
							if c.Rank() < n-1 {
								if err == nil { // otherwise another rank has revoked the world already
									err = call(c)
								}
								kind := comm.ErrFinalized
								if isErr(err, comm.ErrRevoked) {
									kind = comm.ErrRevoked
								}
								err = wantErr(name, err, kind, "called Finalize")
							}
							// Finalize may return an error, because a rank did not take part in the
							// collective.
							_ = c.Finalize()
							return err
						}, commtest.WithProviders(p()), commtest.WithParam("coll.shared_memory", memory))
					})
				}
			}
		}
	}
}

// TestSentBeforeFinalize: messages that a rank has sent before Finalize are received, even if the
// rank has not waited for them.
func TestSentBeforeFinalize(t *testing.T) {
	const n, long = 2000, 1 << 18
	for _, p := range onEach() {
		t.Run(p().Name(), func(t *testing.T) {
			ranks(t, 2, func(c *comm.Comm) error {
				if c.Rank() == 1 {
					for i := range n { // more messages than the sender has credit for
						if err := comm.Bsend(c, []int{i}, 0, 1); err != nil {
							return err
						}
					}
					return comm.Bsend(c, count(long, 0), 0, 2)
				}
				got := make([]int, long)
				if _, err := comm.Recv(c, got, 1, 2); err != nil {
					return err
				}
				if err := same("long", got, count(long, 0)); err != nil {
					return err
				}
				for i := range n {
					if _, err := comm.Recv(c, got, comm.AnySource, 1); err != nil || got[0] != i {
						return fmt.Errorf("message %d: %d %w", i, got[0], err)
					}
				}
				_, err := comm.Recv(c, got, 1, 1)
				return wantErr("one more", err, comm.ErrFinalized, "rank 1 of the world has called Finalize")
			}, commtest.WithProviders(p()))
		})
	}
}

// TestFinalizeWaitsForCollectives: a rank whose function returns before its nonblocking collective
// is complete still takes part in the collective.
func TestFinalizeWaitsForCollectives(t *testing.T) {
	var ofRank1 *comm.Comm
	returns := make(chan struct{})
	ranks(t, 3, func(c *comm.Comm) error {
		sum := make([]int, 1)
		if c.Rank() == 1 {
			comm.Iallreduce(c, []int{1}, sum, comm.Sum)
			ofRank1 = c
			close(returns)
			return nil
		}
		<-returns
		for !mpi.InFinalize((*mpi.Comm)(ofRank1)) {
			runtime.Gosched()
		}
		return first(comm.Allreduce(c, []int{c.Rank()}, sum, comm.Sum), same("sum", sum, []int{3}))
	})
}

// TestCallsBesideFinalize: calls that do not need the rank in Finalize succeed.
func TestCallsBesideFinalize(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		if c.Rank() == 1 {
			return c.Barrier()
		}
		stop := make(chan error)
		// This receive gets a message only when this rank itself sends one, below, like the receive
		// of a server.
		go func() {
			_, err := comm.Recv(c, make([]int, 1), comm.AnySource, 7)
			stop <- err
		}()
		posted := comm.Irecv(c, make([]int, 1), 1, 5)
		if err := c.Barrier(); err != nil {
			return err
		}
		_, err := comm.Recv(c, make([]int, 1), 1, 6) // this call fails when rank 1 is in Finalize
		if err := wantErr("Recv", err, comm.ErrFinalized, ""); err != nil {
			return err
		}
		for range 3 {
			if _, ok, err := c.Iprobe(1, 5); ok || err != nil {
				return fmt.Errorf("Iprobe: %v %w", ok, err)
			}
			if m, _, err := c.Improbe(comm.AnySource, 5); m != nil || err != nil {
				return fmt.Errorf("Improbe: %v %w", m, err)
			}
		}
		if err := posted.Cancel(); err != nil {
			return err
		}
		if st, err := posted.Wait(); err != nil || !st.Cancelled {
			return fmt.Errorf("cancelled: %+v %w", st, err)
		}
		return first(comm.Send(c, []int{1}, 0, 7), <-stop)
	})
}

// TestFailureBesideFinalize: a rank in Finalize regards another rank as failed, as it would if that
// rank had ended first and refused a connection. The two exchange no messages in Finalize. All
// ranks meet in Finalize, so Finalize must return no error.
func TestFailureBesideFinalize(t *testing.T) {
	for _, p := range onEach() {
		t.Run(p().Name(), func(t *testing.T) {
			lost := make(chan struct{})
			ranks(t, 3, func(c *comm.Comm) error {
				switch c.Rank() {
				case 0:
					<-lost // the other ranks stay in Finalize until this rank calls it
				case 2:
					go func() { // ends soon after rank 2 is in Finalize
						defer close(lost)
						mpi.LoseInFinalize((*mpi.Comm)(c), 1)
					}()
				}
				return nil
			}, commtest.WithProviders(p()))
		})
	}
}

// TestBsendsMeetInFinalize: two ranks have sent each other a message that neither receives.
// Finalize returns an error on both.
func TestBsendsMeetInFinalize(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		if err := comm.Bsend(c, make([]int, 1<<18), 1-c.Rank(), 0); err != nil {
			return err
		}
		return wantErr("Finalize", c.Finalize(), comm.ErrFinalized, "")
	})
}

// TestFailedRequests: Finalize returns the errors of requests that the program did not
// wait for, except those of failures that the program may tolerate.
func TestFailedRequests(t *testing.T) {
	const late = "the program did not wait for it"
	for name, x := range map[string]struct {
		run  func(c, dup *comm.Comm) error
		want [2]error // of Finalize, by rank
		opts []commtest.Option
	}{
		"argument": {func(c, _ *comm.Comm) error {
			if c.Rank() == 0 {
				comm.Isend(c, []int{1}, 77, 0)
			}
			return nil
		}, [2]error{comm.ErrRank, nil}, nil},
		"too long": {func(c, dup *comm.Comm) error {
			if c.Rank() == 1 {
				return comm.Ssend(dup, []int{1, 2, 3}, 0, 0)
			}
			comm.Irecv(dup, make([]int, 2), 1, 0)
			return nil
		}, [2]error{comm.ErrTruncate, nil}, nil},
		"types": {func(c, _ *comm.Comm) error {
			if c.Rank() == 1 {
				comm.Issend(c, []int{1}, 0, 0)
				return nil
			}
			_, err := comm.Recv(c, []float64{1}, 1, 0)
			return wantErr("Recv", err, comm.ErrMismatch, "")
		}, [2]error{nil, comm.ErrMismatch}, nil},
		"collective": {func(c, dup *comm.Comm) error {
			if c.Rank() == 1 {
				comm.Iallreduce(dup, []int{1}, []int{2}, comm.Sum)
			} else {
				comm.Iallreduce(dup, []float64{1}, []float64{2}, comm.Sum)
			}
			return nil
		}, [2]error{comm.ErrMismatch, comm.ErrMismatch}, nil},
		"revoked": {func(c, dup *comm.Comm) error {
			comm.Irecv(dup, []int{1}, 1-c.Rank(), 0)
			return first(c.Barrier(), dup.Revoke())
		}, [2]error{}, nil},
		"finalized": {func(c, dup *comm.Comm) error {
			comm.Irecv(dup, []int{1}, 1-c.Rank(), 0)
			comm.Isend(c, make([]int, 1<<20), 1-c.Rank(), 0)
			return nil
		}, [2]error{}, nil},
		"failed": {func(c, dup *comm.Comm) error {
			comm.Irecv(dup, []int{1}, 1-c.Rank(), 0)
			if c.Rank() == 1 {
				commtest.Kill(c)
				return nil
			}
			_, err := comm.Recv(c, []int{1}, 1, 0)
			comm.Isend(dup, []int{1}, 1, 0)
			return wantErr("Recv", err, comm.ErrProcFailed, "")
		}, [2]error{}, []commtest.Option{commtest.WithNotify()}},
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 2, func(c *comm.Comm) error {
				dup, err := c.Dup()
				if err != nil {
					return err
				}
				if err := x.run(c, dup); err != nil {
					return err
				}
				if name == "failed" && c.Rank() == 1 {
					return nil
				}
				if want := x.want[c.Rank()]; want != nil {
					return wantErr("Finalize", c.Finalize(), want, late)
				}
				return c.Finalize()
			}, x.opts...)
		})
	}
}

// TestManyRefused: a rank counts the refused requests that the program has not waited for, keeps
// only a few of them, and Finalize reports the right number and calls.
func TestManyRefused(t *testing.T) {
	const n, kept = 20, 8
	for name, x := range map[string]struct {
		waits []int // indices of the requests that the program waits for before Finalize
		want  string
	}{
		"none":      {nil, "20 requests failed, and the program did not wait for them: comm: Isend (world, rank 77, tag 0): rank out of range: the communicator has 1; and 19 more"},
		"the first": {[]int{0, 0}, "19 requests failed, and the program did not wait for them: comm: Isend (world, rank 77, tag 1): rank out of range: the communicator has 1; and 18 more"},
		"kept":      {[]int{0, 1, 2, 3, 4, 5, 6, 7}, "12 requests failed, and the program did not wait for them: 11 of Isend; 1 of Irecv (WEFT_CHECK=1 names the lines of the calls)"},
		"check":     {[]int{0, 1, 2, 3, 4, 5, 6, 7}, "12 requests failed, and the program did not wait for them: 11 of Isend, started at finalize_test.go:"},
		"but one":   {[]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}, "1 request failed, and the program did not wait for it: 1 of Irecv"},
		"all":       {[]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 1, func(c *comm.Comm) error {
				rs := make([]comm.Request, n)
				for tag := range n - 1 {
					rs[tag] = comm.Isend(c, []int{1}, 77, tag)
				}
				rs[n-1] = comm.Irecv(c, []int{1}, 77, n-1)
				if all, some := mpi.Refused((*mpi.Comm)(c)); all != n || some != kept {
					return fmt.Errorf("%d refused, %d kept", all, some)
				}
				for _, i := range x.waits {
					if err := wantErr("Wait", wait(rs[i]), comm.ErrRank, ""); err != nil {
						return err
					}
				}
				err := c.Finalize()
				if x.want == "" {
					return err
				}
				if want := "comm: Finalize (world): " + x.want; err == nil || !strings.HasPrefix(err.Error(), want) {
					return fmt.Errorf("Finalize: %w", err)
				}
				return nil
			}, commtest.WithParam("check", strconv.FormatBool(name == "check")))
		})
	}
}

// TestRanksInTexts: the text of an error says whether a number is a rank of the communicator or of
// the world.
func TestRanksInTexts(t *testing.T) {
	ranks(t, 3, func(c *comm.Comm) error {
		part, err := c.Split(min(c.Rank(), 1), 0)
		if err != nil {
			return err
		}
		other, err := part.Dup()
		if err != nil || c.Rank() == 0 {
			return err
		}
		if c.Rank() == 2 { // rank 1 of part
			return other.Revoke()
		}
		_, revoked := comm.Recv(other, []int{1}, 1, 0)
		_, recv := comm.Recv(part, []int{1}, 1, 0)
		return first(wantErr("revoked", revoked, comm.ErrRevoked, "rank 1, tag 0): communicator revoked by rank 2 of the world: rank 2 of the world called Revoke"),
			wantErr("Recv", recv, comm.ErrFinalized, "rank 1, tag 0): rank 2 of the world has called Finalize"),
			wantErr("Ssend", comm.Ssend(part, []int{1}, 1, 0), comm.ErrFinalized, `rank 1 did not receive: "rank 2 of the world has called Finalize`))
	})
}

// TestAgreementsBesideFinalize: if a rank is in Finalize, Agree and Shrink return the same error on
// all other ranks, whether the rank would be the coordinator or a voter.
func TestAgreementsBesideFinalize(t *testing.T) {
	for name, call := range map[string]func(c *comm.Comm) error{
		"Agree": func(c *comm.Comm) error {
			flag, err := c.Agree(0b100 | 1<<c.Rank())
			if flag&0b100 == 0 {
				return fmt.Errorf("flag %b: %w", flag, err)
			}
			return err
		},
		"Shrink": func(c *comm.Comm) error { _, err := c.Shrink(); return err },
	} {
		for _, p := range onEach() {
			for final := range 3 {
				t.Run(fmt.Sprintf("%s/%s/%d", name, p().Name(), final), func(t *testing.T) {
					t.Parallel()
					ranks(t, 3, func(c *comm.Comm) error {
						dup, err := c.Dup()
						if c.Rank() == final || err != nil {
							return err
						}
						for range 2 {
							if err := wantErr(name, call(dup), comm.ErrFinalized, fmt.Sprintf("rank %d of the world has called Finalize", final)); err != nil {
								return err
							}
						}
						return nil
					}, commtest.WithProviders(p()))
				})
			}
		}
	}
}

// TestAgreementsAfterFailureAndFinalize: if a rank has failed, and the rank that would be the next
// coordinator is in Finalize, Shrink returns ErrFinalized on the other ranks.
func TestAgreementsAfterFailureAndFinalize(t *testing.T) {
	overAll(t, 5, func(c *comm.Comm) error {
		switch c.Rank() {
		case 0:
			commtest.Kill(c)
			return nil
		case 1, 3:
			return nil
		}
		_, err := c.Shrink()
		return wantErr("Shrink", err, comm.ErrFinalized, "rank 1 of the world has called Finalize")
	})
}

// TestFinalizeWithoutTheNewComm: the context of rank 0 ends its Shrink, so rank 0 does not have the
// communicator that the others have. When rank 0 is in Finalize, Agree of the others on this
// communicator returns ErrFinalized.
func TestFinalizeWithoutTheNewComm(t *testing.T) {
	ranks(t, 3, func(c *comm.Comm) error {
		if c.Rank() == 0 {
			ctx, cancel := context.WithCancel(c.Context())
			cancel()
			_, err := c.WithContext(ctx).Shrink()
			return wantErr("cancelled", err, context.Canceled, "Shrink")
		}
		next, err := c.Shrink()
		if err != nil {
			return err
		}
		_, err = next.Agree(1)
		return wantErr("Agree", err, comm.ErrFinalized, "rank 0 of the world has called Finalize")
	})
}
