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
// The kernel copies between two processes if one of them may trace the other
// (ptrace(2), PTRACE_MODE_ATTACH_REALCREDS): they run as the same user, neither has set
// PR_SET_DUMPABLE to 0, and each sees the other's process id. A rank does not check these
// conditions but tries a copy. Each rank publishes a nonce and the nonce's address in its
// probe line. When a peer first needs to know whether it can copy, it copies the nonce by the
// kernel and compares the two. This also detects a process id that names another process in the peer's
// namespace. If the probe fails, this rank cannot access private memory of the peer, and its
// callers use messages ([endpoint.ReachesRegion]). The result of the probe does not change
// afterwards.

// probeLine is the line in which a rank publishes a nonce, and the nonce's address in the
// rank's memory.
type probeLine struct {
	addr  atomic.Uint64 // 0: peers must not copy from this rank
	nonce [2]atomic.Uint64
	_     [lineSize - 24]byte
}

const nonceSize = 16

// reach records whether this rank can copy from and to a peer's memory.
type reach uint8

const (
	reachUnknown reach = iota
	reachDirect
	reachRefused
)

// singleCopy reports whether the user allows copies by the kernel.
func (d *domain) singleCopy() bool {
	return d.cfg.Params.Get("transport.shm.single_copy").Text != "off"
}

// publishProbe allows peers to copy from this rank and publishes its probe line. If the Yama
// security module is active, only ancestors of a process may trace it, and one process that
// it names with PR_SET_PTRACER, and that process's descendants. One launcher has started all
// ranks of the host, so publishProbe names the launcher.
func (d *domain) publishProbe() {
	t := &d.transfers
	t.nonce = make([]byte, nonceSize)
	random(t.nonce)
	t.nonce[0] |= 1 // a nonce of zeros would equal fresh memory
	if launcher := os.Getppid(); launcher > 1 {
		_ = unix.Prctl(unix.PR_SET_PTRACER, uintptr(launcher), 0, 0, 0) // EINVAL: Yama is not active
	}
	b := &d.seg.claims(d.self).probe
	b.nonce[0].Store(binary.NativeEndian.Uint64(t.nonce))
	b.nonce[1].Store(binary.NativeEndian.Uint64(t.nonce[8:]))
	b.addr.Store(addressOf(t.nonce))
}

// direct reports whether this rank can copy from and to a peer's memory. The first
// call for a peer probes it.
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

// pull fills dst with a copy by the kernel from address addr of a peer's process.
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

// push copies src, by the kernel, to address addr of a peer's process.
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

// exitGrace is how long a process may take to end with all its threads, after this rank has
// noticed its end: later, its process id may be that of another process. It is also how
// long a peer may take to end a copy after Disconnect.
const exitGrace = 2 * time.Second

// awaitIdle waits until idle returns true, or until the peer's process has ended and cannot
// touch this rank's memory any more. It waits for the copy of one piece, so it spins first.
func (d *domain) awaitIdle(p *peer, idle func() bool) {
	if _ = d.authenticate(p); p.pid == 0 {
		return // it is not authenticated, so it has never copied
	}
	var dead time.Time
	for i := 0; !idle(); i++ {
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

// vanished reports whether all threads of the peer's process have ended. The kernel may mark
// the end in the peer's state (liveness.go) before that: the threads end one by one,
// and one of them may be in a copy.
func (p *peer) vanished() bool {
	if p.pid == os.Getpid() { // a rank of this process, which runs
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
