//go:build libfabric

package mpi_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/weft-hpc/weft/comm"
)

// TestDeviceByRMA checks that the receiver of a long message reads and writes memory of devices by itself if
// the provider has FI_HMEM, and that messages are copied if it does not.
func TestDeviceByRMA(t *testing.T) {
	for script, hmem := range map[string]bool{"verbs": true, "cxi,nics=2": true, "psm": true, "efa": false} {
		for _, where := range [][2]string{{"device", "device"}, {"device", "host"}, {"host", "device"}} {
			g := newGPU(t)
			over(t, []fabric{manner(script, hmem)}, []int{2}, func(c *comm.Comm) error {
				const n = 100_000
				v, err := deviceMemory(g, where[c.Rank()], numbers(n, 100*c.Rank()))
				if err != nil {
					return err
				}
				if err := c.Barrier(); err != nil {
					return err
				}
				before := g.mem.Copies.Load()
				if err := c.Barrier(); err != nil {
					return err
				}
				for range 3 {
					if c.Rank() == 0 {
						err = v.Send(c, 1, 0)
					} else {
						_, err = v.Recv(c, 0, 0)
					}
					if err != nil {
						return err
					}
				}
				if err := c.Barrier(); err != nil {
					return err
				}
				if after := g.mem.Copies.Load(); (after == before) != hmem {
					return fmt.Errorf("from %s to %s: %d copies by the device", where[0], where[1], after-before)
				}
				return errors.Join(c.Barrier(), has(v, numbers(n, 0)))
			})
		}
	}
}

// TestDeviceNotKnown sends memory of a device that the provider does not know: the send says so, instead of
// copying what the program wants to be read directly.
func TestDeviceNotKnown(t *testing.T) {
	g := newGPU(t)
	other := &gpu{comm.NewDevice("ze", 0, g.mem), g.mem, t}
	over(t, []fabric{manner("cxi", true)}, []int{2}, func(c *comm.Comm) error {
		const n = 100_000
		if c.Rank() == 1 {
			_, err := comm.Recv(c, make([]int64, n), 0, comm.AnyTag)
			return err
		}
		v, err := other.of(numbers(n, 0))
		if err != nil {
			return err
		}
		if err := wantErr("Send", v.Send(c, 1, 0), comm.ErrNotSupported, "libfabric testprov on cxi: memory of ze:0"); err != nil {
			return err
		}
		return comm.Send(c, numbers(n, 0), 1, 1)
	})
}
