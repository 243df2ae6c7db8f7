package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/comm"
)

// regions makes a dynamic window and does some rounds on it. In each round every rank attaches a
// region. The region has p × n elements: for each rank n elements that are p elements apart. Every
// rank changes its elements in all regions, from views with random layouts.
func (e element[T]) regions(k *call) error {
	w, err := comm.NewDynamicWin[T](k.c)
	if err != nil {
		return err
	}
	n := max(1, k.length(e.size(), k.c.Size()*k.c.Size()*4))
	for i := range 1 + k.rng.IntN(3) {
		r := regionRound[T]{e: e, call: k, w: w, n: n, salt: mix(k.salt, uint64(i), 2)}
		if err := r.do(); err != nil {
			_ = w.Revoke() // so that ranks that wait for this rank get an error
			return fmt.Errorf("round %d of regions of %v, %d elements per rank: %w", i, e, n, err)
		}
	}
	return w.Free()
}

// regionRound is a round of regions.
type regionRound[T comparable] struct {
	e element[T]
	*call
	w       *comm.Win[T]
	n       int
	salt    uint64
	regions []comm.Region[T] // by rank
	parts   [][]T            // by rank: the expected contents of the rank's region
}

// place returns the elements of the rank owner in the region of the rank target.
func (r *regionRound[T]) place(owner, target int) comm.Place[T] {
	return r.w.In(r.regions[target], owner).Layout(comm.Vector(r.n, 1, r.c.Size()))
}

func (r *regionRound[T]) do() error {
	me, p := r.c.Rank(), r.c.Size()
	for t := range p {
		r.parts = append(r.parts, r.e.block(r.salt, t, 0, p*r.n))
	}
	mem, err := r.e.filled(r.call, r.parts[me])
	if err != nil {
		return err
	}
	own, err := r.w.Attach(mem)
	if err != nil {
		return err
	}
	r.regions = make([]comm.Region[T], p)
	if err := comm.Allgather(r.c, []comm.Region[T]{own}, r.regions); err != nil {
		return err
	}
	if err := r.change(); err != nil {
		return err
	}
	if err := r.c.Barrier(); err != nil {
		return err
	}
	if err := r.w.Lock(me, comm.LockExclusive); err != nil {
		return err
	}
	if err := same("this rank's region", mem, r.parts[me]); err != nil {
		return err
	}
	if err := r.w.Unlock(me); err != nil {
		return err
	}
	if err := r.fetch(); err != nil {
		return err
	}
	if err := r.c.Barrier(); err != nil {
		return err
	}
	if err := r.w.Detach(own); err != nil {
		return err
	}
	if r.rng.IntN(3) > 0 {
		return nil
	}
	if err := r.c.Barrier(); err != nil {
		return err
	}
	return r.stale()
}

// change puts or accumulates to this rank's elements in all regions, and computes what the regions
// contain when all ranks have done so.
func (r *regionRound[T]) change() error {
	me, p := r.c.Rank(), r.c.Size()
	begin, end := r.w.LockAll, r.w.UnlockAll
	if r.rng.IntN(2) == 0 {
		begin, end = r.w.Fence, r.w.Fence
	}
	var op *operation[T] // nil: put
	if len(r.e.common) > 0 && r.rng.IntN(2) == 0 {
		op = &r.e.common[r.rng.IntN(len(r.e.common))]
	}
	if err := begin(); err != nil {
		return err
	}
	data := func(owner, target int) []T { return r.e.block(r.salt+1, owner*p+target, 0, r.n) }
	var requests []comm.Request
	for _, t := range r.own.Perm(p) {
		v, err := r.e.drawView(r.call, r.n)
		if err != nil {
			return err
		}
		v.put(data(me, t))
		r.delay()
		to, asked := r.place(me, t), r.own.IntN(2) == 0
		switch {
		case op == nil && asked:
			requests = append(requests, to.RPut(v.view))
		case op == nil:
			err = to.Put(v.view)
		case asked:
			requests = append(requests, to.RAccumulate(v.view, op.op))
		default:
			err = to.Accumulate(v.view, op.op)
		}
		if err != nil {
			return err
		}
	}
	if _, err := r.wait(requests); err != nil {
		return err
	}
	if err := end(); err != nil {
		return err
	}
	for o := range p {
		for t := range p {
			for i, x := range data(o, t) {
				at := &r.parts[t][i*p+o]
				if op != nil {
					x = op.do(*at, x)
				}
				*at = x
			}
		}
	}
	return nil
}

// fetch gets elements of random ranks from random regions into views.
func (r *regionRound[T]) fetch() error {
	p := r.c.Size()
	if err := r.w.LockAll(); err != nil {
		return err
	}
	var checks []func() error
	for range 1 + r.own.IntN(3) {
		o, t := r.own.IntN(p), r.own.IntN(p)
		v, err := r.e.drawView(r.call, r.n)
		if err != nil {
			return err
		}
		want := make([]T, r.n)
		for i := range want {
			want[i] = r.parts[t][i*p+o]
		}
		checks = append(checks, v.expect(fmt.Sprintf("elements of rank %d in the region of rank %d", o, t), want))
		if err := r.place(o, t).Get(v.view); err != nil {
			return err
		}
	}
	if err := r.w.UnlockAll(); err != nil {
		return err
	}
	for _, check := range checks {
		if err := check(); err != nil {
			return fmt.Errorf("%w: %w", errRemote, err)
		}
	}
	return nil
}

// stale puts to a region that all ranks have detached. That must be an error, and change nothing.
func (r *regionRound[T]) stale() error {
	t := r.own.IntN(r.c.Size())
	if err := r.w.Lock(t, comm.LockShared); err != nil {
		return err
	}
	err := r.place(r.c.Rank(), t).Put(comm.Slice(slices.Clone(r.parts[t][:r.n])))
	if err == nil {
		err = r.w.Flush(t)
	}
	switch end := r.w.Unlock(t); {
	case err == nil:
		return errors.New("a put to a detached region has no error")
	case err != nil && !errors.Is(err, comm.ErrRMARange):
		return err
	case end != nil && !errors.Is(end, comm.ErrRMARange):
		return end
	}
	return r.c.Barrier()
}
