//go:build linux

package foreign

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// mpirun returns a command line of Open MPI's mpirun with these arguments.
func mpirun(args ...string) []string {
	return append([]string{"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"}, args...)
}

// remote returns a command line of mpirun on the first n hosts, with two slots on each.
func (c *cluster) remote(n int, args ...string) []string {
	return mpirun(append([]string{"--mca", "plm_rsh_agent", c.SSH(), "--mca", "plm", "rsh", "--host", c.over(n, ":2")}, args...)...)
}

// app returns the arguments of mpirun for n ranks of one program of a job. Each program needs its own -x,
// which passes an environment variable to the ranks.
func app(n int, args ...string) []string {
	return append([]string{"-x", "WEFT_VERBOSE", "-x", "WEFT_BOOTSTRAP_DIR", "-n", strconv.Itoa(n)}, args...)
}

func TestOpenMPI(t *testing.T) {
	c := newCluster(t)
	for _, n := range []int{1, 2, 3, 5} {
		c.ranks(n, 1, "openmpi", mpirun("-n", strconv.Itoa(n), hello)...)
	}
	c.ranks(7, hosts, "openmpi", c.remote(hosts, app(7, hello)...)...)
	c.ranks(4, 2, "openmpi", c.remote(2, append(append(app(1, hello), ":"), app(3, hello)...)...)...)
	// Each rank runs two programs, one after the other. The ranks of the second program find each
	// other too.
	code, out := c.launch(mpirun("-n", "3", c.script("twice", hello+" && echo between && "+hello))...)
	require.Zero(t, code, out)
	require.Len(t, lines(out, "between"), 3, out)
	require.Len(t, line.FindAllString(out, -1), 6, out)
}

func TestOpenMPIRefused(t *testing.T) {
	c := newCluster(t)
	code, out := c.launch(mpirun("-n", "2", "env", "-u", "OMPI_COMM_WORLD_RANK", hello)...)
	require.NotZero(t, code)
	require.NotEmpty(t, lines(out, "comm: Init: bootstrap from Open MPI: found OMPI_COMM_WORLD_SIZE=2, but no OMPI_COMM_WORLD_RANK"), out)
	require.Empty(t, lines(out, "of 1 on"), out)
}
