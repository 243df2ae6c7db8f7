package coll

import (
	"errors"
	"math"
)

// Errors for arguments that this package checks. Only the rank with the wrong argument returns
// them; the caller ends the call on the other ranks.
var (
	ErrRoot   = errors.New("root out of range")
	ErrLength = errors.New("buffer lengths do not match the call")
)

// Each function below runs one collective. l is this rank's access to it, and cfg chooses the
// algorithm (nil: the defaults). All lengths, counts and displacements are in bytes; counts and
// displs have one entry per rank. Every rank of the link calls the same function. A function
// blocks until this rank's part is done and its buffers may be reused. If it returns an error,
// transfers may still be pending, and the caller ends them (see the package comment).
//
// If send and recv are the same slice, the call is in place; otherwise they must not overlap. In
// place, the rank's operand is in its own block of recv (Gather at the root, Allgather) or in all
// blocks (Alltoall). Scatter at the root leaves the root's block where it is. ReduceScatter writes
// the result to the beginning of the slice. A call is also in place if send is the rank's own
// block of recv.

// Barrier blocks until every rank has called it (MPI_Barrier).
func Barrier(l Link, cfg *Config) error {
	if l.Size() == 1 {
		return nil
	}
	return choose(orDefault(cfg), FamilyBarrier, barriers, facts{}.on(l), barrierByDissemination)(l, orDefault(cfg))
}

// SparseBarrier is Barrier by the algorithm with the fewest pairs of ranks that exchange messages:
// a rank has two partners on average. Use it if ranks may have no connection to each other yet,
// because a new connection takes longer than a message.
func SparseBarrier(l Link) error { return barrierTree(l, nil) }

// Bcast copies the root's buf to all ranks (MPI_Bcast).
func Bcast(l Link, cfg *Config, buf []byte, root int) error {
	if root < 0 || root >= l.Size() {
		return ErrRoot
	}
	if l.Size() == 1 {
		return nil
	}
	cfg = orDefault(cfg)
	f := facts{bytes: len(buf)}.on(l)
	return choose(cfg, FamilyBcast, bcasts, f, cfg.autoBcast(f))(l, cfg, buf, root)
}

// Reduce combines the sends of all ranks in rank order and writes the result to the root's recv
// (MPI_Reduce). The other ranks ignore recv.
func Reduce(l Link, cfg *Config, send, recv []byte, op Op, root int) error {
	switch {
	case root < 0 || root >= l.Size():
		return ErrRoot
	case !whole(op, send), l.Rank() == root && len(recv) != len(send):
		return ErrLength
	case l.Size() == 1:
		move(recv, send)
		return nil
	}
	cfg = orDefault(cfg)
	f := facts{bytes: len(send), elem: op.Size, commutes: op.Commutes}.on(l)
	return choose(cfg, FamilyReduce, reduces, f, cfg.autoReduce(f))(l, cfg, send, recv, op, root)
}

// Allreduce combines the sends of all ranks in rank order and writes the result to every rank's
// recv (MPI_Allreduce). All ranks get the same bits.
func Allreduce(l Link, cfg *Config, send, recv []byte, op Op) error {
	switch {
	case !whole(op, send), len(recv) != len(send):
		return ErrLength
	case l.Size() == 1:
		move(recv, send)
		return nil
	}
	cfg = orDefault(cfg)
	f := facts{bytes: len(send), elem: op.Size, commutes: op.Commutes}.on(l)
	return choose(cfg, FamilyAllreduce, allreduces, f, cfg.autoAllreduce(f))(l, cfg, send, recv, op)
}

// Gather writes the equal blocks of all ranks to the root's recv, in rank order (MPI_Gather). The
// other ranks ignore recv.
func Gather(l Link, cfg *Config, send, recv []byte, root int) error {
	if root < 0 || root >= l.Size() {
		return ErrRoot
	}
	b := blocks{equal: len(send)}
	if l.Rank() == root {
		b.equal = len(recv) / l.Size()
		if send = ownBlock(send, recv, b, root); len(send) != b.equal || len(recv) != b.equal*l.Size() {
			return ErrLength
		}
	}
	if l.Size() == 1 {
		move(recv, send)
		return nil
	}
	cfg = orDefault(cfg)
	f := facts{bytes: b.equal, uniform: true}.on(l)
	return choose(cfg, FamilyGather, gathers, f, cfg.autoGather(f))(l, cfg, send, recv, b, root)
}

