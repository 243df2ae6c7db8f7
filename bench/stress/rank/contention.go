package main

import (
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/comm"
)

// contentions are operations in which all ranks change the same elements of an RMA window.
var contentions = []func(k *call) error{
	tickets[int32], tickets[int64], tickets[uint16], tickets[uint32], tickets[uint64], tickets[uint],
	critical[int64], critical[int32], critical[uint16],
}

// tickets has all ranks increment one counter many times, by atomic operations that fetch the former
// value. All ranks together must get each value exactly once.
func tickets[T comm.Integer](k *call) error {
	p, home, n := k.c.Size(), k.rng.IntN(k.c.Size()), 1+k.rng.IntN(100)
	w, err := comm.NewWin[T](k.c, 3)
	if err != nil {
		return err
	}
	mine, err := drawTickets(k, w, home, n)
	if err != nil {
		_ = w.Revoke() // so that ranks that wait for this rank get an error
		return fmt.Errorf("tickets of %T: %w", T(0), err)
	}
	all := make([]T, p*n)
	if err := comm.Allgather(k.c, mine, all); err != nil {
		return err
	}
	slices.Sort(all)
	for i, v := range all {
		if v != T(i) {
			return fmt.Errorf("tickets of %T: number %d of %d is %d", v, i, len(all), v)
		}
	}
	return w.Free()
}

func drawTickets[T comm.Integer](k *call, w *comm.Win[T], home, n int) (mine []T, err error) {
	if err := w.LockAll(); err != nil {
		return nil, err
	}
	mine = make([]T, n)
	one := T(1)
	var requests []comm.Request
	for i := range mine {
		switch k.own.IntN(8) {
		case 0:
			was, err := w.FetchOp(0, home, 1, comm.NoOp)
			for err == nil {
				var now T
				if k.own.IntN(2) == 0 {
					now, err = w.CompareSwap(was, was+1, home, 1)
				} else {
					_, err = k.wait([]comm.Request{w.RCompareSwap(was, was+1, &now, home, 1)})
				}
				if now == was {
					break
				}
				was = now
			}
			if mine[i] = was; err != nil {
				return nil, err
			}
		case 1, 2:
			requests = append(requests, w.RFetchOp(&one, &mine[i], home, 1, comm.Sum))
		default:
			if mine[i], err = w.FetchOp(1, home, 1, comm.Sum); err != nil {
				return nil, err
			}
		}
		k.delay()
	}
	if _, err := k.wait(requests); err != nil {
		return nil, err
	}
	return mine, w.UnlockAll()
}

// critical has all ranks increment the elements of one rank's part of a window, by Get and Put under an
// exclusive lock. No increment may be lost.
func critical[T comm.Integer](k *call) error {
	p, home, n, wide := k.c.Size(), k.rng.IntN(k.c.Size()), 1+k.rng.IntN(20), 1+k.rng.IntN(200)
	w, err := comm.NewWin[T](k.c, wide)
	if err != nil {
		return err
	}
	for range n {
		if err = count1(k, w, home); err != nil {
			_ = w.Revoke() // so that ranks that wait for the lock get an error
			return fmt.Errorf("critical section of %T: %w", T(0), err)
		}
	}
	if err := k.c.Barrier(); err != nil {
		return err
	}
	if err := w.Lock(home, comm.LockShared); err != nil {
		return err
	}
	got := make([]T, wide)
	if err := w.Get(got, home, 0); err != nil {
		return err
	}
	if err := w.Unlock(home); err != nil {
		return err
	}
	if err := same("counts", got, slices.Repeat([]T{T(p * n)}, wide)); err != nil {
		return fmt.Errorf("%w: %w", errRemote, err)
	}
	return w.Free()
}

// count1 adds one to all elements of the part of rank home, under an exclusive lock. Before that it
// checks that they are equal.
func count1[T comm.Integer](k *call, w *comm.Win[T], home int) error {
	if err := w.Lock(home, comm.LockExclusive); err != nil {
		return err
	}
	b := make([]T, w.Len(home))
	if err := w.Get(b, home, 0); err != nil {
		return err
	}
	if err := w.Flush(home); err != nil {
		return err
	}
	if err := same("elements under a lock", b, slices.Repeat(b[:1], len(b))); err != nil {
		return fmt.Errorf("%w: %w", errRemote, err)
	}
	k.delay()
	for i := range b {
		b[i]++
	}
	if err := w.Put(b, home, 0); err != nil {
		return err
	}
	return w.Unlock(home)
}
