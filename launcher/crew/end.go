package crew

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/launcher/proto"
	"golang.org/x/sys/unix"
)

// rankEnded notes how a rank ended, and tells of it where that was not well.
func (c *Crew) rankEnded(i int) {
	rk := &c.ranks[i]
	c.mu.Lock()
	pid, fd := rk.pid, rk.pidfd
	c.mu.Unlock()
	st, ended := c.exitOf(pid)
	if ended && !rk.exited {
		c.noteExit(i, pid, fd, st)
	}
}

// giveUp counts ranks that do not end by SIGKILL as if they had.
func (c *Crew) giveUp() {
	c.stuckAt = time.Time{}
	if c.allUp < 0 { // some may come yet
		c.stuckAt = time.Now().Add(c.patience)
	}
	for i := range c.ranks {
		rk := &c.ranks[i]
		c.mu.Lock()
		pid, fd := rk.pid, rk.pidfd
		c.mu.Unlock()
		if pid > 0 && !rk.exited {
			rk.stuck = true
			c.noteExit(i, pid, fd, status{signal: syscall.SIGKILL})
		}
	}
}

func (c *Crew) noteExit(i, pid, fd int, st status) {
	rk := &c.ranks[i]
	_ = unix.EpollCtl(c.ep, unix.EPOLL_CTL_DEL, fd, nil)
	_ = unix.Close(fd)
	c.mu.Lock()
	rk.pidfd = -1
	c.mu.Unlock()
	c.endControl(i)
	rk.exited, rk.status = true, st
	c.ended++
	c.noteEnd(i)
	early, joined := c.pmi.exit(i)
	rk.exit = proto.Exit{
		Rank: c.plan.Ranks[i].Rank, PID: pid, Code: st.code, Signal: int(st.signal), At: time.Now().UnixNano(),
		Early: early, Joined: joined, Final: c.ended == len(c.ranks),
		Told: c.told, Doomed: rk.doomed, Dying: rk.dying, Stuck: rk.stuck,
	}
	if st == (status{}) && !early {
		if c.stateAt.IsZero() && !c.watched {
			c.stateAt = time.Now().Add(stateDelay)
		}
		return
	}
	if st.signal == 0 {
		c.note(i)
	}
	c.cfg.Emit(proto.Exited{Exit: rk.exit})
}

// note is called when rank i has failed the job by itself, and not by a signal. It
// notes which other ranks somebody has sent SIGKILL, and which are on their way out
// while rank i still runs, and so not because of it: others learn of a death, and
// abort or leave because of it, before the kernel reports it here.
func (c *Crew) note(i int) {
	if c.noted || c.told {
		return
	}
	c.noted = true
	runs := c.runs(i)
	for j := range c.ranks {
		if j != i {
			c.noteFacts(j, runs)
		}
	}
}

func (c *Crew) noteFacts(j int, failedRuns bool) {
	rk := &c.ranks[j]
	c.mu.Lock()
	pid := rk.pid
	c.mu.Unlock()
	if pid > 0 && !rk.exited {
		rk.doomed = killSent(pid)
		rk.dying = failedRuns && exiting(pid)
	}
}

// runs says whether a rank has been started and not ended.
func (c *Crew) runs(i int) bool {
	c.mu.Lock()
	pid := c.ranks[i].pid
	c.mu.Unlock()
	if pid <= 0 || c.ranks[i].exited {
		return false
	}
	_, ended := exitStatus(pid)
	return !ended
}

