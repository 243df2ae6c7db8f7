//go:build !portable

package sys

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// A Waker is a descriptor that one goroutine waits for and others make readable, by
// eventfd(2).
type Waker struct{ fd int }

// NewWaker makes a Waker whose descriptor is not readable.
func NewWaker() (*Waker, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return &Waker{fd}, nil
}

// FD returns the descriptor, which [Waker.Clear] reads.
func (w *Waker) FD() int { return w.fd }

// Wake makes the descriptor readable. It does not block.
func (w *Waker) Wake() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	// The write fails if the counter is at its limit. Then the descriptor is readable already.
	_, _ = unix.Write(w.fd, one[:])
}

// Clear makes the descriptor not readable. It does not block.
func (w *Waker) Clear() {
	var count [8]byte
	_, _ = unix.Read(w.fd, count[:])
}

// Close frees the descriptor. No other call may follow.
func (w *Waker) Close() { _ = unix.Close(w.fd) }