// Gatherv is [Gather] with blocks of any length at any offset in recv (MPI_Gatherv). Ranks other
// than the root ignore counts, displs and recv.
func Gatherv(l Link, cfg *Config, send, recv []byte, counts, displs []int, root int) error {
	if root < 0 || root >= l.Size() {
		return ErrRoot
	}
	b := unknown
	if l.Rank() == root {
		b = blocks{counts: counts, displs: displs}
		if !b.fit(recv, l.Size()) {
			return ErrLength
		}
		if send = ownBlock(send, recv, b, root); len(send) != counts[root] {
			return ErrLength
		}
	}
	cfg = orDefault(cfg)
	f := facts{}.on(l)
	return choose(cfg, FamilyGather, gathers, f, gatherByLinear)(l, cfg, send, recv, b, root)
}

// Scatter distributes the root's send in equal blocks, in rank order (MPI_Scatter). The other
// ranks ignore send.
func Scatter(l Link, cfg *Config, send, recv []byte, root int) error {
	if root < 0 || root >= l.Size() {
		return ErrRoot
	}
	b := blocks{equal: len(recv)}
	if l.Rank() == root {
		b.equal = len(send) / l.Size()
		if recv = ownBlock(recv, send, b, root); len(recv) != b.equal || len(send) != b.equal*l.Size() {
			return ErrLength
		}
	}
	if l.Size() == 1 {
		move(recv, send)
		return nil
	}
	cfg = orDefault(cfg)
	f := facts{bytes: b.equal, uniform: true}.on(l)
	return choose(cfg, FamilyScatter, scatters, f, cfg.autoScatter(f))(l, cfg, send, recv, b, root)
}

// Scatterv is [Scatter] with blocks of any length at any offset in send (MPI_Scatterv). Ranks
// other than the root ignore counts, displs and send.
func Scatterv(l Link, cfg *Config, send []byte, counts, displs []int, recv []byte, root int) error {
	if root < 0 || root >= l.Size() {
		return ErrRoot
	}
	b := unknown
	if l.Rank() == root {
		b = blocks{counts: counts, displs: displs}
		if !b.fit(send, l.Size()) {
			return ErrLength
		}
		if recv = ownBlock(recv, send, b, root); len(recv) != counts[root] {
			return ErrLength
		}
	}
	cfg = orDefault(cfg)
	f := facts{}.on(l)
	return choose(cfg, FamilyScatter, scatters, f, scatterByLinear)(l, cfg, send, recv, b, root)
}

// Allgather writes the equal blocks of all ranks to every rank's recv, in rank order
// (MPI_Allgather).
func Allgather(l Link, cfg *Config, send, recv []byte) error {
	b := blocks{equal: len(recv) / l.Size()}
	if send = ownBlock(send, recv, b, l.Rank()); len(send) != b.equal || len(recv) != b.equal*l.Size() {
		return ErrLength
	}
	move(b.of(recv, l.Rank()), send)
	if l.Size() == 1 {
		return nil
	}
	cfg = orDefault(cfg)
	f := facts{bytes: len(recv), uniform: true}.on(l)
	return choose(cfg, FamilyAllgather, allgathers, f, cfg.autoAllgather(f))(l, cfg, send, recv, b)
}

// Allgatherv is [Allgather] with blocks of any length at any offset in recv (MPI_Allgatherv).
// counts are the same on all ranks; displs may differ.
func Allgatherv(l Link, cfg *Config, send, recv []byte, counts, displs []int) error {
	b := blocks{counts: counts, displs: displs}
	if !b.fit(recv, l.Size()) {
		return ErrLength
	}
	if send = ownBlock(send, recv, b, l.Rank()); len(send) != counts[l.Rank()] {
		return ErrLength
	}
	move(b.of(recv, l.Rank()), send)
	if l.Size() == 1 {
		return nil
	}
	cfg = orDefault(cfg)
	f := facts{bytes: b.total(l.Size())}.on(l)
	return choose(cfg, FamilyAllgather, allgathers, f, cfg.autoAllgather(f))(l, cfg, send, recv, b)
}

// Alltoall sends block i of send to rank i, and receives block i of recv from rank i
// (MPI_Alltoall).
func Alltoall(l Link, cfg *Config, send, recv []byte) error {
	b := blocks{equal: len(recv) / l.Size()}
	if len(send) != len(recv) || len(recv) != b.equal*l.Size() {
		return ErrLength
	}
	if l.Size() == 1 {
		move(recv, send)
		return nil
	}
	cfg = orDefault(cfg)
	f := facts{bytes: b.equal, uniform: true}.on(l)
	return choose(cfg, FamilyAlltoall, alltoalls, f, cfg.autoAlltoall(f))(l, cfg, send, b, recv, b)
}

