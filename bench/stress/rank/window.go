package main

import (
	"errors"
	"fmt"
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
	op operation[T]
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
	if k.rng.IntN(2) == 0 {
		if f.w, err = comm.NewWin[T](k.c, p*f.n); err != nil {
			return err
		}
		copy(f.w.Local(), f.parts[me])
	} else {
		buf, err := e.filled(k, f.parts[me])
		if err != nil {
			return err
		}
		if f.w, err = comm.WinOf(k.c, buf); err != nil {
			return err
		}
	}
	if err := k.c.Barrier(); err != nil {
		return err
	}
	kinds := []struct {
		name string
		run  func() error
	}{
		{"fence", f.fence}, {"accumulate", f.accumulate}, {"locks", f.locks}, {"post", f.post},
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
	if err := f.w.Fence(); err != nil {
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
	if err := f.w.Fence(); err != nil {
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
// accumulates of one rank to one element are done in order.
func (f *windowState[T]) accumulate() error {
	me, p, fences := f.c.Rank(), f.c.Size(), f.rng.IntN(2) == 0
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
				if got != nil && (apart || p == 1) {
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
// for all ranks and locks this rank's part.
func (f *windowState[T]) verifyLocked() error {
	if err := f.c.Barrier(); err != nil {
		return err
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
		if err := f.w.Lock(t, kind); err != nil {
			return err
		}
		b, at := f.block(f.c.Rank(), t)
		got := slices.Clone(b)
		var err error
		switch f.own.IntN(3) {
		case 0:
			err = f.w.Put(b, t, at)
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
		if err == nil {
			err = f.w.Flush(t)
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

// post puts to one rank while another rank puts to this one, in epochs of Post, Start, Complete and Wait.
func (f *windowState[T]) post() error {
	me, p := f.c.Rank(), f.c.Size()
	by := f.rng.IntN(p)
	to := (me + by) % p
	if err := f.w.Post([]int{(me + p - by) % p}); err != nil {
		return err
	}
	if err := f.w.Start([]int{to}); err != nil {
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
	if err := f.w.Wait(); err != nil {
		return err
	}
	for o := range p {
		b, at := f.block(o, (o+by)%p)
		copy(f.parts[(o+by)%p][at:], b)
	}
	return f.verify()
}
