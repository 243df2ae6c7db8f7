package transporttest

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
)

var waitCases = []testCase{
	{name: "wake-ups", run: func(w *world) { testPingPong(w, 10_000, waitByWait) }},
	{name: "wake-ups by descriptor", needs: transport.CapWaitFD, run: func(w *world) { testPingPong(w, 1_000, waitByFD) }},
	{name: "signal", run: testSignal},
	{name: "signal by descriptor", needs: transport.CapWaitFD, run: testSignalFD},
	{name: "descriptor after the event", needs: transport.CapWaitFD, run: testLateFD},
	{name: "wait with a limit", run: testWaitLimit},
	{name: "idle ranks use no processor", run: testIdle},
}

func waitByWait(r *rank, limit time.Duration) error { return r.cq.Wait(limit) }

// waitByFD sleeps in poll(2) on the queue's descriptor. Then it calls Wait, because only Wait makes
// the descriptor unreadable again after a Signal.
func waitByFD(r *rank, limit time.Duration) error {
	if err := pollFD(r, limit); err != nil {
		return err
	}
	return r.cq.Wait(0)
}

func pollFD(r *rank, limit time.Duration) error {
	fd, ok := r.cq.FD()
	if !ok {
		return errors.New("no descriptor")
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, int(limit.Milliseconds())+1)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// testPingPong has pairs of ranks send a message back and forth. A rank calls sleep while it waits
// for the message. A rank without a partner sends to itself. If a wake-up is lost, the sleep lasts
// until the timeout, and the test fails.
func testPingPong(w *world, rounds int, sleep func(*rank, time.Duration) error) {
	rounds /= len(w.ranks)
	w.each(func(r *rank) error {
		peer := r.id ^ 1
		if int(peer) >= r.n {
			peer = r.id
		}
		got := 0
		r.onMsg = func(from transport.Addr, _ []byte) error {
			if from != peer {
				return fmt.Errorf("message from rank %d", from)
			}
			got++
			return nil
		}
		if err := r.sync(); err != nil {
			return err
		}
		q := &request{}
		sent := 0
		for got < rounds || sent < rounds {
			if r.id <= peer && sent == got || r.id > peer && sent < got {
				q.op = transport.Op{Peer: peer, HeaderLen: 16}
				if err := r.send(q); err != nil {
					return err
				}
				sent++
			}
			next := sent
			if r.id > peer {
				next = min(sent+1, rounds)
			}
			err := r.untilBy(fmt.Sprintf("sleep until message %d", next),
				func() bool { return got >= next && !q.busy },
				func(limit time.Duration) error { return sleep(r, limit) })
			if err != nil {
				return err
			}
		}
		err := r.sync()
		r.onMsg = nil
		return err
	})
}

// testSignal has another goroutine end many Waits by Signal. No Signal may be lost, also if it
// comes before Wait or before Arm.
func testSignal(w *world) {
	rounds := int64(10_000 / len(w.ranks))
	w.each(func(r *rank) error {
		if err := signalFirst(r, waitByWait); err != nil {
			return err
		}
		var asked, answered atomic.Int64
		var other sync.WaitGroup
		requests := make(chan struct{}, 1)
		other.Go(func() { // ends when requests is closed; the deferred other.Wait waits for it
			for range requests {
				asked.Add(1)
				r.cq.Signal()
			}
		})
		defer other.Wait()
		defer close(requests)
		for answered.Load() < rounds {
			requests <- struct{}{}
			want := answered.Add(1)
			if err := r.until("wait for a Signal", func() bool { return asked.Load() >= want }); err != nil {
				return err
			}
		}
		return nil
	})
}

func testSignalFD(w *world) {
	w.each(func(r *rank) error {
		for range 10 {
			if err := signalFirst(r, waitByFD); err != nil {
				return err
			}
		}
		return nil
	})
}

// testLateFD has a message arrive after Arm and before the first call of FD. The descriptor must
// be readable then.
func testLateFD(w *world) {
	w.traffic(traffic{count: 2, sizes: []int{8}, headers: []int{16}, window: 1})
	if len(w.ranks) == 1 {
		return
	}
	to, from := w.ranks[0], w.ranks[1]
	got := 0
	to.onMsg = func(transport.Addr, []byte) error { got++; return nil }
	// The first Wait ends by a Signal of the traffic before, if there is one left.
	require.NoError(w.t, to.arm())
	require.NoError(w.t, to.cq.Wait(0))
	require.NoError(w.t, to.arm())
	q := &request{op: transport.Op{Peer: to.id, HeaderLen: 16}}
	require.NoError(w.t, from.send(q))
	require.NoError(w.t, from.until("send", func() bool { return !q.busy }))

	start := time.Now()
	require.NoError(w.t, pollFD(to, timeout))
	require.Less(w.t, time.Since(start), timeout/2, "the descriptor did not become readable")
	require.NoError(w.t, to.cq.Wait(0))
	require.NoError(w.t, to.until("receive", func() bool { return got == 1 }))
}

// signalFirst checks that a Signal ends the next sleep if it comes before Arm, and if it comes
// between Arm and the sleep.
func signalFirst(r *rank, sleep func(*rank, time.Duration) error) error {
	for _, early := range []bool{true, false} {
		if early {
			r.cq.Signal()
		}
		if err := r.arm(); err != nil {
			return err
		}
		if !early {
			r.cq.Signal()
		}
		start := time.Now()
		if err := sleep(r, timeout); err != nil {
			return err
		}
		if d := time.Since(start); d > timeout/2 {
			return fmt.Errorf("a Signal before Wait was lost (before Arm: %v)", early)
		}
	}
	return nil
}

// arm reads the queue until Arm returns true.
func (r *rank) arm() error {
	for end := time.Now().Add(timeout); !r.cq.Arm(); {
		if _, err := r.poll(); err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("arm returned false for %v", timeout)
		}
	}
	return nil
}

