package bootstrap

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Failure reports
//
// In a job that gorun starts with -on-failure notify, each rank inherits one end of a stream
// socketpair(2) of its own. When ranks have failed, gorun writes a line to the other end
// (internal/wire/failures.go). gorun never reads there. If the stream ends, gorun, or its agent on
// this host, has ended.
//
//	gorun ── failed 3,7-9 killed by signal 9 on node2 ──► rank

// channel reports whether fd can be one end of a channel between a rank and gorun. fd comes from
// the environment, so it may be any descriptor or none.
func channel(fd int) bool {
	sa, err := unix.Getsockname(fd)
	if _, local := sa.(*unix.SockaddrUnix); err != nil || !local {
		return false
	}
	listening, ok := stream(fd)
	return ok && !listening
}

// channelFile returns a file that owns the channel fd. name is for error messages. channelFile
// makes the descriptor nonblocking: a goroutine that reads the file waits in the runtime's poller,
// and Close ends the wait.
func channelFile(fd int, name string) (*os.File, error) {
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("channel of gorun for %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
