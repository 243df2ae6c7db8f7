package launcher

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// caught are the signals that are passed on to the ranks.
var caught = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTSTP, syscall.SIGHUP,
}

// catchSignals begins to catch; a job under nohup goes on ignoring HUP. PIPE is
// caught so that a write whose reader has gone fails, and does not end gorun.
func catchSignals() (c chan os.Signal, stop func()) {
	c = make(chan os.Signal, 64)
	for _, s := range caught {
		if s == syscall.SIGHUP && signal.Ignored(s) {
			continue
		}
		signal.Notify(c, s)
	}
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	return c, func() {
		signal.Stop(c)
		signal.Stop(pipe)
	}
}

// asksToEnd says whether a program that does not know a signal ends by it, so
// that the job does not go on without its ranks.
func asksToEnd(s syscall.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGQUIT || s == syscall.SIGHUP
}

// buildContext ends when a signal asks for it, while programs are built and no
// rank is there to get it.
func buildContext(ctx context.Context, signals <-chan os.Signal) (_ context.Context, stop func() syscall.Signal) {
	ctx, cancel := context.WithCancel(ctx)
	got := make(chan syscall.Signal, 1)
	go func() { // ends with ctx; stop waits for it
		defer close(got)
		for {
			select {
			case s := <-signals:
				if sig, ok := s.(syscall.Signal); ok && asksToEnd(sig) {
					got <- sig
					cancel()
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() syscall.Signal {
		cancel()
		return <-got
	}
}

// fail notes the first failure in time, and ends the job.
func (r *run) fail(f *Failure, code int) {
	if r.failure != nil {
		return
	}
	r.blame(f, code)
	r.mu.Lock()
	r.stop = true
	r.mu.Unlock()
	if r.killed {
		return
	}
	if r.job.Grace <= 0 {
		r.kill()
		return
	}
	for i := range r.ranks {
		if i == f.Rank && f.ExitCode != 0 && !r.ranks[i].exited {
			continue // it called Abort and is about to end, with its last words
		}
		r.signalRank(i, syscall.SIGTERM)
		r.signalRank(i, syscall.SIGCONT) // or a stopped one would not see it
	}
	r.killAt = time.Now().Add(r.job.Grace)
}

// blame notes what the job failed of.
func (r *run) blame(f *Failure, code int) {
	f.Host = r.host
	if f.Rank >= 0 {
		f.Program = r.job.Apps[r.ranks[f.Rank].app].Program
	}
	r.failure, r.exitCode = f, code
}

// failOf is fail for what rank i did by itself. It first notes which ranks somebody
// has sent SIGKILL, and which are on their way out while rank i still runs, and so
// not because of it: others learn of a death, and abort or leave because of it,
// before the kernel reports it here.
func (r *run) failOf(i int, f *Failure, code int) {
	if r.failure == nil && f.Signal == 0 && r.signaled == 0 {
		runs := r.runs(i)
		for j := range r.ranks {
			rk := &r.ranks[j]
			r.mu.Lock()
			pid := rk.pid
			r.mu.Unlock()
			rk.doomed = j != i && !rk.exited && pid > 0 && killSent(pid)
			rk.dying = j != i && !rk.exited && pid > 0 && runs && exiting(pid)
		}
	}
	r.fail(f, code)
}

// runs says whether a rank has been started and not ended.
func (r *run) runs(i int) bool {
	r.mu.Lock()
	pid := r.ranks[i].pid
	r.mu.Unlock()
	if pid <= 0 || r.ranks[i].exited {
		return false
	}
	_, ended := exitStatus(pid)
	return !ended
}

// mourned says whether the job failed of what another did when rank i, which has
// ended since, had been killed, or was leaving by itself without having said why.
// Of several that were leaving the first to end is named.
func (r *run) mourned(i int) bool {
	rk, f := &r.ranks[i], r.failure
	switch {
	case f.Signal != 0:
		return false
	case rk.status.signal != 0:
		return rk.doomed && rk.status.signal == syscall.SIGKILL
	case rk.status.code == 0 && !r.pmi.ranks[i].joined: // it has finalized
		return false
	}
	return rk.dying && f.Rank >= 0 && !r.ranks[f.Rank].dying
}

// exiting says whether the first thread of a process is in exit(2) or past it:
// the kernel closes a process's files when all its threads are
// (proc_pid_stat(5), flags).
func exiting(pid int) bool {
	const pfExiting = 4                                            // linux/sched.h
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat") // where it cannot be read, nothing is said
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 7 {
		return false
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	return err == nil && flags&pfExiting != 0
}

// killSent says whether a process that has not been reaped was sent SIGKILL, which
// stays among the signals that are pending for the whole process
// (proc_pid_status(5)).
func killSent(pid int) bool {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status") // where it cannot be read, nothing is said
	_, rest, _ := strings.Cut(string(text), "\nShdPnd:")
	mask, _, _ := strings.Cut(rest, "\n")
	pending, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
	return err == nil && pending>>(syscall.SIGKILL-1)&1 == 1
}

// kill ends every process group at once.
func (r *run) kill() {
	r.killAt = time.Time{}
	r.killed = true
	r.mu.Lock()
	r.stop = true
	r.mu.Unlock()
	for i := range r.ranks {
		r.signalRank(i, syscall.SIGKILL)
	}
}

// signalRank signals a rank's process group. The rank is not reaped before the
// job's end, so the group is its own even if it has exited.
func (r *run) signalRank(i int, s syscall.Signal) {
	r.mu.Lock()
	pid := r.ranks[i].pid
	r.mu.Unlock()
	if pid > 0 {
		_ = syscall.Kill(-pid, s)
	}
}

// signal passes a signal on. The second ^C, and any while the job is being
// ended, kills.
func (r *run) signal(s syscall.Signal) {
	if s == syscall.SIGTSTP {
		r.suspend()
		return
	}
	if s == syscall.SIGINT && (r.interred || r.failure != nil) {
		r.hurried = true
		r.fail(&Failure{Rank: -1, Signal: s, Reason: "interrupted twice"}, exitSignalFloor+int(s))
		r.kill()
		return
	}
	r.interred = r.interred || s == syscall.SIGINT
	if asksToEnd(s) {
		r.signaled = s
		if r.allUp < 0 { // some ranks would never get it
			r.fail(&Failure{Rank: -1, Signal: s}, exitSignalFloor+int(s))
		}
	}
	for i := range r.ranks {
		r.signalRank(i, s)
	}
}

// suspend does what ^Z means: the ranks are in process groups of their own,
// which the terminal does not stop.
func (r *run) suspend() {
	for i := range r.ranks {
		r.signalRank(i, syscall.SIGTSTP)
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) // returns when the shell lets us go on
	for i := range r.ranks {
		r.signalRank(i, syscall.SIGCONT)
	}
}

// pids are the ranks that were started; their pids name their groups.
func (r *run) pids() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	var pids []int
	for i := range r.ranks {
		if pid := r.ranks[i].pid; pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// drainLimit is for how long output that nobody reads holds up a job that was
// not left to end by itself.
const drainLimit = time.Second

// finish runs when every rank has ended: it ends what they left behind, and
// waits until their output is written.
func (r *run) finish(in *input) {
	r.mu.Lock()
	r.unread = true
	for _, e := range r.inbox {
		r.hurried = r.hurried || e.sig == syscall.SIGINT
	}
	r.mu.Unlock()
	pids := r.pids()
	for _, pid := range pids {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
	if wantsLibfabric(r.job.Params) {
		removeSegments(pids, r.begun)
	}
	for _, pid := range pids {
		reap(pid, sweepLimit)
	}
	left := newBelongs(r.id, pids)
	left.sweepChildren(sweepLimit)
	left.reapOrphans()
	close(r.over)
	<-r.forked
	in.close()
	for i := range r.ranks {
		r.closeControl(i)
		if fd := r.ranks[i].pidfd; fd >= 0 {
			_ = unix.Close(fd)
			r.ranks[i].pidfd = -1
		}
	}
	r.output.finish()
	r.drain()
}

// drain waits until the output is written. Whoever reads it may take his time,
// unless the job ran into its timeout, or the user says ^C now.
func (r *run) drain() {
	if !r.hurried {
		select {
		case <-r.output.done:
			return
		case <-r.again:
		}
	}
	select {
	case <-r.output.done:
	case <-time.After(drainLimit):
	}
}
