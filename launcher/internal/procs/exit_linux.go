//go:build !portable

package procs

import (
	"syscall"

	"github.com/weft-hpc/weft/launcher/internal/proto"
	"golang.org/x/sys/unix"
)

// errLibrary is the error of execve(2) for a program whose ELF interpreter cannot be used.
const errLibrary = syscall.ELIBBAD

// forkExec starts a process that gets SIGKILL when the calling thread ends. pidfd is readable when
// the process has ended. If in is not nil and the system can do so, the process begins in that
// cgroup. If the error is an *errStart, gorun has failed and not the program.
func forkExec(path string, argv []string, attr *syscall.ProcAttr, in *cgroup) (pid, pidfd int, err error) {
	pidfd = -1
	attr.Sys.Pdeathsig, attr.Sys.PidFD = syscall.SIGKILL, &pidfd
	if in != nil && !in.off {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(in.file.Fd())
	}
	pid, err = syscall.ForkExec(path, argv, attr)
	if err != nil && attr.Sys.UseCgroupFD { // the cgroup may be the reason: try again without it
		in.off, attr.Sys.UseCgroupFD = true, false
		pid, err = syscall.ForkExec(path, argv, attr)
	}
	if err != nil || pidfd >= 0 {
		return pid, pidfd, err
	}
	if pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
		reapNow(pid)
		return pid, -1, &errStart{proto.ExitFailed, "pidfd_open: " + err.Error() + ": gorun needs Linux 5.4 or later, and free descriptors"}
	}
	return pid, pidfd, nil
}

// noticeExits does nothing here, because a pidfd reports the end of each rank.
func (c *Manager) noticeExits() {}

// signalGroup signals a rank's process group. The rank is not reaped before the end of the job.
// So even after the rank has ended, no other group has its number.
func signalGroup(pid int, s syscall.Signal) { _ = syscall.Kill(-pid, s) }

// BecomeReaper makes this process, and not init, the parent of descendants whose own parent has
// ended (PR_SET_CHILD_SUBREAPER). restore undoes that.
func BecomeReaper() (restore func()) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return func() {}
	}
	return func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }
}
