//go:build libfabric

package fi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMRBasic uses the registration mode of libfabric 1.4, in which the provider chooses the keys.
func TestMRBasic(t *testing.T) {
	for _, facts := range mrProviders {
		t.Run(facts.prov, func(t *testing.T) {
			d := openDomain(t, setup{prov: facts.prov, caps: CapMsg | CapRMA, hints: func(hints *Info) {
				hints.Domain.MRMode = MRBasic
			}})
			require.Equal(t, MRBasic, d.Info().Domain.MRMode)
			buf := make([]byte, 64)
			keys := make(map[uint64]bool)
			var open []*MR
			for range 3 {
				m, err := d.RegisterMemory(buf, allAccess, 0, testMRKey, 0)
				require.NoError(t, err)
				require.NotEqual(t, uint64(testMRKey), m.Key())
				require.False(t, keys[m.Key()], "each region has its own key")
				keys[m.Key()] = true
				open = append(open, m)
			}
			for _, m := range open {
				closeMR(t, m)
			}
		})
	}
}

// TestMRLacking checks the errors of calls that only providers for special hardware support: for
// raw keys, Enable and Refresh.
func TestMRLacking(t *testing.T) {
	eachMR(t, func(t *testing.T, _ mrFacts, d *Domain) {
		m, err := d.RegisterMemory(make([]byte, 64), allAccess, 0, testMRKey, 0)
		require.NoError(t, err)
		defer closeMR(t, m)
		_, _, err = m.RawAttr(0)
		require.ErrorIs(t, err, ErrNotSupported)
		require.ErrorIs(t, err, ErrNotImpl, "the errno is kept")
		require.ErrorIs(t, m.Enable(), ErrNotSupported)
		require.ErrorIs(t, m.Refresh(nil, 0), ErrNotSupported)
		require.ErrorIs(t, m.Refresh([][]byte{m.bufs[0][:8]}, 0), ErrNotSupported)
		key, err := d.MapRaw(0, []byte{1, 2, 3}, 0)
		require.ErrorIs(t, err, ErrNotSupported)
		require.Equal(t, KeyNotAvail, key)
		_, err = d.MapRaw(0, nil, 0)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorIs(t, d.UnmapKey(1), ErrNotSupported)
	})
}

func TestMRBind(t *testing.T) {
	eachMR(t, func(t *testing.T, facts mrFacts, d *Domain) {
		m, err := d.RegisterMemory(make([]byte, 64), allAccess, 0, testMRKey, FlagRMAEvent)
		require.NoError(t, err)
		counter, err := d.OpenCounter(CntrAttr{})
		require.NoError(t, err)
		err = m.BindCounter(counter, FlagRemoteWrite)
		if facts.counter {
			require.NoError(t, err)
			require.ErrorIs(t, counter.Close(), ErrBusy, "the region needs the counter")
		} else {
			require.ErrorIs(t, err, ErrNotSupported)
		}
		ep, err := d.OpenEndpoint(d.Info())
		require.NoError(t, err)
		// net of libfabric 1.17 cannot close an endpoint without an address vector.
		require.NoError(t, ep.BindAV(openAV(t, d, AVAttr{})))
		err = m.BindEndpoint(ep, 0)
		if facts.prov == "sockets" {
			require.ErrorIs(t, err, ErrInvalid)
		} else {
			require.ErrorIs(t, err, ErrNotSupported)
		}
		require.NoError(t, ep.Close(), "a failed binding adds no reference")
		closeMR(t, m)
		require.NoError(t, counter.Close())
		require.ErrorIs(t, m.BindCounter(counter, FlagRemoteWrite), ErrClosed)
	})
}

func TestMRAsync(t *testing.T) {
	eachMR(t, func(t *testing.T, facts mrFacts, d *Domain) {
		eq := openEQ(t, d)
		err := d.BindEQ(eq, FlagRegMR)
		if !facts.async {
			if v2 && facts.prov == "sockets" { // it accepts the queue and writes no events
				require.NoError(t, err)
				require.NoError(t, d.Close())
			} else {
				require.Error(t, err)
			}
			require.NoError(t, eq.Close())
			return
		}
		require.NoError(t, err)
		attr := &MRAttr{Buffers: [][]byte{make([]byte, 64)}, Access: allAccess, RequestedKey: testMRKey, Context: 99}
		m, err := d.RegisterAttr(attr, 0)
		require.NoError(t, err)
		ev, failed := nextEvent(t, eq)
		require.Nil(t, failed)
		require.Equal(t, EventMRComplete, ev.Type)
		require.Equal(t, uintptr(99), ev.Context)
		require.Equal(t, uint64(testMRKey), m.Key())
		closeMR(t, m)
		require.ErrorIs(t, eq.Close(), ErrBusy, "the domain needs the queue")
		require.NoError(t, d.Close())
	})
}

func TestMRClosing(t *testing.T) {
	eachMR(t, func(t *testing.T, _ mrFacts, d *Domain) {
		pins := countPins()
		buf := make([]byte, 64)
		first, err := d.RegisterMemory(buf, allAccess, 0, 1, 0)
		require.NoError(t, err)
		second, err := d.RegisterV([][]byte{buf}, allAccess, 0, 2, 0)
		require.NoError(t, err)
		require.Equal(t, pins+2, countPins())
		require.ErrorIs(t, d.Close(), ErrBusy, "its regions need the domain")
		require.ErrorIs(t, d.Fabric().Close(), ErrBusy)
		require.Equal(t, uint64(1), first.Key(), "a failed Close changes nothing")
		closeMR(t, first)
		require.ErrorIs(t, d.Close(), ErrBusy)
		closeMR(t, second)
		require.Equal(t, pins, countPins())
		require.NoError(t, d.Close())

		_, err = d.RegisterMemory(buf, allAccess, 0, 1, 0)
		require.ErrorIs(t, err, ErrClosed)
		_, err = d.RegisterV([][]byte{buf}, allAccess, 0, 1, 0)
		require.ErrorIs(t, err, ErrClosed)
		_, err = d.RegisterAttr(&MRAttr{Buffers: [][]byte{buf}}, 0)
		require.ErrorIs(t, err, ErrClosed)
		_, err = d.MapRaw(0, []byte{1}, 0)
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorIs(t, d.UnmapKey(0), ErrClosed)
		_, err = d.OpenAV(AVAttr{Type: AVTable})
		require.ErrorIs(t, err, ErrClosed)
		_, _, err = first.RawAttr(0)
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorIs(t, first.Enable(), ErrClosed)
		require.ErrorIs(t, first.Refresh(nil, 0), ErrClosed)
		require.Equal(t, pins, countPins())
	})
}
