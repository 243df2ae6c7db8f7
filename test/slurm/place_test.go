//go:build linux

package slurm

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/test/cluster/run"
)

// TestAllocation runs gorun in allocations with several arguments of salloc. gorun places the ranks on the
// hosts and slots of the allocation, as its own flags say.
func TestAllocation(t *testing.T) {
	c := slurm(t)
	for _, test := range []struct {
		salloc, gorun string
		where, says   string
	}{
		{"-N4", "", "1:1,2:1,3:1,4:1", ""},
		{"-N2 --ntasks-per-node=3", "", "1:3,2:3", ""},
		{"-N2 --ntasks-per-node=3", "-np 4", "1:3,2:1", ""},
		{"-N2 --ntasks-per-node=3", "-np 4 -map-by node", "1:2,2:2", ""},
		{"-N2 --ntasks-per-node=2", "-np 6", "1:3,2:3", "gorun: warning: 6 ranks share the 4 slots of 2 hosts\n"},
		{"-N3 -n5", "", "1:3,2:1,3:1", ""}, // SLURM_TASKS_PER_NODE=3,1(x2)
		{"-N3 -n5", "-np 4 -map-by node", "1:2,2:1,3:1", ""},
		{"-N3 --ntasks-per-node=2", "-host HOST2", "2:2", ""},
		{"-N3 --ntasks-per-node=2", "-host HOST3,HOST1", "1:2,3:2", ""},
		{"-N3 --ntasks-per-node=2", "-host HOST2:1,HOST3 -ppn 2", "2:1,3:2", ""},
		{"-w HOST2,HOST4", "", "2:1,4:1", ""},
		{"-N2 -n2 --cpus-per-task=2", "", "1:1,2:1", ""},
	} {
		t.Run(test.salloc+" "+test.gorun, func(t *testing.T) {
			names := func(s string) []string {
				return strings.Fields(strings.NewReplacer("HOST1", c.name(1), "HOST2", c.name(2), "HOST3", c.name(3), "HOST4", c.name(4)).Replace(s))
			}
			args := strings.Join(names(test.salloc), " ")
			if n, rest, ok := strings.Cut(strings.TrimPrefix(args, "-N"), " "); strings.HasPrefix(args, "-N") {
				k, err := strconv.Atoi(n)
				require.NoError(t, err)
				if args = c.first(k); ok {
					args += " " + rest
				}
			}
			r := c.salloc(args, append(names(test.gorun), "hostname")...).Run(t)
			require.Zero(t, r.Code, r.Stderr)
			require.Equal(t, test.where, c.where(r.Stdout), r.Stdout)
			require.Equal(t, test.says, r.Stderr)
		})
	}
}

// TestNotOfTheAllocation names a host that is not in the allocation, or, with -strict, asks for more ranks
// than the allocation has slots. gorun exits with 2 before any rank runs.
func TestNotOfTheAllocation(t *testing.T) {
	c := slurm(t)
	r := c.salloc(c.first(2), "-host", c.name(3), "hostname").Run(t)
	run.RequireLines(t, r, 2, `expected a host of Slurm job \d+, found "`+c.name(3)+`"`)
	require.Empty(t, r.Stdout)
	r = c.salloc("-N2", "-np", "3", "-strict", "hostname").Run(t)
	require.Equal(t, 2, r.Code)
	require.Empty(t, r.Stdout)
}

// TestBatch runs gorun in a batch script, which Slurm runs on the first host of the allocation. gorun starts
// the ranks of that host itself, without an agent.
func TestBatch(t *testing.T) {
	c := slurm(t)
	g := run.Program("gorun")
	code, out := c.batch(c.first(3)+" --ntasks-per-node=2", g+" -v "+run.Rank()+" work", "echo code $?",
		g+" sh -c 'readlink /proc/$PPID/exe'", g+" "+run.Rank()+" exit 1 5")
	require.Equal(t, 5, code, out)
	count := func(pattern string) int { return len(regexp.MustCompile("(?m)^"+pattern+"$").FindAllString(out, -1)) }
	require.Equal(t, 6, count(`rank [0-5] worked`), out)
	require.Equal(t, 1, count("code 0"), out)
	require.Equal(t, 1, count("gorun: 3 hosts up after .*"), out)
	require.Equal(t, 1, count("weft: ranks: 6, hosts: 3, started by gorun, .*"), out)
	require.Equal(t, 2, count(regexp.QuoteMeta(g)), out)
	require.Equal(t, 4, count(`\S*/weft-gorun-\S+ \(deleted\)`), out)
	require.Equal(t, 1, count("gorun: rank 1 exited with code 5: .* on "+c.name(1)+"; the other 5 ranks were ended"), out)
}

