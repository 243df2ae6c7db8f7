package main

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/weft-hpc/weft/comm"
)

// windowState is an RMA window and the contents that all its parts must have. Every rank's part has one
// block of n elements for each rank. Only that rank puts to the block.
type windowState[T comparable] struct {
	e element[T]
	*call
	w     *comm.Win[T]
	n     int    // number of elements of a block
	parts [][]T  // by rank: the expected contents of the rank's part
	salt  uint64 // determines the test data; different for each epoch
	// The operation of all accumulates. A mix of operations could make floating-point results
	// inexact.
	op        operation[T]
	unordered bool // the window has the hint NoOrder
	unlocked  bool // the window has the hint NoLocks
}

// sharedWin makes a window of shared memory. If the ranks cannot share memory, it makes another one.
func (f *windowState[T]) sharedWin(hints []comm.WinHint) (comm.WinFlavor, *comm.Win[T], error) {
	apart, placed := f.rng.IntN(2) == 0, hints
	if apart {
		placed = append(slices.Clone(hints), comm.NonContiguous())
	}
	n := f.c.Size() * f.n
	w, err := comm.NewSharedWin[T](f.c, n, placed...)
	if errors.Is(err, comm.ErrRMAShared) {
		w, err = comm.NewWin[T](f.c, n, hints...)
		return comm.FlavorAllocated, w, err
	}
	if err != nil {
		return 0, nil, err
	}
	if all := f.c.Size() * n; apart && w.All() != nil || !apart && len(w.All()) != all {
		return 0, nil, fmt.Errorf("all parts have %d elements instead of %d", len(w.All()), all)
	}
	return comm.FlavorShared, w, nil
}

// errRemote reports unexpected contents of another rank's memory. It may be the consequence of a failure:
// the memory of a rank that has ended may hold anything before this rank detects the end.
var errRemote = errors.New("the memory of another rank")

// window creates an RMA window and does some random epochs on it: with fences, accumulates, locks, or
// post and start.
func (e element[T]) window(k *call) (err error) {
	p, me := k.c.Size(), k.c.Rank()
	f := windowState[T]{e: e, call: k, n: k.length(e.size(), p*p*4), op: operation[T]{"Replace", comm.Replace[T], func(_, b T) T { return b }}}
	if len(e.common) > 0 {
		f.op = e.common[k.rng.IntN(len(e.common))]
	}
	for r := range p {
		f.parts = append(f.parts, e.block(k.salt, r, 0, p*f.n))
	}
	var hints []comm.WinHint
	if k.rng.IntN(3) == 0 {
		hints = append(hints, comm.OnlyOps(f.op.op))
		if len(e.common) > 0 { // the order of accumulates does not change the result
			f.unordered = true
			hints = append(hints, comm.NoOrder())
		}
	}
	if f.unlocked = k.rng.IntN(5) == 0; f.unlocked {
		hints = append(hints, comm.NoLocks())
	}
	flavor := comm.FlavorAllocated
	switch k.rng.IntN(5) {
	case 0, 1:
		if f.w, err = comm.NewWin[T](k.c, p*f.n, hints...); err != nil {
			return err
		}
		copy(f.w.Local(), f.parts[me])
	case 2:
		if flavor, f.w, err = f.sharedWin(hints); err != nil {
			return err
		}
		copy(f.w.Local(), f.parts[me])
	default:
		flavor = comm.FlavorCreated
		buf, err := e.filled(k, f.parts[me])
		if err != nil {
			return err
		}
		if f.w, err = comm.WinOf(k.c, buf, hints...); err != nil {
			return err
		}
	}
	if got := f.w.Flavor(); got != flavor {
		return fmt.Errorf("the window has the flavour %v, not %v", got, flavor)
	}
	if err := k.c.Barrier(); err != nil {
		return err
	}
	kinds := []struct {
		name string
		run  func() error
	}{
		{"fence", f.fence}, {"accumulate", f.accumulate}, {"post", f.post}, {"locks", f.locks}, {"unchecked", f.unchecked},
	}
	if f.unlocked {
		kinds = kinds[:3]
		if err := f.w.Lock(me, comm.LockShared); !errors.Is(err, comm.ErrRMASync) {
			return fmt.Errorf("lock of a window with the hint NoLocks: %w", unexpected(err, comm.ErrRMASync))
		}
	}
	for i := range 1 + k.rng.IntN(4) {
		f.salt = mix(k.salt, uint64(i), 1)
		drawn := kinds[k.rng.IntN(len(kinds))]
		if err = drawn.run(); err == nil {
			err = k.c.Barrier()
		}
		if err != nil {
			_ = f.w.Revoke() // so that ranks that wait for this rank's locks get an error
			return fmt.Errorf("%s of %v, parts of %d×%d, %s: %w", drawn.name, e, p, f.n, f.op.name, err)
		}
	}
	return f.w.Free()
}

