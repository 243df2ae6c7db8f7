//go:build linux

package launcher

import (
	"bytes"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// TestProgressOnATerminal: the agent on a host does not answer, and stderr is a terminal. gorun
// must show its progress in a line that is cut to the width of the terminal, and must then
// overwrite this line by the error.
func TestProgressOnATerminal(t *testing.T) {
	master, tty := terminal(t)
	t.Setenv("TERM", "xterm")
	require.NoError(t, unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 40}))
	j := testJob(2, "exit", "0")
	j.Hosts = []hosts.Host{{Name: "localhost"}, {Name: "a-host-of-a-very-long-name"}}
	j.SSH, j.ConnectTimeout = "sh -c 'exec sleep 60' x", 1500*time.Millisecond
	require.Equal(t, proto.ExitFailed, Run(t.Context(), j, Stdio{Err: tty}).ExitCode)
	require.NoError(t, tty.Close())
	seen, err := io.ReadAll(master) // not one Read, which may return only the first of several writes
	require.ErrorIs(t, err, unix.EIO, "reads of a terminal whose other side is closed fail with EIO")
	require.Equal(t,
		eraseLine+"gorun: 1 of 2 hosts up; waiting for a-h"+
			eraseLine+"gorun: a-host-of-a-very-long-name: did not answer within 1.5s\r\n", string(seen))
}

// TestJobProgress: with Progress and a terminal, gorun must show what the ranks do, and remove the line at the
// end of the job. While it copies files, it must show how much of them it has sent.
func TestJobProgress(t *testing.T) {
	program := filepath.Join(t.TempDir(), "account")
	text, err := exec.Command("go", "build", "-o", program, "./testdata/progress").CombinedOutput()
	require.NoError(t, err, string(text))
	master, tty := terminal(t)
	t.Setenv("TERM", "xterm")
	require.NoError(t, unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 200}))
	j := testJob(2)
	j.Apps[0].Program, j.Progress = program, true
	require.Zero(t, Run(t.Context(), j, Stdio{Err: tty}).ExitCode)
	require.NoError(t, tty.Close())
	seen, err := io.ReadAll(master)
	require.ErrorIs(t, err, unix.EIO)
	require.Regexp(t, `gorun: 2 ranks on 1 host, \d+s: in weft \d+ % of the time, \d+\.\d MB/s, 1 in a collective`, string(seen))
	require.True(t, strings.HasSuffix(string(seen), eraseLine), "%q", seen)

	r := &run{group: newGroup(0, "x", -1), phase: phaseStaging}
	r.stageBytes.Store(3e6)
	r.stagedBytes.Store(2e6)
	require.Equal(t, "copying files to the hosts that lack them: 66 % of 3.0 MB", r.progressLine())
}

// TestStatus: the writer must erase the line of progress before other output. It must not write it
// into the middle of a line of output, nor again if it has not changed.
func TestStatus(t *testing.T) {
	var out bytes.Buffer
	w := newWriter(&out, &out)
	w.setStatus("") // there is no line of progress to remove, so this writes nothing
	w.setStatus("up")
	w.setStatus("up")
	w.print("said\n")
	require.NoError(t, w.write(proto.Output{Stream: proto.Merged, Mid: true, Data: []byte("half a ")}))
	w.setStatus("later")
	require.NoError(t, w.write(proto.Output{Stream: proto.Merged, Data: []byte("line\n")}))
	w.setStatus("down")
	w.setStatus("")
	w.finish()
	<-w.done
	require.Equal(t, eraseLine+"up"+eraseLine+"said\nhalf a line\n"+eraseLine+"later"+eraseLine+"down"+eraseLine, out.String())
}
