//go:build libfabric

package fi

import "math"

// iovLimits are the limits of an operation: local buffers to send and to receive, segments of remote
// memory, and bytes to inject. Providers copy these to arrays of that size, most of them without a
// check.
type iovLimits struct{ tx, rx, rma, inject int }

// newIovLimits returns the limits from the Info that an endpoint is opened with. Zero there means
// no limit.
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

// checkSend returns the error of posting an operation with n local buffers to dest: a send, a read
// or a write.
func (e *Endpoint) checkSend(n int, flags Flags, dest Addr) error {
	if err := e.checkDest(dest); err != nil {
		return err
	}
	return checkPost(n, e.root.limits.tx, flags)
}

// checkRecv returns the error of posting a receive with n buffers.
func (e *Endpoint) checkRecv(n int, flags Flags) error {
	if err := e.checkUsable(); err != nil {
		return err
	}
	if flags&FlagMultiRecv != 0 && n != 1 { // rxm would read the first buffer nevertheless
		return ErrInvalid
	}
	return checkPost(n, e.root.limits.rx, flags)
}

// checkInject returns the error of injecting n bytes to dest.
func (e *Endpoint) checkInject(n int, dest Addr) error {
	if err := e.checkDest(dest); err != nil {
		return err
	}
	if n > e.root.limits.inject { // rxd would copy all of it without a check
		return ErrMsgSize
	}
	return nil
}

// checkSendMsg is checkSend for operations with flags of their own, which may include FlagInject.
func (e *Endpoint) checkSendMsg(bufs [][]byte, flags Flags, dest Addr) error {
	if err := e.checkSend(len(bufs), flags, dest); err != nil || flags&FlagInject == 0 {
		return err
	}
	n := 0
	for _, b := range bufs {
		n += len(b)
	}
	return e.checkInject(n, dest)
}

// checkPost returns the error of posting an operation with n buffers and these flags.
func checkPost(n, limit int, flags Flags) error {
	if flags&FlagTrigger != 0 { // providers would dereference a pointer to a counter in the context
		return ErrNotSupp
	}
	if n > limit {
		return ErrTooBig
	}
	return nil
}