// block returns the elements that the rank origin puts to its block in target's part, and the block's
// displacement in the part.
func (f *windowState[T]) block(origin, target int) (b []T, disp int) {
	return f.e.block(f.salt, origin*f.c.Size()+target, 0, f.n), origin * f.n
}

// put changes the expected contents as the puts of all ranks to all ranks do.
func (f *windowState[T]) put() {
	for o := range f.c.Size() {
		for t := range f.c.Size() {
			b, at := f.block(o, t)
			copy(f.parts[t][at:], b)
		}
	}
}

// some returns a random range of elements of a part: its displacement and its length.
func (f *windowState[T]) some() (disp, n int) {
	all := f.c.Size() * f.n
	disp = f.own.IntN(all + 1)
	return disp, f.own.IntN(all - disp + 1)
}

// verify returns an error if this rank's part differs from the expected contents.
func (f *windowState[T]) verify() error {
	return same("this rank's part", f.w.Local(), f.parts[f.c.Rank()])
}

// fence has this rank put to all ranks in one epoch, and get from all ranks in a second epoch. Fences
// begin and end the epochs.
func (f *windowState[T]) fence() error {
	first, last := comm.NoPrecede, comm.NoSucceed
	if f.rng.IntN(2) == 0 {
		first, last = 0, 0
	}
	if err := f.w.FenceWith(first); err != nil {
		return err
	}
	for _, t := range f.own.Perm(f.c.Size()) {
		b, at := f.block(f.c.Rank(), t)
		f.delay()
		if err := f.w.Put(b, t, at); err != nil {
			return err
		}
	}
	if err := f.w.Fence(); err != nil {
		return err
	}
	f.put()
	if err := f.verify(); err != nil {
		return err
	}
	type piece struct {
		t, at int
		got   []T
	}
	var pieces []piece
	for _, t := range f.own.Perm(f.c.Size()) {
		at, n := f.some()
		got, err := f.e.buffer(f.call, n)
		if err != nil {
			return err
		}
		if err := f.w.Get(got, t, at); err != nil {
			return err
		}
		pieces = append(pieces, piece{t, at, got})
		if part, ok := f.w.Shared(t); ok {
			if err := same("the part as memory", part, f.parts[t]); err != nil {
				return fmt.Errorf("%w: %w", errRemote, err)
			}
		}
	}
	if err := f.w.FenceWith(last); err != nil {
		return err
	}
	for _, p := range pieces {
		if err := same(fmt.Sprintf("got of rank %d from %d on", p.t, p.at), p.got, f.parts[p.t][p.at:p.at+len(p.got)]); err != nil {
			return err
		}
	}
	return nil
}

