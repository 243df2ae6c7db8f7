package pio

import (
	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/internal/elem"
)

// Memory is the type of the memory that a call reads into or writes from: a slice, or a view of a
// slice. The memory belongs to a blocking call until it returns, and to a nonblocking or split
// operation until it is complete.
type Memory[T any] interface{ []T | comm.View[T] }

func memory[T any, M Memory[T]](mem M) elem.Buffer {
	switch m := any(mem).(type) {
	case []T:
		return elem.View(m)
	case comm.View[T]:
		return bufferOf(m)
	}
	return elem.Buffer{} // no other type satisfies Memory
}
