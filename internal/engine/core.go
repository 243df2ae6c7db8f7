package engine

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Ranks that wait for each other may come to stand on one core while another is
// idle: each gives way to the other as soon as it has nothing to do, so neither
// ever waits for the core for long, and the kernel sees no reason to move one.
// Every message then costs a switch, ten times as much as between two cores.
//
//	yields that somebody made use of ──► at home? ── no ──► there, and free again
//	one after the other                     └── yes ──► let the other one go
//
// So every rank of a host has a home among the cores that all may use, where
// they are at least as many as the ranks. It is bound to it for the moment of
// moving there only: the kernel stays free to put its threads where it likes.

// home is the core that a rank goes to. It is guarded by Engine.mu, but for cpu.
type home struct {
	cpu     int // for good; -1: none
	uses    int // yields one after the other that somebody made use of
	checked time.Duration
}

// usesToMove is how often others make use of yields before a rank moves, and
// moveTime the time until it looks again.
const (
	usesToMove = 16
	moveTime   = 2 * time.Millisecond
)

// newHome gives the home of one of the ranks of a host by its number among them.
func newHome(rank, ranks int) home {
	h := home{cpu: -1}
	var allowed unix.CPUSet
	if ranks < 2 || unix.SchedGetaffinity(0, &allowed) != nil || allowed.Count() < ranks {
		return h // it has been bound, or there are not enough
	}
	nth := rank * allowed.Count() / ranks
	for cpu := range 64 * len(allowed) {
		if !allowed.IsSet(cpu) {
			continue
		}
		if nth == 0 {
			h.cpu = cpu
			break
		}
		nth--
	}
	return h
}

// used notes what a yield has shown: whether somebody else had the core, and
// when. It says whether to go home. The caller holds the engine's lock: besides
// who leads, those yield who ask for something.
func (h *home) used(wanted bool, now time.Duration) bool {
	if !wanted {
		h.uses = 0
		return false
	}
	if h.uses++; h.uses < usesToMove || h.cpu < 0 || now-h.checked < moveTime {
		return false
	}
	h.uses, h.checked = 0, now
	return true
}

// goThere moves this thread to the rank's core if it is not there and may be. It
// needs no lock.
func (h *home) goThere() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var allowed, there unix.CPUSet
	if currentCore() == h.cpu || unix.SchedGetaffinity(0, &allowed) != nil || !allowed.IsSet(h.cpu) {
		return
	}
	there.Set(h.cpu)
	if unix.SchedSetaffinity(0, &there) == nil {
		_ = unix.SchedSetaffinity(0, &allowed) // what was permitted before
	}
}
