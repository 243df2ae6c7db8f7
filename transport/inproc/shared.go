package inproc

import (
	"fmt"

	"github.com/weft-hpc/weft/transport"
)

// pageSize is the alignment of memory from Alloc in bytes.
const pageSize = 4096

// Alloc allocates n bytes and registers them. The other ranks are in the same process, so they
// can load and store the bytes directly.
func (d *domain) Alloc(n int) ([]byte, transport.MemoryRegion, error) {
	if n <= 0 {
		return nil, nil, fmt.Errorf("inproc: allocate %d bytes: %w", n, transport.ErrBounds)
	}
	mem := alignedBytes(n)
	r, err := d.mailbox.register(d.keys, d.fabric.opt.mrMode, mem, transport.RemoteRead|transport.RemoteWrite)
	if err != nil {
		return nil, nil, err
	}
	r.mu.Lock()
	r.shared = true
	r.mu.Unlock()
	return mem, r, nil
}

// Map returns the slice that Alloc of the rank peer has returned together with the region that has
// the given key. If the rank has no such open region, Map returns ErrKey.
func (d *domain) Map(peer transport.Addr, key uint64) ([]byte, error) {
	if peer < 0 || int(peer) >= len(d.fabric.mailboxes) {
		return nil, transport.ErrAddress
	}
	r, err := d.fabric.mailboxes[peer].find(d.mailbox.rank, key)
	if err != nil {
		return nil, err
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.key != key || !r.shared {
		return nil, transport.ErrKey
	}
	return r.buf, nil
}

// Unmap does nothing, because Map maps nothing.
func (d *domain) Unmap([]byte) error { return nil }

// Asleep always returns true, because the fabric does not count the ranks that sleep.
func (d *domain) Asleep() bool { return true }

// Notify ends the Wait of a peer if the peer is in one, or if its last Arm has returned true and
// the Wait has not begun.
func (d *domain) Notify(peer transport.Addr) {
	if peer < 0 || int(peer) >= len(d.fabric.mailboxes) {
		return
	}
	b := d.fabric.mailboxes[peer]
	b.mu.Lock()
	if b.sleeping {
		b.signaled = true
		b.notifyLocked()
	}
	b.mu.Unlock()
}
