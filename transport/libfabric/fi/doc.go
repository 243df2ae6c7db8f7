// Package fi is a Go binding of libfabric. Objects of fabric(7) are Go types, and calls of
// libfabric are methods and functions, whose comments name the C functions that they call.
//
//	GetInfo ─► Info ─► Fabric ─► Domain ─┬─► AV        addresses of peers
//	                     │               ├─► MR        memory that peers may access
//	                     ├─► EQ          ├─► CQ, Counter
//	                     └─► PassiveEP   └─► Endpoint  messages, tagged, RMA, atomics
//
// The package needs the build tag libfabric, cgo, and the headers of libfabric 1.17 or newer
// (Debian: libfabric-dev; pkg-config finds them). Without the tag the package is empty. The go doc
// command cannot set a build tag, so it shows only this page. To learn the package, read its
// sources, starting with example_test.go.
//
// The package does not bind wait sets and poll sets, which libfabric 2.x deprecates, and triggered
// operations. Of fi_collective(3) it binds only [Domain.QueryCollective] and [AVSet]: it cannot
// start a collective operation.
//
// # Errors
//
// A call that fails returns an *Error, which names the C function and wraps the
// Errno; errors.Is finds both fi.ErrAgain and syscall.EAGAIN in it. Calls on
// the hot path return the bare Errno, which needs no allocation. If the library or
// provider does not support a call, errors.Is finds ErrNotSupported in the error.
//
// # Handles
//
// Every object has a Close. If other open objects still need the object, Close returns ErrBusy and
// the object stays open. A second Close does nothing. Methods of a closed object that can return an
// error return ErrClosed. Close must not run concurrently with other calls on the same object.
//
// # Threads
//
// The package adds no lock to data transfer calls. The domain's threading model says which data
// transfer calls may run concurrently (fi_domain(3)).
//
// # Memory
//
// An operation's Context pins its buffers until the completion of the operation has been read (see
// [Context]). Memory registered by [Domain.RegisterMemory] is pinned until the region is closed.
package fi
