package coll

import (
	"errors"
	"math"
)

// Errors for arguments that this package checks. Only the rank with the wrong argument returns
// them. Its caller then revokes the communicator, which ends the call on the other ranks.
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
// If send and recv are the same slice, the call is in place. Otherwise they must not overlap,
// except as this list says. In place:
//
//   - Reduce at the root, Allreduce, Scan, Exscan: the slice holds the rank's operand, and then the
//     result.
//   - Gather at the root, Allgather: the rank's block is at its place in recv. send may also be
//     that block alone.
//   - Scatter at the root: the root's block stays at its place in send. recv may also be that block
//     alone.
//   - Alltoall: block i holds the data for rank i, and then the data from rank i.
//   - ReduceScatter: the result is at the beginning of the slice. recv may also be that beginning
//     alone.
//
// The v-forms and ReduceScatterBlock do the same.

// Barrier blocks until every rank has called it (MPI_Barrier).
func Barrier(l Link, cfg *Config) error {
	if l.Size() == 1 {
		return nil
	}
	return choose(orDefault(cfg), FamilyBarrier, barriers, facts{}.on(l), barrierByDissemination)(l, orDefault(cfg))
}

// SparseBarrier is Barrier by messages along a tree, so few pairs of ranks exchange messages: on
// average a rank has less than two partners. Use it if ranks may have no connection to each other
// yet, because a new connection takes longer than a message.
func SparseBarrier(l Link) error { return barrierTree(l, nil) }

// Bcast copies the root's buf to the buf of every other rank (MPI_Bcast). len(buf) is the same on
// all ranks.
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

// Reduce combines the operands that the ranks pass as send, and writes the result to the root's
// recv (MPI_Reduce). If the operation does not commute, the operands are in rank order. len(send)
// is the same on all ranks. Ranks other than the root ignore recv.
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

// Allreduce combines the operands that the ranks pass as send, and writes the result to every
// rank's recv (MPI_Allreduce). If the operation does not commute, the operands are in rank order.
// All ranks get the same bits.
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

// Gather writes the send blocks of all ranks, which have equal length, to the root's recv, in rank
// order (MPI_Gather). Ranks other than the root ignore recv.
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

// Scatter copies block i of the root's send to the recv of rank i (MPI_Scatter). All blocks have
// equal length. Ranks other than the root ignore send.
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

// Allgather writes the send blocks of all ranks, which have equal length, to every rank's recv, in
// rank order (MPI_Allgather).
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
// (MPI_Alltoall). All blocks have equal length.
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

// ReduceScatterBlock combines the operands that the ranks pass as send, and writes block i of the
// result to the recv of rank i (MPI_Reduce_scatter_block). If the operation does not commute, the
// operands are in rank order. len(send) is the number of ranks times the length of a block.
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

// ReduceScatter is [ReduceScatterBlock] with blocks of any number of whole elements
// (MPI_Reduce_scatter). counts are the same on all ranks.
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

// Scan combines the operands of ranks 0 to i, in rank order, and writes the result to the recv of
// rank i (MPI_Scan).
func Scan(l Link, cfg *Config, send, recv []byte, op Op) error {
	return scan(l, cfg, send, recv, op, false)
}

// Exscan combines the operands of ranks 0 to i-1, in rank order, and writes the result to the recv
// of rank i. It does not write to the recv of rank 0 (MPI_Exscan).
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

// whole reports whether op.Size is positive and buf consists of whole elements of op.Size bytes.
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

// ownBlock returns part. If part is the same slice as the buffer all, the call is in place, and
// ownBlock returns rank's block of all instead.
func ownBlock(part, all []byte, b blocks, rank int) []byte {
	if same(part, all) && len(part) == len(all) {
		return b.of(all, rank)
	}
	return part
}
