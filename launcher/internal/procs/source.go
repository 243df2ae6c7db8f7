package procs

import (
	"errors"
	"io"
	"os"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
	"golang.org/x/sys/unix"
)

// Source reads a file, a pipe or a terminal. Stop ends a Read that blocks. With an os.File this
// needs a nonblocking file. A Source leaves the file blocking, because other processes use it, too.
// A Source does not close the file.
type Source struct {
	fd   int
	stop *sys.Waker
}

// errStopped is the error of Read after Stop, and if poll(2) fails.
var errStopped = errors.New("stopped")

// foregroundPoll is the time between two checks whether this process is in the foreground process
// group of the terminal that it reads. The kernel would stop it if it read in the background.
const foregroundPoll = 250 * time.Millisecond

// NewSource returns a Source for f. f must stay open until Close.
func NewSource(f *os.File) (*Source, error) {
	stop, err := sys.NewWaker()
	if err != nil {
		return nil, err
	}
	return &Source{int(f.Fd()), stop}, nil
}

// Read blocks until there are bytes, the input ends (io.EOF), the file fails, or Stop is called.
// While the file is a terminal and this process is in the background, Read waits.
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

// Stop makes a Read that waits for input, and all later ones, return an error.
func (s *Source) Stop() { s.stop.Wake() }

// Close frees the Source. The caller makes sure that no Read runs.
func (s *Source) Close() { s.stop.Close() }

// readable waits until there is something to read. It returns false if Stop was called or poll(2)
// fails.
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
