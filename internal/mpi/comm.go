package mpi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/kernel"
	"github.com/weft-hpc/weft/internal/mpi/agree"
	"github.com/weft-hpc/weft/internal/mpi/arena"
	"github.com/weft-hpc/weft/internal/mpi/bufcheck"
	"github.com/weft-hpc/weft/internal/mpi/calls"
)

// Comm is a communicator: a group of processes that includes the caller, and a message space of its
// own (MPI 4.1 §7). Any number of goroutines may run its methods at the same time, except
// collectives. The collectives of one communicator must start in the same order on all its ranks.
// If a goroutine starts a collective while another goroutine is in a blocking collective of the
// same communicator, the call returns [ErrConcurrent] and revokes the communicator. Goroutines that
// use collectives at the same time need a communicator each; see [Comm.Dup].
//
// On a nil *Comm, on a freed communicator, and on any communicator after Finalize, the calls that
// return an error return [ErrClosed].
type Comm struct {
	s   *state
	ctx context.Context
	// If completed is not nil, this Comm is no communicator, but holds the result of a request that
	// was complete from the start.
	completed *completedRequest
	// If use is not nil, this copy of the Comm was made for one request, and use is the checker's
	// record that the request's buffers are in use.
	use *bufcheck.Operation
	// If cancel is not nil, this copy of the Comm was made for one request of NewRequest, and Cancel
	// of the request calls cancel.
	cancel func()
}

// state holds what all copies of a communicator share on this rank. WithContext makes copies.
//
// Messages of the program and messages of collectives travel in two contexts of the engine: 2·id
// and 2·id+1. An id consists of the world rank of the process that has chosen it (see newID) and a
// number that this process counts up. So it is unique in the job, although only one process chooses
// it, as a rule the communicator's rank 0. The ids of the communicators that Init makes are
// constants.
type state struct {
	job *job
	id  uint64
	// The processes of the communicator, and the rank of this one among them: the ranks of package
	// coll, of the arena and of agreements. Of an intercommunicator, these are the processes of
	// both groups; see intercomm.go.
	group Group
	rank  int
	// The group that the program calls its own, the rank of this process in it, and the group to
	// which it sends messages. Of an intracommunicator, both groups are the field group.
	local, peers Group
	localRank    int
	inter        *coll.Groups // nil: an intracommunicator

	attrs attributes
	hints Hint                   // not written after open
	label atomic.Pointer[string] // the name that SetName has given; nil: none

	window atomic.Bool // the communicator is a window's own
	partMu sync.Mutex
	parts  *state // see partitions; guarded by partMu
	// Of a state that partitions has made: number of tags that this rank has used for partitions.
	nextPart atomic.Int64
	// The communicator whose persistent collective or partitioned messages use this state; nil: the state is
	// that of a communicator of the program or of a window.
	of *state
	// If parent is revoked, this communicator is revoked too. nil: there is no parent. See attach.
	// Guarded by job.stall.mu.
	parent *state

	// The ranks in the job of the processes of the fields group and peers.
	ranks, peerRanks []int

	p2p      *engine.Context   // messages of the program
	recorded uint16            // number of the communicator in the record of this rank
	level    *atomic.Uint64    // 0: calls of the communicator are not recorded with their times
	hidden   bool              // HideCalls was called, before the first call
	coll     *engine.Context   // messages of collectives
	check    *bufcheck.Checker // nil: buffers in use are not checked

	seq        atomic.Uint32 // number of collectives that this rank has started, modulo 2³²
	entered    atomic.Bool   // a goroutine is in a blocking collective, or starts a nonblocking one
	agreements *agree.Comm   // for Agree and Shrink, which have no order relative to collectives
	closed     atomic.Bool   // the communicator, or its window, was freed

	// 1: no link holds the slot, the permission to use the arena; 0: a link holds it. See slot.go.
	slotFree atomic.Uint32
	// If the slot is free, slotLink is a link that no call uses. Only a goroutine that has acquired
	// the slot uses this field.
	slotLink *link
	queued   atomic.Int32                // number of links in queue; written with linkMu held
	arena    atomic.Pointer[arena.Arena] // nil: no collective has needed it yet; arena.None: there is none
	// The topology of the communicator; nil: it has none, or its ranks have made no neighbour
	// collective yet.
	hood atomic.Pointer[Neighborhood]
	// The edges of hood in the arena; nil: no call has needed them yet. Only the holder of the slot
	// uses this field.
	edges *coll.Edges
	// Engine.StateVersion before the last call of Usable for the context coll that returned no
	// error; only the holder of the slot uses it.
	stateVersion uint32

	linkMu sync.Mutex
	links  []*link   // links that no call uses, except slotLink; guarded by linkMu
	all    []*link   // the links that calls use, those in links, and slotLink; guarded by linkMu
	queue  slotQueue // links that wait for the slot, and whether more may; guarded by linkMu

	called calls.Ring // records of the last collectives that this rank has called, for queries
}

