package coll_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/coll/colltest"
)

// TestHostMismatchOfLongAgo checks that ranks detect a mismatch in an earlier call. In that call
// each rank passes itself as the root, so no rank waits; then the ranks make equal calls.
func TestHostMismatchOfLongAgo(t *testing.T) {
	for name, later := range map[string]func(l coll.Link) error{
		"barriers": func(l coll.Link) error { return coll.Barrier(l, nil) },
		"bcasts":   func(l coll.Link) error { return coll.Bcast(l, nil, make([]byte, 8), 0) },
	} {
		w := colltest.New(2, colltest.Options{Hosts: []int{0, 0}, SharedBytes: 4 << 10})
		errs := errors.Join(w.Run(func(l *colltest.Link) error {
			l.SetSig(uint16(l.Rank()))
			if err := coll.Bcast(l, nil, make([]byte, 8), l.Rank()); err != nil {
				return err
			}
			l.SetSig(9)
			for range 20 {
				if err := later(l); err != nil {
					return err
				}
			}
			return nil
		})...)
		require.ErrorIs(t, errs, colltest.ErrMismatch, name)
		require.NotErrorIs(t, errs, colltest.ErrDeadlock, name)
	}
}

// delayed is a link whose Wake does not return until a channel is closed. Collectives call Wake
// after they have stored a word, so the other ranks see the word during the delay.
type delayed struct {
	*colltest.Link
	until chan struct{} // nil: no delay
}

func (l delayed) Wake() {
	l.Link.Wake()
	if l.until != nil {
		<-l.until
	}
}

// TestNobodyDiffersAfterABarrier checks that FindMismatch finds no rank after a barrier, even while
// another rank is delayed within the barrier: all ranks have arrived at it.
func TestNobodyDiffersAfterABarrier(t *testing.T) {
	for _, hosts := range [][]int{{0, 0, 0}, {0, 0, 0, 1, 1}} {
		w := colltest.New(len(hosts), colltest.Options{Hosts: hosts, SharedBytes: 4 << 10})
		looked := make(chan struct{})
		errs := w.Run(func(l *colltest.Link) error {
			for range 20 {
				if err := coll.Barrier(l, nil); err != nil {
					return err
				}
			}
			last := delayed{Link: l}
			if l.Rank() == 2 {
				last.until = looked
			}
			if err := coll.Barrier(last, nil); err != nil {
				return err
			}
			if l.Rank() == 0 {
				defer close(looked)
			}
			h, _ := l.Host()
			if rank, differs := h.FindMismatch(); differs {
				return fmt.Errorf("rank %d differs", rank)
			}
			return nil
		})
		require.NoError(t, errors.Join(errs...), "%v", hosts)
	}
}
