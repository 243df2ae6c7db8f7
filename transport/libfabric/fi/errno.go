//go:build libfabric

package fi

// #cgo pkg-config: libfabric
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"syscall"
)

// Errno is an error number of libfabric (fi_errno(3)). Numbers below 256 are the
// system's, others are libfabric's own.
type Errno int

// The error numbers that programs handle. Other numbers have no constant, but have a text, too.
const (
	ErrAgain        Errno = C.FI_EAGAIN
	ErrBusy         Errno = C.FI_EBUSY
	ErrCanceled     Errno = C.FI_ECANCELED
	ErrInvalid      Errno = C.FI_EINVAL
	ErrNoData       Errno = C.FI_ENODATA
	ErrNoMemory     Errno = C.FI_ENOMEM
	ErrNoEntry      Errno = C.FI_ENOENT
	ErrNoMessage    Errno = C.FI_ENOMSG
	ErrNotImpl      Errno = C.FI_ENOSYS
	ErrNotSupp      Errno = C.FI_EOPNOTSUPP
	ErrNoProtoOpt   Errno = C.FI_ENOPROTOOPT
	ErrAccess       Errno = C.FI_EACCES
	ErrPermission   Errno = C.FI_EPERM
	ErrFault        Errno = C.FI_EFAULT
	ErrTooBig       Errno = C.FI_E2BIG
	ErrMsgSize      Errno = C.FI_EMSGSIZE
	ErrInterrupted  Errno = C.FI_EINTR
	ErrTimedOut     Errno = C.FI_ETIMEDOUT
	ErrConnRefused  Errno = C.FI_ECONNREFUSED
	ErrConnReset    Errno = C.FI_ECONNRESET
	ErrConnAborted  Errno = C.FI_ECONNABORTED
	ErrNotConnected Errno = C.FI_ENOTCONN
	ErrShutdown     Errno = C.FI_ESHUTDOWN
	ErrHostUnreach  Errno = C.FI_EHOSTUNREACH
	ErrAddrInUse    Errno = C.FI_EADDRINUSE
	ErrAddrNotAvail Errno = C.FI_EADDRNOTAVAIL
	ErrRemoteIO     Errno = C.FI_EREMOTEIO
	ErrIO           Errno = C.FI_EIO
	ErrOverflow     Errno = C.FI_EOVERFLOW
	ErrOther        Errno = C.FI_EOTHER
	ErrTooSmall     Errno = C.FI_ETOOSMALL
	ErrOpBadState   Errno = C.FI_EOPBADSTATE
	ErrAvail        Errno = C.FI_EAVAIL
	ErrBadFlags     Errno = C.FI_EBADFLAGS
	ErrNoEQ         Errno = C.FI_ENOEQ
	ErrDomain       Errno = C.FI_EDOMAIN
	ErrNoCQ         Errno = C.FI_ENOCQ
	ErrCRC          Errno = C.FI_ECRC
	ErrTruncated    Errno = C.FI_ETRUNC
	ErrNoKey        Errno = C.FI_ENOKEY
	ErrNoAV         Errno = C.FI_ENOAV
	ErrOverrun      Errno = C.FI_EOVERRUN
	ErrNoReceive    Errno = C.FI_ENORX
)

var (
	// ErrNotSupported means that this library or provider does not support a call. It is not
	// returned itself: errors.Is finds it in the call's error.
	ErrNotSupported = errors.New("not supported by this libfabric or provider")
	// ErrClosed is the error of a call on a closed object, alone or wrapped in an Error.
	ErrClosed = errors.New("libfabric object is closed")
)

// Error returns libfabric's text for the number (fi_strerror).
func (e Errno) Error() string { return C.GoString(C.fi_strerror(C.int(e))) }

// Is makes errors.Is find ErrNotSupported in ErrNotImpl, ErrNotSupp and ErrNoProtoOpt, and in a
// number of the system the syscall.Errno with the same number.
func (e Errno) Is(target error) bool {
	if target == ErrNotSupported {
		return e == ErrNotImpl || e == ErrNotSupp || e == ErrNoProtoOpt
	}
	n, ok := target.(syscall.Errno)
	return ok && e < 256 && Errno(n) == e
}

// Error is the error of a failed call of libfabric.
type Error struct {
	Func string // name of the C function, for example "fi_getinfo"
	Err  error  // an Errno, an error that wraps an Errno, or ErrClosed
}

// Error returns the function and the text of its error.
func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Func, e.Err) }

// Unwrap returns the wrapped error.
func (e *Error) Unwrap() error { return e.Err }

// check returns the error for rc, the result of the C function with this name: nil unless rc is
// negative.
func check(function string, rc C.int) error {
	if rc >= 0 {
		return nil
	}
	return &Error{function, Errno(-rc)}
}

// unsupported returns the error of a call that this build or the provider does not support.
func unsupported(function string) error { return &Error{function, ErrNotImpl} }

// closedError returns the error of a call on a closed object.
func closedError(function string) error { return &Error{function, ErrClosed} }

// errAvail is converted to an error once, because the conversion allocates for an Errno above 255.
var errAvail error = ErrAvail

// errno returns the error of a hot path call that returned rc, which is negative. It does not
// allocate for the results that are no failures, FI_EAGAIN and FI_EAVAIL.
func errno(rc C.ssize_t) error {
	if rc == -C.FI_EAVAIL {
		return errAvail
	}
	return Errno(-rc)
}
