package job

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
)

// writeFile writes a job file with the contents doc and returns its name.
func writeFile(t *testing.T, doc string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "job.toml")
	require.NoError(t, os.WriteFile(name, []byte(doc), 0o600))
	return name
}

func parse(t *testing.T, environ []string, args ...string) *Job {
	t.Helper()
	j, opts, err := Parse(args, environ)
	require.NoError(t, err)
	require.Equal(t, Run, opts.Action)
	return j
}

func TestParseDefaults(t *testing.T) {
	j := parse(t, nil, "./examples/allreduce", "-n", "1024")
	require.Equal(t, []App{{Program: "./examples/allreduce", Args: []string{"-n", "1024"}, NP: 1}}, j.Apps)
	require.Equal(t, "allreduce", j.Name)
	require.Equal(t, time.Second, j.Grace)
	require.Zero(t, j.Timeout)
	require.Equal(t, StdinRank0, j.Stdin)
	require.Equal(t, BindNone, j.Bind)
	require.Equal(t, LaunchAuto, j.Launcher)
	require.Equal(t, []any{FailAbort, 3, "slot", "slot", 64, 32, 10 * time.Second, 5 * time.Second, "ssh"},
		[]any{j.OnFailure, j.MaxRestarts, j.MapBy, j.RankBy, j.Radix, j.AtOnce, j.ConnectTimeout, j.Heartbeat, j.SSH})
	require.False(t, j.NPGiven)
	require.Empty(t, j.Hosts)
	require.Equal(t, map[string]params.Source{"app": params.FromFlag}, j.Source)
	require.Empty(t, j.Params.Explicit())
}

func TestParseFlags(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	hostfile, rankfile, secret := file("hosts", "u@a port=3 max_slots=8\nb[1-2]:2\n"), file("ranks", "rank 0=a\n"), file("secret", "s")
	j := parse(t, []string{"HOME=/h=h", "EMPTY="},
		"--np", "4", "-x", "A=1", "-x", "HOME", "-x=EMPTY", "-x", "A=2", "-wdir", "/", "-f", "/no", "-hostfile", hostfile, "-H", "b2", "-H", "b1:3,a", "-ppn", "5", "-strict",
		"-map-by", "ppr:2:numa", "-rank-by", "node", "-rankfile", rankfile, "-bind-to", "numa", "-gomaxprocs", "3", "-wrap", "1:nice", "-name", "nm", "-timeout", "1m30s", "-grace", "0s", "-stdin", "all",
		"-tag-output", "-output", "out", "-report", dir+"/report", "-stacks-dir", "st", "-stats", "-stats-dir", "sd", "-metrics", ":1", "-ui", "h:0", "-tee", "-progress", "-profile", "cpu,heap,cpu", "-profile-dir", "pr", "-trace", "tr", "-trace-format", "chrome", "-on-failure", "restart", "-max-restarts", "7",
		"-launcher", "dial", "-radix", "2", "-at-once", "1", "-connect-timeout", "3s", "-heartbeat", "100ms", "-ports", "20000-20003", "-ssh", "ssh -i 'a b'", "-slurm-args", "-p 'a b'", "-slurm-args", "-t 5",
		"-agent-path", "/opt/gorun", "-stage", "-stage-files", hostfile, "-stage-files", secret+","+rankfile, "-listen", ":0", "-secret-file", secret, "-agents", "2",
		"-transport", "tcp", "-iface", "lo", "-p", "engine.eager_limit=64k", "-v", "--", "prog.go", "--", "-v")
	require.Equal(t, &Job{
		Name:    "nm",
		Apps:    []App{{Program: "prog.go", Args: []string{"--", "-v"}, NP: 4, Wdir: "/", Env: []EnvVar{{"A", "2"}, {"HOME", "/h=h"}, {"EMPTY", ""}}}},
		NPGiven: true,

		Timeout: 90 * time.Second, Grace: 0, OnFailure: FailRestart, MaxRestarts: 7,
		Stdin: StdinAll, TagOutput: true, OutputDir: "out", Report: dir + "/report", StacksDir: "st", Stats: true, StatsDir: "sd", Metrics: ":1", UI: "h:0", Tee: true, Progress: true, Profile: []string{"cpu", "heap"}, ProfileDir: "pr", Trace: "tr", TraceFormat: TraceChrome,
		Hosts: []hosts.Host{{Name: "b2", Slots: 5}, {Name: "b1", Slots: 3}, {Name: "a", User: "u", Port: 3, Slots: 5, MaxSlots: 8}}, Hostfile: hostfile,
		MapBy: "ppr:2:numa", RankBy: "node", Rankfile: rankfile, Wrap: "1:nice", Bind: BindNUMA, GOMAXPROCS: 3, StrictSlot: true, Slots: 5,
		Launcher: LaunchDial, Radix: 2, AtOnce: 1, ConnectTimeout: 3 * time.Second, Heartbeat: 100 * time.Millisecond,
		SSH: "ssh -i 'a b'", SlurmArgs: []string{"-p", "a b", "-t", "5"}, AgentPath: "/opt/gorun", Stage: true, StageFiles: []string{hostfile, secret, rankfile},
		Ports: Ports{20000, 20003}, Listen: ":0", SecretFile: secret, Agents: 2,
		Params: j.Params, Verbose: true, Source: j.Source,
	}, j)
	require.Equal(t, []string{"engine.eager_limit", "transport.tcp.interface", "transport.use"}, j.Params.Explicit())
	require.Equal(t, 64<<10, j.Params.Int("engine.eager_limit"))
	for key, from := range j.Source {
		require.Equal(t, params.FromFlag, from, key)
	}
	require.Len(t, j.Source, len(settings)+3) // all settings, and the keys app, host and job.np

	require.False(t, parse(t, nil, "-tag-output=false", "x").TagOutput)
	require.Equal(t, "prog", parse(t, nil, "a/prog.go").Name)
	require.Equal(t, "job", parse(t, nil, ".").Name)
}

