//go:build libfabric

package libfabric

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// region implements transport.MemoryRegion: registered memory, which stays pinned until Close.
// RegisterMemory reuses the struct of a closed region.
type region struct {
	d  *domain
	fi fi.RawRegion // zero: buf is empty and so not registered
	// further are the registrations in the further lanes. A region that is too small for a divided read or
	// write has none.
	further []fi.RawRegion
	// kept is the registration that the region uses; nil: it has a registration of its own, and is
	// in regions.byKey.
	kept *kept
	key  uint64 // the key by which peers name the region; see domain.laneKey
	// base is the address by which peers access the first byte: its virtual address under
	// MRVirtAddr, else 0. If buf is empty, base is 0.
	base   uint64
	buf    []byte // if owner is not zero: memory of a device, which must not be accessed
	owner  owner
	access transport.Access
	open   bool // RegisterMemory has returned the region, and it is not closed
	pin    runtime.Pinner
	next   *region // next in the list of closed regions
}

// owner is what memory belongs to: an allocation of a device; zero: the host.
type owner struct {
	iface      fi.HMEMIface
	device     int    // number of the device among those of iface
	allocation uint64 // transport.DeviceMemory.Allocation
}

// regions holds the regions of a domain.
type regions struct {
	// mu guards the regions and what follows, because regions are registered and closed concurrently
	// with other calls. Only closeAll holds it during calls of libfabric, which may take long.
	mu     sync.Mutex
	closed bool           // no further call of libfabric begins, except those of closeAll
	calls  sync.WaitGroup // counts the calls of libfabric in progress; no Add after closed is set
	// byKey has the open registrations by key, and those for which a call of libfabric is in progress;
	// nil: there was none yet.
	byKey map[uint64]*region
	free  *region   // list of closed regions, which RegisterMemory reuses
	stuck []*region // regions whose registration has failed and could not be undone
	kept  keeper
	count uint64    // number of registrations so far
	rnd   [512]byte // random bytes for keys
	left  int       // unused bytes at the end of rnd
}

// newKey returns a random key of size bytes (1 to 8) that no open region of the domain has. It
// never returns 0, and never the key whose bits are all 1: with 8 bytes that is FI_KEY_NOTAVAIL.
func (t *regions) newKey(size int) (uint64, error) {
	for {
		if t.left < 8 {
			if _, err := rand.Read(t.rnd[:]); err != nil {
				return 0, fmt.Errorf("random key: %w", err)
			}
			t.left = len(t.rnd)
		}
		b := t.rnd[len(t.rnd)-t.left:][:8]
		key := binary.LittleEndian.Uint64(b)
		clear(b)
		t.left -= 8
		mask := ^uint64(0) >> (64 - 8*size)
		if key &= mask; key != 0 && key != mask && t.byKey[key] == nil {
			return key, nil
		}
	}
}

// keyTries is the largest number of further keys that register tries if the provider reports that
// the key is in use (FI_ENOKEY), for example by a region of another domain.
const keyTries = 8

// RegisterMemory pins buf and registers it (fi_mr_reg). buf stays pinned until the region is
// closed.
func (d *domain) RegisterMemory(buf []byte, access transport.Access) (transport.MemoryRegion, error) {
	t := &d.mrs
	t.mu.Lock()
	defer t.mu.Unlock()
	if access&transport.MayKeep != 0 {
		access &^= transport.MayKeep
		if r := d.keptRegion(buf, owner{}, access); r != nil {
			return r, nil
		}
	}
	r, err := t.new(d, buf, access, owner{})
	if err != nil {
		return nil, fmt.Errorf("register %d bytes: %w", len(buf), err)
	}
	return r, nil
}

// interfaces are the kinds of devices that libfabric knows, by their names in transport.DeviceMemory.
var interfaces = map[string]fi.HMEMIface{
	"cuda": fi.HMEMCUDA, "rocr": fi.HMEMROCR, "ze": fi.HMEMZE, "neuron": fi.HMEMNeuron, "synapseai": fi.HMEMSynapseAI,
}

