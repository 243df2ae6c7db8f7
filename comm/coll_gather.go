package comm

import "github.com/weft-hpc/weft/internal/coll"

// Gather puts the elements of all ranks one after the other, in rank order,
// into the root's recv (MPI_Gather, MPI 4.1 §6.5). It is collective and blocks
// until this rank's part is done; root and n are the same on all ranks.
//
//	root   send: n elements, recv: ranks × n elements
//	others send: n elements, recv: ignored, may be nil
//
// In place at the root: send is the root's own part of recv, or recv itself,
// which means the same. Errors: ErrRank for a wrong root, ErrCount, ErrType,
// ErrBuffer for slices that overlap otherwise; as all collectives (see
// Barrier).
func Gather[T any](c *Comm, send, recv []T, root int) error {
	return run(gather(c, "Gather", send, recv, root))
}

// Igather is Gather that returns at once; the slices belong to the request
// until it is complete (MPI_Igather).
func Igather[T any](c *Comm, send, recv []T, root int) Request {
	return c.spawn(gather(c, "Igather", send, recv, root))
}

func gather[T any](c *Comm, name string, send, recv []T, root int) (*link, error) {
	l, sb, rb, err := open(c, name, send, recv)
	if err != nil {
		return nil, err
	}
	return l.gather(sb, rb, root)
}

func (l *link) gather(send, recv []byte, root int) (*link, error) {
	err := l.checkRoot(root)
	if err == nil && l.Rank() == root {
		send, err = l.ownBlock("send", send, "recv", recv, root)
	} else {
		recv = nil
	}
	if err != nil {
		return l.refuse(err)
	}
	l.send, l.recv = send, recv
	return l.ready(coll.KindGather, root, len(send))
}

// Gatherv is Gather with counts[i] elements of rank i, which begin at
// recv[displs[i]] (MPI_Gatherv, MPI 4.1 §6.5). Where displs is nil the parts
// lie one after the other and fill recv.
//
//	root   send: counts[root] elements, recv: all parts
//	others send: counts[rank] elements, recv, counts, displs: ignored
//
// Parts must not overlap. It keeps neither counts nor displs. In place at the
// root: as Gather. Errors: those of Gather; ErrCount for counts or
// displacements that are negative, too few or too many, or lead beyond recv.
func Gatherv[T any](c *Comm, send, recv []T, counts, displs []int, root int) error {
	return run(gatherv(c, "Gatherv", send, recv, counts, displs, root))
}

// Igatherv is Gatherv that returns at once; send and recv belong to the
// request until it is complete (MPI_Igatherv).
func Igatherv[T any](c *Comm, send, recv []T, counts, displs []int, root int) Request {
	return c.spawn(gatherv(c, "Igatherv", send, recv, counts, displs, root))
}

func gatherv[T any](c *Comm, name string, send, recv []T, counts, displs []int, root int) (*link, error) {
	l, sb, rb, err := open(c, name, send, recv)
	if err != nil {
		return nil, err
	}
	if err = l.checkRoot(root); err == nil && l.Rank() == root {
		if l.recvCounts, l.recvDispls, err = l.layout("recv", rb, counts, displs); err == nil {
			sb, err = l.ownPart("send", sb, rb, l.recvDispls[root], l.recvCounts[root])
		}
	} else {
		rb = nil
	}
	if err != nil {
		return l.refuse(err)
	}
	l.send, l.recv = sb, rb
	return l.ready(coll.KindGatherv, root, 0)
}

// Scatter deals the root's send out: its i-th block goes to rank i
// (MPI_Scatter, MPI 4.1 §6.6). It is collective and blocks until this rank's
// part is done; root and n are the same on all ranks.
//
//	root   send: ranks × n elements, recv: n elements
//	others send: ignored, may be nil, recv: n elements
//
// In place at the root: recv is the root's own part of send, or send itself;
// then that part stays where it is. Errors: those of Gather.
func Scatter[T any](c *Comm, send, recv []T, root int) error {
	return run(scatter(c, "Scatter", send, recv, root))
}

// Iscatter is Scatter that returns at once; the slices belong to the request
// until it is complete (MPI_Iscatter).
func Iscatter[T any](c *Comm, send, recv []T, root int) Request {
	return c.spawn(scatter(c, "Iscatter", send, recv, root))
}

func scatter[T any](c *Comm, name string, send, recv []T, root int) (*link, error) {
	l, sb, rb, err := open(c, name, send, recv)
	if err != nil {
		return nil, err
	}
	return l.scatter(sb, rb, root)
}

func (l *link) scatter(send, recv []byte, root int) (*link, error) {
	err := l.checkRoot(root)
	if err == nil && l.Rank() == root {
		recv, err = l.ownBlock("recv", recv, "send", send, root)
	} else {
		send = nil
	}
	if err != nil {
		return l.refuse(err)
	}
	l.send, l.recv = send, recv
	return l.ready(coll.KindScatter, root, len(recv))
}

