package colltest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/weft-hpc/weft/internal/coll"
)

// Errors that a Link of a rank that shares memory returns.
var (
	ErrMismatch = errors.New("different call")
	ErrMiscount = errors.New("different length")
)

var _ coll.HostLink = (*Link)(nil)

// share creates the arenas of the ranks of each host.
func (w *World) share() {
	arenas := make(map[int][][]byte)
	lowest := make([]int, len(w.links))
	first := make(map[int]int)
	sizes := make(map[int]int)
	for _, host := range w.opt.Hosts {
		sizes[host]++
	}
	for r, host := range w.opt.Hosts {
		if _, ok := first[host]; !ok {
			first[host] = r
		}
		lowest[r] = first[host]
		const align = 64
		mem := make([]byte, coll.ArenaBytes(w.opt.SharedBytes, sizes[host])+align)
		if over := int(uintptr(unsafe.Pointer(&mem[0])) % align); over > 0 {
			mem = mem[align-over:]
		}
		arenas[host] = append(arenas[host], mem)
	}
	shape := coll.NewShape(lowest)
	for r, host := range w.opt.Hosts {
		h, err := coll.NewHost(shape, r, arenas[host], w.opt.SharedBytes)
		if err != nil {
			panic(err)
		}
		w.links[r].host = h
	}
}

// Host returns the rank's view of its host, or nil in a world without shared memory, and
// coll.Unpicked.
func (l *Link) Host() (*coll.Host, int) { return l.host, coll.Unpicked }

// Sig returns 1, or 1 plus the number that SetSig has set.
func (l *Link) Sig() uint16 { return l.sig + 1 }

// SetSig sets the signature of the rank's next calls. Calls with different signatures count as
// different calls.
func (l *Link) SetSig(sig uint16) { l.sig = sig }

// Mismatch returns an error that wraps ErrMismatch.
func (l *Link) Mismatch(rank int) error {
	return fmt.Errorf("%w by rank %d of the host", ErrMismatch, rank)
}

// Miscount returns an error that wraps ErrMiscount.
func (l *Link) Miscount(rank, have, want int) error {
	return fmt.Errorf("%w: %d from rank %d of the host, want %d", ErrMiscount, have, rank, want)
}

// Await blocks until the word has reached least, or until the world is revoked, and then returns
// the cause. It detects deadlocks.
func (l *Link) Await(rank int, word *atomic.Uint64, least uint64) error {
	if l.enter() {
		return ErrInjected
	}
	w := l.w
	w.mu.Lock()
	defer w.mu.Unlock()
	l.word, l.least, l.source = word, least, rank
	defer func() { l.word = nil }()
	for !l.reached() {
		if w.revoked != nil {
			return w.revoked
		}
		if w.opt.Network == Scheduled {
			l.yield()
			continue
		}
		w.detectDeadlock()
		if !l.reached() && w.revoked == nil {
			l.wake.Wait()
		}
	}
	return nil
}

func (l *Link) reached() bool { return int64(l.word.Load()-l.least) >= 0 }

// Wake wakes the ranks that wait for a word, so that they read it again.
func (l *Link) Wake() {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	for _, o := range l.w.links {
		if o.word != nil {
			o.wake.Signal()
		}
	}
}
