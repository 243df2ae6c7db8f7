//go:build linux

package remote

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/weft-hpc/weft/launcher/internal/hosts"
)

// shells are login shells that users have. Tests skip those that are not installed here.
var shells = []string{"sh", "bash", "dash", "csh", "tcsh", "fish", "zsh"}

var node = hosts.Host{Name: "node"}

func TestSamePath(t *testing.T) {
	for _, shell := range shells {
		t.Run(shell, func(t *testing.T) {
			p := fakeSSH(t, shell, "")
			conn := open(t, &p.ssh, node)
			require.Equal(t, "hello", echo(t, conn, "hello"))
			require.NoFileExists(t, p.cached(t))
			exe, err := Self()
			require.NoError(t, err)
			name, err := os.Hostname()
			require.NoError(t, err)
			require.Equal(t, Greeting{Hash: exe.Hash, Hostname: name, PID: conn.Peer().PID}, conn.Peer())
			require.Equal(t, "node", conn.Host())
		})
	}
}

// TestSend checks that gorun is copied to the host once, and that the copy is used afterwards.
func TestSend(t *testing.T) {
	for _, shell := range shells {
		t.Run(shell, func(t *testing.T) {
			p := fakeSSH(t, shell, "")
			p.elsewhere(t)
			var sent int
			p.ssh.Log = func(line string) { sent += strings.Count(line, "sending") }
			for range 2 {
				conn := open(t, &p.ssh, node)
				require.Equal(t, "hello", echo(t, conn, "hello"))
				require.NoError(t, conn.Close())
			}
			require.Equal(t, []string{filepath.Base(p.cached(t))}, names(t, filepath.Dir(p.cached(t))))
			require.Equal(t, 1, sent)
			fi, err := os.Stat(p.cached(t))
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o700), fi.Mode())
		})
	}
}

// TestScript checks that the script works in different implementations of sh.
func TestScript(t *testing.T) {
	for _, sh := range []string{"dash", "bash --posix", "busybox sh", "ksh", "mksh", "yash"} {
		t.Run(sh, func(t *testing.T) {
			path, err := exec.LookPath(strings.Fields(sh)[0])
			if err != nil {
				t.Skip(err)
			}
			sh := strings.Replace(sh, strings.Fields(sh)[0], path, 1)
			p := fakeSSH(t, "sh", `last=$(printf %s "$last" | sed "s|^exec /bin/sh |exec `+sh+` |")`)
			p.elsewhere(t)
			for range 2 {
				conn := open(t, &p.ssh, node)
				require.Equal(t, "hello", echo(t, conn, "hello"))
				require.NoError(t, conn.Close())
			}
			p.ssh.Agent = "~/none"
			require.Contains(t, refuse(t, &p.ssh, node), p.home("none")+": no such program on this host")
		})
	}
}

func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// TestInherited checks that the agent, and so the ranks, inherit the umask and directory of the
// user's shell.
func TestInherited(t *testing.T) {
	p := fakeSSH(t, "sh", "umask 027; cd /usr")
	p.elsewhere(t)
	conn := open(t, &p.ssh, node)
	require.Equal(t, "027 /usr ", echo(t, conn, "inherited"))
}

// TestStrayOutput checks that what other code of an agent prints to stdout does not go into the
// stream.
func TestStrayOutput(t *testing.T) {
	p := fakeSSH(t, "sh", "")
	conn := open(t, &p.ssh, node)
	require.Equal(t, "print something", echo(t, conn, "print something"))
}

func TestSendAtOnce(t *testing.T) {
	p := fakeSSH(t, "sh", "")
	p.elsewhere(t)
	var g errgroup.Group
	for range 6 {
		g.Go(func() error {
			conn, err := p.ssh.Open(t.Context(), node)
			if err == nil {
				err = conn.Close()
			}
			return err
		})
	}
	require.NoError(t, g.Wait())
	require.Equal(t, []string{filepath.Base(p.cached(t))}, names(t, filepath.Dir(p.cached(t))))
}

