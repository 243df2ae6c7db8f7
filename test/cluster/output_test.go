//go:build linux

package cluster

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/testbed"
	"github.com/weft-hpc/weft/test/cluster/run"
	"github.com/weft-hpc/weft/test/cluster/run/line"
)

// lines checks the output of ranks that run with the argument "lines" (see run/rank): each line must be
// whole, none may be lost, and the lines of each rank must be in order.
type lines struct {
	t    *testing.T
	next map[string]int // number of the next line, by stream and rank, such as "out3"
}

func (l *lines) check(text string) {
	f := strings.Split(strings.TrimSuffix(text, "\n"), " ")
	if len(f) != 4 {
		l.t.Fatalf("not a line of a rank: %.200q", text)
	}
	seq, err := strconv.Atoi(f[2])
	key := f[0] + f[1]
	if err != nil || seq != l.next[key] || f[3] != strings.Repeat("x", line.Length(seq)) {
		l.t.Fatalf("expected line %d of %s, found %.200q", l.next[key], key, text)
	}
	l.next[key]++
}

// TestOutput has 16 ranks on four hosts write about 10 MB to stdout and stderr, with and without
// -tag-output. All lines arrive whole and in the order of each rank.
func TestOutput(t *testing.T) {
	c := hosts(t)
	const ranks, each = 16, 5_000
	tag := regexp.MustCompile(`^\[(\d+)@(\S+)\](<stderr>)? `)
	for _, tagged := range []bool{false, true} {
		r := c.gorunOn("1:4,2:4,3:4,4:4", "-radix", "2", "-np", strconv.Itoa(ranks), fmt.Sprintf("-tag-output=%t", tagged), run.Rank(), "lines", strconv.Itoa(each)).Run(t)
		require.Zero(t, r.Code, "%.1000s", r.Stderr)
		l := &lines{t, map[string]int{}}
		for i, text := range []string{r.Stdout, r.Stderr} {
			for line := range strings.Lines(text) {
				if tagged {
					m := tag.FindStringSubmatch(line)
					require.NotNil(t, m, "%.200q", line)
					rank, err := strconv.Atoi(m[1])
					require.NoError(t, err)
					require.Equal(t, c.name(rank/4+1), m[2])
					require.Equal(t, i == 1, m[3] != "")
					line = line[len(m[0]):]
					require.True(t, strings.HasPrefix(line, []string{"out ", "err "}[i]+m[1]+" "), "%.200q", line)
				}
				l.check(line)
			}
		}
		for rank := range ranks {
			require.Equal(t, each, l.next["out"+strconv.Itoa(rank)])
			require.Equal(t, each/10, l.next["err"+strconv.Itoa(rank)])
		}
	}
}

// TestOutputFiles runs jobs with -output. gorun writes the stdout and the stderr of each rank to a file on
// this machine, and prints none of it.
func TestOutputFiles(t *testing.T) {
	c := hosts(t)
	dir := filepath.Join(c.Private(), "out", "put")
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(dir)) })
	r := c.gorunOn("1:2,2:2,3:2", "-np", "6", "-output", dir, run.Rank(), "lines", "3000").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Empty(t, r.Stdout+r.Stderr)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 12)
	l := &lines{t, map[string]int{}}
	for rank := range 6 {
		for _, stream := range []string{"out", "err"} {
			text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%d.%s", rank, stream)))
			require.NoError(t, err)
			for line := range strings.Lines(string(text)) {
				require.True(t, strings.HasPrefix(line, fmt.Sprintf("%s %d ", stream, rank)), "%.200q", line)
				l.check(line)
			}
		}
		require.Equal(t, 3000, l.next["out"+strconv.Itoa(rank)])
		require.Equal(t, 300, l.next["err"+strconv.Itoa(rank)])
	}

	// If a rank fails, gorun also prints the failure and the rank's last lines. It overwrites the
	// files of the job before.
	r = c.gorunOn("1:2,2:2", "-np", "3", "-output", dir, run.Rank(), "exit", "2", "5").Run(t)
	require.Equal(t, 5, r.Code, r.Stderr)
	require.Regexp(t, `(?m)^gorun: rank 2 exited with code 5: `+regexp.QuoteMeta(run.Rank())+`, pid \d+ on `+c.name(2)+`;`, r.Stderr)
	require.Contains(t, r.Stderr, "gorun:   rank 2: last words 11\n")
	text, err := os.ReadFile(filepath.Join(dir, "2.out"))
	require.NoError(t, err)
	require.Empty(t, text)
	text, err = os.ReadFile(filepath.Join(dir, "2.err"))
	require.NoError(t, err)
	require.Equal(t, 12, strings.Count(string(text), "\n"))
}

