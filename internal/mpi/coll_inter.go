package mpi

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi/calls"
)

// Collectives of intercommunicators
//
// The function that starts a collective, such as Comm.gather, calls the function of this file with
// its arguments if the communicator is an intercommunicator. The arguments have one block for each
// rank of the remote group, except those of ReduceScatter. Package coll has the algorithms; see
// coll/inter.go. A Barrier does not use this file: it is a barrier of all ranks of both groups.

// others returns the number of ranks with which a rank exchanges blocks: the size of the
// communicator, or that of the remote group.
func (l *link) others() int { return len(l.s.peerRanks) }

// isRoot reports whether the caller is the root of a collective.
func (l *link) isRoot() bool {
	if l.inter {
		return l.root == Root
	}
	return l.Rank() == l.root
}

// interReady does what ready does.
func (l *link) interReady(what coll.Kind, root, count int) (*link, error) {
	l.what, l.root, l.inter = what, root, true
	if root == ProcNull { // the rank takes no part, so there is no fingerprint
		l.signed, l.sig, l.env.Sig, l.unrecorded = calls.Call{What: what, Root: calls.NoPart}, 0, 0, true
		return l, nil
	}
	l.sign(what, l.rootInWorld(root), count)
	if l.sendViews != nil {
		if err := l.pack(); err != nil {
			return l.refuse(err)
		}
	}
	return l, nil
}

// rootInWorld returns the world rank of a root, which both groups know. It returns 0 for a
// collective without a root.
func (l *link) rootInWorld(root int) int {
	switch l.what {
	case coll.KindBcast, coll.KindReduce, coll.KindGather, coll.KindGatherv, coll.KindScatter, coll.KindScatterv:
	default:
		return 0
	}
	if root == Root {
		return l.s.ranks[l.s.rank]
	}
	return l.s.peerRanks[root]
}

// openRooted is open for a rooted collective over elements of type t. Between two groups, the root uses a
// buffer of type atRoot instead, and the rest of its group uses none. atRoot is nil if the root has passed
// no such buffer; the call returns an error for that later.
func (c *Comm) openRooted(name string, t *elem.Type, root int, atRoot *elem.Type) (*link, error) {
	if c != nil && c.s != nil && c.s.inter != nil {
		switch {
		case root == Root && atRoot != nil:
			t = atRoot
		case root == Root || root == ProcNull:
			t = elem.Of[byte]()
		}
	}
	return c.open(name, t)
}

// firstType returns the type of the elements of the first view, or nil if there is none.
func firstType(views []elem.Buffer) *elem.Type {
	if len(views) == 0 {
		return nil
	}
	return views[0].Type
}

// rooted starts a rooted collective. On the root, atRoot prepares the buffers, and on the ranks of
// the other group, elsewhere does. The other ranks of the root's group take no part.
func (l *link) rooted(what coll.Kind, root int, atRoot func() error, elsewhere func()) (*link, error) {
	n := l.others()
	var err error
	switch {
	case root == ProcNull:
	case root == Root:
		err = atRoot()
	case uint(root) < uint(n):
		elsewhere()
	default:
		err = fmt.Errorf("%w: root %d of an intercommunicator whose remote group has %d ranks", ErrRank, root, n)
	}
	if err != nil {
		return l.refuse(err)
	}
	count := 0 // in bytes; 0 if ranks may pass different ones
	switch what {
	case coll.KindBcast, coll.KindReduce:
		count = max(len(l.send), len(l.recv))
	case coll.KindGather:
		count = max(len(l.send), len(l.recv)/n)
	case coll.KindScatter:
		count = max(len(l.recv), len(l.send)/n)
	default:
	}
	return l.interReady(what, root, count)
}

func (l *link) interBcast(b elem.Buffer, root int) (*link, error) {
	return l.rooted(coll.KindBcast, root,
		func() error { l.recv = l.packed(b); return nil },
		func() { l.recv = l.unpacked(b) })
}

