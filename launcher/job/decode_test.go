package job

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/launcher/internal/hosts"
)

func TestDecodeErrors(t *testing.T) {
	const app = "\n[[app]]\nprogram = \"x\"\n"
	for _, test := range []struct{ name, doc, want string }{
		// Syntax.
		{"no value", "[job]\nnp =", "f:2:4: expected value, not end of input"},
		{"no equals sign", "[job]\nnp 4\n", "f:2:4: expected '=' after key"},
		{"open table", "[job\nnp = 4\n", "f:1:5: expected ']' to close table name"},
		{"open string", "[job]\nname = \"a\n", "f:2:10: basic strings cannot have new lines"},
		{"twice", "[job]\nnp = 4\nnp = 4\n", "f:3:1: "},
		{"not UTF-8", "[job]\nname = \"\xff\"\n", "f:2:9: "},

		// Unknown keys.
		{"table", "[jobs]\nnp = 4\n", `f:1:2: jobs: unknown key; did you mean "job"?`},
		{"key", "[job]\n  nq = 4\n", `f:2:3: job.nq: unknown key; did you mean "np"?`},
		{"swapped", "[job]\ntiemout = \"1s\"\n", `f:2:1: job.tiemout: unknown key; did you mean "timeout"?`},
		{"far key", "[job]\nzzzzzzzz = 4\n", "f:2:1: job.zzzzzzzz: unknown key; expected one of bind, gomaxprocs, grace, map_by, max_restarts, metrics, name, np, on_failure, output, profile, profile_dir, progress, rank_by, rankfile, report, slots, stacks_dir, stats, stats_dir, stdin, strict, tag_output, tee, timeout, trace, trace_format, ui, wrap"},
		{"dotted", "job.nq = 4\n", `f:1:5: job.nq: unknown key; did you mean "np"?`},
		{"inline", "job = { np = 4, stdim = \"all\" }\n", `f:1:17: job.stdim: unknown key; did you mean "stdin"?`},
		{"in an app", app + "[[app]]\nprogram = \"y\"\nprogam = \"y\"\n", `f:6:1: app[1].progam: unknown key; did you mean "program"?`},
		{"in a host", "[[host]]\nname = \"localhost\"\nslot = 3\n", `f:3:1: host[0].slot: unknown key; did you mean "slots"?`},
		{"tunable", "[transport.tcp]\ninterfaces = \"lo\"\n", `f:2:1: transport.tcp.interfaces: unknown key; did you mean "interface"?`},
		{"transport", "[transport.tpc]\ninterface = \"lo\"\n", `f:1:12: transport.tpc: unknown key; did you mean "tcp"?`},
		{"libfabric", "[transport.libfabric]\nprovidr = \"tcp\"\n", `f:2:1: transport.libfabric.providr: unknown key; did you mean "provider"?`},
		{"collective", "[coll.alreduce]\nalgorithm = \"ring\"\n", `f:1:7: coll.alreduce: unknown key; did you mean "allreduce"?`},
		{"launcher", "[launcher]\nkin = \"auto\"\n", `f:2:1: launcher.kin: unknown key; did you mean "kind"?`},

		// Wrong types.
		{"np string", "[job]\nnp = \"4\"\n", `f:2:6: job.np: expected an integer from 1 to 65536, found "4"`},
		{"np float", "[job]\nnp =   4.0\n", "f:2:8: job.np: expected an integer from 1 to 65536, found the float 4"},
		{"timeout integer", "[job]\ntimeout = 10\n", "f:2:11: job.timeout: expected a duration such as 90s or 10m, not negative, found 10; did you mean \"10s\"?"},
		{"bool", "[job]\ntag_output = 1\n", "f:2:14: job.tag_output: expected true or false, found 1"},
		{"bool string", "[job]\nstrict = \"true\"\n", `f:2:10: job.strict: expected true or false, found "true"`},
		{"name", "[job]\nname = true\n", "f:2:8: job.name: expected a string, found true"},
		{"date", "[job]\nname = 2026-01-01\n", "f:2:8: job.name: expected a string, found a date or time"},
		{"gomaxprocs", "[job]\ngomaxprocs = \"2\"\n", `f:2:14: job.gomaxprocs: expected an integer, 0 or more, found "2"`},
		{"job", "job = 3\n", "f:1:7: job: expected a table, found 3"},
		{"jobs", "[[job]]\nnp = 3\n", "f:1:3: job: expected a table, found an array"},
		{"env", "[env]\nA = 1\n", "f:2:5: env.A: expected a string, found 1"},
		{"app", "[app]\nprogram = \"x\"\n", "f:1:2: app: expected an array of tables, [[app]], found a table"},
		{"apps", "app = [ 3 ]\n", "f:1:9: app[0]: expected a table, found 3"},
		{"program", "[[app]]\nprogram = [\"x\"]\n", "f:2:11: app[0].program: expected a string, found an array"},
		{"args", app + "args = \"-n 3\"\n", `f:4:8: app[0].args: expected an array of strings, found "-n 3"`},
		{"arg", app + "args = [\"-n\",\n  3]\n", "f:5:3: app[0].args[1]: expected a string, found 3"},
		{"arrays in arrays", app + "args = [[\"a\"]]\n", "f:4:8: app[0].args[0]: expected a string, found an array"},
		{"app env", app + "env = { A = true }\n", "f:4:13: app[0].env.A: expected a string, found true"},
		{"app env table", app + "[app.env]\nA = true\n", "f:5:5: app[0].env.A: expected a string, found true"},
		{"transport list", "[transport]\nuse = 3\n", "f:2:7: transport.use: expected a list of names out of tcp, shm, libfabric, found 3"},
		{"tunable table", "[transport.use]\na = 3\n", "f:1:12: transport.use: expected a list of names out of tcp, shm, libfabric, found a table"},
		{"engine", "engine = 3", "f:1:10: engine: expected a table, found 3"},
		{"tunable bool", "[engine]\nasync_progress = 1\n", "f:2:18: engine.async_progress: expected true or false, found 1"},
		{"tunable of no table", "check = 1\n", "f:1:9: check: expected true or false, found 1"},
		{"tunable bytes", "[engine]\neager_limit = 1.5\n", "f:2:15: engine.eager_limit: expected a number of bytes such as 4096, 64k or 1m, found the float 1.5"},

		// Invalid values.
		{"np 0", "[job]\nnp = 0\n", "f:2:6: job.np: expected an integer from 1 to 65536, found 0"},
		{"np many", "[job]\nnp = 65537\n", "f:2:6: job.np: expected an integer from 1 to 65536, found 65537"},
		{"np far too many", "[job]\nnp = 9223372036854775807\n", "f:2:6: job.np: expected an integer from 1 to 65536, found 9223372036854775807"},
		{"app np", app + "np = -1\n", "f:4:6: app[0].np: expected an integer from 1 to 65536, found -1"},
		{"timeout", "[job]\ntimeout = \"-1s\"\n", `f:2:11: job.timeout: expected a duration such as 90s or 10m, not negative, found "-1s"`},
		{"timeout unit", "[job]\ntimeout = \"10 minutes\"\n", `f:2:11: job.timeout: expected a duration such as 90s or 10m, not negative, found "10 minutes"`},
		{"stdin", "[job]\nstdin = \"rank1\"\n", `f:2:9: job.stdin: expected one of rank0, all, none, found "rank1"`},
		{"bind", "[job]\nbind = \"socket\"\n", `f:2:8: job.bind: expected one of none, core, numa, found "socket"`},
		{"gomaxprocs negative", "[job]\ngomaxprocs = -2\n", "f:2:14: job.gomaxprocs: expected an integer, 0 or more, found -2"},
		{"gomaxprocs many", "[job]\ngomaxprocs = 70000\n", "f:2:14: job.gomaxprocs: expected an integer from 0 to 65536, found 70000"},
		{"NUL", "[job]\noutput = \"a\\u0000\"\n", `f:2:10: job.output: expected a string, found "a\x00"`},
		{"launcher kind", "[launcher]\nkind = \"pbs\"\n", `f:2:8: launcher.kind: expected one of auto, local, ssh, slurm, dial, found "pbs"`},
		{"map_by", "[job]\nmap_by = \"socket\"\n", `f:2:10: job.map_by: expected slot, node, core, numa or ppr:N:node|numa|core, found "socket"`},
		{"map_by integer", "[job]\nmap_by = 3\n", `f:2:10: job.map_by: expected a string, found 3`},
		{"rank_by", "[job]\nrank_by = \"core\"\n", `f:2:11: job.rank_by: expected one of slot, node, found "core"`},
		{"on_failure", "[job]\non_failure = \"ignore\"\n", `f:2:14: job.on_failure: expected one of abort, notify, restart, found "ignore"`},
		{"report", "[job]\nreport = \"-\"\n", `f:2:10: job.report: expected a file, found "-"`},
		{"radix", "[launcher]\nradix = 0\n", `f:2:9: launcher.radix: expected an integer from 1 to 65536, found 0`},
		{"radix negative", "[launcher]\nradix = -1\n", `f:2:9: launcher.radix: expected an integer from 1 to 65536, found -1`},
		{"radix string", "[launcher]\nradix = \"1\"\n", `f:2:9: launcher.radix: expected an integer from 1 to 65536, found "1"`},
		{"heartbeat", "[launcher]\nheartbeat = \"99ms\"\n", `f:2:13: launcher.heartbeat: expected a duration of at least 100ms, found "99ms"`},
		{"connect_timeout", "[launcher]\nconnect_timeout = \"0s\"\n", `f:2:19: launcher.connect_timeout: expected a duration of at least 1ms, found "0s"`},
		{"ssh", "[launcher]\nssh = \"ssh 'a\"\n", `f:2:7: launcher.ssh: expected a command whose quotes are closed, found "ssh 'a"`},
		{"no ssh", "[launcher]\nssh = \"\"\n", `f:2:7: launcher.ssh: expected a command whose quotes are closed, found ""`},
		{"slurm_args", "[launcher]\nslurm_args = \"-p \\\"a\"\n", `f:2:14: launcher.slurm_args: expected arguments whose quotes are closed, found "-p \"a"`},
		{"stage_files", "[launcher]\nstage_files = [\"a\", \"\"]\n", `f:2:21: launcher.stage_files[1]: expected a name, found ""`},
		{"listen", "[launcher]\nlisten = \"here\"\n", `f:2:10: launcher.listen: expected HOST:PORT with a port from 0 to 65535, found "here"`},
		{"host type", "host = \"node1\"\n", `f:1:8: host: expected an array of tables, [[host]], found "node1"`},
		{"host bracket", "[[host]]\nname = \"node[1-\"\n", `f:2:8: host[0].name: expected "]" after "[", found "node[1-"`},
		{"host with slots", "[[host]]\nname = \"node1:4\"\n", `f:2:8: host[0].name: expected a host's name, found "node1:4"`},
		{"host option", "[[host]]\nname = \"-oProxyCommand=x\"\n", `f:2:8: host[0].name: expected a host's name, found "-oProxyCommand=x"`},
		{"host name type", "[[host]]\nname = 3\n", `f:2:8: host[0].name: expected a string, found 3`},
		{"host slots", "[[host]]\nname = \"localhost\"\nslots = 0\n", "f:3:9: host[0].slots: expected an integer from 1 to 65536, found 0"},
		{"host max", "[[host]]\nname = \"a\"\nslots = 3\nmax_slots = 2\n", "f:3:9: host[0].slots: expected at most max_slots, 2, found 3"},
		{"host port", "[[host]]\nname = \"a\"\nport = 65536\n", "f:3:8: host[0].port: expected an integer from 1 to 65535, found 65536"},
		{"host user", "[[host]]\nname = \"a\"\nuser = \"-l\"\n", `f:3:8: host[0].user: expected a user's name, found "-l"`},
		{"host address", "[[host]]\nname = \"a\"\naddress = \"10.0.0.0/8\"\n", `f:3:11: host[0].address: expected an IP address or a name, found "10.0.0.0/8"`},
		{"host addresses", "[[host]]\nname = \"a[1-2]\"\naddress = \"10.0.0.1\"\n", `f:3:11: host[0].address: expected one host with an address, found 2`},
		{"host name", "[[host]]\nslots = 2\n", "f:1:3: host[0]: expected a name, found none"},
		{"host twice", "[[host]]\nname = \"a\"\nuser = \"u\"\n[[host]]\nname = \"a\"\nuser = \"v\"\n", `f:4:3: host[1]: expected one user for a, found "u" and "v"`},
		{"many hosts", "[[host]]\nname = \"a[1-65536]\"\n[[host]]\nname = \"b\"\n", `f:4:8: host[1].name: expected at most 65536 hosts in total, found more`},
		{"host and hostfile", "[launcher]\nhostfile = \"h\"\n[[host]]\nname = \"a\"\n", `f:2:12: launcher.hostfile: expected [[host]] or a hostfile, found both`},
		{"env name", "[env]\n\"A=B\" = \"1\"\n", `f:2:1: env.A=B: expected a variable's name without blanks and =, found "A=B"`},
		{"no program", "[job]\nnp = 1\n[[app]]\nnp = 1\n", "f:3:3: app[0]: expected a program, found none"},
		{"empty program", "[[app]]\nprogram = \"\"\n", `f:2:11: app[0].program: expected a package directory, a .go file or an executable, found ""`},
		{"program NUL", "[[app]]\nprogram = \"\\u0000\"\n", `f:2:11: app[0].program: expected a string without NUL, found "\x00"`},
		{"no np", app + "np = 1\n[[app]]\nprogram = \"y\"\n", "f:5:3: app[1]: expected np in each of several apps, found none"},
		{"np disagree", "[job]\nnp = 4" + app + "np = 2\n", "f:2:6: job.np: expected 2, the ranks of all apps, found 4"},
		{"np sum", "[job]\nnp = 4" + app + "np = 2\n" + app + "np = 3", "f:2:6: job.np: expected 5, the ranks of all apps, found 4"},
		{"np sum too large", app + "np = 60000\n" + app + "np = 60000", "f:6:3: app: expected from 1 to 65536 ranks in total, found 120000"},
		{"transport name", "[transport]\nuse = [\"tcp\",\n \"pigeon\"]\n", `f:3:2: transport.use[1]: expected a name out of tcp, shm, libfabric, found "pigeon"`},
		{"transport text", "[transport]\nuse = \"pigeon\"\n", `f:2:7: transport.use: expected a list of names out of tcp, shm, libfabric, found "pigeon"`},
		{"transport comma", "[transport]\nuse = [\"tcp,tcp\"]\n", `f:2:8: transport.use[0]: expected a name out of tcp, shm, libfabric, found "tcp,tcp"`},
		{"transport element", "[transport]\nuse = [1]\n", "f:2:8: transport.use[0]: expected a string, found 1"},
		{"tunable negative", "[transport.tcp]\npoll = \"-1us\"\n", `f:2:8: transport.tcp.poll: expected a duration such as 90s or 10m, not negative, found "-1us"`},
		{"tunable integer", "[engine]\ndepth = -1\n", "f:2:9: engine.depth: expected an integer, 0 or more, found -1"},
		{"algorithm", "[coll]\nallreduce.algorithm = \"rign\"\n", `f:2:23: coll.allreduce.algorithm: expected one of auto, ring, rd, found "rign"`},
		{"tunable out of range", "[engine]\neager_limit = -1\n", "f:2:15: engine.eager_limit: expected a number of bytes such as 4096, 64k or 1m, found -1"},

		// CRLF, comments and several errors, in order.
		{"CRLF", "# é\r\n[job]\r\nnp = 0\r\n", "f:3:6: job.np: expected an integer from 1 to 65536, found 0"},
		{"several", app + "np = 0\n[job]\nnq = 1\n", "f:4:6: app[0].np: expected an integer from 1 to 65536, found 0\n" + `f:6:1: job.nq: unknown key; did you mean "np"?`},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, err := decodeFile("f", []byte(test.doc))
			require.Error(t, err)
			require.Nil(t, f)
			// The rest of the message comes from package toml and is not checked.
			if test.want[len(test.want)-1] == ' ' {
				require.Contains(t, err.Error(), test.want)
				return
			}
			require.Equal(t, test.want, err.Error())
		})
	}
}