// TestEverySetting sets all settings by their environment variables, and then overrides them by a
// job file. Both times the job must have the value of each setting, and the right source of it.
func TestEverySetting(t *testing.T) {
	dir := t.TempDir()
	for _, f := range []string{"f1", "f2"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, f), []byte("a\n"), 0o600))
	}
	t.Chdir(dir)
	values := map[string][2]string{
		"job.name": {"n1", "n2"}, "job.timeout": {"1s", "2s"}, "job.grace": {"2s", "3s"}, "job.on_failure": {"notify", "restart"}, "job.max_restarts": {"1", "2"},
		"job.stdin": {"all", "none"}, "job.tag_output": {"true", "false"}, "job.output": {"o1", "o2"}, "job.report": {"r1", "r2"}, "job.stacks_dir": {"s1", "s2"}, "job.stats": {"true", "false"}, "job.stats_dir": {"d1", "d2"}, "job.metrics": {":1", "a:2"}, "job.ui": {":0", "a:2"}, "job.tee": {"true", "false"}, "job.progress": {"true", "false"}, "job.profile": {"cpu,block", "heap"}, "job.profile_dir": {"d1", "d2"}, "job.trace": {"t1", "t2"}, "job.trace_format": {"chrome", "perfetto"},
		"job.map_by": {"node", "ppr:1:core"}, "job.rank_by": {"node", "slot"}, "job.rankfile": {"f1", "f2"}, "job.bind": {"core", "numa"}, "job.gomaxprocs": {"1", "2"}, "job.wrap": {"nice", "0:nice -n 3"},
		"job.strict": {"true", "false"}, "job.slots": {"1", "2"}, "launcher.kind": {"auto", "dial"}, "launcher.hostfile": {"f1", "f2"},
		"launcher.ssh": {"ssh -v", "rsh"}, "launcher.slurm_args": {"-t 1", "-t 2"}, "launcher.radix": {"1", "2"}, "launcher.at_once": {"1", "2"},
		"launcher.connect_timeout": {"1s", "2s"}, "launcher.heartbeat": {"1s", "2s"}, "launcher.ports": {"2000-2001", "3000-3001"}, "launcher.agent_path": {"p1", "p2"}, "launcher.stage": {"true", "false"},
		"launcher.stage_files": {"f1,f2", "f2"}, "launcher.listen": {"a:1", "[::1]:2"}, "launcher.secret_file": {"f1", "f2"}, "launcher.agents": {"1", "2"},
	}
	var environ []string
	var doc strings.Builder
	for _, s := range settings {
		v, ok := values[s.Key]
		require.True(t, ok, s.Key)
		environ = append(environ, s.Env()+"="+v[0])
		text := v[1]
		if s.Kind != params.Int && s.Kind != params.Bool {
			text = strconv.Quote(text)
		}
		fmt.Fprintf(&doc, "%s = %s\n", s.Key, text)
	}
	require.NoError(t, os.WriteFile("job.toml", []byte(doc.String()), 0o600))
	env, both := parse(t, environ, "x"), parse(t, environ, "-config", "job.toml", "x")
	for _, s := range settings {
		require.Equal(t, values[s.Key][0], s.value(env), s.Key)
		require.Equal(t, params.FromEnv, env.Source[s.Key], s.Key)
		require.Equal(t, values[s.Key][1], s.value(both), s.Key)
		require.Equal(t, params.FromFile, both.Source[s.Key], s.Key)
	}
}