func TestFoundInPath(t *testing.T) {
	p := fakeSSH(t, "sh", "")
	p.elsewhere(t)
	require.NoError(t, os.Mkdir(p.dir+"/bin", 0o700))
	require.NoError(t, os.Symlink(binary(t), p.dir+"/bin/gorun"))
	conn := open(t, &p.ssh, node)
	require.Equal(t, "hello", echo(t, conn, "hello"))
	require.NoFileExists(t, p.cached(t))
}

// TestAnotherGorun puts programs that are not this gorun at the places where the script looks for
// it: in PATH and in the cache. It checks that they read no bytes of the stream, and that the agent
// starts.
func TestAnotherGorun(t *testing.T) {
	for name, text := range map[string]string{
		"another version":   "echo " + strings.Repeat("0", 64),
		"another program":   "cat; echo usage: gorun; echo no >&2; exit 2",
		"a broken program":  "kill -SEGV $$",
		"a sleepless shell": "read line && sleep 60",
	} {
		t.Run(name, func(t *testing.T) {
			p := fakeSSH(t, "sh", "")
			p.elsewhere(t)
			require.NoError(t, os.Mkdir(p.dir+"/bin", 0o700))
			require.NoError(t, os.WriteFile(p.dir+"/bin/gorun", []byte("#!/bin/sh\n"+text+"\n"), 0o700))
			require.NoError(t, os.MkdirAll(filepath.Dir(p.cached(t)), 0o700))
			require.NoError(t, os.WriteFile(p.cached(t), []byte("\x7fELF"), 0o700)) // a damaged copy
			conn := open(t, &p.ssh, node)
			require.Equal(t, "hello", echo(t, conn, "hello"))
		})
	}
}

func TestConfiguredAgent(t *testing.T) {
	p := fakeSSH(t, "sh", "")
	exe, err := Self()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(binary(t), p.home("my agent")))
	other := exe
	other.Hash, other.Path = strings.Repeat("ab", 32), "/nonexistent"
	p.ssh.Executable = other // the configured program need not be a copy of this one

	for _, path := range []string{"~/my agent", p.home("my agent")} {
		p.ssh.Agent = path
		conn := open(t, &p.ssh, node)
		require.Equal(t, exe.Hash, conn.Peer().Hash)
		require.Equal(t, "hello", echo(t, conn, "hello"))
	}
	p.ssh.Agent = "~/none"
	require.Contains(t, refuse(t, &p.ssh, node), p.home("none")+": no such program on this host")

	script := func(text string) {
		require.NoError(t, os.WriteFile(p.home("script"), []byte("#!/bin/sh\n"+text+"\n"), 0o700))
		p.ssh.Agent = "~/script"
	}
	script("echo weft-agent 7 up '{}'; cat")
	require.Contains(t, refuse(t, &p.ssh, node), "speaks version 7 of weft's protocol, and this one version 3")
	script("exit 4")
	require.Contains(t, refuse(t, &p.ssh, node), "the agent ended with status 4")
	script("echo Usage of script; exit 0")
	require.Contains(t, refuse(t, &p.ssh, node), `fakessh ended without a greeting of an agent; what came instead begins with "Usage of script"`)
	script("echo weft-agent 3 up '{}'; cat")
	require.Contains(t, refuse(t, &p.ssh, node), errNoGreeting.Error())
}