// The ids that Init uses, for communicators and for the context of agreements.
const (
	worldID = 0
	agreeID = finalID - 1 // of job.agreeSpace
	finalID = 1<<63 - 1   // of job.final
)

// newState makes a communicator of the ranks of group, in which the caller has the given rank. All
// these ranks pass the same id.
func (j *job) newState(id uint64, group Group, rank int) *state {
	return j.addState(&state{group: group, rank: rank, local: group, peers: group, localRank: rank}, id)
}

// addState completes a state that has its groups, and makes it known to the stall detector.
func (j *job) addState(s *state, id uint64) *state {
	s.open(j, id)
	j.stall.add(s)
	return s
}

// newLike makes a communicator with the groups of s.
func (s *state) newLike(id uint64) *state { return s.job.addState(s.groups(), id) }

// groups returns a state that has only the groups of s.
func (s *state) groups() *state {
	return &state{group: s.group, rank: s.rank, local: s.local, peers: s.peers, localRank: s.localRank, inter: s.inter}
}

// newStateFor is newState for another state of the ranks of s, which depends on s: errors name it as
// s, and it is revoked if s is.
func (s *state) newStateFor(id uint64) *state {
	own := s.groups()
	own.of, own.parent = s, s
	return s.job.addState(own, id)
}

// open sets the fields of a state that has its groups.
func (s *state) open(j *job, id uint64) {
	s.job, s.id, s.check = j, id, j.check
	s.ranks = j.ranksOf(s.group)
	s.peerRanks = s.ranks
	if s.inter != nil {
		s.peerRanks = j.ranksOf(s.peers)
	}
	s.p2p = j.eng.OpenContext(2*id, s.peerRanks)
	// The engine revokes a communicator on the processes of the context that was opened last.
	s.coll = j.eng.OpenContext(2*id+1, s.ranks)
	s.recordMessages()
	s.agreements = &agree.Comm{ID: id, Rank: s.rank, Ranks: s.ranks, Acknowledged: s.acknowledged}
	s.releaseSlot(s.freeLinkLocked())
	if id == finalID || len(s.ranks) == 1 || j.coll.SharedBytes == 0 || !j.shares {
		s.arena.Store(arena.None) // each condition is the same on all ranks
	}
}

// acknowledged returns the failed ranks of s.group that AckFailed has acknowledged.
func (s *state) acknowledged() []int {
	if s.inter != nil {
		return s.coll.Acknowledged()
	}
	return s.p2p.Acknowledged()
}

// newID returns an unused id for a communicator that this process makes with others.
func (j *job) newID() uint64 { return uint64(j.world.Rank)<<32 | uint64(j.nextID.Add(1)) }

// live returns the state of the communicator, or ErrClosed if the communicator cannot be used.
func (c *Comm) live() (*state, error) {
	if c == nil || c.s == nil || c.s.closed.Load() || c.s.job.closed.Load() {
		return nil, c.whyClosed()
	}
	return c.s, nil
}

