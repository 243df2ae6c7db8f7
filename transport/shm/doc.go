// Package shm carries messages and one-sided transfers between the ranks of one
// host through memory that they share.
//
//	rank 0: Send ── copy into the ring 0→1, publish ──┐   ring 0→1 lies in the inbox of 1
//	                                                  ▼
//	rank 1: Read ── finds the next line's word set ── message: a view of the ring
//
// All ranks of a host map one memory file (memfd_create(2)). The file has no name, so
// the kernel removes it when the last rank has ended, even if the rank was killed. It is
// sealed against changes of its size, so no rank can remove memory that another uses.
// A rank reads each word that another rank writes once, and checks the word before it
// uses it. A wrong word ends the connection with that rank, not this process.
//
// The package needs Linux. On other systems its provider's Open returns
// ErrUnavailable.
package shm

const name = "shm"
