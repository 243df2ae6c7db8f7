//go:build libfabric

package libfabric

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
)

// providers returns the libfabric providers that need no adapter.
func providers() []string {
	return []string{"shm", "tcp;ofi_rxm", libfabrictest.XNet(), "udp;ofi_rxd", "sockets"}
}

// TestCloseHalfOpen opens a domain by only the first n steps of Open and closes it, for each n. It
// checks that after Close the number of open file descriptors is the same for each n.
func TestCloseHalfOpen(t *testing.T) {
	for _, prov := range providers() {
		t.Run(prov, func(t *testing.T) {
			h := hints{provider: prov, oneHost: true}
			infos, err := h.choose()
			require.NoError(t, err)
			steps := []func(d *domain) error{
				(*domain).openPoll,
				func(d *domain) (err error) { d.fabric, err = fi.OpenFabric(d.info); return err },
				func(d *domain) (err error) { d.fid, err = d.fabric.OpenDomain(d.info); return err },
				func(d *domain) error { return d.openCQ(d) },
				func(d *domain) error { return d.openEndpoint(d) },
			}
			open := 0
			for n := len(steps); n >= 0; n-- {
				d := newDomain(config(0, 1), infos)
				for _, s := range steps[:n] {
					require.NoError(t, s(d))
				}
				require.NoError(t, d.Close(), "after %d steps", n)
				require.NoError(t, d.Close(), "second Close")
				fds, err := os.ReadDir("/proc/self/fd")
				require.NoError(t, err)
				if n == len(steps) {
					open = len(fds) // libfabric keeps some descriptors open after the first domain
				}
				require.Len(t, fds, open, "after %d steps", n)
			}
		})
	}
}

// TestCloseRefused checks that memory stays mapped and pinned if libfabric refuses to close the
// domain, here because an address vector is open that the test, not the domain, has opened.
func TestCloseRefused(t *testing.T) {
	d, err := withProvider(t, "tcp;ofi_rxm").Open(config(0, 1))
	require.NoError(t, err)
	dom := d.(*domain)
	_, err = d.RegisterMemory(make([]byte, 100), transport.RemoteRead)
	require.NoError(t, err)
	busy, err := dom.fid.OpenAV(fi.AVAttr{Type: fi.AVTable, Count: 1})
	require.NoError(t, err)
	require.ErrorIs(t, d.Close(), fi.ErrBusy)
	require.NotNil(t, dom.arena.mem)
	clear(dom.arena.mem) // would crash if the memory had been unmapped
	require.Len(t, dom.mrs.byKey, 1, "the region is still pinned")
	require.NoError(t, busy.Close())
	require.NoError(t, dom.fid.Close())
	require.NoError(t, dom.fabric.Close())
}

// TestShutdownDead checks that Shutdown of rank 0 returns, and that rank 0 reports rank 1 as down,
// if rank 1 ends without acknowledging the close message.
func TestShutdownDead(t *testing.T) {
	for _, prov := range []string{"tcp;ofi_rxm", libfabrictest.XNet(), "sockets", libfabrictest.Name} {
		t.Run(prov, func(t *testing.T) {
			t.Setenv(testScript, "verbs")
			a, b := pair(t, prov, nil)
			require.NoError(t, send(t, a, 1, "hello", a, b))
			until(t, func() bool { return len(b.msgs) == 1 }, a, b)
			require.NoError(t, send(t, b, 0, "and you", a, b))
			until(t, func() bool { return len(a.msgs) == 1 }, a, b)
			a.dom.shutdown, a.dom.dropMessages = true, true
			until(t, func() bool { a.dom.sendCloses(); return a.dom.peers[1].closeSent }, a)
			require.NoError(t, b.dom.Close())
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout/2)
			defer cancel()
			require.NoError(t, a.ep.Shutdown(ctx))
			a.poll(t)
			require.Equal(t, 1, kinds(a.seen, transport.PeerDown))
		})
	}
}

