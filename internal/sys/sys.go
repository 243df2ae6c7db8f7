// Package sys holds the calls of the operating system that Linux and other Unix
// systems make in different ways. Linux has a file of its own for each; the other
// files use what every Unix has: pipes, poll(2), sockets.
//
// The build tag portable selects these other files on Linux too, so that tests
// there run what macOS and FreeBSD run.
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

// ErrNoMemoryFiles is the error where the system has no memory files, or refuses
// them to this process.
var ErrNoMemoryFiles = errors.New("no memory files")

// MaxCPUs bounds the numbers of hardware threads; the kernel's own bound is lower.
const MaxCPUs = 1 << 16