// accumulate accumulates to ranges of elements in all ranks' parts, between fences or under LockAll. In
// some epochs all ranks use the same ranges; in others (apart) each rank uses its own blocks. Fetched
// values are checked only if no other rank changes the same elements. Then they are certain, because
// accumulates of one rank to one element are done in order, unless the window has the hint NoOrder.
func (f *windowState[T]) accumulate() error {
	me, p, fences := f.c.Rank(), f.c.Size(), f.rng.IntN(2) == 0 || f.unlocked
	begin, end := f.w.LockAll, f.w.UnlockAll
	if fences {
		begin, end = f.w.Fence, f.w.Fence
	}
	if err := begin(); err != nil {
		return err
	}
	// With Replace, apart is always true, because otherwise the result would depend on the order of
	// ranks.
	apart := f.rng.IntN(3) == 0 || len(f.e.common) == 0
	var requests []comm.Request
	var fetched, expected [][]T
	for range 1 + f.rng.IntN(3) {
		f.salt++
		for t := range p {
			at := f.rng.IntN(p*f.n + 1)
			n := f.rng.IntN(p*f.n - at + 1)
			for o := range p {
				b := f.e.block(f.salt, o*p+t, 0, n)
				if apart {
					b, at = f.block(o, t)
				}
				old := slices.Clone(f.parts[t][at : at+len(b)])
				for i, v := range b {
					f.parts[t][at+i] = f.op.do(f.parts[t][at+i], v)
				}
				if o != me {
					continue
				}
				f.delay()
				var err error
				var got []T // nil: nothing is fetched
				switch {
				case len(b) == 1 && f.own.IntN(2) == 0:
					got = make([]T, 1)
					got[0], err = f.w.FetchOp(b[0], t, at, f.op.op)
				case f.own.IntN(3) == 0:
					got = make([]T, len(b))
					err = f.w.GetAccumulate(b, got, t, at, f.op.op)
				case f.own.IntN(2) == 0:
					requests = append(requests, f.w.RAccumulate(b, t, at, f.op.op))
				default:
					err = f.w.Accumulate(b, t, at, f.op.op)
				}
				if err != nil {
					return err
				}
				if got != nil && (apart || p == 1) && !f.unordered {
					fetched, expected = append(fetched, got), append(expected, old)
				}
			}
		}
	}
	if _, err := f.wait(requests); err != nil {
		return err
	}
	if err := end(); err != nil {
		return err
	}
	for i := range fetched {
		if err := same("what was fetched", fetched[i], expected[i]); err != nil {
			return err
		}
	}
	return f.verifyLocked()
}

// verifyLocked does what [windowState.verify] does, after a passive-target epoch. So it first waits
// for all ranks and locks this rank's part. A window without locks had an epoch between fences.
func (f *windowState[T]) verifyLocked() error {
	if err := f.c.Barrier(); err != nil {
		return err
	}
	if f.unlocked {
		return f.verify()
	}
	if err := f.w.Lock(f.c.Rank(), comm.LockExclusive); err != nil {
		return err
	}
	if err := f.verify(); err != nil {
		return err
	}
	return f.w.Unlock(f.c.Rank())
}

// locks puts to this rank's block at one target after the other, under a lock of the target, and gets the
// data back.
func (f *windowState[T]) locks() error {
	for _, t := range f.own.Perm(f.c.Size()) {
		kind := comm.LockShared
		if f.own.IntN(2) == 0 {
			kind = comm.LockExclusive
		}
		if err := f.lock(t, kind); err != nil {
			return err
		}
		b, at := f.block(f.c.Rank(), t)
		got := slices.Clone(b)
		var err error
		switch f.own.IntN(4) {
		case 0:
			err = f.w.Put(b, t, at)
		case 3:
			place := f.w.At(t, at)
			if err = place.Get(comm.Slice(got)); err == nil {
				err = f.w.FlushLocalAll()
			}
			if err == nil {
				if err = same("what was there", got, f.parts[t][at:at+f.n]); err != nil {
					err = fmt.Errorf("%w: %w", errRemote, err)
				}
			}
			if err == nil {
				_, err = place.RGetAccumulate(comm.Slice(b), comm.Slice(got), comm.Replace[T]).Wait()
			}
			if err == nil {
				if err = same("what was replaced", got, f.parts[t][at:at+f.n]); err != nil {
					err = fmt.Errorf("%w: %w", errRemote, err)
				}
			}
		case 1:
			_, err = f.w.RPut(b, t, at).Wait()
		default:
			if err = f.w.GetAccumulate(b, got, t, at, comm.Replace[T]); err == nil {
				err = f.w.FlushLocal(t)
			}
			if err == nil {
				if err = same("what was replaced", got, f.parts[t][at:at+f.n]); err != nil {
					err = fmt.Errorf("%w: %w", errRemote, err)
				}
			}
		}
		if err == nil && f.own.IntN(2) == 0 {
			err = f.w.Flush(t)
		} else if err == nil {
			err = f.w.FlushAll()
		}
		if err == nil {
			clear(got)
			_, err = f.w.RGet(got, t, at).Wait()
		}
		if err == nil {
			if err = same("what was put", got, b); err != nil {
				err = fmt.Errorf("%w: %w", errRemote, err)
			}
		}
		if err != nil {
			return err
		}
		if err := f.w.Unlock(t); err != nil {
			return err
		}
	}
	f.put()
	return f.verifyLocked()
}

