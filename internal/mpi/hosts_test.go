//go:build linux && !portable

package mpi_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/comm"
)

// hostsVar is the environment variable that tells the program "hosts" on which host each rank runs:
// one digit per rank, such as "0011".
const hostsVar = "COMM_TEST_HOSTS"

// hiddenVar is the environment variable that the test sets if this process has no /proc.
const hiddenVar = "WEFT_COMM_TEST_HIDDEN"

func init() { programs["hosts"] = onHosts }

// onHosts checks that ranks of one host use shared memory, that ranks of two hosts use tcp, and
// that no internet socket is open if all ranks are on one host.
func onHosts(c *comm.Comm) error {
	hosts := os.Getenv(hostsVar)
	if len(hosts) != c.Size() {
		return fmt.Errorf("%d ranks of %d", c.Size(), len(hosts))
	}
	for r := range c.Size() {
		want := "tcp"
		switch {
		case r == c.Rank():
			want = "self"
		case hosts[r] == hosts[c.Rank()]:
			want = "shm"
		}
		if got := c.Transport(r); got != want {
			return fmt.Errorf("rank %d is reached by %s, not %s", r, got, want)
		}
	}
	n, err := internetSockets()
	if os.Getenv(hiddenVar) != "" {
		// Without /proc the sockets cannot be counted, so assume that their number is right.
		n, err = strings.Count(hosts, "1"), nil
	}
	if err != nil {
		return err
	}
	if several := strings.Contains(hosts, "1"); several != (n > 0) {
		return fmt.Errorf("%d sockets for hosts %s", n, hosts)
	}
	if err := exercise(c, c, count(c.Size(), 0)); err != nil {
		return err
	}
	// Long messages, and messages from any source.
	const words = 1 << 18
	mine, all := make([]int, words), make([]int, words*c.Size())
	for i := range mine {
		mine[i] = c.Rank()*words + i
	}
	if err := comm.Allgather(c, mine, all); err != nil {
		return err
	}
	for i, x := range all {
		if x != i {
			return fmt.Errorf("word %d is %d", i, x)
		}
	}
	if c.Rank() > 0 {
		if err := comm.Send(c, mine[:c.Rank()], 0, 7); err != nil {
			return err
		}
	}
	for left := c.Size() - 1; c.Rank() == 0 && left > 0; left-- {
		st, err := comm.Recv(c, all, comm.AnySource, 7)
		if err != nil || all[0] != st.Source*words {
			return fmt.Errorf("%d from rank %d: %w", all[0], st.Source, err)
		}
	}
	// A window: each rank adds to the element of each rank.
	w, err := comm.NewWin[int](c, 1)
	if err != nil {
		return err
	}
	if err := w.Fence(); err != nil {
		return err
	}
	for r := range c.Size() {
		if err := w.Accumulate([]int{1 + c.Rank()}, r, 0, comm.Sum); err != nil {
			return err
		}
	}
	if err := w.Fence(); err != nil {
		return err
	}
	if sum := c.Size() * (c.Size() + 1) / 2; w.Local()[0] != sum {
		return fmt.Errorf("%d in the window, not %d", w.Local()[0], sum)
	}
	return w.Free()
}

// internetSockets counts the internet sockets that this process has opened itself. It skips sockets
// without close-on-exec, because the process inherited them from a launcher.
func internetSockets() (n int, err error) {
	fds, err := os.ReadDir("/proc/self/fd")
	for _, e := range fds {
		fd, _ := strconv.Atoi(e.Name())
		flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err == nil && domain != unix.AF_UNIX && flags&unix.FD_CLOEXEC != 0 {
			n++
		}
	}
	return n, err
}

