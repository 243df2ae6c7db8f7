package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// knows blocks until rank c knows that n ranks have failed.
func knows(c *comm.Comm, n int) error {
	for len(c.FailedRanks()) < n {
		if _, _, err := c.Iprobe(c.Rank(), 99); err != nil {
			return err
		}
	}
	return nil
}

// failedRanks checks that err says that the ranks have failed.
func failedRanks(err error, ranks ...int) error {
	var failed *comm.ProcFailedError
	if !errors.As(err, &failed) || !errors.Is(err, comm.ErrProcFailed) {
		return fmt.Errorf("want the failure of %v, got: %w", ranks, err)
	}
	return same("failed ranks", failed.Ranks, ranks)
}

// TestFailuresInTurn does what the tests of MPICH for failures do (sendalive, senddead, failure_ack,
// agree_shrink): two ranks fail one after the other. Live ranks still exchange messages, a message
// to a failed rank is an error with its rank, and AckFailed acknowledges what is known at that
// moment.
func TestFailuresInTurn(t *testing.T) {
	overAll(t, 5, func(c *comm.Comm) error {
		const first1, second = 1, 3
		exchange := func(tag int) error { // ranks 0, 2 and 4
			next, prev := (c.Rank()+2)%6, (c.Rank()+4)%6
			got := []int{0}
			_, err := comm.Sendrecv(c, []int{c.Rank()}, next, tag, got, prev, tag)
			return first(err, same("exchange", got, []int{prev}))
		}
		dead := func(rank int) error { return failedRanks(comm.Ssend(c, []int{1}, rank, 0), rank) }
		switch c.Rank() {
		case first1:
			commtest.Kill(c)
			return nil
		case second:
			for r := range 3 {
				if _, err := comm.Recv(c, []int{0}, 2*r, 5); err != nil {
					return err
				}
			}
			commtest.Kill(c)
			return nil
		}
		if err := first(knows(c, 1), dead(first1), exchange(1)); err != nil {
			return err
		}
		if got := c.AckFailed(); !slices.Equal(got, []int{first1}) {
			return fmt.Errorf("acknowledged: %v", got)
		}
		if err := first(comm.Send(c, []int{1}, second, 5), knows(c, 2), dead(second), exchange(2)); err != nil {
			return err
		}
		// Rank 0 has acknowledged the second failure, and the others have not.
		if c.Rank() == 0 {
			c.AckFailed()
		}
		flag, err := c.Agree(0b110 | c.Rank()>>1)
		if err := failedRanks(err, second); err != nil || flag != 0b110 {
			return fmt.Errorf("Agree: %b %w", flag, err)
		}
		if got := c.AckFailed(); !slices.Equal(got, []int{first1, second}) {
			return fmt.Errorf("acknowledged: %v", got)
		}
		if flag, err = c.Agree(0b111); flag != 0b111 || err != nil {
			return fmt.Errorf("Agree after AckFailed: %b %w", flag, err)
		}
		live, err := c.Shrink()
		if err != nil {
			return err
		}
		flag, err = live.Agree(1 << live.Rank())
		if flag != 0 || err != nil {
			return fmt.Errorf("Agree of the live ranks: %b %w", flag, err)
		}
		return barrierOf(live, 3)
	})
}

// TestIagree starts agreements and waits for them in another order. Their results are those of
// Agree, in the order of the calls.
func TestIagree(t *testing.T) {
	overFabrics(t, []int{1, 2, 3, 5}, func(c *comm.Comm) error {
		const n = 6
		var flags [n]int
		var rs []comm.Request
		for i := range n {
			flags[i] = 1<<i | 1<<(10+i+c.Rank())
			rs = append(rs, c.Iagree(&flags[i]))
		}
		last, err := c.Agree(0b11)
		if err != nil || last != 0b11 {
			return fmt.Errorf("Agree: %b %w", last, err)
		}
		for i := n - 1; i >= 0; i-- {
			if _, err := rs[i].Wait(); err != nil {
				return err
			}
			want := 1 << i
			if c.Size() == 1 {
				want |= 1 << (10 + i)
			}
			if flags[i] != want {
				return fmt.Errorf("agreement %d: %b, not %b", i, flags[i], want)
			}
		}
		bad := c.Iagree(nil)
		_, err = bad.Wait()
		bad = c.Ishrink(nil)
		_, err2 := bad.Wait()
		return first(wantErr("Iagree", err, comm.ErrArg, "Iagree"), wantErr("Ishrink", err2, comm.ErrArg, "Ishrink"))
	})
}

// TestIshrink: a rank fails. The others start Ishrink and an Iagree of the old communicator, which
// is revoked, and then use the new one.
func TestIshrink(t *testing.T) {
	overAll(t, 4, func(c *comm.Comm) error {
		if c.Rank() == 2 {
			commtest.Kill(c)
			return nil
		}
		d := c
		if err := c.Barrier(); !errors.Is(err, comm.ErrProcFailed) && !errors.Is(err, comm.ErrRevoked) {
			return fmt.Errorf("Barrier: %w", err)
		}
		if err := d.Revoke(); err != nil {
			return err
		}
		if !d.IsRevoked() {
			return errors.New("IsRevoked returns false after Revoke")
		}
		var live *comm.Comm
		flag := 0b1100 | 1<<c.Rank()
		rs := []comm.Request{d.Ishrink(&live), d.Iagree(&flag)}
		if _, err := rs[0].Wait(); err != nil {
			return err
		}
		if err := barrierOf(live, 3); err != nil {
			return err
		}
		_, err := rs[1].Wait()
		if flag != 0b1100&0b1101 && flag != 0b1100 {
			return fmt.Errorf("%b", flag)
		}
		if live.IsRevoked() {
			return errors.New("the new communicator is revoked")
		}
		return wantErr("Iagree", err, comm.ErrProcFailed, "Iagree")
	})
}

