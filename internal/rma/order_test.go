package rma

import (
	"fmt"
	"testing"
)

// TestPutOfAnElementOrders checks that a rank that gets a single element with Get also sees all
// earlier Puts of its origin. Between ranks of one process the race detector must see this order
// too.
func TestPutOfAnElementOrders(t *testing.T) {
	for _, size := range []int{4, 8} {
		p, set := flavours()["shared"]()
		ms := openWindows(t, openEngines(t, 2, p, set), 64, Config{Elem: size, Align: size})
		each(t, ms, func(m *member) error {
			if err := m.LockAll(background); err != nil {
				return err
			}
			for round := range byte(50) {
				flag, data := make([]byte, size), make([]byte, 24)
				flag[0] = round + 1
				if m.rank == 0 {
					for i := range data {
						data[i] = round
					}
					if err := m.Put(background, 1, 32, data); err != nil {
						return err
					}
					if err := m.Put(background, 1, 0, flag); err != nil {
						return err
					}
				} else {
					for got := make([]byte, size); got[0] != flag[0]; {
						if err := m.Get(background, 1, 0, got); err != nil {
							return err
						}
					}
					if err := m.Get(background, 1, 32, data); err != nil {
						return err
					}
					for _, x := range data {
						if x != round {
							return fmt.Errorf("%d in round %d", x, round)
						}
					}
				}
				if err := m.barrier(); err != nil {
					return err
				}
			}
			return m.UnlockAll(background)
		})
	}
}