// KnowsDevice implements [transport.DeviceDomain].
func (d *domain) KnowsDevice(kind string) bool { return interfaces[kind] != fi.HMEMSystem }

// RegisterDevice implements [transport.DeviceDomain] (fi_mr_regattr).
//
// Hot path: no allocation if the registration was kept.
func (d *domain) RegisterDevice(mem []byte, dev transport.DeviceMemory, access transport.Access) (transport.MemoryRegion, error) {
	t := &d.mrs
	t.mu.Lock()
	defer t.mu.Unlock()
	o, ok := ownerOf(dev)
	if !ok {
		return nil, fmt.Errorf("%s on %s: %w: libfabric knows no devices of the kind %q", d.attr.Provider, d.attr.Name, transport.ErrNotSupported, dev.Kind)
	}
	if access&transport.MayKeep != 0 {
		access &^= transport.MayKeep
		if r := d.keptRegion(mem, o, access); r != nil {
			return r, nil
		}
	}
	r, err := t.new(d, mem, access, o)
	if errors.Is(err, fi.ErrNotSupported) {
		err = fmt.Errorf("%w: %w", transport.ErrNotSupported, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s on %s: memory of %s:%d: %w", d.attr.Provider, d.attr.Name, dev.Kind, dev.Ordinal, err)
	}
	return r, nil
}

// ownerOf returns the owner of memory of a device. It returns false if libfabric knows no devices of this kind.
func ownerOf(dev transport.DeviceMemory) (o owner, ok bool) {
	iface, ok := interfaces[dev.Kind]
	return owner{iface, dev.Ordinal, dev.Allocation}, ok
}

// new returns a region of buf with a registration of its own. If the provider has no room, new ends
// registrations that are kept. The caller holds mu, which new releases during calls of libfabric.
func (t *regions) new(d *domain, buf []byte, access transport.Access, o owner) (*region, error) {
	for {
		r := t.take(d)
		err := t.enter(r, buf, o, access)
		if err == nil || !errors.Is(err, fi.ErrNoMemory) || !t.kept.dropOldest() {
			return r, err
		}
	}
}

// take returns a region that is not open.
func (t *regions) take(d *domain) *region {
	r := t.free
	if r == nil {
		return &region{d: d}
	}
	t.free, r.next = r.next, nil
	return r
}

// enter registers buf as r, and enters r into byKey. After an error r is in the list of closed
// regions. The caller holds mu, which enter releases during calls of libfabric.
func (t *regions) enter(r *region, buf []byte, o owner, access transport.Access) error {
	r.owner = o
	if err := t.register(r, buf, access); err != nil {
		if r.registered() { // in some lanes, which could not be undone
			t.stuck = append(t.stuck, r)
			return err
		}
		r.pin.Unpin()
		r.next, t.free = t.free, r
		return err
	}
	r.buf, r.access, r.open = buf, access, true
	t.byKey[r.key] = r
	t.count++
	return nil
}

// register registers buf as r, whose fields fi, key and base it sets.
func (t *regions) register(r *region, buf []byte, access transport.Access) error {
	d := r.d
	if t.closed {
		return transport.ErrClosed
	}
	if t.byKey == nil {
		t.byKey = make(map[uint64]*region)
	}
	if len(buf) > 0 {
		r.pin.Pin(&buf[0]) // without effect on memory of a device
	}
	for try := 0; ; try++ {
		key, err := t.newKey(d.keySize)
		if err != nil {
			return err
		}
		if r.key, r.base = key, 0; len(buf) == 0 { // libfabric does not register an empty buffer
			return nil
		}
		at := fi.AddressOf(buf)
		var e fi.Errno
		t.byKey[key] = r // no other region gets the key
		t.unlocked(func() { e = r.registerAt(at, len(buf), accessOf(access), key) })
		if t.byKey[key] == r { // otherwise the provider has given the key to another region meanwhile
			delete(t.byKey, key)
		}
		switch {
		case e == fi.ErrNoKey && try < keyTries && !t.closed && !r.registered():
			continue
		case e != 0:
			return e
		}
		if r.key = r.fi.Key; d.mrMode&fi.MRProvKey != 0 {
			for k, m := range r.further {
				r.key |= m.Key << (8 * d.keySize * (k + 1))
			}
		}
		if d.mrMode&fi.MRVirtAddr != 0 {
			r.base = uint64(at)
		}
		return nil
	}
}

// registerAt registers n bytes at the address at in the main lane and, if a read or write of them may be
// divided, in the others. After an error it is registered in none.
func (r *region) registerAt(at uintptr, n int, access fi.Access, key uint64) (e fi.Errno) {
	d := r.d
	if r.fi, e = d.raw.RegisterDevice(at, n, access, key, r.owner.iface, r.owner.device); e != 0 || n < d.stripeMin {
		return e
	}
	for _, l := range d.lanes[1:] {
		m, e := l.raw.RegisterDevice(at, n, access, key, r.owner.iface, r.owner.device)
		if e != 0 {
			_ = r.closeAll() // if that fails, enter keeps what is registered
			return e
		}
		r.further = append(r.further, m)
	}
	return 0
}

// registered reports whether the region is registered in any lane.
func (r *region) registered() bool { return r.fi != fi.RawRegion{} || len(r.further) > 0 }

// closeAll ends the registrations in all lanes, that in the main lane first. So if another lane refuses a part
// of a peer's access because the region is closed, the main lane refuses the part, too, and the access fails
// with ErrKey. After an error the caller may call closeAll again.
func (r *region) closeAll() fi.Errno {
	if e := r.fi.Close(); e != 0 {
		return e
	}
	r.fi = fi.RawRegion{}
	for n := len(r.further); n > 0; n-- {
		if e := r.further[n-1].Close(); e != 0 {
			return e
		}
		r.further = r.further[:n-1]
	}
	return 0
}

// laneKey returns the key by which this rank names a region of a peer in the lane with index k. key is the
// region's key. If the provider chooses keys, the region's key is made of those in all lanes; otherwise
// all have the same.
func (d *domain) laneKey(peer transport.Addr, key uint64, k int) uint64 {
	if d.mrMode&fi.MRProvKey == 0 || d.av.width(peer) == 1 {
		return key
	}
	bits := 8 * d.keySize
	return key >> (bits * k) & (1<<bits - 1)
}

// unlocked runs f, which calls libfabric, without mu. The caller has found that closed is not set.
func (t *regions) unlocked(f func()) {
	t.calls.Add(1)
	t.mu.Unlock()
	f()
	t.mu.Lock()
	t.calls.Done()
}

func accessOf(a transport.Access) fi.Access {
	var f fi.Access
	if a&transport.RemoteRead != 0 {
		f |= fi.AccessRemoteRead
	}
	if a&transport.RemoteWrite != 0 {
		f |= fi.AccessRemoteWrite
	}
	if a&transport.Local != 0 {
		f |= fi.AccessRead | fi.AccessWrite | fi.AccessSend | fi.AccessRecv
	}
	return f
}

func (r *region) Key() uint64  { return r.key }
func (r *region) Base() uint64 { return r.base }

// Close ends peers' access to the region (fi_close) and unpins its memory, unless the registration
// is kept (keep.go). The caller must not use or close the region again after that, because RegisterMemory
// reuses it. If fi_close fails, the region stays open and pinned. Peers must have ended their accesses before
// Close: providers over sockets continue an access that has started, and shm cannot refuse an access.
func (r *region) Close() error {
	t := &r.d.mrs
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.close(r)
}

// close closes a region. The caller holds mu, which close releases during calls of libfabric.
func (t *regions) close(r *region) error {
	if !r.open || t.closed {
		return nil
	}
	if r.kept != nil {
		r.kept.users--
	} else {
		var e fi.Errno
		t.unlocked(func() { e = r.closeAll() })
		if e != 0 {
			return fmt.Errorf("close a region of %d bytes: %w", len(r.buf), e)
		}
		if t.byKey[r.key] == r { // otherwise another region has got this key from the provider since fi_close
			delete(t.byKey, r.key)
		}
	}
	r.forget()
	r.next, t.free = t.free, r
	return nil
}

func (r *region) forget() {
	r.fi, r.further, r.kept, r.buf, r.owner, r.open, r.key, r.base = fi.RawRegion{}, r.further[:0], nil, nil, owner{}, false, 0, 0
	r.pin.Unpin()
}

// end makes later registrations fail and later closes do nothing, and waits for the calls of libfabric
// in progress.
func (t *regions) end() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.calls.Wait()
}

