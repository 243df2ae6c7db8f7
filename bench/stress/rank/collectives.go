package main

import (
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/comm"
)

// kind is one of the collectives. draw returns a random call of it.
type kind struct {
	name string
	draw func(k *call) (drawnCall, error)
}

// kinds returns all collectives for the element type e.
func (e element[T]) kinds() []kind {
	even := func(draw func(k *call, even bool) (drawnCall, error), even bool) func(k *call) (drawnCall, error) {
		return func(k *call) (drawnCall, error) { return draw(k, even) }
	}
	return []kind{
		{"Bcast", e.bcast}, {"Reduce", e.reduce}, {"Allreduce", e.allreduce},
		{"Gather", even(e.gather, true)}, {"Gatherv", even(e.gather, false)},
		{"Scatter", even(e.scatter, true)}, {"Scatterv", even(e.scatter, false)},
		{"Allgather", even(e.allgather, true)}, {"Allgatherv", even(e.allgather, false)},
		{"Alltoall", even(e.alltoall, true)}, {"Alltoallv", even(e.alltoall, false)},
		{"ReduceScatterBlock", even(e.reduceScatter, true)}, {"ReduceScatter", even(e.reduceScatter, false)},
		{"Scan", even(e.scan, true)}, {"Exscan", even(e.scan, false)},
	}
}

// collectives does up to four random collectives: blocking ones, one after the other, or nonblocking
// or persistent ones, all at the same time.
func (e element[T]) collectives(k *call) error {
	kinds, doing := e.kinds(), *k.activity.Load()
	n, form := 1+k.rng.IntN(4), []string{"blocking", "blocking", "nonblocking", "nonblocking", "persistent"}[k.rng.IntN(5)]
	k.budget /= n
	var requests []comm.Request
	var prepared persistents
	var checks []func() error
	for i := range n {
		drawn := kinds[k.rng.IntN(len(kinds))]
		k.salt = mix(k.salt, uint64(i), 0)
		doing += fmt.Sprintf(", %s of %v", drawn.name, e)
		k.setActivity(doing)
		d, err := drawn.draw(k)
		if err != nil {
			return err
		}
		check := func() error {
			if err := d.check(); err != nil {
				return fmt.Errorf("%s of %v, number %d of %d %s ones: %w", drawn.name, e, i, n, form, err)
			}
			return nil
		}
		k.delay()
		switch form {
		case "blocking":
			if err = d.call(); err == nil {
				err = check()
			}
			if err != nil {
				return fmt.Errorf("%s of %v, number %d of %d blocking ones: %w", drawn.name, e, i, n, err)
			}
			continue
		case "nonblocking":
			requests = append(requests, d.start())
		default:
			p, err := d.prepare()
			if err != nil {
				return fmt.Errorf("persistent %s of %v: %w", drawn.name, e, err)
			}
			prepared.list, prepared.restore = append(prepared.list, p), append(prepared.restore, d.restore)
		}
		checks = append(checks, check)
	}
	if form == "persistent" {
		return prepared.run(k, checks)
	}
	if _, err := k.wait(requests); err != nil {
		return fmt.Errorf("collectives of %v: %w", e, err)
	}
	return all(checks)
}

