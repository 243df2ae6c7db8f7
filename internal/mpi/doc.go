// Package mpi is the runtime of communicators: groups, point-to-point messages, collectives,
// requests, windows, and the start and end of a process's part in a job, in the manner of MPI. It
// works on bytes and element types. Package comm is the typed front of package mpi, and documents
// the calls.
//
//	comm.Allreduce ─► Comm.Allreduce ─► link: takes the call's number, checks the arguments
//	                                      │
//	                                      ├─► coll.Host   ranks that share memory: an arena
//	                                      └─► coll        messages: the link is the coll.Link of the algorithm
//	comm.Send ──────► Comm.Send ────────► engine.Context
//	comm.Win.Put ───► Win.Put ──────────► rma.Window
package mpi
