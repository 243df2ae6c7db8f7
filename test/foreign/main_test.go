//go:build linux

// Package foreign has programs of weft started by other launchers than gorun, on
// several hosts: Hydra, Open MPI's mpirun, Slurm.
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
)

// hello is the program, by its path.
var hello string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	dir, err := os.MkdirTemp("", "weft-foreign-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := errors.Join(testbed.Down(), os.RemoveAll(dir)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}()
	hello = filepath.Join(dir, "hello")
	if out, err := exec.Command("go", "build", "-o", hello, "./hello").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

const hosts = 4

// bed is the hosts, and a directory that they share for the ranks to meet in.
type cluster struct {
	*testbed.Cluster
	t   *testing.T
	dir string
	env []string // of launchers
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{Cluster: testbed.Up(t, hosts), t: t, dir: t.TempDir()}
	for _, kv := range os.Environ() {
		ours := false
		for _, prefix := range []string{"WEFT_", "SLURM_", "PMI", "OMPI_", "MV2_", "FLUX_", "HYDRA_", "GOMAXPROCS="} {
			ours = ours || strings.HasPrefix(kv, prefix)
		}
		if !ours {
			c.env = append(c.env, kv)
		}
	}
	c.env = append(c.env, "WEFT_VERBOSE=1", "WEFT_BOOTSTRAP_DIR="+c.dir)
	t.Cleanup(c.nothingIsLeft)
	return c
}

// nothingIsLeft of the ranks: processes here and in the hosts, files.
func (c *cluster) nothingIsLeft() {
	left := func() (all []string) {
		exes, _ := filepath.Glob("/proc/[0-9]*/exe") // the hosts' processes are this machine's
		for _, exe := range exes {
			if to, _ := os.Readlink(exe); to == hello {
				all = append(all, exe)
			}
		}
		return all
	}
	for end := time.Now().Add(20 * time.Second); len(left()) > 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond) // a launcher may end before those that it has killed
	}
	require.Empty(c.t, left())
	files, err := os.ReadDir(c.dir)
	require.NoError(c.t, err)
	require.Empty(c.t, files)
}

// limit bounds what one launcher does.
const limit = 90 * time.Second

// launch runs a launcher here and returns what it and the ranks have said.
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
		c.t.Fatalf("%v: not at an end after %v:\n%s", args, limit, &text)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.t.Fatalf("%v: %v", args, err)
	}
	return cmd.ProcessState.ExitCode(), text.String()
}

// ranks has a launcher start n ranks, and checks that all are there and on how
// many hosts, and how they came up.
func (c *cluster) ranks(n, onHosts int, how string, args ...string) {
	c.t.Helper()
	code, out := c.launch(args...)
	require.Zero(c.t, code, "%v:\n%s", args, out)
	c.check(n, onHosts, how, out)
}

var line = regexp.MustCompile(`(?m)^rank (\d+) of (\d+) on (\S+)\r?$`)

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
	require.Equal(c.t, places[first] > 1, strings.Contains(out, "joined by shm"), out) // as rank 0 has it
	require.Equal(c.t, onHosts > 1, strings.Contains(out, "tcp ("), out)
}

// script writes a program of the shell.
func (c *cluster) script(name, text string) string {
	c.t.Helper()
	path := filepath.Join(c.t.TempDir(), name)
	require.NoError(c.t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	return path
}

// over names the first n hosts, as sh does, each with a suffix.
func (c *cluster) over(n int, suffix string) string {
	return strings.Join(c.Names()[:n], suffix+",") + suffix
}

// lines are the lines of an output that hold a text, sorted.
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
