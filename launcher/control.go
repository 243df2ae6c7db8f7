package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/job"
	"golang.org/x/sys/unix"
)

// run is a job under way. Three goroutines carry it, however many ranks:
//
//	forkAll       on one thread for the whole job: starts ranks, then waits
//	output.loop   pipes → Stdio
//	control       the rest: ends of ranks, PMI-1, signals, deadlines
//
// control never blocks on what a rank or a terminal does or does not do.
type run struct {
	job    *job.Job
	id     string
	host   string
	begun  time.Time
	dir    string    // of built programs; "": none
	mem    *os.File  // what the ranks share; nil: nothing
	path   []string  // of executables, by app
	stderr io.Writer // never nil; see tell
	ranks  []rank
	output *output
	pmi    *pmiServer
	wd     *watchdog

	ep     int
	wake   int           // eventfd: the inbox has something
	again  chan struct{} // ^C while control has ended; one is enough
	forked chan struct{} // closed by forkAll at its end
	over   chan struct{} // closed when no rank lives: forkAll may end

	mu     sync.Mutex // guards what follows, and pid and pidfd of ranks that are being started
	inbox  []event
	unread bool // control reads no more of them
	stop   bool // start no more ranks

	// What control alone uses.
	allUp    int // ranks that were started, once forkAll has said so; -1: not yet
	ended    int // ranks that have exited
	failure  *Failure
	exitCode int
	signaled syscall.Signal // the last one passed on that asks a program to end
	interred bool           // ^C has come once
	killAt   time.Time      // when SIGTERM has had its time
	deadline time.Time      // the job's timeout
	reapAt   time.Time
	killed   bool // SIGKILL has been sent
	hurried  bool // nobody will wait for output that is not read
}

type eventKind int

const (
	evStarted   eventKind = iota // forkAll is through: rank ranks run; err is why not all
	evSignal                     // sig has come
	evCancelled                  // the caller's context ended with err
)

type event struct {
	kind eventKind
	rank int
	err  error
	sig  syscall.Signal
}

// The indexes of epoll events that are no rank's pidfd; a control channel's is
// ctlIndex minus its rank.
const (
	wakeIndex = -1
	ctlIndex  = -2
)

// reapEvery is how often children of ranks that have become ours are looked
// for among the dead.
const reapEvery = 10 * time.Second

