package crew

import (
	"errors"
	"io"
	"os"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
	"golang.org/x/sys/unix"
)

// Source reads a file, a pipe or a terminal that belongs to others too, so that a
// Read which waits can be ended. It does not close the file.
type Source struct {
	fd   int
	stop *sys.Waker
}

// errStopped is of a Read after Stop.
var errStopped = errors.New("stopped")

// background is how often a gorun in the background looks whether it has
// become the terminal's foreground: only then may it read.
const background = 250 * time.Millisecond

// NewSource makes a Source of f, which must stay open until Close.
func NewSource(f *os.File) (*Source, error) {
	stop, err := sys.NewWaker()
	if err != nil {
		return nil, err
	}
	return &Source{int(f.Fd()), stop}, nil
}

// Read waits for bytes, for the end, which is io.EOF, or for Stop.
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

// Stop ends Read for good.
func (s *Source) Stop() { s.stop.Wake() }

// Close frees what the Source has. No Read is under way.
func (s *Source) Close() { s.stop.Close() }

// readable waits until there is something to read; false: Stop wants an end.
func (s *Source) readable() bool {
	for {
		p := []unix.PollFd{{Fd: int32(s.stop.FD()), Events: unix.POLLIN}, {Fd: int32(s.fd), Events: unix.POLLIN}}
		timeout := -1
		if fg, err := unix.IoctlGetInt(s.fd, unix.TIOCGPGRP); err == nil && fg != unix.Getpgrp() {
			p, timeout = p[:1], int(background.Milliseconds())
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
