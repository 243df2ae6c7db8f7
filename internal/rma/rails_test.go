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

// Pairs of ranks talk by different transports, each in its own way.
func TestSeveralTransports(t *testing.T) {
	for name, providers := range map[string][]transport.Provider{
		"with and without RMA": {inproc.NewFabric(), inproc.NewFabric(inproc.WithoutRMA())},
		"inproc and tcp":       {inproc.NewFabric(inproc.WithMRMode(transport.MRVirtAddr)), tcp.New()},
		"two with atomics":     {&atomicFabric{Fabric: inproc.NewFabric()}, &atomicFabric{Fabric: inproc.NewFabric()}},
		"more than a part has": {inproc.NewFabric(), inproc.NewFabric(), inproc.NewFabric(), inproc.NewFabric(), inproc.NewFabric()},
	} {
		t.Run(name, func(t *testing.T) {
			ms := openWindows(t, openRails(t, 5, nil, providers...), 8*modelElems, ofInt64())
			require.False(t, ms[0].Native(), "atomics of two fabrics do not know of each other")
			each(t, ms, func(m *member) error { return m.compare(3) })
		})
	}
}

// miser is inproc where some ranks cannot register memory.
type miser struct{ *inproc.Fabric }

type miserDomain struct{ transport.Domain }

var errMiser = errors.New("no memory to be registered")

func (f miser) Open(cfg transport.Config) (transport.Domain, error) {
	d, err := f.Fabric.Open(cfg)
	if cfg.Self%2 == 1 {
		d = miserDomain{d}
	}
	return d, err
}

func (miserDomain) RegisterMemory([]byte, transport.Access) (transport.MemoryRegion, error) {
	return nil, errMiser
}

// A part that cannot be registered is reached by messages.
func TestUnregisteredPart(t *testing.T) {
	ms := openWindows(t, openEngines(t, 3, miser{inproc.NewFabric(inproc.WithoutSharedMemory())}, nil), 8*modelElems, ofInt64())
	each(t, ms, func(m *member) error { return m.compare(4) })
	require.True(t, ms[1].targets[0].direct)
	require.False(t, ms[0].targets[1].direct)
}

// A buffer that cannot be registered where it must be is an error of the
// operation.
func TestUnregisteredBuffer(t *testing.T) {
	ms := openWindows(t, openEngines(t, 2, miser{inproc.NewFabric(inproc.WithMRMode(transport.MRLocal))}, nil), 64, ofInt64())
	m := ms[1]
	require.NoError(t, m.LockAll(background))
	require.NoError(t, m.Put(background, 0, 0, word(1)))
	require.ErrorIs(t, m.Flush(background, 0), errMiser)
	require.NoError(t, m.Accumulate(background, 0, 0, word(2), Sum))
	require.ErrorIs(t, m.Flush(background, 0), errMiser, "the first error stays")
	require.ErrorIs(t, m.UnlockAll(background), errMiser)
	require.NoError(t, m.LockAll(background))
	require.NoError(t, m.UnlockAll(background), "until the epoch ends")
	require.Equal(t, int64(2), get(ms[0].local))
}

// An element must fit into a message where there are but messages.
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

// Operations in flight when the window closes end; their slots are given back.
func TestCloseWithTransfersInFlight(t *testing.T) {
	f := inproc.NewFabric(inproc.WithRMADelay(3), inproc.WithMaxRMASize(40))
	ms := openWindows(t, openEngines(t, 2, f, map[string]string{"engine.async_progress": "false"}), 4096, ofInt64())
	m := ms[0]
	require.NoError(t, m.Fence(background, false))
	var all []engine.Request
	for i := range 100 { // more than fly at once
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

// Who has too much under way waits, and may give up waiting.
func TestTooMuchUnderWay(t *testing.T) {
	ms := asleep(t)
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
