// Package shm carries messages and one-sided transfers between the ranks of one
// host through memory that they share.
//
//	rank 0: Send ── copy into the ring 0→1, publish ──┐   ring 0→1 lies in the inbox of 1
//	                                                  ▼
//	rank 1: Read ── finds the word of the next line ── message: a view of the ring
//
// All ranks of a host map one memory file (memfd_create(2)). It has no name, so
// nothing of it is left when they have ended, however they end. It is sealed
// against changes of its size, so no rank can remove memory that another uses.
// A rank reads each word of another rank once, and checks the word before it
// uses it: a wrong word ends the connection, not this process.
//
// The package needs Linux. On other systems its provider's Open returns
// ErrUnavailable.
package shm

const name = "shm"
