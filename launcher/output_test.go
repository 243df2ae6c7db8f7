//go:build linux

package launcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
	"golang.org/x/sys/unix"
)

func TestOutputIsWholeLinesInOrder(t *testing.T) {
	for _, tag := range []bool{false, true} {
		j := testJob(8, "lines")
		j.TagOutput = tag
		res, out, stderr := runJob(t, j)
		require.Zero(t, res.ExitCode, stderr)
		next := make([]int, 8)
		for line := range strings.Lines(out) {
			if tag {
				prefix, rest, ok := strings.Cut(line, " ")
				require.True(t, ok)
				require.Equal(t, "["+rest[:1]+"]", prefix)
				line = rest
			}
			var rank, i int
			var xs string
			n, _ := fmt.Sscanf(line, "%d %d %s", &rank, &i, &xs)
			require.GreaterOrEqual(t, n, 2, "%q", line)
			require.Equal(t, next[rank], i)
			require.Equal(t, i%200, len(xs))
			next[rank]++
		}
		for _, n := range next {
			require.Equal(t, 1000, n)
		}
	}
}

func TestOutputTagsAndFiles(t *testing.T) {
	script := `echo out $PMI_RANK; echo err $PMI_RANK >&2; printf last`
	j := testJob(2, "-c", script)
	j.Apps[0].Program = "sh"
	j.TagOutput = true
	_, out, stderr := runJob(t, j)
	require.ElementsMatch(t, []string{"[0] out 0", "[0] last", "[1] out 1", "[1] last"}, strings.Split(out, "\n"))
	require.Equal(t, []string{"[0]<stderr> err 0", "[1]<stderr> err 1"}, sortedLines(stderr))

	j.OutputDir = filepath.Join(t.TempDir(), "a", "b")
	_, out, stderr = runJob(t, j)
	require.Empty(t, out+stderr)
	for name, want := range map[string]string{"0.out": "out 0\nlast", "0.err": "err 0\n", "1.out": "out 1\nlast", "1.err": "err 1\n"} {
		text, err := os.ReadFile(filepath.Join(j.OutputDir, name))
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
}

// TestTee: with Tee, the output goes to the files and, with tags, also to stdout and stderr. The names of
// the files have leading zeros. Lines that are longer than one read, and lines without an end, are complete
// in both.
func TestTee(t *testing.T) {
	const size = 200_000
	script := fmt.Sprintf(`head -c %d /dev/zero | tr '\0' x; echo; echo err >&2; printf last`, size)
	j := testJob(11, "-c", script)
	j.Apps[0].Program = "sh"
	j.TagOutput, j.Tee, j.OutputDir = true, true, t.TempDir()
	res, out, stderr := runJob(t, j)
	require.Zero(t, res.ExitCode)
	long := strings.Repeat("x", size)
	var wantOut, wantErr []string
	for r := range 11 {
		wantOut = append(wantOut, fmt.Sprintf("[%d] %s", r, long), fmt.Sprintf("[%d] last", r))
		wantErr = append(wantErr, fmt.Sprintf("[%d]<stderr> err", r))
		text, err := os.ReadFile(filepath.Join(j.OutputDir, fmt.Sprintf("%02d.out", r)))
		require.NoError(t, err)
		require.True(t, string(text) == long+"\nlast", "%d bytes", len(text))
		text, err = os.ReadFile(filepath.Join(j.OutputDir, fmt.Sprintf("%02d.err", r)))
		require.NoError(t, err)
		require.Equal(t, "err\n", string(text))
	}
	slices.Sort(wantErr)
	slices.Sort(wantOut)
	require.Equal(t, wantErr, sortedLines(stderr))
	require.True(t, slices.Equal(wantOut, sortedLines(out)), "%d bytes", len(out))
}

func TestOutputOfOneRankIsPassedOnByteForByte(t *testing.T) {
	j := testJob(1, "-c", `printf 'a\n\nb\0c\nno newline'`)
	j.Apps[0].Program = "sh"
	_, out, _ := runJob(t, j)
	require.Equal(t, "a\n\nb\x00c\nno newline", out)
}

func TestLongLinesAreNotMixed(t *testing.T) {
	const size = 300_000
	script := fmt.Sprintf(`head -c %d /dev/zero | tr '\0' $PMI_RANK; echo; echo short $PMI_RANK`, size)
	j := testJob(4, "-c", script)
	j.Apps[0].Program = "sh"
	j.TagOutput = true
	_, out, _ := runJob(t, j)
	var want []string
	for r := range 4 {
		want = append(want, fmt.Sprintf("[%d] %s", r, strings.Repeat(fmt.Sprint(r), size)), fmt.Sprintf("[%d] short %d", r, r))
	}
	require.True(t, fmt.Sprint(sortedLines(out)) == fmt.Sprint(sortedLines(strings.Join(want, "\n"))), "%d bytes", len(out))
}

func TestWriteErrorIsReportedAtTheEnd(t *testing.T) {
	j := testJob(2, "lines")
	var calls int
	w := writerFunc(func([]byte) (int, error) {
		calls++
		return 0, errors.New("gone")
	})
	var stderr bytes.Buffer
	res := Run(t.Context(), j, Stdio{Out: w, Err: &stderr})
	require.Equal(t, proto.ExitFailed, res.ExitCode)
	require.Equal(t, "gorun: output of the ranks is lost: gone\n", stderr.String())
	require.Equal(t, 1, calls)
}

// TestOutputFilesOnAFullDisk: gorun cannot write the output file of rank 1, which is a link to
// /dev/full. The job must fail with that error, although both ranks exit with 0, and rank 0 must
// have its output file.
func TestOutputFilesOnAFullDisk(t *testing.T) {
	j := testJob(2, "-c", `echo out $PMI_RANK; exit 0`)
	j.Apps[0].Program = "sh"
	j.OutputDir = t.TempDir()
	require.NoError(t, os.Symlink("/dev/full", filepath.Join(j.OutputDir, "1.out")))
	res, out, stderr := runJob(t, j)
	require.Equal(t, proto.ExitFailed, res.ExitCode)
	require.Empty(t, out)
	require.Equal(t, fmt.Sprintf("gorun: output of the ranks is lost: write %s/1.out: no space left on device\n", j.OutputDir), stderr)
	text, err := os.ReadFile(filepath.Join(j.OutputDir, "0.out"))
	require.NoError(t, err)
	require.Equal(t, "out 0\n", string(text))
}

// TestOutputFilesGetBytesAsTheyCome: a rank writes the beginning of a line and waits until its
// output file has these bytes. gorun must write them to the file before the line ends, or the rank
// waits for ever.
func TestOutputFilesGetBytesAsTheyCome(t *testing.T) {
	j := testJob(1, "-c", `printf 'half a line'; until [ -s 0.out ]; do sleep 0.01; done; cat 0.out >&2`)
	j.Apps[0].Program = "sh"
	j.OutputDir = t.TempDir()
	j.Apps[0].Wdir = j.OutputDir
	res, _, stderr := runJob(t, j)
	require.Zero(t, res.ExitCode, stderr)
	text, err := os.ReadFile(filepath.Join(j.OutputDir, "0.err"))
	require.NoError(t, err)
	require.Equal(t, "half a line", string(text))
}

func TestRankGetsSIGPIPE(t *testing.T) {
	j := testJob(2, "-c", "[ $PMI_RANK = 1 ] && exec sleep 1000; exec yes")
	j.Apps[0].Program = "sh"
	g := startGorun(t, j)
	require.Equal(t, []string{"y"}, g.lines(t, 1))
	require.NoError(t, g.pipe.Close())
	require.Equal(t, proto.ExitSignalFloor+int(unix.SIGPIPE), g.wait(t))
	require.Contains(t, g.stderr.String(), "gorun: rank 0 was killed by signal 13 (SIGPIPE)")
}

// TestLastOutputOfABusyRank: ranks 1 and 2 fail at once. Rank 0 computes for a while, and then
// prints a message and exits with 1. gorun must not end rank 0 before its message.
func TestLastOutputOfABusyRank(t *testing.T) {
	defer func(limit time.Duration) { lingerLimit = limit }(lingerLimit)
	lingerLimit = 10 * time.Minute // the busy rank may be slow on a busy machine
	for _, first := range []string{"exit 1", "kill -KILL $$", "echo cmd=abort exitcode=1 >&3; exit 1"} {
		j := testJob(3, "-c", `test $PMI_RANK = 0 || { `+first+`; }
			i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo usage; exit 1`)
		j.Apps[0].Program, j.Grace = "sh", time.Minute
		res, out, stderr := runJob(t, j)
		require.Equal(t, "usage\n", out, stderr)
		require.NotZero(t, res.ExitCode)
	}
}

// TestPromptOnATerminal: rank 0 prints a question without a newline and reads the answer. The test
// writes the answer to the terminal, as a user would, only when the terminal shows the question.
func TestPromptOnATerminal(t *testing.T) {
	master, tty := terminal(t)
	defer func() { require.NoError(t, tty.Close()) }()
	j := testJob(2, "-c", `test $PMI_RANK = 0 || exit 0; printf 'name? '; read name; echo "hello $name"`)
	j.Apps[0].Program, j.Stdin = "sh", job.StdinRank0
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan Result, 1)
	go func() { done <- Run(ctx, j, Stdio{In: tty, Out: tty, Err: tty}) }() // ends with the job
	var seen strings.Builder
	buf := make([]byte, 1<<10)
	answered := false
	for !strings.Contains(seen.String(), "hello bob") {
		n, err := master.Read(buf)
		require.NoError(t, err)
		seen.Write(buf[:n])
		require.NotContains(t, seen.String(), "gorun: ")
		if !answered && strings.Contains(seen.String(), "name? ") {
			answered = true
			_, err := master.WriteString("bob\n")
			require.NoError(t, err)
		}
	}
	require.Zero(t, (<-done).ExitCode)
}

