//go:build linux

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/testbed"
	"github.com/weft-hpc/weft/test/cluster/run"
)

// usage is the last line that gorun prints if it cannot parse its flags or the files that they
// name.
const usage = "gorun -h lists the flags\n"

// TestBadInput runs gorun with mistakes that users make, for example an unknown host. gorun prints one
// line with the cause, for some mistakes followed by the line usage, and exits with the documented
// code.
func TestBadInput(t *testing.T) {
	c := hosts(t)
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	wdir := filepath.Join(c.Private(), "wdir")
	require.NoError(t, os.Mkdir(wdir, 0o700))
	t.Cleanup(func() { _ = os.RemoveAll(wdir) })
	prog := run.Copy(t, run.Rank(), filepath.Join(c.Private(), "bad-program"))
	plain := filepath.Join(c.Private(), "plain")
	run.Copy(t, run.Rank(), plain)
	c.runIn(2, "sh", "-c", `cp "$0" "$1" && chmod -x "$1"`, run.Rank(), plain)
	t.Cleanup(func() { c.runIn(2, "rm", plain) })
	q := regexp.QuoteMeta
	one, two := c.name(1), c.name(2)
	malformed := file("malformed", one+" slots=2\n"+two+" slts=2\n")
	unknown := file("unknown", "rank 0="+one+" slot=0\nrank 1=w0n99 slot=0\n")
	for _, test := range []struct {
		name string
		code int
		says string // regular expression for all of stderr, without "gorun: " and the last newline
		args []string
	}{
		{"unknown host", 1, "no-such-host: .*[Cc]ould not resolve hostname.*", []string{"-host", one + ",no-such-host", "true"}},
		{"no host at the address", 1, q(c.Unused()) + ": .*", []string{"-host", one + "," + c.Unused(), "-connect-timeout", "4s", "true"}},
		{"silent host", 1, q(c.BlackHole()) + ": .*", []string{"-host", one + "," + c.BlackHole(), "-connect-timeout", "2s", "true"}},
		{"password", 1, q(c.PasswordHost()) + `: root@.*: Permission denied \(password\)\.`, []string{"-host", one + "," + c.PasswordHost(), "true"}},
		{"no such user", 1, two + ": .*Permission denied.*", []string{"-host", one + ",nosuchuser@" + two, "true"}},
		{"no such ssh", 1, one + ": /none/ssh cannot be started: no such file or directory", []string{"-ssh", "/none/ssh", "-host", one, "true"}},
		{"no such agent", 1, two + ": /none/gorun: no such program on this host, but -agent-path names it", []string{"-host", two, "-agent-path", "/none/gorun", "true"}},
		{"no agent", 1, two + ": .*greeting.*", []string{"-host", two, "-agent-path", "/bin/true", "true"}},
		{"program not there", 127, one + ": " + q(prog) + ": no such file; -stage copies it to the hosts", []string{"-host", one, "-np", "1", prog}},
		{"program nowhere", 127, "no-such-program.*", []string{"-host", one, "no-such-program"}},
		{"program not executable there", 126, two + ": " + q(plain) + ": cannot be executed", []string{"-host", two, "-np", "1", plain}},
		{"directory not there", 1, one + ": working directory " + q(wdir) + ": no such directory", []string{"-host", one, "-np", "1", "-wdir", wdir, "true"}},
		{"interface of another host", 2, two + `: -iface \(transport.tcp.interface\): listen tcp .*cannot assign requested address`, []string{"-host", one + "," + two, "-np", "2", "-map-by", "node", "-iface", c.Hosts()[0].Address(), "true"}},
		{"strict", 2, "5 ranks do not fit into the 3 slots of 2 hosts", []string{"-host", one + ":2," + two + ":1", "-strict", "-np", "5", "true"}},
		{"more than a host takes", 2, ".*ranks.*", []string{"-hostfile", file("most", one+" slots=1 max_slots=2\n"), "-np", "3", "true"}},
		{"malformed hostfile", 2, "-hostfile: " + q(malformed) + `:2: unknown key "slts"; expected slots, .*\n` + usage[:len(usage)-1], []string{"-hostfile", malformed, "true"}},
		{"no hostfile", 2, "-hostfile: .*none.*\n" + usage[:len(usage)-1], []string{"-hostfile", dir + "/none", "true"}},
		{"host not in the hostfile", 2, "-host: .*" + two + ".*\n" + usage[:len(usage)-1], []string{"-hostfile", file("one", one+"\n"), "-host", two, "true"}},
		{"rankfile of an unknown host", 2, q(unknown) + ":2:.*w0n99.*", []string{"-host", one + "," + two, "-rankfile", unknown, "true"}},
		{"name that is an option", 2, "-host: .*\n" + usage[:len(usage)-1], []string{"-host", "-oProxyCommand=x", "true"}},
		{"port in -host", 2, "-host: .*\n" + usage[:len(usage)-1], []string{"-host", "root@" + one + ":1:2", "true"}},
		{"local launcher", 2, "-launcher: expected auto or ssh .*\"" + one + "\", found local\n" + usage[:len(usage)-1], []string{"-launcher", "local", "-host", one, "true"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := c.sub(t)
			args := test.args
			if args[0] != "-ssh" {
				args = append([]string{"-ssh", c.SSH()}, args...)
			}
			r := run.Gorun(t, args...)
			assert.Equal(t, test.code, r.Code, r.Stderr)
			assert.Regexp(t, `\A(`+"gorun: "+test.says+`)\n\z`, r.Stderr)
			assert.Empty(t, r.Stdout)
			if !strings.HasSuffix(r.Stderr, usage) && r.Report != nil {
				assert.Equal(t, test.code, r.Report.ExitCode)
				assert.NotNil(t, r.Report.Failure)
			}
		})
	}
}

