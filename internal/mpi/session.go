package mpi

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/kernel"
	"github.com/weft-hpc/weft/internal/mpi/calls"
)

// Sessions (MPI 4.1 §11.3)
//
// A session is access to the job of this process that needs no other part of the program: not the
// world, and no call of Init. All sessions of a process use its one job:
//
//	the first Open, if Init was not called ─► starts the job       ─► Group, Comm, …
//	a further Open, or Open after Init     ─► uses the same job    ─► Group, Comm, …
//	the last Close, if Init was not called ─► pauses the job: the process may end
//	Open or Init after that                ─► resumes the job
//
// Close is local, because the processes may open and close sessions in different orders; only the last one
// waits, for the ends of connections with other jobs. So the engine of a paused job stays open. If the process then ends, the other processes regard it as
// failed. That has no effect on them, because they have freed the communicators that they had in
// common with it. Only the processes of its group make a communicator of a session.

// Session is the type behind comm.Session.
type Session struct {
	j      *job
	ctx    context.Context
	closed atomic.Bool
	own    bool // Close counts it
}

// sessions holds the sessions of the job that Open has started.
var sessions struct {
	sync.Mutex
	job    *job // nil: Open has started no job, or Init has returned its world
	open   int  // number of open sessions
	paused bool
}

// resume resumes the job of the sessions if it is paused. The caller holds the mutex.
func resume(ctx context.Context) error {
	if !sessions.paused {
		return nil
	}
	if err := sessions.job.world.Resume(ctx); err != nil {
		return err
	}
	sessions.paused = false
	sessions.job.profiler.Resume()
	return nil
}

// Open implements comm.Open, which documents the call.
func Open(ctx context.Context) (*Session, error) {
	if ctx == nil {
		ctx = context.Background()
	}
	sessions.Lock()
	defer sessions.Unlock()
	j := ownJob.Load()
	if j == nil {
		c, err := initOwn(ctx, &Setup{})
		if err != nil {
			return nil, renamed(err, "Open")
		}
		j = c.s.job
		sessions.job, sessions.open, sessions.paused = j, 0, false
	}
	if sessions.job == j {
		if err := resume(ctx); err != nil {
			return nil, (*Session)(nil).fail("Open", err)
		}
		sessions.open++
	}
	return &Session{j: j, ctx: ctx, own: sessions.job == j}, nil
}

// takeJob returns the world of a job that Open has started, if Init has not returned it before, and
// nil if there is none.
func takeJob(ctx context.Context) (*Comm, error) {
	sessions.Lock()
	defer sessions.Unlock()
	j := sessions.job
	if j == nil || j.closed.Load() { // Finalize of a communicator of a session may have ended the job
		return nil, nil
	}
	if err := resume(ctx); err != nil {
		return nil, err
	}
	sessions.job = nil // from now on Finalize ends the job, and Close does not pause it
	return &Comm{s: j.first, ctx: ctx}, nil
}

// Session implements comm.Comm.Session, which documents the call.
func (c *Comm) Session() *Session {
	if c == nil || c.s == nil {
		return nil
	}
	return &Session{j: c.s.job.home, ctx: c.Context()}
}

// Close implements comm.Session.Close, which documents the call.
func (s *Session) Close() error {
	if _, err := s.live("Close"); err != nil {
		return err
	}
	if !s.closed.CompareAndSwap(false, true) || !s.own {
		return nil
	}
	sessions.Lock()
	defer sessions.Unlock()
	var ended error
	// After Close of the last session the process may end, so it could not end a connection any more. While
	// Close waits, other goroutines may open and close sessions.
	for sessions.open == 1 && sessions.job == s.j && s.j.connections.anyFreed() {
		sessions.Unlock()
		ended = errors.Join(ended, s.j.connections.awaitFreed(s.ctx))
		sessions.Lock()
	}
	if sessions.open--; sessions.open > 0 || sessions.job != s.j {
		return s.fail("Close", ended)
	}
	sessions.paused = true
	s.j.profiler.Stop() // the process may end from now on
	flushed := s.j.eng.Flush(s.ctx)
	return s.fail("Close", errors.Join(ended, flushed, s.j.world.Pause(s.j.eng.Account())))
}

// live returns the job of the session, or the error of the call op if the session cannot be used.
func (s *Session) live(op string) (*job, error) {
	switch {
	case s == nil:
		return nil, s.fail(op, fmt.Errorf("%w: the session is nil", ErrClosed))
	case s.j.closed.Load():
		return nil, s.fail(op, fmt.Errorf("%w: the job was finalized", ErrClosed))
	case s.closed.Load():
		return nil, s.fail(op, fmt.Errorf("%w: the session was closed", ErrClosed))
	}
	return s.j, nil
}