// closeAll closes the registrations of the regions that the caller has left open, after end. Their
// memory stays pinned until [regions.release], which [domain.Close] calls when no libfabric object is
// left that could access the memory.
func (t *regions) closeAll() {
	t.mu.Lock() // a call that end has waited for continues with mu after its return from libfabric
	defer t.mu.Unlock()
	for _, r := range t.all() {
		_ = r.closeAll() // the error is ignored, because closing the domain then fails, too
	}
}

// all returns the regions with registrations of their own.
func (t *regions) all() []*region {
	return slices.AppendSeq(slices.Clone(t.stuck), maps.Values(t.byKey))
}

func (t *regions) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.all() {
		r.forget()
	}
	t.byKey, t.stuck, t.kept = nil, nil, keeper{}
}

// find returns the n bytes at remote address addr of this process's open region with this key. It
// returns ErrKey if there is no such region, ErrAccess if the region does not permit want,
// ErrBounds if the bytes do not all lie in the region, and ErrNotSupported if they are memory of a device.
func (t *regions) find(key, addr, n uint64, want transport.Access) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byKey[key]
	if r == nil || !r.open {
		return nil, transport.ErrKey
	}
	if r.access&want != want {
		return nil, transport.ErrAccess
	}
	if r.owner != (owner{}) {
		return nil, transport.ErrNotSupported
	}
	off := addr - r.base // if addr is below r.base, off wraps round to a value above size
	if size := uint64(len(r.buf)); off > size || n > size-off {
		return nil, transport.ErrBounds
	}
	return r.buf[off : off+n], nil
}