// all calls the functions until one returns an error.
func all(checks []func() error) error {
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// persistents are persistent collectives, and functions that restore their buffers.
type persistents struct {
	list    []*comm.Persistent
	restore []func()
}

// run starts all collectives at the same time, once or several times, checks the results, and frees
// the collectives.
func (p persistents) run(k *call, checks []func() error) error {
	for round := range 1 + k.rng.IntN(3) {
		if round > 0 {
			for _, f := range p.restore {
				f()
			}
		}
		k.delay()
		if err := p.start(k); err != nil {
			return fmt.Errorf("start %d: %w", round, err)
		}
		var requests []comm.Request
		for _, c := range p.list {
			requests = append(requests, c.Request())
		}
		if _, err := k.wait(requests); err != nil {
			return fmt.Errorf("wait of persistent collectives, start %d: %w", round, err)
		}
		if err := all(checks); err != nil {
			return fmt.Errorf("start %d: %w", round, err)
		}
	}
	for _, i := range k.rng.Perm(len(p.list)) { // the order must be the same on all ranks
		if err := p.list[i].Free(); err != nil {
			return err
		}
	}
	return nil
}

// start starts the collectives, in an order that may differ between ranks.
func (p persistents) start(k *call) error {
	if k.own.IntN(2) == 0 {
		return comm.StartAll(p.list)
	}
	for _, i := range k.own.Perm(len(p.list)) {
		if err := p.list[i].Start(); err != nil {
			return err
		}
	}
	return nil
}

// fold combines the ranks' vectors (parts) element by element with the operation do, in the order of
// ranks.
func fold[T any](do func(lower, upper T) T, parts [][]T) []T {
	if len(parts) == 0 {
		return nil
	}
	sum := slices.Clone(parts[0])
	for _, p := range parts[1:] {
		for i := range sum {
			sum[i] = do(sum[i], p[i])
		}
	}
	return sum
}

// operands returns the arguments of a reduction: parts has the n elements of each rank, send is a buffer
// with this rank's elements, and recv is a buffer for the result. If inPlace is set, send and recv are
// the same buffer.
func (e element[T]) operands(k *call, n int, inPlace bool) (parts [][]T, send, recv []T, err error) {
	for r := range k.c.Size() {
		parts = append(parts, e.block(k.salt, r, 0, n))
	}
	if send, err = e.filled(k, parts[k.c.Rank()]); err != nil || inPlace {
		return parts, send, send, err
	}
	recv, err = e.buffer(k, n)
	return parts, send, recv, err
}

func (e element[T]) reduce(k *call) (drawnCall, error) {
	c, me, root, o := k.c, k.c.Rank(), k.rng.IntN(k.c.Size()), e.draw(k)
	inPlace := k.own.IntN(4) == 0 && me == root
	parts, send, recv, err := e.operands(k, k.length(e.size(), c.Size()), inPlace)
	check := expect(recv, slices.Clone(recv), send, parts[me])
	if inPlace {
		check = expect(recv, fold(o.do, parts))
	} else if me == root {
		check = expect(recv, fold(o.do, parts), send, parts[me])
	}
	return drawnCall{
		func() error { return comm.Reduce(c, send, recv, o.op, root) },
		func() comm.Request { return comm.Ireduce(c, send, recv, o.op, root) },
		func() (*comm.Persistent, error) { return comm.ReduceInit(c, send, recv, o.op, root) }, restore(send, recv),
		named(o.name, check),
	}, err
}

// named returns a function that calls check and adds name to its error.
func named(name string, check func() error) func() error {
	return func() error {
		if err := check(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
}

// local checks what an operation says of itself, and its result on this rank alone.
func (e element[T]) local(k *call, o operation[T]) error {
	commutes := slices.ContainsFunc(e.common, func(c operation[T]) bool { return c.name == o.name })
	if got := o.op().Commutes(); got != commutes {
		return fmt.Errorf("%s commutes: %v", o.name, got)
	}
	n := k.own.IntN(100)
	in, inout := e.block(k.salt, 0, 0, n), e.block(k.salt, 1, 0, n)
	want := fold(o.do, [][]T{in, inout})
	if err := comm.ReduceLocal(in, inout, o.op); err != nil {
		return err
	}
	return same("ReduceLocal by "+o.name, inout, want)
}

func (e element[T]) allreduce(k *call) (drawnCall, error) {
	c, o, inPlace := k.c, e.draw(k), k.rng.IntN(4) == 0
	if err := e.local(k, o); err != nil {
		return drawnCall{}, err
	}
	parts, send, recv, err := e.operands(k, k.length(e.size(), c.Size()), inPlace)
	check := expect(recv, fold(o.do, parts), send, parts[c.Rank()])
	if inPlace {
		check = expect(recv, fold(o.do, parts))
	}
	return drawnCall{
		func() error { return comm.Allreduce(c, send, recv, o.op) },
		func() comm.Request { return comm.Iallreduce(c, send, recv, o.op) },
		func() (*comm.Persistent, error) { return comm.AllreduceInit(c, send, recv, o.op) }, restore(send, recv),
		named(o.name, check),
	}, err
}

// scan returns a random call of Scan, in which a rank's result includes its own elements, or of Exscan
// if with is false.
func (e element[T]) scan(k *call, with bool) (drawnCall, error) {
	c, me, o, inPlace := k.c, k.c.Rank(), e.draw(k), k.rng.IntN(4) == 0
	parts, send, recv, err := e.operands(k, k.length(e.size(), c.Size()), inPlace)
	if err != nil {
		return drawnCall{}, err
	}
	want := fold(o.do, parts[:me+1])
	if !with && me > 0 {
		want = fold(o.do, parts[:me])
	} else if !with {
		want = slices.Clone(recv)
	}
	check := expect(recv, want, send, parts[me])
	if inPlace {
		check = expect(recv, want)
	}
	if with {
		return drawnCall{
			func() error { return comm.Scan(c, send, recv, o.op) },
			func() comm.Request { return comm.Iscan(c, send, recv, o.op) },
			func() (*comm.Persistent, error) { return comm.ScanInit(c, send, recv, o.op) }, restore(send, recv), named(o.name, check),
		}, nil
	}
	return drawnCall{
		func() error { return comm.Exscan(c, send, recv, o.op) },
		func() comm.Request { return comm.Iexscan(c, send, recv, o.op) },
		func() (*comm.Persistent, error) { return comm.ExscanInit(c, send, recv, o.op) }, restore(send, recv), named(o.name, check),
	}, nil
}

// reduceScatter returns a random call of ReduceScatterBlock, or of ReduceScatter if even is false.
func (e element[T]) reduceScatter(k *call, even bool) (drawnCall, error) {
	c, me, p, o := k.c, k.c.Rank(), k.c.Size(), e.draw(k)
	counts := k.drawCounts(k.length(e.size(), p*p), even)
	at, total := 0, 0
	for r, n := range counts {
		if r < me {
			at += n
		}
		total += n
	}
	parts, send, _, err := e.operands(k, total, true)
	if err != nil {
		return drawnCall{}, err
	}
	want := fold(o.do, parts)[at : at+counts[me]]
	recv, err := e.buffer(k, counts[me])
	check := expect(recv, want, send, parts[me])
	if k.rng.IntN(4) == 0 { // in place
		recv = send[:counts[me]]
		check = expect(recv, want)
	}
	if even {
		return drawnCall{
			func() error { return comm.ReduceScatterBlock(c, send, recv, o.op) },
			func() comm.Request { return comm.IreduceScatterBlock(c, send, recv, o.op) },
			func() (*comm.Persistent, error) { return comm.ReduceScatterBlockInit(c, send, recv, o.op) }, restore(send, recv), named(o.name, check),
		}, err
	}
	return drawnCall{
		func() error { return comm.ReduceScatter(c, send, recv, counts, o.op) },
		func() comm.Request { return comm.IreduceScatter(c, send, recv, counts, o.op) },
		func() (*comm.Persistent, error) { return comm.ReduceScatterInit(c, send, recv, counts, o.op) }, restore(send, recv), named(o.name, check),
	}, err
}

// barriers does some barriers: each is one Barrier, or two Ibarriers at the same time, or a persistent
// barrier that is started some times.
func barriers(k *call) error {
	for range 1 + k.rng.IntN(5) {
		k.delay()
		var err error
		switch k.rng.IntN(3) {
		case 0:
			err = k.c.Barrier()
		case 1:
			_, err = k.wait([]comm.Request{k.c.Ibarrier(), k.c.Ibarrier()})
		default:
			var p *comm.Persistent
			if p, err = k.c.BarrierInit(); err == nil {
				err = persistents{list: []*comm.Persistent{p}}.run(k, nil)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sums does many Allreduces of short vectors, one immediately after the other, with the same buffers.
func sums(k *call) error {
	p, n := k.c.Size(), 1+k.rng.IntN(16)
	send, recv := make([]int64, n), make([]int64, n)
	for i := range 20 + k.rng.IntN(100) {
		for j := range send {
			send[j] = int64(i*(k.c.Rank()+1) + j)
		}
		if err := comm.Allreduce(k.c, send, recv, comm.Sum); err != nil {
			return err
		}
		for j := range recv {
			if want := int64(i*p*(p+1)/2 + j*p); recv[j] != want {
				return fmt.Errorf("sum %d, element %d: %d instead of %d", i, j, recv[j], want)
			}
		}
	}
	return nil
}
