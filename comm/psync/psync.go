// Package psync has counters, locks and sections that the ranks of a communicator share, in the
// manner of package sync and of mpi4py's util.sync. They use windows of package comm, so a rank
// that counts or locks needs no call of the other ranks.
//
//	tasks, err := psync.NewCounter(c, 0)             // all ranks
//	for {
//		i, err := tasks.Add(1)                       // each task goes to one rank
//		if err != nil || i >= n { break }
//		work(i)
//	}
//	err = tasks.Free()                               // all ranks
package psync

import (
	"errors"

	"github.com/weft-hpc/weft/comm"
)

// Counter is an integer that all ranks of a communicator share. Any number of goroutines may use it
// at the same time.
type Counter struct {
	w    *comm.Win[int64]
	home int // the rank that has the integer
}

// NewCounter makes a counter with the value 0. The rank home keeps the value, and need not call
// anything while the other ranks count. NewCounter is collective over c and blocks. Errors: ErrRank
// for a wrong home; those of [comm.NewWin].
func NewCounter(c *comm.Comm, home int) (*Counter, error) {
	w, err := newWindow[int64](c, "NewCounter", home)
	if err != nil {
		return nil, err
	}
	// From now on, operations of this rank need no further call that opens an epoch.
	if err := w.LockAll(); err != nil {
		return nil, errors.Join(err, w.Free())
	}
	return &Counter{w, home}, nil
}

// Add adds n, which may be negative, and returns the previous value: two calls of Add(1) never
// return the same value. It blocks until the addition is done. Errors: those of [comm.Win.FetchOp].
func (k *Counter) Add(n int64) (before int64, err error) {
	return k.w.FetchOp(n, k.home, 0, comm.Sum)
}

// Load returns the value. It blocks as Add does. Errors: those of [comm.Win.FetchOp].
func (k *Counter) Load() (int64, error) { return k.w.FetchOp(0, k.home, 0, comm.NoOp) }

// Store sets the value. It blocks as Add does. Errors: those of [comm.Win.FetchOp].
func (k *Counter) Store(n int64) error {
	_, err := k.w.FetchOp(n, k.home, 0, comm.Replace)
	return err
}

// Free frees the counter. It is collective over the communicator and blocks. Errors: those of
// [comm.Win.Free].
func (k *Counter) Free() error {
	err := k.w.UnlockAll()
	if ferr := k.w.Free(); err == nil {
		err = ferr
	}
	return err
}

// Mutex is a lock that one goroutine of one rank of a communicator holds at a time. Ranks get it in
// the order in which they ask for it.
type Mutex struct {
	w    *comm.Win[byte]
	home int
	// own has a value while a goroutine of this rank holds the lock or waits for it, because a rank
	// can ask for the lock of a window only once.
	own chan struct{}
}

// NewMutex makes a lock. The rank home keeps its state, and need not call anything while other
// ranks use it. NewMutex is collective over c and blocks. Errors: those of [NewCounter].
func NewMutex(c *comm.Comm, home int) (*Mutex, error) {
	w, err := newWindow[byte](c, "NewMutex", home)
	if err != nil {
		return nil, err
	}
	return &Mutex{w, home, make(chan struct{}, 1)}, nil
}

// Lock blocks until the caller has the lock. The lock orders accesses to the program's own memory
// only within a rank. One-sided operations are visible to the next holder if the program calls
// Flush before Unlock.
//
// Errors: those of [comm.Win.Lock], for example ErrProcFailed if the rank home has failed, and the
// error of the context of c. After an error the caller does not have the lock.
func (m *Mutex) Lock() error {
	ctx := m.w.Comm().Context()
	select {
	case m.own <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := m.w.Lock(m.home, comm.LockExclusive); err != nil {
		<-m.own
		return err
	}
	return nil
}

// TryLock gets the lock if it is free, and reports whether it did. It does not wait for goroutines or
// ranks that have the lock or wait for it, and may return false for a short time after another rank's
// Unlock has returned. If not all ranks share memory, it blocks until the rank home has answered.
//
// Errors: those of [comm.Win.TryLock]. After an error the caller does not have the lock.
func (m *Mutex) TryLock() (bool, error) {
	select {
	case m.own <- struct{}{}:
	default:
		return false, m.w.Comm().Context().Err()
	}
	got, err := m.w.TryLock(m.home, comm.LockExclusive)
	if !got {
		<-m.own
	}
	return got, err
}

// Unlock releases the lock. Any goroutine of the rank that holds the lock may call Unlock. Errors:
// ErrRMASync if no goroutine of this rank has the lock; the error of the context of c, after which the
// rank still has the lock; those of [comm.Win.Unlock], after which it does not.
func (m *Mutex) Unlock() error {
	err := m.w.Unlock(m.home)
	if errors.Is(err, comm.ErrRMASync) || err != nil && m.w.Comm().Context().Err() != nil {
		return err
	}
	select {
	case <-m.own:
	default: // a further call after an error
	}
	return err
}

// Free frees the lock. No rank may hold it. Free is collective over the communicator and blocks.
// Errors: those of [comm.Win.Free].
func (m *Mutex) Free() error { return m.w.Free() }

// newWindow makes a window with an element on the rank home, for the call op.
func newWindow[T any](c *comm.Comm, op string, home int) (*comm.Win[T], error) {
	n := 0
	if c.Rank() == home {
		n = 1
	}
	w, err := comm.NewWin[T](c, n)
	if err != nil {
		return nil, err
	}
	if home < 0 || home >= c.Size() {
		// All ranks have the same home, so all of them return here.
		return nil, errors.Join(&comm.Error{Op: op, Peer: home, Tag: comm.Undefined, Err: comm.ErrRank}, w.Free())
	}
	return w, nil
}

// Sequential calls f on one rank of c after the other, in rank order: on rank 1 when f has returned
// on rank 0, and so on. Sequential is collective over c, blocks until f has returned on all ranks,
// and returns the error of f on this rank. f must not call a collective on c, because the other
// ranks are in one.
//
// If f panics, Sequential revokes c, so that the other ranks get ErrRevoked, and the panic
// continues. Errors: as for all collectives, see [comm.Comm.Barrier]. Cost: a barrier for each
// rank.
func Sequential(c *comm.Comm, f func() error) (err error) {
	returned := false
	defer func() {
		if !returned {
			_ = c.Revoke() // ErrClosed: no rank waits
		}
	}()
	for rank := range c.Size() {
		if rank == c.Rank() {
			err = f()
		}
		if berr := c.Barrier(); berr != nil {
			returned = true
			return errors.Join(err, berr)
		}
	}
	returned = true
	return err
}