// TestProvider: -provider must imply -transport libfabric, unless the user names transports by a
// flag, the job file or the environment.
func TestProvider(t *testing.T) {
	for _, test := range []struct {
		environ  []string
		args     string
		use      string
		provider string
	}{
		{nil, "-provider tcp;ofi_rxm x", "libfabric", "tcp;ofi_rxm"},
		{nil, "-transport libfabric -provider shm x", "libfabric", "shm"},
		{nil, "-provider shm -transport tcp,libfabric x", "tcp,libfabric", "shm"},
		{[]string{"WEFT_TRANSPORT_USE=tcp"}, "-provider shm x", "tcp", "shm"},
		{nil, "-transport libfabric x", "libfabric", ""},
		{[]string{"WEFT_TRANSPORT_LIBFABRIC_PROVIDER=shm"}, "x", "tcp", "shm"},
		{nil, "-config " + writeFile(t, "[transport.libfabric]\nprovider = \"net\"\n") + " x", "tcp", "net"},
		{nil, "-provider shm -config " + writeFile(t, "[transport]\nuse = \"libfabric\"\nlibfabric.provider = \"net\"\n") + " x", "libfabric", "shm"},
	} {
		j := parse(t, test.environ, strings.Fields(test.args)...)
		require.Equal(t, test.use, j.Params.String("transport.use"), test.args)
		require.Equal(t, test.provider, j.Params.String("transport.libfabric.provider"), test.args)
	}
}

func TestParseMPMD(t *testing.T) {
	j := parse(t, nil, "-v", "-np", "2", "-x", "A=1", "a", "-n", "9", ":", "b", ":", "-n", "3", "-wdir", "/", "-x", "B=1", "c", "d")
	require.Equal(t, []App{
		{Program: "a", Args: []string{"-n", "9"}, NP: 2, Env: []EnvVar{{"A", "1"}}},
		{Program: "b", Args: nil, NP: 1},
		{Program: "c", Args: []string{"d"}, NP: 3, Wdir: "/", Env: []EnvVar{{"B", "1"}}},
	}, j.Apps)
	require.Equal(t, 6, j.NP())
}

