//go:build libfabric

package fi

import "math"

// iovLimits are an endpoint's limits for one operation: how many local buffers it may send from
// (tx) or receive into (rx), how many segments of remote memory it may name (rma), and how many
// bytes it may inject. Providers copy buffers, segments and bytes to arrays of these sizes, most
// providers without a check.
type iovLimits struct{ tx, rx, rma, inject int }

// newIovLimits returns the limits of an endpoint that is opened with info. A limit of zero in info
// means no limit.
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

// checkSend returns an error if a send, read, write or atomic operation with n local buffers must
// not be posted to dest.
func (e *Endpoint) checkSend(n int, flags Flags, dest Addr) error {
	if err := e.checkDest(dest); err != nil {
		return err
	}
	return checkPost(n, e.root.limits.tx, flags)
}

// checkRecv returns an error if a receive with n buffers must not be posted.
func (e *Endpoint) checkRecv(n int, flags Flags) error {
	if err := e.checkUsable(); err != nil {
		return err
	}
	// A multi-receive buffer is one buffer (fi_msg(3)). Providers do not check that: rxm would
	// access the first buffer even if there is none.
	if flags&FlagMultiRecv != 0 && n != 1 {
		return ErrInvalid
	}
	return checkPost(n, e.root.limits.rx, flags)
}

// checkInject returns an error if n bytes must not be injected to dest.
func (e *Endpoint) checkInject(n int, dest Addr) error {
	if err := e.checkDest(dest); err != nil {
		return err
	}
	if n > e.root.limits.inject { // rxd would copy all n bytes without a check
		return ErrMsgSize
	}
	return nil
}

// checkSendMsg is checkSend for calls whose flags may include FlagInject.
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

// checkPost returns an error if an operation with n buffers and these flags must not be posted.
// limit is the largest n.
func checkPost(n, limit int, flags Flags) error {
	if flags&FlagTrigger != 0 { // providers would dereference a pointer to a counter in the context
		return ErrNotSupp
	}
	if n > limit {
		return ErrTooBig
	}
	return nil
}
