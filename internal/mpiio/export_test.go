package mpiio

import "errors"

// WithoutAllocate makes Preallocate behave as on a file system that cannot allocate storage, until
// the function that it returns is called.
func WithoutAllocate() (restore func()) {
	before := fallocate
	fallocate = func(int, int64) error { return errors.ErrUnsupported }
	return func() { fallocate = before }
}
