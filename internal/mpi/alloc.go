package mpi

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/elem"
)

// Alloc implements comm.Alloc for n elements of type t. It returns the memory and the function that
// frees the memory, which is never nil. If n or the size of the elements is 0, mem is nil.
func (c *Comm) Alloc(t *elem.Type, n int) (mem []byte, free func(), err error) {
	mem, free, err = c.alloc(t, n)
	if err != nil {
		return nil, func() {}, c.fail("Alloc", noRank, noRank, err)
	}
	return mem, free, nil
}

func (c *Comm) alloc(t *elem.Type, n int) ([]byte, func(), error) {
	s, err := c.live()
	if err != nil {
		return nil, nil, err
	}
	bytes, err := memoryFor(t, n)
	if err != nil {
		return nil, nil, err
	}
	if bytes == 0 {
		return nil, func() {}, nil
	}
	j := s.job
	if err := j.reap(); err != nil {
		return nil, nil, err
	}
	span, err := j.eng.Alloc(bytes)
	if err != nil {
		return nil, nil, err
	}
	free := func() {
		span.Free()
		_ = j.reap() // if it fails, the memory stays allocated, and the caller could do nothing about it
	}
	return span.Bytes(), free, nil
}

// memoryFor returns the number of bytes of n elements of type t. It returns an error if t cannot be
// sent, or if such memory cannot be allocated.
func memoryFor(t *elem.Type, n int) (int, error) {
	if t.Err != nil {
		return 0, t.Err
	}
	if n < 0 {
		return 0, fmt.Errorf("%w: %d elements", ErrCount, n)
	}
	if t.Size > 0 && n > memory()/t.Size {
		return 0, fmt.Errorf("%w: %d elements of %d bytes need more memory than this host has", ErrCount, n, t.Size)
	}
	return n * t.Size, nil
}

// reap gives back to the system the memory that the program has freed by functions from Alloc and
// that no operation uses. While a collective runs on this rank, reap does nothing, because the
// collective may use the memory as a buffer, and the engine knows only the buffers of transfers in
// progress.
func (j *job) reap() error {
	if j.collecting() {
		return nil
	}
	return j.eng.Reap()
}

// collecting reports whether a collective runs on this rank.
func (j *job) collecting() bool {
	j.stall.mu.Lock()
	defer j.stall.mu.Unlock()
	for _, s := range j.stall.states {
		s.linkMu.Lock()
		idle := len(s.links)
		if s.slotFree.Load() == 1 { // then the link in slotLink runs no collective
			idle++
		}
		busy := idle < len(s.all)
		s.linkMu.Unlock()
		if busy {
			return true
		}
	}
	return false
}
