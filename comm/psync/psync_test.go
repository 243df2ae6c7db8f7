package psync_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/comm/psync"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/tcp"
)

// over runs f on several numbers of ranks, which share memory, use RMA, or use messages.
func over(t *testing.T, f func(c *comm.Comm) error) {
	for _, n := range []int{1, 2, 3, 5} {
		for name, opt := range map[string]commtest.Option{
			"memory":   commtest.WithProviders(inproc.NewFabric()),
			"RMA":      commtest.WithProviders(inproc.NewFabric(inproc.WithoutSharedMemory())),
			"messages": commtest.WithProviders(tcp.New()),
		} {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) { commtest.Run(t, n, f, opt, commtest.WithTimeout(time.Minute)) })
		}
	}
}

// TestCounter: the values that all goroutines of all ranks get are the numbers from 0 on, each once.
func TestCounter(t *testing.T) {
	const goroutines, each = 3, 40
	over(t, func(c *comm.Comm) error {
		k, err := psync.NewCounter(c, c.Size()-1)
		if err != nil {
			return err
		}
		var mu sync.Mutex
		var got []int64
		var wg sync.WaitGroup
		for range goroutines {
			wg.Go(func() {
				for range each {
					i, aerr := k.Add(1)
					mu.Lock()
					got = append(got, i)
					err = errors.Join(err, aerr)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if err != nil {
			return err
		}
		all, err := comm.AllgathervAlloc(c, got)
		if err != nil {
			return err
		}
		numbers := slices.Concat(all...)
		slices.Sort(numbers)
		for i, x := range numbers {
			if x != int64(i) {
				return fmt.Errorf("value %d is %d", i, x)
			}
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		if n, err := k.Load(); err != nil || n != int64(len(numbers)) {
			return fmt.Errorf("Load: %d %w", n, err)
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		if c.Rank() == 0 {
			if err := k.Store(-7); err != nil {
				return err
			}
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		if n, err := k.Add(0); err != nil || n != -7 {
			return fmt.Errorf("Add: %d %w", n, err)
		}
		return k.Free()
	})
}

// TestMutex: under the lock, a read and a write of a counter that is not atomic lose nothing.
func TestMutex(t *testing.T) {
	const goroutines, each = 2, 20
	over(t, func(c *comm.Comm) error {
		m, err := psync.NewMutex(c, 0)
		if err != nil {
			return err
		}
		w, err := comm.NewWin[int](c, 1)
		if err != nil {
			return err
		}
		if err := w.LockAll(); err != nil {
			return err
		}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range goroutines {
			wg.Go(func() {
				for range each {
					if e := count(m, w, c.Size()-1); e != nil {
						mu.Lock()
						err = errors.Join(err, e)
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		if err := errors.Join(err, w.UnlockAll(), c.Barrier()); err != nil {
			return err
		}
		if n := w.Local()[0]; c.Rank() == c.Size()-1 && n != goroutines*each*c.Size() {
			return fmt.Errorf("the counter is %d", n)
		}
		if err := m.Unlock(); !errors.Is(err, comm.ErrRMASync) {
			return fmt.Errorf("Unlock without Lock: %w", err)
		}
		return errors.Join(w.Free(), m.Free())
	})
}

// count adds 1 to the element of a rank, by a Get and a Put under the lock.
func count(m *psync.Mutex, w *comm.Win[int], rank int) error {
	if err := m.Lock(); err != nil {
		return err
	}
	n := []int{0}
	err := errors.Join(w.Get(n, rank, 0), w.Flush(rank))
	n[0]++
	return errors.Join(err, w.Put(n, rank, 0), w.Flush(rank), m.Unlock())
}

// TestTryLock: one rank gets a lock that is free; while it has the lock, no other rank and no other
// goroutine gets it.
func TestTryLock(t *testing.T) {
	over(t, func(c *comm.Comm) error {
		m, err := psync.NewMutex(c, c.Size()-1)
		if err != nil {
			return err
		}
		holder := 0
		if c.Rank() == holder {
			if got, err := m.TryLock(); !got || err != nil {
				return fmt.Errorf("TryLock of a free lock: %v %w", got, err)
			}
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		if got, err := m.TryLock(); got || err != nil {
			return fmt.Errorf("TryLock of a lock that rank %d has: %v %w", holder, got, err)
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		if c.Rank() == holder {
			if err := m.Unlock(); err != nil {
				return err
			}
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		for got := false; !got; { // each rank gets it in the end
			if got, err = m.TryLock(); err != nil {
				return err
			}
		}
		return errors.Join(m.Unlock(), m.Lock(), m.Unlock(), m.Free())
	})
}

// TestSequential: the sections run in rank order, one at a time, also if one returns an error.
func TestSequential(t *testing.T) {
	var mu sync.Mutex
	inside, order := map[string]int{}, map[string][]int{}
	over(t, func(c *comm.Comm) error {
		job := c.Job().ID
		failed := errors.New("section failed")
		for round := range 3 {
			err := psync.Sequential(c, func() error {
				mu.Lock()
				inside[job]++
				alone := inside[job] == 1
				order[job] = append(order[job], round*c.Size()+c.Rank())
				mu.Unlock()
				defer func() { mu.Lock(); inside[job]--; mu.Unlock() }()
				switch {
				case !alone:
					return errors.New("two ranks are in the section")
				case c.Rank() == 0:
					return failed
				}
				return nil
			})
			if c.Rank() == 0 && !errors.Is(err, failed) || c.Rank() > 0 && err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if got := order[job]; !slices.IsSorted(got) || len(got) != 3*c.Size() {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
}

// TestErrors: wrong arguments, a context that ends, and a panic in a section.
func TestErrors(t *testing.T) {
	commtest.Run(t, 2, func(c *comm.Comm) error {
		for _, home := range []int{-1, 2} {
			if _, err := psync.NewCounter(c, home); !errors.Is(err, comm.ErrRank) {
				return fmt.Errorf("NewCounter at %d: %w", home, err)
			}
			if _, err := psync.NewMutex(c, home); !errors.Is(err, comm.ErrRank) {
				return fmt.Errorf("NewMutex at %d: %w", home, err)
			}
		}
		if _, err := psync.NewCounter(nil, 0); !errors.Is(err, comm.ErrClosed) {
			return fmt.Errorf("NewCounter without a communicator: %w", err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		m, err := psync.NewMutex(c.WithContext(ctx), 0)
		if err != nil {
			return err
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		if c.Rank() == 0 {
			if err := m.Lock(); err != nil {
				return err
			}
			cancel()
			if err := m.Lock(); !errors.Is(err, context.Canceled) {
				return fmt.Errorf("a second Lock after the end of the context: %w", err)
			}
		}
		d, err := c.Dup()
		if err != nil {
			return err
		}
		err = inSection(d)
		if c.Rank() == 1 && err == nil {
			return errors.New("no panic")
		}
		if c.Rank() == 0 && !errors.Is(err, comm.ErrRevoked) {
			return fmt.Errorf("Sequential: %w", err)
		}
		return nil
	}, commtest.WithTimeout(time.Minute))
}

// inSection calls Sequential with a section that panics on rank 1.
func inSection(c *comm.Comm) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return psync.Sequential(c, func() error {
		if c.Rank() == 1 {
			panic("out of cheese")
		}
		return nil
	})
}

// TestFailedHolder: if the rank that keeps a counter or a lock fails, the calls of the others return
// ErrProcFailed.
func TestFailedHolder(t *testing.T) {
	commtest.Run(t, 3, func(c *comm.Comm) error {
		k, err := psync.NewCounter(c, 1)
		m, err2 := psync.NewMutex(c, 1)
		if err := errors.Join(err, err2, c.Barrier()); err != nil {
			return err
		}
		if c.Rank() == 1 {
			commtest.Kill(c)
			return nil
		}
		for err == nil { // until the failure is known
			_, err = k.Add(1)
		}
		lerr := m.Lock()
		_, terr := m.TryLock()
		for call, err := range map[string]error{"Add": err, "Lock": lerr, "TryLock": terr} {
			if !errors.Is(err, comm.ErrProcFailed) {
				return fmt.Errorf("%s: %w", call, err)
			}
		}
		return nil
	}, commtest.WithNotify(), commtest.WithTimeout(time.Minute))
}

// TestHomeFailsUnderLock: a rank has a lock when the rank that keeps it fails. Unlock fails, and so do the
// calls of the rank's other goroutines that wait for the lock or try to get it.
func TestHomeFailsUnderLock(t *testing.T) {
	commtest.Run(t, 2, func(c *comm.Comm) error {
		m, err := psync.NewMutex(c, 1)
		if err != nil {
			return err
		}
		if c.Rank() == 0 {
			if err := m.Lock(); err != nil {
				return err
			}
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		if c.Rank() == 1 {
			commtest.Kill(c)
			return nil
		}
		waits := make(chan error, 1)
		go func() { waits <- m.Lock() }() // ends when the failure is known
		if got, err := m.TryLock(); got || err != nil {
			return fmt.Errorf("TryLock of a lock that this rank has: %v, %w", got, err)
		}
		if _, err := comm.Recv(c, []int{0}, 1, 0); !errors.Is(err, comm.ErrProcFailed) { // ends when the failure is known
			return err
		}
		uerr, lerr := m.Unlock(), <-waits
		_, terr := m.TryLock()
		for call, err := range map[string]error{"Unlock": uerr, "Lock": lerr, "TryLock": terr} {
			if !errors.Is(err, comm.ErrProcFailed) {
				return fmt.Errorf("%s: %w", call, err)
			}
		}
		return nil
	}, commtest.WithNotify(), commtest.WithTimeout(time.Minute))
}
