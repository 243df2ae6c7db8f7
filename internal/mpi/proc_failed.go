package mpi

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/agree"
)

// ProcFailedError is part of the error of a call that needs a failed process; errors.As finds it.
// It wraps the failure, which wraps ErrProcFailed.
type ProcFailedError struct {
	// Ranks of the call's communicator or window that have failed and that the call needs, in
	// ascending order. It is empty if the call knows the failure only from another rank.
	Ranks []int
	why   error
}

// Error returns the text of the failure.
func (e *ProcFailedError) Error() string { return e.why.Error() }

// Unwrap returns the failure.
func (e *ProcFailedError) Unwrap() error { return e.why }

// RevokedError is part of the error of a call on a communicator or window that a rank has revoked;
// errors.As finds it. It wraps ErrRevoked.
type RevokedError = engine.RevokedError

// withRanks returns err, the reason of a failed call on c. If err wraps ErrProcFailed, the result
// also wraps a ProcFailedError. peer is the rank that the call needs, or noRank.
func (c *Comm) withRanks(err error, peer int) error {
	var failed *ProcFailedError
	var revoked *engine.RevokedError
	if !errors.Is(err, ErrProcFailed) || errors.As(err, &failed) || errors.As(err, &revoked) {
		return err
	}
	failed = &ProcFailedError{why: err}
	world, ok := engine.FailedRank(err)
	switch {
	case ok && c != nil && c.s != nil:
		if r := slices.Index(c.s.peerRanks, world); r >= 0 {
			failed.Ranks = []int{r}
		}
	case peer >= 0:
		failed.Ranks = []int{peer}
	}
	return failed
}

// waitError is the error of a context that has ended a call while the call waited for a rank.
type waitError struct {
	rank int // of the call's communicator
	err  error
}

// waitedFor returns err with the rank that the call waited for, if err is the error of a context. Of
// an intercommunicator, rank is a rank of the union, and the result has only ranks of the remote
// group.
func (s *state) waitedFor(rank int, err error) error {
	if err == nil || !isContext(err) {
		return err
	}
	if s.inter != nil {
		remote := s.remoteRanks([]int{rank})
		if len(remote) == 0 {
			return err
		}
		rank = remote[0]
	}
	return &waitError{rank, err}
}

// Error returns a text that names the rank.
func (w *waitError) Error() string {
	return fmt.Sprintf("%v while the call waited for rank %d", w.err, w.rank)
}

// Unwrap returns the error of the context.
func (w *waitError) Unwrap() error { return w.err }

// lastPeer returns the rank that the collective of l waited for last. ok is false if it has not
// waited.
func (l *link) lastPeer() (rank int, ok bool) {
	w := l.lastWait.Load()
	if w>>32 != uint64(l.env.Tag) {
		return 0, false
	}
	return int(uint32(w)) - 1, uint32(w) > 0
}

// agreed returns the error of an agreement, with the rank that the call waited for.
func (s *state) agreed(err error) error {
	var w *agree.WaitError
	if errors.As(err, &w) {
		return s.waitedFor(w.Rank, w.Err)
	}
	return err
}
