//go:build linux

package testbed

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	if act := os.Getenv(childEnv); act != "" {
		os.Exit(child(act))
	}
	Main(m)
}

// limit is how long a test waits for one event, in general.
const limit = 3 * time.Minute // on a busy machine a command of Slurm can take half a minute

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// output returns the output of a command that must succeed.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", cmd, out)
	return strings.TrimSpace(string(out))
}

func (c *Cluster) ssh(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ssh", append([]string{"-F", c.SSHConfig()}, args...)...)
}

func TestHostsReachEachOther(t *testing.T) {
	c := Up(t, 3)
	ctx := soon(t)
	require.Len(t, c.Hosts(), 3)
	for i, h := range c.Hosts() {
		assert.Equal(t, c.Names()[i], h.Name())
		assert.Equal(t, h.Name(), output(t, h.Command(ctx, "hostname")))
		addrs, err := net.LookupHost(h.Name())
		require.NoError(t, err)
		assert.Equal(t, []string{h.Address()}, addrs, "outside of the hosts")

		next := c.Hosts()[(i+1)%3]
		assert.Equal(t, next.Name(), output(t, c.ssh(ctx, next.Name(), "hostname")))
		inside := append(strings.Fields(c.SSH())[1:], next.Address(), "hostname")
		assert.Equal(t, next.Name(), output(t, h.Command(ctx, "ssh", inside...)))
		assert.Equal(t, next.Name(), output(t, h.Command(ctx, "ssh", next.Name(), "hostname")), "without -F")
	}
	out, err := c.Hosts()[0].Command(ctx, "bash", "-c", "exec 3<>/dev/tcp/$0/22", addressOf((c.info.ID+1)%maxClusters, 1)).CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "No route to host", "a host of another test")

	// A host also reaches this machine, by name and address.
	l, err := net.Listen("tcp4", ":0")
	require.NoError(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	name, err := os.Hostname()
	require.NoError(t, err)
	for _, to := range []string{c.Address(), name} {
		output(t, c.Hosts()[0].Command(ctx, "bash", "-c", "exec 3<>/dev/tcp/$0/$1", to, port))
		conn, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
}

func TestFewerAndMoreHosts(t *testing.T) {
	two := Up(t, 2)
	three := Up(t, 3)
	assert.Equal(t, two.Names(), three.Names()[:2], "a process has one cluster")
	assert.Equal(t, two.Dir(), three.Dir())
	for _, n := range []int{0, MaxHosts + 1} {
		_, err := Open(n)
		assert.ErrorContains(t, err, "not 1 to 8")
	}
}

func TestHostsHaveTheirOwnFiles(t *testing.T) {
	c := Up(t, 2)
	ctx := soon(t)
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	var files, names string
	for _, dir := range []string{c.Private(), "/dev/shm", "/run", cache + "/weft"} {
		file := dir + "/" + clusterName(c.info.ID)
		for _, h := range c.Hosts() {
			output(t, h.Command(ctx, "sh", "-c", "echo $(hostname) >$0", file))
		}
		for _, h := range c.Hosts() {
			assert.Equal(t, h.Name(), output(t, h.Command(ctx, "cat", file)))
		}
		assert.NoFileExists(t, file, "on this machine")
		files += " " + file
		names += "%[1]s\n"
	}
	for _, h := range c.Hosts() {
		assert.Equal(t, strings.TrimSpace(fmt.Sprintf(names, h.Name())), output(t, c.ssh(ctx, h.Name(), "cat"+files)))
	}
	boot := map[string]bool{}
	for _, h := range c.Hosts() {
		boot[output(t, h.Command(ctx, "cat", "/proc/sys/kernel/random/boot_id"))] = true
	}
	here, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	require.NoError(t, err)
	boot[strings.TrimSpace(string(here))] = true
	assert.Len(t, boot, 3)
	for id := range boot {
		assert.Regexp(t, `^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`, id)
	}

	shared := filepath.Join(t.TempDir(), "file")
	output(t, c.Hosts()[0].Command(ctx, "touch", shared))
	output(t, c.Hosts()[1].Command(ctx, "rm", shared))
}

func TestCutAndJoin(t *testing.T) {
	c := Up(t, 2)
	ctx := soon(t)
	h := c.Hosts()[1]
	session := c.ssh(ctx, h.Name(), "cat")
	in, err := session.StdinPipe()
	require.NoError(t, err)
	out, err := session.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, session.Start())
	got := make(chan string)
	go func() { // ends when the ssh session ends
		defer close(got)
		for b := make([]byte, 1); ; {
			if _, err := io.ReadFull(out, b); err != nil {
				return
			}
			got <- string(b)
		}
	}()
	say := func(what string) {
		_, err := io.WriteString(in, what)
		require.NoError(t, err)
	}
	say("1")
	assert.Equal(t, "1", <-got)

	h.Cut()
	_, err = net.DialTimeout("tcp4", h.Address()+":22", 300*time.Millisecond)
	assert.Error(t, err)
	assert.Error(t, c.Hosts()[0].Command(ctx, "ssh", "-o", "ConnectTimeout=1", h.Name(), "true").Run())
	assert.Equal(t, h.Name(), output(t, h.Command(ctx, "hostname")), "the host still runs")
	say("2")
	select {
	case what := <-got:
		t.Fatalf("received %q although the host is cut off; if empty, the session has ended", what)
	case <-time.After(300 * time.Millisecond):
	}

	h.Join()
	assert.Equal(t, "2", <-got, "the connection has survived")
	require.NoError(t, in.Close())
	require.NoError(t, session.Wait())
	assert.Equal(t, h.Name(), output(t, c.Hosts()[0].Command(ctx, "ssh", h.Name(), "hostname")))
}

