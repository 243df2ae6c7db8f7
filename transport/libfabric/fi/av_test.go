//go:build libfabric

package fi

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// avFacts is the known behaviour of a provider's address vectors. If a test finds another
// behaviour, the provider or this package has changed.
type avFacts struct {
	prov      string
	svc, sym  bool // supports InsertSvc and InsertSym
	shared    bool // supports AVAttr.Name
	sets      bool // supports AVSet
	async     bool // writes events for insertions
	reason    bool // with FlagSyncErr reports why an address failed
	syncErr   bool // accepts FlagSyncErr
	firstLost bool // Lookup does not find the first inserted address
}

// avProviders are the providers of Debian's libfabric 1.17 that have address vectors and need no
// special hardware.
var avProviders = []avFacts{
	{prov: "shm", syncErr: true},
	{prov: xnet, svc: true, sym: true, sets: !v2, async: !v2, reason: true, syncErr: true},
	{prov: "tcp;ofi_rxm", svc: true, sym: true, sets: !v2, async: !v2, reason: true, syncErr: true},
	{prov: "udp;ofi_rxd", async: !v2, reason: true, syncErr: true, firstLost: true},
	{prov: "sockets", svc: true, sym: true, shared: true, async: true},
}

// eachAV runs a test on a domain of each provider.
func eachAV(t *testing.T, test func(*testing.T, avFacts, *Domain)) {
	for _, facts := range avProviders {
		t.Run(facts.prov, func(t *testing.T) {
			test(t, facts, openDomain(t, setup{prov: facts.prov}))
		})
	}
}

// openDomain opens a domain of a provider and closes it when the test ends.
func openDomain(t *testing.T, s setup) *Domain {
	t.Helper()
	if s.ep == EPUnspec {
		s.ep = EPRDM
	}
	if s.caps == 0 {
		s.caps = CapMsg | CapTagged
	}
	info := localInfo(t, s)
	fabric, err := OpenFabric(info)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fabric.Close()) })
	domain, err := fabric.OpenDomain(info)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, domain.Close()) })
	return domain
}

// openAV opens a vector and closes it when the test ends.
func openAV(t *testing.T, d *Domain, attr AVAttr) *AV {
	t.Helper()
	if attr.Type == AVUnspec {
		attr.Type = AVTable
	}
	v, err := d.OpenAV(attr)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.Close()) })
	return v
}

// sockaddr returns a struct sockaddr_in.
func sockaddr(ip string, port int) []byte {
	a := make([]byte, 16)
	binary.NativeEndian.PutUint16(a, syscall.AF_INET)
	binary.BigEndian.PutUint16(a[2:], uint16(port))
	ip4 := netip.MustParseAddr(ip).As4()
	copy(a[4:], ip4[:])
	return a
}

// testAddrs returns n different addresses in the domain's format, in the form that Lookup returns.
// For shm it returns at most six, which are those of endpoints that it opens.
func testAddrs(t *testing.T, d *Domain, n int) [][]byte {
	t.Helper()
	if d.Info().AddrFormat == AddrStr {
		n = min(n, 6)
	}
	addrs := make([][]byte, n)
	for i := range addrs {
		addrs[i] = sockaddr("127.0.0.1", 4000+i)
		if d.Info().AddrFormat == AddrStr {
			name, err := openNode(t, setup{bind: FlagTransmit | FlagRecv}, d.Info(), d.Fabric(), d).ep.Name()
			require.NoError(t, err)
			addrs[i] = name
		}
	}
	return addrs
}

