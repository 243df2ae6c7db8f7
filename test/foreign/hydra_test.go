//go:build linux

package foreign

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

const hydra = "mpiexec.hydra"

func TestHydra(t *testing.T) {
	c := newCluster(t)
	ssh := c.script("ssh", `exec `+c.SSH()+` "$@"`)
	for _, mode := range [][]string{{hydra}, {hydra, "-pmi-port"}} {
		for _, n := range []int{1, 4} {
			c.ranks(n, 1, "pmi", append(mode, "-n", strconv.Itoa(n), hello)...)
		}
		c.ranks(7, hosts, "pmi", append(mode, "-launcher", "ssh", "-launcher-exec", ssh, "-hosts", c.over(hosts, ""), "-n", "7", hello)...)
	}
}

// TestHydraWithoutItsSocket starts ranks by Hydra that have closed the socket which Hydra passes to them
// (PMI_FD). Init must return an error, and no rank may run as a job of one rank.
func TestHydraWithoutItsSocket(t *testing.T) {
	c := newCluster(t)
	code, out := c.launch(hydra, "-n", "2", c.script("close", `eval "exec $PMI_FD>&-"; exec `+hello))
	require.NotZero(t, code)
	require.NotEmpty(t, lines(out, "comm: Init: bootstrap: found PMI_RANK="), out)
	require.Empty(t, lines(out, "of 1 on"), out)
}
