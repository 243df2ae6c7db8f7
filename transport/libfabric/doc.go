// Package libfabric carries messages, one-sided transfers and atomics over any
// fabric that libfabric has a provider for.
//
// It needs the build tag libfabric, cgo and the headers of libfabric; without
// the tag its provider says so when it is opened. A rank has one fabric, one
// domain, one completion queue and one RDM endpoint, whose address vector is a
// table: index = rank.
//
//	Send ── ≤ inject size ──► staging buffer ─► fi_inject            done
//	     ── ≤ copyLimit ────► slot's buffer ──► fi_send              done; the slot comes back
//	     ── larger ─────────► slot's header and the user's data ─► fi_sendv ─► OpDone
//
//	fi_recvmsg(FI_MULTI_RECV) ─► large buffers ─► Msg is a view into one
//	                                   ▲                 │ the next Read
//	                                   └──── used up ◄───┘
//
// What libfabric writes to or reads from late, but for users' pinned data, lies
// in one mapping outside of Go's heap (see arena). A poll posts receives and
// reads the queue in one crossing to C.
package libfabric
