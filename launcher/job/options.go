package job

// option is one flag of gorun. Exactly one of setting, tunable and set is set.
type option struct {
	group       string   // the title over this flag and the next ones in the help; empty: no new title
	names       []string // names of the flag, without the dash
	arg         string   // name of the argument in the help; empty: the flag is a switch, without an argument
	help        string   // text in the help; empty: that of the setting
	defaultText string   // the default in the help; empty: that of the setting or the tunable
	segment     bool     // the flag may stand before each of several programs; false: only before the first one
	// adds is the separator between the joined texts of a repeated flag. If it is empty, the last
	// text overrides the others.
	adds    string
	setting string // key of the setting that the flag sets; empty: none
	tunable string // key in params.Table of the parameter that the flag sets; empty: none

	// set handles the flag with the argument text. It returns what is wrong with text, or "".
	set func(c *commandLine, text string) (problem string)
}

// useKey and providerKey are the keys of the parameters that -transport and -provider set. If the
// user gives -provider and names no transport anywhere, the transport is libfabric.
const (
	useKey      = "transport.use"
	providerKey = "transport.libfabric.provider"
)

// options lists the flags in the order of the help.
var options = []option{
	{group: "Programs", names: []string{"n", "np"}, arg: "N", defaultText: "1; with named hosts: their slots", segment: true, help: "number of ranks", set: (*commandLine).setRanks},
	{names: []string{"config"}, arg: "FILE", defaultText: "none", help: "read a job file (TOML); flags override it", set: (*commandLine).setConfig},
	{names: []string{"x"}, arg: "VAR[=VALUE]", defaultText: "none", segment: true, help: "set or export a variable for the ranks; repeatable", set: (*commandLine).setEnv},
	{names: []string{"wdir"}, arg: "DIR", defaultText: "gorun's", segment: true, help: "working directory of the ranks", set: (*commandLine).setWdir},
	{names: []string{"name"}, arg: "NAME", defaultText: "the program's", setting: "job.name", help: "name of the job in the report"},

	{group: "Hosts", names: []string{"host", "H"}, arg: "HOST[:SLOTS],…", defaultText: "this machine", help: "hosts, such as node1,node[2-4]:8; repeatable", set: (*commandLine).setHosts},
	{names: []string{"hostfile", "machinefile", "f"}, arg: "FILE", defaultText: "none", setting: hostfileKey, help: "read hosts from a file; -host then selects some of them"},
	{names: []string{"ppn"}, arg: "N", defaultText: "its cores", setting: slotsKey, help: "slots of each host: ranks that it should run"},
	{names: []string{"strict"}, setting: "job.strict"},

	{group: "Placement", names: []string{"map-by"}, arg: "RULE", setting: "job.map_by", help: "place by slot, node, core, numa or ppr:N:node|core|numa"},
	{names: []string{"rank-by"}, arg: "slot|node", setting: "job.rank_by", help: "number ranks as placed, or round-robin over the hosts"},
	{names: []string{"rankfile"}, arg: "FILE", defaultText: "none", setting: "job.rankfile", help: "read the host and cores of each rank from a file"},
	{names: []string{"bind-to"}, arg: "none|core|numa", setting: "job.bind"},
	{names: []string{"gomaxprocs"}, arg: "N", defaultText: "its share of the cores, at least 2", setting: "job.gomaxprocs", help: "GOMAXPROCS of each rank"},

	{group: "Input and output", names: []string{"stdin"}, arg: "rank0|all|none", setting: "job.stdin"},
	{names: []string{"tag-output"}, setting: "job.tag_output"},
	{names: []string{"output"}, arg: "DIR", defaultText: "the terminal", setting: "job.output", help: "write output to DIR/RANK.out and DIR/RANK.err"},
	{names: []string{"report"}, arg: "FILE", defaultText: "none", setting: "job.report", help: "write a report of the job, in JSON"},
	{names: []string{"stacks-dir"}, arg: "DIR", defaultText: "none", setting: stacksKey, help: "write goroutine stacks to DIR/RANK.stacks; see -stacks"},

	{group: "Timeouts and failures", names: []string{"timeout"}, arg: "DURATION", defaultText: "never", setting: "job.timeout", help: "end the job after this time, with exit code 124"},
	{names: []string{"grace"}, arg: "DURATION", setting: "job.grace"},
	{names: []string{"on-failure"}, arg: "abort|notify|restart", setting: "job.on_failure", help: "end the job, tell the other ranks, or restart the job"},
	{names: []string{"max-restarts"}, arg: "N", setting: "job.max_restarts", help: "maximum number of restarts with -on-failure restart"},

	{group: "Starting on other hosts", names: []string{"launcher"}, arg: "HOW", setting: "launcher.kind", help: "auto, local, ssh, slurm (srun), or dial (agents connect)"},
	{names: []string{"ssh"}, arg: "COMMAND", setting: "launcher.ssh", help: "ssh command with arguments, quoted as in a shell"},
	{names: []string{"slurm-args"}, arg: "ARGS", defaultText: "none", adds: " ", setting: "launcher.slurm_args", help: "arguments of srun, quoted as in a shell; repeatable"},
	{names: []string{"radix"}, arg: "N", setting: "launcher.radix", help: "number of hosts that each host connects with"},
	{names: []string{"at-once"}, arg: "N", setting: "launcher.at_once", help: "number of connections that a host makes concurrently"},
	{names: []string{"connect-timeout"}, arg: "DURATION", setting: "launcher.connect_timeout"},
	{names: []string{"heartbeat"}, arg: "DURATION", setting: "launcher.heartbeat"},
	{names: []string{"agent-path"}, arg: "PATH", defaultText: "found or copied", setting: "launcher.agent_path", help: "path of gorun on the hosts"},
	{names: []string{"stage"}, setting: "launcher.stage"},
	{names: []string{"stage-files"}, arg: "FILE,…", defaultText: "none", adds: ",", setting: "launcher.stage_files", help: "copy more files to the hosts; repeatable"},
	{names: []string{"ports"}, arg: "LOW-HIGH", defaultText: "any", setting: "launcher.ports", help: "TCP ports that ranks listen on"},
	{names: []string{"listen"}, arg: "HOST:PORT", defaultText: "none", setting: "launcher.listen", help: "wait here for agents, with -launcher dial"},
	{names: []string{"secret-file"}, arg: "FILE", defaultText: "none", setting: "launcher.secret_file", help: "secret that agents must know, with -listen"},
	{names: []string{"agents"}, arg: "N", defaultText: "one per named host", setting: "launcher.agents", help: "number of agents to wait for, with -listen"},

	{group: "Messages between ranks", names: []string{"transport"}, arg: "NAME,…", tunable: useKey, help: "transports in order of preference"},
	{names: []string{"iface"}, arg: "NAME", defaultText: "the first usable", tunable: "transport.tcp.interface", help: "interface, address or subnet of tcp"},
	{names: []string{"provider"}, arg: "NAME", defaultText: "the first suitable", tunable: providerKey, help: "libfabric provider, such as tcp;ofi_rxm"},
	{names: []string{"p"}, arg: "KEY=VALUE", defaultText: "none", help: "set a tunable that -info lists; repeatable", set: (*commandLine).setTunable},

	{group: "Information", names: []string{"dry-run"}, help: "print the job, its placement and its settings; start nothing", set: action(DryRun)},
	{names: []string{"stacks"}, arg: "JOB", defaultText: "none", help: "print what the ranks of a job (id or gorun's pid) do", set: (*commandLine).setStacks},
	{names: []string{"info"}, help: "print all settings; -info WORD: those with WORD in their name", set: action(Info)},
	{names: []string{"v"}, help: "report each step of gorun and of the ranks on stderr", set: (*commandLine).setVerbose},
	{names: []string{"version"}, help: "print the version, and the hash of the executable", set: action(Version)},
	{names: []string{"h", "help"}, help: "print this help", set: action(Help)},
}
