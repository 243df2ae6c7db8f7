package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
)

// completions are command lines, and what they become when the user presses the tabulator key.
var completions = []struct{ line, want string }{
	{"gorun -np 2 -dry", "-dry-run"},
	{"gorun -transport shm,libf", "shm,libfabric"},
	{"gorun -bind-to=nu", "-bind-to=numa"},
	{"gorun -p transport.us", "transport.use="},
	{"gorun -config myj", "myjob.toml"},
	{"gorun -config=myj", "-config=myjob.toml"},
	{"gorun -output myd", "mydir"},
	{"gorun ./a -x : -rank-by no", "node"},
}

// TestCompletion completes command lines in real shells.
func TestCompletion(t *testing.T) {
	bin, dir := t.TempDir(), t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(self, filepath.Join(bin, "gorun")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "myjob.toml"), nil, 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "mydir"), 0o700))
	env := append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "TERM=dumb", asGorun+"=1", "HOME="+dir, "XDG_CONFIG_HOME="+dir)

	for shell, setup := range map[string]string{
		"bash --norc --noprofile -i": "source <(gorun -completion bash)",
		"zsh -f -i":                  "unsetopt prompt_cr prompt_sp; autoload -U compinit; compinit -u; source <(gorun -completion zsh)",
	} {
		t.Run(strings.Fields(shell)[0], func(t *testing.T) {
			s := startShell(t, strings.Fields(shell), dir, env)
			s.expect(t, setup+"; echo rea''dy\n", "\nready")
			for _, c := range completions {
				s.expect(t, c.line+"\t", c.want)
				s.send(t, "\x15\n") // delete the line
			}
		})
	}
	t.Run("fish", func(t *testing.T) {
		for _, c := range completions {
			cmd := exec.Command("fish", "--no-config", "-c", "gorun -completion fish | source; complete -C '"+c.line+"'")
			cmd.Dir, cmd.Env = dir, env
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Regexp(t, "(?m)^"+regexp.QuoteMeta(c.want)+"/?(\t.*)?$", string(out), c.line)
		}
	})
}

// shell is a shell on a pseudo terminal.
type shell struct {
	terminal *os.File

	mu     sync.Mutex
	output strings.Builder
}

func startShell(t *testing.T, args []string, dir string, env []string) *shell {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Env = dir, env
	f, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 50, Cols: 1000})
	require.NoError(t, err)
	s := &shell{terminal: f}
	var reading sync.WaitGroup
	reading.Go(func() { // ends when the terminal is closed or the shell has ended
		_, _ = io.Copy(s, f)
	})
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = f.Close()
		reading.Wait()
	})
	return s
}

// Write takes output of the shell.
func (s *shell) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.Write(p)
}

func (s *shell) send(t *testing.T, text string) {
	t.Helper()
	_, err := io.WriteString(s.terminal, text)
	require.NoError(t, err)
}

// expect sends text, and waits until the shell has written want since then.
func (s *shell) expect(t *testing.T, text, want string) {
	t.Helper()
	s.mu.Lock()
	s.output.Reset()
	s.mu.Unlock()
	s.send(t, text)
	now := func() string {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.output.String()
	}
	for until := time.Now().Add(time.Minute); !strings.Contains(now(), want); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%q does not become %q, but %q", text, want, now())
		}
	}
}
