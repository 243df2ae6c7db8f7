package mpi

import "fmt"

// Communicators that depend on another event
//
// Some ranks would wait forever if a communicator were revoked only by its own errors:
//
//   - NewWin consists of several collectives: the first one on the parent communicator, the others
//     on the window's own communicator. A rank that fails in the first one has no window that it
//     could revoke, but other ranks may already wait in the next collective. So while NewWin runs,
//     the revocation of the parent also revokes the window's communicator.
//   - Finalize waits for all ranks. A rank outside of Finalize may wait for a rank inside, because
//     it does not know yet of a failure that the rank in Finalize knows of. The two would wait for
//     each other. So if any process has failed, a rank in Finalize revokes the communicator of
//     Finalize.

// attach makes parent the parent of s: if parent is revoked before detach, revokeDependents revokes
// s.
func (s *state) attach(parent *state) {
	s.job.stall.mu.Lock()
	s.parent = parent
	s.job.stall.mu.Unlock()
}

// detach removes the parent of s. makeWin calls detach when all ranks have made the window of s, or
// when this rank has failed to make it.
func (s *state) detach() { s.attach(nil) }

// revokeDependents revokes each communicator whose parent is revoked and, if this rank is in
// Finalize and a process has failed, the communicator of Finalize. The engine does not notify this
// package of these events, so the goroutine of the stall detector calls revokeDependents at
// intervals.
func (j *job) revokeDependents() {
	j.stall.mu.Lock()
	for _, s := range j.stall.states {
		if s.parent == nil {
			continue
		}
		if err := s.parent.coll.Err(); err != nil {
			s.revoke(err)
		}
	}
	j.stall.mu.Unlock()
	if !j.ending.Load() {
		return
	}
	if failed := j.eng.Failed(); len(failed) > 0 {
		j.final.revoke(fmt.Errorf("%w: rank %d of the world", ErrProcFailed, failed[0]))
	}
}