// batch submits a batch script with these lines, waits until its job has ended, and returns the script's
// exit code and output. batch does not use "sbatch --wait", which checks for the end only every few
// seconds.
func (c *cluster) batch(args string, lines ...string) (code int, out string) {
	c.t.Helper()
	id, file := c.submit(args, lines...)
	run.Eventually(c.t, func() error {
		state := regexp.MustCompile(`JobState=(\w+).* ExitCode=(\d+):`).FindStringSubmatch(c.tool("scontrol", "--oneliner", "show", "job", id))
		require.NotNil(c.t, state)
		code, _ = strconv.Atoi(state[2])
		if state[1] == "PENDING" || state[1] == "RUNNING" || state[1] == "COMPLETING" {
			return errors.New(state[0])
		}
		return nil
	})
	text, err := os.ReadFile(file)
	require.NoError(c.t, err)
	return code, string(text)
}

// submit submits a batch script with these lines. It returns the job's id and the path of the file with its
// output. args are arguments of sbatch.
func (c *cluster) submit(args string, lines ...string) (id, out string) {
	c.t.Helper()
	dir := c.t.TempDir()
	script := filepath.Join(dir, "script")
	out = filepath.Join(dir, "out")
	text := "#!/bin/sh\nexport TMPDIR=" + dir + "\n" + strings.Join(lines, "\n") + "\n"
	require.NoError(c.t, os.WriteFile(script, []byte(text), 0o755))
	id = c.tool("sbatch", append(append([]string{"--parsable", "-o", out}, strings.Fields(args)...), script)...)
	return strings.TrimSpace(id), out
}

// TestTwoAtOnce runs two goruns in one allocation at the same time. Both jobs succeed.
func TestTwoAtOnce(t *testing.T) {
	c := slurm(t)
	g := run.Program("gorun")
	r := run.Command{Exe: "salloc", Env: c.env, Args: []string{"--quiet", "-N3", "--ntasks-per-node=2", "sh", "-c",
		g + " " + run.Rank() + " work & A=$!; " + g + " " + run.Rank() + " work & B=$!; wait $A && wait $B"}}.Run(t)
	require.Zero(t, r.Code, r.Stderr)
	for _, rank := range []string{"0", "5"} {
		require.Equal(t, 2, strings.Count(r.Stdout, "rank "+rank+" worked\n"), r.Stdout)
	}
}

// TestBusyCopy: a node sometimes cannot execute its new copy of gorun, because slurmd has it open for
// writing. Here a script in place of srun fails with Slurm's message, the first two times. gorun must
// start again.
func TestBusyCopy(t *testing.T) {
	c := slurm(t)
	dir := t.TempDir()
	srun, err := exec.LookPath("srun")
	require.NoError(t, err)
	script := "#!/bin/sh\necho >> " + dir + "/calls\n" +
		"if [ $(wc -l < " + dir + "/calls) -gt 2 ]; then exec " + srun + " \"$@\"; fi\n" +
		"cat > " + dir + "/secret\necho 'slurmstepd-w0n1: error: execve(): /tmp/weft-gorun-x: Text file busy' >&2\nexit 2\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "srun"), []byte(script), 0o755))
	r := run.Command{Exe: "salloc", Env: append(slices.Clone(c.env), "PATH="+dir+":"+os.Getenv("PATH")), Args: []string{"--quiet", "-N3", "--ntasks-per-node=2",
		run.Program("gorun"), run.Rank(), "work"}}.Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Equal(t, 1, strings.Count(r.Stdout, "rank 5 worked\n"), r.Stdout)
	require.Empty(t, r.Stderr)
}

