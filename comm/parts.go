package comm

import "github.com/weft-hpc/weft/internal/mpi"

// GathervAlloc is [Gatherv] for parts whose lengths the root does not know: the ranks exchange the
// lengths, and the root allocates the result. parts[i] is the slice that rank i has sent; all parts
// are in one array. On other ranks parts is nil.
//
// Errors: those of [Gatherv]. Cost: that of [Gather] of an int and of Gatherv.
func GathervAlloc[T any](c *Comm, send []T, root int) (parts [][]T, err error) {
	if err := c.in().OneGroup("GathervAlloc"); err != nil {
		return nil, err
	}
	counts := []int(nil)
	if c.Rank() == root {
		counts = make([]int, c.Size())
	}
	if err := Gather(c, []int{len(send)}, counts, root); err != nil {
		return nil, mpi.RenamedTo(err, "GathervAlloc")
	}
	recv := make([]T, total(counts))
	if err := Gatherv(c, send, recv, counts, nil, root); err != nil {
		return nil, mpi.RenamedTo(err, "GathervAlloc")
	}
	return split(recv, counts), nil
}

// AllgathervAlloc is [Allgatherv] for parts whose lengths the ranks do not know, as [GathervAlloc]
// is Gatherv. parts[i] is the slice that rank i has sent.
//
// Errors: those of [Allgatherv]. Cost: that of [Allgather] of an int and of Allgatherv.
func AllgathervAlloc[T any](c *Comm, send []T) (parts [][]T, err error) {
	if err := c.in().OneGroup("AllgathervAlloc"); err != nil {
		return nil, err
	}
	counts := make([]int, c.Size())
	if err := Allgather(c, []int{len(send)}, counts); err != nil {
		return nil, mpi.RenamedTo(err, "AllgathervAlloc")
	}
	recv := make([]T, total(counts))
	if err := Allgatherv(c, send, recv, counts, nil); err != nil {
		return nil, mpi.RenamedTo(err, "AllgathervAlloc")
	}
	return split(recv, counts), nil
}

// ScattervAlloc is [Scatterv] for ranks that do not know the length of their parts: the root sends
// parts[i] to rank i, and each rank allocates its part. Other ranks than the root ignore parts.
//
// Errors: those of [Scatterv]; ErrCount if the root has another number of parts than ranks. Cost:
// that of [Scatter] of an int and of Scatterv. The root also copies all parts into one array.
func ScattervAlloc[T any](c *Comm, parts [][]T, root int) ([]T, error) {
	if err := c.in().OneGroup("ScattervAlloc"); err != nil {
		return nil, err
	}
	var counts []int
	var send []T
	if c.Rank() == root {
		send, counts = join(parts)
	}
	n := make([]int, 1)
	if err := Scatter(c, counts, n, root); err != nil {
		return nil, mpi.RenamedTo(err, "ScattervAlloc")
	}
	recv := make([]T, n[0])
	if err := Scatterv(c, send, counts, nil, recv, root); err != nil {
		return nil, mpi.RenamedTo(err, "ScattervAlloc")
	}
	return recv, nil
}

// AlltoallvAlloc is [Alltoallv] for ranks that do not know what they receive: each rank sends
// send[i] to rank i, and allocates the result. recv[i] is the slice that rank i has sent to this
// rank; all of them are in one array.
//
// Errors: those of [Alltoallv]; ErrCount if send has another number of slices than there are ranks.
// Cost: that of [Alltoall] of an int and of Alltoallv. Each rank also copies what it sends into one
// array.
func AlltoallvAlloc[T any](c *Comm, send [][]T) (recv [][]T, err error) {
	if err := c.in().OneGroup("AlltoallvAlloc"); err != nil {
		return nil, err
	}
	all, sendcounts := join(send)
	recvcounts := make([]int, c.Size())
	if err := Alltoall(c, sendcounts, recvcounts); err != nil {
		return nil, mpi.RenamedTo(err, "AlltoallvAlloc")
	}
	got := make([]T, total(recvcounts))
	if err := Alltoallv(c, all, sendcounts, nil, got, recvcounts, nil); err != nil {
		return nil, mpi.RenamedTo(err, "AlltoallvAlloc")
	}
	return split(got, recvcounts), nil
}

// AllreduceOne is [Allreduce] of one element, which it returns. Errors: those of Allreduce. Unlike
// Allreduce, it allocates.
func AllreduceOne[T any](c *Comm, x T, op OpFor[T]) (T, error) {
	v := []T{x}
	err := Allreduce(c, v, v, op)
	return v[0], mpi.RenamedTo(err, "AllreduceOne")
}

func total(counts []int) int {
	n := 0
	for _, k := range counts {
		n += k
	}
	return n
}

// split returns the parts of all, whose lengths are counts.
func split[T any](all []T, counts []int) [][]T {
	if counts == nil {
		return nil
	}
	parts := make([][]T, len(counts))
	for i, n := range counts {
		parts[i], all = all[:n:n], all[n:]
	}
	return parts
}

// join returns the elements of all parts in one slice, and the lengths of the parts.
func join[T any](parts [][]T) (all []T, counts []int) {
	counts = make([]int, len(parts))
	for i, p := range parts {
		counts[i] = len(p)
	}
	all = make([]T, 0, total(counts))
	for _, p := range parts {
		all = append(all, p...)
	}
	return all, counts
}
