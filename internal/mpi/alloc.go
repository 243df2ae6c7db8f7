package mpi

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/elem"
)

// Alloc is comm.Alloc: memory for n elements of type t, and the function that frees it. Elements
// of size 0 take none: mem is nil.
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
		_ = j.reap() // the memory that stays is of no use, and no caller could do anything about it
	}
	return span.Bytes(), free, nil
}

// memoryFor is how many bytes n elements take, and why they cannot be had.
func memoryFor(t *elem.Type, n int) (int, error) {
	if t.Err != nil {
		return 0, t.Err
	}
	if n < 0 {
		return 0, fmt.Errorf("%w: %d elements", ErrCount, n)
	}
	if t.Size > 0 && n > memory()/t.Size {
		return 0, fmt.Errorf("%w: %d elements of %d bytes, more than this host has memory", ErrCount, n, t.Size)
	}
	return n * t.Size, nil
}

// reap gives back what was freed of Alloc's memory, unless a collective runs
// that might use it: of its buffers the engine knows those that it is moving.
func (j *job) reap() error {
	if j.collecting() {
		return nil
	}
	return j.eng.Reap()
}

// collecting says whether a collective runs.
func (j *job) collecting() bool {
	j.stall.mu.Lock()
	defer j.stall.mu.Unlock()
	for _, s := range j.stall.states {
		s.linkMu.Lock()
		idle := len(s.links)
		if s.slotFree.Load() == 1 { // with a link that nobody uses
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