// TestShutdownLost checks that Shutdown does not wait for the end of operations with a peer that is
// down.
func TestShutdownLost(t *testing.T) {
	a, _ := pair(t, "tcp;ofi_rxm", nil)
	require.GreaterOrEqual(t, a.dom.arena.acquire(opRead, 1, nil), 0)
	_ = a.dom.peerDown(1, "read", errRefused)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout/4)
	defer cancel()
	require.NoError(t, a.ep.Shutdown(ctx))
}

// TestSelfFails checks that an operation of a rank with itself that the fabric refuses returns an error,
// and that the rank does not count as failed afterwards.
func TestSelfFails(t *testing.T) {
	a, _ := pair(t, "tcp;ofi_rxm", nil)
	require.ErrorIs(t, a.dom.postFailed(0, "atomic", fi.ErrConnReset), transport.ErrPeerDown)
	require.NoError(t, a.dom.peers[0].err)
	a.poll(t)
	require.Zero(t, kinds(a.seen, transport.PeerDown))
}

// TestPause checks that a long time without a call of the rank does not count toward the connect
// timeout.
func TestPause(t *testing.T) {
	for _, prov := range []string{"tcp;ofi_rxm", libfabrictest.XNet()} {
		t.Run(prov, func(t *testing.T) {
			a, b := pair(t, prov, nil)
			_, err := a.ep.Send(&transport.Op{Peer: 1, Data: []byte("hello")})
			require.ErrorIs(t, err, transport.ErrAgain)
			p := &a.dom.peers[1]
			for _, at := range []*time.Time{&p.noRoomSince, &p.nextProbe, &p.lastTry} {
				*at = at.Add(-time.Hour)
			}
			require.NoError(t, send(t, a, 1, "hello", a, b))
			until(t, func() bool { return len(b.msgs) == 1 }, a, b)
		})
	}
}

// TestNoBuffers checks that Read returns errBuffers, with the cause, when a receive into every
// buffer has failed, and the provider has released all.
func TestNoBuffers(t *testing.T) {
	a, _ := pair(t, "tcp;ofi_rxm", nil)
	a.dom.peers[1].contacted = true // so that a message of this peer may be under way
	for i := range a.dom.arena.bufs {
		require.NoError(t, a.dom.broken)
		a.dom.broken = a.dom.receiveFailed(i, &fi.RawError{Flags: fi.FlagMultiRecv, Err: fi.ErrTruncated})
	}
	_, err := a.cq.Read(a.comp)
	require.ErrorIs(t, err, errBuffers)
	require.ErrorIs(t, err, fi.ErrTruncated)
}

// TestShmBadAddress posts reads and then writes, by turns to a valid and to an invalid remote
// address. Exactly the operations with the invalid address must fail, although shm of libfabric
// 1.17 does not report which operation has failed. shm of libfabric 2.x never completes such an
// operation.
func TestShmBadAddress(t *testing.T) {
	a, b := pair(t, "shm", nil)
	mr, err := b.dom.RegisterMemory([]byte("abcdefgh"), transport.RemoteRead|transport.RemoteWrite)
	require.NoError(t, err)
	rma := a.ep.(transport.RMAEndpoint)
	if fi.LibraryVersion().Major() >= 2 {
		op := &transport.Op{Peer: 1, RemoteKey: mr.Key(), RemoteAddr: 8, Data: make([]byte, 4)}
		until(t, func() bool { return rma.Read(op) == nil }, a, b)
		for range 1000 {
			a.poll(t)
			b.poll(t)
		}
		require.Empty(t, a.seen)
		require.NoError(t, mr.Close())
		return
	}
	good, bad := mr.Base(), uint64(8)
	ops := make([]transport.Op, 6)
	for i := range ops {
		op := &ops[i]
		*op = transport.Op{Peer: 1, RemoteKey: mr.Key(), RemoteAddr: good, Data: make([]byte, 4)}
		if i%2 == 1 {
			op.RemoteAddr = bad
		}
		post := rma.Read
		if i > 3 {
			post = rma.Write
		}
		until(t, func() bool {
			err = post(op)
			return !errors.Is(err, transport.ErrAgain)
		}, b)
		require.NoError(t, err)
	}
	until(t, func() bool { return kinds(a.seen, transport.OpDone) == len(ops) }, a, b)
	for _, c := range a.seen {
		if c.Op.RemoteAddr == bad {
			require.ErrorIs(t, c.Err, transport.ErrKey)
		} else {
			require.NoError(t, c.Err)
		}
	}
	require.Zero(t, a.dom.arena.busy)
	require.NoError(t, mr.Close())
}

