//go:build linux

package launcher

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/launcher/internal/place"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
)

// spawnPlan is what rank 0 of a job does with the role spawn.
type spawnPlan struct {
	Spawns [][]bootstrap.Command // one call of Spawn for each
	Then   string                // wait: wait for ever after the last of them
}

// spawnJob returns a job of np ranks. Rank 0 calls Spawn as plan says, and prints the result of each
// call. A command without Path is this test binary; its ranks get Args after the role.
func spawnJob(t *testing.T, np int, plan spawnPlan) *job.Job {
	t.Helper()
	text, err := json.Marshal(plan)
	require.NoError(t, err)
	return testJob(np, "spawn", string(text))
}

func spawnMain(ctx context.Context, w *bootstrap.World, text string) int {
	var plan spawnPlan
	if err := json.Unmarshal([]byte(text), &plan); err != nil {
		panic(err)
	}
	if w.Rank != 0 {
		plan = spawnPlan{Then: plan.Then}
	}
	for _, commands := range plan.Spawns {
		for i := range commands {
			if commands[i].Path == "" {
				commands[i].Path = os.Args[0]
			}
		}
		codes, err := w.Spawn(ctx, commands, map[string]string{"PORT": "the-port"})
		if err != nil {
			fmt.Println("error:", err, errors.Is(err, bootstrap.ErrSpawn))
			continue
		}
		fmt.Println("codes:", codes)
	}
	switch plan.Then {
	case "wait":
		return waitForEnd(false)
	case "failures":
		line, err := bufio.NewReader(w.Failures).ReadString('\n')
		fmt.Printf("rank %d reads %q %v\n", w.Rank, line, err)
	}
	if err := w.KVS.Finalize(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// spawnedMain is the main function of spawned ranks. args[0] says what they do.
func spawnedMain(ctx context.Context, w *bootstrap.World, args []string) int {
	if len(args) > 1 && args[1] != strconv.Itoa(w.Rank) {
		args = []string{"wait"} // args[1] names the one rank that does what args[0] says
	}
	switch args[0] {
	case "show":
		port, err := w.KVS.Get("PORT")
		dir, _ := os.Getwd()
		fmt.Printf("spawned %v %s port %s %v in %s with %s%s\n", w.Spawned, w.JobID, port, err, filepath.Base(dir), os.Getenv("PMI_SPAWNED"), os.Getenv("EXTRA"))
		return showWorld(ctx, w)
	case "wait":
		return waitForEnd(false)
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "exit":
		return 6
	case "cpus": // NumCPU is the number of hardware threads to which the process is bound
		fmt.Println("bound:", runtime.NumCPU())
	case "failures":
		line, err := bufio.NewReader(w.Failures).ReadString('\n')
		fmt.Printf("spawned rank %d reads %q %v\n", w.Rank, line, err)
	case "again": // spawns ranks itself
		_, err := w.Spawn(ctx, []bootstrap.Command{{Path: os.Args[0], Args: []string{"spawned", "show"}, Procs: 1}}, nil)
		fmt.Println("again:", err)
	case "lookup":
		port, err := w.Lookup(ctx, "service")
		fmt.Println("lookup:", port, err, w.Unpublish(ctx, "service"))
	}
	if err := w.KVS.Finalize(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func commandOf(procs int, args ...string) bootstrap.Command {
	return bootstrap.Command{Args: append([]string{"spawned"}, args...), Procs: procs}
}

// TestSpawn: rank 0 spawns 2 and 1 ranks of two programs. They must have a world of their own, with
// the pair that rank 0 has passed.
func TestSpawn(t *testing.T) {
	second := commandOf(1, "show")
	second.Dir, second.Env = t.TempDir(), []string{"EXTRA=!"}
	hostFile := filepath.Join(second.Dir, "hosts")
	require.NoError(t, os.WriteFile(hostFile, []byte("localhost slots=9\n"), 0o600))
	second.Info = map[string]string{
		"no such key": "anything", "map_by": "node", "rank_by": "slot", "bind-to": "none", "hostfile": "hosts", "add-host": "localhost:4",
		"add_hostfile": hostFile, "arch": runtime.GOARCH,
	}
	j := spawnJob(t, 2, spawnPlan{Spawns: [][]bootstrap.Command{{commandOf(2, "show"), second}}})
	j.TagOutput, j.Report = true, filepath.Join(t.TempDir(), "report")
	res, out, stderr := runJob(t, j)
	require.Zero(t, res.ExitCode, stderr)
	require.Empty(t, stderr)
	require.Contains(t, out, "[0] codes: [0 0 0]\n")
	here, err := os.Getwd()
	require.NoError(t, err)
	ids := make(map[string]int)
	for line := range strings.Lines(out) {
		tag, text, _ := strings.Cut(line, " ")
		f := strings.Fields(text)
		if f[0] != "spawned" {
			continue
		}
		ids[f[2]]++
		dir, extra := here, ""
		if tag == "[1.2]" {
			dir, extra = second.Dir, "!"
		}
		require.Equal(t, "spawned true "+f[2]+" port the-port <nil> in "+filepath.Base(dir)+" with 1"+extra+"\n", text)
	}
	require.Len(t, ids, 1, out)
	for r := range 3 {
		require.Contains(t, out, fmt.Sprintf("[1.%d] rank %d of 3 app %d by gorun nodes [0 0 0] got v=%d <nil>", r, r, r/2, (r+1)%3))
	}
	var rep report
	text, err := os.ReadFile(j.Report)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &rep))
	run := rep.Runs[0]
	require.Len(t, run.Ranks, 5)
	require.Equal(t, 1, run.Ranks[4].Group)
	require.Equal(t, []any{2, 1, "exited"}, []any{run.Ranks[4].Rank, run.Ranks[4].App, run.Ranks[4].State})
	require.Equal(t, []reportRef{{0, 0}}, []reportRef{run.Groups[0].By})
	require.Equal(t, 1, ids[run.Groups[0].JobID]/3)
	require.Equal(t, []string{"spawned", "show"}, run.Groups[0].Apps[1].Args)
	require.Equal(t, 5, run.Hosts[0].Ranks)
}

// TestSpawnBinding: the info key bind_to binds spawned ranks, in a job whose other ranks are not bound.
// Each gets an equal part of the cores.
func TestSpawnBinding(t *testing.T) {
	cores := place.Here().Cores
	n := max(1, len(cores))
	c := commandOf(n, "cpus")
	c.Info = map[string]string{"bind_to": string(job.BindCore)}
	res, out, stderr := runJob(t, spawnJob(t, 1, spawnPlan{Spawns: [][]bootstrap.Command{{c}}}))
	require.Zero(t, res.ExitCode, stderr)
	want := runtime.NumCPU() // if the system does not let processes bind others
	if len(cores) > 0 {
		want = len(cores[0])
	}
	require.Equal(t, n, strings.Count(out, fmt.Sprintf("bound: %d\n", want)), out)
}

// TestSpawnErrors: calls of Spawn that fail must return an error that names the cause, and the job must
// go on. No process of theirs may remain, which runJob's caller checks.
func TestSpawnErrors(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	require.NoError(t, os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o700))
	plain := filepath.Join(dir, "plain")
	require.NoError(t, os.WriteFile(plain, nil, 0o600))
	with := func(change func(c *bootstrap.Command)) []bootstrap.Command {
		c := commandOf(2, "wait")
		change(&c)
		return []bootstrap.Command{c}
	}
	info := func(key, value string) []bootstrap.Command {
		return with(func(c *bootstrap.Command) { c.Info = map[string]string{key: value} })
	}
	away := filepath.Join(dir, "away")
	require.NoError(t, os.WriteFile(away, []byte("elsewhere\n"), 0o600))
	var plan spawnPlan
	var want []string
	for _, c := range []struct {
		commands []bootstrap.Command
		reason   string
	}{
		{with(func(c *bootstrap.Command) { c.Path = "/no/such" }), "/no/such: no such file"},
		{with(func(c *bootstrap.Command) { c.Path = "no-such-command" }), "no-such-command: command not found"},
		{with(func(c *bootstrap.Command) { c.Path, c.Dir = "./plain", dir }), plain + ": permission denied"},
		{with(func(c *bootstrap.Command) { c.Dir = "/no/dir" }), "working directory /no/dir: no such directory"},
		{[]bootstrap.Command{commandOf(2, "wait"), {Path: script, Procs: 1}}, script + ": cannot be started: no such file, or it names an interpreter that does not exist"},
		{with(func(c *bootstrap.Command) { c.Procs = job.MaxRanks + 1 }), "expected from 1 to 65536 ranks, found more"},
		{with(func(c *bootstrap.Command) { c.Info = map[string]string{"host": "elsewhere"} }), "host elsewhere is not a host of the job"},
		{with(func(c *bootstrap.Command) { c.Info = map[string]string{"host": "a:b"} }), "host: "},
		{with(func(c *bootstrap.Command) { c.Info = map[string]string{"map_by": "moon"} }), "map_by: expected slot"},
		{with(func(c *bootstrap.Command) { c.Env = []string{"=x"} }), "expected a variable NAME=VALUE"},
		{info("rank_by", "moon"), "expected slot, node or fill, found \"moon\""},
		{info("bind_to", "moon"), "expected none, core or numa, found \"moon\""},
		{info("hostfile", "/no/such"), "/no/such: no such file"},
		{info("hostfile", plain), "the file names no host"},
		{info("hostfile", away), "host elsewhere is not a host of the job"},
		{info("add-host", "elsewhere"), "add-host: gorun adds no hosts to a job that runs; name host elsewhere when the job starts"},
		{info("add-host", "a:b"), "add-host: "},
		{info("add_hostfile", away), "name host elsewhere when the job starts"},
		{info("arch", "vax"), "arch: the hosts of the job are of architecture " + runtime.GOARCH},
		{info("file", "hints"), "file: gorun reads no info keys from a file"},
	} {
		plan.Spawns, want = append(plan.Spawns, c.commands), append(want, c.reason)
	}
	plan.Spawns = append(plan.Spawns, []bootstrap.Command{commandOf(1, "show")})
	res, out, stderr := runJob(t, spawnJob(t, 2, plan))
	require.Zero(t, res.ExitCode, stderr)
	// Ranks of a group that cannot start as a whole may have started and print "ready".
	lines := strings.Split(strings.ReplaceAll(out, "ready\n", ""), "\n")
	for i, reason := range want {
		require.Contains(t, lines[i], "error: spawn: ")
		require.Contains(t, lines[i], reason)
		require.True(t, strings.HasSuffix(lines[i], " true"), lines[i])
		require.Contains(t, stderr, reason)
	}
	require.Contains(t, out, "codes: [0]\n")
	require.Contains(t, out, "spawned true")
	require.Equal(t, len(want), strings.Count(stderr, "gorun: rank 0 cannot spawn: "), stderr)
}

// TestSpawnSlots: in a job that must not use more ranks than slots, Spawn gets what is free, and
// after these ranks have ended their slots are free again.
func TestSpawnSlots(t *testing.T) {
	soft := commandOf(4, "show")
	soft.Soft = "1:3:2,9"
	j := spawnJob(t, 2, spawnPlan{Spawns: [][]bootstrap.Command{{commandOf(4, "show")}, {soft}}})
	j.Slots, j.StrictSlot = 5, true
	res, out, stderr := runJob(t, j)
	require.Zero(t, res.ExitCode, stderr)
	require.Contains(t, out, "error: spawn: "+os.Args[0]+": 4 ranks do not fit into the 3 free slots of this machine true\n")
	require.Contains(t, out, "codes: [0 0 0 1]\n")
	require.Equal(t, 3, strings.Count(out, "spawned true"))

	j = spawnJob(t, 2, spawnPlan{Spawns: [][]bootstrap.Command{{commandOf(3, "show")}}})
	j.Slots = 4
	_, out, stderr = runJob(t, j)
	require.Contains(t, out, "codes: [0 0 0]\n")
	require.Equal(t, "gorun: warning: 3 ranks that ranks have spawned share 2 free slots with others: they take turns\n", stderr)
}

// TestSpawnMany: a job spawns many groups one after the other. gorun must free what each of them has
// used; TestMain checks that no descriptor and no process is left.
func TestSpawnMany(t *testing.T) {
	var plan spawnPlan
	for range 20 {
		plan.Spawns = append(plan.Spawns, []bootstrap.Command{commandOf(2, "show")})
	}
	plan.Spawns = append(plan.Spawns, []bootstrap.Command{commandOf(1, "again")})
	res, out, stderr := runJob(t, spawnJob(t, 1, plan))
	require.Zero(t, res.ExitCode, stderr)
	require.Equal(t, 20, strings.Count(out, "codes: [0 0]"))
	require.Equal(t, 41, strings.Count(out, "spawned true"))
	require.Contains(t, out, "again: <nil>")
	for line := range strings.Lines(stderr) {
		require.Contains(t, line, "take turns")
	}
}

// TestSpawnedSession: a spawned process that has a session, and no Main, must not end before the connection
// with its parent has.
func TestSpawnedSession(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "session")
	text, err := exec.Command("go", "build", "-o", program, "./testdata/session").CombinedOutput()
	require.NoError(t, err, string(text))
	j := testJob(1, filepath.Join(dir, "file"))
	j.Apps[0].Program = program
	res, _, stderr := runJob(t, j)
	require.Zero(t, res.ExitCode, stderr)
}

