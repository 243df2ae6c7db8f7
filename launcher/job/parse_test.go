package job

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/params"
)

// writeFile writes a job file for -config.
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
	require.Equal(t, "auto", j.Launcher)
	require.Equal(t, map[string]params.Source{"app": params.FromFlag}, j.Source)
	require.Empty(t, j.Params.Explicit())
}

func TestParseFlags(t *testing.T) {
	j := parse(t, []string{"HOME=/h=h", "EMPTY="},
		"--np", "4", "-x", "A=1", "-x", "HOME", "-x=EMPTY", "-x", "A=2", "-wdir", "/", "-H", "localhost:2,[::1]:3", "-strict",
		"-map-by", "core", "-bind-to", "numa", "-gomaxprocs", "3", "-name", "nm", "-timeout", "1m30s", "-grace", "0s", "-stdin", "all",
		"-tag-output", "-output", "out", "-launcher", "local", "-transport", "tcp", "-iface", "lo", "-p", "engine.eager_limit=64k", "-v",
		"--", "prog.go", "--", "-v")
	require.Equal(t, &Job{
		Name: "nm",
		Apps: []App{{Program: "prog.go", Args: []string{"--", "-v"}, NP: 4, Wdir: "/", Env: []EnvVar{{"A", "2"}, {"HOME", "/h=h"}, {"EMPTY", ""}}}},

		Timeout: 90 * time.Second, Grace: 0, Stdin: StdinAll, TagOutput: true, OutputDir: "out",
		Bind: BindNUMA, GOMAXPROCS: 3, StrictSlot: true, Slots: 5, Launcher: "local", Verbose: true,
		Params: j.Params, Source: j.Source,
	}, j)
	require.Equal(t, []string{"engine.eager_limit", "transport.tcp.interface", "transport.use"}, j.Params.Explicit())
	require.Equal(t, 64<<10, j.Params.Int("engine.eager_limit"))
	for key, from := range j.Source {
		require.Equal(t, params.FromFlag, from, key)
	}
	require.Len(t, j.Source, len(settings)+2)

	require.Equal(t, 0, parse(t, nil, "-ppn", "4", "-host", "localhost:2,127.0.0.1", "x").Slots)
	require.Equal(t, 4, parse(t, nil, "-host", "localhost", "-ppn", "4", "x").Slots)
	require.False(t, parse(t, nil, "-tag-output=false", "x").TagOutput)
	require.Equal(t, "prog", parse(t, nil, "a/prog.go").Name)
	require.Equal(t, "job", parse(t, nil, ".").Name)
}

// TestProvider: a provider means libfabric, unless transports are named.
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
	own, err := os.Hostname()
	require.NoError(t, err)
	local := "expected localhost or " + own + ", found "
	for _, test := range []struct{ args, want string }{
		{"", "expected a program or -config, found neither"},
		{"-n 2", "expected a program or -config, found neither"},
		{"-n 0 x", `-n: expected a number of ranks from 1 to 65536, found "0"`},
		{"-np -3 x", `-np: expected a number of ranks from 1 to 65536, found "-3"`},
		{"-np=x x", `-np: expected a number of ranks from 1 to 65536, found "x"`},
		{"--n 65537 x", `-n: expected a number of ranks from 1 to 65536, found "65537"`},
		{"-n 65536 x : x", "-n: expected ranks from 1 to 65536 in all, found 65537"},
		{"-n", "-n: expected an argument, N, found nothing"},
		{"-tagoutput x", `-tagoutput: unknown flag; did you mean "-tag-output"?`},
		{"-oversubscribe x", "-oversubscribe: unknown flag"},
		{"---x", "bad flag syntax: ---x"},
		{"-n 2 x :", `expected a program behind ":", found none`},
		{": x", `expected a program on each side of ":", found none`},
		{"x : -n 2", `expected a program on each side of ":", found none`},
		{"x : -timeout 3s y", "-timeout: expected before the first program: it is for the whole job"},
		{"x : -p a=b y", "-p: expected before the first program: it is for the whole job"},
		{"-timeout 5 x", `-timeout: expected a duration such as 90s or 10m, not negative, found "5"`},
		{"-grace -5s x", `-grace: expected a duration such as 90s or 10m, not negative, found "-5s"`},
		{"-stdin 0 x", `-stdin: expected one of rank0, all, none, found "0"`},
		{"-bind-to socket x", `-bind-to: expected one of none, core, numa, found "socket"`},
		{"-map-by node x", `-map-by: expected slot or core, found "node"`},
		{"-gomaxprocs -1 x", `-gomaxprocs: expected an integer, 0 or more, found "-1"`},
		{"-ppn 1.5 x", `-ppn: expected an integer, 0 or more, found "1.5"`},
		{"-v=3 x", `-v: expected no value, found "3"`},
		{"-h=false", `-h: expected no value, found "false"`},
		{"-tag-output=1 x", `-tag-output: expected true or false, found "1"`},
		{"-host a:3 x", "-host: " + local + `"a": only ranks of this machine can be started`},
		{"-H localhost,b x", "-H: " + local + `"b": only ranks of this machine can be started`},
		{"-H localhost: x", `-H: expected HOST[:SLOTS], found "localhost:"`},
		{"-H localhost:0 x", `-H: expected HOST[:SLOTS] with from 1 to 65536 slots, found "localhost:0"`},
		{"-H [::1 x", `-H: expected HOST[:SLOTS], found "[::1"`},
		{"-H , x", `-H: expected HOST[:SLOTS] separated by commas, found ","`},
		{"-launcher slurm x", `-launcher: expected one of auto, local (only ranks of this machine can be started), found "slurm"`},
		{"-transport tcp,pigeon x", `-transport: expected a list of names out of tcp, shm, libfabric, found "tcp,pigeon"`},
		{"-transport tcp,,tcp x", `-transport: expected a list of names out of tcp, shm, libfabric, found "tcp,,tcp"`},
		{"-x NOSUCH x", "-x: expected NOSUCH to be set where gorun runs, or NOSUCH=VALUE"},
		{"-x =1 x", `-x: expected a variable's name without blanks and =, found ""`},
		{"-wdir " + dir + "/no x", `-wdir: expected a directory, found "` + quote(dir + "/no")[1:]},
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
		{"WEFT_JOB_TIMEOUT=5", `WEFT_JOB_TIMEOUT: expected a duration such as 90s or 10m, not negative, found "5"`},
		{"WEFT_TRANSPORT_USE=carrier", `WEFT_TRANSPORT_USE: expected a list of names out of tcp, shm, libfabric, found "carrier"`},
		{"WEFT_TRANSPORT_TCP_POLL=-1s", `WEFT_TRANSPORT_TCP_POLL: expected a duration such as 90s or 10m, not negative, found "-1s"`},
		{"WEFT_LAUNCHER_KIND=ssh", `WEFT_LAUNCHER_KIND: expected one of auto, local, found "ssh"`},
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

// TestJobFilesOfProject decodes every file in configs/ as gorun does.
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