func TestUsageErrors(t *testing.T) {
	dir := t.TempDir()
	twoApps := writeFile(t, "[[app]]\nprogram = \"a\"\nnp = 1\n[[app]]\nprogram = \"b\"\nnp = 1\n")
	for _, test := range []struct{ args, want string }{
		{"", "expected a program or -config, found neither"},
		{"-n 2", "expected a program or -config, found neither"},
		{"-n 0 x", `-n: expected a number of ranks from 1 to 65536, found "0"`},
		{"-np -3 x", `-np: expected a number of ranks from 1 to 65536, found "-3"`},
		{"-np=x x", `-np: expected a number of ranks from 1 to 65536, found "x"`},
		{"--n 65537 x", `-n: expected a number of ranks from 1 to 65536, found "65537"`},
		{"-n 65536 x : x", "-n: expected from 1 to 65536 ranks in total, found 65537"},
		{"-n", "-n: expected an argument, N, found nothing"},
		{"-tagoutput x", `-tagoutput: unknown flag; did you mean "-tag-output"?`},
		{"-novice x", "-novice: unknown flag"},
		{"-oversubscribe x", "-oversubscribe: unknown flag; not needed: more ranks than slots are a warning"},
		{"-N 4 x", "-N: unknown flag; use -map-by ppr:N:node, and -n for all of them"},
		{"-n 2 --label x", "-label: unknown flag; use -tag-output"},
		{"-n4 x", "-n4: unknown flag; did you mean -n 4?"},
		{"-v4 x", "-v4: unknown flag; did you mean \"-v\"?"},
		{"---x", "bad flag syntax: ---x"},
		{"-n 2 x :", `expected a program after ":", found none`},
		{": x", `expected a program on each side of ":", found none`},
		{"x : -n 2", `expected a program on each side of ":", found none`},
		{"x : -timeout 3s y", "-timeout: expected before the first program: it is for the whole job"},
		{"x : -p a=b y", "-p: expected before the first program: it is for the whole job"},
		{"-timeout 5 x", `-timeout: expected a duration such as 90s or 10m, not negative, found "5"; did you mean "5s"?`},
		{"-grace -5s x", `-grace: expected a duration such as 90s or 10m, not negative, found "-5s"`},
		{"-stdin 0 x", `-stdin: expected one of rank0, all, none, found "0"`},
		{"-bind-to socket x", `-bind-to: expected one of none, core, numa, found "socket"`},
		{"-map-by socket x", `-map-by: expected slot, node, core, numa or ppr:N:node|numa|core, found "socket"`},
		{"-map-by ppr:0:node x", `-map-by: expected slot, node, core, numa or ppr:N:node|numa|core, found "ppr:0:node"`},
		{"-rank-by core x", `-rank-by: expected one of slot, node, found "core"`},
		{"-on-failure ignore x", `-on-failure: expected one of abort, notify, restart, found "ignore"`},
		{"-max-restarts -1 x", `-max-restarts: expected an integer, 0 or more, found "-1"`},
		{"-report - x", `-report: expected a file, found "-"`},
		{"-radix 0 x", `-radix: expected an integer from 1 to 65536, found "0"`},
		{"-at-once many x", `-at-once: expected an integer from 1 to 65536, found "many"`},
		{"-ports 2000 x", `-ports: expected LOW-HIGH with ports from 1024 to 65535, found "2000"; did you mean "2000-2099"?`},
		{"-ports 3000-2000 x", `-ports: expected LOW-HIGH with ports from 1024 to 65535, found "3000-2000"`},
		{"-heartbeat 50ms x", `-heartbeat: expected a duration of at least 100ms, found "50ms"`},
		{"-connect-timeout 0s x", `-connect-timeout: expected a duration of at least 1ms, found "0s"`},
		{"-ssh 'ssh x", `-ssh: expected a command whose quotes are closed, found "'ssh"`},
		{"-ssh= x", `-ssh: expected a command whose quotes are closed, found ""`},
		{"-slurm-args -p -slurm-args \"a x", `-slurm-args: expected arguments whose quotes are closed, found "\"a"`},
		{"-stage=yes x", `-stage: expected true or false, found "yes"`},
		{"-stage-files a,, x", `-stage-files: expected a list of names, found "a,,"`},
		{"-listen 70000 x", `-listen: expected HOST:PORT with a port from 0 to 65535, found "70000"`},
		{"-listen a:70000 x", `-listen: expected HOST:PORT with a port from 0 to 65535, found "a:70000"`},
		{"-listen a:http x", `-listen: expected HOST:PORT with a port from 0 to 65535, found "a:http"`},
		{"-agents 65537 x", `-agents: expected an integer from 0 to 65536, found "65537"`},
		{"-launcher pbs x", `-launcher: expected one of auto, local, ssh, slurm, dial, found "pbs"`},
		{"x : -host a y", "-host: expected before the first program: it is for the whole job"},
		{"-v -agent", `-agent: expected as the first argument`},
		{"-gomaxprocs -1 x", `-gomaxprocs: expected an integer, 0 or more, found "-1"`},
		{"-ppn 1.5 x", `-ppn: expected an integer, 0 or more, found "1.5"`},
		{"-v=3 x", `-v: expected no value, found "3"`},
		{"-h=false", `-h: expected no value, found "false"`},
		{"-tag-output=2 x", `-tag-output: expected true or false, found "2"`},
		{"-H localhost: x", `-H: expected HOST[:SLOTS], found "localhost:"`},
		{"-H localhost:0 x", `-H: expected HOST[:SLOTS] with from 1 to 65536 slots, found "localhost:0"`},
		{"-H [::1 x", `-H: expected "]" after "[", found "[::1"`},
		{"-H a -H u@a,v@a x", `-H: expected one user for a, found "u" and "v"`},
		{"-H u@a -H v@a x", `-host: expected one user for a, found "u" and "v"`},
		{"-H a[1-70000] x", `-H: expected at most 65536 hosts, found more in "a[1-70000]"`},
		{"-H , x", `-H: expected HOST[:SLOTS] separated by commas, found ","`},
		{"-transport tcp,pigeon x", `-transport: expected a list of names out of tcp, shm, libfabric, found "tcp,pigeon"`},
		{"-transport tcp,,tcp x", `-transport: expected a list of names out of tcp, shm, libfabric, found "tcp,,tcp"`},
		{"-x NOSUCH x", "-x: expected NOSUCH to be set where gorun runs, or NOSUCH=VALUE"},
		{"-x =1 x", `-x: expected a variable's name without blanks and =, found ""`},
		{"-wdir " + dir + "/no x", `-wdir: expected a directory, found "` + quote(dir + "/no")[1:]},
		{"-wdir no/such -listen :7070 -secret-file /dev/null x", `-wdir: expected a directory, found "no/such"`},
		{"-p a=b x", `-p: expected a tunable, found "a"; gorun -info lists them`},
		{"-p engine.eager_limit x", `-p: expected KEY=VALUE, found "engine.eager_limit"`},
		{"-p engine.eager_limt=3 x", `-p: expected a tunable, found "engine.eager_limt"; did you mean "engine.eager_limit"?`},
		{"-p engine.eager_limit=-3 x", `-p: engine.eager_limit: expected a number of bytes such as 4096, 64k or 1m, found "-3"`},
		{"-config " + dir + "/no", `-config: expected a job file, found "` + dir + `/no": no such file or directory`},
		{"-config " + dir, `-config: expected a job file, found "` + dir + `": is a directory`},
		{"-config a -config b", "-config: expected one job file, found two"},
		{"-config " + twoApps + " -n 4", "-n: expected np in each [[app]] of " + twoApps + ", which has 2 of them"},
	} {
		t.Run(test.args, func(t *testing.T) {
			j, _, err := Parse(strings.Fields(test.args), nil)
			require.Nil(t, j)
			var ue *UsageError
			require.ErrorAs(t, err, &ue)
			require.Equal(t, test.want, err.Error())
		})
	}
}