// exiting says whether the first thread of a process is in exit(2) or past it:
// the kernel closes a process's files when all its threads are
// (proc_pid_stat(5), flags).
func exiting(pid int) bool {
	const pfExiting = 4 // linux/sched.h
	fields := statOf(pid)
	if len(fields) < 7 { // it cannot be read, and nothing is said
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

// end ends the ranks.
func (c *Crew) end(m proto.End) {
	if c.phase != phaseRunning {
		return
	}
	if !c.told && !c.noted { // the cause is on another host, or none of a rank's
		c.noted = true
		for j := range c.ranks {
			if c.plan.Ranks[j].Rank != m.Except {
				c.noteFacts(j, true)
			}
		}
	}
	c.told = true
	c.mu.Lock()
	c.stop = true
	c.mu.Unlock()
	if m.Grace <= 0 {
		c.kill()
		return
	}
	killAt := time.Now().Add(m.Grace)
	if !c.killAt.IsZero() || !c.stuckAt.IsZero() { // they have been told before
		if killAt.Before(c.killAt) {
			c.killAt = killAt
		}
		return
	}
	for i := range c.ranks {
		if c.plan.Ranks[i].Rank == m.Except && !c.ranks[i].exited {
			continue // it called Abort and is about to end, with its last words
		}
		c.signalRank(i, syscall.SIGTERM)
		c.signalRank(i, syscall.SIGCONT) // or a stopped one would not see it
	}
	c.killAt = killAt
}

// kill ends every process group at once.
func (c *Crew) kill() {
	c.killAt = time.Time{}
	if c.phase == phaseRunning && c.stuckAt.IsZero() {
		c.stuckAt = time.Now().Add(c.patience)
	}
	c.told = true
	c.mu.Lock()
	c.stop = true
	c.mu.Unlock()
	for i := range c.ranks {
		c.signalRank(i, syscall.SIGKILL)
	}
}

// signalRank signals a rank's process group. The rank is not reaped before the
// job's end, so the group is its own even if it has exited.
func (c *Crew) signalRank(i int, s syscall.Signal) {
	c.mu.Lock()
	pid := c.ranks[i].pid
	c.mu.Unlock()
	if pid > 0 {
		_ = syscall.Kill(-pid, s)
	}
}

// signal passes a signal on.
func (c *Crew) signal(s syscall.Signal) {
	if c.phase != phaseRunning {
		return
	}
	for i := range c.ranks {
		c.signalRank(i, s)
	}
}

// finish runs when every rank has ended: it ends what they left behind, and has
// their last output passed on.
func (c *Crew) finish() {
	c.phase = phaseEnded
	c.killAt, c.stuckAt = time.Time{}, time.Time{}
	limit := time.Now().Add(sweepLimit)
	pids := c.pids()
	for _, pid := range pids {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
	if c.job.Segments {
		removeSegments(pids, c.begun)
	}
	// It forgets the groups, which have been killed: their numbers are about to be
	// anybody's.
	c.cfg.Watchdog.Job(c.job.Card.JobID)
	left := newBelongs(c.job.Card.JobID, pids)
	for i := range c.ranks {
		rk := &c.ranks[i]
		if rk.stuck {
			reapNow(rk.pid) // just in case
			left.stuck[rk.pid] = true
		} else if rk.exited {
			reap(rk.pid, time.Until(limit))
		}
	}
	left.sweepChildren(time.Until(limit))
	left.reapOrphans(c.orphans)
	close(c.over)
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
		c.closeNews(i)
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
	if !c.loops {
		c.output.abandon()
	}
	c.stateAt = time.Now().Add(stateDelay)
	go func() { // ends when the output is written; Close does not wait for it
		<-c.output.done
		c.post(drained{})
	}()
}

// emitEnded tells how everything ended.
func (c *Crew) emitEnded() {
	m := proto.Ended{Exits: make([]proto.Exit, 0, len(c.ranks))}
	for i := range c.ranks {
		rk := &c.ranks[i]
		if !rk.exited { // it was never started
			continue
		}
		m.Exits = append(m.Exits, rk.exit)
		if rk.status != (status{}) || rk.exit.Early {
			if lines := c.lastWords(i); len(lines) > 0 {
				m.Tails = append(m.Tails, proto.Tail{Rank: rk.exit.Rank, Lines: lines})
			}
		}
	}
	c.cfg.Emit(m)
}

// lastWords are the last lines of a rank's stderr.
func (c *Crew) lastWords(i int) []string {
	if c.cfg.OutputDir == "" {
		return lastLines(c.output.streams[2*i+1].tail)
	}
	f, err := os.Open(c.outputFile(i, 1))
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return nil
	}
	at := max(st.Size()-tailBytes, c.ranks[i].errAt)
	tail := make([]byte, max(st.Size()-at, 0))
	n, err := f.ReadAt(tail, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	return lastLines(tail[:n])
}

// release is the end of control.
func (c *Crew) release() {
	if c.phase == phasePrepared {
		c.ports.close()
	}
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	for _, fd := range []int{c.ep, c.wake} {
		_ = unix.Close(fd)
	}
	closeFiles(c.mem)
	if c.files != nil {
		c.files.close()
	}
}
