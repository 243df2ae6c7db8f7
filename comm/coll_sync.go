package comm

import "github.com/weft-hpc/weft/internal/coll"

// Barrier blocks until every rank of c has called it (MPI_Barrier, MPI 4.1
// §6.3). It is collective.
//
// Errors, as of every collective: ErrMismatch where ranks call different
// collectives, ErrProcFailed, ErrRevoked, ErrClosed, the context's. An error
// on one rank, wrong arguments too, is an error on all: unless the communicator is
// nil or freed, c is revoked with the cause.
//
// Hot path: no allocation in steady state.
func Barrier(c *Comm) error { return run(barrier(c, "Barrier", coll.KindBarrier)) }

// Ibarrier is Barrier that returns at once; the request is complete when every
// rank has called it (MPI_Ibarrier, MPI 4.1 §6.12.1).
func Ibarrier(c *Comm) Request { return c.spawn(barrier(c, "Ibarrier", coll.KindBarrier)) }

// barrier with the signature of another call, which is a barrier to the
// algorithms.
func barrier(c *Comm, name string, sign coll.Kind) (*link, error) {
	l, err := c.begin(name)
	if err != nil {
		return nil, err
	}
	l.what = coll.KindBarrier
	l.sign(sign, 0, 0)
	if sign == coll.KindBarrier || sign == kindFence { // after the others arenas go, and who differs is looked at
		l.seek(0)
	}
	return l, nil
}

// Bcast copies the root's buf into that of every rank and blocks until this
// rank's is filled, or may be used again (MPI_Bcast, MPI 4.1 §6.4). It is
// collective; root and len(buf) are the same on all ranks.
//
//	root   buf: n elements, sent
//	others buf: n elements, received
//
// Errors: ErrRank for a wrong root, ErrType, ErrCount where the ranks' counts
// differ, ErrMismatch where they differ and it shows only as that; as all
// collectives (see Barrier).
//
// Hot path: no allocation in steady state.
func Bcast[T any](c *Comm, buf []T, root int) error { return run(bcast(c, "Bcast", buf, root)) }

// Ibcast is Bcast that returns at once; buf belongs to the request until it is
// complete (MPI_Ibcast).
func Ibcast[T any](c *Comm, buf []T, root int) Request { return c.spawn(bcast(c, "Ibcast", buf, root)) }

func bcast[T any](c *Comm, name string, buf []T, root int) (*link, error) {
	l, b, _, err := open(c, name, buf, nil)
	if err != nil {
		return nil, err
	}
	return l.bcast(b, root)
}

func (l *link) bcast(buf []byte, root int) (*link, error) {
	if err := l.checkRoot(root); err != nil {
		return l.refuse(err)
	}
	l.recv = buf
	return l.ready(coll.KindBcast, root, len(buf))
}
