package mpi

import (
	"fmt"
	"slices"
	"sync"

	"github.com/weft-hpc/weft/internal/engine"
)

// Epochs of Post and Start (MPI 4.1 §12.5.2): Post names the origins, and Start names the targets.
// Their messages use the point-to-point space of the window's own communicator, which has no other
// messages:
//
//	target                        origin
//	Post(origins) ── tagPost ───► Start(targets)
//	                              Put, Get, Accumulate
//	Wait ◄────────── tagDone ──── Complete
const (
	tagPost = iota // of the message from a target to an origin: the target has called Post
	tagDone        // of the message from an origin to a target: the origin has called Complete
)

// exposure holds the state of a rank's exposure epoch (from Post to Wait) and access epoch (from
// Start to Complete).
type exposure struct {
	mu     sync.Mutex       // not held while a call blocks
	posted bool             // the exposure epoch is open; guarded by mu
	done   []engine.Request // receives of the messages with tagDone from the origins; guarded by mu
	from   []int            // the origins, in the order of done; guarded by mu
	// The first error of a receive in done that Wait or Test has found in this epoch; guarded by
	// mu.
	err error
	to  []int // the targets of the access epoch; guarded by mu
	// The receives of the messages with tagPost, if Start has not waited for them (NoCheck); guarded by
	// mu.
	early []engine.Request
}

// Post implements comm.Win.Post, which documents the call.
func (x *Win) Post(origins []int) error { return x.PostWith(origins, 0) }

// PostWith implements comm.Win.PostWith, which documents the call.
func (x *Win) PostWith(origins []int, a Assert) error {
	err := x.checkRanks(origins)
	if err == nil {
		err = a.only(NoCheck | NoStore | NoPut)
	}
	if err == nil {
		err = x.post(origins)
	}
	return x.fail("Post", noRank, err)
}

func (x *Win) post(origins []int) error {
	e := &x.pscw
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.posted {
		return fmt.Errorf("%w: Wait has not been called since Post", ErrRMASync)
	}
	s := x.c.s
	if err := s.p2p.Err(); err != nil {
		return err
	}
	e.posted = true
	e.from = slices.Clone(origins)
	for _, r := range origins {
		e.done = append(e.done, s.p2p.Irecv(nil, engine.Env{Peer: r, Tag: tagDone}))
		s.p2p.SendBuffered(nil, engine.Env{Peer: r, Tag: tagPost})
	}
	return nil
}

// Start implements comm.Win.Start, which documents the call.
func (x *Win) Start(targets []int) error { return x.StartWith(targets, 0) }

// StartWith implements comm.Win.StartWith, which documents the call.
func (x *Win) StartWith(targets []int, a Assert) error {
	t := x.timing()
	err := x.checkRanks(targets)
	if err == nil {
		err = a.only(NoCheck)
	}
	if err == nil {
		err = x.start(targets, a == NoCheck)
	}
	return x.ended(&t, opStart, noRank, err)
}

// start opens an access epoch. With unchecked it does not wait for the messages of the targets; then
// Complete receives them.
func (x *Win) start(targets []int, unchecked bool) error {
	if err := x.win.Start(targets); err != nil {
		return err
	}
	s := x.c.s
	if unchecked {
		x.pscw.mu.Lock()
		defer x.pscw.mu.Unlock()
		x.pscw.to = slices.Clone(targets)
		for _, r := range targets {
			x.pscw.early = append(x.pscw.early, s.p2p.Irecv(nil, engine.Env{Peer: r, Tag: tagPost}))
		}
		return nil
	}
	for _, r := range targets {
		if _, err := s.p2p.Recv(x.c.ctx, nil, engine.Env{Peer: r, Tag: tagPost}); err != nil {
			s.revoke(fmt.Errorf("Start of rank %d of %s: %w", s.rank, s.name(), err))
			return x.c.s.waitedFor(r, err)
		}
	}
	x.pscw.mu.Lock()
	x.pscw.to = slices.Clone(targets)
	x.pscw.mu.Unlock()
	return nil
}

