package main

import (
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/comm"
)

// drawn is a view with a random layout, and the memory that it belongs to.
type drawn[T comparable] struct {
	view    comm.View[T]
	layout  comm.Layout
	mem     []T
	indices []int // of the elements of the view, in their order
}

// drawView returns a view of n elements, whose layout may differ between ranks.
func (e element[T]) drawView(k *call, n int) (v drawn[T], err error) {
	layout, indices := e.drawIndices(k, n)
	_, high := layout.Span()
	if v.mem, err = e.buffer(k, high+k.own.IntN(5)); err != nil {
		return v, err
	}
	v.view, v.layout, v.indices = comm.Of(v.mem, layout), layout, indices
	return v, v.view.Err()
}

// drawIndices returns a random layout of n elements, and the indices of its elements.
func (e element[T]) drawIndices(k *call, n int) (comm.Layout, []int) {
	shift := k.own.IntN(4)
	indices := make([]int, 0, n)
	kind := k.own.IntN(6)
	if n == 0 && kind >= 3 { // the parts of cases 3 and 4 have an element
		kind = 5
	}
	switch kind {
	case 0: // blocks at equal distances, the last one shorter
		block, gap := 1+k.own.IntN(9), k.own.IntN(4)
		for i := range n {
			indices = append(indices, shift+i/block*(block+gap)+i%block)
		}
		count := n / block
		l := comm.Vector(count, block, block+gap)
		rest := comm.Contiguous(n % block).Shift(count * (block + gap))
		return comm.Combine([]int{shift, shift}, []comm.Layout{l, rest}), indices
	case 1: // rows of a matrix, column by column
		rows := 1 + k.own.IntN(6)
		cols, rest := n/rows, n%rows
		for j := range cols {
			for i := range rows {
				indices = append(indices, shift+i*(cols+1)+j)
			}
		}
		begin := shift + rows*(cols+1)
		for i := range rest {
			indices = append(indices, begin+2*i)
		}
		l := comm.Vector(rows, 1, cols+1).Resized(0, 1).Repeat(cols)
		return comm.Combine([]int{shift, begin}, []comm.Layout{l, comm.Contiguous(1).Strided(rest, 2)}), indices
	case 2: // blocks in a random order
		lengths, offs := []int(nil), []int(nil)
		at := shift
		for left := n; left > 0; left -= lengths[len(lengths)-1] {
			lengths = append(lengths, 1+k.own.IntN(min(left, 200)))
			offs = append(offs, at)
			at += lengths[len(lengths)-1] + k.own.IntN(3)
		}
		k.own.Shuffle(len(offs), func(i, j int) {
			offs[i], offs[j], lengths[i], lengths[j] = offs[j], offs[i], lengths[j], lengths[i]
		})
		for i, off := range offs {
			for j := range lengths[i] {
				indices = append(indices, off+j)
			}
		}
		return comm.Indexed(lengths, offs), indices
	case 3: // a part of a matrix, and consecutive elements after it
		rows := 1 + k.own.IntN(min(6, n))
		cols := n / rows
		top, left := k.own.IntN(3), k.own.IntN(3)
		height, width := top+rows+k.own.IntN(3), left+cols+k.own.IntN(3)
		for i := range rows * cols {
			indices = append(indices, shift+(top+i/cols)*width+left+i%cols)
		}
		part := comm.Subarray([]int{height, width}, []int{rows, cols}, []int{top, left})
		return withRest(part, shift, n, indices)
	case 4: // the blocks that one of several ranks has of a distributed array, and elements after it
		block, ranks := 1+k.own.IntN(min(9, n)), 1+k.own.IntN(4)
		own := k.own.IntN(ranks)
		blocks := n / block
		for i := range blocks * block {
			indices = append(indices, shift+(i/block*ranks+own)*block+i%block)
		}
		part := comm.Darray(comm.Dim{Size: blocks * block * ranks, Dist: comm.Cyclic, Block: block, Ranks: ranks, Coord: own})
		return withRest(part, shift, n, indices)
	default:
		for i := range n {
			indices = append(indices, shift+i)
		}
		return comm.Contiguous(n).Shift(shift), indices
	}
}

// withRest returns the layout of part, moved by shift, and of consecutive elements after the extent of
// part, so that there are n elements. indices are those of part.
func withRest(part comm.Layout, shift, n int, indices []int) (comm.Layout, []int) {
	_, extent := part.Extent()
	rest := n - len(indices)
	for i := range rest {
		indices = append(indices, shift+extent+i)
	}
	return comm.Combine([]int{shift, shift + extent}, []comm.Layout{part, comm.Contiguous(rest)}), indices
}

