//go:build linux

package testbed

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// host is the keeper's state of a host. A thread of the keeper is in the host's namespaces. The
// namespaces exist as long as this thread and the host's processes. No mount keeps them, so no
// namespace can be left over when these have ended.
type host struct {
	info    hostInfo
	dir     string        // directory of the host's files
	calls   chan call     // functions for the thread to run
	hole    net.Listener  // listener of Cluster.BlackHole; nil except in the control host
	daemons []*daemon     // all daemons that the keeper has started in the host, also those that have ended
	sshd    []*daemon     // the elements of daemons that are sshd
	done    chan struct{} // closed when the thread ends
}

// call is a function that host.run passes to the host's thread.
type call struct {
	f    func() error
	done chan error // gets the result of f
}

// newHost makes the namespaces of a host. dir is the cluster's directory. mark becomes the source of
// the host's tmpfs mounts; by this the function marked finds the host's processes.
func newHost(dir, mark, name string) (*host, error) {
	h := &host{dir: dir + "/" + name, calls: make(chan call), done: make(chan struct{})}
	if err := os.Mkdir(h.dir, 0o755); err != nil {
		return nil, err
	}
	h.info.Name = name
	go h.thread() // ends when host.end closes h.calls; host.end waits for it
	err := h.run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS); err != nil {
			return fmt.Errorf("no namespaces (root needs CAP_SYS_ADMIN): %w", err)
		}
		h.info.Namespaces = fmt.Sprintf("/proc/%d/task/%d/ns", os.Getpid(), unix.Gettid())
		if err := unix.Sethostname([]byte(name)); err != nil {
			return err
		}
		return h.mount(dir, mark)
	})
	if err != nil {
		h.end()
		return nil, err
	}
	return h, nil
}

// thread runs the functions that [host.run] gets. It has an operating system thread for itself,
// which is in the host's namespaces.
func (h *host) thread() {
	defer close(h.done)
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	for call := range h.calls {
		call.done <- call.f()
	}
}

// run runs f in the host's namespaces. Goroutines that f starts are not in them.
func (h *host) run(f func() error) error {
	done := make(chan error)
	h.calls <- call{f, done}
	return <-done
}

// end ends the host's thread and waits for the end of the host's daemons. The caller must have killed
// the host's processes.
func (h *host) end() {
	if h.hole != nil {
		_ = h.hole.Close()
	}
	close(h.calls)
	<-h.done
	for _, d := range h.daemons {
		<-d.done
	}
}

// mount mounts, in the host's mount namespace, the files and directories that differ from those of
// this machine.
func (h *host) mount(dir, mark string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount /: %w", err)
	}
	root, err := user.LookupId("0")
	if err != nil {
		return err
	}
	for _, at := range append(caches(root), dir+"/private", dir+"/tmp", "/dev/shm", "/run") {
		mode := "mode=0755"
		if at == "/dev/shm" || at == dir+"/tmp" {
			mode = "mode=1777"
		}
		if err := os.MkdirAll(at, 0o700); err != nil {
			return err
		}
		if err := unix.Mount(mark, at, "tmpfs", 0, mode); err != nil {
			return fmt.Errorf("mount %s: %w", at, err)
		}
	}
	if err := os.Mkdir("/run/sshd", 0o755); err != nil { // sshd needs this directory in the host's empty /run
		return err
	}
	if err := os.WriteFile(h.dir+"/boot_id", bootID(), 0o644); err != nil {
		return err
	}
	for at, file := range map[string]string{
		"/etc/hosts":                      dir + "/hosts",
		"/etc/nsswitch.conf":              dir + "/nsswitch",
		"/etc/shadow":                     dir + "/shadow",
		"/etc/ssh/ssh_config":             dir + "/ssh_config",
		"/proc/sys/kernel/random/boot_id": h.dir + "/boot_id",
		// The settings of root on this machine must not affect tests.
		root.HomeDir + "/.bashrc":     dir + "/empty",
		root.HomeDir + "/.ssh/config": dir + "/empty",
	} {
		err := unix.Mount(file, at, "", unix.MS_BIND, "")
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("mount %s: %w", at, err)
		}
	}
	return nil
}

// caches returns the weft cache directories of root: the directory that a process uses if ssh starts
// it, and, if this is another one, the directory of this process, which depends on its environment.
func caches(root *user.User) []string {
	dirs := []string{filepath.Join(root.HomeDir, ".cache/weft")}
	if cache, err := os.UserCacheDir(); err == nil && cache+"/weft" != dirs[0] {
		dirs = append(dirs, cache+"/weft")
	}
	return dirs
}

// bootID returns a random boot id in the format of the kernel.
func bootID() []byte {
	var b [16]byte
	_, _ = rand.Read(b[:]) // Read never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Appendf(nil, "%x-%x-%x-%x-%x\n", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// blackHole makes the host accept connections on port 22 of one of its addresses and send nothing.
func (h *host) blackHole(addr string) error {
	return h.run(func() (err error) {
		if h.hole, err = net.Listen("tcp4", addr+":22"); err != nil {
			return err
		}
		go func() { // ends when host.end closes the listener
			for {
				conn, err := h.hole.Accept()
				if err != nil {
					return
				}
				defer conn.Close() //nolint:errcheck // keeps conn open until the goroutine ends
			}
		}()
		return nil
	})
}

// daemon is a process that the keeper has started in a host, such as sshd.
type daemon struct {
	cmd  *exec.Cmd
	log  string        // path of the file with its stdout and stderr
	done chan struct{} // closed when the process has ended
}

// start starts a daemon in the host. The kernel kills the daemon when the host's thread ends
// (PR_SET_PDEATHSIG), and so also when the keeper ends.
func (h *host) start(name string, env []string, program string, args ...string) (*daemon, error) {
	d := &daemon{log: h.dir + "/" + name + ".log", done: make(chan struct{})}
	log, err := os.Create(d.log)
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the daemon has its own descriptor
	d.cmd = exec.Command(program, args...)
	d.cmd.Env = append(os.Environ(), env...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.Dir = "/"
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := h.run(d.cmd.Start); err != nil {
		return nil, err
	}
	go func() { // ends when the daemon has ended; host.end waits for it
		defer close(d.done)
		_ = d.cmd.Wait()
	}()
	h.daemons = append(h.daemons, d)
	return d, nil
}

// check returns an error with the end of the log if the daemon has ended.
func (d *daemon) check() error {
	select {
	case <-d.done:
		return fmt.Errorf("%s ended: %s: %s", filepath.Base(d.cmd.Path), d.cmd.ProcessState, tail(d.log))
	default:
		return nil
	}
}

// tail returns the end of a log file, in one line.
func tail(file string) string {
	text, _ := os.ReadFile(file)
	return oneLine(text[max(0, len(text)-500):])
}