// TestWithoutAllocation runs gorun with -launcher slurm outside of an allocation. gorun runs salloc to get
// one, and prints the errors of salloc.
func TestWithoutAllocation(t *testing.T) {
	c := slurm(t)
	r := c.gorun("-launcher", "slurm", "-np", "6", "-slurm-args", "-N3 --ntasks-per-node=2", run.Rank(), "work").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Equal(t, 6, strings.Count(r.Stdout, " worked\n"))
	require.NotContains(t, r.Stderr, "gorun: ")
	require.Contains(t, r.Stderr, "salloc: Granted job allocation ")
	require.Len(t, r.Report.Runs[0].Hosts, 3)

	r = c.gorun("-launcher", "slurm", "-slurm-args", "--quiet", "-np", "1", "hostname").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Empty(t, r.Stderr)

	r = c.gorun("-launcher", "slurm", "-np", "5", "hostname").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Equal(t, 5, strings.Count(r.Stdout, "\n"))

	r = c.gorun("-launcher", "slurm", "-slurm-args", "-w "+c.name(2)+","+c.name(3), "sh", "-c", "hostname; exit 9").Run(t)
	require.Equal(t, 9, r.Code, r.Stderr)
	require.Contains(t, r.Stderr, "exited with code 9")

	for args, says := range map[string]string{
		"-N9":           "salloc: error: Job submit/allocate failed: Node count specification invalid\n",
		"-n1000":        "salloc: error: Job submit/allocate failed: More processors requested than permitted\n",
		"--no-such":     "salloc: unrecognized option '--no-such'\n",
		"-p no-such-at": "salloc: error: Job submit/allocate failed: Invalid partition name specified\n",
	} {
		r = c.gorun("-launcher", "slurm", "-slurm-args", args, "hostname").Run(t)
		require.NotZero(t, r.Code)
		require.Empty(t, r.Stdout)
		require.Contains(t, strings.ReplaceAll(r.Stderr, "invalid partition specified: no-such-at", ""), says)
	}
	// Without salloc on PATH, gorun prints an error.
	cmd := c.gorun("-launcher", "slurm", "hostname")
	cmd.Env = append(cmd.Env, "PATH=/nonexistent")
	run.RequireLines(t, cmd.Run(t), 127, "-launcher slurm: there is no allocation of Slurm here, and no salloc on PATH")
}

// TestNamedHostsAreAllocated runs gorun with -host outside of an allocation. gorun asks salloc for these
// hosts. If -slurm-args asks for other hosts, gorun's error says that gorun itself has made the
// allocation.
func TestNamedHostsAreAllocated(t *testing.T) {
	c := slurm(t)
	r := c.gorun("-launcher", "slurm", "-np", "2", "-host", c.name(3)+","+c.name(2), "-map-by", "node", "hostname").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Equal(t, "2:1,3:1", c.where(r.Stdout), r.Stdout)
	r = c.gorun("-launcher", "slurm", "-host", c.name(4)+":2", "hostname").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Equal(t, "4:2", c.where(r.Stdout), r.Stdout)

	r = c.gorun("-launcher", "slurm", "-host", c.name(3), "-slurm-args", "--quiet -w "+c.name(2), "hostname").Run(t)
	run.RequireLines(t, r, 2, `expected a host of the allocation that -launcher slurm got by salloc \(job \d+\), found "`+c.name(3)+`"`)
}

// TestQueue runs a job that waits in Slurm's queue. gorun prints what salloc prints meanwhile.
func TestQueue(t *testing.T) {
	c := slurm(t)
	p := c.gorun("-launcher", "slurm", "-np", "2", "-slurm-args", "--begin=now+3600", "hostname").Start(t)
	p.AwaitStderr(1, "queued and waiting for resources")
	require.Empty(t, p.Stdout())
	id := strings.TrimSpace(c.tool("squeue", "--noheader", "--states=PENDING", "--format=%A"))
	c.tool("scontrol", "update", "JobId="+id, "StartTime=now")
	r := p.Wait()
	require.Zero(t, r.Code, r.Stderr)
	require.Equal(t, 2, strings.Count(r.Stdout, "\n"), r.Stdout)
	require.Contains(t, r.Stderr, "has been allocated resources")
}