// waitExposed ends the epoch of Post, by Wait or by a loop of Test.
func (f *windowState[T]) waitExposed() error {
	if f.own.IntN(2) == 0 {
		return f.w.Wait()
	}
	for {
		if done, err := f.w.Test(); done || err != nil {
			return err
		}
		runtime.Gosched()
	}
}

// lock gets the lock of a target, by Lock or by a loop of TryLock.
func (f *windowState[T]) lock(target int, kind comm.LockKind) error {
	if f.own.IntN(3) > 0 {
		return f.w.Lock(target, kind)
	}
	for {
		if got, err := f.w.TryLock(target, kind); got || err != nil {
			return err
		}
		runtime.Gosched()
	}
}

// unchecked has each rank put to one target under a lock that it need not request, because no other
// rank uses the target's part.
func (f *windowState[T]) unchecked() error {
	me, p := f.c.Rank(), f.c.Size()
	by, all := f.rng.IntN(p), f.rng.IntN(2) == 0
	t := (me + by) % p
	b, at := f.block(me, t)
	if err := f.c.Barrier(); err != nil { // no rank holds a lock
		return err
	}
	var err error
	if all {
		err = f.w.LockAllWith(comm.NoCheck)
	} else {
		err = f.w.LockWith(t, comm.LockExclusive, comm.NoCheck)
	}
	if err == nil {
		err = f.w.Put(b, t, at)
	}
	if err == nil && all {
		err = f.w.UnlockAll()
	} else if err == nil {
		err = f.w.Unlock(t)
	}
	if err != nil {
		return err
	}
	f.putAround(by)
	return f.verifyLocked()
}

// putAround changes the expected contents as a put of each rank to the rank that is by places away
// does.
func (f *windowState[T]) putAround(by int) {
	p := f.c.Size()
	for o := range p {
		b, at := f.block(o, (o+by)%p)
		copy(f.parts[(o+by)%p][at:], b)
	}
}

// post puts to one rank while another rank puts to this one, in epochs of Post, Start, Complete and Wait.
func (f *windowState[T]) post() error {
	me, p := f.c.Rank(), f.c.Size()
	by := f.rng.IntN(p)
	to := (me + by) % p
	if err := f.w.PostWith([]int{(me + p - by) % p}, comm.NoStore); err != nil {
		return err
	}
	assertion := comm.Assert(0)
	if f.rng.IntN(2) == 0 { // the targets have called Post already
		assertion = comm.NoCheck
		if err := f.c.Barrier(); err != nil {
			return err
		}
	}
	if err := f.w.StartWith([]int{to}, assertion); err != nil {
		return err
	}
	b, at := f.block(me, to)
	if err := f.w.Put(b, to, at); err != nil {
		return err
	}
	f.delay()
	if err := f.w.Complete(); err != nil {
		return err
	}
	if err := f.waitExposed(); err != nil {
		return err
	}
	f.putAround(by)
	return f.verify()
}
