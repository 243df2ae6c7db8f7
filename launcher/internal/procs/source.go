package procs

import (
	"errors"
	"io"
	"os"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
	"golang.org/x/sys/unix"
)

// Source reads a file, a pipe or a terminal. Unlike os.File, it lets Stop end a Read that blocks and
// does not make the file nonblocking, because other processes use the file, too. A Source does not
// close the file.
type Source struct {
	fd   int
	stop *sys.Waker
}

// errStopped is the error of Read after Stop.
var errStopped = errors.New("stopped")

// foregroundPoll is the time between two checks whether a gorun in the background of a terminal has
// come to the foreground. The kernel would stop a background gorun that reads from the terminal.
const foregroundPoll = 250 * time.Millisecond

// NewSource returns a Source for f. f must stay open until Close.
func NewSource(f *os.File) (*Source, error) {
	stop, err := sys.NewWaker()
	if err != nil {
		return nil, err
	}
	return &Source{int(f.Fd()), stop}, nil
}

// Read blocks until there are bytes, the input ends (io.EOF), or Stop is called.
func (s *Source) Read(p []byte) (int, error) {
	for s.readable() {
		n, err := unix.Read(s.fd, p)
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
	return 0, errStopped
}

// Stop makes the current Read and all later ones return an error.
func (s *Source) Stop() { s.stop.Wake() }

// Close frees the Source. The caller makes sure that no Read runs.
func (s *Source) Close() { s.stop.Close() }

// readable waits until there is something to read. It returns false if Stop was called.
func (s *Source) readable() bool {
	for {
		p := []unix.PollFd{{Fd: int32(s.stop.FD()), Events: unix.POLLIN}, {Fd: int32(s.fd), Events: unix.POLLIN}}
		timeout := -1
		if fg, err := unix.IoctlGetInt(s.fd, unix.TIOCGPGRP); err == nil && fg != unix.Getpgrp() {
			p, timeout = p[:1], int(foregroundPoll.Milliseconds())
		}
		_, err := unix.Poll(p, timeout)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || p[0].Revents != 0:
			return false
		case len(p) == 2 && p[1].Revents != 0:
			return true
		}
	}
}
