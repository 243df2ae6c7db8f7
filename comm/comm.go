package comm

import (
	"context"

	"github.com/weft-hpc/weft/internal/mpi"
)

// Comm is a communicator: a group of processes that includes the caller, and a message space of
// its own (MPI 4.1 §7). Messages and collectives of two communicators never mix.
//
// Any number of goroutines may use one communicator at the same time, except for collectives. All
// ranks must start the collectives of a communicator in the same order. If a goroutine starts a
// collective while another goroutine is in a blocking collective of the same communicator, the call
// returns [ErrConcurrent] and revokes the communicator. Goroutines that use collectives at the same
// time need a communicator each; see [Comm.Dup].
//
// On a nil *Comm, on a freed communicator, and on any communicator after Finalize, the calls that
// return an error return [ErrClosed].
type Comm mpi.Comm

func (c *Comm) in() *mpi.Comm { return (*mpi.Comm)(c) }

// Rank returns the rank of the calling process, from 0 to Size()-1 (MPI_Comm_rank). For a nil
// communicator it returns Undefined. Rank is local.
func (c *Comm) Rank() int { return c.in().Rank() }

// Size returns the number of ranks (MPI_Comm_size). For a nil communicator it returns 0. Size is
// local.
func (c *Comm) Size() int { return c.in().Size() }

// Group returns the communicator's group (MPI_Comm_group). For a nil communicator the group is
// empty. Group is local.
func (c *Comm) Group() Group { return Group(c.in().Group()) }

// Transport returns the name of the transport that carries messages to a rank, such as "tcp". For
// the caller's own rank it returns "self". For a rank that c does not have, it returns "".
// Transport is local.
func (c *Comm) Transport(rank int) string { return c.in().Transport(rank) }

// Context returns the context of c: the one passed to Init or WithContext. If that context ends,
// blocking calls on c return its error.
func (c *Comm) Context() context.Context { return c.in().Context() }

// WithContext returns a copy of c with another context. If ctx ends, blocking calls on the copy
// return ctx's error. In all else the copy is the same communicator as c: both share messages,
// collectives and Free.
//
// If ctx ends a receive, a later receive can get the message that the first one has matched, unless
// that message was too long for the first one's buffer. If ctx ends a call while a transfer is in
// progress that cannot be withdrawn, the error holds an [Unfinished], and the transfer uses the
// buffer until Wait of the [Unfinished] returns. If ctx ends a collective, the other ranks cannot
// complete it, so the communicator is revoked. Transfers of that collective that are in progress
// may use its buffers until they complete.
func (c *Comm) WithContext(ctx context.Context) *Comm { return (*Comm)(c.in().WithContext(ctx)) }

// Dup makes a communicator with the processes and the context of c, and a message space of its
// own (MPI_Comm_dup). A library calls Dup on the communicator that a program gives it, so that its
// messages never match the program's. Dup is collective over c and blocks. Errors: as for all
// collectives, see [Comm.Barrier].
func (c *Comm) Dup() (*Comm, error) {
	n, err := c.in().Dup()
	return (*Comm)(n), err
}

// DupWith is [Comm.Dup] with other hints than those of c (MPI_Comm_dup_with_info). All ranks pass
// the same hints. Errors: ErrArg for a hint that does not exist; as for all collectives, see
// [Comm.Barrier].
func (c *Comm) DupWith(hints ...Hint) (*Comm, error) {
	n, err := c.in().DupWith(cast[mpi.Hint](hints)...)
	return (*Comm)(n), err
}

// Idup is [Comm.Dup], except that it does not block (MPI_Comm_idup). The program may use the new
// communicator after the request is complete without an error; before that, calls on the new
// communicator return ErrClosed, and no other goroutine may use it. The new communicator gets the
// attributes that c has when Idup is called.
func (c *Comm) Idup() (*Comm, Request) {
	n, r := c.in().Idup()
	return (*Comm)(n), Request(r)
}

// Self makes a communicator that has only the calling process, with the context of c
// (MPI_COMM_SELF). Self is local. Errors: ErrClosed.
func (c *Comm) Self() (*Comm, error) {
	n, err := c.in().Self()
	return (*Comm)(n), err
}

// Compare compares two communicators (MPI_Comm_compare). The result is Ident if both are the same
// communicator, even with different values of context.Context; Congruent if both have the same
// processes in the same order; Similar if the order differs; Unequal otherwise. A freed
// communicator compares as before. Compare is local.
func (c *Comm) Compare(d *Comm) Comparison { return Comparison(c.in().Compare(d.in())) }

// SetName gives the communicator a name on this rank. The errors of its calls contain the name
// (MPI_Comm_set_name). Other ranks do not get the name, and Dup does not copy it. SetName is local.
func (c *Comm) SetName(name string) { c.in().SetName(name) }

// Name returns the name of the communicator (MPI_Comm_get_name): the name that SetName has set;
// otherwise "world" for the world, and for another communicator a name that is the same on all its
// ranks, such as "comm 0.3". For a nil communicator it is empty. Name is local.
func (c *Comm) Name() string { return c.in().Name() }

