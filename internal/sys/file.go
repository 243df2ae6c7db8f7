package sys

import (
	"os"

	"golang.org/x/sys/unix"
)

// IsTerminal reports whether a descriptor is a terminal.
func IsTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, getTermios)
	return err == nil
}

// Unread returns the number of bytes that can be read from a pipe or socket; 0 if the system does
// not report it, for example because the descriptor is closed.
func Unread(fd int) int {
	n, _ := unix.IoctlGetInt(fd, fionread)
	return n
}

// Executable returns a path by which the running program can be opened and started. With /proc, as
// on Linux, this also works if the program's file has been replaced.
func Executable() (string, error) {
	const link = "/proc/self/exe"
	if info, err := os.Stat(link); err == nil && info.Mode().IsRegular() {
		return link, nil
	}
	return os.Executable()
}
