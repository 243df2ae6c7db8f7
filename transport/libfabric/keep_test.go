//go:build libfabric

package libfabric

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/devicetest"
	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
)

// keeping returns a domain that keeps registrations of up to limit bytes.
func keeping(t *testing.T, provider string, limit int) *domain {
	t.Helper()
	set := &params.Set{}
	require.NoError(t, set.Set("transport.libfabric.provider", provider, params.FromFlag))
	require.NoError(t, set.Set("transport.libfabric.keep_registered", fmt.Sprint(limit), params.FromFlag))
	d, err := New().Open(transport.Config{Size: 1, Params: set, OneHost: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d.(*domain)
}

func (d *domain) mustRegister(t *testing.T, buf []byte, access transport.Access) *region {
	t.Helper()
	mr, err := d.RegisterMemory(buf, access)
	require.NoError(t, err)
	return mr.(*region)
}

const keepRead = transport.RemoteRead | transport.MayKeep

// TestKeptTwice: a buffer that is registered again and again must be registered at most twice with
// the provider, in parts and in any order.
func TestKeptTwice(t *testing.T) {
	for _, provider := range []string{"tcp;ofi_rxm", "shm"} {
		d := keeping(t, provider, 1<<20)
		buffers := make([][]byte, 20)
		for i := range buffers {
			buffers[i] = make([]byte, 1000+i)
		}
		for range 10_000 {
			buf := buffers[rand.N(len(buffers))]
			r := d.mustRegister(t, buf, keepRead)
			if r.kept != nil && d.mrMode == 0 { // a part of it
				p := d.mustRegister(t, buf[500:600], keepRead)
				require.Equal(t, r.key, p.key)
				require.Equal(t, r.base+500, p.base)
				require.NoError(t, p.Close())
			}
			require.NoError(t, r.Close())
		}
		require.LessOrEqual(t, d.mrs.count, uint64(2*len(buffers)), provider)
	}
}

// TestKeptBounds: what is kept must stay within its limits, the buffers in use must stay registered,
// and of the others the one that was used last.
func TestKeptBounds(t *testing.T) {
	d := keeping(t, "tcp;ofi_rxm", 100<<10)
	twice := func(buf []byte) *region {
		require.NoError(t, d.mustRegister(t, buf, keepRead).Close())
		return d.mustRegister(t, buf, keepRead)
	}
	used := twice(make([]byte, 10<<10))
	require.NotNil(t, used.kept)
	var last *region
	for range 50 {
		last = twice(make([]byte, 8<<10))
		require.NotNil(t, last.kept)
		require.NoError(t, last.Close())
		require.LessOrEqual(t, d.mrs.kept.bytes, 100<<10)
	}
	require.Len(t, d.mrs.kept.list, 12)
	require.Len(t, d.mrs.byKey, 12)
	_, err := d.mrs.find(used.key, used.base, 10<<10, transport.RemoteRead)
	require.NoError(t, err)
	require.NoError(t, used.Close())

	large := twice(make([]byte, 101<<10)) // larger than the limit
	require.Nil(t, large.kept)
	require.NoError(t, large.Close())
	require.Len(t, d.mrs.kept.list, 12)

	many := keeping(t, "tcp;ofi_rxm", 1<<30)
	for i := range 3 * keptBuffers {
		buf := make([]byte, 64+i)
		for range 2 {
			require.NoError(t, many.mustRegister(t, buf, keepRead).Close())
		}
		require.LessOrEqual(t, len(many.mrs.kept.list), keptBuffers)
	}
}

// TestKeptNever: a registration must end with its region if the memory is not on Go's heap, if
// peers may write to it, if the caller has not permitted to keep it, or if the limit is 0.
func TestKeptNever(t *testing.T) {
	mapped, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(mapped)) }()
	heap := make([]byte, 1<<16)
	d := keeping(t, "tcp;ofi_rxm", 1<<20)
	for name, c := range map[string]struct {
		d      *domain
		buf    []byte
		access transport.Access
	}{
		"mapped":    {d, mapped, keepRead},
		"written":   {d, heap, transport.RemoteWrite | transport.MayKeep},
		"once":      {d, heap, transport.RemoteRead},
		"empty":     {d, heap[:0], keepRead},
		"limited":   {keeping(t, "tcp;ofi_rxm", 0), heap, keepRead},
		"too large": {keeping(t, "tcp;ofi_rxm", 1000), heap, keepRead},
	} {
		for range 3 {
			r := c.d.mustRegister(t, c.buf, c.access)
			require.Nil(t, r.kept, name)
			require.NoError(t, r.Close())
			require.Empty(t, c.d.mrs.byKey, name)
		}
	}
}

// TestKeptFind compares find with a search of all kept registrations.
func TestKeptFind(t *testing.T) {
	d := keeping(t, "tcp;ofi_rxm", 1<<30)
	mem := make([]byte, 4096)
	part := func() []byte {
		at := rand.N(len(mem))
		return mem[at : at+1+rand.N(len(mem)-at)]
	}
	for range 100 {
		buf := part()
		for range 2 {
			require.NoError(t, d.mustRegister(t, buf, keepRead).Close())
		}
		k := d.mrs.kept.find(buf, owner{})
		require.NotNil(t, k, "a buffer that was registered twice")
		buf = part()
		if k := d.mrs.kept.find(buf, owner{}); k != nil {
			at, from := &buf[0], k.region.buf
			inside := false
			for i := range from[:len(from)-len(buf)+1] {
				inside = inside || &from[i] == at
			}
			require.True(t, inside)
		}
	}
}

