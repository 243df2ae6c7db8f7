package bootstrap

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// The launcher's news
//
// Where a job outlives ranks that fail, each rank inherits one end of a stream
// socketpair(2) of its own. gorun writes a line at the other end for ranks that
// have gone (internal/wire/news.go) and never reads. The end of the stream says
// that gorun, or its agent on this host, is gone.
//
//	gorun ── failed 3,7-9 killed by signal 9 on node2 ──► rank

// newsSocket says whether a descriptor, which may be anything, can be the channel.
func newsSocket(fd int) bool {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || domain != unix.AF_UNIX {
		return false
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_STREAM {
		return false
	}
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return err == nil && listens == 0
}

// newsFile takes the channel over. It is not blocking, so that who reads it waits
// in the runtime's poller, and a Close ends that.
func newsFile(fd int) (*os.File, error) {
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("channel of the launcher's news: %w", err)
	}
	return os.NewFile(uintptr(fd), "news"), nil
}
