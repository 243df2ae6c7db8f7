package coll_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/coll/colltest"
)

// TestHostMismatchOfLongAgo: calls in which each rank took itself for the root,
// so that nobody waited, are noticed however many others follow.
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

// held is a link that is held up before it goes on from a store.
type held struct {
	*colltest.Link
	until chan struct{} // nil: it is not
}

func (l held) Wake() {
	l.Link.Wake()
	if l.until != nil {
		<-l.until
	}
}

// TestNobodyDiffersAfterABarrier: when a rank has left a barrier all have come
// to it, also those that are held up in it.
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
			last := held{Link: l}
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
			if rank, differs := h.Differs(); differs {
				return fmt.Errorf("rank %d differs", rank)
			}
			return nil
		})
		require.NoError(t, errors.Join(errs...), "%v", hosts)
	}
}
