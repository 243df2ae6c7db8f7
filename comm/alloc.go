package comm

import (
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
	mem, free, err := c.in().Alloc(elem.Of[T](), n)
	if err != nil {
		return nil, free, err
	}
	if mem == nil { // the elements have no size
		return make([]T, n), free, nil
	}
	return elem.Slice[T](mem), free, nil
}
