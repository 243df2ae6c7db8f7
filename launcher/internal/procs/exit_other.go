//go:build !linux || portable

package procs

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/proto"
	"golang.org/x/sys/unix"
)

// What systems other than Linux lack, and what this file does instead:
//
//	a process dies with its parent      the watchdog kills the ranks' groups
//	pidfd                               at each SIGCHLD, the Manager checks all ranks
//	waitid leaves a zombie              the rank is reaped; afterwards its group gets signals
//	                                    only while no process has its number
//	orphans become our children         orphans outside the ranks' groups are not found
//	/proc, to find the job's processes  processes outside the ranks' groups are not found

// errLibrary stands for an error that only Linux has. No error of these systems equals it.
var errLibrary = errors.New("interpreter cannot be used")

// forkExec starts a process. pidfd is -1.
func forkExec(path string, argv []string, attr *syscall.ProcAttr, _ *cgroup) (pid, pidfd int, err error) {
	pid, err = syscall.ForkExec(path, argv, attr)
	if err == nil {
		exits.Delete(pid) // a rank that was reaped may have had the same pid
	}
	return pid, -1, err
}

// noticeExits makes the Manager check the ranks whenever a child of this process has ended.
func (c *Manager) noticeExits() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	go func() { // ends when Manager.control has ended
		defer signal.Stop(ended)
		for {
			select {
			case <-ended:
				c.post(childEnded{})
			case <-c.done:
				return
			}
		}
	}()
}

// exits holds the status of each child that exitStatus has reaped, by pid.
var exits sync.Map

// exitStatus returns how a child ended. It does not block; ended is false if the child runs.
func exitStatus(pid int) (st status, ended bool) {
	if st, ok := exits.Load(pid); ok {
		return st.(status), true
	}
	var ws unix.WaitStatus
	for {
		got, err := unix.Wait4(pid, &ws, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return status{code: proto.ExitFailed}, true // another part of the program has reaped it
		case got == 0:
			return status{}, false
		}
		break
	}
	if ws.Signaled() {
		st.signal = ws.Signal()
	} else {
		st.code = ws.ExitStatus()
	}
	exits.Store(pid, st)
	return st, true
}

// signalGroup signals a rank's process group. The group's number is the rank's pid. While the group
// has members, the kernel gives this number to no other process. If the rank was reaped and a
// process has the number, the process is not of this job, and signalGroup does nothing.
func signalGroup(pid int, s syscall.Signal) {
	if _, reaped := exits.Load(pid); reaped && !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return
	}
	_ = syscall.Kill(-pid, s)
}

// BecomeReaper does nothing here.
func BecomeReaper() (restore func()) { return func() {} }

// jobProcs recognizes processes of a job by the process groups of its ranks.
type jobProcs struct {
	groups []int
	stuck  map[int]bool // processes that SIGKILL does not end; set by finish, not used on these systems
	others *others      // not used on these systems
}

// others is empty: on these systems orphans do not become children of this process.
type others struct{}

func newOthers() *others { return nil }

// usageOf returns nil: exitStatus has reaped the child.
func usageOf(int) *proto.Usage { return nil }

// leftoverPause is the time between two attempts of endCgroup to remove a group.
const leftoverPause = 2 * time.Millisecond

func newJobProcs(_ string, groups []int) jobProcs {
	return jobProcs{groups: groups, stuck: make(map[int]bool)}
}

// killLeftovers kills the process groups of the ranks.
func (b jobProcs) killLeftovers(time.Duration) {
	for _, pid := range b.groups {
		signalGroup(pid, syscall.SIGKILL)
	}
}

// killLeftoverChildren does nothing: Manager.finish has killed the process groups of the ranks
// before it calls this function.
func (b jobProcs) killLeftoverChildren(time.Duration) {}

// reapOrphans does nothing: on these systems orphans do not become children of this process.
func (b jobProcs) reapOrphans(map[int]bool) {}

// reap waits at most limit until a killed child has ended, and reaps it if it has. A child that
// waits in the kernel may not end.
func reap(pid int, limit time.Duration) {
	for end := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		if _, ended := exitStatus(pid); ended || time.Now().After(end) {
			exits.Delete(pid)
			return
		}
	}
}

func reapNow(pid int) { reap(pid, 0) }

// statOf returns nil: these systems have no /proc like that of Linux.
func statOf(int) []string { return nil }

// fieldsOf returns nil, as statOf does.
func fieldsOf(string) []string { return nil }