func TestEnvironmentErrors(t *testing.T) {
	for _, test := range []struct{ env, want string }{
		{"WEFT_JOB_TIMEOUT=5", `WEFT_JOB_TIMEOUT: expected a duration such as 90s or 10m, not negative, found "5"; did you mean "5s"?`},
		{"WEFT_TRANSPORT_USE=carrier", `WEFT_TRANSPORT_USE: expected a list of names out of tcp, shm, libfabric, found "carrier"`},
		{"WEFT_TRANSPORT_TCP_POLL=-1s", `WEFT_TRANSPORT_TCP_POLL: expected a duration such as 90s or 10m, not negative, found "-1s"`},
		{"WEFT_LAUNCHER_KIND=pbs", `WEFT_LAUNCHER_KIND: expected one of auto, local, ssh, slurm, dial, found "pbs"`},
		{"WEFT_LAUNCHER_HOSTFILE=/no", `WEFT_LAUNCHER_HOSTFILE: expected a hostfile, found "/no": no such file or directory`},
		{"WEFT_LAUNCHER_LISTEN=:1", `WEFT_LAUNCHER_LISTEN: expected -secret-file (launcher.secret_file) with it, found none`},
	} {
		_, _, err := Parse([]string{"x"}, []string{test.env})
		require.EqualError(t, err, test.want)
	}
	require.Zero(t, parse(t, []string{"WEFT_JOB_TIMEOUT="}, "x").Timeout)
}