// TestLinesAreNotMixed: host 1 writes the beginning of a line. Lines of gorun and of host 2 must
// wait for the end of this line. If the end does not come within stallLimit, they must not wait
// longer, and must begin on a new line.
func TestLinesAreNotMixed(t *testing.T) {
	var out bytes.Buffer
	w := newWriter(&out, &out)
	line := func(host int, text string, mid bool) {
		w.put(proto.Output{Index: host, Stream: proto.Merged, Mid: mid, Data: []byte(text)}, nil)
	}
	line(1, "long ", true)
	w.print("gorun: a message\n")
	line(2, "another\n", false)
	require.NoError(t, w.write(proto.Output{Index: 1, Stream: proto.Merged, Data: []byte("line\n")}))
	line(1, "stalls", true)
	require.NoError(t, w.write(proto.Output{Index: 2, Stream: proto.Merged, Stderr: true, Data: []byte("goes on\n")}))
	w.finish()
	<-w.done
	require.Equal(t, "long line\ngorun: a message\nanother\nstalls\ngoes on\n", out.String())
}

// TestRecentOutputIsNotRepeated: printOnce must write its short text if the lines "a" and "b" are
// in the last lastBytes bytes of the output, even after a tag such as "[1] ". Otherwise it must
// write the long text.
func TestRecentOutputIsNotRepeated(t *testing.T) {
	for between, want := range map[string]string{
		"": "a\n[1] b\nfailed\n", "c\n": "a\n[1] b\nc\nfailed\n", strings.Repeat("c\n", lastBytes/2): "a\n[1] b\n" + strings.Repeat("c\n", lastBytes/2) + "failed of b\n",
	} {
		var out bytes.Buffer
		w := newWriter(nil, &out)
		require.NoError(t, w.write(proto.Output{Stream: proto.Merged, Stderr: true, Data: []byte("a\n[1] b\n" + between)}))
		w.printOnce("failed of b\n", "failed\n", []string{"a", "b"})
		w.finish()
		<-w.done
		require.Equal(t, want, out.String())
	}
}

func TestSameWriter(t *testing.T) {
	f, err := os.Open("/dev/null")
	require.NoError(t, err)
	defer f.Close()
	g, err := os.Open("/dev/null")
	require.NoError(t, err)
	defer g.Close()
	require.True(t, sameWriter(f, g))
	require.False(t, sameWriter(f, &bytes.Buffer{}))
	require.False(t, sameWriter(nil, nil))
	w := writerFunc(nil)
	require.False(t, sameWriter(w, w)) // values of a function type cannot be compared
}
