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

// host is the keeper's state of a host: a thread that is in the host's namespaces. The namespaces
// end with this thread and the host's processes. No file keeps them, so none can be left over.
type host struct {
	info    hostInfo
	dir     string // of the host's files
	calls   chan call
	hole    net.Listener // of the black hole; nil except in the control host
	daemons []*daemon
	sshd    []*daemon     // those of daemons that are sshd
	done    chan struct{} // closed when the thread ends
}

type call struct {
	f    func() error
	done chan error
}

// newHost makes the namespaces of a host. dir is the cluster's directory. mark is the source of
// the host's mounts, by which marked finds the host's processes.
func newHost(dir, mark, name string) (*host, error) {
	h := &host{dir: dir + "/" + name, calls: make(chan call), done: make(chan struct{})}
	if err := os.Mkdir(h.dir, 0o755); err != nil {
		return nil, err
	}
	h.info.Name = name
	go h.thread() // end ends it and waits for it
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

// thread runs the calls of run, in a thread of its own.
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

// end ends the host's thread. The caller has killed the host's processes.
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

// mount mounts the host's own files and directories.
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
	if err := os.Mkdir("/run/sshd", 0o755); err != nil { // sshd needs it, and a container has none
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
		// The settings of this machine's user must not affect tests.
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

// caches returns the weft cache directories of root: that of a process that ssh starts, and that
// of this process.
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
		go func() { // ends with the listener, which end closes
			for {
				conn, err := h.hole.Accept()
				if err != nil {
					return
				}
				defer conn.Close() //nolint:errcheck // when the goroutine ends
			}
		}()
		return nil
	})
}

// daemon is a process in a host that the keeper has started.
type daemon struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when the process has ended
}

// start starts a daemon in the host. The kernel kills the daemon when the keeper ends.
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
	go func() { // ends with the daemon; end waits for it
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
