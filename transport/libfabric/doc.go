// Package libfabric carries messages, one-sided transfers and atomics over any
// fabric that libfabric has a provider for.
//
// The package needs the build tag libfabric, cgo and the headers of libfabric. Without the tag,
// Open returns transport.ErrNotSupported. A rank has one fabric, one domain, one completion queue
// and one RDM endpoint. The endpoint's address vector is a table, in which a peer's index is its
// rank.
//
//	Send ── ≤ inject size ──► staging buffer ─► fi_inject            done
//	     ── ≤ copyLimit ────► slot's buffer ──► fi_send              done; its completion frees the slot
//	     ── larger ─────────► slot's header and the user's data ─► fi_sendv ─► OpDone
//
//	fi_recvmsg(FI_MULTI_RECV) ─► large buffers ─► Msg is a view into one
//	                                   ▲                 │ the next Read
//	                                   └──── used up ◄───┘
//
// Memory that libfabric uses after a call has returned lies in one mapping outside of Go's heap,
// the type arena, except the user's data, which is pinned instead. Each Read of the completion
// queue posts receives and reads completions in one call to C.
package libfabric
