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

func slurm(t *testing.T) *bed {
	b := newBed(t)
	b.env = append(b.env, b.Slurm(t)...)
	return b
}

func srun(mpi string, nodes, n int, args ...string) []string {
	return append([]string{"srun", "--mpi=" + mpi, "-N", strconv.Itoa(nodes), "-n", strconv.Itoa(n)}, args...)
}

func TestSlurm(t *testing.T) {
	b := slurm(t)
	ways := map[string]string{"none": "slurm", "pmi2": "pmi"}
	if _, out := b.launch("srun", "--mpi=list"); strings.Contains(out, "pmix") { // a plugin that not every Slurm is built with
		ways["pmix"] = "slurm"
	}
	for mpi, how := range ways {
		t.Run(mpi, func(t *testing.T) {
			for _, c := range []struct{ nodes, n int }{{1, 1}, {1, 3}, {2, 2}, {3, 7}, {hosts, 16}} {
				in := *b
				in.t = t
				in.ranks(c.n, c.nodes, how, srun(mpi, c.nodes, c.n, hello)...)
			}
		})
	}
	code, out := b.launch(srun("none", 2, 3, "sh", "-c", hello+" && "+hello)...)
	require.Zero(t, code, out)
	require.Len(t, line.FindAllString(out, -1), 6, out)
}

// TestSlurmsAllocation: what other launchers start in an allocation.
func TestSlurmsAllocation(t *testing.T) {
	b := slurm(t)
	b.ranks(4, 2, "pmi", "salloc", "-N2", "-n4", hydra, "-n", "4", hello)
	b.ranks(4, 2, "openmpi", append([]string{"salloc", "-N2", "-n4"}, mpirun("-n", "4", hello)...)...)
}

// TestSlurmsBatchScript: the script itself has a rank and a size, and is alone.
func TestSlurmsBatchScript(t *testing.T) {
	b := slurm(t)
	file := filepath.Join(t.TempDir(), "out")
	script := b.script("batch", hello+"\necho; srun -n 3 "+hello)
	code, out := b.launch("sbatch", "--wait", "-N2", "-n3", "-o", file, script)
	require.Zero(t, code, out)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	first, rest, ok := strings.Cut(string(text), "\n\n")
	require.True(t, ok, "%s", text)
	require.Len(t, lines(first, "weft: this is a world of one, although SLURM_NTASKS=3 is set: it is not a task of a Slurm step"), 1, "%s", text)
	require.Len(t, lines(first, "rank 0 of 1 on "), 1, "%s", text)
	b.check(3, 2, "slurm", rest)

	code, out = b.launch("salloc", "-n3", hello)
	require.Zero(t, code, out)
	require.Len(t, lines(out, "although SLURM_NTASKS=3 is set"), 1, out)
	require.Len(t, lines(out, "rank 0 of 1 on "), 1, out)
}

// TestSlurmWithoutASharedDirectory says what to do, from both sides.
func TestSlurmWithoutASharedDirectory(t *testing.T) {
	b := slurm(t)
	b.env = append(b.env, "WEFT_BOOTSTRAP_DIR="+b.Private(), "WEFT_BOOTSTRAP_TIMEOUT=3s")
	code, out := b.launch(srun("none", 2, 2, hello)...)
	require.NotZero(t, code)
	for _, says := range []string{
		"rank 1 has not connected to rank 0, on " + b.Names()[0] + ", within 3s (bootstrap.timeout)",
		"which rank 0 writes, does not exist on " + b.Names()[1],
		"do not share that directory, set WEFT_BOOTSTRAP_DIR to one that they share",
	} {
		require.Contains(t, out, says)
	}
}

// TestSlurmsRankThatFails: one that never comes, one that dies, one that aborts.
func TestSlurmsRankThatFails(t *testing.T) {
	b := slurm(t)
	b.env = append(b.env, "WEFT_BOOTSTRAP_TIMEOUT=5s")
	for rank, says := range map[int]string{0: "rank 0 was not found within 5s", 3: "rank 3 has not connected to rank 0"} {
		code, out := b.launch(srun("none", 2, 4, "--kill-on-bad-exit=0", "sh", "-c", "[ $SLURM_PROCID != "+strconv.Itoa(rank)+" ] || kill -9 $$; exec "+hello)...)
		require.NotZero(t, code)
		require.NotEmpty(t, lines(out, says), out)
		require.Empty(t, line.FindAllString(out, -1), out)
	}
	for _, rank := range []string{"0", "3"} {
		code, out := b.launch(srun("none", 2, 4, "--kill-on-bad-exit=0", hello, "abort", rank)...)
		require.Equal(t, 5, code, out)
		require.Len(t, lines(out, "weft: the job was aborted by rank "+rank), 3, out)
		code, out = b.launch(srun("none", 2, 4, "--kill-on-bad-exit=0", hello, "die", rank)...)
		require.NotZero(t, code, out)
		require.NotEmpty(t, lines(out, "process failed: rank "+rank), out)
	}
}
