//go:build linux && !portable

package shm

import (
	"errors"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// How a rank shows that it lives
//
// A thread of each rank holds the word alive of its rankState as a robust futex
// (set_robust_list(2)): the word has the thread's number, and the thread's list
// of such words names it. When the thread ends without having taken the word off
// its list, and so when its process is killed in whatever way, the kernel sets
// ownerDied in it. Peers see it by a load.
//
//	0 ── begin ──► thread ── the kernel, or end ──► ownerDied
//
// A process that ends while the word is 0, before it has come to the memory or on
// its way, leaves nothing there. The launcher that has given the memory notes the
// end of every process in it (wire.PutShmEnded), so no rank waits for that one; where
// ranks find each other by addresses, they meet at the launcher once all have come.
const ownerDied = 0x40000000 // FUTEX_OWNER_DIED

// liveness is the thread that holds the word.
type liveness struct {
	word *atomic.Uint32
	stop chan struct{}
	done chan struct{}
}

// robustFutexes says whether the kernel has them.
func robustFutexes() bool {
	_, err := getRobustList()
	return err == nil
}

// begin has a thread hold the word; without robust futexes nobody does, and only
// end changes it.
func (l *liveness) begin(word *atomic.Uint32, robust bool) error {
	l.word = word
	if !robust {
		word.Store(1)
		return nil
	}
	l.stop, l.done = make(chan struct{}), make(chan struct{})
	began := make(chan error)
	go l.hold(began) // until end, which waits for it
	return <-began
}

func (l *liveness) hold(began chan<- error) {
	defer close(l.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := getRobustList() // the C library's, where there is one
	if err != nil {
		began <- err
		return
	}
	list := newRobustList(l.word)
	if err := setRobustList(list.head()); err != nil {
		began <- err
		return
	}
	l.word.Store(uint32(unix.Gettid())) // now that the kernel knows of it: or it would stay like this for ever
	began <- nil
	<-l.stop
	l.word.Store(ownerDied) // first, so that there is no moment in which a kill would go unseen
	if setRobustList(before) != nil {
		panic(errRobust) // the thread would go on with a list that is memory of others by then
	}
	runtime.KeepAlive(list)
}

var errRobust = errors.New("shm: set_robust_list does not take back what get_robust_list gave")

// end shows that the rank has ended.
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
