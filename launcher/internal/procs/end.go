package procs

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/proto"
	"golang.org/x/sys/unix"
)

// rankEnded checks whether a rank's process has ended. If so, and for the first time, it handles
// the end.
func (c *Manager) rankEnded(i int) {
	rk := &c.ranks[i]
	c.mu.Lock()
	pid, fd := rk.pid, rk.pidfd
	c.mu.Unlock()
	if pid <= 0 || rk.exited {
		return
	}
	if st, ended := c.exitOf(pid); ended {
		c.recordExit(i, pid, fd, st)
	}
}

// abandonStuck records the ranks that SIGKILL has not ended as ended, so that the job can end.
func (c *Manager) abandonStuck() {
	c.stuckAt = time.Time{}
	if c.numStarted < 0 { // forkAll may still start ranks: check these later
		c.stuckAt = time.Now().Add(c.stuckAfter)
	}
	for i := range c.ranks {
		rk := &c.ranks[i]
		c.mu.Lock()
		pid, fd := rk.pid, rk.pidfd
		c.mu.Unlock()
		if pid > 0 && !rk.exited {
			rk.stuck = true
			c.recordExit(i, pid, fd, status{signal: syscall.SIGKILL})
		}
	}
}

// recordExit handles the end of rank i, whose process was pid. fd is its pidfd, or -1 on a system
// without pidfds. Unless the rank has ended normally, recordExit emits Exited. A rank ends normally
// if its exit code is 0 and it has not called Init without Finalize.
func (c *Manager) recordExit(i, pid, fd int, st status) {
	rk := &c.ranks[i]
	if fd >= 0 {
		c.poller.Remove(fd)
		_ = unix.Close(fd)
	} else if !rk.stuck { // without a pidfd, exitStatus has reaped the rank
		c.cfg.Watchdog.reaped(pid)
	}
	c.mu.Lock()
	rk.pidfd = -1
	c.mu.Unlock()
	c.endControl(i)
	rk.exited, rk.status = true, st
	c.drainer.rankEnded(i)
	c.captured.drainer.rankEnded(i)
	c.stopAsking(i)
	c.ended++
	c.markEnded(i)
	early, joined := c.pmi.exit(i)
	now := time.Now()
	rk.exit = proto.Exit{
		Rank: c.plan.Ranks[i].Rank, PID: pid, Code: st.code, Signal: int(st.signal), At: now.UnixNano(), Account: c.pmi.account(i, now.Sub(rk.at)),
		Early: early, Joined: joined, Final: c.ended == len(c.ranks),
		AfterEnd: c.ending, KillPending: rk.killPending, Exiting: rk.exiting, Stuck: rk.stuck,
		Late: c.graceOver && st.signal == syscall.SIGKILL,
	}
	if st.signal == syscall.SIGKILL && !c.ending {
		rk.exit.Memory = c.cfg.shared.memoryReason()
	}
	if st.signal != 0 {
		rk.exit.Last = c.lastText(i)
	}
	if !rk.stuck {
		rk.exit.Usage = usageOf(pid)
	}
	if st == (status{}) && !early {
		if c.stateAt.IsZero() && !c.watchState {
			c.stateAt = time.Now().Add(stateDelay)
		}
		return
	}
	if st.signal == 0 {
		c.recordFailure(i, c.runs(i))
	}
	c.cfg.Emit(proto.Exited{Exit: rk.exit})
}

// recordFailure records the state of the other ranks when rank i has failed the job by itself: it
// has called Abort, has broken the PMI-1 protocol, or has exited abnormally without a signal. The
// record is needed because rank i may notice that another rank has died, and may abort or exit
// because of that, before the kernel reports the other rank's end to this process.
//
// recordFailure records which of the other ranks have got SIGKILL from another process. If
// independent is set, it also records which of them are ending. independent means that their ends
// cannot follow from the failure of rank i: rank i still runs, or its abort names another rank's
// failure as the reason. recordFailure records only the first failure on this host, and nothing
// after control has begun to end the ranks.
func (c *Manager) recordFailure(i int, independent bool) {
	if c.recorded || c.ending {
		return
	}
	c.recorded = true
	for j := range c.ranks {
		if j != i {
			c.recordProcess(j, independent)
		}
	}
}