// TestNoise checks that Open finds the greeting after what the user's shell prints, and fails if
// that is too much or no greeting comes.
func TestNoise(t *testing.T) {
	for name, noise := range map[string]string{
		"lines":        "echo; echo Welcome; echo to this machine",
		"no line end":  "printf Welcome",
		"looks like":   "echo weft-agent; echo weft-agentx 1 up; printf 'weft-agent 3 up'",
		"many":         "seq 10000",
		"one long one": "head -c 60000 /dev/zero",
	} {
		t.Run(name, func(t *testing.T) {
			p := fakeSSH(t, "sh", noise)
			conn := open(t, &p.ssh, node)
			require.Equal(t, "hello", echo(t, conn, "hello"))
		})
	}
	t.Run("too much", func(t *testing.T) {
		p := fakeSSH(t, "sh", "echo Once upon a time; yes; :")
		require.Equal(t, `node: no greeting of an agent in the first 64 KiB; what came instead begins with "Once upon a time"`, refuse(t, &p.ssh, node))
	})
	t.Run("no login", func(t *testing.T) {
		p := fakeSSH(t, "sh", "echo This account is currently not available.; exit 1")
		require.Equal(t, `node: the agent ended with status 1; what came instead begins with "This account is currently not available."`, refuse(t, &p.ssh, node))
	})
}

// TestWords checks which error Open makes of the messages and exit statuses of ssh.
func TestWords(t *testing.T) {
	for _, test := range []struct{ does, says string }{
		{`printf 'ssh: connect to host node port 22: Connection refused\r\n' >&2; exit 255`, "node: ssh: connect to host node port 22: Connection refused"},
		{`printf 'Warning: Permanently added node\nroot@node: Permission denied (publickey).' >&2; exit 255`, "node: root@node: Permission denied (publickey)."},
		{`printf 'ssh: connect to host gate port 22: No route to host\nConnection closed by UNKNOWN port 65535\n' >&2; exit 255`,
			"node: ssh: connect to host gate port 22: No route to host; Connection closed by UNKNOWN port 65535"},
		{`exit 255`, "node: fakessh ended with status 255 and no message: the connection broke, or the agent was killed"},
		{`kill -9 $$`, "node: fakessh was ended by signal 9 (killed)"},
		{`exit 126`, "node: the agent cannot be executed (status 126)"},
		{`exit 127`, "node: a program to be run on the host does not exist (status 127)"},
		{`printf '\033[2J\033]0;x\007' >&2; exit 255`, "node: ?[2J?]0;x?"},
		// The line is longer than tailLine, so only its blanks are kept.
		{`printf '%5000d\n' 7 >&2; exit 3`, "node: the agent ended with status 3"},
	} {
		p := fakeSSH(t, "sh", test.does)
		require.Equal(t, test.says, refuse(t, &p.ssh, node), test.does)
	}
	s := &SSH{Command: []string{"./no-such-ssh"}}
	require.Equal(t, "node: ./no-such-ssh cannot be started: no such file or directory", refuse(t, s, node))
	s = &SSH{Command: []string{"no-such-ssh"}}
	require.Equal(t, "node: no-such-ssh cannot be started: executable file not found in $PATH", refuse(t, s, node))
}

