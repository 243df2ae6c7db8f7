//go:build linux

// Package foreign tests weft programs that launchers other than gorun start on several hosts: Hydra,
// Open MPI's mpirun, and Slurm. The hosts are made of Linux namespaces on this machine (a testbed).
package foreign

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/testbed"
	"github.com/weft-hpc/weft/test/cluster/run"
)

// hello is the path of the built program of the directory hello.
var hello string

func TestMain(m *testing.M) { run.Main(m, "test/foreign/hello") }

const hosts = 4

// cluster is the hosts, in use by the test t.
type cluster struct {
	*testbed.Cluster
	t   *testing.T
	dir string   // a directory that all hosts see; rank 0 writes a file there by which the other ranks find it
	env []string // environment variables of the launchers
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{Cluster: testbed.Up(t, hosts), t: t, dir: t.TempDir()}
	hello = run.Program("hello")
	c.env = append(run.CleanEnv(), "WEFT_VERBOSE=1", "WEFT_BOOTSTRAP_DIR="+c.dir)
	t.Cleanup(c.nothingIsLeft)
	return c
}

// nothingIsLeft checks that the ranks have ended and have left no file in c.dir.
func (c *cluster) nothingIsLeft() {
	left := func() (all []string) {
		exes, _ := filepath.Glob("/proc/[0-9]*/exe") // /proc of this machine also has the processes of the hosts
		for _, exe := range exes {
			if to, _ := os.Readlink(exe); to == hello {
				all = append(all, exe)
			}
		}
		return all
	}
	for end := time.Now().Add(20 * time.Second); len(left()) > 0 && time.Now().Before(end); {
		// Wait a little, because a launcher may end before the ranks that it has killed.
		time.Sleep(10 * time.Millisecond)
	}
	require.Empty(c.t, left())
	files, err := os.ReadDir(c.dir)
	require.NoError(c.t, err)
	require.Empty(c.t, files)
}

// limit bounds the time of one run of a launcher.
const limit = 90 * time.Second

// launch runs a command line of a launcher on this machine. It returns the exit code, and what the launcher
// and the ranks have printed.
func (c *cluster) launch(args ...string) (code int, out string) {
	c.t.Helper()
	path, err := exec.LookPath(args[0])
	if err != nil {
		c.t.Fatalf("no %s: install it (make test-deps does)", args[0])
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args[1:]...)
	cmd.Env = c.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	err = cmd.Run()
	if ctx.Err() != nil {
		c.t.Fatalf("%v: still running after %v:\n%s", args, limit, &text)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.t.Fatalf("%v: %v", args, err)
	}
	return cmd.ProcessState.ExitCode(), text.String()
}

// ranks runs the command line args of a launcher that starts n ranks. The launcher must exit with
// 0. ranks calls check with the output.
func (c *cluster) ranks(n, onHosts int, how string, args ...string) {
	c.t.Helper()
	code, out := c.launch(args...)
	require.Zero(c.t, code, "%v:\n%s", args, out)
	c.check(n, onHosts, how, out)
}

var line = regexp.MustCompile(`(?m)^rank (\d+) of (\d+) on (\S+)\r?$`)

// check checks the output of a job of n ranks: each rank has printed its line, the ranks ran on onHosts
// hosts, and weft has recognised the launcher as how, which WEFT_VERBOSE makes rank 0 print.
func (c *cluster) check(n, onHosts int, how, out string) {
	c.t.Helper()
	found := map[int]bool{}
	places := map[string]int{}
	first := "" // the host of rank 0
	for _, m := range line.FindAllStringSubmatch(out, -1) {
		rank, _ := strconv.Atoi(m[1])
		require.False(c.t, found[rank], "rank %d twice:\n%s", rank, out)
		require.Equal(c.t, strconv.Itoa(n), m[2], out)
		found[rank] = true
		places[m[3]]++
		if rank == 0 {
			first = m[3]
		}
	}
	require.Len(c.t, found, n, out)
	require.Len(c.t, places, onHosts, out)
	if n == 1 {
		return
	}
	require.Contains(c.t, out, fmt.Sprintf("weft: ranks: %d, hosts: %d, started by %s, joined by ", n, onHosts, how))
	// Rank 0 prints its own transports.
	require.Equal(c.t, places[first] > 1, strings.Contains(out, "joined by shm"), out)
	require.Equal(c.t, onHosts > 1, strings.Contains(out, "tcp ("), out)
}

// script writes a shell script and returns its path.
func (c *cluster) script(name, text string) string {
	c.t.Helper()
	path := filepath.Join(c.t.TempDir(), name)
	require.NoError(c.t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	return path
}

// over returns the names of the first n hosts, each with a suffix, separated by commas.
func (c *cluster) over(n int, suffix string) string {
	return strings.Join(c.Names()[:n], suffix+",") + suffix
}

// lines returns the lines of the output out that contain the text, sorted.
func lines(out, text string) []string {
	var list []string
	for l := range strings.Lines(out) {
		if strings.Contains(l, text) {
			list = append(list, strings.TrimSpace(l))
		}
	}
	sort.Strings(list)
	return list
}