// Alltoallv is [Alltoall] with blocks of any length at any offset (MPI_Alltoallv). In place, the
// counts and displacements of recv apply to both directions.
func Alltoallv(l Link, cfg *Config, send []byte, sendCounts, sendDispls []int, recv []byte, recvCounts, recvDispls []int) error {
	sb, rb := blocks{counts: sendCounts, displs: sendDispls}, blocks{counts: recvCounts, displs: recvDispls}
	if same(send, recv) {
		sb = rb
	}
	if !sb.fit(send, l.Size()) || !rb.fit(recv, l.Size()) || sb.size(l.Rank()) != rb.size(l.Rank()) {
		return ErrLength
	}
	cfg = orDefault(cfg)
	f := facts{}.on(l)
	return choose(cfg, FamilyAlltoall, alltoalls, f, cfg.autoAlltoall(f))(l, cfg, send, sb, recv, rb)
}

// ReduceScatterBlock combines the sends of all ranks in rank order and writes block i of the result
// to the recv of rank i (MPI_Reduce_scatter_block). send has the length of recv times the number of
// ranks. In place, recv is the beginning of send.
func ReduceScatterBlock(l Link, cfg *Config, send, recv []byte, op Op) error {
	b := blocks{equal: len(send) / l.Size()}
	if same(send, recv) && len(recv) == len(send) {
		recv = recv[:b.equal]
	}
	if len(recv) != b.equal || len(send) != b.equal*l.Size() || !whole(op, recv) {
		return ErrLength
	}
	return reduceScatter(l, cfg, send, recv, b, op)
}

// ReduceScatter is [ReduceScatterBlock] with blocks of any length (MPI_Reduce_scatter). counts are
// the same on all ranks.
func ReduceScatter(l Link, cfg *Config, send, recv []byte, counts []int, op Op) error {
	if len(counts) != l.Size() {
		return ErrLength
	}
	b := blocks{counts: counts, displs: scratchInts(l, l.Size()+1)}
	sum := 0
	for i, n := range counts {
		if n < 0 || n > math.MaxInt-sum || op.Size < 1 || n%op.Size != 0 {
			return ErrLength
		}
		b.displs[i] = sum
		sum += n
	}
	b.displs[l.Size()] = sum
	if same(send, recv) && len(recv) == len(send) {
		recv = recv[:counts[l.Rank()]]
	}
	if sum != len(send) || counts[l.Rank()] != len(recv) {
		return ErrLength
	}
	return reduceScatter(l, cfg, send, recv, b, op)
}

func reduceScatter(l Link, cfg *Config, send, recv []byte, b blocks, op Op) error {
	if l.Size() == 1 {
		move(recv, send)
		return nil
	}
	cfg = orDefault(cfg)
	f := facts{bytes: len(send), elem: op.Size, commutes: op.Commutes, uniform: b.uniform()}.on(l)
	return choose(cfg, FamilyReduceScatter, reduceScatters, f, cfg.autoReduceScatter(f))(l, cfg, send, recv, b, op)
}

// Scan combines the sends of ranks 0 to i and writes the result to the recv of rank i (MPI_Scan).
func Scan(l Link, cfg *Config, send, recv []byte, op Op) error {
	return scan(l, cfg, send, recv, op, false)
}

// Exscan combines the sends of ranks 0 to i-1 and writes the result to the recv of rank i. It does
// not write to the recv of rank 0 (MPI_Exscan).
func Exscan(l Link, cfg *Config, send, recv []byte, op Op) error {
	return scan(l, cfg, send, recv, op, true)
}

func scan(l Link, cfg *Config, send, recv []byte, op Op, exclusive bool) error {
	if !whole(op, send) || len(recv) != len(send) {
		return ErrLength
	}
	cfg = orDefault(cfg)
	f := facts{bytes: len(send), elem: op.Size, commutes: op.Commutes}.on(l)
	return choose(cfg, FamilyScan, scans, f, scanByDoubling)(l, cfg, send, recv, op, exclusive)
}

// whole reports whether buf consists of whole elements.
func whole(op Op, buf []byte) bool { return op.Size > 0 && len(buf)%op.Size == 0 }

// fit reports whether b has a block for each of size ranks, all within buf.
func (b blocks) fit(buf []byte, size int) bool {
	if len(b.counts) != size || len(b.displs) != size {
		return false
	}
	for i, n := range b.counts {
		if d := b.displs[i]; n < 0 || d < 0 || n > len(buf) || d > len(buf)-n {
			return false
		}
	}
	return true
}

// ownBlock returns part, or the rank's block of all if the call is in place, that is, if part and
// all are the same slice.
func ownBlock(part, all []byte, b blocks, rank int) []byte {
	if same(part, all) && len(part) == len(all) {
		return b.of(all, rank)
	}
	return part
}