func TestAVOpenClose(t *testing.T) {
	eachAV(t, func(t *testing.T, facts avFacts, d *Domain) {
		for bits := range 17 {
			v, err := d.OpenAV(AVAttr{Type: AVTable, Count: 1 << bits, EPPerNode: 2})
			if facts.prov == "shm" && bits > 8 {
				require.ErrorIs(t, err, ErrNotSupported, "shm has 256 peers")
				continue
			}
			require.NoError(t, err)
			require.Equal(t, AVTable, v.Attr().Type)
			require.NoError(t, v.Close())
			require.NoError(t, v.Close(), "again")
		}
		v, err := d.OpenAV(AVAttr{})
		require.NoError(t, err)
		require.Equal(t, AVTable, v.Attr().Type, "all providers choose AVTable")
		require.NoError(t, v.Close())
		for _, attr := range []AVAttr{{Type: 99}, {Type: AVTable, Count: -1}, {Type: AVTable, RxCtxBits: 64}} {
			v, err := d.OpenAV(attr)
			if facts.prov == "udp;ofi_rxd" && attr.Type == 99 {
				require.NoError(t, err, "the domain's type is taken")
				require.NoError(t, v.Close())
				continue
			}
			require.ErrorIs(t, err, ErrInvalid, "%+v", attr)
		}
	})
}

func TestAVInsert(t *testing.T) {
	eachAV(t, func(t *testing.T, facts avFacts, d *Domain) {
		v := openAV(t, d, AVAttr{Count: 4}) // the vector may get more addresses than Count
		addrs := testAddrs(t, d, 40)
		out := make([]Addr, len(addrs))
		for _, part := range [][2]int{{0, 1}, {1, 1}, {1, 5}, {5, len(addrs)}} {
			from, to := part[0], part[1]
			n, err := v.Insert(addrs[from:to], out[from:to], 0, 0)
			require.NoError(t, err)
			require.Equal(t, to-from, n)
		}
		for i, a := range out {
			require.Equal(t, Addr(i), a, "a table's addresses are indices")
			requireAddr(t, facts, v, a, addrs[i])
		}
		for _, a := range []Addr{40, 63, 64, 1 << 20, 1 << 40, AddrNotAvail} {
			_, err := v.Lookup(a)
			require.ErrorIs(t, err, ErrInvalid, "%d is not in the vector", a)
		}
		n, err := v.Insert(addrs[:2], make([]Addr, 1), 0, 0)
		require.ErrorIs(t, err, ErrInvalid)
		require.Zero(t, n)
	})
}

// requireAddr checks that Lookup of a returns want, or ErrNoData if a is 0 and facts has firstLost.
func requireAddr(t *testing.T, facts avFacts, v *AV, a Addr, want []byte) {
	t.Helper()
	got, err := v.Lookup(a)
	if facts.firstLost && a == 0 {
		require.ErrorIs(t, err, ErrNoData)
		return
	}
	require.NoError(t, err)
	require.Equal(t, lookedUp(facts, want), got)
}

// lookedUp returns what Lookup returns for the inserted address addr. shm of libfabric 2.x leaves out
// the scheme.
func lookedUp(facts avFacts, addr []byte) []byte {
	if v2 && facts.prov == "shm" {
		return bytes.TrimPrefix(addr, []byte("fi_shm://"))
	}
	return addr
}

func TestAVInsertWithoutOut(t *testing.T) {
	eachAV(t, func(t *testing.T, facts avFacts, d *Domain) {
		v := openAV(t, d, AVAttr{})
		addrs := testAddrs(t, d, 3)
		n, err := v.Insert(addrs, nil, 0, 0)
		require.NoError(t, err)
		require.Equal(t, 3, n)
		got, err := v.Lookup(2)
		require.NoError(t, err)
		require.Equal(t, lookedUp(facts, addrs[2]), got)
	})
}

