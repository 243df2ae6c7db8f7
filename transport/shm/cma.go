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
// A process may copy from and to the memory of another one by process_vm_readv(2) and
// process_vm_writev(2) if it may attach to it (ptrace(2), PTRACE_MODE_ATTACH_REALCREDS). This
// depends, for example, on the users of both processes, on PR_SET_DUMPABLE of the other one, and
// on security modules. A rank does not check such conditions but tries a copy, the probe: each
// rank publishes a nonce and the nonce's address in its probe line. Before a peer first accesses
// private memory of that rank, it copies the nonce by the kernel and compares the copy with the
// published nonce. This also detects a process id that names another process in the peer's
// namespace. If the probe fails, the peer cannot access private memory of that rank, and uses
// messages instead ([endpoint.ReachesRegion]). The peer keeps the result of the probe.

// probeLine is the cache line of the segment in which a rank publishes a nonce, and the nonce's
// address in the rank's private memory.
type probeLine struct {
	addr  atomic.Uint64 // 0: peers must not copy from or to this rank's private memory
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

// singleCopy reports whether the parameter transport.shm.single_copy allows copies by the kernel.
func (d *domain) singleCopy() bool {
	return d.cfg.Params.Get("transport.shm.single_copy").Text != "off"
}

// publishProbe allows peers to copy from and to this rank's memory, and publishes the probe line.
// If the Yama security module restricts ptrace(2) (mode 1), a process may be traced only by its
// ancestors, and by one process that it names with PR_SET_PTRACER and that process's descendants.
// publishProbe names the parent process, because a launcher usually is the parent of all ranks of
// the host.
func (d *domain) publishProbe() {
	t := &d.transfers
	t.nonce = make([]byte, nonceSize)
	random(t.nonce)
	t.nonce[0] |= 1 // a nonce of zeros would equal fresh memory
	if launcher := os.Getppid(); launcher > 1 {
		// Prctl fails if the Yama module is not active. Then peers need no permission from this
		// call.
		_ = unix.Prctl(unix.PR_SET_PTRACER, uintptr(launcher), 0, 0, 0)
	}
	b := &d.seg.claims(d.self).probe
	b.nonce[0].Store(binary.NativeEndian.Uint64(t.nonce))
	b.nonce[1].Store(binary.NativeEndian.Uint64(t.nonce[8:]))
	b.addr.Store(addressOf(t.nonce))
}

// direct reports whether this rank can copy from and to a peer's private memory by the kernel. The
// first call for a peer calls probe, unless the user forbids such copies, and keeps the result. The
// peer is authenticated.
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

// exitGrace is how long this rank waits for all threads of a peer's process to end, after it has
// noticed the end of the process. After that it assumes that they have ended, because a process
// that still has the process id may be another one. It is also how long this rank waits for the end
// of a peer's copy after Disconnect.
const exitGrace = 2 * time.Second

// awaitIdle waits until the function idle returns true, which means that the peer is not copying.
// It also returns when it finds that all threads of the peer's process have ended (vanished), and
// exitGrace after it has found that the peer has ended or is disconnected. Usually it waits for the
// copy of one piece, so it polls idle 100 times before it begins to sleep between two polls.
func (d *domain) awaitIdle(p *peer, idle func() bool) {
	if _ = d.authenticate(p); p.pid == 0 {
		return // the peer is not authenticated, so it has never copied
	}
	var dead time.Time
	for i := 0; !idle(); i++ {
		if i < 100 {
			runtime.Gosched()
			continue
		}
		if d.vanished(p) {
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

// vanished reports whether this rank knows that all threads of the peer's process have ended. The
// kernel may mark the end in the peer's state (liveness.go) before that: the threads end one by one,
// and one of them may be in a copy. vanished returns false if the probe of the peer has failed
// (domain.direct). The peer may then be in another pid namespace, and in the namespace of this rank its
// process id names another process or none. The caller has authenticated the peer.
func (d *domain) vanished(p *peer) bool {
	if !d.direct(p) || p.pid == os.Getpid() { // the latter: a rank of this process, which runs
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