// TestPort runs gorun with a hostfile that gives the port of a host's sshd. gorun connects to that port.
func TestPort(t *testing.T) {
	c := hosts(t)
	hostfile := filepath.Join(t.TempDir(), "hosts")
	require.NoError(t, os.WriteFile(hostfile, fmt.Appendf(nil, "%s port=%d\n", c.name(1), testbed.PasswordPort), 0o600))
	r := run.Gorun(t, "-ssh", c.SSH(), "-hostfile", hostfile, "true")
	require.Equal(t, 1, r.Code)
	// The sshd on that port requires a password.
	require.Regexp(t, "^gorun: "+c.name(1)+`: .*Permission denied \(password\)\.`+"\n$", r.Stderr)
	require.NoError(t, os.WriteFile(hostfile, []byte("root@"+c.name(1)+" port=22\n"), 0o600))
	r = run.Gorun(t, "-ssh", c.SSH(), "-hostfile", hostfile, "-np", "1", "hostname")
	require.Zero(t, r.Code, r.Stderr)
	require.Equal(t, c.name(1)+"\n", r.Stdout)
}

// TestSeveralBadHosts runs gorun with an unknown host and a host that does not answer. gorun prints one
// line for each of them, and the report gives the state of each host.
func TestSeveralBadHosts(t *testing.T) {
	c := hosts(t)
	r := run.Gorun(t, "-ssh", c.SSH(), "-host", strings.Join([]string{c.name(1), "no-such-host", c.name(2), c.BlackHole()}, ","), "-radix", "2", "-connect-timeout", "10s", "true")
	require.Equal(t, 1, r.Code)
	require.Regexp(t, `\Agorun: no-such-host: .*\ngorun: `+c.BlackHole()+`: .*\n\z`, r.Stderr)
	for name, state := range map[string]string{c.name(1): "up", "no-such-host": "failed", c.name(2): "up", c.BlackHole(): "failed"} {
		require.Equal(t, state, r.Report.Runs[0].Host(t, name).State, name)
	}
}

// wrapped writes a shell script that runs the shell commands in before and then gorun. It returns the
// script's path, as a value for -agent-path.
func wrapped(t *testing.T, before string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+before+"\nexec "+run.Program("gorun")+` "$@"`+"\n"), 0o755))
	return path
}

