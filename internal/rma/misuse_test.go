package rma

import (
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/transport/inproc"
)

// until waits until the function what, which runs under the engine's lock, returns true.
func (m *member) until(what func() bool) {
	for {
		m.port.Lock()
		done := what()
		m.port.Unlock()
		if done {
			return
		}
		runtime.Gosched()
	}
}

// TestLocksOfSeveralGoroutines checks that no other epoch opens while Lock waits, and that the
// second of two concurrent calls of Unlock returns ErrEpoch.
func TestLocksOfSeveralGoroutines(t *testing.T) {
	ms := withoutProgress(t)
	m, x := ms[0], &ms[0].targets[1]
	done := make(chan error, 2)
	go func() { done <- m.Lock(background, 1, true) }() // ends when rank 1 makes progress
	m.until(func() bool { return x.lock == lockRequested })
	require.ErrorIs(t, m.LockAll(background), ErrEpoch)
	require.ErrorIs(t, m.Start([]int{1}), ErrEpoch)
	require.ErrorIs(t, m.Fence(background, false), ErrEpoch)
	require.ErrorIs(t, m.Lock(background, 1, true), ErrEpoch)
	require.NoError(t, progressUntil(ms[1], func() error { return <-done }))

	require.NoError(t, m.Put(background, 1, 0, word(3)))
	for range 2 {
		go func() { done <- m.Unlock(background, 1) }() // ends when rank 1 makes progress
	}
	m.until(func() bool { return x.flushes[0].n == 2 })
	var refused int
	require.NoError(t, progressUntil(ms[1], func() error {
		for range 2 {
			if err := <-done; errors.Is(err, ErrEpoch) {
				refused++
			} else if err != nil {
				return err
			}
		}
		return nil
	}))
	require.Equal(t, 1, refused)
	require.NoError(t, m.LockAll(background))
	require.ErrorIs(t, m.Lock(background, 1, true), ErrEpoch)
	require.NoError(t, m.UnlockAll(background))
	require.Equal(t, int64(3), get(ms[1].local))
}

// TestEpochIsClosedOnce checks that the second of two concurrent calls that close an epoch returns
// ErrEpoch.
func TestEpochIsClosedOnce(t *testing.T) {
	for name, x := range map[string]struct{ open, end func(m *member) error }{
		"UnlockAll": {func(m *member) error { return m.LockAll(background) }, func(m *member) error { return m.UnlockAll(background) }},
		"Complete":  {func(m *member) error { return m.Start([]int{1}) }, func(m *member) error { return m.Complete(background) }},
	} {
		t.Run(name, func(t *testing.T) {
			ms := withoutProgress(t)
			m := ms[0]
			require.NoError(t, x.open(m))
			require.NoError(t, progressUntil(ms[1], func() error { return m.Put(background, 1, 0, word(3)) }))
			done := make(chan error, 2)
			for range cap(done) {
				go func() { done <- x.end(m) }() // ends when rank 1 makes progress
			}
			m.until(func() bool { return m.targets[1].flushes[0].n == cap(done) })
			var ended []error
			require.NoError(t, progressUntil(ms[1], func() error {
				ended = append(ended, <-done, <-done)
				return nil
			}))
			if ended[0] == nil {
				ended[0], ended[1] = ended[1], nil
			}
			require.ErrorIs(t, ended[0], ErrEpoch)
			require.NoError(t, ended[1])
		})
	}
}

// TestEpochEndsWhileWaiting checks that a call that waits for a free slot while the epoch ends
// starts no operation afterwards.
func TestEpochEndsWhileWaiting(t *testing.T) {
	ms := withoutProgress(t)
	m, x := ms[0], &ms[0].targets[1]
	require.NoError(t, m.Fence(background, false))
	for range maxPending {
		require.NoError(t, m.Accumulate(background, 1, 0, word(1), Sum))
	}
	waits, ends := make(chan error, 1), make(chan error, 1)
	go func() { waits <- m.Accumulate(background, 1, 0, word(1), Sum) }() // ends when rank 1 makes progress
	m.until(func() bool { return len(x.slotQueue) == 1 })
	m.port.Lock()
	m.Window.fence = false // as if another call had closed the epoch first
	m.port.Unlock()
	go func() { ends <- m.Flush(background, 1) }() // ends when rank 1 makes progress
	require.NoError(t, progressUntil(ms[1], func() error { return <-ends }))
	require.ErrorIs(t, progressUntil(ms[1], func() error { return <-waits }), ErrEpoch)
	require.Equal(t, int64(maxPending), get(ms[1].local))
}