func testWaitLimit(w *world) {
	w.each(func(r *rank) error {
		for _, limit := range []time.Duration{0, time.Microsecond, 5 * time.Millisecond} {
			if err := r.arm(); err != nil {
				return err
			}
			start := time.Now()
			if err := r.cq.Wait(limit); err != nil {
				return err
			}
			if d := time.Since(start); d > limit+timeout/2 {
				return fmt.Errorf("a Wait of %v took %v", limit, d)
			}
		}
		return r.sync()
	})
}

// testIdle lets connected ranks sleep and checks how much processor time they use. If the domain
// has a descriptor (CapWaitFD), all ranks together must use less than a quarter of the time that
// one rank would use if it polled. Ranks of a domain without a descriptor may wake up from time to
// time. For them testIdle gives each rank a thread of its own and bounds the time of each thread.
// It also bounds the time of all ranks together, because many ranks that poll on few cores may each
// use little.
func testIdle(w *world) {
	const pause = 250 * time.Millisecond
	w.traffic(traffic{count: 2, sizes: []int{8}, headers: []int{16}, window: 1})
	naps := !w.attr.Caps.Has(transport.CapWaitFD)
	bound := pause / 4
	if naps {
		bound = pause / 2 * time.Duration(min(len(w.ranks), runtime.NumCPU()))
	}
	debug.FreeOSMemory() // a garbage collection now, so that none runs while the test measures
	before, err := processorTime(unix.RUSAGE_SELF)
	require.NoError(w.t, err)
	w.each(func(r *rank) error {
		if naps {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
		}
		before, err := processorTime(rusageThread)
		if err != nil {
			return err
		}
		for end := time.Now().Add(pause); time.Now().Before(end); {
			if err := r.arm(); err != nil {
				return err
			}
			if err := r.cq.Wait(time.Until(end)); err != nil {
				return err
			}
		}
		after, err := processorTime(rusageThread)
		// Check this only with naps, because without LockOSThread the goroutine may have changed
		// threads.
		if used := after - before; naps && used >= pause/4 {
			return fmt.Errorf("the idle rank used %v of processor time in %v", used, pause)
		}
		return err
	})
	after, err := processorTime(unix.RUSAGE_SELF)
	require.NoError(w.t, err)
	require.Less(w.t, after-before, bound)
}

// rusageThread is RUSAGE_THREAD of Linux and FreeBSD (getrusage(2)). macOS has no such value, so
// testIdle measures only the whole process there.
const rusageThread = 1

// processorTime returns the processor time that the process (RUSAGE_SELF) or the calling thread
// (rusageThread) has used.
func processorTime(scope int) (time.Duration, error) {
	var u unix.Rusage
	err := unix.Getrusage(scope, &u)
	if scope == rusageThread && runtime.GOOS == "darwin" {
		return 0, nil
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
}
