//go:build linux && !portable

package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Single copies
//
// The kernel copies between two processes where the one may trace the other
// (ptrace(2), PTRACE_MODE_ATTACH_REALCREDS): the same user, nobody hidden by
// PR_SET_DUMPABLE, both in sight of each other's process ids. Whether it does
// is tried, not worked out: each rank shows on its badge where in its memory a
// nonce lies, and a peer, at its first transfer, fetches the nonce and compares. So a
// number that is another process's in this rank's namespace is no danger
// either. Where it fails, all goes by messages (stream.go).

// probeLine is a rank's line that says what lies where in its memory.
type probeLine struct {
	addr  atomic.Uint64 // 0: it does not want to be copied from
	nonce [2]atomic.Uint64
	_     [lineSize - 24]byte
}

const nonceSize = 16

// reach says whether this rank may copy from and to a peer's memory.
type reach uint8

const (
	reachUnknown reach = iota
	reachDirect
	reachRefused
)

// singleCopy reports whether the user lets the kernel copy.
func (d *domain) singleCopy() bool {
	return d.cfg.Params.Get("transport.shm.single_copy").Text != "off"
}

// publishProbe lets peers find out whether they may copy from this rank. The Yama
// security module, where it is in force, lets only ancestors trace a process, and one
// process that it names, with the descendants of that. One launcher has started all
// ranks of the host, so publishProbe names the launcher.
func (d *domain) publishProbe() {
	t := &d.transfers
	t.nonce = make([]byte, nonceSize)
	random(t.nonce)
	t.nonce[0] |= 1 // fresh memory is no proof
	if launcher := os.Getppid(); launcher > 1 {
		_ = unix.Prctl(unix.PR_SET_PTRACER, uintptr(launcher), 0, 0, 0) // EINVAL: there is no Yama
	}
	b := &d.seg.claims(d.self).probe
	b.nonce[0].Store(binary.NativeEndian.Uint64(t.nonce))
	b.nonce[1].Store(binary.NativeEndian.Uint64(t.nonce[8:]))
	b.addr.Store(addressOf(t.nonce))
}

// direct reports whether this rank may copy from and to a peer's memory. The first
// call for a peer tries it.
func (d *domain) direct(p *peer) bool {
	if p.reach == reachUnknown {
		p.reach = reachRefused
		if d.transfers.singleCopy && d.probe(p) {
			p.reach = reachDirect
		}
	}
	return p.reach == reachDirect
}

func (d *domain) probe(p *peer) bool {
	b := &d.seg.claims(p.local).probe
	var want, got [nonceSize]byte
	addr := b.addr.Load()
	binary.NativeEndian.PutUint64(want[:], b.nonce[0].Load())
	binary.NativeEndian.PutUint64(want[8:], b.nonce[1].Load())
	if addr == 0 || want == [nonceSize]byte{} {
		return false
	}
	n, e := fetch(p.pid, got[:], addr)
	return e == 0 && n == nonceSize && bytes.Equal(got[:], want[:])
}

// pull fills dst from addr of a peer's memory.
func (p *peer) pull(dst []byte, addr uint64) error {
	for len(dst) > 0 {
		n, e := fetch(p.pid, dst, addr)
		if e != 0 {
			return e
		}
		dst, addr = dst[n:], addr+uint64(n)
	}
	return nil
}

// push copies src to addr of a peer's memory.
func (p *peer) push(src []byte, addr uint64) error {
	for len(src) > 0 {
		n, e := store(p.pid, src, addr)
		if e != 0 {
			return e
		}
		src, addr = src[n:], addr+uint64(n)
	}
	return nil
}

// exitGrace is how long a process whose end has been noticed may take to end
// with all its threads, before its number is taken for another process's; and how
// long one that was given up may take to end a copy.
const exitGrace = 2 * time.Second

// awaitIdle waits until quiet answers true, or the peer's process has ended: then
// nothing of it touches our memory any more. What it waits for is the copy of
// a piece, so it spins first.
func (d *domain) awaitIdle(p *peer, quiet func() bool) {
	if _ = d.authenticate(p); p.pid == 0 {
		return // it has not proved to be a rank
	}
	var dead time.Time
	for i := 0; !quiet(); i++ {
		if i < 100 {
			runtime.Gosched()
			continue
		}
		if p.vanished() {
			return
		}
		switch {
		case !p.ended() && !p.disconnected:
		case dead.IsZero():
			dead = time.Now()
		case time.Since(dead) > exitGrace:
			return
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// vanished reports whether no thread of the peer's process is left. The kernel may mark
// the end in the peer's state (liveness.go) before that: the threads end one by one,
// and one of them may be in a copy.
func (p *peer) vanished() bool {
	if p.pid == os.Getpid() { // a rank of this process, which goes on
		return false
	}
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return errors.Is(err, syscall.ESRCH)
	}
	defer func() { _ = unix.Close(fd) }()
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n > 0
}
