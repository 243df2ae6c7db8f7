package pio

import (
	"unsafe"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/internal/elem"
)

// Package comm keeps the fields of its types to itself. These functions return them. The types have
// no other field, which the constants check: they do not compile if the sizes differ.
const (
	_ = -(unsafe.Sizeof(comm.View[byte]{}) ^ unsafe.Sizeof(elem.Buffer{}))
	_ = -(unsafe.Sizeof(comm.Layout{}) ^ unsafe.Sizeof((*elem.Layout)(nil)))
)

func bufferOf[T any](v comm.View[T]) elem.Buffer {
	return *(*elem.Buffer)(unsafe.Pointer(&v))
}

func layoutOf(l comm.Layout) *elem.Layout {
	return *(**elem.Layout)(unsafe.Pointer(&l))
}
