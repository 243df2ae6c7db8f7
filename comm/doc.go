// Package comm is message passing in the manner of MPI: communicators, point-
// to-point messages, collectives and windows over slices of any type without
// pointers.
//
//	comm.Main(func(c *comm.Comm) error {
//		sum := make([]float64, 1)
//		if err := comm.Allreduce(c, []float64{float64(c.Rank())}, sum, comm.Sum); err != nil {
//			return err
//		}
//		fmt.Println(c.Rank(), "of", c.Size(), "sum", sum[0])
//		return nil
//	})
//
// Names and meanings are MPI's; a comment names the section of the MPI 4.1 standard that a call
// comes from. The functions of this package are a typed skin: they describe slices as memory
// and an element type, and call internal/mpi.
//
//	your slices ─► elem.View ─► internal/mpi ─► engine          Send, Recv, …
//	                                         └─► coll ─► engine  Bcast, Allreduce, …
//
// # Errors
//
// Wrong arguments, dead peers and revoked communicators are errors of type
// *Error, found out by errors.Is with the variables of this package. Nothing
// that a program passes in makes this package panic.
//
// An error in a collective revokes its communicator, so that no rank waits for
// one that has given up: the rank that failed gets its own error, the others
// ErrRevoked with that error's text. That is so for wrong arguments too, even
// where all ranks pass the same wrong ones, since no rank knows that. Ranks that
// call different collectives, or one with different counts or roots, get
// ErrMismatch, ErrCount or ErrRevoked: at once where their messages meet, within
// seconds where all of them wait.
//
// # Buffers in flight
//
// A buffer belongs to the call, or to the request until Wait or Test has completed it. With
// the tunable check (WEFT_CHECK=1) a program that breaks this rule gets ErrInUse: the
// buffer of a send has changed, or two operations use the same memory. In a program that
// is built with -race, the race detector reports accesses to the buffers of Isend and
// Irecv before Wait.
//
// # Failures
//
// Where the launcher lets it (gorun -on-failure notify), a job goes on without
// processes that have died: a call that needs one fails with ErrProcFailed and the
// reason, Revoke makes the others leave their calls too, Shrink makes a
// communicator of those that live, and Finalize waits for these alone.
//
// A rank that has called Finalize, or returned from Main, does not make the calls that
// another rank waits for. So calls that need the rank fail with ErrFinalized; see
// [Comm.Finalize]. Agree and Shrink then fail with the same error on all other ranks.
package comm