// TestSpawnedFail: if a spawned rank fails, the job fails like for any other rank. No rank may remain.
func TestSpawnedFail(t *testing.T) {
	for action, c := range map[string]struct {
		code int
		says string
	}{
		"kill": {137, "gorun: rank 1.1 was killed by signal 9 (SIGKILL): "},
		"exit": {6, "gorun: rank 1.1 exited with code 6: "},
	} {
		j := spawnJob(t, 2, spawnPlan{Spawns: [][]bootstrap.Command{{commandOf(2, action, "1")}}, Then: "wait"})
		res, _, stderr := runJob(t, j)
		require.Equal(t, c.code, res.ExitCode, stderr)
		require.Contains(t, stderr, c.says)
		require.Contains(t, stderr, "; the other 3 ranks were ended\n")
		require.Equal(t, []int{1, 1}, []int{res.Failure.Group, res.Failure.Rank})
	}
}

// TestSpawnerKilled: rank 0 spawns ranks that wait, and is killed. The job must fail, and the spawned
// ranks must end.
func TestSpawnerKilled(t *testing.T) {
	j := spawnJob(t, 1, spawnPlan{Spawns: [][]bootstrap.Command{{commandOf(2, "wait")}}, Then: "wait"})
	g := startGorun(t, j)
	lines := g.lines(t, 4) // codes, and three times ready
	require.Contains(t, lines, "codes: [0 0]")
	ranks := spawnedPIDs(t, g.cmd.Process.Pid)
	require.NoError(t, syscall.Kill(ranks[""][0], syscall.SIGKILL))
	require.Equal(t, 137, g.wait(t))
	require.Contains(t, g.stderr.String(), "gorun: rank 0 was killed by signal 9 (SIGKILL): ")
	requireAllGone(t, ranks)
}

