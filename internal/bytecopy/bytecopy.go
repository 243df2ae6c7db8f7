// Package bytecopy copies memory that several cores use.
//
// Go's copy is made for memory of one core. Two things are missed here: what it
// copies a mebibyte at a time goes around the caches, and where lines of the
// destination are in another core's cache it fetches all of them, only to
// overwrite them.
//
// Data races are the callers' matter as with copy; under the race detector both
// functions are copy.
package bytecopy

// most is the longest that copy leaves in the caches: less than a mebibyte.
const most = 512 << 10

// Keep copies src to dst as copy does, overlapping or not, and leaves dst in the
// caches whatever its length: it is used next, by this core or another.
//
// Hot path: no allocation.
func Keep(dst, src []byte) int {
	if len(src) <= most {
		return copy(dst, src)
	}
	return keep(dst, src)
}

func keep(dst, src []byte) int {
	n := min(len(dst), len(src))
	dst, src = dst[:n], src[:n]
	if overwrites(dst, src) {
		return copy(dst, src)
	}
	for len(src) > most {
		copy(dst[:most], src)
		dst, src = dst[most:], src[most:]
	}
	copy(dst, src)
	return n
}

// sharedMin is the least that Share has another way for.
const sharedMin = 2 << 10

// Share copies src to dst as copy does, overlapping or not, if other cores have used dst
// last and are about to use it again. It returns the number of bytes.
//
// Other cores may see the bytes of dst change in any order. To publish dst, store to another
// word after Share, by sync/atomic or, on amd64, by a plain store that the compiler keeps
// there: a core that sees that store sees all of dst. No fence is needed; share_amd64.go has
// the sources.
//
// Hot path: no allocation.
func Share(dst, src []byte) int {
	if len(src) < sharedMin {
		return copy(dst, src)
	}
	return share(dst, src)
}