func (s *Session) fail(op string, err error) error {
	return (*Comm)(nil).fail("Session."+op, noRank, noRank, err)
}

// The names of process sets.
const (
	psetWorld = "mpi://WORLD" // all processes of the job
	psetSelf  = "mpi://SELF"  // the caller
	psetHost  = "weft://HOST" // the processes of the caller's host
	psetApp   = "weft://APP/" // followed by the number of a program: the processes that run it
)

// Psets implements comm.Session.Psets, which documents the call.
func (s *Session) Psets() ([]string, error) {
	j, err := s.live("Psets")
	if err != nil {
		return nil, err
	}
	list := []string{psetWorld, psetSelf, psetHost}
	if w := j.world; w.AppOf != nil {
		list = append(list, psetApp+strconv.Itoa(w.AppNum))
	}
	return list, nil
}

// Group implements comm.Session.Group, which documents the call.
func (s *Session) Group(pset string) (Group, error) {
	j, err := s.live("Group")
	if err != nil {
		return Group{}, err
	}
	w := j.world
	switch pset {
	case psetWorld:
		return j.groupOf(countUp(w.Size)), nil
	case psetSelf:
		return j.groupOf([]int{w.Rank}), nil
	case psetHost:
		return j.groupOf(indexesOf(w.HostOf, w.HostOf[w.Rank])), nil
	}
	if text, ok := strings.CutPrefix(pset, psetApp); ok {
		n, err := strconv.Atoi(text)
		if ranks := indexesOf(w.AppOf, n); err == nil && ranks != nil && text == strconv.Itoa(n) {
			return j.groupOf(ranks), nil
		}
	}
	return Group{}, s.fail("Group", fmt.Errorf("%w: no process set %q", ErrArg, pset))
}

// indexesOf returns the indexes of the elements of list that are equal to v, in ascending order.
func indexesOf(list []int, v int) (at []int) {
	for i, x := range list {
		if x == v {
			at = append(at, i)
		}
	}
	return at
}

// sessionBit is set in the ids of communicators that sessions make, and of their partitions (see
// partitionsBit). Of the other ids, only agreeID and finalID have this bit set.
const sessionBit = 1 << 62

// sessionGroup identifies the calls of Session.Comm with the same group and tag.
type sessionGroup [sha256.Size]byte

func (j *job) sessionGroup(g Group, tag string) sessionGroup {
	h := sha256.New()
	_, _ = h.Write(elem.Bytes(j.ranksOf(g))) // never fails
	_, _ = h.Write([]byte(tag))
	return sessionGroup(h.Sum(nil))
}

// id returns the id of the communicator of call n.
func (g sessionGroup) id(n uint64) uint64 {
	id := sha256.Sum256(binary.LittleEndian.AppendUint64(g[:], n))
	return sessionBit | getUint64(id[:])%partitionsBit
}

// countSession counts a call of g, and returns how many calls this rank has counted before.
func (j *job) countSession(g sessionGroup) uint64 {
	j.sessionMu.Lock()
	defer j.sessionMu.Unlock()
	n := j.sessionComms[g]
	if j.sessionComms == nil {
		j.sessionComms = make(map[sessionGroup]uint64)
	}
	j.sessionComms[g] = n + 1
	return n
}

// raiseSession makes the number of calls of g that this rank has counted at least n.
func (j *job) raiseSession(g sessionGroup, n uint64) {
	j.sessionMu.Lock()
	defer j.sessionMu.Unlock()
	j.sessionComms[g] = max(j.sessionComms[g], n)
}

// leadersOf identifies the calls of Session.Intercomm with the same two groups and tag, in both groups.
func (j *job) leadersOf(a, b Group, tag string) sessionGroup {
	if len(a.ranks) > 0 && len(b.ranks) > 0 && b.ranks[0] < a.ranks[0] {
		a, b = b, a
	}
	return j.sessionGroup(Group{ranks: slices.Concat(a.ranks, b.ranks)}, fmt.Sprint(tag, " leaders ", len(a.ranks)))
}

// sessionID returns the id of the next communicator of a group with a tag. All members of the group
// make the same calls with the group and the tag, so they get the same id without a message.
func (j *job) sessionID(g Group, tag string) uint64 {
	x := j.sessionGroup(g, tag)
	return x.id(j.countSession(x))
}

// Comm implements comm.Session.Comm, which documents the call.
func (s *Session) Comm(g Group, tag string) (*Comm, error) {
	j, err := s.live("Comm")
	if err != nil {
		return nil, err
	}
	return s.makeComm("Comm", g, j.sessionID(g, tag), tag, calls.Call{What: calls.KindCreateGroup}, nil)
}

