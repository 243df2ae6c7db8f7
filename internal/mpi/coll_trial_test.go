package mpi_test

import (
	"slices"

	"github.com/weft-hpc/weft/comm"
)

// Each method of trial that is named after a collective runs this collective. It computes the
// expected result naively, from the elements of all ranks.

func (t *trial[T]) barrier(nonblocking, _ bool) error {
	if nonblocking {
		return wait(t.c.Ibarrier())
	}
	return t.c.Barrier()
}

func (t *trial[T]) bcast(nonblocking, _ bool) error {
	buf := make([]T, t.n)
	if t.c.Rank() == t.root {
		buf = t.block(t.root, 0, t.n)
	}
	var err error
	if nonblocking {
		err = wait(comm.Ibcast(t.c, buf, t.root))
	} else {
		err = comm.Bcast(t.c, buf, t.root)
	}
	return first(err, same("buf", buf, t.block(t.root, 0, t.n)))
}

func (t *trial[T]) reduce(nonblocking, inPlace bool) error {
	send := t.block(t.c.Rank(), 0, t.n)
	var recv []T
	if t.c.Rank() == t.root {
		recv = make([]T, t.n)
		if inPlace {
			recv = send
		}
	}
	var err error
	if nonblocking {
		err = wait(comm.Ireduce(t.c, send, recv, t.op, t.root))
	} else {
		err = comm.Reduce(t.c, send, recv, t.op, t.root)
	}
	if err != nil || t.c.Rank() != t.root {
		return err
	}
	return same("recv", recv, t.fold(0, t.c.Size(), 0, t.n))
}

func (t *trial[T]) allreduce(nonblocking, inPlace bool) error {
	send := t.block(t.c.Rank(), 0, t.n)
	recv := make([]T, t.n)
	if inPlace {
		recv = send
	}
	var err error
	if nonblocking {
		err = wait(comm.Iallreduce(t.c, send, recv, t.op))
	} else {
		err = comm.Allreduce(t.c, send, recv, t.op)
	}
	return first(err, same("recv", recv, t.fold(0, t.c.Size(), 0, t.n)))
}

func (t *trial[T]) scan(nonblocking, inPlace bool) error {
	send := t.block(t.c.Rank(), 0, t.n)
	recv := make([]T, t.n)
	if inPlace {
		recv = send
	}
	var err error
	if nonblocking {
		err = wait(comm.Iscan(t.c, send, recv, t.op))
	} else {
		err = comm.Scan(t.c, send, recv, t.op)
	}
	return first(err, same("recv", recv, t.fold(0, t.c.Rank()+1, 0, t.n)))
}

func (t *trial[T]) exscan(nonblocking, inPlace bool) error {
	send := t.block(t.c.Rank(), 0, t.n)
	recv := t.block(99, 0, t.n)
	if inPlace {
		recv = send
	}
	want := slices.Clone(recv) // on rank 0, Exscan does not change recv
	if t.c.Rank() > 0 {
		want = t.fold(0, t.c.Rank(), 0, t.n)
	}
	var err error
	if nonblocking {
		err = wait(comm.Iexscan(t.c, send, recv, t.op))
	} else {
		err = comm.Exscan(t.c, send, recv, t.op)
	}
	return first(err, same("recv", recv, want))
}

func (t *trial[T]) reduceScatterBlock(nonblocking, inPlace bool) error {
	size, me := t.c.Size(), t.c.Rank()
	send := t.block(me, 0, t.n*size)
	recv := make([]T, t.n)
	if inPlace {
		recv = send[:t.n]
	}
	var err error
	if nonblocking {
		err = wait(comm.IreduceScatterBlock(t.c, send, recv, t.op))
	} else {
		err = comm.ReduceScatterBlock(t.c, send, recv, t.op)
	}
	return first(err, same("recv", recv, t.fold(0, size, me*t.n, t.n)))
}

func (t *trial[T]) reduceScatter(nonblocking, inPlace bool) error {
	size, me := t.c.Size(), t.c.Rank()
	total, at := 0, 0
	for r, n := range t.counts {
		if r == me {
			at = total
		}
		total += n
	}
	send := t.block(me, 0, total)
	recv := make([]T, t.counts[me])
	if inPlace {
		recv = send[:t.counts[me]]
	}
	var err error
	if nonblocking {
		err = wait(comm.IreduceScatter(t.c, send, recv, t.counts, t.op))
	} else {
		err = comm.ReduceScatter(t.c, send, recv, t.counts, t.op)
	}
	return first(err, same("recv", recv, t.fold(0, size, at, t.counts[me])))
}

// together returns the first n elements of each rank, in rank order.
func (t *trial[T]) together(n int) []T {
	var all []T
	for r := range t.c.Size() {
		all = append(all, t.block(r, 0, n)...)
	}
	return all
}

func (t *trial[T]) gather(nonblocking, inPlace bool) error {
	me := t.c.Rank()
	send := t.block(me, 0, t.n)
	var recv []T
	if me == t.root {
		recv = make([]T, t.n*t.c.Size())
		if inPlace {
			own := recv[me*t.n : (me+1)*t.n]
			copy(own, send)
			if send = own; t.n%2 == 0 {
				send = recv
			}
		}
	}
	var err error
	if nonblocking {
		err = wait(comm.Igather(t.c, send, recv, t.root))
	} else {
		err = comm.Gather(t.c, send, recv, t.root)
	}
	if err != nil || me != t.root {
		return err
	}
	return same("recv", recv, t.together(t.n))
}

// scattered returns the parts of all ranks at their displacements, with zeros in the gaps.
func (t *trial[T]) scattered() []T {
	all := make([]T, t.extent)
	for r := range t.c.Size() {
		copy(all[t.displs[r]:], t.block(r, 0, t.counts[r]))
	}
	return all
}

