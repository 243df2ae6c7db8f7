//go:build linux

package remote

import (
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/testbed"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
)

// realSSH returns an SSH that reaches the hosts of a testbed, and removes copies of gorun from their
// caches.
func realSSH(t *testing.T, c *testbed.Cluster) *SSH {
	t.Helper()
	s := &SSH{Command: strings.Fields(c.SSH()), Timeout: 20 * time.Second}
	for _, h := range c.Hosts() {
		run(t, h, "rm -f "+remoteCache+"/"+cachePrefix+"*")
	}
	return s
}

// remoteCache is an expression for a host's shell: the path of weft's cache of the ssh user. Each
// host has a file system of its own there.
const remoteCache = `$(eval echo ~root)/.cache/weft`

// run runs a shell command on a host.
func run(t *testing.T, h *testbed.Host, line string) string {
	t.Helper()
	out, err := h.Command(t.Context(), "sh", "-c", line).CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// onHostsNot makes s look for this program at a path that does not exist on the hosts.
func onHostsNot(t *testing.T, s *SSH) {
	t.Helper()
	exe, err := Self()
	require.NoError(t, err)
	exe.Path = "/nonexistent/gorun"
	s.Executable = exe
}

func TestSSHD(t *testing.T) {
	c := testbed.Up(t, 2)
	s := realSSH(t, c)
	for i, h := range c.Hosts() {
		if i == 1 {
			onHostsNot(t, s)
		}
		conn := open(t, s, hosts.Host{Name: h.Name(), User: "root", Port: 22})
		require.Equal(t, h.Name(), conn.Peer().Hostname)
		require.Equal(t, "hello", echo(t, conn, "hello"))
		copies := strings.Fields(run(t, h, "ls -A "+remoteCache+" 2>/dev/null || :"))
		require.Len(t, copies, i, "a copy is made only if the path does not exist")
		agents := h.Processes(func(p testbed.Process) bool { return p.PID == conn.Peer().PID })
		require.Len(t, agents, 1)
		require.Equal(t, []string{"-agent"}, agents[0].Args[1:])
		require.NoError(t, conn.Close())
		require.Eventually(t, func() bool {
			return len(h.Processes(func(p testbed.Process) bool { return p.PID == conn.Peer().PID })) == 0
		}, 10*time.Second, time.Millisecond)
	}
}

// TestSSHDKill checks what Cause returns after an agent was killed, and after another agent has
// exited with an error message.
func TestSSHDKill(t *testing.T) {
	c := testbed.Up(t, 1)
	s := realSSH(t, c)
	name := c.Hosts()[0].Name()
	conn := open(t, s, hosts.Host{Name: name})
	require.NoError(t, syscall.Kill(conn.Peer().PID, syscall.SIGKILL))
	_, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.ErrorContains(t, conn.Cause(), name+": ssh ended with status 255")

	conn = open(t, s, hosts.Host{Name: name})
	_, err = io.WriteString(conn, "exit 7 said on stderr\n")
	require.NoError(t, err)
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.EqualError(t, conn.Cause(), name+": said on stderr")
}

// TestSSHDRefuses checks the errors for hosts to which ssh cannot log in.
func TestSSHDRefuses(t *testing.T) {
	c := testbed.Up(t, 1)
	s := realSSH(t, c)
	text := refuse(t, s, hosts.Host{Name: c.PasswordHost()})
	require.Contains(t, text, "Permission denied (password")
	text = refuse(t, s, hosts.Host{Name: c.Hosts()[0].Name(), Port: 1})
	require.Contains(t, text, "ssh: connect to host "+c.Hosts()[0].Address()+" port 1: Connection refused")
	text = refuse(t, s, hosts.Host{Name: "no-such-host.invalid"})
	require.Contains(t, text, "ssh: Could not resolve hostname no-such-host.invalid")
	s.Timeout = 3 * time.Second // ssh's own limit is then 2 s; on a slow machine Open's limit ends first
	text = refuse(t, s, hosts.Host{Name: c.BlackHole()})
	require.Regexp(t, "timed out|did not answer", text)
	text = refuse(t, s, hosts.Host{Name: c.Unused()})
	require.Regexp(t, "timed out|No route to host|did not answer", text)
	s.Command = append(s.Command, "-o", "ConnectTimeout=60")
	s.Timeout = time.Second
	require.Equal(t, c.BlackHole()+": did not answer within 1s", refuse(t, s, hosts.Host{Name: c.BlackHole()}))
}

// TestSSHDNoRoom checks the errors if gorun's copy does not fit, or may not run.
func TestSSHDNoRoom(t *testing.T) {
	c := testbed.Up(t, 1)
	h := c.Hosts()[0]
	for options, says := range map[string]string{
		"size=1m":          "No space left on device",
		"size=200m,noexec": "mounted noexec?",
		"ro":               "ead-only file system",
	} {
		s := realSSH(t, c)
		onHostsNot(t, s)
		// The kernel unmounts it when the host's namespace ends, if not before.
		run(t, h, "mount -t tmpfs -o mode=700,"+options+" none "+remoteCache)
		text := refuse(t, s, hosts.Host{Name: h.Name()})
		require.Contains(t, text, says)
		require.Contains(t, text, "/.cache/weft")
		require.Empty(t, run(t, h, "ls -A "+remoteCache))
		run(t, h, "umount "+remoteCache)
	}
}

// TestControlMaster checks that Cause and Close return in time with connection sharing, in which the
// ssh master process stays and keeps the stderr of the first ssh open.
func TestControlMaster(t *testing.T) {
	c := testbed.Up(t, 1)
	s := realSSH(t, c)
	dir := t.TempDir()
	name := c.Hosts()[0].Name()
	s.Command = append(s.Command, "-o", "ControlMaster=auto", "-o", "ControlPersist=60", "-o", "ControlPath="+filepath.Join(dir, "s"))
	defer func() { // ends the ssh master by a command on its socket
		_ = exec.Command(s.Command[0], append(s.Command[1:], "-O", "exit", name)...).Run()
	}()
	for range 2 {
		conn := open(t, s, hosts.Host{Name: name})
		require.Equal(t, "hello", echo(t, conn, "hello"))
		_, err := io.WriteString(conn, "exit 5 the end\n")
		require.NoError(t, err)
		_, err = conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.EqualError(t, conn.Cause(), name+": the end")
		require.NoError(t, conn.Close())
	}
}
