package main

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/psync"
)

// shared uses what ranks share by package psync, from several goroutines of each rank: a counter, a
// lock and sections in the order of the ranks.
func shared(k *call) error {
	home := k.rng.IntN(k.c.Size())
	for _, run := range []func(k *call, home int) error{counter, mutex, sections} {
		if err := run(k, home); err != nil {
			return err
		}
	}
	return nil
}

// together runs f in n goroutines, and returns their errors. If one fails, together calls stop, so
// that the others end.
func (k *call) together(n int, stop func(), f func(k *call, i int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		sub := *k
		sub.own, sub.closers = k.branch(), nil
		wg.Go(func() {
			if errs[i] = f(&sub, i); errs[i] != nil {
				stop()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// counter has all goroutines of all ranks add to a counter. Together they must get each value once.
func counter(k *call, home int) error {
	n, err := psync.NewCounter(k.c, home)
	if err != nil {
		return err
	}
	goroutines, each, start := 1+k.rng.IntN(3), 1+k.rng.IntN(20), int64(k.rng.IntN(1000))-500
	if k.c.Rank() == k.rng.IntN(k.c.Size()) {
		if err := n.Store(start); err != nil {
			return err
		}
	}
	if err := k.c.Barrier(); err != nil {
		return err
	}
	var mu sync.Mutex
	var got []int64
	err = k.together(goroutines, func() {}, func(k *call, _ int) error {
		for range each {
			x, err := n.Add(1)
			if err != nil {
				return err
			}
			k.delay()
			mu.Lock()
			got = append(got, x)
			mu.Unlock()
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("counter: %w", err)
	}
	parts, err := comm.AllgathervAlloc(k.c, got)
	if err != nil {
		return err
	}
	values := slices.Concat(parts...)
	slices.Sort(values)
	want := make([]int64, goroutines*each*k.c.Size())
	for i := range want {
		want[i] = start + int64(i)
	}
	if err := same("values of the counter", values, want); err != nil {
		return err
	}
	if x, err := n.Load(); err != nil || x != start+int64(len(want)) {
		return fmt.Errorf("the counter is %d instead of %d: %w", x, start+int64(len(want)), err)
	}
	return n.Free()
}

// mutex has all goroutines of all ranks change elements of a window under a lock, by Get and Put. No
// change may be lost.
func mutex(k *call, home int) error {
	m, err := psync.NewMutex(k.c, home)
	if err != nil {
		return err
	}
	w, err := comm.NewWin[int64](k.c, 2)
	if err != nil {
		return err
	}
	if err := w.LockAll(); err != nil {
		return err
	}
	target := k.rng.IntN(k.c.Size())
	goroutines, each := 1+k.rng.IntN(3), 1+k.rng.IntN(8)
	// After an error this rank may never give the lock back. The window revokes what it can: calls
	// of other ranks on it fail.
	stop := func() { _ = w.Revoke() }
	err = k.together(goroutines, stop, func(k *call, _ int) error {
		b := make([]int64, 2)
		for range each {
			if err := k.lock(m); err != nil {
				return err
			}
			err := errors.Join(w.Get(b, target, 0), w.Flush(target))
			if err == nil && b[0] != b[1] {
				err = fmt.Errorf("%w: under a lock the elements %v are not equal", errRemote, b)
			}
			k.delay()
			b[0]++
			b[1]++
			if err == nil {
				err = errors.Join(w.Put(b, target, 0), w.Flush(target))
			}
			if err = errors.Join(err, m.Unlock()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("mutex: %w", err)
	}
	if err := k.c.Barrier(); err != nil {
		return err
	}
	b, total := make([]int64, 2), int64(goroutines*each*k.c.Size())
	if err := errors.Join(w.Get(b, target, 0), w.FlushLocal(target)); err != nil {
		return err
	}
	if b[0] != total || b[1] != total {
		return fmt.Errorf("%w: after %d increments under a lock the elements are %v", errRemote, total, b)
	}
	if err := errors.Join(k.c.Barrier(), w.UnlockAll()); err != nil {
		return err
	}
	return errors.Join(w.Free(), m.Free())
}

// lock gets the lock, by Lock or by a loop of TryLock.
func (k *call) lock(m *psync.Mutex) error {
	if k.own.IntN(3) > 0 {
		return m.Lock()
	}
	for {
		if got, err := m.TryLock(); got || err != nil {
			return err
		}
		runtime.Gosched()
	}
}

// sections has each rank add its rank to a list in a section of psync.Sequential. The list is in a
// window of rank home, so the order of the elements is that of the sections.
func sections(k *call, home int) error {
	c, p := k.c, k.c.Size()
	w, err := comm.NewWin[int64](c, 1+p)
	if err != nil {
		return err
	}
	refusal, refuses := errors.New("the section has failed"), k.rng.IntN(2*p)
	err = psync.Sequential(c, func() error {
		k.delay()
		if err := w.Lock(home, comm.LockExclusive); err != nil {
			return err
		}
		n := []int64{0}
		err := errors.Join(w.Get(n, home, 0), w.Flush(home))
		if err == nil {
			err = errors.Join(w.Put([]int64{n[0] + 1}, home, 0), w.Put([]int64{int64(c.Rank())}, home, 1+int(n[0])))
		}
		if err = errors.Join(err, w.Unlock(home)); err == nil && c.Rank() == refuses {
			return refusal
		}
		return err
	})
	if c.Rank() == refuses {
		if !errors.Is(err, refusal) {
			return fmt.Errorf("sequential: %w", unexpected(err, refusal))
		}
	} else if err != nil {
		return fmt.Errorf("sequential: %w", err)
	}
	list, want := make([]int64, 1+p), []int64{int64(p)}
	for r := range p {
		want = append(want, int64(r))
	}
	if err := errors.Join(w.Lock(home, comm.LockShared), w.Get(list, home, 0), w.Unlock(home)); err != nil {
		return err
	}
	if err := same("ranks in the order of their sections", list, want); err != nil {
		return fmt.Errorf("%w: %w", errRemote, err)
	}
	return w.Free()
}