func (r *run) post(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inbox = append(r.inbox, e)
	if r.unread && e.sig == syscall.SIGINT {
		select {
		case r.again <- struct{}{}:
		default:
		}
	}
	_, _ = unix.Write(r.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

func (r *run) stopped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stop
}

// control runs until every rank that was started has ended.
func (r *run) control() {
	var events [64]unix.EpollEvent
	r.allUp = -1
	r.reapAt = time.Now().Add(reapEvery)
	if r.job.Timeout > 0 {
		r.deadline = time.Now().Add(r.job.Timeout)
	}
	for r.allUp < 0 || r.ended < r.allUp {
		n, err := unix.EpollWait(r.ep, events[:], r.timeout())
		if err != nil && !errors.Is(err, unix.EINTR) {
			r.fail(&Failure{Rank: -1, Host: r.host, Reason: "epoll: " + err.Error()}, exitFailed)
			r.kill()
			return
		}
		r.timers()
		for i := 0; i < n; i++ {
			switch index := int(events[i].Pad); {
			case index == wakeIndex:
				r.readInbox()
			case index <= ctlIndex:
				r.readControl(ctlIndex - index)
			default:
				r.rankEnded(index)
			}
		}
	}
}

// timeout is the time until the next deadline, in milliseconds.
func (r *run) timeout() int {
	next := r.reapAt
	for _, t := range []time.Time{r.killAt, r.deadline} {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	return int(max(time.Until(next)+time.Millisecond-1, 0) / time.Millisecond)
}

func (r *run) timers() {
	now := time.Now()
	if !r.deadline.IsZero() && !now.Before(r.deadline) {
		r.deadline, r.hurried = time.Time{}, true
		r.fail(&Failure{Rank: -1, Host: r.host, Reason: fmt.Sprintf("the job ran longer than its timeout of %v", r.job.Timeout)}, exitTimeout)
	}
	if !r.killAt.IsZero() && !now.Before(r.killAt) {
		r.kill()
	}
	if !now.Before(r.reapAt) {
		r.reapAt = now.Add(reapEvery)
		newBelongs(r.id, r.pids()).reapOrphans()
	}
}

func (r *run) readInbox() {
	var count [8]byte
	_, _ = unix.Read(r.wake, count[:])
	r.mu.Lock()
	events := r.inbox
	r.inbox = nil
	r.mu.Unlock()
	for _, e := range events {
		switch e.kind {
		case evStarted:
			r.allUp = e.rank
			r.wd.groups(r.pids())
			r.verbose("%d ranks started after %v", e.rank, time.Since(r.begun).Round(100*time.Microsecond))
			for i := e.rank; i < len(r.ranks); i++ {
				r.noteEnd(i)
			}
			if e.err != nil {
				r.failStart(e.rank, e.err)
			}
		case evSignal:
			r.signal(e.sig)
		case evCancelled:
			r.hurried = true
			r.fail(&Failure{Rank: -1, Host: r.host, Reason: "the job was cancelled: " + e.err.Error()}, exitFailed)
		}
	}
}

// failStart ends the job because a rank could not be started.
func (r *run) failStart(rank int, err error) {
	code := exitFailed
	var se *startError
	if errors.As(err, &se) {
		code = se.code
	}
	r.fail(&Failure{Rank: rank, Host: r.host, Program: r.job.Apps[r.ranks[rank].app].Program, ExitCode: code, Reason: err.Error()}, code)
}

const withoutFinalize = "exited without Finalize"

// rankEnded judges how a rank ended.
func (r *run) rankEnded(i int) {
	rk := &r.ranks[i]
	r.mu.Lock()
	pid, fd := rk.pid, rk.pidfd
	r.mu.Unlock()
	st, ended := exitStatus(pid)
	if !ended || rk.exited {
		return
	}
	_ = unix.EpollCtl(r.ep, unix.EPOLL_CTL_DEL, fd, nil)
	_ = unix.Close(fd)
	r.mu.Lock()
	rk.pidfd = -1
	r.mu.Unlock()
	r.readControl(i) // what it said last: finalize, or abort
	r.closeControl(i)
	rk.exited, rk.status = true, st
	r.ended++
	r.noteEnd(i)
	f := &Failure{Rank: i, ExitCode: st.code, Signal: st.signal}
	switch {
	case r.failure != nil:
		if r.mourned(i) {
			code := st.exitCode()
			if code == 0 {
				f.Reason, code = withoutFinalize, exitFailed
			}
			r.blame(f, code)
		}
		return
	case st != (status{}):
		r.failOf(i, f, st.exitCode())
		return
	}
	early, err := r.pmi.exit(i)
	var hang *hangError
	switch {
	case early && r.ended < len(r.ranks):
		f.Reason = withoutFinalize
		r.failOf(i, f, exitFailed)
	case errors.As(err, &hang):
		f.Rank, f.Reason = hang.rank, err.Error()
		r.failOf(i, f, exitFailed)
	}
}

// noteEnd notes for the other ranks that a rank's process has ended, or will never be
// there. Those that do not end by SIGTERM would wait for one that has left no trace
// in the memory that they share.
func (r *run) noteEnd(i int) {
	if r.mem != nil {
		_ = wire.PutShmEnded(r.mem, i) // where it cannot be written to, the rank has its own way to tell
	}
}

// readControl takes what has come over a rank's control channel.
func (r *run) readControl(i int) {
	rk := &r.ranks[i]
	for rk.ctl >= 0 {
		var buf [4 * wire.PMIMaxLine]byte
		n, _, err := unix.Recvfrom(rk.ctl, buf[:], unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return
		case err != nil || n == 0:
			r.closeControl(i)
			return
		}
		rk.in = append(rk.in, buf[:n]...)
		for rk.ctl >= 0 {
			line, rest, ok, err := wire.PMILine(rk.in)
			if err == nil && !ok {
				break
			}
			if err == nil {
				err = r.pmi.line(i, line)
			}
			if err != nil {
				r.controlError(i, err)
			}
			if rk.ctl >= 0 {
				rk.in = append(rk.in[:0], rest...)
			}
		}
		if n < len(buf) {
			return // all there was; more makes another event
		}
	}
}

// controlError ends the job for what a rank said, or did not say well.
func (r *run) controlError(i int, err error) {
	f := &Failure{Rank: i}
	code := exitFailed
	var abort *pmiAbort
	var hang *hangError
	switch {
	case errors.As(err, &abort):
		code = abort.code
		f.ExitCode, f.Reason = code, "called Abort"
		if abort.reason != "" {
			f.Reason += ": " + abort.reason
		}
	case errors.As(err, &hang):
		f.Rank, f.Reason = hang.rank, err.Error()
	default:
		f.Reason = "does not speak PMI-1 on its control channel: " + err.Error()
		r.closeControl(i)
	}
	r.failOf(i, f, code)
	r.ranks[i].dying = false // it has said why
}

func (r *run) closeControl(i int) {
	rk := &r.ranks[i]
	if rk.ctl >= 0 {
		// Closing would not do: a rank that is being forked has a copy.
		_ = unix.EpollCtl(r.ep, unix.EPOLL_CTL_DEL, rk.ctl, nil)
		_ = unix.Close(rk.ctl)
		rk.ctl, rk.in = -1, nil
	}
}

// reply sends a line to a rank. A rank asks and then reads, so there is always
// room; one that only asks is cut off.
func (r *run) reply(i int, line []byte) {
	rk := &r.ranks[i]
	if rk.ctl < 0 {
		return
	}
	for {
		err := unix.Send(rk.ctl, line, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) {
			r.closeControl(i)
		}
		return // a rank that has gone is seen by its pidfd
	}
}

// relay turns signals and the end of ctx into events. done ends it.
func (r *run) relay(ctx context.Context, signals <-chan os.Signal, done <-chan struct{}) {
	cancelled := ctx.Done()
	for {
		select {
		case s := <-signals:
			if sig, ok := s.(syscall.Signal); ok {
				r.post(event{kind: evSignal, sig: sig})
			}
		case <-cancelled:
			cancelled = nil
			r.post(event{kind: evCancelled, err: context.Cause(ctx)})
		case <-done:
			return
		}
	}
}
