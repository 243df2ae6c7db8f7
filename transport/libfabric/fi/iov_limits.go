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
// remote memory.
func (e *Endpoint) sends(n int, flags Flags) error { return e.posts(n, flags, true) }

// receives is the error of posting a receive of n buffers.
func (e *Endpoint) receives(n int, flags Flags) error { return e.posts(n, flags, false) }

func (e *Endpoint) posts(n int, flags Flags, tx bool) error {
	if err := e.usable(); err != nil {
		return err
	}
	switch {
	case flags&FlagTrigger != 0: // providers would follow a pointer to a counter in the context
		return ErrNotSupp
	case tx && n > e.root.limits.tx, !tx && n > e.root.limits.rx:
		return ErrTooBig
	}
	return nil
}
