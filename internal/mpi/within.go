package mpi

import "fmt"

// Where ranks wait for some that will not come
//
//	NewWin     takes several collectives, the first on the communicator and the others
//	           on the window's own: a rank that fails in the first has no window to
//	           revoke, but others may have gone on to the next
//	Finalize   waits for all, of which one that is not in it may wait for a rank that
//	           is, for it has not heard of a failure which that one has
//
// So while a window is made it ends with the communicator, and Finalize ends with any
// process.

// endWith has s end when of is revoked, until standAlone.
func (s *state) endWith(of *state) {
	s.job.watch.mu.Lock()
	s.within = of
	s.job.watch.mu.Unlock()
}

// standAlone says that all ranks have s, or that this one gives it up.
func (s *state) standAlone() { s.endWith(nil) }

// endOthers revokes what is revoked with something else that has ended. The watch
// calls it again and again, as nobody is told of that.
func (j *job) endOthers() {
	j.watch.mu.Lock()
	for _, s := range j.watch.states {
		if s.within == nil {
			continue
		}
		if err := s.within.coll.Err(); err != nil {
			s.revoke(err)
		}
	}
	j.watch.mu.Unlock()
	if !j.ending.Load() {
		return
	}
	if failed := j.eng.Failed(); len(failed) > 0 {
		j.final.revoke(fmt.Errorf("%w: rank %d of the world", ErrProcFailed, failed[0]))
	}
}