func TestSilence(t *testing.T) {
	p := fakeSSH(t, "sh", "sleep 1000; :")
	p.ssh.Timeout = 50 * time.Millisecond
	require.Equal(t, "node: did not answer within 50ms", refuse(t, &p.ssh, node))
	p = fakeSSH(t, "sh", "trap '' TERM; echo Password: ; echo waiting >&2; touch \"$HOME/waits\"; sleep 1000 & sleep 1000; :")
	p.ssh.Timeout = 2 * time.Second
	require.Equal(t, `node: did not answer within 2s: waiting; what came instead begins with "Password:"`, refuse(t, &p.ssh, node))

	ctx, cancel := context.WithCancel(t.Context())
	p.ssh.Timeout = time.Minute
	require.NoError(t, os.Remove(p.home("waits")))
	go func() { // ends when ssh runs
		defer cancel()
		for {
			if _, err := os.Stat(p.home("waits")); err == nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	_, err := p.ssh.Open(ctx, node)
	require.ErrorIs(t, err, context.Canceled)
	require.EqualError(t, err, "node: context canceled")
}

// TestCause checks the cause of a stream's end after the agent has ended in different ways.
func TestCause(t *testing.T) {
	for order, says := range map[string]string{
		"exit 0 all is well":    "",
		"exit 3 no more memory": "node: no more memory",
		"exit 3":                "node: the agent ended with status 3",
		"panic at once":         "node: panic: at once",
	} {
		p := fakeSSH(t, "sh", "")
		conn := open(t, &p.ssh, node)
		_, err := io.WriteString(conn, order+"\n")
		require.NoError(t, err)
		_, err = conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		if says == "" {
			require.NoError(t, conn.Cause())
		} else {
			require.EqualError(t, conn.Cause(), says)
		}
	}
}

// TestClose checks that Close unblocks Read and Write, and ends an ssh that ignores SIGTERM.
func TestClose(t *testing.T) {
	p := fakeSSH(t, "sh", "")
	stubborn := filepath.Join(p.dir, "stubborn")
	require.NoError(t, os.WriteFile(stubborn, []byte("#!/bin/sh\ntrap '' TERM\necho 'weft-agent 3 up {\"hash\":\""+strings.Repeat("00", 32)+"\",\"host\":\"x\",\"pid\":1}'\nsleep 1000 & sleep 1000\n"), 0o700))
	p.ssh.Command, p.ssh.Agent = []string{stubborn}, "x"
	conn := open(t, &p.ssh, node)
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(io.Discard, conn) })
	wg.Go(func() {
		for {
			if _, err := conn.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	})
	require.NoError(t, conn.Close())
	wg.Wait()
	require.NoError(t, conn.Close())
	require.EqualError(t, conn.Cause(), "node: stubborn was ended by signal 9 (killed)")
}

// TestSendFails checks that a failed copy leaves nothing behind and does not hang.
func TestSendFails(t *testing.T) {
	t.Run("no more room", func(t *testing.T) {
		p := fakeSSH(t, "sh", "ulimit -f 100")
		p.elsewhere(t)
		require.Contains(t, refuse(t, &p.ssh, node), "node: "+p.home(".cache/weft/.gorun-"))
		require.Empty(t, names(t, p.home(".cache/weft")))
	})
	t.Run("no folder", func(t *testing.T) {
		p := fakeSSH(t, "sh", "echo >$HOME/.cache")
		p.elsewhere(t)
		require.Contains(t, refuse(t, &p.ssh, node), "node: mkdir: ")
	})
	t.Run("another system", func(t *testing.T) {
		p := fakeSSH(t, "sh", "")
		p.elsewhere(t)
		require.NoError(t, os.Mkdir(p.dir+"/bin", 0o700))
		require.NoError(t, os.WriteFile(p.dir+"/bin/uname", []byte("#!/bin/sh\necho Linux vax\n"), 0o700))
		require.Contains(t, refuse(t, &p.ssh, node), "node: the host is Linux vax, but this gorun is for "+thisMachine()+": ")
		require.Empty(t, names(t, p.home(".cache/weft")))
	})
	t.Run("does not run", func(t *testing.T) {
		p := fakeSSH(t, "sh", "")
		file := filepath.Join(p.dir, "gorun")
		require.NoError(t, os.WriteFile(file, []byte("#!/nonexistent/loader\n"), 0o600))
		exe, err := newExecutable(file)
		require.NoError(t, err)
		p.ssh.Executable = exe
		text := refuse(t, &p.ssh, node)
		require.Contains(t, text, "node: "+p.home(".cache/weft/.gorun-"))
		require.Contains(t, text, " does not run: ")
		require.Contains(t, text, "not found")
		require.Empty(t, names(t, p.home(".cache/weft")))
	})
	t.Run("breaks off", func(t *testing.T) {
		p := fakeSSH(t, "sh", "")
		p.elsewhere(t)
		p.ssh.Executable.Size += 1000
		require.Equal(t, "node: sending gorun: EOF", refuse(t, &p.ssh, node))
		require.Empty(t, names(t, p.home(".cache/weft")))
	})
}

func TestArguments(t *testing.T) {
	p := fakeSSH(t, "sh", "")
	conn := open(t, &p.ssh, hosts.Host{Name: "node", User: "me", Port: 2222})
	require.NoError(t, conn.Close())
	calls, err := os.ReadFile(p.dir + "/calls")
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(calls), "-x -T -o BatchMode=yes -o ConnectTimeout=19 -o ClearAllForwardings=yes -p 2222 -l me -- node exec /bin/sh -c "), string(calls))

	for _, h := range []hosts.Host{{Name: "-oProxyCommand=touch x"}, {Name: "a b"}, {Name: ""}, {Name: "x", User: "-l"}, {Name: "me@node"}} {
		_, err := p.ssh.Open(t.Context(), h)
		require.ErrorContains(t, err, "expected a ")
	}
	require.NotContains(t, script, `\`)
	require.NotContains(t, script, `'`)
	require.NotContains(t, script, `!`)
	require.NotContains(t, script, "\n")
}