// TestRevokedWithoutFailure: a rank revokes the communicator while the others wait (as
// revoke_nofail.c of MPICH's tests). Their errors have the cause.
func TestRevokedWithoutFailure(t *testing.T) {
	overAll(t, 3, func(c *comm.Comm) error {
		d, err := c.Dup()
		if err != nil {
			return err
		}
		if d.IsRevoked() || (*comm.Comm)(nil).IsRevoked() {
			return errors.New("revoked from the start")
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		if c.Rank() == 0 {
			if err := d.Revoke(); err != nil {
				return err
			}
		}
		err = d.Barrier()
		var revoked *comm.RevokedError
		if !errors.Is(err, comm.ErrRevoked) || !errors.As(err, &revoked) || revoked.By < 0 || revoked.By > 2 || revoked.Cause == "" {
			return fmt.Errorf("not revoked by a rank for a cause: %w", err)
		}
		if !d.IsRevoked() || c.IsRevoked() {
			return errors.New("IsRevoked")
		}
		return first(d.Free(), c.Barrier())
	})
}

// TestWindowAfterFailure: FailedRanks and IsRevoked of a window.
func TestWindowAfterFailure(t *testing.T) {
	overAll(t, 3, func(c *comm.Comm) error {
		w, err := comm.NewWin[int](c, 1)
		if err != nil {
			return err
		}
		if w.FailedRanks() != nil || w.IsRevoked() {
			return errors.New("failed from the start")
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		if c.Rank() == 1 {
			commtest.Kill(c)
			return nil
		}
		if err := knows(c, 1); err != nil {
			return err
		}
		if got := w.FailedRanks(); !slices.Equal(got, []int{1}) {
			return fmt.Errorf("failed: %v", got)
		}
		err = w.Fence()
		if !errors.Is(err, comm.ErrProcFailed) && !errors.Is(err, comm.ErrRevoked) {
			return fmt.Errorf("Fence: %w", err)
		}
		if !w.IsRevoked() {
			return errors.New("Fence has failed, and the window is not revoked")
		}
		err = w.Free()
		if w.IsRevoked() || w.FailedRanks() != nil {
			return errors.New("after Free")
		}
		return err
	})
}

// peerOf returns the peer in the Error err.
func peerOf(err error) int {
	var e *comm.Error
	if !errors.As(err, &e) {
		return comm.Undefined
	}
	return e.Peer
}

// TestContextNamesTheRank: if a context ends a call that waits for a rank, the error names the rank.
func TestContextNamesTheRank(t *testing.T) {
	const absent = 1
	calls := map[string]func(c *comm.Comm) error{
		"Barrier":   (*comm.Comm).Barrier,
		"Bcast":     func(c *comm.Comm) error { return comm.Bcast(c, make([]int, 1<<14), absent) },
		"Gather":    func(c *comm.Comm) error { return comm.Gather(c, []int{1}, make([]int, c.Size()), 0) },
		"Allreduce": func(c *comm.Comm) error { return comm.Allreduce(c, []int{1}, []int{0}, comm.Sum) },
		"Agree":     func(c *comm.Comm) error { _, err := c.Agree(1); return err },
		"Shrink":    func(c *comm.Comm) error { _, err := c.Shrink(); return err },
		"Recv":      func(c *comm.Comm) error { _, err := comm.Recv(c, []int{1}, absent, 0); return err },
		"Ssend":     func(c *comm.Comm) error { return comm.Ssend(c, []int{1}, absent, 0) },
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			overAll(t, 2, func(c *comm.Comm) error {
				d, err := c.Dup()
				if err != nil {
					return err
				}
				if c.Rank() == absent {
					_, err := comm.Recv(c, []int{1}, 0, 1)
					return err
				}
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				err = call(d.WithContext(ctx))
				if peer := peerOf(err); peer != absent {
					return fmt.Errorf("peer %d: %w", peer, err)
				}
				return first(wantErr(name, err, context.Canceled, "rank 1"), comm.Send(c, []int{1}, absent, 1))
			})
		})
	}
}

// TestStartNamesTheRank is TestContextNamesTheRank for Start and Wait of windows.
func TestStartNamesTheRank(t *testing.T) {
	overAll(t, 2, func(c *comm.Comm) error {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		w, err := comm.NewWin[int](c.WithContext(ctx), 1)
		if err := first(err, c.Barrier()); err != nil {
			return err
		}
		if c.Rank() == 1 {
			_, err := comm.Recv(c, []int{1}, 0, 1)
			return err
		}
		if err := w.Post([]int{1}); err != nil {
			return err
		}
		cancel()
		werr, serr := w.Wait(), w.Start([]int{1})
		for call, err := range map[string]error{"Wait": werr, "Start": serr} {
			if peer := peerOf(err); peer != 1 {
				return fmt.Errorf("%s: peer %d: %w", call, peer, err)
			}
			if err := wantErr(call, err, context.Canceled, "waited for rank 1"); err != nil {
				return err
			}
		}
		return comm.Send(c, []int{1}, 1, 1)
	})
}