func TestDecode(t *testing.T) {
	f, err := decodeFile("f", []byte(`
job = { np = 5, timeout = "10m", tag_output = true }
[env]
B = "2"
A = "1"
[[host]]
name = "localhost"
slots = 2
[[host]]
name = "node[1-2]"
slots = 1
max_slots = 3
user = "u"
port = 22
[[host]]
name = "a"
address = "::1"
[transport]
use = ["tcp"]
tcp.poll = "1ms"
[engine]
eager_limit = "64k"
unexpected_limit = 4096
depth = 0x10
[coll.allreduce]
algorithm = "ring"
[launcher]
kind = "local"
stage_files = ["a", "b c"]
[[app]]
program = "a"
np = 2
[[app]]
program = "b"
args = ["-n", '''
3''']
np = 3
wdir = "/"
[app.env]
C = ""
`))
	require.NoError(t, err)
	require.Equal(t, []EnvVar{{"A", "1"}, {"B", "2"}}, f.env)
	require.Equal(t, []App{
		{Program: "a", NP: 2},
		{Program: "b", Args: []string{"-n", "3"}, NP: 3, Wdir: "/", Env: []EnvVar{{"C", ""}}},
	}, f.apps)
	require.ElementsMatch(t, []keyText{{"job.timeout", "10m"}, {"job.tag_output", "true"}, {"launcher.kind", "local"}, {"launcher.stage_files", "a,b c"}}, f.settings)
	require.Equal(t, []hosts.Host{
		{Name: "localhost", Slots: 2}, {Name: "node1", Slots: 1, MaxSlots: 3, User: "u", Port: 22}, {Name: "node2", Slots: 1, MaxSlots: 3, User: "u", Port: 22},
		{Name: "a", Address: "::1"},
	}, f.hosts)
	require.Equal(t, []keyText{
		{"coll.allreduce.algorithm", "ring"}, {"engine.depth", "16"}, {"engine.eager_limit", "64k"}, {"engine.unexpected_limit", "4096"},
		{"transport.tcp.poll", "1ms"}, {"transport.use", "tcp"},
	}, f.tunables)
}

func TestDecodeEmpty(t *testing.T) {
	for _, doc := range []string{"", "\n", "# nothing", "[job]", "[transport]\n[transport.tcp]\n[coll]\n", "host = []\napp = []\n"} {
		f, err := decodeFile("f", []byte(doc))
		require.NoError(t, err, doc)
		require.Empty(t, f.apps)
		require.Empty(t, f.hosts)
		require.Empty(t, f.settings)
	}
}

func TestSuggest(t *testing.T) {
	names := []string{"np", "timeout", "stdin"}
	require.Equal(t, `; did you mean "timeout"?`, suggest("time_out", names))
	require.Equal(t, `; did you mean "np"?`, suggest("pn", names))
	require.Equal(t, `; did you mean "stdin"?`, suggest("STDIN", names))
	require.Equal(t, "; expected one of np, stdin, timeout", suggest("colour", names))
	require.Empty(t, suggest("x", nil))
}
