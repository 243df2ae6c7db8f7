//go:build linux

package launcher

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// withoutPage removes gorun's line about the page from its stderr.
func withoutPage(t *testing.T, stderr string) string {
	t.Helper()
	line := regexp.MustCompile(`(?m)^gorun: live page at http://127\.0\.0\.1:\d+/[A-Z2-7]{12}/\?token=[A-Z2-7]{26}\n`)
	require.Len(t, line.FindAllString(stderr, -1), 1, stderr)
	return line.ReplaceAllString(stderr, "")
}

// TestPageKeepsTheOutput: with a live page, the output of the job must be what it is without one.
func TestPageKeepsTheOutput(t *testing.T) {
	j := testJob(4, "-c", `printf "out $PMI_RANK\n\n[0] x\n"; printf "[1] err $PMI_RANK\n" >&2; printf "last $PMI_RANK"`)
	j.Apps[0].Program = "sh"
	_, want, wantErr := runJob(t, j)
	j.UI = ":0"
	res, out, stderr := runJob(t, j)
	require.Zero(t, res.ExitCode, stderr)
	require.Equal(t, sortedLines(want), sortedLines(out))
	require.Equal(t, sortedLines(wantErr), sortedLines(withoutPage(t, stderr)))

	j.TagOutput = true
	_, out, _ = runJob(t, j)
	var own []string // the lines of rank 2; those of others can be between them
	for line := range strings.SplitSeq(out, "\n") {
		if strings.HasPrefix(line, "[2] ") {
			own = append(own, line)
		}
	}
	require.Equal(t, []string{"[2] out 2", "[2] ", "[2] [0] x", "[2] last 2"}, own)

	j.TagOutput, j.OutputDir = false, t.TempDir()
	_, _, _ = runJob(t, j)
	file := func() string {
		text, err := os.ReadFile(filepath.Join(j.OutputDir, "3.out"))
		require.NoError(t, err)
		return string(text)
	}
	require.Equal(t, "out 3\n\n[0] x\nlast 3", file())
	j.Tee, j.OutputDir = true, t.TempDir()
	_, out, _ = runJob(t, j)
	require.Equal(t, sortedLines(want), sortedLines(out))
	require.Equal(t, "out 3\n\n[0] x\nlast 3", file())

	const size = 300_000
	j = testJob(4, "-c", fmt.Sprintf(`head -c %d /dev/zero | tr '\0' $PMI_RANK; echo; echo short $PMI_RANK`, size))
	j.Apps[0].Program, j.UI = "sh", ":0"
	_, out, _ = runJob(t, j)
	var all []string
	for r := range 4 {
		all = append(all, strings.Repeat(fmt.Sprint(r), size), fmt.Sprintf("short %d", r))
	}
	require.True(t, fmt.Sprint(sortedLines(out)) == fmt.Sprint(sortedLines(strings.Join(all, "\n"))), "%d bytes", len(out))

	j = testJob(1, "-c", `printf 'a\n\nb\0c\nno newline'`)
	j.Apps[0].Program, j.UI = "sh", ":0"
	_, out, _ = runJob(t, j)
	require.Equal(t, "a\n\nb\x00c\nno newline", out)

	j.UI = "192.0.2.1:1"
	res, out, stderr = runJob(t, j)
	require.Equal(t, 1, res.ExitCode)
	require.Empty(t, out)
	require.Contains(t, stderr, "gorun: -ui 192.0.2.1:1: ")
}

// TestFinalSnapshot: the last state of a job must name the rank that has failed, and not those that gorun
// has ended because of it.
func TestFinalSnapshot(t *testing.T) {
	j := testJob(5)
	r := newRun(&session{job: j}, "id")
	r.hosts = []host{{Host: hosts.Host{Name: "a"}}, {Host: hosts.Host{Name: "b"}, state: hostLost}}
	r.ranks = []rank{
		{pid: 1, exit: &proto.Exit{}}, {pid: 1, exit: &proto.Exit{Code: 3}}, {pid: 1, exit: &proto.Exit{Signal: 15, AfterEnd: true}}, {pid: 1, host: 1}, {},
	}
	r.size = 5
	var states []string
	for _, k := range r.finalSnapshot().Ranks {
		states = append(states, k.State)
	}
	require.Equal(t, []string{"ended", "failed", "ended", "failed", "not started"}, states)
}

// TestCaptureOfASilentHost: a host has not ended its part of a capture in time, so its files may not be complete.
func TestCaptureOfASilentHost(t *testing.T) {
	r := tracedRun()
	var got capturedFiles
	request := captureRequest{kind: "cpu", then: func(files capturedFiles) { got = files }}
	r.capturing = &capture{captureRequest: request, infos: r.rankInfos(false), file: 5, silent: map[int]bool{0: true, 1: true}}
	r.handle(proto.Captured{File: 5, Index: 0})
	require.Empty(t, got.infos)
	r.handle(lateCapture{4})
	require.Empty(t, got.infos)
	r.handle(lateCapture{5})
	require.Len(t, got.infos, 6)
	require.Equal(t, []string{"node2"}, got.late)
}
