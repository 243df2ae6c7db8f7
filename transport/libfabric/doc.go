// Package libfabric is the transport over libfabric. It carries messages over each fabric for which
// libfabric has a provider of RDM endpoints with the modes that this package supports. It also
// carries one-sided transfers and atomics where that provider supports them.
//
// The package needs the build tag libfabric, cgo and the headers of libfabric. Without the tag,
// Open returns transport.ErrNotSupported. A rank has one fabric, one domain, one completion queue
// and one RDM endpoint for each NIC that it uses: a lane. The endpoint's address vector is a table
// (FI_AV_TABLE), in which a peer's index is its rank. Messages use the first lane; see stripe.go for
// large reads and writes.
//
//	Send ── ≤ inject size ──► stage ─────────────────────────────► fi_inject   done
//	     ── ≤ copyLimit ────► slot's buffer ─────────────────────► fi_send     done
//	     ── larger ─────────► slot's buffer, the caller's data ──► fi_sendv    OpDone follows
//
//	fi_recvmsg(FI_MULTI_RECV) ─► large buffer ─► Completion.Msg is a slice of it until the next Read
//	                                  ▲               │
//	                                  └─ posted again ┘ when the provider has released the buffer
//
// Memory that libfabric may access after a call has returned lies in one mapping outside of Go's
// heap, the type arena, except the caller's data, which is pinned instead. A Read of the completion
// queue posts receives and reads completions in one call to C (fi.Raw.Poll).
package libfabric
