package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
)

// Alloc allocates memory for n elements, zeroed and aligned to a page, and registers it once with
// each transport of c's job that uses registered memory and has room for it (MPI_Alloc_mem, MPI 4.1
// §9.2). With such a transport, messages from this memory and windows over it ([WinOf]) need no
// further registration. This saves time if a fabric pins memory and the program sends the same
// buffers many times. Alloc is local and does not block.
//
// The memory is not part of Go's heap. The function that Alloc returns frees it; the function is
// not nil, even if Alloc returns an error. It does not block; any goroutine may call it, and more
// than once. Requests, collectives and windows that use the memory when the function is called may
// continue to their end. The memory is then given back by a later Alloc, a later call of such a
// function, or Finalize. If the program uses the memory in another way after it was freed, the
// process may crash.
//
// If a communicator is revoked while messages from this memory are in transit, a receiver that does
// not know of the revocation yet may receive what the program has written to the memory in the
// meantime.
//
// Errors: ErrCount if n is negative, or if this host has less memory; ErrType; ErrClosed; or the
// reason why the memory cannot be allocated or registered.
func Alloc[T any](c *Comm, n int) ([]T, func(), error) {
	mem, free, err := c.in().Alloc(elem.Of[T](), n)
	if err != nil {
		return nil, free, err
	}
	if mem == nil { // n elements of T need no memory, because n or the size of T is 0
		return make([]T, n), free, nil
	}
	return elem.Slice[T](mem), free, nil
}
