// Package shm carries messages and one-sided transfers between the ranks of one
// host through memory that they share.
//
//	rank 0: Send ── copy into the ring 0→1, publish ──┐   ring 0→1 lies in the inbox of 1
//	                                                  ▼
//	rank 1: Read ── finds the next line's word set ── message: a view of the ring
//
// All ranks of a host map one memory file (memfd_create(2)). The file has no name, so
// the kernel removes it when no process has it open or mapped any more, even if the
// processes were killed. It is sealed against changes of its size, so no rank can remove
// memory that another uses. If a rank finds a wrong word that another rank has written, it
// ends the communication with that rank, and continues to run: it loads such a word once,
// and checks the loaded value before it uses the value.
//
// The package needs Linux. On other systems, and with the build tag portable, Open of its
// provider returns ErrUnavailable.
package shm

const name = "shm"