func TestAVStrAddr(t *testing.T) {
	eachAV(t, func(t *testing.T, facts avFacts, d *Domain) {
		v := openAV(t, d, AVAttr{})
		require.Empty(t, v.StrAddr(nil))
		switch facts.prov {
		case "shm":
			require.Equal(t, "fi_shm://x", v.StrAddr([]byte("fi_shm://x")), "a string without its zero byte")
			require.Equal(t, "fi_shm://x", v.StrAddr([]byte("fi_shm://x\x00")))
			long := fmt.Sprintf("fi_shm://%0300d", 7)
			require.Equal(t, long, v.StrAddr([]byte(long)), "longer than the first buffer")
		case "sockets":
			require.Equal(t, "127.0.0.1:4000", v.StrAddr(sockaddr("127.0.0.1", 4000)))
			require.Empty(t, v.StrAddr(make([]byte, 16)))
		default:
			require.Equal(t, "fi_sockaddr_in://127.0.0.1:4000", v.StrAddr(sockaddr("127.0.0.1", 4000)))
			require.Empty(t, v.StrAddr(make([]byte, 16)), "no family")
		}
	})
}

// TestAVInsertSomeBad inserts two good addresses with a bad one before, between and after them. The
// good ones must be inserted nevertheless.
func TestAVInsertSomeBad(t *testing.T) {
	bad := map[string][]byte{
		"empty":   nil,
		"zero":    make([]byte, 16),
		"short":   sockaddr("127.0.0.1", 4000)[:8],
		"ip6":     append(binary.NativeEndian.AppendUint16(nil, syscall.AF_INET6), make([]byte, 26)...),
		"port 0":  sockaddr("127.0.0.1", 0),
		"0.0.0.0": sockaddr("0.0.0.0", 4000),
	}
	eachAV(t, func(t *testing.T, facts avFacts, d *Domain) {
		for name, bad := range bad {
			if facts.prov == "shm" && name != "empty" {
				continue // for shm any string can be an address
			}
			for _, flags := range []Flags{0, FlagSyncErr} {
				v := openAV(t, d, AVAttr{})
				good := testAddrs(t, d, 2)
				addrs := [][]byte{bad, good[0], bad, good[1], bad}
				out := make([]Addr, len(addrs))
				n, err := v.Insert(addrs, out, flags, 0)
				var failed *InsertError
				require.ErrorAs(t, err, &failed, name)
				if flags == FlagSyncErr && !facts.syncErr {
					require.Zero(t, n)
					require.ErrorIs(t, err, ErrBadFlags)
					continue
				}
				require.Equal(t, 2, n, name)
				require.Equal(t, []Addr{AddrNotAvail, 0, AddrNotAvail, 1, AddrNotAvail}, out, name)
				require.NoError(t, failed.Errs[1])
				require.NoError(t, failed.Errs[3])
				for _, i := range []int{0, 2, 4} {
					switch {
					case name != "port 0" && name != "0.0.0.0":
						// This package detects all bad addresses except these two.
						require.ErrorIs(t, failed.Errs[i], ErrInvalid)
					case v2 && facts.prov == "udp;ofi_rxd": // it gives a reason for some addresses
						require.Error(t, failed.Errs[i])
					case flags == FlagSyncErr && facts.reason:
						require.NotErrorIs(t, failed.Errs[i], ErrOther, "%s: the provider says why", name)
						require.Error(t, failed.Errs[i])
					default:
						require.ErrorIs(t, failed.Errs[i], ErrOther, "%s: the provider gives no reason", name)
					}
				}
				require.ErrorContains(t, err, "3 of 5 addresses failed, the first is number 0")
				require.ErrorIs(t, v.Remove(out), ErrInvalid, "failed ones cannot be removed")
				got, err := v.Lookup(out[3])
				require.NoError(t, err)
				require.Equal(t, lookedUp(facts, good[1]), got, name)
				require.NoError(t, v.Remove([]Addr{0, 1}), "after %s", name)
			}
		}
	})
}

