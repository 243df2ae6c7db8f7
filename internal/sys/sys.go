// Package sys holds the calls of the operating system that differ between Linux and other Unix
// systems. Each has a Linux version, and a version for other systems that uses what every Unix
// has: pipes, poll(2), sockets.
//
// The build tag portable selects the versions for other systems on Linux too, so that tests there
// run the code of macOS and FreeBSD.
package sys

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Interest is what a [Poller] waits for on a descriptor. Errors and the end of a
// stream are always reported.
type Interest uint32

// The interests, which are combined by |.
const (
	In  Interest = unix.POLLIN  // there is something to read
	Out Interest = unix.POLLOUT // there is room to write
)

// ErrNoMemoryFiles is the error if the system has no memory files, or refuses them to this
// process.
var ErrNoMemoryFiles = errors.New("no memory files")

// MaxCPUs is larger than the number of any hardware thread; the kernel's own limit is lower.
const MaxCPUs = 1 << 16
