// Package fi is a Go binding of libfabric, whole and typed: every object of
// fabric(7) is a Go type, every call a method that names the C function it
// stands for.
//
//	GetInfo ─► Info ─► Fabric ─► Domain ─┬─► AV        who is where
//	                     │               ├─► MR        memory that peers may reach
//	                     ├─► EQ          ├─► CQ, Counter
//	                     └─► PassiveEP   └─► Endpoint  messages, tagged, RMA, atomics
//
// It needs the build tag libfabric, cgo, and the headers of libfabric 1.17 or
// newer (Debian: libfabric-dev; pkg-config finds them). Without the tag the
// package is empty, and go doc, which knows no tags, shows this page alone: read
// the sources, from the example on. Left out are wait sets and poll sets, which 2.x has deprecated
// and the other objects can replace; triggered operations; and collective ones,
// of which there are the queries and the sets of addresses.
//
// # Errors
//
// A call that fails returns an *Error, which names the C function and wraps the
// Errno; errors.Is finds both fi.ErrAgain and syscall.EAGAIN in it. Calls on
// the hot path return the bare Errno, which costs no allocation. What a
// library or a provider does not have is ErrNotSupported, with the errno kept.
//
// # Handles
//
// Objects are closed by Close, in any order: one that others still need answers
// ErrBusy and stays open, a second Close does nothing, and a call on a closed
// object is ErrClosed. Close must not run beside other calls on the same object.
//
// # Threads
//
// The package adds no lock to data transfer: what may run at once is what the
// domain's threading model allows (fi_domain(3)).
//
// # Memory
//
// A buffer given to an operation is pinned until the operation's completion has
// been read, by the Context that names it (see Context). Memory registered by
// Domain.RegisterMemory is pinned until the region is closed.
package fi
