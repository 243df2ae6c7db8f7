//go:build libfabric

package libfabric

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"strconv"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// Kept registrations
//
// An adapter takes microseconds to register memory, and a program sends from the same buffers again
// and again. So the second registration of a buffer with transport.MayKeep stays when its region is
// closed, and further regions of the buffer, or of a part of it, use it:
//
//	RegisterMemory ── part of a kept registration? ── yes ──► a region with its key     no call
//	                            │ no
//	                   registered before? ── yes ──► fi_mr_reg; kept, and the buffer pinned
//	                            └── no ────────────► fi_mr_reg; ended by Close
//
// A registration stands for the pages that its addresses had. Go's heap never moves an object, and
// does not give back its pages while it is pinned, so a kept registration is valid as long as it
// exists. Memory of a device has the number of its allocation (transport.DeviceMemory). Freed memory
// that is still registered is never found, because later memory at its address has another number.
// Other memory, such as that of mmap(2), can get other pages without notice, so its registrations are
// not kept. (Memory of Engine.Alloc needs none: it is registered once.)
//
// If registrations take long, the engine first calls KeptMemory, which does not call libfabric.
//
// What is kept is bounded by [keptBuffers] and by the parameter transport.libfabric.keep_registered.
// The buffer that was not used for the longest time is given up first.

// keptBuffers is the largest number of registrations that a domain keeps.
const keptBuffers = 128

// kept is a registration that stays when its regions are closed.
type kept struct {
	region *region // of the whole buffer
	users  int     // number of open regions that use it
	used   uint64  // keeper.clock at the last use
}

func (k *kept) start() uintptr { return fi.AddressOf(k.region.buf) }

// keeper has the kept registrations of a domain.
type keeper struct {
	limit int     // how many bytes may be kept
	bytes int     // how many are
	list  []*kept // by owner; then by address of the first byte; then by length
	clock uint64  // number of calls of find
	// seen are buffers that were registered once, each in the set that its address and length
	// determine. A new buffer replaces the one of its set that was added first. With sets of several,
	// buffers that a program uses in turns do not replace each other.
	seen [1 << seenBits]struct {
		buffers [4]struct {
			at    uintptr
			n     int
			owner owner
		}
		next int // index in buffers of the next to be replaced
	}
}

// seenBits is the number of bits of an index of keeper.seen.
const seenBits = 6

// after compares the registration with a buffer of n bytes that begins at the address at, by the order of
// keeper.list.
func (k *kept) after(o owner, at uintptr, n int) bool {
	c := k.region.owner
	return cmp.Or(cmp.Compare(c.iface, o.iface), cmp.Compare(c.device, o.device), cmp.Compare(c.allocation, o.allocation),
		cmp.Compare(k.start(), at), cmp.Compare(len(k.region.buf), n)) > 0
}

// find returns the kept registration that contains buf, memory of o; nil: there is none. The registration
// with the greatest address at or below that of buf decides, so find always finds that of buf itself.
func (p *keeper) find(buf []byte, o owner) *kept {
	p.clock++
	at := fi.AddressOf(buf)
	i := sort.Search(len(p.list), func(i int) bool { return p.list[i].after(o, at, math.MaxInt) })
	if i == 0 {
		return nil
	}
	k := p.list[i-1]
	if k.region.owner != o {
		return nil
	}
	if off := at - k.start(); off > uintptr(len(k.region.buf)) || uintptr(len(buf)) > uintptr(len(k.region.buf))-off {
		return nil
	}
	k.used = p.clock
	return k
}

// again reports whether buf, memory of o, was registered before, and notes that it is now.
func (p *keeper) again(buf []byte, o owner) bool {
	at, n := fi.AddressOf(buf), len(buf)
	const golden = 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio, which spreads multiples
	s := &p.seen[(uint64(at)+uint64(n))*golden>>(64-seenBits)]
	for _, b := range s.buffers {
		if b.at == at && b.n == n && b.owner == o {
			return true
		}
	}
	b := &s.buffers[s.next]
	b.at, b.n, b.owner = at, n, o
	s.next = (s.next + 1) % len(s.buffers)
	return false
}

// add keeps the registration of a region.
func (p *keeper) add(r *region) *kept {
	k := &kept{region: r, used: p.clock}
	i := sort.Search(len(p.list), func(i int) bool { return p.list[i].after(r.owner, k.start(), len(r.buf)) })
	p.list = slices.Insert(p.list, i, k)
	p.bytes += len(r.buf)
	return k
}

// makeRoom ends registrations that no region uses, until n more bytes may be kept. It reports
// whether they may.
func (p *keeper) makeRoom(n int) bool {
	for len(p.list) >= keptBuffers || p.bytes+n > p.limit {
		if n > p.limit || !p.dropOldest() {
			return false
		}
	}
	return true
}