// TestSymmetricRefused checks that addresses that were inserted before a failed InsertSym remain in
// the vector.
func TestSymmetricRefused(t *testing.T) {
	a, b := pair(t, "tcp;ofi_rxm", nil)
	_, err := a.dom.av.InsertSym("0.0.0.0", 1, "9", 1)
	require.ErrorIs(t, err, transport.ErrAddress)
	require.Equal(t, 2, a.dom.av.Len())
	at, err := a.dom.av.Lookup(0)
	require.NoError(t, err)
	require.Equal(t, a.ep.Address(), at)
	require.NoError(t, send(t, a, 1, "hello", a, b))
}

// TestLocalRegion checks that, under MRLocal, [domain.checkLocal] accepts a buffer only if Op.Region is
// open and contains the buffer.
func TestLocalRegion(t *testing.T) {
	a := newNode(t, "tcp;ofi_rxm", config(0, 1))
	a.dom.mrMode |= fi.MRLocal
	mem := make([]byte, 100)
	mr, err := a.dom.RegisterMemory(mem[10:90], transport.Local)
	require.NoError(t, err)
	for _, c := range []struct {
		from, to int
		ok       bool
	}{{10, 90, true}, {20, 21, true}, {89, 90, true}, {9, 20, false}, {89, 91, false}, {90, 91, false}, {0, 100, false}} {
		err := a.dom.checkLocal(&transport.Op{Data: mem[c.from:c.to], Region: mr})
		require.Equal(t, c.ok, err == nil, "%d to %d", c.from, c.to)
	}
	require.NoError(t, mr.Close())
	require.ErrorIs(t, a.dom.checkLocal(&transport.Op{Data: mem[10:90], Region: mr}), errRegion)
	a.dom.mrMode &^= fi.MRLocal
}

// TestPeerDiesUnderReads checks that all reads in flight end when the peer dies: those that have
// not succeeded by then end with ErrPeerDown.
func TestPeerDiesUnderReads(t *testing.T) {
	for _, prov := range []string{"tcp;ofi_rxm", libfabrictest.XNet(), "sockets"} {
		t.Run(prov, func(t *testing.T) {
			a, b := pair(t, prov, nil)
			mr, err := b.dom.RegisterMemory(make([]byte, 1<<20), transport.RemoteRead)
			require.NoError(t, err)
			require.NoError(t, send(t, a, 1, "hello", a, b))
			until(t, func() bool { return len(b.msgs) == 1 }, a, b)
			const reads = 8
			for range reads {
				op := &transport.Op{Peer: 1, RemoteKey: mr.Key(), RemoteAddr: mr.Base(), Data: make([]byte, 1<<20)}
				require.NoError(t, a.ep.(transport.RMAEndpoint).Read(op))
			}
			require.NoError(t, b.dom.Close())
			until(t, func() bool { return kinds(a.seen, transport.OpDone) == reads }, a)
			until(t, func() bool { return kinds(a.seen, transport.PeerDown) == 1 }, a)
			for _, c := range a.seen {
				// With sockets some reads may succeed, because the peer's provider serves reads in
				// a thread of its own.
				if c.Err != nil {
					require.ErrorIs(t, c.Err, transport.ErrPeerDown)
				}
			}
			require.Zero(t, a.dom.arena.busy)
		})
	}
}
