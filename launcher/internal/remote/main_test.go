//go:build linux

package remote

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/testbed"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
)

// TestMain runs the tests, or an agent if SSH or Srun has started this binary with "-agent".
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-agent" {
		os.Exit(agentMain(os.Args[2:]))
	}
	if os.Getenv("GORACE") == "" {
		_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise every agent takes a second to end
	}
	before := openFiles()
	code := m.Run()
	if err := testbed.Down(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := leaked(before); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// agentMain runs an agent that echoes each line that it gets. If the first word of a line is exit,
// panic, inherited or print, it is a command.
func agentMain(args []string) int {
	if len(args) > 0 && args[0] == "-hash" {
		if err := PrintHash(os.Stdout); err != nil {
			return 1
		}
		return 0
	}
	if len(args) > 1 && args[0] == "-gorun" {
		return connect(args[1])
	}
	conn, err := agentConn(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer conn.Close()
	defer RemoveBroadcast()
	r := bufio.NewReader(conn)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0
		}
		words := strings.Fields(line)
		switch words[0] {
		case "exit":
			fmt.Fprintln(os.Stderr, strings.Join(words[2:], " "))
			code, _ := strconv.Atoi(words[1])
			return code
		case "panic":
			panic(strings.Join(words[1:], " "))
		case "inherited": // sends the umask, the directory and variables, which the script might have changed
			mask := syscall.Umask(0)
			dir, _ := os.Getwd()
			line = fmt.Sprintf("%03o %s %s\n", mask, dir, os.Getenv("weft_p")+os.Getenv("weft_e")+os.Getenv("LC_ALL"))
		case "print": // also prints to stdout, as a library might
			fmt.Println(strings.Join(words[1:], " "))
		}
		if _, err := io.WriteString(conn, line); err != nil {
			return 1
		}
	}
}

func agentConn(args []string) (*Conn, error) {
	if len(args) < 4 || args[0] != "-connect" {
		return Stdio("")
	}
	secret, err := ReadSecret(args[3])
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return Dial(ctx, args[1], secret, os.Getenv("SLURMD_NODENAME"))
}

func openFiles() map[string]bool {
	files := map[string]bool{}
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil {
			files[to] = true
		}
	}
	return files
}

// leaked returns an error that lists goroutines, files and children that the tests have left.
func leaked(before map[string]bool) error {
	var what string
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		what = ""
		buf := make([]byte, 1<<20)
		stacks := string(buf[:runtime.Stack(buf, true)])
		for _, g := range strings.Split(stacks, "\n\n") {
			if strings.Contains(g, "launcher/internal/remote.") && !strings.Contains(g, "remote.TestMain") {
				what += "\n" + g
			}
		}
		for f := range openFiles() {
			if !before[f] && (strings.HasPrefix(f, "pipe:") || strings.HasPrefix(f, "socket:")) {
				what += "\n" + f
			}
		}
		if out, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid())); err == nil && strings.TrimSpace(string(out)) != "" {
			what += "\nchildren " + string(out)
		}
		if what == "" {
			return nil
		}
	}
	return fmt.Errorf("left behind:%s", what)
}

// fakeHost is an imaginary host that a fake ssh reaches. It is a directory that contains the user's
// home.
type fakeHost struct {
	dir string
	ssh SSH
}

// fakeSSH returns a fakeHost. Its ssh is a script that runs the command on this host by the given
// login shell, with a home of its own. First the script runs the commands in before, as a startup
// file of the shell would.
func fakeSSH(t *testing.T, shell, before string) *fakeHost {
	t.Helper()
	shell, err := exec.LookPath(shell)
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	require.NoError(t, os.Mkdir(home, 0o700))
	text := `#!/bin/sh
for last; do :; done
unset XDG_CACHE_HOME
HOME=` + home + ` PATH=` + dir + `/bin:/usr/bin:/bin
export HOME PATH
echo "$*" >>` + dir + `/calls
` + before + `
exec ` + shell + ` -c "$last"
`
	file := filepath.Join(dir, "fakessh")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o700))
	p := &fakeHost{dir: dir}
	p.ssh = SSH{Command: []string{file}, Timeout: 20 * time.Second}
	return p
}

func (p *fakeHost) home(path ...string) string {
	return filepath.Join(append([]string{p.dir, "home"}, path...)...)
}

func (p *fakeHost) cached(t *testing.T) string {
	exe, err := Self()
	require.NoError(t, err)
	return p.home(".cache/weft/gorun-" + exe.Hash)
}

// elsewhere makes p.ssh look for this program at a path that does not exist on the host.
func (p *fakeHost) elsewhere(t *testing.T) {
	exe, err := Self()
	require.NoError(t, err)
	exe.Path = "/nonexistent/it's \\ a !/gorun"
	p.ssh.Executable = exe
}

func open(t *testing.T, s *SSH, h hosts.Host) *Conn {
	t.Helper()
	conn, err := s.Open(t.Context(), h)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

// refuse returns the error of Open for a host, which must fail.
func refuse(t *testing.T, s *SSH, h hosts.Host) string {
	t.Helper()
	conn, err := s.Open(t.Context(), h)
	if err == nil {
		_ = conn.Close()
	}
	require.Error(t, err)
	require.True(t, strings.HasPrefix(err.Error(), h.Name+": "), err)
	require.NotContains(t, err.Error(), "\n")
	return err.Error()
}

// echo sends a line and returns what comes back.
func echo(t *testing.T, conn io.ReadWriter, line string) string {
	t.Helper()
	_, err := io.WriteString(conn, line+"\n")
	require.NoError(t, err)
	got, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSuffix(got, "\n")
}

// binary returns the path of this test binary.
func binary(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}