// put stores data in the elements of the view.
func (v *drawn[T]) put(data []T) {
	for i, at := range v.indices {
		v.mem[at] = data[i]
	}
}

// packed checks that Pack copies data from the view, and Unpack to another view.
func (v *drawn[T]) packed(data []T) error {
	b := make([]T, len(data))
	if n, err := comm.Pack(b, v.view); err != nil || n != len(data) {
		return fmt.Errorf("%d of %d elements were packed: %w", n, len(data), err)
	}
	if err := same("packed elements", b, data); err != nil {
		return err
	}
	other := drawn[T]{mem: make([]T, len(v.mem)), indices: v.indices}
	check := other.expect("unpacked elements", data)
	if n, err := comm.Unpack(comm.Of(other.mem, v.layout), b); err != nil || n != len(data) {
		return fmt.Errorf("%d of %d elements were unpacked: %w", n, len(data), err)
	}
	return check()
}

// expect returns a function that checks that the view has the elements data, and that the elements
// of the memory outside the view have not changed since the call of expect.
func (v *drawn[T]) expect(what string, data []T) func() error {
	want := slices.Clone(v.mem)
	for i, at := range v.indices {
		want[at] = data[i]
	}
	return func() error { return same(what, v.mem, want) }
}

// views exchanges views: each rank sends to the rank at some distance on the ring of ranks, and
// receives from the rank at the same distance on the other side. Then all ranks call one of the
// collectives that take a view for each rank.
func (e element[T]) views(k *call) error {
	p, me := k.c.Size(), k.c.Rank()
	for i := range 1 + k.rng.IntN(4) {
		n, by := k.length(2*e.size(), 6*p), k.rng.IntN(p)
		to, from := (me+by)%p, (me+p-by)%p
		send, err := e.drawView(k, n)
		if err != nil {
			return err
		}
		recv, err := e.drawView(k, n)
		if err != nil {
			return err
		}
		salt := k.salt + uint64(i)
		block := e.block(salt, me, 0, n)
		send.put(block)
		if err := send.packed(block); err != nil {
			return err
		}
		check := recv.expect(fmt.Sprintf("view %d of %v", i, e), e.block(salt, from, 0, n))
		var rs []comm.Request
		if k.rng.IntN(3) == 0 {
			if st, err := comm.SendrecvView(k.c, send.view, to, k.tag, recv.view, from, k.tag); err != nil || st.Count != n || st.Source != from {
				return fmt.Errorf("SendrecvView of %d elements: %+v, %w", n, st, err)
			}
		} else if k.own.IntN(2) == 0 {
			rs = append(rs, recv.view.Irecv(k.c, from, k.tag), send.view.Isend(k.c, to, k.tag))
		} else {
			rs = append(rs, send.view.Issend(k.c, to, k.tag))
			k.delay()
			rs = append(rs, recv.view.Irecv(k.c, from, k.tag))
		}
		if _, err := k.wait(rs); err != nil {
			return err
		}
		if err := check(); err != nil {
			return err
		}
	}
	if err := e.viewsOfAll(k); err != nil {
		return err
	}
	return e.viewsReduced(k)
}

// viewsReduced combines the elements of views of all ranks, on one rank or on all.
func (e element[T]) viewsReduced(k *call) error {
	c, me, root, o := k.c, k.c.Rank(), k.rng.IntN(k.c.Size()), e.draw(k)
	onAll, form := k.rng.IntN(2) == 0, k.own.IntN(2)
	parts, slice, _, err := e.operands(k, k.length(2*e.size(), 2*c.Size()), true)
	if err != nil {
		return err
	}
	send, err := e.drawView(k, len(slice))
	if err != nil {
		return err
	}
	send.put(slice)
	receives := onAll || me == root
	recv, inPlace := send, receives && k.own.IntN(3) == 0
	if !inPlace {
		if recv, err = e.drawView(k, len(slice)); err != nil {
			return err
		}
	}
	view, checks := recv.view, []func() error{send.expect("view that was sent", slice)}
	if receives {
		checks = append(checks, recv.expect("view with the result", fold(o.do, parts)))
	} else {
		view = comm.View[T]{}
	}
	if inPlace {
		checks = checks[1:]
	}
	k.delay()
	switch {
	case onAll && form == 0:
		err = comm.AllreduceView(c, send.view, view, o.op)
	case onAll:
		_, err = k.wait([]comm.Request{comm.IallreduceView(c, send.view, view, o.op)})
	case form == 0:
		err = comm.ReduceView(c, send.view, view, o.op, root)
	default:
		_, err = k.wait([]comm.Request{comm.IreduceView(c, send.view, view, o.op, root)})
	}
	if err == nil {
		err = all(checks)
	}
	if err != nil {
		return fmt.Errorf("%s of views of %d elements, on all ranks: %v, root %d: %w", o.name, len(slice), onAll, root, err)
	}
	return nil
}

