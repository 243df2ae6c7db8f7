package job

// option is one flag of gorun. Those of a setting or a tunable only hand its
// text on; the others act on the command line themselves.
type option struct {
	group       string   // heads the help of this one and those that follow; empty: goes on
	names       []string // without the dash; the first is the one in messages
	arg         string   // what the help calls the argument; empty: a switch
	help        string   // empty: that of the setting
	defaultText string   // what the help says of the default, where the text of the setting's does not say it
	segment     bool     // allowed in each segment of an MPMD command line
	adds        string   // between the texts of several occurrences; empty: the last one counts
	setting     string
	tunable     string
	set         func(c *commandLine, text string) (problem string)
}

// useKey and providerKey are tunables that a flag sets together: who names a
// provider and no transport means libfabric.
const (
	useKey      = "transport.use"
	providerKey = "transport.libfabric.provider"
)

// options lists the flags in the order of the help.
var options = []option{
	{group: "Programs", names: []string{"n", "np"}, arg: "N", defaultText: "1, or the hosts' slots", segment: true, help: "ranks of the program", set: (*commandLine).setRanks},
	{names: []string{"config"}, arg: "FILE", defaultText: "none", help: "read a job file (TOML); flags override what it says", set: (*commandLine).setConfig},
	{names: []string{"x"}, arg: "VAR[=VALUE]", defaultText: "none", segment: true, help: "set a rank's variable, or pass on gorun's; repeatable", set: (*commandLine).setEnv},
	{names: []string{"wdir"}, arg: "DIR", defaultText: "gorun's", segment: true, help: "working directory of the ranks", set: (*commandLine).setWdir},
	{names: []string{"name"}, arg: "NAME", defaultText: "the program's", setting: "job.name", help: "name of the job in messages and file names"},

	{group: "Hosts", names: []string{"host", "H"}, arg: "HOST[:SLOTS],…", defaultText: "this machine", help: "where ranks run; node[1-4]:8 is four; repeatable", set: (*commandLine).setHosts},
	{names: []string{"hostfile", "machinefile", "f"}, arg: "FILE", defaultText: "none", setting: hostfileKey, help: "file with a host in each line; -host picks some of them"},
	{names: []string{"ppn"}, arg: "N", defaultText: "its cores", setting: slotsKey, help: "ranks that each host is meant to take: its slots"},
	{names: []string{"strict"}, setting: "job.strict"},

	{group: "Which rank runs where", names: []string{"map-by"}, arg: "RULE", setting: "job.map_by", help: "slot, node, core, numa, or ppr:N:node|core|numa"},
	{names: []string{"rank-by"}, arg: "slot|node", setting: "job.rank_by", help: "number ranks as they are laid, or around the hosts"},
	{names: []string{"rankfile"}, arg: "FILE", defaultText: "none", setting: "job.rankfile", help: "a host and cores for each rank, instead of these rules"},
	{names: []string{"bind-to"}, arg: "none|core|numa", setting: "job.bind"},
	{names: []string{"gomaxprocs"}, arg: "N", defaultText: "its share of the cores, at least 2", setting: "job.gomaxprocs", help: "GOMAXPROCS of each rank"},

	{group: "Input and output", names: []string{"stdin"}, arg: "rank0|all|none", setting: "job.stdin"},
	{names: []string{"tag-output"}, setting: "job.tag_output"},
	{names: []string{"output"}, arg: "DIR", defaultText: "the terminal", setting: "job.output", help: "write DIR/RANK.out and DIR/RANK.err"},
	{names: []string{"report"}, arg: "FILE", defaultText: "none", setting: "job.report", help: "write a report, in JSON, of how the job went"},
	{names: []string{"stacks-dir"}, arg: "DIR", defaultText: "none", setting: stacksKey, help: "write DIR/RANK.stacks when gorun says what the ranks do"},

	{group: "When the job ends", names: []string{"timeout"}, arg: "DURATION", defaultText: "never", setting: "job.timeout", help: "end the job after this long, with exit code 124"},
	{names: []string{"grace"}, arg: "DURATION", setting: "job.grace"},
	{names: []string{"on-failure"}, arg: "abort|notify|restart", setting: "job.on_failure", help: "end the job, tell the other ranks, or begin anew"},
	{names: []string{"max-restarts"}, arg: "N", setting: "job.max_restarts", help: "how often -on-failure restart begins anew at most"},

	{group: "Starting on other hosts", names: []string{"launcher"}, arg: "HOW", setting: "launcher.kind", help: "auto, local, ssh, slurm (srun), or dial: they connect"},
	{names: []string{"ssh"}, arg: "COMMAND", setting: "launcher.ssh", help: "ssh with arguments, quoted as for a shell"},
	{names: []string{"slurm-args"}, arg: "ARGS", defaultText: "none", adds: " ", setting: "launcher.slurm_args", help: "arguments of srun, quoted as for a shell; repeatable"},
	{names: []string{"radix"}, arg: "N", setting: "launcher.radix", help: "other hosts that each host connects with"},
	{names: []string{"at-once"}, arg: "N", setting: "launcher.at_once", help: "connections that each makes at the same time"},
	{names: []string{"connect-timeout"}, arg: "DURATION", setting: "launcher.connect_timeout"},
	{names: []string{"heartbeat"}, arg: "DURATION", setting: "launcher.heartbeat"},
	{names: []string{"agent-path"}, arg: "PATH", defaultText: "found or copied", setting: "launcher.agent_path", help: "where gorun is on the hosts"},
	{names: []string{"stage"}, setting: "launcher.stage"},
	{names: []string{"stage-files"}, arg: "FILE,…", defaultText: "none", adds: ",", setting: "launcher.stage_files", help: "more files to copy to the hosts; repeatable"},
	{names: []string{"ports"}, arg: "LOW-HIGH", defaultText: "any", setting: "launcher.ports", help: "tcp ports that ranks listen on"},
	{names: []string{"listen"}, arg: "HOST:PORT", defaultText: "none", setting: "launcher.listen", help: "where gorun on other hosts connects, with -launcher dial"},
	{names: []string{"secret-file"}, arg: "FILE", defaultText: "none", setting: "launcher.secret_file", help: "what proves that who connects belongs to the job"},
	{names: []string{"agents"}, arg: "N", defaultText: "not said", setting: "launcher.agents", help: "how many hosts connect"},

	{group: "Messages between ranks", names: []string{"transport"}, arg: "NAME,…", tunable: useKey, help: "transports in order of preference"},
	{names: []string{"iface"}, arg: "NAME", defaultText: "the first that will do", tunable: "transport.tcp.interface", help: "interface, address or subnet of tcp"},
	{names: []string{"provider"}, arg: "NAME", defaultText: "the first that suits", tunable: providerKey, help: "libfabric's, such as tcp;ofi_rxm"},
	{names: []string{"p"}, arg: "KEY=VALUE", defaultText: "none", help: "set any tunable that -info lists; repeatable", set: (*commandLine).setTunable},

	{group: "Asking", names: []string{"dry-run"}, help: "print the job, and where each value came from; start nothing", set: action(DryRun)},
	{names: []string{"stacks"}, arg: "JOB", defaultText: "none", help: "print what a running job does: its id, or gorun's pid", set: (*commandLine).setStacks},
	{names: []string{"info"}, help: "print what can be set, or of it what has WORD in its name", set: action(Info)},
	{names: []string{"v"}, help: "tell on stderr, step by step, what gorun and the ranks do", set: (*commandLine).setVerbose},
	{names: []string{"version"}, help: "print the version, and the hash of the executable", set: action(Version)},
	{names: []string{"h", "help"}, help: "print this help", set: action(Help)},
}