// newHost starts a process in new namespaces, like the first process of a container. The namespaces
// stand for a host. newHost returns the words of a command line with which the test runs other
// processes in these namespaces.
func newHost(t *testing.T) []string {
	t.Helper()
	cmd := exec.Command("sh", "-c", "mount --make-rprivate / && mount -t proc proc /proc && echo up && exec cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe() // the command is cat, which ends when the pipe is closed
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	if err := cmd.Start(); errors.Is(err, unix.EPERM) {
		t.Skip("this user may not make namespaces")
	} else {
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		require.NoError(t, in.Close())
		require.NoError(t, cmd.Wait())
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "up\n", line)
	return []string{"nsenter", "--target", strconv.Itoa(cmd.Process.Pid), "--pid", "--ipc", "--mount", "--"}
}

// TestHosts starts ranks by hydra, on one host and on two hosts. Ranks of different hosts do not
// see each other's processes, so they cannot share memory.
func TestHosts(t *testing.T) {
	mpiexec, err := exec.LookPath("mpiexec.hydra")
	if err != nil {
		t.Fatal("no mpiexec.hydra: install mpich, as make test does")
	}
	self, err := filepath.Abs(os.Args[0])
	require.NoError(t, err)
	for hosts, says := range map[string]string{
		"0000": "joined by shm (memory of this host) to 3\n",
		"0011": " to 1, tcp (",
		"0101": " to 1, tcp (",
		"0111": "joined by tcp (", // rank 0 shares memory with no other rank
	} {
		t.Run(hosts, func(t *testing.T) {
			var enter [2][]string
			if strings.Contains(hosts, "1") {
				enter = [2][]string{newHost(t), newHost(t)}
			}
			var args []string
			for _, h := range hosts {
				args = append(append(append(args, "-n", "1"), enter[h-'0']...), self, ":")
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, mpiexec, args[:len(args)-1]...)
			cmd.Env = append(os.Environ(), programVar+"=hosts", hostsVar+"="+hosts, "WEFT_VERBOSE=1")
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			require.NoError(t, cmd.Run(), "%s", &out)
			require.Contains(t, out.String(), says)
		})
	}
}

// TestHostRefusesSharedMemory starts ranks with mpiexec.hydra. Some ranks cannot make memory files,
// or have no /proc: these use tcp, and the others share memory.
func TestHostRefusesSharedMemory(t *testing.T) {
	mpiexec, err := exec.LookPath("mpiexec.hydra")
	if err != nil {
		t.Fatal("no mpiexec.hydra: install mpich, as make test does")
	}
	self, err := filepath.Abs(os.Args[0])
	require.NoError(t, err)
	refuse := filepath.Join(t.TempDir(), "refuse")
	out, err := exec.Command("go", "build", "-o", refuse, "../testbed/refuse").CombinedOutput()
	require.NoError(t, err, "%s", out)
	wraps := map[string][]string{
		"memory files": {refuse},
		"no /proc":     {"unshare", "--mount", "sh", "-c", `mount -t tmpfs none /proc && ` + hiddenVar + `=1 exec "$0" "$@"`},
	}
	for name, wrap := range wraps {
		for hosts, says := range map[string]string{
			"0123": "joined by tcp (", // no rank has shared memory
			"0100": " to 2, tcp (",    // only rank 1 has no shared memory
			"1000": "joined by tcp (",
		} {
			t.Run(name+" "+hosts, func(t *testing.T) {
				if wrap[0] == "unshare" && exec.Command("unshare", "--mount", "true").Run() != nil {
					t.Skip("this user may not make namespaces")
				}
				var args []string
				for _, h := range hosts {
					args = append(args, "-n", "1")
					if hosts == "0123" || h == '1' {
						args = append(args, wrap...)
					}
					args = append(args, self, ":")
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, mpiexec, args[:len(args)-1]...)
				cmd.Env = append(os.Environ(), programVar+"=hosts", hostsVar+"="+hosts, "WEFT_VERBOSE=1")
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				require.NoError(t, cmd.Run(), "%s", &out)
				require.Contains(t, out.String(), says)
			})
		}
	}
}
