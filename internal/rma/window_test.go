package rma

import (
	"testing"
)

// Every rank puts to its right neighbour and gets from its left one.
func TestPutAndGet(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 7} {
		everyFlavour(t, n, 1<<12, func(t *testing.T, ms []*member) {
			each(t, ms, func(m *member) error {
				if err := m.fence(); err != nil {
					return err
				}
				src := pattern(1000, m.rank)
				if err := m.Put(background, (m.rank+1)%n, 8, src); err != nil {
					return err
				}
				if err := m.fence(); err != nil {
					return err
				}
				got := make([]byte, 1000)
				if err := m.Get(background, (m.rank+n-1)%n, 8, got); err != nil {
					return err
				}
				if err := m.fence(); err != nil {
					return err
				}
				if err := same(got, pattern(1000, (m.rank+2*n-2)%n)); err != nil {
					return err
				}
				return same(m.local[8:1008], pattern(1000, (m.rank+n-1)%n))
			})
		})
	}
}