// TestLockAfterUnlockAll checks that a lock that is granted after UnlockAll is released again.
func TestLockAfterUnlockAll(t *testing.T) {
	ms := withoutProgress(t)
	m, keeper := ms[0], ms[1]
	require.NoError(t, keeper.Lock(background, 1, true))
	require.NoError(t, m.LockAll(background))
	done := make(chan error, 2)
	for range cap(done) {
		go func() { done <- m.Put(background, 1, 0, word(1)) }() // ends when the lock is free
	}
	m.until(func() bool { return m.targets[1].lockWaiters == cap(done) })
	require.NoError(t, m.UnlockAll(background))
	require.NoError(t, keeper.Unlock(background, 1))
	for range cap(done) {
		require.ErrorIs(t, progressUntil(keeper, func() error { return <-done }), ErrEpoch)
	}
	each(t, ms[1:], func(m *member) error { return m.Lock(background, 1, true) })
	require.NoError(t, keeper.Unlock(background, 1))
	require.Equal(t, int64(0), get(keeper.local))
}

// TestAllocatedFreedWhileWaiting checks that memory of the engine's Alloc whose Free is called
// while a Put from it waits for a lock stays mapped until the Put has ended.
func TestAllocatedFreedWhileWaiting(t *testing.T) {
	for name, target := range map[string]int{"other": 1, "own": 0} {
		t.Run(name, func(t *testing.T) {
			ms := withoutProgress(t)
			m := ms[0]
			buf, err := m.e.Alloc(4096)
			require.NoError(t, err)
			copy(buf.Bytes(), word(9))
			keeper := ms[1]
			require.NoError(t, progressUntil(ms[target], func() error { return keeper.Lock(background, target, true) }))
			require.NoError(t, m.LockAll(background))
			done := make(chan error, 1)
			go func() { done <- m.Put(background, target, 0, buf.Bytes()) }() // ends when the lock is free
			m.until(func() bool { return m.targets[target].lock == lockRequested })
			buf.Free()
			require.NoError(t, m.e.Reap())
			require.NoError(t, unix.Madvise(buf.Bytes(), unix.MADV_NORMAL), "it is still mapped")
			require.NoError(t, progressUntil(m, func() error { return keeper.Unlock(background, target) }))
			require.NoError(t, progressUntil(keeper, func() error { return <-done }))
			require.NoError(t, progressUntil(keeper, func() error { return m.UnlockAll(background) }))
			require.Equal(t, int64(9), get(ms[target].local))
			require.NoError(t, m.e.Reap())
			require.ErrorIs(t, unix.Madvise(buf.Bytes(), unix.MADV_NORMAL), unix.ENOMEM)
		})
	}
}

// TestTransportBreaks checks that an error of the transport also ends the operations on a rank's
// own part that use the transport.
func TestTransportBreaks(t *testing.T) {
	f := &atomicFabric{Fabric: inproc.NewFabric(), delay: 1 << 30}
	ms := openWindows(t, openEngines(t, 2, f, nil), 64, ofInt64())
	m := ms[0]
	require.True(t, m.Native())
	require.NoError(t, m.Fence(background, false))
	for target := range 2 {
		require.NoError(t, m.Accumulate(background, target, 0, word(1), Sum))
	}
	f.broken.Store(true)
	each(t, ms[:1], func(*member) error {
		if err := wantErr(m.FlushAll(background), engine.ErrClosed); err != nil {
			return err
		}
		return wantErr(m.Fence(background, true), engine.ErrClosed)
	})
}
