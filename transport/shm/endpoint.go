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

// Address returns the address by which other ranks of the host find this rank's memory.
func (e *endpoint) Address() transport.Address {
	if e.d.inherited {
		return plainAddress(int(e.d.rank))
	}
	return e.d.address.text()
}

// Send copies the message into the ring to the peer, and is always done when it returns. If
// the ring has no room, it returns ErrAgain.
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

// putHeader copies a header. It copies a header of the common length by words, because the
// engine has just written them as words: wider loads would have to wait until the words
// have left the core's store buffer.
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

// sendFirst is Send to a peer without a mapped ring, to a failed peer, and to this rank itself.
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

// noRoom handles an error of reserve. If the peer has ended, it returns the reason instead of
// ErrAgain, because there will never be room.
func (d *domain) noRoom(p *peer, err error) error {
	if err == transport.ErrAgain { //nolint:errorlint // the very value
		if d.checkPeer(p); p.err != nil {
			return p.err
		}
		return err
	}
	return d.closeOnError(p, "send", err)
}

// post writes a control message to a peer, in order with all other messages from this rank.
// kind is at least firstControl. It returns false if the ring to the peer has no room, or if the
// peer has ended.
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
		_ = d.noRoom(p, err) // it reports the peer's end itself
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
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) // the peer may need this core to do its part
	}
	if d.seg.state(d.self).state.CompareAndSwap(cardPresent, cardLeft) {
		d.signalPeers()
	}
	return nil
}