// dropOldest ends the registration that was not used for the longest time, of those that no region
// uses. It returns false if there is none, or if it cannot be ended. The caller holds regions.mu, which
// dropOldest releases during a call of libfabric.
func (p *keeper) dropOldest() bool {
	oldest := -1
	for i, k := range p.list {
		if k.users == 0 && (oldest < 0 || k.used < p.list[oldest].used) {
			oldest = i
		}
	}
	return oldest >= 0 && p.drop(oldest)
}

// dropFreed ends registrations of device memory that the program has freed: those of the addresses of buf that
// belong to another allocation than o. Like dropOldest, it ends none in use, and releases regions.mu
// during calls of libfabric.
func (p *keeper) dropFreed(buf []byte, o owner) {
	at := fi.AddressOf(buf)
	for {
		i := slices.IndexFunc(p.list, func(k *kept) bool {
			c := k.region.owner
			return k.users == 0 && c.iface == o.iface && c.device == o.device && c.allocation != o.allocation &&
				k.start() < at+uintptr(len(buf)) && at < k.start()+uintptr(len(k.region.buf))
		})
		if i < 0 {
			return
		}
		p.drop(i)
	}
}

// drop ends the registration with index i. It returns false if the provider cannot end it; then it stays
// registered until the domain is closed. The caller holds regions.mu, which drop releases during a call of
// libfabric.
func (p *keeper) drop(i int) bool {
	k := p.list[i]
	p.list = slices.Delete(p.list, i, i+1)
	p.bytes -= len(k.region.buf)
	return k.region.d.mrs.close(k.region) == nil
}

// keptAccess are the rights of a kept registration.
const keptAccess = transport.RemoteRead | transport.Local

// part returns a region of buf, which is in the kept registration.
func (d *domain) part(k *kept, buf []byte, access transport.Access) *region {
	r := d.mrs.take(d)
	k.users++
	r.kept, r.fi, r.key, r.base = k, k.region.fi, k.region.key, k.region.base+uint64(fi.AddressOf(buf)-k.start())
	r.further = append(r.further[:0], k.region.further...)
	r.owner = k.region.owner
	r.buf, r.access, r.open = buf, access, true
	return r
}

// mayKeep reports whether a registration of buf, memory of o, may be kept.
func (p *keeper) mayKeep(buf []byte, o owner, access transport.Access) bool {
	valid := o.allocation != 0 || o == owner{} && inHeap(buf)
	return valid && p.limit > 0 && len(buf) > 0 && access&^keptAccess == 0
}

// KeptMemory implements [transport.PinningDomain].
//
// Hot path: no allocation in steady state.
func (d *domain) KeptMemory(buf []byte, dev transport.DeviceMemory, access transport.Access) transport.MemoryRegion {
	t := &d.mrs
	t.mu.Lock()
	defer t.mu.Unlock()
	access &^= transport.MayKeep
	var o owner
	if dev != (transport.DeviceMemory{}) {
		o, _ = ownerOf(dev) // of a kind that libfabric does not know, nothing was kept
	}
	if t.closed || !t.kept.mayKeep(buf, o, access) {
		return nil
	}
	if k := t.kept.find(buf, o); k != nil {
		return d.part(k, buf, access)
	}
	return nil
}

// keptRegion returns a region of buf, memory of o, if it is in a kept registration, or if its new
// registration is to be kept. Otherwise, and if the provider has no room for the registration, it
// returns nil. The caller holds regions.mu, which keptRegion releases during calls of libfabric.
func (d *domain) keptRegion(buf []byte, o owner, access transport.Access) *region {
	p := &d.mrs.kept
	if d.mrs.closed || !p.mayKeep(buf, o, access) {
		return nil
	}
	k := p.find(buf, o)
	if k == nil {
		if o != (owner{}) {
			p.dropFreed(buf, o)
		}
		if !p.again(buf, o) || !p.makeRoom(len(buf)) {
			return nil
		}
		whole := d.mrs.take(d)
		if d.mrs.enter(whole, buf, o, keptAccess) != nil {
			return nil
		}
		if p.find(buf, o) != nil || !p.makeRoom(len(buf)) { // another goroutine was faster
			whole.access = access
			return whole
		}
		k = p.add(whole)
	}
	return d.part(k, buf, access)
}

// heapSample is an object on Go's heap.
var heapSample = new([1 << 10]byte)

// inHeap reports whether buf is on Go's heap. It may return false for a buffer that is, but not true
// for one that is not: on 64-bit systems Go reserves its heap from an address of its choice on, far
// from those that the kernel chooses for mmap(2) and for the heap of C.
func inHeap(buf []byte) bool {
	const bits = 38 // 256 GiB
	return strconv.IntSize == 64 && fi.AddressOf(buf)>>bits == fi.AddressOf(heapSample[:])>>bits
}
