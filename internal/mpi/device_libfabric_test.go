//go:build libfabric

package mpi_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/internal/devicetest"
	"github.com/weft-hpc/weft/transport"
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

// TestDeviceKept checks that memory of a device is registered at most twice for many messages. After the program
// has freed it, memory with the same addresses must be registered again.
func TestDeviceKept(t *testing.T) {
	g := newGPU(t)
	f := manner("cxi", true)
	var registered atomic.Int64
	open := f.open
	f.open = func() transport.Provider { return &registrations{open(), &registered} }
	over(t, []fabric{f}, []int{2}, func(c *comm.Comm) error {
		n := 20_000 + c.Rank() // so that each rank gets its own addresses again
		peer := 1 - c.Rank()
		var before [2]uintptr
		for round := range 3 {
			var views [2]comm.View[int64]
			var mems [2][]byte
			for i := range views {
				mems[i] = g.mem.AllocBytes(t, 8*n)
				at := devicetest.Address(mems[i])
				if round > 0 && at != before[i] {
					return errors.New("the test needs memory with the same addresses")
				}
				before[i], views[i] = at, comm.OnDevice[int64](g.Device, at, 20_000)
			}
			if _, err := comm.Unpack(views[0], numbers(20_000, round+c.Rank())); err != nil {
				return err
			}
			for range 50 {
				if _, err := comm.SendrecvView(c, views[0], peer, 0, views[1], peer, 0); err != nil {
					return err
				}
			}
			if err := has(views[1], numbers(20_000, round+peer)); err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
			if err := c.Barrier(); err != nil {
				return err
			}
			if got, want := registered.Load(), int64(c.Size()*len(views)*2*(round+1)); got > want || got < want/2 {
				return fmt.Errorf("round %d: %d registrations, want %d to %d", round, got, want/2, want)
			}
			if err := c.Barrier(); err != nil {
				return err
			}
			for _, mem := range mems {
				g.mem.Free(mem)
			}
		}
		return nil
	})
}

// registrations counts the calls of RegisterDevice of a provider whose domains have CapPin and CapDevice.
type registrations struct {
	transport.Provider
	n *atomic.Int64
}

func (p *registrations) Open(cfg transport.Config) (transport.Domain, error) {
	d, err := p.Provider.Open(cfg)
	if err != nil {
		return nil, err
	}
	return &countingDomain{d, d.(transport.PinningDomain), d.(transport.DeviceDomain), p.n}, nil
}

type countingDomain struct {
	transport.Domain
	transport.PinningDomain
	transport.DeviceDomain
	n *atomic.Int64
}

func (d *countingDomain) RegisterDevice(mem []byte, dev transport.DeviceMemory, access transport.Access) (transport.MemoryRegion, error) {
	d.n.Add(1)
	return d.DeviceDomain.RegisterDevice(mem, dev, access)
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
