package rma

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/tcp"
)

// TestSeveralTransports compares the results of random operations with a model, in jobs in which
// different pairs of ranks use different transports.
func TestSeveralTransports(t *testing.T) {
	for name, providers := range map[string][]transport.Provider{
		"with and without RMA": {inproc.NewFabric(), inproc.NewFabric(inproc.WithoutRMA())},
		"inproc and tcp":       {inproc.NewFabric(inproc.WithMRMode(transport.MRVirtAddr)), tcp.New()},
		"two with atomics":     {&atomicFabric{Fabric: inproc.NewFabric()}, &atomicFabric{Fabric: inproc.NewFabric()}},
		"more than a part has": {inproc.NewFabric(), inproc.NewFabric(), inproc.NewFabric(), inproc.NewFabric(), inproc.NewFabric()},
	} {
		t.Run(name, func(t *testing.T) {
			ms := openWindows(t, openRails(t, 5, nil, providers...), 8*modelElems, ofInt64())
			require.False(t, ms[0].Native(), "atomics of two fabrics are not atomic with respect to each other")
			each(t, ms, func(m *member) error { return m.compare(3) })
		})
	}
}

// noRegistration is the inproc transport, except that the ranks with odd numbers cannot register
// memory.
type noRegistration struct{ *inproc.Fabric }

type noRegistrationDomain struct{ transport.Domain }

var errNoRegistration = errors.New("registration refused")

func (f noRegistration) Open(cfg transport.Config) (transport.Domain, error) {
	d, err := f.Fabric.Open(cfg)
	if cfg.Self%2 == 1 {
		d = noRegistrationDomain{d}
	}
	return d, err
}

func (noRegistrationDomain) RegisterMemory([]byte, transport.Access) (transport.MemoryRegion, error) {
	return nil, errNoRegistration
}

// TestUnregisteredPart checks that operations on a part that cannot be registered use messages.
func TestUnregisteredPart(t *testing.T) {
	ms := openWindows(t, openEngines(t, 3, noRegistration{inproc.NewFabric(inproc.WithoutSharedMemory())}, nil), 8*modelElems, ofInt64())
	each(t, ms, func(m *member) error { return m.compare(4) })
	require.True(t, ms[1].targets[0].direct)
	require.False(t, ms[0].targets[1].direct)
}

// TestReach checks that a rank uses messages for the parts that its endpoint does not reach, and
// RMA for the others. Which of the two another rank uses for its own part does not matter.
func TestReach(t *testing.T) {
	reach := func(from, to transport.Addr) bool { return from != 1 && to != 2 }
	ms := openWindows(t, openEngines(t, 3, inproc.NewFabric(inproc.WithReach(reach)), nil), 8*modelElems, ofInt64())
	each(t, ms, func(m *member) error { return m.compare(4) })
	for i, m := range ms {
		for j := range ms {
			require.Equal(t, i != j && reach(transport.Addr(i), transport.Addr(j)), m.targets[j].direct, "%d to %d", i, j)
		}
	}
}

// TestUnregisteredBuffer checks that an operation fails if its buffer needs a registration and
// cannot be registered.
func TestUnregisteredBuffer(t *testing.T) {
	ms := openWindows(t, openEngines(t, 2, noRegistration{inproc.NewFabric(inproc.WithMRMode(transport.MRLocal))}, nil), 64, ofInt64())
	m := ms[1]
	require.NoError(t, m.LockAll(background))
	require.NoError(t, m.Put(background, 0, 0, word(1)))
	require.ErrorIs(t, m.Flush(background, 0), errNoRegistration)
	require.NoError(t, m.Accumulate(background, 0, 0, word(2), Sum))
	require.ErrorIs(t, m.Flush(background, 0), errNoRegistration, "the first error stays")
	require.ErrorIs(t, m.UnlockAll(background), errNoRegistration)
	require.NoError(t, m.LockAll(background))
	require.NoError(t, m.UnlockAll(background), "until the epoch ends")
	require.Equal(t, int64(2), get(ms[0].local))
}

// TestElementsTooLarge checks that accumulates by messages fail if an element does not fit a
// message.
func TestElementsTooLarge(t *testing.T) {
	cfg := Config{Elem: 16, Align: 8}
	f := inproc.NewFabric(inproc.WithMaxMsgSize(64), inproc.WithoutSharedMemory())
	ms := openWindows(t, openEngines(t, 2, f, nil), 64, cfg)
	m, x := ms[0], make([]byte, 16)
	require.NoError(t, m.LockAll(background))
	require.ErrorIs(t, m.Accumulate(background, 1, 0, x, Replace), transport.ErrTooLarge)
	require.ErrorIs(t, m.CompareSwap(background, 1, 0, x, x, x), transport.ErrTooLarge)
	require.NoError(t, m.CompareSwap(background, 0, 0, x, x, x))
	require.NoError(t, m.Put(background, 1, 0, x))
	require.NoError(t, m.UnlockAll(background))
}

// TestCloseWithTransfersInFlight checks that Close ends all pending operations with ErrClosed, also
// those whose transfers are in flight.
func TestCloseWithTransfersInFlight(t *testing.T) {
	f := inproc.NewFabric(inproc.WithRMADelay(3), inproc.WithMaxRMASize(40))
	ms := openWindows(t, openEngines(t, 2, f, map[string]string{"engine.async_progress": "false"}), 4096, ofInt64())
	m := ms[0]
	require.NoError(t, m.Fence(background, false))
	var all []engine.Request
	for i := range 100 { // more than maxInFlight
		q, err := m.Rput(background, 1, 40*i, make([]byte, 100))
		require.NoError(t, err)
		all = append(all, q)
	}
	require.NoError(t, m.Close())
	for _, q := range all {
		_, err := q.Wait(background)
		require.ErrorIs(t, err, engine.ErrClosed)
	}
	require.Zero(t, m.targets[1].pending)
	require.Nil(t, m.targets[1].oldest)
}

// TestTooMuchUnderWay checks that a call waits if maxPending operations are pending, and stops
// waiting when its context ends.
func TestTooMuchUnderWay(t *testing.T) {
	ms := withoutProgress(t)
	m := ms[0]
	require.NoError(t, m.Fence(background, false))
	for range maxPending {
		require.NoError(t, m.Accumulate(background, 1, 0, word(1), Sum))
	}
	ctx, cancel := context.WithCancel(background)
	cancel()
	require.ErrorIs(t, m.Accumulate(ctx, 1, 0, word(1), Sum), context.Canceled)
	each(t, ms, func(m *member) error { return m.fence() })
	require.Equal(t, int64(maxPending), get(ms[1].local))
}

func TestPartsAreChecked(t *testing.T) {
	var p Part
	require.ErrorIs(t, p.Decode(make([]byte, PartSize-1)), errPart)
	for at := range PartSize {
		b := make([]byte, PartSize)
		b[at] = 0xff
		if at < 24 && (at == 7 || at > 7 && at < 16 && at%4 == 3 || at > 16) || at == 47 {
			require.ErrorIs(t, p.Decode(b), errPart, at)
		} else {
			require.NoError(t, p.Decode(b), at)
		}
	}
}