func (l *link) interGather(send, recv []byte, root int) (*link, error) {
	return l.rooted(coll.KindGather, root, func() (err error) {
		l.recv = recv
		l.recvCounts, l.recvDispls, err = l.equalBlocks("recv", recv, l.others())
		return err
	}, func() { l.send = send })
}

func (l *link) interGatherv(send, recv []byte, counts, displs []int, root int) (*link, error) {
	return l.rooted(coll.KindGatherv, root, func() (err error) {
		l.recv = recv
		l.recvCounts, l.recvDispls, err = l.layout("recv", recv, counts, displs, l.others(), "rank")
		return err
	}, func() { l.send = send })
}

func (l *link) interGatherView(send elem.Buffer, recv []elem.Buffer, root int) (*link, error) {
	return l.rooted(coll.KindGatherv, root,
		func() error { return l.recvParts(recv) },
		func() { l.send = l.packed(send) })
}

func (l *link) interScatter(send, recv []byte, root int) (*link, error) {
	return l.rooted(coll.KindScatter, root, func() (err error) {
		l.send = send
		l.sendCounts, l.sendDispls, err = l.equalBlocks("send", send, l.others())
		return err
	}, func() { l.recv = recv })
}

func (l *link) interScatterv(send []byte, counts, displs []int, recv []byte, root int) (*link, error) {
	return l.rooted(coll.KindScatterv, root, func() (err error) {
		l.send = send
		l.sendCounts, l.sendDispls, err = l.layout("send", send, counts, displs, l.others(), "rank")
		return err
	}, func() { l.recv = recv })
}

func (l *link) interScatterView(send []elem.Buffer, recv elem.Buffer, root int) (*link, error) {
	return l.rooted(coll.KindScatterv, root,
		func() error { return l.sendParts(send) },
		func() { l.recv = l.unpacked(recv) })
}

// interAllgather starts an Allgather or Allgatherv. counts is nil for an Allgather. The counts of
// the two groups are independent of each other, so ranks cannot compare them.
func (l *link) interAllgather(what coll.Kind, send, recv []byte, counts, displs []int) (*link, error) {
	var err error
	if what == coll.KindAllgather {
		l.recvCounts, l.recvDispls, err = l.equalBlocks("recv", recv, l.others())
	} else {
		l.recvCounts, l.recvDispls, err = l.layout("recv", recv, counts, displs, l.others(), "rank")
	}
	if err == nil && elem.Overlap(send, recv) {
		err = ErrBuffer
	}
	if err != nil {
		return l.refuse(err)
	}
	l.send, l.recv = send, recv
	return l.interReady(what, 0, 0)
}

func (l *link) interAllgatherView(send elem.Buffer, recv []elem.Buffer) (*link, error) {
	if err := l.recvParts(recv); err != nil {
		return l.refuse(err)
	}
	l.send = l.packed(send)
	return l.interReady(coll.KindAllgatherv, 0, 0)
}

func (l *link) interAlltoall(send, recv []byte) (*link, error) {
	var err error
	if l.sendCounts, l.sendDispls, err = l.equalBlocks("send", send, l.others()); err == nil {
		l.recvCounts, l.recvDispls, err = l.equalBlocks("recv", recv, l.others())
	}
	if err == nil && elem.Overlap(send, recv) {
		err = ErrBuffer
	}
	if err != nil {
		return l.refuse(err)
	}
	l.send, l.recv = send, recv
	return l.interReady(coll.KindAlltoall, 0, 0)
}

func (l *link) interAlltoallv(send []byte, sendcounts, senddispls []int, recv []byte, recvcounts, recvdispls []int) (*link, error) {
	var err error
	if l.sendCounts, l.sendDispls, err = l.layout("send", send, sendcounts, senddispls, l.others(), "rank"); err == nil {
		l.recvCounts, l.recvDispls, err = l.layout("recv", recv, recvcounts, recvdispls, l.others(), "rank")
	}
	if err == nil && elem.Overlap(send, recv) {
		err = ErrBuffer
	}
	if err != nil {
		return l.refuse(err)
	}
	l.send, l.recv = send, recv
	return l.interReady(coll.KindAlltoallv, 0, 0)
}

