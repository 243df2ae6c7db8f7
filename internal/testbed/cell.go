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

// cell is a host as its keeper has it: a thread that is in the host's
// namespaces, which end with it and the host's processes. Nothing is bound to a
// file, so nothing of them can be left.
type cell struct {
	info    hostInfo
	dir     string // of its files
	calls   chan call
	hole    net.Listener
	daemons []*daemon
	sshd    []*daemon     // of them
	done    chan struct{} // the thread is ending
}

type call struct {
	f    func() error
	done chan error
}

// newCell makes the namespaces of a host. dir is the cluster's, mark is what the
// host's mounts are told by.
func newCell(dir, mark, name string) (*cell, error) {
	c := &cell{dir: dir + "/" + name, calls: make(chan call), done: make(chan struct{})}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return nil, err
	}
	c.info.Name = name
	go c.thread() // end ends it and waits for it
	err := c.run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS); err != nil {
			return fmt.Errorf("no namespaces (root needs CAP_SYS_ADMIN): %w", err)
		}
		c.info.Namespaces = fmt.Sprintf("/proc/%d/task/%d/ns", os.Getpid(), unix.Gettid())
		if err := unix.Sethostname([]byte(name)); err != nil {
			return err
		}
		return c.mount(dir, mark)
	})
	if err != nil {
		c.end()
		return nil, err
	}
	return c, nil
}

func (c *cell) thread() {
	defer close(c.done)
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	for call := range c.calls {
		call.done <- call.f()
	}
}

// run runs f in the host. f must not start goroutines that matter where they are.
func (c *cell) run(f func() error) error {
	done := make(chan error)
	c.calls <- call{f, done}
	return <-done
}

// end lets go of the host, whose processes must have been killed.
func (c *cell) end() {
	if c.hole != nil {
		_ = c.hole.Close()
	}
	close(c.calls)
	<-c.done
	for _, d := range c.daemons {
		<-d.done
	}
}

// mount gives the host what files it has for itself.
func (c *cell) mount(dir, mark string) error {
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
	if err := os.Mkdir("/run/sshd", 0o755); err != nil { // sshd wants it, and a container has none
		return err
	}
	if err := os.WriteFile(c.dir+"/boot_id", bootID(), 0o644); err != nil {
		return err
	}
	for at, file := range map[string]string{
		"/etc/hosts":                      dir + "/hosts",
		"/etc/nsswitch.conf":              dir + "/nsswitch",
		"/etc/shadow":                     dir + "/shadow",
		"/etc/ssh/ssh_config":             dir + "/ssh_config",
		"/proc/sys/kernel/random/boot_id": c.dir + "/boot_id",
		// What the user of this machine likes would make a difference.
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

// caches are the directories of weft in the caches of root, as this process has
// it and as one that comes by ssh.
func caches(root *user.User) []string {
	dirs := []string{filepath.Join(root.HomeDir, ".cache/weft")}
	if cache, err := os.UserCacheDir(); err == nil && cache+"/weft" != dirs[0] {
		dirs = append(dirs, cache+"/weft")
	}
	return dirs
}

func bootID() []byte {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Appendf(nil, "%x-%x-%x-%x-%x\n", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// blackHole has the host answer at an address that it has, and say nothing.
func (c *cell) blackHole(addr string) error {
	return c.run(func() (err error) {
		if c.hole, err = net.Listen("tcp4", addr+":22"); err != nil {
			return err
		}
		go func() { // ends with the listener, which end closes
			for {
				conn, err := c.hole.Accept()
				if err != nil {
					return
				}
				defer conn.Close() //nolint:errcheck // at the end
			}
		}()
		return nil
	})
}

// daemon is a process of a host that the keeper started.
type daemon struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // it has ended
}

// start runs a daemon in the foreground of the host. It ends with the keeper.
func (c *cell) start(name string, env []string, program string, args ...string) (*daemon, error) {
	d := &daemon{log: c.dir + "/" + name + ".log", done: make(chan struct{})}
	log, err := os.Create(d.log)
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the daemon's
	d.cmd = exec.Command(program, args...)
	d.cmd.Env = append(os.Environ(), env...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.Dir = "/"
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.run(d.cmd.Start); err != nil {
		return nil, err
	}
	go func() { // ends with the daemon; end waits for it
		defer close(d.done)
		_ = d.cmd.Wait()
	}()
	c.daemons = append(c.daemons, d)
	return d, nil
}

// check is why a daemon that should run does not.
func (d *daemon) check() error {
	select {
	case <-d.done:
		return fmt.Errorf("%s ended: %s: %s", filepath.Base(d.cmd.Path), d.cmd.ProcessState, tail(d.log))
	default:
		return nil
	}
}

// tail is the end of a log, in an error.
func tail(file string) string {
	text, _ := os.ReadFile(file)
	return oneLine(text[max(0, len(text)-500):])
}
