//go:build libfabric

package libfabric

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
	"github.com/weft-hpc/weft/transport/transporttest"
)

func init() { libfabrictest.MustLoad() }

// withScript returns the provider of this package over testprov with this script.
func withScript(t testing.TB, script string) transport.Provider {
	t.Helper()
	return libfabrictest.WithScript(withProvider(t, libfabrictest.Name), script)
}

// TestConformanceManners runs the conformance tests over testprov in the manner of other providers,
// and with faults that the contract of a transport hides.
func TestConformanceManners(t *testing.T) {
	const bounds = "FI_EACCES reports a wrong range and a wrong right alike, as from verbs: both are ErrKey"
	for _, script := range []string{
		"plain", "ip", "verbs", "efa", "cxi", "iov=1", "psm",
		"eagain=30", "late=300", "enorx=6", "cxi,unexpected=3000", "psm,erecv=9", "efa,reorder=3", "separate=1", "multi=0", "auto=1", "verbs,silent=1",
	} {
		t.Run(script, func(t *testing.T) {
			counts := []int{1, 2, 3, 5}
			if strings.Contains(script, "=") {
				counts = []int{2, 3}
			}
			transporttest.Run(t, transporttest.OpenWith(func(t testing.TB) (transport.Provider, func(int)) {
				t.Helper()
				return withScript(t, script), nil
			}), transporttest.WithRanks(counts...),
				transporttest.Except("refused reads", bounds), transporttest.Except("refused writes", bounds))
		})
	}
}

// TestBusyPeer checks that a peer that lives is not given up although the fabric has no room for
// messages to it for longer than probeInterval. In the manner of verbs nothing listens at the TCP
// port of the peer's address.
func TestBusyPeer(t *testing.T) {
	t.Setenv(testScript, "verbs,tx=4")
	a, b := pair(t, libfabrictest.Name, nil)
	sent := 0
	send := func() error {
		_, err := a.ep.Send(&transport.Op{Peer: 1, HeaderLen: 1, Data: pattern(make([]byte, 1000), sent)})
		if err == nil {
			sent++
		}
		return err
	}
	until(t, func() bool { return send() == nil }, a)
	until(t, func() bool { return len(b.msgs) == 1 }, a, b) // so that a peer that refuses counts as failed
	refused := 0
	for end := time.Now().Add(probeAfter + 2*probeInterval); time.Now().Before(end); time.Sleep(time.Millisecond) {
		err := send() // b does not read meanwhile
		if err != nil {
			require.ErrorIs(t, err, transport.ErrAgain)
			refused++
		}
	}
	require.Positive(t, refused)
	until(t, func() bool { return len(b.msgs) == sent }, a, b)
	require.NoError(t, send())
}

// TestProgress checks that the domain has the progress that the provider has by itself, that a waiting
// rank sleeps, and that the sizes of the provider's queues bound the operations in flight.
func TestProgress(t *testing.T) {
	for script, want := range map[string]struct {
		progress     transport.Progress
		slots, queue int
	}{
		"verbs":        {transport.ProgressManual, slotCount, minQueueSize},
		"efa":          {transport.ProgressManual, slotCount, 256 + 8192},
		"cxi":          {transport.ProgressAuto, slotCount, minQueueSize},
		"psm,tx=100":   {transport.ProgressManual, 100, minQueueSize},
		"verbs,auto=1": {transport.ProgressAuto, slotCount, minQueueSize},
	} {
		t.Run(script, func(t *testing.T) {
			a, b := scripted(t, script)
			attr := a.dom.Attr()
			require.Equal(t, want.progress, attr.Progress)
			require.True(t, attr.Caps.Has(transport.CapWaitFD))
			require.False(t, attr.NoWaitObject)
			require.Len(t, a.dom.arena.slots, want.slots)
			require.Equal(t, want.queue, a.dom.queueSize())
			require.NoError(t, send(t, a, 1, "hello", a, b))
			until(t, func() bool { return len(b.msgs) == 1 }, a, b)
			sleeps := 0
			for start := time.Now(); time.Since(start) < 100*time.Millisecond; sleeps++ {
				if b.cq.Arm() {
					require.NoError(t, b.cq.Wait(50*time.Millisecond))
				}
				b.poll(t)
			}
			require.Less(t, sleeps, 20)
			until(t, b.cq.Arm, b)
			woken := make(chan error, 1)
			go func() { woken <- b.cq.Wait(testTimeout) }() // ends when the message of a has arrived
			start := time.Now()
			require.NoError(t, send(t, a, 1, "wake up", a))
			require.NoError(t, <-woken)
			require.Less(t, time.Since(start), testTimeout/2)
			until(t, func() bool { return len(b.msgs) == 2 }, a, b)
		})
	}
}

// TestUnsent checks that the endpoint asks for Reads as long as the fabric may refuse a message, so
// that a rank that computes sends a refused message again, and that it does not ask for the sake of a
// peer that has failed, nor over a provider that refuses no message.
func TestUnsent(t *testing.T) {
	a, b := scripted(t, "cxi,enorx=2")
	require.True(t, a.dom.Attr().Caps.Has(transport.CapBatch))
	require.Equal(t, transport.ProgressAuto, a.dom.Attr().Progress)
	unsent := a.ep.(transport.BatchEndpoint).Unsent
	require.False(t, unsent())
	refused := 0
	for i := range 20 {
		require.NoError(t, send(t, a, 1, "hello", a, b))
		for range 100 {
			b.poll(t)
			require.True(t, unsent(), "only a Read of a ends its message")
		}
		until(t, func() bool {
			if a.dom.peers[1].resends > 0 {
				refused++
				require.True(t, unsent())
			}
			return !unsent()
		}, a, b)
		until(t, func() bool { return len(b.msgs) == i+1 }, b)
	}
	require.Positive(t, refused)

	require.NoError(t, send(t, a, 1, "hello", a, b))
	require.True(t, unsent())
	_ = a.dom.peerDown(1, "send", errRefused)
	require.False(t, unsent())

	c := newNode(t, "tcp;ofi_rxm", config(0, 1))
	require.False(t, c.dom.Attr().Caps.Has(transport.CapBatch))
}