func TestCutHostIsJoinedAtTheEnd(t *testing.T) {
	ctx := soon(t)
	c := Up(t, 1)
	t.Run("cuts", func(t *testing.T) { Up(t, 1).Hosts()[0].Cut() })
	assert.Equal(t, c.Names()[0], output(t, c.ssh(ctx, c.Names()[0], "hostname")))
}

func TestHostsThatDoNotAnswer(t *testing.T) {
	c := Up(t, 1)
	ctx := soon(t)

	conn, err := net.DialTimeout("tcp4", c.BlackHole()+":22", limit)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)

	addrs, err := net.LookupHost(c.Unused())
	require.NoError(t, err)
	require.Len(t, addrs, 1)
	_, err = net.DialTimeout("tcp4", addrs[0]+":22", 300*time.Millisecond)
	require.Error(t, err)

	text, err := c.ssh(ctx, "-o", "BatchMode=yes", c.PasswordHost(), "true").CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(text), "Permission denied (password)")
	// If ssh may ask for a password but has no terminal for this, the login fails, too.
	cmd := c.ssh(ctx, c.PasswordHost(), "true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	text, err = cmd.CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(text), "Permission denied")
}

func TestCommandIsTheProcess(t *testing.T) {
	c := Up(t, 1)
	h := c.Hosts()[0]
	dir := t.TempDir()
	t.Chdir(dir)
	cmd := h.Command(soon(t), "sh", "-c", `pwd; echo "$MARK"; exit 7`)
	cmd.Env = append(os.Environ(), "MARK=a mark")
	out, err := cmd.Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, 7, exit.ExitCode())
	assert.Equal(t, dir+"\na mark\n", string(out))

	cmd = h.Command(soon(t), "sh", "-c", "echo; exec sleep 1000")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = stdout.Read(make([]byte, 1)) // the program runs
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Signal(syscall.SIGUSR1))
	require.ErrorAs(t, cmd.Wait(), &exit)
	assert.Equal(t, syscall.SIGUSR1, exit.Sys().(syscall.WaitStatus).Signal())
}

func TestProcesses(t *testing.T) {
	c := Up(t, 2)
	ctx := soon(t)
	h := c.Hosts()[1]
	none := func() bool { return len(h.Processes(nil)) == 0 }
	require.Eventually(t, none, limit, 10*time.Millisecond, "processes of earlier tests: %v", h.Processes(nil))

	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	sleep, err = filepath.EvalSymlinks(sleep)
	require.NoError(t, err)
	output(t, c.ssh(ctx, h.Name(), "MARK=here setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo"))
	require.Eventually(t, func() bool { return len(h.Processes(Running(sleep))) == 1 }, limit, 10*time.Millisecond)
	var p []Process // the processes when the sshd of the ssh session has ended
	require.Eventually(t, func() bool { p = h.Processes(nil); return len(p) == 1 }, limit, 10*time.Millisecond)
	assert.Equal(t, p, h.Processes(Running(sleep)))
	assert.Equal(t, p, h.Processes(WithEnv("MARK", "")))
	assert.Equal(t, p, h.Processes(WithEnv("MARK", "here")))
	assert.Empty(t, h.Processes(WithEnv("MARK", "there")))
	assert.Equal(t, []string{"sleep", "1000"}, p[0].Args)
	assert.Contains(t, p[0].String(), "sleep 1000")
	assert.Empty(t, c.Hosts()[0].Processes(Running(sleep)), "the process is on another host")
	require.NoError(t, syscall.Kill(p[0].PID, syscall.SIGTERM))
	require.Eventually(t, none, limit, 10*time.Millisecond)
}