// TestLongLines has ranks on four hosts write lines of 300 kB, and a last line without an end. No byte is
// lost.
func TestLongLines(t *testing.T) {
	c := hosts(t)
	const size = 300_000
	script := fmt.Sprintf(`head -c %d /dev/zero | tr '\0' $PMI_RANK; echo; echo short $PMI_RANK; printf end$PMI_RANK`, size)
	dir := t.TempDir()
	r := c.gorunOn("1:1,2:1,3:1,4:1", "-np", "4", "-output", dir, "sh", "-c", script).Run(t)
	require.Zero(t, r.Code, r.Stderr)
	for rank := range 4 {
		text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%d.out", rank)))
		require.NoError(t, err)
		require.True(t, string(text) == fmt.Sprintf("%s\nshort %d\nend%d", strings.Repeat(strconv.Itoa(rank), size), rank, rank), "rank %d: %d bytes", rank, len(text))
	}
	// On gorun's stdout, lines of other ranks may interrupt a long line, but no byte is lost.
	r = c.gorunOn("1:1,2:1,3:1,4:1", "-np", "4", "sh", "-c", script).Run(t)
	require.Zero(t, r.Code, r.Stderr)
	for rank := range 4 {
		require.Equal(t, size+2, strings.Count(r.Stdout, strconv.Itoa(rank)))
	}
	require.Equal(t, 4, strings.Count(r.Stdout, "short "))
	require.Equal(t, 4, strings.Count(r.Stdout, "end"))
}

// TestReaderGone has the reader of gorun's stdout, a pipe, close it. The rank that writes then gets
// SIGPIPE, and gorun reports that.
func TestReaderGone(t *testing.T) {
	c := hosts(t)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	cmd := c.gorunOn("1:2,2:2", "-np", "3", "sh", "-c", "[ $PMI_RANK = 2 ] && exec yes; exec sleep 1000")
	cmd.Stdout = write
	p := cmd.Start(t)
	_ = write.Close()
	line, err := bufio.NewReader(read).ReadString('\n')
	if err != nil {
		t.Fatalf("%v; gorun's stderr: %s", err, p.Wait().Stderr) // gorun has closed its stdout
	}
	require.Equal(t, "y\n", line)
	require.NoError(t, read.Close())
	r := p.Wait()
	require.Equal(t, 128+13, r.Code)
	require.Regexp(t, `^gorun: rank 2 was killed by signal 13 \(SIGPIPE\): (yes|sh), pid \d+ on `+regexp.QuoteMeta(c.name(2)), r.Stderr)
}