// TestSpawnedSignals: SIGTERM to gorun, and the job's timeout, must end spawned ranks, too.
func TestSpawnedSignals(t *testing.T) {
	j := spawnJob(t, 1, spawnPlan{Spawns: [][]bootstrap.Command{{commandOf(2, "wait")}}, Then: "wait"})
	g := startGorun(t, j)
	g.lines(t, 4)
	ranks := spawnedPIDs(t, g.cmd.Process.Pid)
	require.NoError(t, g.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 143, g.wait(t), g.stderr.String())
	requireAllGone(t, ranks)

	j.Timeout = 2 * time.Second
	res, _, stderr := runJob(t, j)
	require.Equal(t, proto.ExitTimeout, res.ExitCode)
	require.Contains(t, stderr, "gorun:   group 1: ")
}

// TestGorunOfSpawnedKilled: if gorun is killed, nothing of a spawned group may remain.
func TestGorunOfSpawnedKilled(t *testing.T) {
	j := spawnJob(t, 1, spawnPlan{Spawns: [][]bootstrap.Command{{commandOf(2, "wait")}}, Then: "wait"})
	g := startGorun(t, j)
	g.lines(t, 4)
	ranks := spawnedPIDs(t, g.cmd.Process.Pid)
	require.NoError(t, g.cmd.Process.Kill())
	_ = g.cmd.Wait()
	requireAllGone(t, ranks)
}

