//go:build linux

// Package cluster has gorun run jobs on several hosts by ssh.
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

// bed is four hosts.
type cluster struct {
	*testbed.Cluster
	t testing.TB
}

// hosts has a test look at the end for what is left.
func hosts(t *testing.T) *cluster {
	t.Helper()
	c := testbed.Up(t, 4)
	run.NothingLeft(t, c)
	return &cluster{c, t}
}

// with is the hosts for a subtest.
func (c *cluster) sub(t *testing.T) *cluster { return &cluster{c.Cluster, t} }

// on is a gorun for the hosts of a list, as "1:2,2", where numbers stand for names.
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

// name is that of host k, from 1 on.
func (c *cluster) name(k int) string { return c.Names()[k-1] }

func isSSH(p testbed.Process) bool { return filepath.Base(p.Exe) == "ssh" }

// agent has the arguments of gorun's agent; the watchdog is another process.
func agent(p testbed.Process) bool { return len(p.Args) == 2 && p.Args[1] == "-agent" }

func watchdog(p testbed.Process) bool { return len(p.Args) == 1 && p.Args[0] == "gorun-watchdog" }

// isRank is a match for the process of a rank, or of any if it is "", and for those
// that it has started.
func isRank(rank string) func(testbed.Process) bool { return testbed.WithEnv("PMI_RANK", rank) }