var errRegion = errors.New("libfabric: the local buffer is not within the operation's region")

// checkLocal checks op.Region if the domain has FI_MR_LOCAL, or if the domain has FI_MR_HMEM and op.Region is
// set. It returns errRegion if op.Region is not an open region of d that contains op.Data.
func (d *domain) checkLocal(op *transport.Op) error {
	if d.mrMode&fi.MRLocal == 0 && (d.mrMode&fi.MRHMEM == 0 || op.Region == nil) {
		return nil
	}
	r, ok := op.Region.(*region)
	if !ok || r.d != d || !r.open {
		return errRegion
	}
	// If the buffer begins before the region, off wraps round to a value above size.
	off := fi.AddressOf(op.Data) - fi.AddressOf(r.buf)
	if size := uintptr(len(r.buf)); off > size || uintptr(len(op.Data)) > size-off {
		return errRegion
	}
	return nil
}

// local returns the descriptor of op.Data in the lane with index k. If checkLocal need not check op.Region, it
// returns a zero Desc. checkLocal has accepted op.
func (d *domain) local(op *transport.Op, k int) fi.Desc {
	switch {
	case d.mrMode&(fi.MRLocal|fi.MRHMEM) == 0 || op.Region == nil:
		return fi.Desc{}
	case k == 0:
		return op.Region.(*region).fi.Desc
	}
	return op.Region.(*region).further[k-1].Desc
}