// spawnedPIDs returns the pids of the ranks that a gorun has started, by the value of PMI_SPAWNED.
func spawnedPIDs(t *testing.T, gorun int) map[string][]int {
	t.Helper()
	of := make(map[string][]int)
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", gorun))
	require.NoError(t, err)
	for _, name := range lists {
		text, _ := os.ReadFile(name)
		for _, f := range strings.Fields(string(text)) {
			env, _ := os.ReadFile("/proc/" + f + "/environ")
			pid, _ := strconv.Atoi(f)
			if vars := strings.Split(string(env), "\x00"); slices.ContainsFunc(vars, func(kv string) bool { return strings.HasPrefix(kv, "PMI_RANK=") }) {
				spawned, _ := lookupEnv(vars, "PMI_SPAWNED")
				of[spawned] = append(of[spawned], pid)
			}
		}
	}
	require.Len(t, of["1"], 2)
	require.Len(t, of[""], 1)
	return of
}

// requireAllGone waits until processes have ended.
func requireAllGone(t *testing.T, pids map[string][]int) {
	t.Helper()
	for _, list := range pids {
		for _, pid := range list {
			require.Eventually(t, func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }, time.Minute, time.Millisecond)
		}
	}
}

// TestSpawnNotify: in a job that continues without failed ranks, the failure of a spawned rank is
// reported, and the job continues.
func TestSpawnNotify(t *testing.T) {
	j := spawnJob(t, 2, spawnPlan{Spawns: [][]bootstrap.Command{{commandOf(1, "kill")}, {commandOf(1, "show")}}})
	j.OnFailure = job.FailNotify
	res, out, stderr := runJob(t, j)
	require.Zero(t, res.ExitCode, stderr)
	require.Contains(t, stderr, "gorun: rank 1.0 was killed by signal 9 (SIGKILL): ")
	require.Contains(t, stderr, "; the others go on without it\n")
	require.Contains(t, out, "spawned true")
}