// recordProcess records whether another process has sent SIGKILL to rank j, and, if independent is
// set, whether rank j is ending. It records nothing for a rank that does not run.
func (c *Manager) recordProcess(j int, independent bool) {
	rk := &c.ranks[j]
	c.mu.Lock()
	pid := rk.pid
	c.mu.Unlock()
	if pid > 0 && !rk.exited {
		var ends bool
		rk.killPending, ends = killed(pid)
		rk.exiting = independent && (ends || exiting(pid))
	}
}

// runs reports whether a rank was started and has not ended.
func (c *Manager) runs(i int) bool {
	c.mu.Lock()
	pid := c.ranks[i].pid
	c.mu.Unlock()
	if pid <= 0 || c.ranks[i].exited {
		return false
	}
	_, ended := exitStatus(pid)
	return !ended
}

// exiting reports whether the first thread of a process has entered exit(2) (proc_pid_stat(5),
// flags). If this is not known, exiting returns false.
func exiting(pid int) bool {
	const pfExiting = 4 // PF_EXITING of linux/sched.h
	fields := statOf(pid)
	if len(fields) < 7 {
		return false
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	return err == nil && flags&pfExiting != 0
}

// killed reports which SIGKILLs are pending for a process that has not been reaped
// (proc_pid_status(5)). sent: another process sent SIGKILL, which stays pending for the
// whole process. ends: the kernel ends the threads, because one of them has called
// exit_group(2) or because of a signal, and the first thread has not handled its SIGKILL
// yet. Both are false if the file cannot be read.
func killed(pid int) (sent, ends bool) {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	pending := func(field string) bool {
		_, rest, _ := strings.Cut(string(text), "\n"+field+":")
		mask, _, _ := strings.Cut(rest, "\n")
		set, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
		return err == nil && set>>(syscall.SIGKILL-1)&1 == 1
	}
	return pending("ShdPnd"), pending("SigPnd")
}

// end handles End: it begins to end the ranks. If m.Grace is 0, the ranks get SIGKILL at once.
// Otherwise terminate sends them SIGTERM within m.Linger, and the ranks that still run after
// m.Linger plus m.Grace get SIGKILL. A later End can only make SIGKILL come sooner.
func (c *Manager) end(m proto.End) {
	if c.phase != phaseRunning {
		return
	}
	if !c.ending && !c.recorded { // no rank of this host has failed the job by itself
		c.recorded = true
		for j := range c.ranks {
			if c.plan.Ranks[j].Rank != m.Except {
				c.recordProcess(j, true)
			}
		}
	}
	c.beginEnd()
	if m.Grace <= 0 {
		c.kill()
		return
	}
	now := time.Now()
	killAt := now.Add(m.Grace + m.Linger)
	c.refuse = c.refuse || m.Failed
	if !c.killAt.IsZero() || !c.stuckAt.IsZero() { // an earlier End has begun to end the ranks
		if killAt.Before(c.killAt) {
			c.killAt = killAt
		}
		c.refuseBarriers()
		return
	}
	for i := range c.ranks {
		// m.Asked: another process has sent the ranks SIGTERM, so they get none here. m.Except is a
		// rank that has called Abort. It gets none while it runs, because it ends by itself after
		// its last output.
		c.ranks[i].signaled = m.Asked
		c.ranks[i].termDone = m.Asked || c.plan.Ranks[i].Rank == m.Except && !c.ranks[i].exited
	}
	c.killAt, c.termBy = killAt, now.Add(m.Linger)
	c.terminate()
}

// beginEnd sets c.ending and prevents the start of more ranks. First it handles the ranks that have
// already ended, so that their reports do not say that the process manager has ended them.
func (c *Manager) beginEnd() {
	if !c.ending {
		for j := range c.ranks {
			c.rankEnded(j)
		}
	}
	c.ending = true
	c.mu.Lock()
	c.stop = true
	c.mu.Unlock()
}

// endRank sends a rank a signal to end it. First it reads what the rank has written to its control
// channel, so that Aborted.AfterEnd is false for an abort that the rank wrote before the signal.
func (c *Manager) endRank(i int, s syscall.Signal) {
	c.drainControl(i)
	c.ranks[i].signaled = true
	c.signalRank(i, s)
}

// Several ranks may fail for the same reason at slightly different times, and one of them may not
// have written its error message yet. So a rank that is busy when the job ends has up to End.Linger
// to end by itself before it gets SIGTERM. If idleLooks consecutive checks find a rank idle, the
// rank probably waits for something, and gets SIGTERM at once.
const (
	lingerStep = 5 * time.Millisecond // time between two checks
	idleLooks  = 2                    // number of consecutive checks that must find a rank idle
)

// terminate sends SIGTERM to each rank once. It skips the ranks whose termDone is set: [Manager.end]
// sets it for ranks that must not get SIGTERM, and terminate sets it when it sends the signal.
// Before termBy, terminate also skips a running rank until idleLooks consecutive checks have found
// the rank idle. If it skips such a rank, it sets termCheckAt, so that it runs again after
// lingerStep.
func (c *Manager) terminate() {
	now := time.Now()
	c.termCheckAt = time.Time{}
	for i := range c.ranks {
		rk := &c.ranks[i]
		if rk.termDone {
			continue
		}
		c.mu.Lock()
		pid := rk.pid
		c.mu.Unlock()
		if now.Before(c.termBy) && pid > 0 && !rk.exited {
			if rk.idle++; c.busyOf(pid) {
				rk.idle = 0
			}
			if rk.idle < idleLooks {
				c.termCheckAt = now.Add(lingerStep)
				continue
			}
		}
		rk.termDone = true
		c.endRank(i, syscall.SIGTERM)
		c.signalRank(i, syscall.SIGCONT) // a stopped process does not handle SIGTERM
	}
	c.refuseBarriers()
}

// refuseBarriers refuses barriers to the ranks that were sent SIGTERM, which ends most of them before they
// could report that, if a failure is the reason for the end.
func (c *Manager) refuseBarriers() {
	for i := range c.ranks {
		if c.refuse && c.ranks[i].termDone {
			c.pmi.refuse(i)
		}
	}
}

// busy reports whether a thread of a process or of one of its descendants runs, waits for a
// processor, or waits for a disk. If there is no /proc, busy returns false.
func busy(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid) + "/task/"
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, t := range tasks {
		if f := fieldsOf(dir + t.Name() + "/stat"); len(f) > 0 && (f[0] == "R" || f[0] == "D") {
			return true
		}
		// On a kernel without this file, only the process itself is checked.
		text, _ := os.ReadFile(dir + t.Name() + "/children")
		for f := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(f); err == nil && busy(child) {
				return true
			}
		}
	}
	return false
}

