//go:build linux

package launcher

import (
	"bytes"
	"crypto/md5"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
	"golang.org/x/sys/unix"
)

// runWithInput runs a job of np ranks. Each rank prints its number and the MD5 sum of its standard
// input. runWithInput returns these lines, sorted. in is gorun's standard input, and mode says
// which ranks read it.
func runWithInput(t *testing.T, mode job.Stdin, np int, in *os.File) []string {
	t.Helper()
	j := testJob(np, "-c", `echo $PMI_RANK $(md5sum)`)
	j.Apps[0].Program = "sh"
	j.Stdin = mode
	var out, stderr bytes.Buffer
	res := Run(t.Context(), j, Stdio{In: in, Out: &out, Err: &stderr})
	require.Zero(t, res.ExitCode, stderr.String())
	return sortedLines(out.String())
}

func md5of(text []byte) string { return fmt.Sprintf("%x", md5.Sum(text)) }

func TestStdin(t *testing.T) {
	text := []byte(strings.Repeat("some input\n", 50_000))
	file := filepath.Join(t.TempDir(), "in")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	sum, empty := md5of(text), md5of(nil)
	for _, c := range []struct {
		mode job.Stdin
		want [3]string
	}{
		{job.StdinNone, [3]string{empty, empty, empty}},
		{job.StdinRank0, [3]string{sum, empty, empty}},
		{job.StdinAll, [3]string{sum, sum, sum}},
	} {
		var want []string
		for r, s := range c.want {
			want = append(want, fmt.Sprintf("%d %s -", r, s))
		}
		f, err := os.Open(file)
		require.NoError(t, err)
		require.Equal(t, want, runWithInput(t, c.mode, 3, f), "%s from a file", c.mode)
		require.NoError(t, f.Close())

		r, w, err := os.Pipe()
		require.NoError(t, err)
		go func() { // ends when it has written all text, or when the pipe is closed
			_, _ = w.Write(text)
			_ = w.Close()
		}()
		require.Equal(t, want, runWithInput(t, c.mode, 3, r), "%s from a pipe", c.mode)
		require.NoError(t, r.Close())
	}
	require.Equal(t, []string{"0 " + empty + " -"}, runWithInput(t, job.StdinAll, 1, nil))
}

func TestStdinThatNeverEndsEndsWithTheJob(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	for _, mode := range []job.Stdin{job.StdinRank0, job.StdinAll} {
		j := testJob(2, "exit", "0")
		j.Stdin = mode
		require.Zero(t, Run(t.Context(), j, Stdio{In: r}).ExitCode)
	}
}

// terminal returns the two sides of a pseudo terminal. On master the test reads what a user would
// see and writes what a user would type. tty is for gorun.
func terminal(t *testing.T) (master, tty *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo terminals:", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tty.Close() })
	return master, tty
}

func TestStdinFromATerminal(t *testing.T) {
	master, tty := terminal(t)
	_, err := master.WriteString("typed\n\x04") // ^D ends the input
	require.NoError(t, err)
	require.Equal(t, []string{"0 " + md5of([]byte("typed\n")) + " -"}, runWithInput(t, job.StdinRank0, 1, tty))
}

// TestStdinCredit: hosts may give credit for input before the function that sends the input has
// returned. The test does so each time. stdin must send all input, and must have the credit of
// proto.Window at the end.
func TestStdinCredit(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	const total = 3 * proto.Window
	go func() { // ends when stdin has read all bytes
		defer w.Close()
		_, _ = w.Write(make([]byte, total))
	}()
	got := make(chan int, total)
	var s *stdin
	s, err = newStdin(r, func(m proto.Message) {
		n := len(m.(proto.Stdin).Data)
		s.credit(n)
		got <- n
	})
	require.NoError(t, err)
	s.begin()
	defer s.close()
	for left := total; left > 0; {
		left -= <-got
	}
	require.Zero(t, <-got) // the message that ends the input has no data
	require.Equal(t, proto.Window, s.room)
}
