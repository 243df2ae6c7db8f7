package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"github.com/weft-hpc/weft/launcher/job"
	"golang.org/x/sys/unix"
)

// status is how a process ended: by a signal, or with an exit code.
type status struct {
	code   int
	signal syscall.Signal
}

// exitCode is what a shell makes of it.
func (s status) exitCode() int {
	if s.signal != 0 {
		return exitSignalFloor + int(s.signal)
	}
	return s.code
}

// rank is one process of the job.
type rank struct {
	app  int
	cpus []int // that it is bound to; nil: all

	// run.mu guards these until the rank has started.
	pid   int
	pidfd int

	ctl    int    // our end of its control channel; -1: closed
	in     []byte // from it, not yet a whole line
	exited bool
	status status
	dying  bool // it was on its way out when another, which still ran, failed the job
	doomed bool // it had been sent SIGKILL, not by gorun, when the job failed of what another did
}

// plan is all that the forking thread needs; nobody changes it.
type plan struct {
	path  []string     // by app
	argv  [][]string   // by app
	env   [][]string   // by app
	wdir  []string     // by app
	procs map[int]bool // apps whose GOMAXPROCS the user has set
	card  *os.File
	mem   *os.File // run.mem
	topo  topology
	ctl   []int // the ranks' ends of the control channels
	lay   *layout
	in    *input
}

// forkAll starts the ranks, one after the other, then stays until the job has
// ended: PR_SET_PDEATHSIG is sent when the *thread* that forked dies, so that
// thread lives as long as the job. It is never unlocked, and the runtime ends
// it with the goroutine, along with the affinity that it was given. run.finish
// ends it and waits for it.
func (r *run) forkAll(p *plan) {
	defer close(r.forked)
	runtime.LockOSThread()
	var err error
	n := 0
	for ; n < len(r.ranks) && err == nil && !r.stopped(); n++ {
		if err = r.fork(p, n); err != nil {
			break
		}
	}
	for i := range p.ctl {
		_ = unix.Close(p.ctl[i])
	}
	p.lay.close()
	_ = p.card.Close()
	p.in.started()
	r.post(event{kind: evStarted, rank: n, err: err})
	<-r.over
}

// noFile stands for a descriptor that a rank does not inherit.
const noFile = ^uintptr(0)

func (r *run) fork(p *plan, i int) error {
	rk := &r.ranks[i]
	app := rk.app
	if rk.cpus != nil {
		if err := unix.SchedSetaffinity(0, cpuSet(rk.cpus)); err != nil {
			return &startError{exitFailed, fmt.Sprintf("bind rank %d to cpus %v: %v", i, rk.cpus, err)}
		}
	}
	reads, writes, err := r.outputs(i)
	if err != nil {
		return &startError{exitFailed, err.Error()}
	}
	files := []uintptr{uintptr(p.in.fd(i)), uintptr(writes[0]), uintptr(writes[1]), childControl: uintptr(p.ctl[i]), childCard: p.card.Fd()}
	if p.mem != nil || len(p.lay.fds) > 0 {
		files = append(files, noFile, noFile)
	}
	if p.mem != nil {
		files[childMemory] = p.mem.Fd()
	}
	if len(p.lay.fds) > 0 {
		files[childListen] = uintptr(p.lay.fds[i])
	}
	maxprocs := 0
	if !p.procs[app] {
		if maxprocs = r.job.GOMAXPROCS; maxprocs == 0 {
			maxprocs = p.topo.maxprocs(rk.cpus, len(r.ranks))
		}
	}
	pidfd := -1
	pid, err := syscall.ForkExec(p.path[app], p.argv[app], &syscall.ProcAttr{
		Dir:   p.wdir[app],
		Env:   rankEnv(p.env[app], r.id, i, len(r.ranks), maxprocs, len(p.lay.fds) > 0),
		Files: files,
		Sys:   &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, PidFD: &pidfd},
	})
	for _, fd := range writes {
		_ = unix.Close(fd)
	}
	_ = unix.Close(p.ctl[i])
	p.ctl[i] = -1
	if len(p.lay.fds) > 0 {
		p.lay.release(i)
	}
	if err != nil {
		for _, fd := range reads {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
		}
		return execError(r.job.Apps[app].Program, err)
	}
	if pidfd < 0 {
		if pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
			_ = syscall.Kill(-pid, syscall.SIGKILL)
			reapNow(pid)
			return &startError{exitFailed, "pidfd_open: " + err.Error() + ": the kernel is older than Linux 5.4"}
		}
	}
	r.mu.Lock()
	rk.pid, rk.pidfd = pid, pidfd
	late := r.stop
	r.mu.Unlock()
	if late { // the job was ended while this one was being started
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
	if err := r.output.add(i, reads[0], reads[1]); err != nil {
		return &startError{exitFailed, "epoll: " + err.Error()}
	}
	if err := watch(r.ep, pidfd, i); err != nil {
		return &startError{exitFailed, "epoll: " + err.Error()}
	}
	return nil
}

// outputs makes what a rank writes to: pipes, whose read ends it returns too,
// or files.
func (r *run) outputs(i int) (reads, writes [2]int, err error) {
	reads, writes = [2]int{-1, -1}, [2]int{-1, -1}
	for k, ext := range [2]string{".out", ".err"} {
		if r.job.OutputDir == "" {
			var p [2]int
			err = unix.Pipe2(p[:], unix.O_CLOEXEC)
			reads[k], writes[k] = p[0], p[1]
		} else {
			name := filepath.Join(r.job.OutputDir, strconv.Itoa(i)+ext)
			writes[k], err = unix.Open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_APPEND|unix.O_CLOEXEC, 0o666)
			if err != nil {
				err = fmt.Errorf("%s: %w", name, err)
			}
		}
		if err != nil {
			for _, fd := range []int{reads[0], writes[0]} {
				if k == 1 && fd >= 0 {
					_ = unix.Close(fd)
				}
			}
			return reads, writes, err
		}
	}
	return reads, writes, nil
}

// execError gives a failed start the exit code of a shell.
func execError(program string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOENT):
		return &startError{exitNotFound, program + ": cannot be started: no such file, or it names an interpreter that does not exist"}
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.ENOEXEC), errors.Is(err, syscall.EPERM),
		errors.Is(err, syscall.ETXTBSY), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ELIBBAD):
		return &startError{exitNotExec, program + ": cannot be executed: " + err.Error()}
	}
	return &startError{exitFailed, program + ": cannot be started: " + err.Error()}
}

// newPlan resolves programs and environments.
func newPlan(j *job.Job) *plan {
	p := &plan{procs: make(map[int]bool), topo: readTopology("/sys/devices/system", allowedCPUs())}
	p.topo.quota = cpuQuota()
	for i, app := range j.Apps {
		env := environ(j, app)
		if v, ok := lookupEnv(env, "GOMAXPROCS"); ok && v != "" && j.GOMAXPROCS == 0 {
			p.procs[i] = true
		} else {
			env = withoutEnv(env, "GOMAXPROCS")
		}
		p.env = append(p.env, env)
		p.wdir = append(p.wdir, app.Wdir)
	}
	return p
}