// interReduce starts a Reduce or Allreduce.
func (l *link) interReduce(what coll.Kind, send, recv []byte, root int) (*link, error) {
	switch what {
	case coll.KindReduce:
		return l.rooted(what, root, func() error { l.recv = recv; return nil }, func() { l.send = send })
	case coll.KindAllreduce:
		if err := l.checkPair(send, recv); err != nil {
			return l.refuse(err)
		}
		l.send, l.recv = send, recv
		return l.interReady(what, 0, len(send))
	default:
		return l.refuse(fmt.Errorf("%w: an intercommunicator has no order of its ranks for a scan", ErrArg))
	}
}

// interReduceScatter starts a ReduceScatterBlock or ReduceScatter. counts, in elements, has the
// length of each block of the caller's group; nil: the blocks are equally long.
func (l *link) interReduceScatter(what coll.Kind, send, recv []byte, counts []int) (*link, error) {
	var err error
	if n := len(l.s.local.ranks); what == coll.KindReduceScatterBlock {
		l.recvCounts, l.recvDispls, err = l.equalBlocks("send", send, n)
	} else {
		l.recvCounts, l.recvDispls, err = l.layout("send", send, counts, nil, n, "rank")
	}
	if err == nil && len(recv) != l.recvCounts[l.s.localRank] {
		err = l.wrongCount("recv", len(recv), l.recvCounts[l.s.localRank])
	}
	if err == nil && elem.Overlap(send, recv) {
		err = ErrBuffer
	}
	if err != nil {
		return l.refuse(err)
	}
	l.send, l.recv = send, recv
	return l.interReady(what, 0, len(send))
}

// equalBlocks returns the counts and displacements, in bytes, of n equal blocks of buf, in scratch
// memory. name is the name of buf in errors.
func (l *link) equalBlocks(name string, buf []byte, n int) (counts, displs []int, err error) {
	size := max(l.elem, 1)
	if len(buf)/size%n != 0 {
		return nil, nil, fmt.Errorf("%w: %s has %d elements, which is not a multiple of %d ranks", ErrCount, name, len(buf)/size, n)
	}
	words := elem.Slice[int](l.Scratch(2 * n * elem.SizeOf[int]()))
	counts, displs = words[:n:n], words[n:]
	for i := range n {
		counts[i], displs[i] = len(buf)/n, i*(len(buf)/n)
	}
	return counts, displs, nil
}

// executeInter runs the algorithm of a collective between the groups of an intercommunicator.
func (l *link) executeInter() error {
	if l.root == ProcNull {
		return nil
	}
	if l.between == nil {
		l.between = &coll.Between{Link: l, Groups: *l.s.inter}
	}
	b, cfg := l.between, l.s.job.coll
	switch l.what {
	case coll.KindBcast:
		return b.Bcast(cfg, l.recv, l.root)
	case coll.KindGather, coll.KindGatherv:
		return b.Gatherv(cfg, l.send, l.recv, l.recvCounts, l.recvDispls, l.root)
	case coll.KindScatter, coll.KindScatterv:
		return b.Scatterv(cfg, l.send, l.sendCounts, l.sendDispls, l.recv, l.root)
	case coll.KindAllgather, coll.KindAllgatherv:
		return b.Allgatherv(cfg, l.send, l.recv, l.recvCounts, l.recvDispls)
	case coll.KindAlltoall, coll.KindAlltoallv:
		return b.Alltoallv(l.send, l.sendCounts, l.sendDispls, l.recv, l.recvCounts, l.recvDispls)
	case coll.KindReduce:
		return b.Reduce(cfg, l.send, l.recv, l.op, l.root)
	case coll.KindAllreduce:
		return b.Allreduce(cfg, l.send, l.recv, l.op)
	case coll.KindReduceScatterBlock, coll.KindReduceScatter:
		return b.ReduceScatter(cfg, l.send, l.recv, l.recvCounts, l.recvDispls, l.op)
	default:
		return fmt.Errorf("%w: collective %d between two groups", ErrNotSupported, l.what)
	}
}