func TestPrecedence(t *testing.T) {
	file := writeFile(t, `
[job]
timeout = "2m"
stdin = "none"
[transport]
tcp.poll = "2ms"
tcp.interface = "file"
[[app]]
program = "x"
np = 2
env = { A = "file", B = "file" }
`)
	env := []string{"WEFT_JOB_TIMEOUT=1m", "WEFT_JOB_STDIN=all", "WEFT_JOB_BIND=core", "WEFT_TRANSPORT_TCP_POLL=1ms", "WEFT_ENGINE_EAGER_LIMIT=1k", "WEFT_TRANSPORT_TCP_INTERFACE=env"}
	j := parse(t, env, "-config", file, "-timeout", "3m", "-p", "transport.tcp.poll=3ms", "-n", "3", "-x", "A=flag")

	require.Equal(t, 3*time.Minute, j.Timeout)
	require.Equal(t, StdinNone, j.Stdin)
	require.Equal(t, BindCore, j.Bind)
	require.Equal(t, map[string]params.Source{
		"app": params.FromFile, "job.np": params.FromFlag, "job.timeout": params.FromFlag, "job.stdin": params.FromFile, "job.bind": params.FromEnv,
	}, j.Source)
	require.Equal(t, params.Value{Text: "3ms", Source: params.FromFlag}, j.Params.Get("transport.tcp.poll"))
	require.Equal(t, params.Value{Text: "file", Source: params.FromFile}, j.Params.Get("transport.tcp.interface"))
	require.Equal(t, params.Value{Text: "1k", Source: params.FromEnv}, j.Params.Get("engine.eager_limit"))
	require.Equal(t, params.FromDefault, j.Params.Get("transport.use").Source)
	require.Equal(t, []App{{Program: "x", NP: 3, Env: []EnvVar{{"A", "flag"}, {"B", "file"}}}}, j.Apps)
}

func TestRanksOfFile(t *testing.T) {
	for _, test := range []struct {
		doc  string
		args []string
		np   int
		from params.Source
	}{
		{"[[app]]\nprogram = \"x\"\n", []string{"y", ":", "-n", "2", "z"}, 3, params.FromFlag},
		{"[job]\nnp = 4\n[[app]]\nprogram = \"x\"\n", nil, 4, params.FromFile},
		{"[job]\nnp = 4\n[[app]]\nprogram = \"x\"\n", []string{"-n", "2"}, 2, params.FromFlag},
		{"[job]\nnp = 4\n[[app]]\nprogram = \"x\"\nnp = 4\n", nil, 4, params.FromFile},
		{"[[app]]\nprogram = \"x\"\nnp = 4\n", nil, 4, params.FromFile},
		{"[[app]]\nprogram = \"x\"\n", nil, 1, ""},
		{"[job]\nnp = 3\n", []string{"y"}, 3, params.FromFile},
		{"[job]\nnp = 3\n[[app]]\nprogram = \"x\"\n", []string{"-n", "2", "y"}, 2, params.FromFlag},
		{"[job]\nnp = 3\n", []string{"y", ":", "z"}, 2, ""},
		{"[[app]]\nprogram = \"x\"\nnp = 4\n", []string{"y"}, 1, ""},
	} {
		j := parse(t, nil, append([]string{"-config", writeFile(t, test.doc)}, test.args...)...)
		require.Equal(t, test.np, j.NP(), test.doc)
		require.Equal(t, test.from, j.Source["job.np"], test.doc)
		require.Equal(t, test.from != "" && len(j.Apps) == 1, j.NPGiven, test.doc)
	}
}

func TestFileAndFlagErrors(t *testing.T) {
	file := writeFile(t, "[job]\nnp = 4\n")
	_, _, err := Parse([]string{"-config", file}, nil)
	require.EqualError(t, err, file+":1:1: app: expected [[app]] with a program, or a program on the command line, found neither")

	file = writeFile(t, "[[app]]\nprogram = \"x\"\nwdir = \"/no/such\"\n")
	_, _, err = Parse([]string{"-config", file}, nil)
	require.EqualError(t, err, file+`:3:8: app[0].wdir: expected a directory, found "/no/such"`)
	require.Equal(t, "/", parse(t, nil, "-config", file, "-wdir", "/").Apps[0].Wdir)

	file = writeFile(t, "[job]\nnp = 0\nnq = 1\n")
	_, _, err = Parse([]string{"-config", file}, nil)
	require.EqualError(t, err, file+":2:6: job.np: expected an integer from 1 to 65536, found 0\n"+file+`:3:1: job.nq: unknown key; did you mean "np"?`)
}