// TestFullDisk runs gorun with hosts whose disk is full, so that gorun cannot copy the program there, or
// gorun itself. gorun exits with 1, prints the cause, and leaves no file on these disks.
func TestFullDisk(t *testing.T) {
	c := hosts(t)
	small := filepath.Join(c.Dir(), "small")
	require.NoError(t, os.MkdirAll(small, 0o755))
	for k := 1; k <= 2; k++ {
		c.runIn(k, "mount", "-t", "tmpfs", "-o", "size=1m", "none", small)
		defer c.runIn(k, "umount", small)
	}
	prog := run.Copy(t, run.Rank(), filepath.Join(c.Private(), "large"))
	agent := wrapped(t, "export TMPDIR="+small)
	r := c.gorunOn("1:1,2:1", "-agent-path", agent, "-np", "2", "-stage", prog).Run(t)
	require.Equal(t, 1, r.Code, r.Stderr)
	require.Regexp(t, `\A(gorun: `+c.name(1)+`: copy of large: .*no space left on device\n|gorun: `+c.name(2)+`: copy of large: .*no space left on device\n)+\z`, r.Stderr)
	for k := 1; k <= 2; k++ {
		require.Empty(t, c.runIn(k, "ls", "-A", small))
	}
	// With enough room the same job succeeds.
	c.runIn(1, "mount", "-o", "remount,size=64m", small)
	c.runIn(2, "mount", "-o", "remount,size=64m", small)
	r = c.gorunOn("1:1,2:1", "-agent-path", agent, "-np", "2", "-stage", prog).Run(t)
	require.Zero(t, r.Code, r.Stderr)

	gorun := run.Copy(t, run.Program("gorun"), filepath.Join(c.Private(), "gorun"))
	const cache = "/root/.cache/weft"
	c.runIn(2, "find", cache, "-mindepth", "1", "-delete")
	c.runIn(2, "mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "none", cache)
	cmd := c.gorunOn("2:1", "-np", "1", "hostname")
	cmd.Exe = gorun
	r = cmd.Run(t)
	left := c.runIn(2, "ls", "-A", cache)
	c.runIn(2, "umount", cache)
	require.Equal(t, 1, r.Code, r.Stderr)
	require.Regexp(t, `\Agorun: `+c.name(2)+`: `+cache+`/.*: .*No space left on device\n\z`, r.Stderr)
	require.Empty(t, left)
}

// TestOtherGorun uses as the agent a script that answers like a gorun of another version, which
// gorun refuses, and a gorun of another build of the same version, which gorun accepts.
func TestOtherGorun(t *testing.T) {
	c := hosts(t)
	other := filepath.Join(t.TempDir(), "gorun")
	require.NoError(t, os.WriteFile(other, []byte("#!/bin/sh\necho\necho 'weft-agent 77 up {}'\nexec cat >/dev/null\n"), 0o755))
	r := c.gorunOn("1:1,2:1", "-agent-path", other, "-np", "2", "true").Run(t)
	require.Equal(t, 113, r.Code, r.Stderr)
	require.Regexp(t, `(?m)\A(gorun: `+c.name(1)+`: .*version 77.*\n|gorun: `+c.name(2)+`: .*version 77.*\n)+\z`, r.Stderr)

	// gorun accepts another build of the same version if -agent-path names it.
	build := run.Copy(t, run.Program("gorun"), filepath.Join(t.TempDir(), "gorun"))
	f, err := os.OpenFile(build, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString("another")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	r = c.gorunOn("1:1,2:1", "-agent-path", build, "-radix", "1", "-np", "2", run.Rank(), "hello").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	// Without -agent-path the agent is of the same build as the gorun that runs the job.
	r = c.gorunOn("1:1", "-v", "-np", "1", run.Rank(), "hello").Run(t)
	require.Zero(t, r.Code, r.Stderr)
}

// TestNoisyShells has a script print text on each host before the agent starts, as some login
// shells do. gorun ignores the text, and the job succeeds.
func TestNoisyShells(t *testing.T) {
	c := hosts(t)
	agent := wrapped(t, "echo Welcome; echo to this host >&2; printf 'no end of line'")
	r := c.gorunOn("1:1,2:1", append([]string{"-agent-path", agent, "-np", "2"}, whereami...)...).Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Equal(t, "1 2", c.where(r.Stdout))
	require.Empty(t, r.Stderr)
}