// makeComm makes a communicator of the processes of g. id is a result of sessionID. All these processes call
// makeComm with the same k. If err is not nil, the caller's arguments are wrong: makeComm returns err, and
// revokes the communicator, so that the calls of the other processes fail, too.
func (s *Session) makeComm(op string, g Group, id uint64, tag string, k calls.Call, err error) (*Comm, error) {
	j, closed := s.live(op)
	if closed != nil {
		return nil, closed
	}
	g.self = j.number + 1
	var wrong error
	switch {
	case g.Rank() == Undefined:
		wrong = fmt.Errorf("%w: the caller is not in the group", ErrGroup)
	case !j.groupOf(countUp(j.world.Size)).contains(g):
		wrong = fmt.Errorf("%w: the job does not have all processes of the group", ErrGroup)
	}
	if wrong != nil {
		return nil, s.fail(op, cmp.Or(err, wrong))
	}
	c := &Comm{s: j.newState(id, g, g.Rank()), ctx: s.ctx}
	c.SetName(fmt.Sprintf("session comm %q", tag))
	if err != nil {
		c.s.revoke(err)
		c.s.abandon()
		return nil, s.fail(op, err)
	}
	l, err := barrier(c, "Session."+op, k.What)
	if err == nil {
		l.elem = k.Elem
		l.sign(k.What, k.Root, 0)
	}
	if err := run(l, err); err != nil {
		c.s.abandon()
		return nil, err
	}
	return c, nil
}

// Intercomm implements comm.Session.Intercomm, which documents the call. Each group makes a
// communicator. Then the two leaders make a communicator of their own. If the call of one leader has
// already failed, the other leader would wait there for ever. So a leader whose call fails revokes the
// communicator of the leaders. A rank with wrong arguments, or whose group disagrees about them, also
// revokes it, because it may be the leader.
func (s *Session) Intercomm(local Group, leader int, remote Group, remoteLeader int, tag string) (*Comm, error) {
	const name = "Intercomm"
	j, err := s.live(name)
	if err != nil {
		return nil, err
	}
	local.self = j.number + 1
	leads := local.Rank() == leader
	if uint(leader) >= uint(local.Size()) || leads && uint(remoteLeader) >= uint(remote.Size()) {
		err = fmt.Errorf("%w: leader %d of the local group of %d ranks, leader %d of the remote group of %d", ErrRank, leader, local.Size(), remoteLeader, remote.Size())
	} else if leads && slices.Contains(local.ranks, remote.ranks[remoteLeader]) {
		err = fmt.Errorf("%w: the other leader is in the local group", ErrGroup)
	}
	leaders := j.leadersOf(local, remote, tag)
	n := j.countSession(leaders)
	wrong := err != nil
	// The ranks of a group compare the remote group, too, by a hash in place of the size of an element.
	k := calls.Call{What: calls.KindIntercomm, Root: leader, Elem: int(crc32.ChecksumIEEE(elem.Bytes(j.ranksOf(remote))) >> 16)}
	c, err := s.makeComm(name, local, j.sessionID(local, tag+" group"), tag+" group", k, err)
	if err == nil {
		// A rank that has passed another remote group in an earlier call has counted fewer calls.
		most := []uint64{0}
		if err = c.Allreduce(elem.View([]uint64{n}), elem.View(most), BuiltIn(kernel.Max)); err == nil {
			n = most[0]
		} else {
			c.s.abandon()
		}
	}
	if err != nil {
		apart := !slices.Contains(remote.ranks, j.number) && j.groupOf(countUp(j.world.Size)).contains(remote)
		if (leads || wrong || errors.Is(err, ErrMismatch)) && apart {
			own := j.newState(leaders.id(n), Group{ranks: append([]int{j.number}, remote.ranks...)}, 0)
			own.revoke(err)
			own.abandon()
		}
		return nil, err
	}
	j.raiseSession(leaders, n+1)
	var pair *Comm
	if leads {
		two := Group{ranks: []int{local.ranks[leader], remote.ranks[remoteLeader]}}
		slices.Sort(two.ranks) // so that both leaders pass the same group
		if pair, err = s.makeComm(name, two, leaders.id(n), tag+" leaders", calls.Call{What: calls.KindIntercomm}, nil); err != nil {
			c.s.revoke(err)
			return nil, errors.Join(err, c.Free())
		}
	}
	x, err := c.Intercomm(leader, pair, 1-pair.Rank(), 0)
	if pair != nil {
		err = errors.Join(err, pair.Free())
	}
	return x, errors.Join(err, c.Free())
}
