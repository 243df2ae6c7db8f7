//go:build !amd64

package bytecopy

// PrefetchWrite does nothing on this processor.
func PrefetchWrite(*byte, int) {}

// PrefetchRead does nothing on this processor.
func PrefetchRead(*byte, int) {}
