package comm

import (
	"context"

	"github.com/weft-hpc/weft/internal/mpi"
)

// Comm is a communicator: a group of processes that includes the caller, and a message
// space of its own (MPI 4.1 §7). Any number of goroutines may run its methods, and
// functions that take it, at the same time, except collectives. The collectives of one
// communicator must start in the same order on all its ranks. If a goroutine starts a
// collective while another goroutine is in a blocking collective of the same
// communicator, it gets [ErrConcurrent]. Goroutines that use collectives at the same time
// need a communicator each; see [Comm.Dup].
//
// Calls on a nil *Comm, on a freed communicator, and on any communicator after Finalize
// return [ErrClosed].
type Comm mpi.Comm

func (c *Comm) in() *mpi.Comm { return (*mpi.Comm)(c) }

// Rank is the calling process's rank, from 0 to Size()-1; Undefined for a nil
// communicator (MPI_Comm_rank). It is local.
func (c *Comm) Rank() int { return c.in().Rank() }

// Size is the number of ranks; 0 for a nil communicator (MPI_Comm_size). It is
// local.
func (c *Comm) Size() int { return c.in().Size() }

// Group is the communicator's group (MPI_Comm_group); empty for a nil
// communicator. It is local.
func (c *Comm) Group() Group { return Group(c.in().Group()) }

// Transport is the name of the transport that leads to a rank, as transport.use
// knows it, such as "tcp"; "self" for the caller's own rank, whose messages take
// none. It is empty for a rank that c does not have. It is local.
func (c *Comm) Transport(rank int) string { return c.in().Transport(rank) }

// Context is the context whose end ends the blocking calls on c: what Init or
// WithContext was given.
func (c *Comm) Context() context.Context { return c.in().Context() }

// WithContext returns a shallow copy of c. If ctx ends, blocking calls on the copy return
// ctx's error. Otherwise the two are the same communicator: they share messages,
// collectives and Free.
//
// If ctx ends a receive, no message is lost: a later receive gets it. If a transfer has
// begun and goes on, the error holds an [Unfinished], and the transfer uses the buffer
// until [Unfinished.Wait] returns. If ctx ends a collective, the other ranks cannot
// complete it, and the communicator is revoked; transfers that have begun may use the
// collective's buffers until they complete.
func (c *Comm) WithContext(ctx context.Context) *Comm { return (*Comm)(c.in().WithContext(ctx)) }

// Dup makes a communicator of the same processes with a message space of its
// own, and the context of c (MPI_Comm_dup). It is collective over c and
// blocks. Libraries dup the communicator that they are handed, so that their
// messages cannot meet the program's. Errors: as all collectives.
func (c *Comm) Dup() (*Comm, error) {
	n, err := c.in().Dup()
	return (*Comm)(n), err
}

// Free gives the communicator up (MPI_Comm_free). It is collective over c and
// blocks until every rank has called it, so that no message is left behind;
// calls on c that are under way must have ended. A communicator that was
// revoked, or that has lost a process, is given up at once. The world is given
// up by Finalize: Free of it is ErrArg. A second Free is ErrClosed. ErrMismatch
// tells that ranks called different collectives, and no call had noticed.
func (c *Comm) Free() error { return c.in().Free() }

// Revoke ends the communicator on all its ranks: every call on it that is
// under way and every later one, here and elsewhere, fails with ErrRevoked.
// Only Free may still be called. It is local, does not block, and may be
// called by any number of ranks (ULFM, MPIX_Comm_revoke).
//
// A collective that fails revokes its communicator by itself, with the cause.
func (c *Comm) Revoke() error { return c.in().Revoke() }

// Split makes communicators of the ranks of c that give the same colour, in
// the order of key, and of c's ranks where keys are equal (MPI_Comm_split).
// The colour is not negative, or Undefined for no new communicator: then both
// results are nil. It is collective over c and blocks. The new communicator
// has the context of c. Errors: ErrArg for another negative colour; as all
// collectives.
func (c *Comm) Split(color, key int) (*Comm, error) {
	n, err := c.in().Split(color, key)
	return (*Comm)(n), err
}

// SplitNode makes communicators of the ranks that share memory: those of one
// host, ordered as by Split (MPI_Comm_split_type with
// MPI_COMM_TYPE_SHARED). It is collective over c and blocks.
func (c *Comm) SplitNode(key int) (*Comm, error) {
	n, err := c.in().SplitNode(key)
	return (*Comm)(n), err
}

// Create makes a communicator of the processes of g (MPI_Comm_create). It is
// collective over c and blocks: all ranks of c call it, those of a group with
// the same group, the others with any group that they are not in, such as the
// zero Group; they get nil, nil. Errors: ErrGroup where g has a process that c
// has not, or its members gave different groups; as all collectives.
func (c *Comm) Create(g Group) (*Comm, error) {
	n, err := c.in().Create(mpi.Group(g))
	return (*Comm)(n), err
}

// CreateGroup makes a communicator of the processes of g; only they call it,
// all with the same group and tag (MPI_Comm_create_group). It blocks. Calls
// that run at once must have different tags or no process in common; the tags
// are not those of messages. Errors: ErrGroup where the caller is not in g, g
// has a process that c has not, or the members gave different groups; ErrTag;
// ErrProcFailed, ErrRevoked, ErrClosed, the context's. They revoke c, except
// for wrong arguments.
func (c *Comm) CreateGroup(g Group, tag int) (*Comm, error) {
	n, err := c.in().CreateGroup(mpi.Group(g), tag)
	return (*Comm)(n), err
}
