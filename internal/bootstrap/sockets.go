package bootstrap

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// streamSocket parses the value of a variable as a descriptor. ok is true if the descriptor is a
// connected stream socket.
func streamSocket(text string) (fd int, ok bool) {
	fd, listening, ok := socket(text)
	if !ok || listening {
		return -1, false
	}
	_, err := unix.Getpeername(fd)
	return fd, err == nil
}

// listenBacklog is the argument of listen(2): how many ranks can connect before this rank accepts
// their connections.
const listenBacklog = 1024

// listenSocket parses the value of a variable as the descriptor of a listening stream socket. Another
// program that ran in this rank before, for example started by the same shell script, may have shut
// the socket down. Then the socket still has its port, and listenSocket makes it listen again and
// returns again as true.
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
	listening, ok = stream(fd)
	return fd, listening, ok
}

// stream reports whether fd is a stream socket, and whether that listens.
func stream(fd int) (listening, ok bool) {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_STREAM {
		return false, false
	}
	accepts, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return accepts != 0, err == nil
}