// Complete implements comm.Win.Complete, which documents the call.
func (x *Win) Complete() error {
	return x.checked(opComplete, func() error {
		posts := x.awaitPosts()
		if isContext(posts) {
			return posts
		}
		err := x.win.Complete(x.c.ctx)
		if isContext(err) {
			return err
		}
		if err == nil {
			err = posts
		}
		x.pscw.mu.Lock()
		defer x.pscw.mu.Unlock()
		for _, r := range x.pscw.to {
			x.c.s.p2p.SendBuffered(nil, engine.Env{Peer: r, Tag: tagDone})
		}
		x.pscw.to = nil
		return err
	})
}

// awaitPosts receives the messages for which an unchecked Start has not waited. It returns the first
// error. After the error of a context, awaitPosts may be called again.
func (x *Win) awaitPosts() error {
	x.pscw.mu.Lock()
	early := x.pscw.early
	x.pscw.mu.Unlock()
	var first error
	for _, r := range early {
		_, err := r.Wait(x.c.ctx)
		if isContext(err) {
			return err
		}
		if first == nil {
			first = err
		}
	}
	x.pscw.mu.Lock()
	x.pscw.early = nil
	x.pscw.mu.Unlock()
	return first
}

// Wait implements comm.Win.Wait, which documents the call.
func (x *Win) Wait() error {
	return x.checked(opWait, func() error {
		done, err := x.exposureRequests()
		if err != nil {
			return err
		}
		for i, r := range done {
			_, err := r.Wait(x.c.ctx)
			if isContext(err) {
				return x.c.s.waitedFor(x.pscw.origin(i), err) // the epoch stays open: the origin of r has not called Complete yet
			}
			x.pscw.keepError(err)
		}
		return x.pscw.close()
	})
}

// Test implements comm.Win.Test, which documents the call.
func (x *Win) Test() (bool, error) {
	closed := false
	err := x.checked(opTest, func() error {
		done, err := x.exposureRequests()
		if err != nil {
			return err
		}
		if err := x.win.Sync(); err != nil {
			return err
		}
		for _, r := range done {
			if !r.Done() {
				return nil
			}
		}
		for _, r := range done {
			_, err := r.Wait(x.c.ctx)
			x.pscw.keepError(err)
		}
		closed = true
		return x.pscw.close()
	})
	return closed, err
}

// exposureRequests returns the receives of the exposure epoch. All of them are complete when each
// origin has called Complete.
func (x *Win) exposureRequests() ([]engine.Request, error) {
	e := &x.pscw
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.posted {
		return nil, fmt.Errorf("%w: Post has not been called", ErrRMASync)
	}
	return slices.Clone(e.done), nil
}

// origin returns the origin of request i of done, or noRank if another goroutine has ended the epoch.
func (e *exposure) origin(i int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if i >= len(e.from) {
		return noRank
	}
	return e.from[i]
}

// keepError stores err if it is the first error of the exposure epoch.
func (e *exposure) keepError(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
	}
}

// close ends the exposure epoch and returns its first error.
func (e *exposure) close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.err
	e.posted, e.done, e.from, e.err = false, nil, nil, nil
	return err
}

// open reports whether an exposure epoch is open: Post has been called, and neither Wait nor Test
// has ended the epoch.
func (e *exposure) open() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.posted
}

// checkRanks checks the ranks that Post or Start names: each must be in the window, and none may
// occur twice. It also checks that the window can be used.
func (x *Win) checkRanks(ranks []int) error {
	for i, r := range ranks {
		if r == ProcNull {
			return fmt.Errorf("%w: rank %d", ErrRank, r)
		}
		if err := x.checkTarget(r); err != nil {
			return err
		}
		if slices.Contains(ranks[:i], r) {
			return fmt.Errorf("%w: rank %d twice", ErrArg, r)
		}
	}
	return x.live()
}