func (c *Comm) whyClosed() error {
	switch {
	case c == nil || c.s == nil:
		return fmt.Errorf("%w: the communicator is nil", ErrClosed)
	case c.s.job.closed.Load():
		return fmt.Errorf("%w: the job was finalized", ErrClosed)
	}
	return fmt.Errorf("%w: the communicator was freed", ErrClosed)
}

// name returns the name of the communicator in errors, and an empty text for a nil communicator.
func (c *Comm) name() string {
	if c == nil || c.s == nil {
		return ""
	}
	return c.s.name()
}

func (s *state) name() string {
	if s.of != nil {
		return s.of.name()
	}
	if name := s.label.Load(); name != nil {
		return *name
	}
	if s.window.Load() {
		return commName("win", s.id)
	}
	return commName("comm", s.id)
}

// commName returns the name of the communicator with the id. kind is "comm" or "win".
func commName(kind string, id uint64) string {
	if id == worldID || id == finalID {
		return "world"
	}
	if id == connectedID {
		return "connection"
	}
	return fmt.Sprintf("%s %d.%d", kind, id>>32, uint32(id))
}

// Rank implements comm.Comm.Rank, which documents the call.
func (c *Comm) Rank() int {
	if c == nil || c.s == nil {
		return Undefined
	}
	return c.s.localRank
}

// Size implements comm.Comm.Size, which documents the call.
func (c *Comm) Size() int {
	if c == nil || c.s == nil {
		return 0
	}
	return len(c.s.local.ranks)
}

// Group implements comm.Comm.Group, which documents the call.
func (c *Comm) Group() Group {
	if c == nil || c.s == nil {
		return Group{}
	}
	return c.s.local
}

// Transport implements comm.Comm.Transport, which documents the call.
func (c *Comm) Transport(rank int) string {
	if c == nil || c.s == nil || uint(rank) >= uint(len(c.s.peerRanks)) {
		return ""
	}
	peer := c.s.peerRanks[rank]
	if peer == c.s.job.world.Rank {
		return "self"
	}
	return c.s.job.eng.Transport(peer)
}

// Context implements comm.Comm.Context, which documents the call.
func (c *Comm) Context() context.Context {
	if c == nil || c.ctx == nil {
		return context.Background()
	}
	return c.ctx
}

// WithContext implements comm.Comm.WithContext, which documents the call.
func (c *Comm) WithContext(ctx context.Context) *Comm {
	if c == nil {
		return nil
	}
	if ctx == nil {
		ctx = context.Background()
	}
	return &Comm{s: c.s, ctx: ctx}
}

// Dup implements comm.Comm.Dup, which documents the call.
func (c *Comm) Dup() (*Comm, error) {
	s, id, err := c.agreeOnID("Dup", calls.KindDup)
	if err != nil {
		return nil, err
	}
	return c.duplicate(s, id, s.hints), nil
}

// agreeOnID returns the id of a new communicator of all ranks. It is collective, and part of the call
// with this name and kind. s is the state of c.
func (c *Comm) agreeOnID(name string, kind coll.Kind) (s *state, id uint64, err error) {
	l, err := c.begin(name)
	if err != nil {
		return nil, 0, err
	}
	s = l.s
	buf := l.dupID(kind)
	err = l.perform()
	id = getUint64(buf)
	return s, id, l.end(err)
}

// dupID makes the collective of l the one by which all ranks get the id of a new communicator, and
// returns the memory that has the id after the collective. kind is the kind of the call. The collective is
// the maximum of an id of rank 0 and the zeros of the others. So no rank gets the id before all ranks
// have made the same call. After a Bcast, rank 0 could have the new communicator although another rank has
// made another call.
func (l *link) dupID(kind coll.Kind) []byte {
	send, recv := l.Scratch(8), l.Scratch(8)
	id := uint64(0)
	if l.s.rank == 0 {
		id = l.s.job.newID()
	}
	putUint64(send, id)
	l.what, l.send, l.recv = coll.KindAllreduce, send, recv
	greater, _ := kernel.For(kernel.Max, kernel.Uint64)
	l.op = coll.Op{Size: greater.Size, Commutes: true, Reduce2: greater.Reduce2, Reduce3: greater.Reduce3}
	l.sign(kind, 0, 0)
	return recv
}

