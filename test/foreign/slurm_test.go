//go:build linux

package foreign

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func slurm(t *testing.T) *cluster {
	c := newCluster(t)
	c.env = append(c.env, c.Slurm(t)...)
	return c
}

func srun(mpi string, nodes, n int, args ...string) []string {
	return append([]string{"srun", "--mpi=" + mpi, "-N", strconv.Itoa(nodes), "-n", strconv.Itoa(n)}, args...)
}

func TestSlurm(t *testing.T) {
	c := slurm(t)
	// By value of srun's flag --mpi: how weft names the launcher.
	startedBy := map[string]string{"none": "slurm", "pmi2": "pmi"}
	// The plugin pmix is not in every Slurm.
	if _, out := c.launch("srun", "--mpi=list"); strings.Contains(out, "pmix") {
		startedBy["pmix"] = "slurm"
	}
	for mpi, how := range startedBy {
		t.Run(mpi, func(t *testing.T) {
			for _, test := range []struct{ nodes, n int }{{1, 1}, {1, 3}, {2, 2}, {3, 7}, {hosts, 16}} {
				in := *c
				in.t = t
				in.ranks(test.n, test.nodes, how, srun(mpi, test.nodes, test.n, hello)...)
			}
		})
	}
	code, out := c.launch(srun("none", 2, 3, "sh", "-c", hello+" && "+hello)...)
	require.Zero(t, code, out)
	require.Len(t, line.FindAllString(out, -1), 6, out)
}

// TestSlurmsAllocation runs Hydra and mpirun in an allocation of Slurm. They start the ranks on the hosts of
// the allocation.
func TestSlurmsAllocation(t *testing.T) {
	c := slurm(t)
	c.ranks(4, 2, "pmi", "salloc", "-N2", "-n4", hydra, "-n", "4", hello)
	c.ranks(4, 2, "openmpi", append([]string{"salloc", "-N2", "-n4"}, mpirun("-n", "4", hello)...)...)
}

// TestSlurmsBatchScript runs a program in a batch script without srun. Slurm sets environment variables with
// a rank and a size for the script too, but only one process runs. So the program must run as a job of
// one rank, and warn.
func TestSlurmsBatchScript(t *testing.T) {
	c := slurm(t)
	file := filepath.Join(t.TempDir(), "out")
	script := c.script("batch", hello+"\necho; srun -n 3 "+hello)
	code, out := c.launch("sbatch", "--wait", "-N2", "-n3", "-o", file, script)
	require.Zero(t, code, out)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	first, rest, ok := strings.Cut(string(text), "\n\n")
	require.True(t, ok, "%s", text)
	require.Len(t, lines(first, "weft: this is a world of one, although SLURM_NTASKS=3 is set: it is not a task of a Slurm step"), 1, "%s", text)
	require.Len(t, lines(first, "rank 0 of 1 on "), 1, "%s", text)
	c.check(3, 2, "slurm", rest)

	code, out = c.launch("salloc", "-n3", hello)
	require.Zero(t, code, out)
	require.Len(t, lines(out, "although SLURM_NTASKS=3 is set"), 1, out)
	require.Len(t, lines(out, "rank 0 of 1 on "), 1, out)
}

// TestSlurmWithoutASharedDirectory starts ranks on hosts that share no directory, so the ranks cannot find
// rank 0. Rank 0 and the other ranks print errors that say what to do.
func TestSlurmWithoutASharedDirectory(t *testing.T) {
	c := slurm(t)
	c.env = append(c.env, "WEFT_BOOTSTRAP_DIR="+c.Private(), "WEFT_BOOTSTRAP_TIMEOUT=3s")
	code, out := c.launch(srun("none", 2, 2, hello)...)
	require.NotZero(t, code)
	for _, says := range []string{
		"rank 1 has not connected to rank 0, on " + c.Names()[0] + ", within 3s (bootstrap.timeout)",
		"which rank 0 writes, does not exist on " + c.Names()[1],
		"do not share that directory, set WEFT_BOOTSTRAP_DIR to one that they share",
	} {
		require.Contains(t, out, says)
	}
}

// TestSlurmsRankThatFails runs jobs with a rank that never calls Init, that aborts, or that is killed. The
// other ranks report that.
func TestSlurmsRankThatFails(t *testing.T) {
	c := slurm(t)
	c.env = append(c.env, "WEFT_BOOTSTRAP_TIMEOUT=5s")
	for rank, says := range map[int]string{0: "rank 0 was not found within 5s", 3: "rank 3 has not connected to rank 0"} {
		code, out := c.launch(srun("none", 2, 4, "--kill-on-bad-exit=0", "sh", "-c", "[ $SLURM_PROCID != "+strconv.Itoa(rank)+" ] || kill -9 $$; exec "+hello)...)
		require.NotZero(t, code)
		require.NotEmpty(t, lines(out, says), out)
		require.Empty(t, line.FindAllString(out, -1), out)
	}
	for _, rank := range []string{"0", "3"} {
		code, out := c.launch(srun("none", 2, 4, "--kill-on-bad-exit=0", hello, "abort", rank)...)
		require.Equal(t, 5, code, out)
		require.Len(t, lines(out, "weft: the job was aborted by rank "+rank), 3, out)
		code, out = c.launch(srun("none", 2, 4, "--kill-on-bad-exit=0", hello, "die", rank)...)
		require.NotZero(t, code, out)
		require.NotEmpty(t, lines(out, "process failed: rank "+rank), out)
	}
}