func TestAVRemove(t *testing.T) {
	eachAV(t, func(t *testing.T, facts avFacts, d *Domain) {
		v := openAV(t, d, AVAttr{})
		addrs := testAddrs(t, d, 4)
		out := make([]Addr, 4)
		_, err := v.Insert(addrs, out, 0, 0)
		require.NoError(t, err)
		for _, wrong := range [][]Addr{{4}, {1, 1}, {0, AddrNotAvail}, {1 << 40}} {
			require.ErrorIs(t, v.Remove(wrong), ErrInvalid)
		}
		for i, a := range out { // the failed removals have removed nothing
			requireAddr(t, facts, v, a, addrs[i])
		}
		require.NoError(t, v.Remove(nil))
		require.NoError(t, v.Remove([]Addr{out[1], out[2]}))
		require.ErrorIs(t, v.Remove([]Addr{out[1]}), ErrInvalid, "the address was removed")
		_, err = v.Lookup(out[2])
		require.ErrorIs(t, err, ErrInvalid)

		again := make([]Addr, 1)
		_, err = v.Insert(addrs[1:2], again, 0, 0)
		require.NoError(t, err, "a removed address can be inserted again")
		requireAddr(t, facts, v, again[0], addrs[1])
		requireAddr(t, facts, v, out[3], addrs[3])
	})
}

// TestAVInsertTwice inserts an address twice. The second insertion must fail with ErrAlready and
// have the index of the first, except with sockets, which inserts the address again.
func TestAVInsertTwice(t *testing.T) {
	eachAV(t, func(t *testing.T, facts avFacts, d *Domain) {
		v := openAV(t, d, AVAttr{})
		addr := testAddrs(t, d, 1)[0]
		out := make([]Addr, 2)
		n, err := v.Insert([][]byte{addr, addr}, out, 0, 0)
		if facts.prov == "sockets" {
			require.NoError(t, err)
			require.Equal(t, []Addr{0, 1}, out)
			return
		}
		require.Equal(t, 1, n)
		require.ErrorIs(t, err, ErrAlready)
		require.Equal(t, []Addr{0, 0}, out)
	})
}

// TestAVShmAbsentPeers checks that two peers of shm that have no enabled endpoint get the same
// Addr, so that the second insertion returns ErrAlready. With libfabric 2.x each gets its own.
func TestAVShmAbsentPeers(t *testing.T) {
	v := openAV(t, openDomain(t, setup{prov: "shm"}), AVAttr{})
	name := func(i int) []byte { return fmt.Appendf(nil, "fi_shm://weft-absent-%d-%d", os.Getpid(), i) }
	n, err := v.Insert([][]byte{name(0), name(1)}, nil, 0, 0)
	if v2 {
		require.NoError(t, err)
		require.Equal(t, 2, n)
		return
	}
	require.Equal(t, 1, n)
	require.ErrorIs(t, err, ErrAlready)
}

// TestAVMap uses a vector of type AVMap, in which the provider chooses the values of addresses, and
// checks that Lookup and Remove accept them.
func TestAVMap(t *testing.T) {
	eachAV(t, func(t *testing.T, facts avFacts, d *Domain) {
		v := openAV(t, d, AVAttr{Type: AVMap})
		if facts.prov == "udp;ofi_rxd" {
			require.Equal(t, AVTable, v.Attr().Type, "the domain's type is taken")
		} else {
			require.Equal(t, AVMap, v.Attr().Type)
		}
		addrs := testAddrs(t, d, 6)
		out := make([]Addr, len(addrs))
		n, err := v.Insert(addrs, out, 0, 0)
		require.NoError(t, err)
		require.Equal(t, len(addrs), n)
		for i, a := range out {
			requireAddr(t, facts, v, a, addrs[i])
		}
		require.NoError(t, v.Remove(out))
		_, err = v.Lookup(out[0])
		require.ErrorIs(t, err, ErrInvalid)
	})
}

func TestKnown(t *testing.T) {
	var k known
	for _, a := range []Addr{0, 63, 64, 1000, knownLow - 1, knownLow, 1 << 40} {
		require.False(t, k.has(a))
		require.False(t, k.remove(a))
		k.add(a)
		require.True(t, k.has(a))
		require.False(t, k.has(a+1))
		require.True(t, k.remove(a))
		require.False(t, k.has(a))
	}
}
