package comm

import (
	"context"

	"github.com/weft-hpc/weft/internal/mpi"
)

// Session is access to the job of this process that does not depend on other parts of the program
// (MPI 4.1 §11.3): a library can use weft although it does not know whether the program does.
// [Open] returns a session. A session has named sets of processes, and makes groups and
// communicators of them. Any number of goroutines may use a session, and a process may have
// several.
//
// On a nil or closed session, and after [Comm.Finalize], the methods return ErrClosed.
type Session mpi.Session

func (s *Session) in() *mpi.Session { return (*mpi.Session)(s) }

// Open opens a session (MPI_Session_init). If the process has not joined its job yet, by [Init],
// [Main] or an earlier Open, Open joins it. Then it blocks until the other processes of the job
// join it, too. The communicators of the session have the context ctx; see [Comm.Context].
//
// After the last session is closed, the program may open another one, or call Init.
//
// Errors: as for [Init].
func Open(ctx context.Context) (*Session, error) {
	s, err := mpi.Open(ctx)
	return (*Session)(s), err
}

// Session returns a session of the job of c, with the context of c. The program need not close this
// session. For a nil communicator it returns nil. Session is local.
func (c *Comm) Session() *Session { return (*Session)(c.in().Session()) }

// Close closes the session (MPI_Session_finalize). Before that, the program must free the
// communicators of the session. If the program has called neither Init nor Main, the process may
// end after Close of its last session, or open another one. Close is local, with one exception: Close of the
// last session blocks until the connections with other jobs that the program has freed have ended, for which
// the other jobs free them, too. If the context of the session ends first, Close returns its error. Errors:
// ErrClosed if the session was closed before; an error of the launcher; those of [Comm.Finalize] for such a
// connection.
func (s *Session) Close() error { return s.in().Close() }

// Psets returns the names of the sets of processes that this process is in
// (MPI_Session_get_num_psets, MPI_Session_get_nth_pset): "mpi://WORLD": all processes of the job;
// "mpi://SELF": the caller; "weft://HOST": the processes on the caller's host; and, if gorun has
// started the job, "weft://APP/n": the processes that run program n of the job, counted from 0 in the
// order of the command line. Psets is local.
func (s *Session) Psets() ([]string, error) { return s.in().Psets() }

// Group returns the group of the processes of a set (MPI_Group_from_session_pset), in the order of
// their ranks. The caller need not be in the set weft://APP/n. Group is local.
// Errors: ErrArg if there is no set with this name.
func (s *Session) Group(pset string) (Group, error) {
	g, err := s.in().Group(pset)
	return Group(g), err
}

// Comm makes a communicator of the processes of g (MPI_Comm_create_from_group). Only these
// processes call Comm, all with the same group and tag. Comm blocks until all of them have called
// it. If two calls with the same group run at the same time, their tags must differ; as a rule the
// tag contains the name of the library.
//
// Errors: ErrGroup if the caller is not in g, or if g has processes of other jobs; ErrMismatch, ErrRevoked,
// ErrProcFailed, ErrFinalized, or the context's error.
func (s *Session) Comm(g Group, tag string) (*Comm, error) {
	c, err := s.in().Comm(mpi.Group(g), tag)
	return (*Comm)(c), err
}

// Intercomm makes an intercommunicator of two groups (MPI_Intercomm_create_from_groups). local is
// the caller's group, and leader is a rank in it; remote is the other group, and remoteLeader is a
// rank in that group, which has a meaning only on the leader. All processes of both groups call
// Intercomm with the same tag, and each of them passes its own group as local and the other one as
// remote. Intercomm blocks. See [Comm.Intercomm].
//
// Errors: as for [Session.Comm] and [Comm.Intercomm]. An error in one group ends the calls of the
// other group, too, unless the group has passed a wrong remote group on all ranks.
func (s *Session) Intercomm(local Group, leader int, remote Group, remoteLeader int, tag string) (*Comm, error) {
	c, err := s.in().Intercomm(mpi.Group(local), leader, mpi.Group(remote), remoteLeader, tag)
	return (*Comm)(c), err
}