// kill sends SIGKILL to every rank's process group, and prevents the start of more ranks.
func (c *Manager) kill() {
	c.killAt, c.termCheckAt = time.Time{}, time.Time{}
	if c.phase == phaseRunning && c.stuckAt.IsZero() {
		c.stuckAt = time.Now().Add(c.stuckAfter)
	}
	c.beginEnd()
	for i := range c.ranks {
		c.endRank(i, syscall.SIGKILL)
	}
}

// signalRank signals the process group of a rank, if the rank was started.
func (c *Manager) signalRank(i int, s syscall.Signal) {
	c.mu.Lock()
	pid := c.ranks[i].pid
	c.mu.Unlock()
	if pid > 0 {
		signalGroup(pid, s)
	}
}

// signal passes a signal to the ranks. On SIGQUIT gorun itself prints the states of the ranks that
// answer inspections. These ranks do not get SIGQUIT, because the Go runtime would print the same
// in many lines.
func (c *Manager) signal(s syscall.Signal) {
	if c.phase != phaseRunning {
		return
	}
	for i := range c.ranks {
		if s == syscall.SIGQUIT && c.ranks[i].answers.ready {
			continue
		}
		c.signalRank(i, s)
	}
}

// finish runs when every rank has ended. It kills the processes that ranks have left behind, and
// makes the goroutine [output.loop] pass on what is still in the pipes.
func (c *Manager) finish() {
	c.phase = phaseEnded
	c.killAt, c.stuckAt, c.termCheckAt = time.Time{}, time.Time{}, time.Time{}
	pids := c.pids()
	for _, pid := range pids {
		signalGroup(pid, syscall.SIGKILL)
	}
	if slices.ContainsFunc(c.ranks, func(rk rank) bool { return rk.stuck }) {
		c.cgroup.end(0) // the stuck process stays in the group, so waiting for the group's end is useless
	} else {
		c.cgroup.end(leftoverLimit)
	}
	limit := time.Now().Add(leftoverLimit)
	if c.job.Segments {
		removeSegments(pids, c.begun)
	}
	over := ""
	if c.job.Card.Group > 0 {
		over = c.job.Card.JobID
	}
	// The watchdog forgets the process groups, because their numbers may soon belong to other
	// processes.
	c.cfg.Watchdog.killed(pids, c.cgroup, over)
	// A process that has no mark may belong to another group that runs on this host.
	left := c.jobProcs(pids, c.cfg.shared.leave())
	for i := range c.ranks {
		rk := &c.ranks[i]
		if rk.stuck {
			reapNow(rk.pid) // the process may have ended by now
			left.stuck[rk.pid] = true
		} else if rk.exited {
			reap(rk.pid, time.Until(limit))
		}
	}
	left.killLeftoverChildren(time.Until(limit))
	left.reapOrphans(c.orphans)
	close(c.allExited)
	<-c.forked
	if c.in != nil {
		c.in.close()
	}
	if c.feed != nil {
		c.feed.close()
	}
	for i := range c.ranks {
		rk := &c.ranks[i]
		c.closeControl(i)
		c.closeNotify(i)
		c.closeAnswers(i)
		if rk.pidfd >= 0 {
			_ = unix.Close(rk.pidfd)
			rk.pidfd = -1
		}
	}
	if c.output == nil {
		c.emitEnded()
		return
	}
	c.output.finish()
	if !c.outputStarted {
		c.output.abandon()
	}
	c.stateAt = time.Now().Add(stateDelay)
	c.endCapture()
	go func() { // ends when output.loop and drainer.run have ended; Close does not wait for it
		c.drainer.wait()
		<-c.output.done
		c.post(drained{})
	}()
}

