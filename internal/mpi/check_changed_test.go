//go:build !race

// The programs of these tests have data races, which the race detector would report: see
// TestRaceDetector.

package mpi_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/mpi"
)

// changed is a format of a regular expression for the error of an operation whose buffer was
// changed. Its arguments are the name of the call, and of the call that completes the operation
// ("it" for a blocking call).
const changed = `buffer is in use: the buffer of %s at check_changed_test\.go:\d+ was changed before %s returned`

// TestCheckChanged has rank 0 change the buffer of a send before the send is complete, for each
// kind of send. The call that completes the send must return ErrInUse.
func TestCheckChanged(t *testing.T) {
	large := make([]int, 1<<17)
	for name, test := range map[string]struct {
		buf  []int
		call string
		send func(c *comm.Comm, buf []int) error
	}{
		"eager Isend": {make([]int, 4), "Isend", func(c *comm.Comm, buf []int) error {
			r := comm.Isend(c, buf, 1, 5)
			buf[3]++
			_, err := r.Wait()
			return err
		}},
		"large Isend": {large, "Isend", func(c *comm.Comm, buf []int) error {
			r := comm.Isend(c, buf, 1, 5)
			buf[len(buf)-1]++
			for {
				if _, done, err := r.Test(); done {
					return err
				}
			}
		}},
		"Issend": {make([]int, 1), "Issend", func(c *comm.Comm, buf []int) error {
			rs := []comm.Request{comm.Issend(c, buf, 1, 5)}
			buf[0]++
			return comm.WaitAll(rs)
		}},
		"WaitAny": {make([]int, 1), "Isend", func(c *comm.Comm, buf []int) error {
			rs := []comm.Request{comm.Isend(c, buf, 1, 5)}
			buf[0]++
			_, _, err := comm.WaitAny(rs)
			return err
		}},
		"TestAll": {make([]int, 1), "Isend", func(c *comm.Comm, buf []int) error {
			rs := []comm.Request{comm.Isend(c, buf, 1, 5)}
			buf[0]++
			for {
				if done, err := comm.TestAll(rs); done {
					return err
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			commtest.Run(t, 2, func(c *comm.Comm) error {
				if c.Rank() == 1 {
					_, err := comm.Recv(c, make([]int, len(test.buf)), 0, 5)
					return err
				}
				err := test.send(c, test.buf)
				require.ErrorIs(t, err, comm.ErrInUse)
				require.Regexp(t, fmt.Sprintf(changed, test.call, "Wait"), err)
				require.Regexp(t, `^comm: `+test.call+` \(world, rank 1, tag 5\): `, err)
				return nil
			}, commtest.WithParam("check", "true"))
		})
	}
}

// TestCheckCalls has a goroutine change the buffer of another goroutine's blocking call, which must
// return ErrInUse.
func TestCheckCalls(t *testing.T) {
	for name, test := range map[string]struct {
		rank0, rank1 func(c *comm.Comm, buf []int) error
	}{
		"Ssend": {
			func(c *comm.Comm, buf []int) error { return comm.Ssend(c, buf, 1, 5) },
			func(c *comm.Comm, buf []int) error { _, err := comm.Recv(c, buf, 0, 5); return err },
		},
		"Sendrecv": {
			func(c *comm.Comm, buf []int) error {
				_, err := comm.Sendrecv(c, buf, 1, 5, make([]int, 1), 1, 6)
				return err
			},
			func(c *comm.Comm, buf []int) error {
				if _, err := comm.Recv(c, buf, 0, 5); err != nil {
					return err
				}
				return comm.Send(c, buf, 0, 6)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			commtest.Run(t, 2, func(c *comm.Comm) error {
				buf := make([]int, 1)
				if c.Rank() == 1 { // rank 1 receives only after rank 0 has changed the buffer
					if _, err := comm.Recv(c, buf, 0, 1); err != nil {
						return err
					}
					return test.rank1(c, buf)
				}
				var other sync.WaitGroup
				other.Go(func() {
					for len(mpi.Pending((*mpi.Comm)(c))) == 0 { // wait until the call has started
					}
					buf[0]++
					require.NoError(t, comm.Send(c, []int{0}, 1, 1))
				})
				err := test.rank0(c, buf)
				other.Wait()
				require.ErrorIs(t, err, comm.ErrInUse)
				require.Regexp(t, fmt.Sprintf(changed, name, "it"), err)
				require.Regexp(t, `^comm: `+name+` \(world, rank 1, tag 5\): `, err)
				return nil
			}, commtest.WithParam("check", "true"))
		})
	}
}

// TestCheckChangedUnfinished changes the buffer of a send whose transfer continues after the
// context has ended. Wait of the Unfinished must return ErrInUse.
func TestCheckChangedUnfinished(t *testing.T) {
	commtest.Run(t, 2, func(c *comm.Comm) error {
		buf := make([]int, 300000) // elements; longer than the eager limit of every transport
		if c.Rank() == 1 {
			_, err := comm.Recv(c, buf[:1], 0, 3)
			_, received := comm.Recv(c, buf, 0, 4)
			return errors.Join(err, received)
		}
		var u *comm.Unfinished
		require.ErrorAs(t, comm.Send(ended(c), buf, 1, 4), &u)
		buf[7]++
		require.NoError(t, comm.Send(c, []int{1}, 1, 3))
		err := u.Wait(c.Context())
		require.ErrorIs(t, err, comm.ErrInUse)
		require.Regexp(t, fmt.Sprintf(changed, "Send", `Unfinished\.Wait`), err)
		return nil
	}, commtest.WithParam("check", "true"))
}

// TestCheckCollective: a rank changes the buffer of a collective that has not returned. The rank
// gets ErrInUse; if the call blocks, the communicator is also revoked.
func TestCheckCollective(t *testing.T) {
	t.Run("Iallreduce", func(t *testing.T) {
		commtest.Run(t, 2, func(c *comm.Comm) error {
			send := []int{1}
			r := comm.Iallreduce(c, send, make([]int, 1), comm.Sum)
			if c.Rank() == 0 {
				send[0]++
			}
			_, err := r.Wait()
			if c.Rank() == 1 {
				return err
			}
			require.Regexp(t, fmt.Sprintf(changed, "Iallreduce", "Wait"), err)
			return nil
		}, commtest.WithParam("check", "true"))
	})
	t.Run("Allreduce", func(t *testing.T) {
		var found atomic.Int32
		commtest.Run(t, 2, func(c *comm.Comm) error {
			send := []int{1}
			changes := comm.OpFunc(true, func(inout, in []int) {
				send[0]++
				inout[0] += in[0]
			})
			if err := comm.Allreduce(c, send, make([]int, 1), changes); err != nil && !errors.Is(err, comm.ErrRevoked) {
				require.Regexp(t, fmt.Sprintf(changed, "Allreduce", "it"), err)
				found.Add(1)
			}
			require.ErrorIs(t, c.Barrier(), comm.ErrRevoked)
			return nil
		}, commtest.WithParam("check", "true"))
		require.Positive(t, found.Load())
	})
}

// overlaps is a format of a regular expression for the error of an operation whose buffer is in
// use: its arguments are the names of the call and of the pending call.
const overlaps = `buffer is in use: %s at check_changed_test\.go:\d+ has memory in common with the buffer of %s at check_changed_test\.go:\d+, which is not complete`

// TestCheckOverlap checks that an operation fails with ErrInUse if its buffer overlaps that of a
// pending operation, and one of the two operations writes the memory.
func TestCheckOverlap(t *testing.T) {
	for name, test := range map[string]struct {
		first, second string
		run           func(c *comm.Comm, buf []int) (first comm.Request, err error)
	}{
		"two receives": {"Irecv", "Irecv", func(c *comm.Comm, buf []int) (comm.Request, error) {
			first := comm.Irecv(c, buf[:3], 0, 1)
			_, err := comm.Irecv(c, buf[2:], 0, 2).Wait()
			return first, err
		}},
		"send of a receive's memory": {"Irecv", "Isend", func(c *comm.Comm, buf []int) (comm.Request, error) {
			first := comm.Irecv(c, buf, 0, 1)
			_, err := comm.Isend(c, buf[:1], 0, 2).Wait()
			return first, err
		}},
		"blocking": {"Irecv", "Send", func(c *comm.Comm, buf []int) (comm.Request, error) {
			first := comm.Irecv(c, buf, 0, 1)
			return first, comm.Send(c, buf[:1], 0, 2)
		}},
		"receive into a send's memory": {"Isend", "Recv", func(c *comm.Comm, buf []int) (comm.Request, error) {
			first := comm.Isend(c, buf, 0, 1)
			_, err := comm.Recv(c, buf[3:], 0, 2)
			return first, err
		}},
		"Sendrecv": {"Irecv", "Sendrecv", func(c *comm.Comm, buf []int) (comm.Request, error) {
			first := comm.Irecv(c, buf[:1], 0, 1)
			_, err := comm.Sendrecv(c, []int{1}, 0, 2, buf[:2], 0, 2)
			return first, err
		}},
		"collective": {"Irecv", "Allreduce", func(c *comm.Comm, buf []int) (comm.Request, error) {
			first := comm.Irecv(c, buf[:1], 0, 1)
			return first, comm.Allreduce(c, []int{1}, buf[:1], comm.Sum)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			commtest.Run(t, 1, func(c *comm.Comm) error {
				buf := make([]int, 4)
				c, err := c.Dup() // a new communicator, because a collective that fails revokes its communicator
				require.NoError(t, err)
				first, err := test.run(c, buf)
				require.ErrorIs(t, err, comm.ErrInUse)
				require.Regexp(t, fmt.Sprintf(overlaps, test.second, test.first), err)
				if test.first == "Irecv" {
					require.NoError(t, first.Cancel())
				} else if _, err := comm.Recv(c, make([]int, 4), 0, 1); err != nil {
					return err
				}
				_, _ = first.Wait()
				require.Empty(t, mpi.Pending((*mpi.Comm)(c)))
				return nil
			}, commtest.WithParam("check", "true"))
		})
	}
}

// TestCheckSendrecvSides: the error of a Sendrecv names the side whose buffer is in use.
func TestCheckSendrecvSides(t *testing.T) {
	commtest.Run(t, 1, func(c *comm.Comm) error {
		buf, other := make([]int, 4), make([]int, 1)
		in := comm.Irecv(c, buf[:2], 0, 1)
		out := comm.Isend(c, buf[2:], 0, 1)
		for side, call := range map[string]func() error{
			"tag 2": func() error { _, err := comm.Sendrecv(c, buf[:1], 0, 2, other, 0, 3); return err },
			"tag 3": func() error { _, err := comm.Sendrecv(c, other, 0, 2, buf[:1], 0, 3); return err },
			"tag 5": func() error { _, err := comm.Sendrecv(c, other, 0, 4, buf[3:], 0, 5); return err },
			"tag 7": func() error { _, err := comm.SendrecvReplace(c, buf[3:], 0, 6, 0, 7); return err },
		} {
			err := call()
			require.ErrorIs(t, err, comm.ErrInUse)
			require.Contains(t, err.Error(), "(world, rank 0, "+side+"): ")
		}
		return comm.WaitAll([]comm.Request{in, out})
	}, commtest.WithParam("check", "true"))
}

// TestCheckChangedPartition changes a partition after Ready and before Wait. Wait must return
// ErrInUse; in the next round, which changes only partitions that are not ready, it must not.
func TestCheckChangedPartition(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		buf := make([]int, 6)
		if c.Rank() == 1 {
			r, err := comm.PrecvInit(c, buf, 2, 0, 5)
			for range 2 {
				if err = first(err, r.Start(), r.Wait()); err != nil {
					return err
				}
			}
			return first(c.Barrier(), r.Free())
		}
		s, err := comm.PsendInit(c, buf, 3, 1, 5)
		if err = first(err, s.Start(), s.Ready(1)); err != nil {
			return err
		}
		buf[3]++
		require.NoError(t, first(s.Ready(0), s.Ready(2)))
		err = s.Wait()
		require.ErrorIs(t, err, comm.ErrInUse)
		require.Regexp(t, fmt.Sprintf(changed, "Ready", "Wait"), err.Error())
		require.NoError(t, s.Start())
		for i := range 3 {
			buf[2*i]++
			require.NoError(t, s.Ready(i))
		}
		return first(s.Wait(), c.Barrier(), s.Free())
	}, commtest.WithParam("check", "true"))
}