// TestKeptDevice: a registration of device memory must be kept like one of host memory, but only for its
// allocation. After the program has freed the memory, other memory with its address gets a registration of its own,
// and the old registration ends.
func TestKeptDevice(t *testing.T) {
	g := devicetest.New(t)
	mem, other := g.AllocBytes(t, 1<<16), g.AllocBytes(t, 1<<16)
	for _, script := range []string{"cxi", "verbs,nics=2", "psm"} {
		n := openNode(t, libfabrictest.WithScript(withHMEM(t, libfabrictest.Name), script), config(0, 1))
		d := n.dom
		region := func(mem []byte, dev transport.DeviceMemory) *region {
			mr, err := d.RegisterDevice(mem, dev, keepRead)
			require.NoError(t, err)
			return mr.(*region)
		}
		for range 1000 {
			require.NoError(t, region(mem, transport.DeviceMemory{Kind: "cuda", Allocation: 7}).Close())
			require.NoError(t, region(other, transport.DeviceMemory{Kind: "cuda", Allocation: 8}).Close())
		}
		require.EqualValues(t, 4, d.mrs.count, script)
		require.Len(t, d.mrs.kept.list, 2)

		first := region(mem[100:200], transport.DeviceMemory{Kind: "cuda", Allocation: 7})
		require.NotNil(t, first.kept)
		require.Nil(t, d.KeptMemory(mem, transport.DeviceMemory{}, keepRead))
		require.Nil(t, d.KeptMemory(mem, transport.DeviceMemory{Kind: "abacus", Allocation: 7}, keepRead))
		require.Nil(t, d.KeptMemory(mem, transport.DeviceMemory{Kind: "cuda", Ordinal: 1, Allocation: 7}, keepRead))
		require.Nil(t, d.KeptMemory(mem, transport.DeviceMemory{Kind: "cuda", Allocation: 9}, keepRead))
		kept := d.KeptMemory(mem[1:], transport.DeviceMemory{Kind: "cuda", Allocation: 7}, keepRead)
		require.Equal(t, first.key, kept.Key())
		require.NoError(t, kept.Close())

		// The number 7 was freed, and 9 has its address; a request still uses 7, so its registration stays.
		for range 2 {
			r := region(mem, transport.DeviceMemory{Kind: "cuda", Allocation: 9})
			require.NotEqual(t, first.key, r.key)
			require.NoError(t, r.Close())
		}
		require.Len(t, d.mrs.kept.list, 3)
		require.NoError(t, first.Close())
		for range 2 {
			require.NoError(t, region(mem[:1000], transport.DeviceMemory{Kind: "cuda", Allocation: 10}).Close())
		}
		require.Len(t, d.mrs.kept.list, 2, "only numbers 8 and 10")
		require.Equal(t, 1<<16+1000, d.mrs.kept.bytes)
		require.Len(t, d.mrs.byKey, 2)

		for range 3 { // the number is unknown
			r := region(mem, transport.DeviceMemory{Kind: "cuda"})
			require.Nil(t, r.kept)
			require.NoError(t, r.Close())
		}
		require.Len(t, d.mrs.byKey, 2)
	}
}

// TestKeptAllocs: a region of a kept registration takes no allocation.
func TestKeptAllocs(t *testing.T) {
	d := keeping(t, "tcp;ofi_rxm", 1<<20)
	buf := make([]byte, 1<<16)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		mr, err := d.RegisterMemory(buf, keepRead)
		if err != nil || mr.Close() != nil {
			panic("not registered")
		}
	}))
	mem, dev := devicetest.New(t).AllocBytes(t, 1<<16), transport.DeviceMemory{Kind: "cuda", Allocation: 1}
	d = openNode(t, libfabrictest.WithScript(withHMEM(t, libfabrictest.Name), "cxi"), config(0, 1)).dom
	for range 2 { // the second one is kept
		mr, err := d.RegisterDevice(mem, dev, keepRead)
		require.NoError(t, err)
		require.NoError(t, mr.Close())
	}
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		mr, err := d.RegisterDevice(mem, dev, keepRead)
		if err != nil || mr.Close() != nil {
			panic("not registered")
		}
		if mr := d.KeptMemory(mem, dev, keepRead); mr == nil || mr.Close() != nil {
			panic("not kept")
		}
	}))
}

// TestCloseDuringRegistrations: Close waits for registrations of other goroutines, closes what they have
// registered, and later ones fail.
func TestCloseDuringRegistrations(t *testing.T) {
	for range 10 {
		t.Setenv(testScript, "verbs,pin=1000")
		a, _ := pair(t, libfabrictest.Name, nil)
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				for {
					mr, err := a.dom.RegisterMemory(make([]byte, 1000), transport.RemoteRead)
					if err != nil {
						assert.ErrorIs(t, err, transport.ErrClosed)
						return
					}
					assert.NoError(t, mr.Close())
				}
			})
		}
		time.Sleep(5 * time.Millisecond)
		require.NoError(t, a.dom.Close())
		group.Wait()
	}
}