// TestSpawnNotifyOtherGroups: in a job that continues without failed ranks, the failure of a rank of
// group 1 is reported to the ranks of all groups, to those of other groups with the id of group 1.
func TestSpawnNotifyOtherGroups(t *testing.T) {
	j := spawnJob(t, 2, spawnPlan{Spawns: [][]bootstrap.Command{{commandOf(1, "failures")}, {commandOf(1, "failures"), commandOf(1, "kill")}}, Then: "failures"})
	j.OnFailure = job.FailNotify
	res, out, stderr := runJob(t, j)
	require.Zero(t, res.ExitCode, stderr)
	require.Contains(t, stderr, "gorun: rank 2.1 was killed by signal 9 (SIGKILL): ")
	line := regexp.MustCompile(`(?m)^(.* reads "failed )(?:in [0-9a-f]{16} (1)|(1)) was killed by signal 9 \(SIGKILL\): .*\\n" <nil>$`)
	var readers []string
	for _, m := range line.FindAllStringSubmatch(out, -1) {
		of := "of another group"
		if m[2] == "" {
			of = "of its group"
		}
		readers = append(readers, strings.TrimSuffix(m[1], ` reads "failed `)+" "+of)
	}
	slices.Sort(readers)
	require.Equal(t, []string{
		"rank 0 of another group", "rank 1 of another group", "spawned rank 0 of another group", "spawned rank 0 of its group",
	}, readers, out)
}

// TestSpawnOutputDir: the output of a spawned rank goes to files of its own.
func TestSpawnOutputDir(t *testing.T) {
	j := spawnJob(t, 1, spawnPlan{Spawns: [][]bootstrap.Command{{commandOf(2, "show")}}})
	j.OutputDir = t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(j.OutputDir, "1.1.out"), []byte("old"), 0o600))
	res, _, stderr := runJob(t, j)
	require.Zero(t, res.ExitCode, stderr)
	for r := range 2 {
		text, err := os.ReadFile(filepath.Join(j.OutputDir, fmt.Sprintf("1.%d.out", r)))
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(string(text), "spawned true"), string(text))
	}
}