// Scatterv is Scatter with counts[i] elements for rank i, which begin at
// send[displs[i]] (MPI_Scatterv, MPI 4.1 §6.6). Where displs is nil the parts
// lie one after the other and are all of send.
//
//	root   send: all parts, recv: counts[root] elements
//	others send, counts, displs: ignored, recv: counts[rank] elements
//
// It keeps neither counts nor displs. In place at the root: as Scatter.
// Errors: those of Gatherv.
func Scatterv[T any](c *Comm, send []T, counts, displs []int, recv []T, root int) error {
	return run(scatterv(c, "Scatterv", send, counts, displs, recv, root))
}

// Iscatterv is Scatterv that returns at once; send and recv belong to the
// request until it is complete (MPI_Iscatterv).
func Iscatterv[T any](c *Comm, send []T, counts, displs []int, recv []T, root int) Request {
	return c.spawn(scatterv(c, "Iscatterv", send, counts, displs, recv, root))
}

func scatterv[T any](c *Comm, name string, send []T, counts, displs []int, recv []T, root int) (*link, error) {
	l, sb, rb, err := open(c, name, send, recv)
	if err != nil {
		return nil, err
	}
	if err = l.checkRoot(root); err == nil && l.Rank() == root {
		if l.sendCounts, l.sendDispls, err = l.layout("send", sb, counts, displs); err == nil {
			rb, err = l.ownPart("recv", rb, sb, l.sendDispls[root], l.sendCounts[root])
		}
	} else {
		sb = nil
	}
	if err != nil {
		return l.refuse(err)
	}
	l.send, l.recv = sb, rb
	return l.ready(coll.KindScatterv, root, 0)
}

// Allgather puts the elements of all ranks one after the other, in rank order,
// into every recv (MPI_Allgather, MPI 4.1 §6.7). It is collective and blocks;
// n is the same on all ranks.
//
//	send: n elements, recv: ranks × n elements
//
// In place: send is the rank's own part of recv, or recv itself, which means
// the same. Errors: ErrCount, ErrType, ErrBuffer for slices that overlap
// otherwise; as all collectives (see Barrier).
func Allgather[T any](c *Comm, send, recv []T) error {
	return run(allgather(c, "Allgather", send, recv))
}

// Iallgather is Allgather that returns at once; the slices belong to the
// request until it is complete (MPI_Iallgather).
func Iallgather[T any](c *Comm, send, recv []T) Request {
	return c.spawn(allgather(c, "Iallgather", send, recv))
}

func allgather[T any](c *Comm, name string, send, recv []T) (*link, error) {
	l, sb, rb, err := open(c, name, send, recv)
	if err != nil {
		return nil, err
	}
	return l.allgather(sb, rb)
}

func (l *link) allgather(send, recv []byte) (*link, error) {
	send, err := l.ownBlock("send", send, "recv", recv, l.Rank())
	if err != nil {
		return l.refuse(err)
	}
	l.send, l.recv = send, recv
	return l.ready(coll.KindAllgather, 0, len(send))
}

// Allgatherv is Allgather with counts[i] elements of rank i, which begin at
// recv[displs[i]]; counts is the same on all ranks, displs need not be
// (MPI_Allgatherv, MPI 4.1 §6.7). Where displs is nil the parts lie one after
// the other and fill recv.
//
//	send: counts[rank] elements, recv: all parts
//
// Parts must not overlap. It keeps neither counts nor displs. In place: as
// Allgather. Errors: those of Allgather; ErrCount as for Gatherv; ErrMismatch
// where the ranks' counts differ.
func Allgatherv[T any](c *Comm, send, recv []T, counts, displs []int) error {
	return run(allgatherv(c, "Allgatherv", send, recv, counts, displs))
}

// Iallgatherv is Allgatherv that returns at once; send and recv belong to the
// request until it is complete (MPI_Iallgatherv).
func Iallgatherv[T any](c *Comm, send, recv []T, counts, displs []int) Request {
	return c.spawn(allgatherv(c, "Iallgatherv", send, recv, counts, displs))
}

func allgatherv[T any](c *Comm, name string, send, recv []T, counts, displs []int) (*link, error) {
	l, sb, rb, err := open(c, name, send, recv)
	if err != nil {
		return nil, err
	}
	if l.recvCounts, l.recvDispls, err = l.layout("recv", rb, counts, displs); err == nil {
		sb, err = l.ownPart("send", sb, rb, l.recvDispls[l.Rank()], l.recvCounts[l.Rank()])
	}
	if err != nil {
		return l.refuse(err)
	}
	total := 0
	for _, n := range l.recvCounts {
		total += n
	}
	l.send, l.recv = sb, rb
	return l.readyWith(coll.KindAllgatherv, l.recvCounts, total)
}

// readyWith is ready where the ranks agree on the counts of all, total bytes.
func (l *link) readyWith(what coll.Kind, counts []int, total int) (*link, error) {
	l.what = what
	l.sign(what, 0, coll.Fold(counts))
	l.seek(total)
	return l, nil
}