// viewsOfAll does a collective with a view for each rank. If the collective has a transfer from
// rank i to rank j, it has lengths[i][j] elements.
func (e element[T]) viewsOfAll(k *call) error {
	c, p, me := k.c, k.c.Size(), k.c.Rank()
	call, root := k.rng.IntN(4), k.rng.IntN(p)
	most := min(k.length(2*e.size(), 4*p*p), 3000)
	lengths := make([][]int, p)
	for i := range lengths {
		for range p {
			lengths[i] = append(lengths[i], k.rng.IntN(2)*k.rng.IntN(most+1))
		}
	}
	data := func(from, to int) []T { return e.block(k.salt+uint64(to)<<8, from, 0, lengths[from][to]) }
	var checks []func() error
	one := func(out bool, from, to int) (comm.View[T], error) {
		v, err := e.drawView(k, lengths[from][to])
		switch {
		case err != nil:
		case out:
			v.put(data(from, to))
		default:
			checks = append(checks, v.expect(fmt.Sprintf("view from rank %d in call %d", from, call), data(from, to)))
		}
		return v.view, err
	}
	list := func(out bool, peer func(r int) (from, to int)) (views []comm.View[T], err error) {
		for r := range p {
			from, to := peer(r)
			v, err := one(out, from, to)
			if err != nil {
				return nil, err
			}
			views = append(views, v)
		}
		return views, nil
	}
	var send, recv []comm.View[T]
	var mine comm.View[T]
	var d drawnCall
	var err error
	k.delay()
	switch call {
	case 0:
		if send, err = list(true, func(r int) (int, int) { return me, r }); err == nil {
			recv, err = list(false, func(r int) (int, int) { return r, me })
		}
		d = drawnCall{
			call:    func() error { return comm.AlltoallView(c, send, recv) },
			start:   func() comm.Request { return comm.IalltoallView(c, send, recv) },
			prepare: func() (*comm.Persistent, error) { return comm.AlltoallViewInit(c, send, recv) },
		}
	case 1:
		if mine, err = one(true, me, root); err == nil {
			recv, err = list(false, func(r int) (int, int) { return r, root })
		}
		d = drawnCall{
			call:    func() error { return comm.AllgatherView(c, mine, recv) },
			start:   func() comm.Request { return comm.IallgatherView(c, mine, recv) },
			prepare: func() (*comm.Persistent, error) { return comm.AllgatherViewInit(c, mine, recv) },
		}
	case 2:
		if mine, err = one(true, me, root); err == nil && me == root {
			recv, err = list(false, func(r int) (int, int) { return r, root })
		}
		d = drawnCall{
			call:    func() error { return comm.GatherView(c, mine, recv, root) },
			start:   func() comm.Request { return comm.IgatherView(c, mine, recv, root) },
			prepare: func() (*comm.Persistent, error) { return comm.GatherViewInit(c, mine, recv, root) },
		}
	default:
		if mine, err = one(false, root, me); err == nil && me == root {
			send, err = list(true, func(r int) (int, int) { return root, r })
		}
		d = drawnCall{
			call:    func() error { return comm.ScatterView(c, send, mine, root) },
			start:   func() comm.Request { return comm.IscatterView(c, send, mine, root) },
			prepare: func() (*comm.Persistent, error) { return comm.ScatterViewInit(c, send, mine, root) },
		}
	}
	form := k.rng.IntN(3)
	switch {
	case err != nil:
	case form == 0:
		err = d.call()
	case form == 1:
		_, err = k.wait([]comm.Request{d.start()})
	default:
		var p *comm.Persistent
		if p, err = d.prepare(); err == nil {
			err = persistents{list: []*comm.Persistent{p}}.run(k, nil)
		}
	}
	if err != nil {
		return fmt.Errorf("call %d of %d ranks in form %d, root %d: %w", call, p, form, root, err)
	}
	return all(checks)
}
