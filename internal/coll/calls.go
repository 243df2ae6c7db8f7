package coll

import (
	"errors"
	"math"
)

// Errors of arguments that this package checks itself. They are local to the
// rank: the caller ends the call on the others.
var (
	ErrRoot   = errors.New("root out of range")
	ErrLength = errors.New("buffer lengths do not fit the call")
)

// The functions below run one collective each: l is this rank's side of it, and
// cfg chooses the algorithm (nil: the defaults). All lengths, counts and
// displacements are bytes; counts and displs have an entry per rank. Every rank
// of the link calls the same function. They block until this rank's part is
// done and its buffers are its own again, unless they return an error: then
// transfers may still be under way, and the caller ends them (see the package
// comment).
//
// A call is in place where send and recv are the same slice; they must not
// overlap otherwise. Where recv is made of one block per rank, the rank's
// operand then stands in its own block (Gather at the root, Allgather), or in
// all blocks (Alltoall); Scatter at the root leaves the root's block where it
// is, and ReduceScatter puts the result at the beginning. An operand that is
// the rank's own block itself is taken in place too.

// Barrier returns when every rank has called it (MPI_Barrier).
func Barrier(l Link, cfg *Config) error {
	if l.Size() == 1 {
		return nil
	}
	return choose(orDefault(cfg), FamilyBarrier, barriers, facts{}.on(l), barrierByDissemination)(l, orDefault(cfg))
}

// SparseBarrier is Barrier by the algorithm in which each rank has to do with the
// fewest others: two, on average. It is for ranks that may not know each other yet,
// since to meet another takes longer than a message.
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

// Reduce leaves in the root's recv the combination of all sends in rank order
// (MPI_Reduce). recv is ignored on the other ranks.
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

// Allreduce leaves in every recv the combination of all sends in rank order
// (MPI_Allreduce). All ranks get the same bits.
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

// Gather puts the blocks of all ranks, which are equally long, one after the
// other into the root's recv (MPI_Gather). recv is ignored on other ranks.
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

// Gatherv is Gather with blocks of any length at any place of recv
// (MPI_Gatherv). counts, displs and recv are ignored on other ranks than root.
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

// Scatter deals out the root's send in equally long blocks (MPI_Scatter). send
// is ignored on other ranks.
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

// Scatterv is Scatter with blocks of any length at any place of send
// (MPI_Scatterv). counts, displs and send are ignored on other ranks than root.
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

// Allgather puts the blocks of all ranks, which are equally long, one after the
// other into every recv (MPI_Allgather).
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

// Allgatherv is Allgather with blocks of any length at any place of recv
// (MPI_Allgatherv). counts are the same on all ranks; displs need not be.
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

// Alltoall sends block i of send to rank i, and puts what comes from rank i
// into block i of recv (MPI_Alltoall).
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

// Alltoallv is Alltoall with blocks of any length at any place (MPI_Alltoallv).
// In place, the counts and displacements of recv hold for both sides.
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

// ReduceScatterBlock combines all sends in rank order and leaves block i of the
// result with rank i (MPI_Reduce_scatter_block). send is as long as recv times
// the ranks. In place recv is the beginning of send.
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

// ReduceScatter is ReduceScatterBlock with blocks of any length
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

// Scan leaves in recv of rank i the combination of the sends of ranks 0 to i
// (MPI_Scan).
func Scan(l Link, cfg *Config, send, recv []byte, op Op) error {
	return scan(l, cfg, send, recv, op, false)
}

// Exscan leaves in recv of rank i the combination of the sends of ranks 0 to
// i-1, and does not touch recv of rank 0 (MPI_Exscan).
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

// whole tells whether buf is made of whole elements.
func whole(op Op, buf []byte) bool { return op.Size > 0 && len(buf)%op.Size == 0 }

// fit tells whether there is a block for each of size ranks within buf.
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

// ownBlock is the rank's block of all where part is all of it, for calls in
// place; otherwise it is part.
func ownBlock(part, all []byte, b blocks, rank int) []byte {
	if same(part, all) && len(part) == len(all) {
		return b.of(all, rank)
	}
	return part
}
