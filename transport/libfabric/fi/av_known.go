//go:build libfabric

package fi

// known is the set of the Addrs in an address vector. A lookup or removal of another Addr must not
// reach the library: according to the man page it returns FI_EINVAL, but providers of libfabric
// 1.17 read beyond the end of their tables, and sockets also writes there. AddrNotAvail is never in
// the set.
//
// Nearly all Addrs are small numbers, for which known needs one bit each.
type known struct {
	low  []uint64          // one bit per Addr below knownLow, up to the largest one that was ever in the set
	high map[Addr]struct{} // the addresses from knownLow on
}

const knownLow = 1 << 26

func (k *known) has(a Addr) bool {
	if a >= knownLow {
		_, ok := k.high[a]
		return ok
	}
	return int(a/64) < len(k.low) && k.low[a/64]&(1<<(a%64)) != 0
}

func (k *known) add(a Addr) {
	if a >= knownLow {
		if k.high == nil {
			k.high = make(map[Addr]struct{})
		}
		k.high[a] = struct{}{}
		return
	}
	for int(a/64) >= len(k.low) {
		k.low = append(k.low, 0)
	}
	k.low[a/64] |= 1 << (a % 64)
}

// remove removes a and reports whether it was in the set.
func (k *known) remove(a Addr) bool {
	if !k.has(a) {
		return false
	}
	if a >= knownLow {
		delete(k.high, a)
	} else {
		k.low[a/64] &^= 1 << (a % 64)
	}
	return true
}

// last returns a number that no address in the set exceeds.
func (k *known) last() Addr {
	last := max(Addr(64*len(k.low)), 1) - 1
	for a := range k.high {
		last = max(last, a)
	}
	return last
}
