//go:build !linux || portable

package sys

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// A Waker is a descriptor that one goroutine waits for and others make readable: the
// read end of a pipe.
type Waker struct{ r, w int }

// NewWaker makes a Waker whose descriptor is not readable.
func NewWaker() (*Waker, error) {
	r, w, err := Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	for _, fd := range []int{r, w} {
		if err := unix.SetNonblock(fd, true); err != nil {
			_, _ = unix.Close(r), unix.Close(w)
			return nil, fmt.Errorf("pipe: %w", err)
		}
	}
	return &Waker{r, w}, nil
}

// FD returns the descriptor, which [Waker.Clear] reads.
func (w *Waker) FD() int { return w.r }

// Wake makes the descriptor readable. It does not block.
func (w *Waker) Wake() {
	_, _ = unix.Write(w.w, []byte{1}) // fails if the pipe is full; then the descriptor is readable already
}

// Clear makes the descriptor not readable. It does not block.
func (w *Waker) Clear() {
	var some [256]byte
	for {
		if n, err := unix.Read(w.r, some[:]); n < len(some) && err != unix.EINTR {
			return
		}
	}
}

// Close frees the descriptor. No other call may follow.
func (w *Waker) Close() { _, _ = unix.Close(w.r), unix.Close(w.w) }