// TestSlowReader has ranks write without a pause while the reader of gorun's stdout, a pipe, reads
// 32 MiB and then nothing. gorun and its agents use little memory, because they stop reading from
// the ranks.
func TestSlowReader(t *testing.T) {
	c := hosts(t)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	cmd := c.gorunOn("1:2,2:2,3:2", "-radix", "1", "-np", "6", "sh", "-c", "exec yes $PMI_RANK-0123456789012345678901234567890123456789")
	cmd.Stdout = write
	p := cmd.Start(t)
	_ = write.Close()
	// Each read returns at most the 64 KiB that a pipe holds.
	_, err = io.CopyN(io.Discard, onlyReader{read}, 32<<20)
	require.NoError(t, err)
	const most = 96 << 10 // in KiB; the program itself takes most of that
	pids := map[string]int{"gorun": p.PID()}
	for i, h := range c.Hosts()[:3] {
		list := h.Processes(agent)
		require.Len(t, list, 1)
		pids[c.name(i+1)] = list[0].PID
	}
	for name, pid := range pids {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		require.NoError(t, err)
		m := regexp.MustCompile(`VmHWM:\s*(\d+) kB`).FindSubmatch(status)
		require.NotNil(t, m)
		kib, err := strconv.Atoi(string(m[1]))
		require.NoError(t, err)
		require.Less(t, kib, most, name)
	}
	require.NoError(t, read.Close())
	require.Equal(t, 128+13, p.Wait().Code)
}

type onlyReader struct{ io.Reader }

// TestStdin passes a text to gorun's stdin. With each value of -stdin, the right ranks read all of it, and
// the others read nothing.
func TestStdin(t *testing.T) {
	c := hosts(t)
	text := strings.Repeat("a line of input\n", 100_000) // 1.6 MB
	count := []string{"sh", "-c", "echo $PMI_RANK $(wc -c)"}
	for _, test := range []struct {
		hosts, stdin string
		host         *testbed.Host
		want         [4]int
	}{
		{"1:1,2:1,3:2", "rank0", nil, [4]int{len(text)}},
		{"1:1,2:1,3:2", "all", nil, [4]int{len(text), len(text), len(text), len(text)}},
		{"1:1,2:1,3:2", "none", nil, [4]int{}},
		{"1:1,2:1,3:2", "rank0", c.Hosts()[0], [4]int{len(text)}}, // rank 0 is on gorun's host
		{"2:2,1:2", "rank0", c.Hosts()[0], [4]int{len(text)}},     // other ranks are on gorun's host
		{"2:2,1:2", "all", c.Hosts()[0], [4]int{len(text), len(text), len(text), len(text)}},
	} {
		t.Run(fmt.Sprintf("%s %s %t", test.hosts, test.stdin, test.host != nil), func(t *testing.T) {
			t.Parallel()
			c := c.sub(t)
			cmd := c.gorunOn(test.hosts, append([]string{"-radix", "1", "-np", "4", "-stdin", test.stdin}, count...)...)
			cmd.Stdin, cmd.Host = strings.NewReader(text), test.host
			r := cmd.Run(t)
			require.Zero(t, r.Code, r.Stderr)
			for rank, n := range test.want {
				require.Contains(t, "\n"+r.Stdout, fmt.Sprintf("\n%d %d\n", rank, n))
			}
		})
	}
}

// TestStdinLeft runs jobs whose ranks do not read all of their stdin, or whose stdin does not end. gorun
// exits with 0 when the ranks have exited.
func TestStdinLeft(t *testing.T) {
	c := hosts(t)
	text := strings.Repeat("a line of input\n", 100_000)
	for _, stdin := range []string{"rank0", "all"} {
		read, write, err := os.Pipe()
		require.NoError(t, err)
		cmd := c.gorunOn("1:1,2:1", "-np", "2", "-stdin", stdin, "sh", "-c", "head -n 1")
		cmd.Stdin = read
		p := cmd.Start(t)
		_ = read.Close()
		_, err = io.WriteString(write, "first\n")
		require.NoError(t, err)
		r := p.Wait()
		_ = write.Close()
		require.Zero(t, r.Code, r.Stderr)
		require.Equal(t, map[string]int{"rank0": 1, "all": 2}[stdin], strings.Count(r.Stdout, "first\n"))
		cmd = c.gorunOn("1:1,2:1", "-np", "2", "-stdin", stdin, "true")
		cmd.Stdin = strings.NewReader(text)
		r = cmd.Run(t)
		require.Zero(t, r.Code, r.Stderr)
	}
}
