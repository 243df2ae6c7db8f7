//go:build linux

// Package cluster tests gorun on several hosts, with ssh.
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

func TestMain(m *testing.M) { run.Main(m, "examples/allreduce") }

// cluster is four hosts, for a test.
type cluster struct {
	*testbed.Cluster
	t testing.TB
}

// hosts returns the hosts. At the end of the test it checks that jobs have left nothing.
func hosts(t *testing.T) *cluster {
	t.Helper()
	c := testbed.Up(t, 4)
	run.NothingLeft(t, c)
	return &cluster{c, t}
}

// sub returns the hosts for a subtest.
func (c *cluster) sub(t *testing.T) *cluster { return &cluster{c.Cluster, t} }

// gorunOn returns a gorun with -host. list is the argument of -host with numbers in place of names,
// for example "1:2,2".
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

// agent is a match for gorun's agents, without their watchdogs.
func agent(p testbed.Process) bool { return len(p.Args) == 2 && p.Args[1] == "-agent" }

// isRank returns a match for the processes of a rank, or of any rank if rank is "", and their child
// processes.
func isRank(rank string) func(testbed.Process) bool { return testbed.WithEnv("PMI_RANK", rank) }
