//go:build linux && !portable

package shm

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/bytecopy"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// Address returns this rank's address. If Config.Memory was nil, other ranks of the host find
// this rank's file by the address.
func (e *endpoint) Address() transport.Address {
	if e.d.inherited {
		return plainAddress(int(e.d.rank))
	}
	return e.d.address.text()
}

// Send copies the message into the ring to the peer, or into the queue for this rank itself, and
// returns done. If there is no room, it returns ErrAgain. If the peer has not joined yet, it
// returns ErrAbsent.
//
// Hot path: no allocation, no lock, no system call unless the peer sleeps.
func (e *endpoint) Send(op *transport.Op) (bool, error) {
	d := e.d
	hl := op.HeaderLen
	n := hl + len(op.Data)
	if uint(op.Peer) >= uint(len(d.peers)) || uint(hl) > transport.HeaderSize || n > d.maxMsg {
		return e.refuse(op)
	}
	p := d.peers[op.Peer]
	if p == nil || p.out.lines == nil || p.err != nil || d.left {
		return e.sendFirst(op)
	}
	r := &p.out
	k := linesOf(n)
	i, err := r.reserve(k)
	if err != nil {
		return false, d.noRoom(p, err)
	}
	b := r.bytes[i*lineSize+wordSize:]
	if k > 1 && k <= prefetchLines {
		own(b[:n])
	}
	putHeader(b, op, hl)
	bytecopy.Share(b[hl:hl+len(op.Data)], op.Data)
	r.publish(i, k, n, kindMessage)
	if p.polled.Load()&d.bit == 0 || p.sleep.Load() == asleep {
		d.alert(p)
	}
	return true, nil
}

// putHeader copies the first n bytes of op.Header to b. If n is wire.MessageShort, the most
// frequent length, it copies 8 bytes at a time, because the engine has just written the header by
// stores of 8 bytes: a wider load would have to wait until these stores have left the core's store
// buffer.
func putHeader(b []byte, op *transport.Op, n int) {
	if n != wire.MessageShort {
		copy(b, op.Header[:n])
		return
	}
	b = b[:wire.MessageShort]
	binary.NativeEndian.PutUint64(b, binary.NativeEndian.Uint64(op.Header[:]))
	binary.NativeEndian.PutUint64(b[8:], binary.NativeEndian.Uint64(op.Header[8:]))
	binary.NativeEndian.PutUint64(b[16:], binary.NativeEndian.Uint64(op.Header[16:]))
	binary.NativeEndian.PutUint64(b[24:], binary.NativeEndian.Uint64(op.Header[24:]))
}

// refuse returns the reason why op cannot be sent.
func (e *endpoint) refuse(op *transport.Op) (bool, error) {
	switch d := e.d; {
	case d.closed || d.left:
		return false, transport.ErrClosed
	case uint64(op.Peer) >= uint64(len(d.peers)):
		return false, &transport.Error{Provider: name, Op: "send", Peer: op.Peer, Err: transport.ErrAddress}
	}
	return false, transport.ErrTooLarge
}

// sendFirst does Send if the ring to the peer is not mapped, the peer's end was reported, the peer
// is this rank itself, or this rank has called Shutdown.
func (e *endpoint) sendFirst(op *transport.Op) (bool, error) {
	d := e.d
	if d.closed || d.left {
		return false, transport.ErrClosed
	}
	if op.Peer == d.rank {
		return d.loop.Send(op)
	}
	p, err := d.target(op.Peer)
	if err != nil {
		return false, err
	}
	if err := d.connect(p); err != nil {
		return false, err
	}
	return e.Send(op)
}

// noRoom handles err, an error of [outRing.reserve], and returns the error for the caller of the
// endpoint. If err is ErrAgain, it first checks whether the peer has ended, because the ring may
// then never have room; if checkPeer closes the peer, noRoom returns the reason. For any other
// err it closes the peer.
func (d *domain) noRoom(p *peer, err error) error {
	if err == transport.ErrAgain { //nolint:errorlint // the very value
		if d.checkPeer(p); p.err != nil {
			return p.err
		}
		return err
	}
	return d.closeOnError(p, "send", err)
}

// post writes a control message to the ring to a peer, in order with all other messages from this
// rank to that peer. kind is at least firstControl. It returns false if the ring has no room, the
// ring cannot be mapped, or the peer's end was reported.
//
// Hot path: no allocation, no lock, no system call unless the peer sleeps.
func (d *domain) post(p *peer, kind uint8, b []byte) bool {
	if p.err != nil || p.out.lines == nil && d.connect(p) != nil {
		return false
	}
	r := &p.out
	k := linesOf(len(b))
	i, err := r.reserve(k)
	if err != nil {
		_ = d.noRoom(p, err) // noRoom has reported the peer's end, if it has found it
		return false
	}
	copy(r.bytes[i*lineSize+wordSize:], b)
	r.publish(i, k, len(b), kind)
	if p.polled.Load()&d.bit == 0 || p.sleep.Load() == asleep {
		d.alert(p)
	}
	return true
}

// Shutdown waits until all reads and writes that this rank has begun or helps with have ended. Then
// it records in the rank's state that the rank has left. The messages that the rank has sent lie in
// the shared file, where peers find them even after this process has ended. So Shutdown does not
// wait until the peers have read them.
func (e *endpoint) Shutdown(ctx context.Context) error {
	d := e.d
	if d.closed {
		return transport.ErrClosed
	}
	d.left = true
	if d.seg == nil {
		return nil
	}
	for d.progress() {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("shm: shutdown: %w", err)
		}
		runtime.Gosched()
		// The peer may need this core to do its part.
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
	if d.seg.state(d.self).state.CompareAndSwap(cardPresent, cardLeft) {
		d.signalPeers()
	}
	return nil
}
