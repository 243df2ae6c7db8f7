//go:build libfabric

package fi

import (
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// mrFacts is the known behaviour of a provider's memory regions. If a test finds another behaviour,
// the provider or this package has changed.
type mrFacts struct {
	prov     string
	mode     MRMode // what the provider requires if the hints have all bits
	keySize  int    // size of a key in bytes
	iovLimit int    // how many buffers a region may have
	basic    bool   // supports MRBasic, and then chooses the keys
	counter  bool   // supports BindCounter
	async    bool   // writes events for registrations
}

// allMRModes are the bits of MRMode that the hints of these tests have.
const allMRModes = MRLocal | MRRaw | MRVirtAddr | MRAllocated | MRProvKey | MRMMUNotify | MRRMAEvent |
	MREndpoint | MRHMEM | MRCollective

// mrProviders are the providers of Debian's libfabric 1.17 that have memory regions and need no
// special hardware.
var mrProviders = []mrFacts{
	{prov: "shm", mode: MRVirtAddr, keySize: 8, iovLimit: 4, basic: true},
	{prov: xnet, keySize: 8, iovLimit: 1, basic: true},
	{prov: "tcp;ofi_rxm", keySize: 8, iovLimit: 1, basic: true},
	{prov: "udp;ofi_rxd", keySize: 8, iovLimit: 1, basic: true},
	{prov: "sockets", keySize: 8, iovLimit: 8, basic: true, counter: true, async: !v2},
}

const (
	allAccess  = AccessSend | AccessRecv | AccessRead | AccessWrite | AccessRemoteRead | AccessRemoteWrite
	testMRKey  = 0xC0DE
	testMRSize = 1 << 20
)

// eachMR runs a test on a domain of each provider with RMA.
func eachMR(t *testing.T, test func(*testing.T, mrFacts, *Domain)) {
	for _, facts := range mrProviders {
		t.Run(facts.prov, func(t *testing.T) {
			test(t, facts, openDomain(t, setup{prov: facts.prov, caps: CapMsg | CapRMA, hints: func(hints *Info) {
				hints.Domain.MRMode = allMRModes
			}}))
		})
	}
}

// closeMR closes a region twice and checks that its methods then act as on a closed region.
func closeMR(t *testing.T, m *MR) {
	t.Helper()
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	require.Equal(t, KeyNotAvail, m.Key())
	require.Equal(t, Desc{}, m.Desc())
	require.Zero(t, m.Base())
}

func TestMRMode(t *testing.T) {
	eachMR(t, func(t *testing.T, facts mrFacts, d *Domain) {
		got := d.Info().Domain
		require.Equal(t, facts.mode, got.MRMode)
		require.Equal(t, facts.keySize, got.MRKeySize)
		require.Equal(t, facts.iovLimit, got.MRIovLimit)
	})
}

// TestMRReg registers buffers of several sizes, each with every combination of the kinds of access.
func TestMRReg(t *testing.T) {
	eachMR(t, func(t *testing.T, _ mrFacts, d *Domain) {
		memory := make([]byte, testMRSize)
		bits := []Access{AccessSend, AccessRecv, AccessRead, AccessWrite, AccessRemoteRead, AccessRemoteWrite}
		for _, size := range []int{1, 3, 64, 4095, 4096, 65537, testMRSize} {
			for combination := range 1 << len(bits) {
				var access Access
				for i, b := range bits {
					if combination>>i&1 != 0 {
						access |= b
					}
				}
				m, err := d.RegisterMemory(memory[:size], access, 0, testMRKey, 0)
				require.NoError(t, err, "%d bytes, %v", size, access)
				require.Equal(t, uint64(testMRKey), m.Key(), "none of these providers chooses keys")
				require.NotEqual(t, Desc{}, m.Desc())
				require.Equal(t, uintptr(unsafe.Pointer(&memory[0])), m.Base())
				closeMR(t, m)
			}
		}
	})
}

func TestMRRegV(t *testing.T) {
	eachMR(t, func(t *testing.T, facts mrFacts, d *Domain) {
		memory := make([]byte, testMRSize)
		for n := 1; n <= facts.iovLimit; n++ {
			bufs := make([][]byte, n)
			for i := range bufs {
				bufs[i] = memory[i*1000 : (i+1)*1000]
			}
			m, err := d.RegisterV(bufs, allAccess, 0, testMRKey, 0)
			require.NoError(t, err)
			closeMR(t, m)
			m, err = d.RegisterAttr(&MRAttr{Buffers: bufs, Access: allAccess, RequestedKey: testMRKey}, 0)
			require.NoError(t, err)
			closeMR(t, m)
		}
	})
}

func TestMRRegAttr(t *testing.T) {
	eachMR(t, func(t *testing.T, facts mrFacts, d *Domain) {
		buf := make([]byte, 4096)
		m, err := d.RegisterAttr(&MRAttr{
			Buffers:      [][]byte{buf},
			Access:       allAccess,
			RequestedKey: testMRKey,
			AuthKey:      []byte{1, 2, 3, 4},
			PageSize:     os.Getpagesize(),
			SubCount:     2,
		}, 0)
		require.NoError(t, err)
		require.Equal(t, uintptr(unsafe.Pointer(&buf[0])), m.Base())
		require.Equal(t, uint64(testMRKey), m.Key())

		part, err := d.RegisterAttr(&MRAttr{Buffers: [][]byte{buf}, Access: allAccess, Base: m}, 0)
		if HeaderVersion.Major() < 2 {
			require.ErrorIs(t, err, ErrNotSupported)
		} else {
			require.NoError(t, err, "these providers ignore Base")
			closeMR(t, part)
		}
		closeMR(t, m)
		_, err = d.RegisterAttr(&MRAttr{Buffers: [][]byte{buf}, Access: allAccess, Base: m}, 0)
		require.ErrorIs(t, err, ErrClosed, "a part of a closed region")

		for _, iface := range []HMEMIface{HMEMCUDA, HMEMROCR, HMEMZE, HMEMNeuron, HMEMSynapseAI} {
			attr := MRAttr{Ranges: []MemRange{{1 << 40, 4096}}, Access: allAccess, Iface: iface, Device: ZEDevice(0, 1)}
			m, err := d.RegisterAttr(&attr, 0)
			if facts.prov == "sockets" {
				require.NoError(t, err, "sockets does not check Iface without CapHMEM")
				closeMR(t, m)
				continue
			}
			require.ErrorIs(t, err, ErrNotSupported, "%v is not in this libfabric", iface)
		}
		dma, err := d.RegisterAttr(&MRAttr{DMABuf: &DMABuf{FD: -1, Len: 4096}, Access: allAccess}, 0)
		if HeaderVersion.Major() < 2 {
			require.ErrorIs(t, err, ErrNotSupported)
		} else {
			require.NoError(t, err, "these providers do not look at the descriptor")
			closeMR(t, dma)
		}
	})
	require.Equal(t, 0x30001, ZEDevice(3, 1))
}

func TestMRWrong(t *testing.T) {
	eachMR(t, func(t *testing.T, _ mrFacts, d *Domain) {
		buf := make([]byte, 16)
		for name, register := range map[string]func() (*MR, error){
			"nil":           func() (*MR, error) { return d.RegisterMemory(nil, allAccess, 0, 1, 0) },
			"empty":         func() (*MR, error) { return d.RegisterMemory(buf[:0], allAccess, 0, 1, 0) },
			"no buffers":    func() (*MR, error) { return d.RegisterV(nil, allAccess, 0, 1, 0) },
			"one empty":     func() (*MR, error) { return d.RegisterV([][]byte{buf, nil}, allAccess, 0, 1, 0) },
			"no memory":     func() (*MR, error) { return d.RegisterAttr(&MRAttr{}, 0) },
			"empty range":   func() (*MR, error) { return d.RegisterAttr(&MRAttr{Ranges: []MemRange{{1 << 40, 0}}}, 0) },
			"unknown iface": func() (*MR, error) { return d.RegisterAttr(&MRAttr{Buffers: [][]byte{buf}, Iface: 77}, 0) },
			"two kinds": func() (*MR, error) {
				return d.RegisterAttr(&MRAttr{Buffers: [][]byte{buf}, Ranges: []MemRange{{1 << 40, 1}}}, 0)
			},
		} {
			m, err := register()
			require.Nil(t, m, name)
			require.ErrorIs(t, err, ErrInvalid, name)
		}
		_, err := d.RegisterMemory(nil, allAccess, 0, 1, 0)
		require.ErrorContains(t, err, "fi_mr_reg: buffer 0 is empty")
	})
}

// TestMRKeyInUse registers memory with a key that another region has. That must fail and leave the
// memory unpinned.
func TestMRKeyInUse(t *testing.T) {
	eachMR(t, func(t *testing.T, _ mrFacts, d *Domain) {
		a, b := make([]byte, 64), make([]byte, 64)
		first, err := d.RegisterMemory(a, allAccess, 0, testMRKey, 0)
		require.NoError(t, err)
		pins := countPins()
		for range 3 {
			second, err := d.RegisterMemory(b, allAccess, 0, testMRKey, 0)
			require.Nil(t, second)
			require.ErrorIs(t, err, ErrNoKey)
			_, err = d.RegisterAttr(&MRAttr{Buffers: [][]byte{b}, Access: allAccess, RequestedKey: testMRKey,
				AuthKey: []byte{1}}, 0)
			require.ErrorIs(t, err, ErrNoKey)
		}
		require.Equal(t, pins, countPins())
		closeMR(t, first)
		require.Equal(t, pins-1, countPins())
		again, err := d.RegisterMemory(b, allAccess, 0, testMRKey, 0)
		require.NoError(t, err, "the key is free again")
		closeMR(t, again)
	})
}

// countPins returns the number of Pinners in livePins.
func countPins() (n int) {
	livePins.Range(func(any, any) bool { n++; return true })
	return n
}

// TestMRSurvivesGC checks that the garbage collector does not free registered memory, even if the
// program does not refer to it any more.
func TestMRSurvivesGC(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	eachMR(t, func(t *testing.T, _ mrFacts, d *Domain) {
		const regions = 64
		var open []*MR
		var where []uintptr
		for i := range regions {
			buf := pattern(make([]byte, 512+i*64), i)
			m, err := d.RegisterMemory(buf, allAccess, 0, uint64(i+1), 0)
			require.NoError(t, err)
			open, where = append(open, m), append(where, m.Base())
			m.bufs = nil
		}
		for range 10 {
			runtime.GC()
			for range 1000 { // if memory of a region was freed, this may overwrite it
				garbage = make([]byte, 1024)
			}
		}
		for i, base := range where {
			// Read the memory by its address, as a peer would.
			got := unsafe.Slice(*(**byte)(unsafe.Pointer(&base)), 512+i*64)
			require.Equal(t, pattern(make([]byte, 512+i*64), i), got)
		}
		for _, m := range open {
			closeMR(t, m)
		}
	})
}

var garbage []byte

// TestMRMapped registers memory outside of Go's heap.
func TestMRMapped(t *testing.T) {
	eachMR(t, func(t *testing.T, _ mrFacts, d *Domain) {
		memory, err := syscall.Mmap(-1, 0, 1<<16, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		require.NoError(t, err)
		defer func() { require.NoError(t, syscall.Munmap(memory)) }()
		m, err := d.RegisterMemory(memory, allAccess, 0, testMRKey, 0)
		require.NoError(t, err)
		closeMR(t, m)

		// Register the same memory by its address; then the region has no Base.
		base := uintptr(unsafe.Pointer(&memory[0]))
		m, err = d.RegisterAttr(&MRAttr{Ranges: []MemRange{{base, 1 << 16}}, Access: allAccess, RequestedKey: testMRKey}, 0)
		require.NoError(t, err)
		require.Zero(t, m.Base())
		closeMR(t, m)
	})
}

// TestMRRegisterAgain registers memory and unmaps it, again and again. The kernel may use the same
// address each time; each registration must succeed.
func TestMRRegisterAgain(t *testing.T) {
	eachMR(t, func(t *testing.T, _ mrFacts, d *Domain) {
		for i := range 20 {
			memory, err := syscall.Mmap(-1, 0, 1<<16, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
			require.NoError(t, err)
			m, err := d.RegisterMemory(pattern(memory, i), allAccess, 0, testMRKey, 0)
			require.NoError(t, err)
			closeMR(t, m)
			require.NoError(t, syscall.Munmap(memory))
		}
	})
}
