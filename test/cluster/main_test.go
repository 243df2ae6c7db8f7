//go:build linux

// Package cluster tests gorun with ssh on several hosts. The hosts are made of Linux namespaces on this
// machine (a testbed).
package cluster

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/testbed"
	"github.com/weft-hpc/weft/test/cluster/run"
)

func TestMain(m *testing.M) {
	run.Main(m, "examples/allreduce", "examples/heat2d", "test/cluster/run/spawner")
}

// cluster is four hosts, in use by the test t.
type cluster struct {
	*testbed.Cluster
	t testing.TB
}

// hosts returns the hosts. At the end of the test it checks that jobs have left no process and no file.
func hosts(t *testing.T) *cluster {
	t.Helper()
	c := testbed.Up(t, 4)
	run.NothingLeft(t, c)
	return &cluster{c, t}
}

// sub returns the same hosts for the subtest t.
func (c *cluster) sub(t *testing.T) *cluster { return &cluster{c.Cluster, t} }

// gorunOn returns a run of gorun with -host and the further arguments args. list is the argument of
// -host with the numbers of hosts in place of their names, for example "1:2,2".
func (c *cluster) gorunOn(list string, args ...string) run.Command {
	return run.Command{Args: append([]string{"-ssh", c.SSH(), "-host", c.list(list)}, args...)}
}

func (c *cluster) list(list string) string {
	words := strings.Split(list, ",")
	for i, w := range words {
		n, slots, _ := strings.Cut(w, ":")
		k, err := strconv.Atoi(n)
		require.NoError(c.t, err)
		words[i] = c.name(k)
		if slots != "" {
			words[i] += ":" + slots
		}
	}
	return strings.Join(words, ",")
}

// name returns the name of host k, counted from 1.
func (c *cluster) name(k int) string { return c.Names()[k-1] }

func isSSH(p testbed.Process) bool { return filepath.Base(p.Exe) == "ssh" }

// agent reports whether a process is an agent of gorun. The agents' watchdogs do not count.
func agent(p testbed.Process) bool { return len(p.Args) == 2 && p.Args[1] == "-agent" }

// isRank returns a function that reports whether a process is that rank, or a child process of it. If
// rank is "", any rank counts.
func isRank(rank string) func(testbed.Process) bool { return testbed.WithEnv("PMI_RANK", rank) }
