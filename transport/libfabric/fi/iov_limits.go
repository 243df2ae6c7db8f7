//go:build libfabric

package fi

import "math"

// iovLimits is how many buffers, or pieces of remote memory, an operation may
// have. Providers copy them to arrays of that size, most of them without a look.
type iovLimits struct{ tx, rx, rma int }

// newIovLimits reads them from what an endpoint is opened with. Zero is no limit.
func newIovLimits(info *Info) iovLimits {
	limit := func(n int) int {
		if n > 0 {
			return n
		}
		return math.MaxInt
	}
	return iovLimits{tx: limit(info.Tx.IovLimit), rx: limit(info.Rx.IovLimit), rma: limit(info.Tx.RMAIovLimit)}
}

// sends is the error of posting what reads from n buffers, or fills them from
// the memory of dest.
func (e *Endpoint) sends(n int, flags Flags, dest Addr) error {
	if err := e.reaches(dest); err != nil {
		return err
	}
	return posts(n, e.root.limits.tx, flags)
}

// receives is the error of posting a receive of n buffers.
func (e *Endpoint) receives(n int, flags Flags) error {
	if err := e.usable(); err != nil {
		return err
	}
	return posts(n, e.root.limits.rx, flags)
}

func posts(n, limit int, flags Flags) error {
	if flags&FlagTrigger != 0 { // providers would follow a pointer to a counter in the context
		return ErrNotSupp
	}
	if n > limit {
		return ErrTooBig
	}
	return nil
}