// Free frees the communicator (MPI_Comm_free). It is collective over c and blocks until all ranks
// have called it. No other call on c may be in progress. If the communicator was revoked, or one of
// its processes has failed, Free does not wait for the other ranks.
//
// Errors: ErrArg for the world, which Finalize frees; ErrClosed if Free was called before;
// ErrMismatch if ranks have called different collectives and no earlier call has detected it;
// ErrProcFailed, ErrFinalized, or the context's error.
func (c *Comm) Free() error { return c.in().Free() }

// Revoke ends the communicator on all its ranks (ULFM, MPIX_Comm_revoke). Calls that are in
// progress and later calls fail with ErrRevoked, on this rank and on the others. Of the calls that
// communicate, only Free, Agree and Shrink remain possible. Revoke is local and does not block. Any
// number of ranks may call it. Errors: ErrClosed.
//
// If a collective fails, it revokes its communicator with the cause.
func (c *Comm) Revoke() error { return c.in().Revoke() }

// Split makes a communicator for each colour, of the ranks that pass that colour (MPI_Comm_split).
// The new ranks are in the order of key; ranks with the same key keep their order in c. color is
// not negative, or it is Undefined: then the rank is in no new communicator, and both results are
// nil. The new communicator has the context of c. Split is collective over c and blocks.
//
// Errors: ErrArg for any other negative colour; as for all collectives, see [Comm.Barrier].
func (c *Comm) Split(color, key int) (*Comm, error) {
	n, err := c.in().Split(color, key)
	return (*Comm)(n), err
}

// SplitNode makes a communicator for each host, of the ranks on that host (MPI_Comm_split_type with
// MPI_COMM_TYPE_SHARED). The order of the ranks is that of [Comm.Split]. SplitNode is collective
// over c and blocks. Errors: as for all collectives, see [Comm.Barrier].
func (c *Comm) SplitNode(key int) (*Comm, error) {
	n, err := c.in().SplitNode(key)
	return (*Comm)(n), err
}

// Hardware is a kind of hardware that ranks share; see [Comm.SplitHardware].
type Hardware int

// The kinds of hardware, from wide to narrow.
const (
	Host    Hardware = iota // the memory of a host
	Package                 // a socket
	NUMA                    // a NUMA node
	L3Cache                 // a cache of level 3
	Core                    // a physical core
	// Narrower stands for the widest of these kinds for which the ranks of the communicator run on
	// several pieces of hardware. If there is none, no rank gets a new communicator.
	Narrower Hardware = -1
)

// SplitHardware makes a communicator for each piece of hardware of a kind, with the ranks that run
// on this piece (MPI_Comm_split_type with MPI_COMM_TYPE_HW_GUIDED; Narrower:
// MPI_COMM_TYPE_HW_UNGUIDED). With Narrower, both results are nil if there is no narrower kind. A
// rank runs on a piece of hardware if it is bound to hardware threads of this piece only, for
// example by gorun -bind-to. A rank that may run on several pieces is in no new communicator, and
// both results are nil. The same holds on systems other than Linux, except for the kind Host. The
// order of the ranks is that of [Comm.Split]. SplitHardware is collective
// over c and blocks. All ranks pass the same kind.
//
// Errors: ErrArg for a kind that does not exist; as for all collectives, see [Comm.Barrier].
func (c *Comm) SplitHardware(kind Hardware, key int) (*Comm, error) {
	n, err := c.in().SplitHardware(mpi.Hardware(kind), key)
	return (*Comm)(n), err
}

// Create makes a communicator of the processes of g (MPI_Comm_create). It is collective over c and
// blocks: all ranks of c call it. The ranks in g pass the same group. Every other rank passes any
// group that does not contain it, for example the zero Group, and gets nil, nil.
//
// Errors: ErrGroup if g has a process that c does not have, or if the ranks in g passed different
// groups; as for all collectives, see [Comm.Barrier].
func (c *Comm) Create(g Group) (*Comm, error) {
	n, err := c.in().Create(mpi.Group(g))
	return (*Comm)(n), err
}

// CreateGroup makes a communicator of the processes of g (MPI_Comm_create_group). Only these
// processes call it, all with the same group and tag. It blocks. tag is from 0 to 2^30-1. If two
// calls of CreateGroup on c with a common process run at the same time, their tags must differ.
// These tags are independent of the tags of messages.
//
// Errors: ErrGroup if the caller is not in g, if g has a process that c does not have, or if the
// members passed different groups; ErrTag; ErrArg if c is an intercommunicator; ErrProcFailed,
// ErrRevoked, ErrClosed, or the context's error. An error revokes c, except ErrArg, so the other
// members of g get an error, too. A member that has passed another group also revokes the
// communicator that the others may have made.
func (c *Comm) CreateGroup(g Group, tag int) (*Comm, error) {
	n, err := c.in().CreateGroup(mpi.Group(g), tag)
	return (*Comm)(n), err
}