// Free implements comm.Comm.Free, which documents the call.
func (c *Comm) Free() error {
	s, err := c.live()
	if err != nil {
		return c.fail("Free", noRank, noRank, err)
	}
	if s.id == worldID {
		return c.fail("Free", noRank, noRank, fmt.Errorf("%w: the world is freed by Finalize", ErrArg))
	}
	s.attrs.free()
	if err := s.p2p.FlushBuffered(c.ctx); err != nil && isContext(err) {
		return c.fail("Free", noRank, noRank, err)
	}
	if s.coll.Err() == nil {
		err = c.syncFree()
		if errors.Is(err, ErrRevoked) {
			err = nil
		} else if err == nil {
			s.job.agreements.Forget(s.id)
		}
	}
	if !s.closed.CompareAndSwap(false, true) {
		return c.fail("Free", noRank, noRank, ErrClosed)
	}
	s.closePartitions()
	s.shut()
	return err
}

// shut gives up what a closed communicator has on this rank.
func (s *state) shut() {
	s.job.stall.remove(s)
	s.p2p.Close()
	s.coll.Close()
	s.unrecordMessages()
	s.job.released()
}

// syncFree blocks until all ranks have called Free, and recycles the arena. Before that it waits
// until the collectives that this rank has started have left the arena.
func (c *Comm) syncFree() error {
	s := c.s
	if err := s.closeSlot(c.Context()); err != nil {
		err = c.fail("Free", noRank, noRank, err)
		if isContext(err) {
			s.revoke(err)
		}
		return err
	}
	// After the barrier below all ranks have finished their collectives, as arenaMismatch requires.
	if a := s.arena.Load(); a != nil && a != arena.None {
		if err := run(barrier(c, "Free", calls.KindLast)); err != nil {
			return err
		}
	}
	differs := s.arenaMismatch()
	if err := run(barrier(c, "Free", calls.KindFree)); err != nil {
		return err
	}
	s.recycleArena()
	return c.fail("Free", noRank, noRank, errors.Join(s.leftover(), differs))
}

// arenaMismatch returns an error if a rank of this host has made other collectives in the arena
// than this rank. The caller makes sure that all ranks have finished their collectives.
func (s *state) arenaMismatch() error {
	a := s.arena.Load()
	if a == nil || a == arena.None {
		return nil
	}
	if rank, ok := a.Host.FindMismatch(); ok {
		return fmt.Errorf("%w: %s called a collective that this rank did not call, or called with other arguments", ErrMismatch, s.rankName(a.Members[rank]))
	}
	return nil
}

// leftover returns an error if a message of a collective has arrived that this rank did not
// receive. Then the ranks called different collectives, or passed different arguments, and no rank
// had to wait for another.
func (s *state) leftover() error {
	st, ok, err := s.coll.Iprobe(engine.Env{Peer: engine.AnySource, Tag: engine.AnyTag, NoQuery: true})
	switch {
	case errors.Is(err, ErrFinalized), errors.Is(err, ErrProcFailed):
		// There is no message. A rank that has left the barrier before may have ended.
		return nil
	case err != nil || !ok:
		return err
	}
	return fmt.Errorf("%w: %s sent a message of a collective that this rank did not call, or called with other arguments", ErrMismatch, s.rankName(st.Source))
}

// Revoke implements comm.Comm.Revoke, which documents the call.
func (c *Comm) Revoke() error {
	s, err := c.live()
	if err != nil {
		return c.fail("Revoke", noRank, noRank, err)
	}
	s.revoke(s.calledRevoke())
	return nil
}

// calledRevoke returns the cause of a revocation by the program.
func (s *state) calledRevoke() error {
	return fmt.Errorf("rank %d of the world called Revoke", s.job.world.Rank)
}

// revoke revokes the communicator on all ranks. The errors of their calls then contain the text of
// cause.
func (s *state) revoke(cause error) {
	s.coll.Revoke(cause) // this also revokes p2p, the other context of the communicator
}
