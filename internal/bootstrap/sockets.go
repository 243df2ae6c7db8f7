package bootstrap

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// streamSocket checks that a variable names a connected stream socket.
func streamSocket(text string) (fd int, ok bool) {
	fd, listening, ok := socket(text)
	if !ok || listening {
		return -1, false
	}
	_, err := unix.Getpeername(fd)
	return fd, err == nil
}

// listenBacklog is for the ranks that connect before this one accepts.
const listenBacklog = 1024

// listenSocket checks that a variable names a listening stream socket. A
// program that ran before this one in the same rank, as a shell may have them,
// has shut it down: then it still has its port, and listens again.
func listenSocket(text string) (fd int, again, ok bool) {
	fd, listening, ok := socket(text)
	if !ok || listening {
		return fd, false, ok
	}
	port := 0
	switch sa, _ := unix.Getsockname(fd); sa := sa.(type) {
	case *unix.SockaddrInet4:
		port = sa.Port
	case *unix.SockaddrInet6:
		port = sa.Port
	}
	return fd, true, port != 0 && unix.Listen(fd, listenBacklog) == nil
}

func socket(text string) (fd int, listening, ok bool) {
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 0 {
		return -1, false, false
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_STREAM {
		return -1, false, false
	}
	accepts, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return fd, accepts != 0, err == nil
}