func TestActions(t *testing.T) {
	for _, test := range []struct {
		args []string
		want Action
	}{
		{[]string{"-h"}, Help}, {[]string{"-v", "-version"}, Version},
		{[]string{"-info"}, Info}, {[]string{"-info", "x"}, Info}, {[]string{"-dry-run", "x"}, DryRun}, {[]string{"x", "-h"}, Run},
	} {
		_, opts, err := Parse(test.args, nil)
		require.NoError(t, err)
		require.Equal(t, test.want, opts.Action)
	}
	_, _, err := Parse([]string{"-dry-run"}, nil)
	require.EqualError(t, err, "expected a program or -config, found neither")
}

// TestJobFilesOfProject: Parse must accept every job file in configs/.
func TestJobFilesOfProject(t *testing.T) {
	useProjectTable(t)
	t.Chdir("../..")
	files, err := filepath.Glob("configs/*.toml")
	require.NoError(t, err)
	require.Subset(t, files, []string{"configs/allreduce.toml", "configs/mpmd.toml"})
	for _, file := range files {
		j := parse(t, nil, "-config", file)
		require.Equal(t, 4, j.NP(), file)
		for _, a := range j.Apps {
			require.True(t, isDir(a.Program), "%s: %s", file, a.Program)
		}
	}
}

// TestUnitHints: if a number lacks its unit, or a port the end of its range, the error must suggest
// one.
func TestUnitHints(t *testing.T) {
	for _, test := range []struct {
		args, env []string
		want      string
	}{
		{[]string{"-timeout", "5", "x"}, nil, `-timeout: expected a duration such as 90s or 10m, not negative, found "5"; did you mean "5s"?`},
		{[]string{"-p", "transport.tcp.poll=7", "x"}, nil, `-p: transport.tcp.poll: expected a duration such as 90s or 10m, not negative, found "7"; did you mean "7s"?`},
		{[]string{"x"}, []string{"WEFT_JOB_GRACE=3"}, `WEFT_JOB_GRACE: expected a duration such as 90s or 10m, not negative, found "3"; did you mean "3s"?`},
		{[]string{"-timeout", "-5", "x"}, nil, `-timeout: expected a duration such as 90s or 10m, not negative, found "-5"`},
		{[]string{"-ports", "30000", "x"}, nil, `-ports: expected LOW-HIGH with ports from 1024 to 65535, found "30000"; did you mean "30000-30099"?`},
		{[]string{"-ports", "65500", "x"}, nil, `-ports: expected LOW-HIGH with ports from 1024 to 65535, found "65500"; did you mean "65500-65535"?`},
		{[]string{"-ports", "80", "x"}, nil, `-ports: expected LOW-HIGH with ports from 1024 to 65535, found "80"`},
	} {
		_, _, err := Parse(test.args, test.env)
		require.EqualError(t, err, test.want)
	}
	_, err := decodeFile("f", []byte("[job]\ntimeout = 5\n"))
	require.EqualError(t, err, "f:2:11: job.timeout: expected a duration such as 90s or 10m, not negative, found 5; did you mean \"5s\"?")
}

// TestEncodings: decodeFile must skip the byte-order mark of UTF-8. If a document has the mark of
// another encoding, the error must name that encoding.
func TestEncodings(t *testing.T) {
	f, err := decodeFile("f", []byte("\ufeff[[app]]\nprogram = \"x\"\nnp = 2\n"))
	require.NoError(t, err)
	require.Equal(t, []App{{Program: "x", NP: 2}}, f.apps)
	_, err = decodeFile("f", []byte("\ufeffx = 1\n"))
	require.ErrorContains(t, err, "f:1:1: x: unknown key")
	for doc, name := range map[string]string{
		"\xff\xfe[\x00j\x00": "UTF-16", "\xfe\xff\x00[\x00j": "UTF-16", "\xff\xfe\x00\x00[\x00\x00\x00": "UTF-32", "\x00\x00\xfe\xff\x00\x00\x00[": "UTF-32",
	} {
		_, err := decodeFile("f", []byte(doc))
		require.EqualError(t, err, "f:1:1: expected UTF-8, found "+name+"; save the file as UTF-8")
	}
}
