//go:build libfabric

package fi

// known is the set of the addresses of an address vector. libfabric promises
// FI_EINVAL for others, but 1.17 reads, and in sockets writes, beyond its
// tables instead, also for the AddrNotAvail of an insertion that failed.
//
// Indices, which nearly all addresses are, take a bit each.
type known struct {
	low  []uint64
	high map[Addr]struct{}
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

// remove says whether a was there.
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

// last is an address beyond which there is none, but for AddrNotAvail.
func (k *known) last() Addr {
	last := max(Addr(64*len(k.low)), 1) - 1
	for a := range k.high {
		last = max(last, a)
	}
	return last
}