// emitEnded emits Ended with the exits of all ranks that were started, and with the last lines of
// stderr of those that have not ended normally.
func (c *Manager) emitEnded() {
	m := proto.Ended{Group: c.job.Card.Group, Exits: make([]proto.Exit, 0, len(c.ranks))}
	for i := range c.ranks {
		rk := &c.ranks[i]
		if !rk.exited { // the rank was not started
			continue
		}
		m.Exits = append(m.Exits, rk.exit)
		if rk.status != (status{}) || rk.exit.Early {
			if lines := lastLines(c.output.streams[2*i+1].tail); len(lines) > 0 {
				m.Tails = append(m.Tails, proto.Tail{Rank: rk.exit.Rank, Lines: lines})
			}
		}
	}
	if c.job.Stats {
		m.Figures = c.figures(true)
	}
	c.cfg.Emit(m)
}

// release frees what [Manager.control] uses. control calls release when it ends.
func (c *Manager) release() {
	if c.phase == phasePrepared {
		c.ports.close()
	}
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.poller.Close()
	c.wake.Close()
	closeFiles(c.mem)
	c.drainer.wait()
	c.endCapture()
	c.captured.drainer.join()
	c.records.close()
	c.cfg.shared.free(c.reserved)
	c.endClaims()
	if c.files != nil {
		c.files.close()
	}
}
