// Package bytecopy copies memory that several cores use.
//
// Go's copy is made for memory that one core uses. It has two drawbacks for other memory. Copies of
// a mebibyte or more bypass the caches. If lines of the destination are in another core's cache,
// copy fetches all of them before it overwrites them.
//
// As with copy, callers prevent data races. In a program built with -race, both functions only call
// copy, so the race detector sees their accesses.
package bytecopy

// chunk is the length, in bytes, of the copies into which Keep divides a long copy. It is less than
// a mebibyte, so copy leaves the bytes in the caches.
const chunk = 512 << 10

// Keep copies src to dst like copy, also if they overlap. If they do not overlap, it leaves dst in
// the caches for every length. Use it if this or another core reads dst next. It returns the number
// of copied bytes.
//
// Hot path: no allocation.
func Keep(dst, src []byte) int {
	if len(src) <= chunk {
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
	for len(src) > chunk {
		copy(dst[:chunk], src)
		dst, src = dst[chunk:], src[chunk:]
	}
	copy(dst, src)
	return n
}

// sharedMin is the least length, in bytes, for which Share may use another method than copy.
const sharedMin = 2 << 10

// Share copies src to dst like copy, also if they overlap. Use it if other cores used dst last and
// will read it next. It returns the number of copied bytes.
//
// Other cores may see the bytes of dst change in any order. To publish dst, the caller stores to
// another word after Share, with sync/atomic or, on amd64, with a plain store that the compiler
// does not reorder. A core that sees that store sees all of dst. No fence is needed; share_amd64.go
// gives the sources.
//
// Hot path: no allocation.
func Share(dst, src []byte) int {
	if len(src) < sharedMin {
		return copy(dst, src)
	}
	return share(dst, src)
}
