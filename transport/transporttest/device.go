package transporttest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/internal/devicetest"
	"github.com/weft-hpc/weft/transport"
)

// gpu is the device of the tests. A transport that runs them must be able to register its memory.
var gpu = transport.DeviceMemory{Kind: "cuda"}

// testDevices reads between device memory and host memory in all combinations except host to host, and writes
// from device to device.
func testDevices(w *world) {
	device := devicetest.New(w.t)
	all, host := make([]shared, len(w.ranks)), make([]shared, len(w.ranks))
	w.each(func(r *rank) error {
		if r.n == 1 {
			return nil
		}
		dom := r.dom.(transport.DeviceDomain)
		size := 1<<17 + 16
		data := slices.Clone(pattern(r.id, 0, size))
		mem := device.AllocBytes(w.t, size)
		if err := device.ToDevice(devicetest.Address(mem), data); err != nil {
			return err
		}
		mr, err := dom.RegisterDevice(mem, gpu, transport.RemoteRead|transport.RemoteWrite)
		if err != nil {
			return err
		}
		all[r.id] = shared{mr: mr, key: mr.Key(), at: mr.Base()}
		if err := r.share(host, data, transport.RemoteRead); err != nil { // also waits for all ranks
			return err
		}
		// Local buffers: local on the device, own in host memory.
		local := device.AllocBytes(w.t, size)
		region, err := dom.RegisterDevice(local, gpu, transport.Local)
		if err != nil {
			return err
		}
		own := make([]byte, size)
		access := func(post func(*request) error, p transport.Addr, from *shared, n int) error {
			q := &request{}
			q.op = transport.Op{Peer: p, RemoteKey: from.key, RemoteAddr: from.at + 8, Data: local[:n], Region: region}
			return r.finish(q, post)
		}
		p := transport.Addr((int(r.id) + 1) % r.n)
		for _, n := range []int{1, 1000, 1 << 17} {
			n = min(n, r.attr.MaxRMASize)
			want := pattern(p, 0, size)[8 : 8+n]
			for what, from := range map[string]*shared{"device": &all[p], "host": &host[p]} {
				if err := access(r.read, p, from, n); err != nil {
					return fmt.Errorf("read of %d bytes from the %s of rank %d to a device: %w", n, what, p, err)
				}
				clear(own)
				if err := device.ToHost(own[:n], devicetest.Address(local)); err != nil {
					return err
				}
				if err := sameAs(own[:n], want); err != nil {
					return fmt.Errorf("read of %d bytes from the %s of rank %d to a device: %w", n, what, p, err)
				}
			}
			clear(own)
			if err := r.access(r.read, p, all[p].key, all[p].at+8, own[:n]); err != nil {
				return fmt.Errorf("read of %d bytes from a device of rank %d: %w", n, p, err)
			}
			if err := sameAs(own[:n], want); err != nil {
				return fmt.Errorf("read of %d bytes from a device of rank %d: %w", n, p, err)
			}
		}
		if err := r.sync(); err != nil {
			return err
		}
		if r.attr.Caps.Has(transport.CapWrite) {
			n := min(1<<17, r.attr.MaxRMASize)
			if err := device.ToDevice(devicetest.Address(local), pattern(r.id, 7, n)); err != nil {
				return err
			}
			if err := access(r.write, p, &all[p], n); err != nil {
				return fmt.Errorf("write of %d bytes from a device to that of rank %d: %w", n, p, err)
			}
			if err := r.sync(); err != nil {
				return err
			}
			if err := device.ToHost(own[:n], devicetest.Address(mem)+8); err != nil {
				return err
			}
			from := transport.Addr((int(r.id) + r.n - 1) % r.n)
			if err := sameAs(own[:n], pattern(from, 7, n)); err != nil {
				return fmt.Errorf("write from rank %d: %w", from, err)
			}
		}
		if dom.KnowsDevice("abacus") || !dom.KnowsDevice(gpu.Kind) {
			return errors.New("KnowsDevice is wrong")
		}
		if _, err := dom.RegisterDevice(local, transport.DeviceMemory{Kind: "abacus"}, transport.Local); !errors.Is(err, transport.ErrNotSupported) {
			return fmt.Errorf("memory of an unknown device: got %w, want %w", orNone(err), transport.ErrNotSupported)
		}
		if err := region.Close(); err != nil {
			return err
		}
		if err := r.sync(); err != nil {
			return err
		}
		if err := mr.Close(); err != nil {
			return err
		}
		if err := r.unshare(host); err != nil { // also waits for all ranks
			return err
		}
		if err := r.access(r.read, p, all[p].key, all[p].at, own[:8]); !errors.Is(err, transport.ErrKey) {
			return fmt.Errorf("read of a closed region: got %w, want %w", orNone(err), transport.ErrKey)
		}
		return r.sync()
	})
}
