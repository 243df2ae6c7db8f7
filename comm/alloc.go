package comm

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/elem"
)

// Alloc allocates n elements of memory, zeroed and aligned to a page, that is
// registered once with every transport of the job: sends from it and windows
// over it (WinOf) register nothing more, which is worth it where a fabric pins
// memory and the same buffers are sent again and again (MPI_Alloc_mem, MPI 4.1
// §9.2). c stands for its job only. It is local and does not block.
//
// The memory is not part of Go's heap, and no garbage: the function that is
// returned, never nil, frees it. It may be called more than once and by any
// goroutine, and does not block. Requests, collectives and windows that use the
// memory at that time may go on to their end; it is given back with a later
// Alloc, call of such a function, or Finalize. Any other use of it after that
// is an error of the program that ends the process.
//
// Where a communicator is revoked while its messages are on their way from such
// memory, a receiver that has not heard of it may get what the program has
// written there since.
//
// Errors: ErrCount where n is negative, or more than this host has memory;
// ErrType, ErrClosed, or why a transport cannot register it.
func Alloc[T any](c *Comm, n int) ([]T, func(), error) {
	mem, free, err := alloc[T](c, n)
	if err != nil {
		return nil, func() {}, c.fail("Alloc", noRank, noRank, err)
	}
	return mem, free, nil
}

func alloc[T any](c *Comm, n int) ([]T, func(), error) {
	s, err := c.live()
	if err != nil {
		return nil, nil, err
	}
	bytes, err := memoryFor[T](n)
	if err != nil {
		return nil, nil, err
	}
	if bytes == 0 {
		return make([]T, n), func() {}, nil
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
		_ = j.reap() // there is nobody to be told, and the memory is of no use to anyone
	}
	return elem.Slice[T](span.Bytes()), free, nil
}

// memoryFor is how many bytes n elements take, and why they cannot be had.
func memoryFor[T any](n int) (int, error) {
	info := elem.Of[T]()
	if info.Err != nil {
		return 0, info.Err
	}
	if n < 0 {
		return 0, fmt.Errorf("%w: %d elements", ErrCount, n)
	}
	if info.Size > 0 && n > memory()/info.Size {
		return 0, fmt.Errorf("%w: %d elements of %d bytes, more than this host has memory", ErrCount, n, info.Size)
	}
	return n * info.Size, nil
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
	j.watch.mu.Lock()
	defer j.watch.mu.Unlock()
	for _, s := range j.watch.states {
		s.linkMu.Lock()
		idle := len(s.links)
		if s.turn.Load() == 1 { // with a link that nobody uses
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