// TestKilled kills a gorun before and after it has connected, and checks that its ssh ends.
func TestKilled(t *testing.T) {
	for _, before := range []string{"", "exec sleep 1000"} {
		p := fakeSSH(t, "sh", "echo $$ >>$HOME/pid\n"+before)
		gorun := exec.Command(binary(t), "-agent", "-gorun", p.ssh.Command[0])
		require.NoError(t, gorun.Start())
		pid := 0
		require.Eventually(t, func() bool {
			text, err := os.ReadFile(p.home("pid"))
			if err == nil {
				pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
			}
			return err == nil
		}, 10*time.Second, time.Millisecond)
		require.NoError(t, gorun.Process.Kill())
		_ = gorun.Wait()
		require.Eventually(t, func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err != nil || strings.Contains(string(stat), ") Z ")
		}, 10*time.Second, time.Millisecond)
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
}

// connect is the main function of the gorun that TestKilled starts and kills: it connects with an
// agent by ssh and waits.
func connect(ssh string) int {
	s := &SSH{Command: []string{ssh}, Timeout: time.Minute}
	conn, err := s.Open(context.Background(), node)
	if err != nil {
		return 1
	}
	_, _ = conn.Read(make([]byte, 1))
	return 0
}

func TestPrune(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	copyOf := func(c string) string { return cachePrefix + strings.Repeat(c, 64) }
	place := func(name string, age time.Duration) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, nil, 0o700))
		require.NoError(t, os.Chtimes(path, now.Add(-age), now.Add(-age)))
		return path
	}
	mine := place(copyOf("a"), 40*24*time.Hour)
	place(copyOf("b"), 40*24*time.Hour)
	place(copyOf("c"), 20*24*time.Hour)
	place("gorun-notes", 400*24*time.Hour)
	place(partPrefix+"X", 2*time.Hour)
	place(partPrefix+"Y", 2*24*time.Hour)

	used := filepath.Join(dir, copyOf("d"))
	text, err := os.ReadFile("/bin/sleep")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(used, text, 0o700))
	require.NoError(t, os.Chtimes(used, now.Add(-40*24*time.Hour), now.Add(-40*24*time.Hour)))
	sleep := exec.Command(used, "1000")
	require.NoError(t, sleep.Start())

	pruneCache(mine, now)
	require.Equal(t, []string{partPrefix + "X", copyOf("a"), copyOf("c"), copyOf("d"), "gorun-notes"}, names(t, dir))
	require.NoError(t, sleep.Process.Kill())
	_ = sleep.Wait()
	// A program with this name is not a copy, so its directory is not a cache.
	pruneCache(filepath.Join(dir, "gorun"), now)
	require.Len(t, names(t, dir), 5)
	fi, err := os.Stat(mine)
	require.NoError(t, err)
	require.WithinDuration(t, now, fi.ModTime(), time.Minute)
	pruneCache(mine, now)
	require.Len(t, names(t, dir), 4)
}