// TestSoft compares softAtMost with a list of the numbers.
func TestSoft(t *testing.T) {
	for _, c := range []struct {
		soft  string
		limit int
		want  int
	}{
		{"4", 4, 4}, {"4", 3, 0}, {"1:4", 3, 3}, {"1:10:3", 9, 7}, {"1:10:3", 10, 10}, {"2,8,4", 7, 4}, {"10:1:-3", 9, 7}, {"10:1:-4", 5, 2},
		{"10:1:-4", 1, 0}, {"5:1", 9, 0}, {"1:5:-1", 9, 0}, {" 1 : 3 , 6", 5, 3}, {"0:8:2", 1, 0},
	} {
		got, err := softAtMost(c.soft, c.limit)
		require.NoError(t, err, c.soft)
		require.Equal(t, c.want, got, "%s %d", c.soft, c.limit)
	}
	for _, soft := range []string{"", "a", "1:", "1:2:3:4", "1:9:0", "1,,2"} {
		_, err := softAtMost(soft, 9)
		require.Error(t, err, soft)
	}
}

// TestSpawnReply: without errcodes every process has started, and a list that is too long for PMI-1
// is an error.
func TestSpawnReply(t *testing.T) {
	line, err := spawnReply([]int{2, 2}, []int{2, 1})
	require.NoError(t, err)
	require.Equal(t, "cmd=spawn_result rc=0 errcodes=0,0,0,1\n", string(line))
	line, err = spawnReply([]int{20000}, []int{20000})
	require.NoError(t, err)
	require.Equal(t, "cmd=spawn_result rc=0\n", string(line))
	_, err = spawnReply([]int{1000}, []int{1})
	require.Error(t, err)
}

// TestMPICHSpawn runs a program that spawns ranks and publishes names by MPICH's own PMI-1 client.
// Debian's MPICH has that client in its static library; its MPI_Comm_spawn does not work under any
// launcher, because its network module cannot connect two worlds.
func TestMPICHSpawn(t *testing.T) {
	lib, err := exec.Command("gcc", "-print-file-name=libmpich.a").Output()
	require.NoError(t, err)
	exe := filepath.Join(t.TempDir(), "pmispawn")
	out, err := exec.Command("gcc", "-O1", "-o", exe, filepath.Join("testdata", "pmispawn.c"), strings.TrimSpace(string(lib))).CombinedOutput()
	require.NoError(t, err, "libmpich.a comes with libmpich-dev, which make test installs: %s", out)
	j := testJob(2)
	j.Apps[0].Program = exe
	j.Slots = 8
	res, text, stderr := runJob(t, j)
	require.Zero(t, res.ExitCode, stderr)
	require.Equal(t, []string{
		"child 0 of 3 app 0 spawned 1 port the-port args two words",
		"child 1 of 3 app 0 spawned 1 port the-port args two words",
		"child 2 of 3 app 1 spawned 1 port the-port args",
		"lookup the-service-port",
		"missing program refused",
		"parent 0 of 2 spawned 0 universe 8 codes 0 0 0",
		"parent 1 of 2 spawned 0 universe 8",
	}, sortedLines(text))
	require.Contains(t, stderr, "gorun: rank 0 cannot spawn: /no/such/program: no such file\n")
}

// TestSpawnUnderHydra: the ranks of MPICH's launcher spawn others by the same calls.
func TestSpawnUnderHydra(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	j := spawnJob(t, 2, spawnPlan{Spawns: [][]bootstrap.Command{{commandOf(2, "show"), commandOf(1, "show")}}})
	cmd := exec.CommandContext(ctx, "mpiexec.hydra", append([]string{"-n", "2", os.Args[0]}, j.Apps[0].Args...)...)
	cmd.Env = append(os.Environ(), roleEnv+"=rank")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "codes: [0 0 0]\n")
	require.Equal(t, 3, strings.Count(string(out), "port the-port <nil>"), string(out))
	for r := range 3 {
		require.Contains(t, string(out), fmt.Sprintf("rank %d of 3 app %d by pmi nodes [0 0 0]", r, r/2))
	}
}