// packed reports whether the test passes counts without displacements, so that the parts follow
// each other.
func (t *trial[T]) packed() bool { return t.n%2 == 1 }

// packedParts returns the parts of all ranks, in rank order and without gaps.
func (t *trial[T]) packedParts() []T {
	var all []T
	for r, n := range t.counts {
		all = append(all, t.block(r, 0, n)...)
	}
	return all
}

func (t *trial[T]) gatherv(nonblocking, inPlace bool) error {
	me := t.c.Rank()
	send := t.block(me, 0, t.counts[me])
	want, displs := t.scattered(), t.displs
	if t.packed() {
		want, displs = t.packedParts(), nil
	}
	var recv []T
	counts := t.counts
	if me == t.root {
		recv = make([]T, len(want))
		if inPlace && displs != nil {
			own := recv[displs[me] : displs[me]+counts[me]]
			copy(own, send)
			send = own
		}
	} else {
		counts, displs = nil, nil
	}
	var err error
	if nonblocking {
		err = wait(comm.Igatherv(t.c, send, recv, counts, displs, t.root))
	} else {
		err = comm.Gatherv(t.c, send, recv, counts, displs, t.root)
	}
	if err != nil || me != t.root {
		return err
	}
	return same("recv", recv, want)
}

func (t *trial[T]) scatter(nonblocking, inPlace bool) error {
	me := t.c.Rank()
	recv := make([]T, t.n)
	var send []T
	if me == t.root {
		send = t.together(t.n)
		if inPlace {
			recv = send[me*t.n : (me+1)*t.n]
		}
	}
	var err error
	if nonblocking {
		err = wait(comm.Iscatter(t.c, send, recv, t.root))
	} else {
		err = comm.Scatter(t.c, send, recv, t.root)
	}
	return first(err, same("recv", recv, t.block(me, 0, t.n)))
}

func (t *trial[T]) scatterv(nonblocking, inPlace bool) error {
	me := t.c.Rank()
	recv := make([]T, t.counts[me])
	var send []T
	var counts, displs []int
	if me == t.root {
		send, counts, displs = t.scattered(), t.counts, t.displs
		if t.packed() {
			send, displs = t.packedParts(), nil
		} else if inPlace {
			recv = send[displs[me] : displs[me]+counts[me]]
		}
	}
	var err error
	if nonblocking {
		err = wait(comm.Iscatterv(t.c, send, counts, displs, recv, t.root))
	} else {
		err = comm.Scatterv(t.c, send, counts, displs, recv, t.root)
	}
	return first(err, same("recv", recv, t.block(me, 0, t.counts[me])))
}

func (t *trial[T]) allgather(nonblocking, inPlace bool) error {
	me := t.c.Rank()
	send := t.block(me, 0, t.n)
	recv := make([]T, t.n*t.c.Size())
	if inPlace {
		copy(recv[me*t.n:], send)
		if send = recv[me*t.n : (me+1)*t.n]; t.n%2 == 0 {
			send = recv
		}
	}
	var err error
	if nonblocking {
		err = wait(comm.Iallgather(t.c, send, recv))
	} else {
		err = comm.Allgather(t.c, send, recv)
	}
	return first(err, same("recv", recv, t.together(t.n)))
}

func (t *trial[T]) allgatherv(nonblocking, inPlace bool) error {
	me := t.c.Rank()
	send := t.block(me, 0, t.counts[me])
	want, displs := t.scattered(), t.displs
	if t.packed() {
		want, displs = t.packedParts(), nil
	}
	recv := make([]T, len(want))
	if inPlace && displs != nil {
		copy(recv[displs[me]:], send)
		send = recv[displs[me] : displs[me]+t.counts[me]]
	}
	var err error
	if nonblocking {
		err = wait(comm.Iallgatherv(t.c, send, recv, t.counts, displs))
	} else {
		err = comm.Allgatherv(t.c, send, recv, t.counts, displs)
	}
	return first(err, same("recv", recv, want))
}

func (t *trial[T]) alltoall(nonblocking, inPlace bool) error {
	size, me := t.c.Size(), t.c.Rank()
	send := t.block(me, 0, t.n*size)
	var want []T
	for r := range size {
		want = append(want, t.block(r, me*t.n, t.n)...)
	}
	recv := make([]T, t.n*size)
	if inPlace {
		recv = send
	}
	var err error
	if nonblocking {
		err = wait(comm.Ialltoall(t.c, send, recv))
	} else {
		err = comm.Alltoall(t.c, send, recv)
	}
	return first(err, same("recv", recv, want))
}

// alltoallv sends (i+j) mod (n+1) elements between ranks i and j. The number is the same in both
// directions, which a call in place requires.
func (t *trial[T]) alltoallv(nonblocking, inPlace bool) error {
	size, me := t.c.Size(), t.c.Rank()
	counts, displs := make([]int, size), make([]int, size)
	var send, want []T
	for r := range size {
		counts[r] = (me + r) % (t.n + 1)
		displs[r] = len(send)
		send = append(send, t.block(me, r*10, counts[r])...)
		want = append(want, t.block(r, me*10, counts[r])...)
	}
	if t.packed() {
		displs = nil
	}
	recv, sendCounts := make([]T, len(send)), counts
	if inPlace {
		recv = send
		if len(send) > 0 {
			sendCounts = nil
		}
	}
	var err error
	if nonblocking {
		err = wait(comm.Ialltoallv(t.c, send, sendCounts, displs, recv, counts, displs))
	} else {
		err = comm.Alltoallv(t.c, send, sendCounts, displs, recv, counts, displs)
	}
	return first(err, same("recv", recv, want))
}
