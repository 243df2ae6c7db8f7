//go:build libfabric

package fi

import "math"

// iovLimits is how many buffers, or pieces of remote memory, an operation may
// have, and how many bytes may be injected. Providers copy them to arrays of that
// size, most of them without a look.
type iovLimits struct{ tx, rx, rma, inject int }

// newIovLimits reads them from what an endpoint is opened with. Zero is no limit.
func newIovLimits(info *Info) iovLimits {
	limit := func(n int) int {
		if n > 0 {
			return n
		}
		return math.MaxInt
	}
	return iovLimits{
		tx:     limit(info.Tx.IovLimit),
		rx:     limit(info.Rx.IovLimit),
		rma:    limit(info.Tx.RMAIovLimit),
		inject: limit(info.Tx.InjectSize),
	}
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
	if flags&FlagMultiRecv != 0 && n != 1 { // rxm would look for the one
		return ErrInvalid
	}
	return posts(n, e.root.limits.rx, flags)
}

// injects is the error of posting n bytes to be free at once.
func (e *Endpoint) injects(n int, dest Addr) error {
	if err := e.reaches(dest); err != nil {
		return err
	}
	if n > e.root.limits.inject { // rxd would copy all of it
		return ErrMsgSize
	}
	return nil
}

// sendsMsg is sends for what has flags of its own.
func (e *Endpoint) sendsMsg(bufs [][]byte, flags Flags, dest Addr) error {
	if err := e.sends(len(bufs), flags, dest); err != nil || flags&FlagInject == 0 {
		return err
	}
	n := 0
	for _, b := range bufs {
		n += len(b)
	}
	return e.injects(n, dest)
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
