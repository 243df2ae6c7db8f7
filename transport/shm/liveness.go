//go:build linux && !portable

package shm

import (
	"errors"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Detection of a rank's death
//
// A thread of each rank holds the word alive of its rankState as a robust futex
// (set_robust_list(2)): the word contains the thread's id, and the thread's list
// of robust futexes contains the word. If the thread ends while the word is on its
// list, for example because its process is killed, the kernel sets
// ownerDied in the word. Peers detect this by a load.
//
//	0 ── begin ──► thread id ── the kernel, or end ──► ownerDied
//
// If a process ends before it has set the word, the word stays 0. If the launcher made the
// memory file, it notes the end of every process there (wire.PutShmEnded), so no rank waits
// for such a process. If the ranks find each other by addresses, no other rank has the address
// of a process that ends before it has opened the transport.
const ownerDied = 0x40000000 // FUTEX_OWNER_DIED

// liveness controls the thread that holds the word.
type liveness struct {
	word *atomic.Uint32 // [rankState.alive] of this rank; nil before [liveness.begin] and after [liveness.end]
	// [liveness.end] closes stop to make [liveness.hold] return. It is nil if no thread holds the
	// word.
	stop chan struct{}
	done chan struct{} // closed when hold has returned
}

// robustFutexes reports whether the kernel supports robust futexes.
func robustFutexes() bool {
	_, err := getRobustList()
	return err == nil
}

// begin starts the goroutine whose thread holds the word. If robust is false, begin stores 1 in
// the word and starts no goroutine, and only [liveness.end] marks the end of the rank.
func (l *liveness) begin(word *atomic.Uint32, robust bool) error {
	l.word = word
	if !robust {
		word.Store(1)
		return nil
	}
	l.stop, l.done = make(chan struct{}), make(chan struct{})
	began := make(chan error)
	go l.hold(began) // runs until a call of l.end, which waits for it
	return <-began
}

// hold runs on the thread that holds the word, until [liveness.end] is called. It sends to began
// whether the kernel has accepted the word.
func (l *liveness) hold(began chan<- error) {
	defer close(l.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := getRobustList() // the list of the C library, if the program uses it
	if err != nil {
		began <- err
		return
	}
	list := newRobustList(l.word)
	if err := setRobustList(list.head()); err != nil {
		began <- err
		return
	}
	// Store the word after setRobustList. Otherwise, if the thread were killed in between, the
	// word would stay unmarked.
	l.word.Store(uint32(unix.Gettid()))
	began <- nil
	<-l.stop
	// Store the mark before the list is removed, so that a kill at any moment leaves the word
	// marked.
	l.word.Store(ownerDied)
	if setRobustList(before) != nil {
		panic(errRobust) // the thread would keep a list in memory that may be freed
	}
	runtime.KeepAlive(list)
}

var errRobust = errors.New("shm: set_robust_list refuses the list that get_robust_list returned")

// end marks that the rank has ended, and waits until hold has returned. It has no effect before
// [liveness.begin] and after an earlier call of end.
func (l *liveness) end() {
	if l.word == nil {
		return
	}
	if l.stop != nil {
		close(l.stop)
		<-l.done
	}
	l.word.Store(ownerDied)
	l.word, l.stop = nil, nil
}
