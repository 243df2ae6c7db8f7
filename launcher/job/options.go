package job

import "cmp"

// option is one flag of gorun. Exactly one of setting, tunable and set is set.
type option struct {
	topic       string   // the topic of the help that this flag and the next ones belong to; empty: that of the flag before
	names       []string // names of the flag, without the dash
	arg         string   // name of the argument in the help; empty: the flag is a switch, without an argument
	help        string   // text in the help; empty: that of the setting
	defaultText string   // the default in the help; empty: that of the setting or the tunable
	common      bool     // gorun -h lists the flag; the other flags are only in the help of their topic
	segment     bool     // the flag may stand before each of several programs; false: only before the first one
	// adds is the separator between the joined texts of a repeated flag. If it is empty, the last
	// text overrides the others.
	adds       string
	candidates func(text string) []candidate // what completes text, the first part of the argument; nil: by arg and the value's choices
	setting    string                        // key of the setting that the flag sets; empty: none
	tunable    string                        // key in params.Table of the parameter that the flag sets; empty: none

	// set handles the flag with the argument text. It returns what is wrong with text, or "".
	set func(c *commandLine, text string) (problem string)
}

// useKey and ProviderKey are the keys of the parameters that -transport and -provider set. If the
// user gives -provider and names no transport anywhere, the transport is libfabric.
const (
	useKey      = "transport.use"
	ProviderKey = "transport.libfabric.provider"
)

// topic is a part of the help.
type topic struct{ name, title string }

// topics lists the topics in the order of the help.
var topics = []topic{
	{"programs", "Programs"},
	{"hosts", "Hosts"},
	{"placement", "Placement"},
	{"output", "Input and output"},
	{"failures", "Timeouts and failures"},
	{"starting", "Starting on other hosts"},
	{"messages", "Messages between ranks"},
	{"information", "Information"},
}

// allTopics is the name of the help with all topics.
const allTopics = "all"

// optionsOf returns the flags of a topic, in the order of the help.
func optionsOf(topic string) (list []option) {
	of := ""
	for _, o := range options {
		if of = cmp.Or(o.topic, of); of == topic {
			list = append(list, o)
		}
	}
	return list
}

// options lists the flags in the order of the help.
var options = []option{
	{topic: "programs", names: []string{"n", "np"}, common: true, arg: "N", defaultText: "1; with named hosts: their slots", segment: true, help: "number of ranks", set: (*commandLine).setRanks},
	{names: []string{"config"}, common: true, arg: "FILE", defaultText: "none", help: "read a job file (TOML); flags override it", set: (*commandLine).setConfig},
	{names: []string{"x"}, common: true, arg: "VAR[=VALUE]", defaultText: "none", segment: true, help: "set or export a variable for the ranks; repeatable", set: (*commandLine).setEnv},
	{names: []string{"wdir"}, common: true, arg: "DIR", defaultText: "gorun's", segment: true, help: "working directory of the ranks", set: (*commandLine).setWdir},
	{names: []string{"wrap"}, arg: "[RANKS:]COMMAND", defaultText: "none", setting: wrapKey, help: "start programs by a tool, such as 0:perf record -o perf.%r"},
	{names: []string{"debug"}, arg: "[RANKS:]dlv|gdb", defaultText: "none", help: "start programs by a debugger that waits for a client", set: (*commandLine).setDebug},
	{names: []string{"name"}, arg: "NAME", defaultText: "the program's", setting: "job.name", help: "name of the job in the report"},

	{topic: "hosts", names: []string{"host", "H"}, common: true, arg: "HOST[:SLOTS],…", defaultText: "this machine", help: "hosts, such as node1,node[2-4]:8; repeatable", set: (*commandLine).setHosts},
	{names: []string{"hostfile", "machinefile", "f"}, common: true, arg: "FILE", defaultText: "none", setting: hostfileKey, help: "read hosts from a file; -host then selects some of them"},
	{names: []string{"ppn"}, common: true, arg: "N", defaultText: "its cores", setting: slotsKey, help: "slots of each host: ranks that it should run"},
	{names: []string{"strict"}, setting: "job.strict"},

	{topic: "placement", names: []string{"map-by"}, common: true, arg: "RULE", setting: "job.map_by", help: "place by slot, node, core, numa or ppr:N:node|core|numa"},
	{names: []string{"rank-by"}, arg: "slot|node", setting: "job.rank_by", help: "number ranks as placed, or round-robin over the hosts"},
	{names: []string{"rankfile"}, arg: "FILE", defaultText: "none", setting: "job.rankfile", help: "read the host and cores of each rank from a file"},
	{names: []string{"bind-to"}, common: true, arg: "none|core|numa", setting: "job.bind"},
	{names: []string{"gomaxprocs"}, arg: "N", defaultText: "its share of the cores, at least 2", setting: "job.gomaxprocs", help: "GOMAXPROCS of each rank"},

	{topic: "output", names: []string{"stdin"}, arg: "rank0|all|none", setting: "job.stdin"},
	{names: []string{"tag-output"}, common: true, setting: "job.tag_output"},
	{names: []string{"output"}, common: true, arg: "DIR", defaultText: "the terminal", setting: "job.output", help: "write output to DIR/RANK.out and DIR/RANK.err"},
	{names: []string{"tee"}, setting: "job.tee", help: "with -output, write output also to the terminal"},
	{names: []string{"report"}, arg: "FILE", defaultText: "none", setting: "job.report", help: "write a report of the job, in JSON"},
	{names: []string{"stats"}, common: true, setting: "job.stats", help: "print statistics of calls and messages at the end"},
	{names: []string{"stats-dir"}, arg: "DIR", defaultText: "none", setting: statsDirKey, help: "write statistics and pictures of the messages to DIR"},
	{names: []string{"progress"}, setting: "job.progress", help: "show what the ranks do in a line on the terminal"},
	{names: []string{"metrics"}, arg: "HOST:PORT", defaultText: "none", setting: "job.metrics", help: "serve metrics of the running job, for Prometheus"},
	{names: []string{"ui"}, common: true, arg: "[HOST]:PORT", defaultText: "none", setting: "job.ui", help: "serve a live page of the job; :0 chooses a port"},
	{names: []string{"stacks-dir"}, arg: "DIR", defaultText: "none", setting: stacksKey, help: "write goroutine stacks to DIR/RANK.stacks; see -stacks"},
	{names: []string{"profile"}, arg: "KIND,…", defaultText: "none", setting: "job.profile", help: "merge pprof profiles of all ranks: cpu, heap, block, …"},
	{names: []string{"profile-dir"}, arg: "DIR", setting: "job.profile_dir", help: "write profiles to DIR/weft-JOB.KIND.pprof"},

	{names: []string{"trace"}, common: true, arg: "FILE", defaultText: "none", setting: "job.trace", help: "write a trace of all calls and messages, for ui.perfetto.dev"},
	{names: []string{"trace-format"}, arg: "FORMAT", setting: "job.trace_format", help: "perfetto, chrome, or auto: chrome if FILE ends in .json"},

	{topic: "failures", names: []string{"timeout"}, common: true, arg: "DURATION", defaultText: "never", setting: "job.timeout", help: "end the job after this time, with exit code 124"},
	{names: []string{"grace"}, arg: "DURATION", setting: "job.grace"},
	{names: []string{"on-failure"}, common: true, arg: "abort|notify|restart", setting: "job.on_failure", help: "end the job, tell the other ranks, or restart the job"},
	{names: []string{"max-restarts"}, arg: "N", setting: "job.max_restarts", help: "maximum number of restarts with -on-failure restart"},

	{topic: "starting", names: []string{"launcher"}, common: true, arg: "HOW", setting: "launcher.kind", help: "auto, local, ssh, slurm (srun), or dial (agents connect)"},
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

	{topic: "messages", names: []string{"transport"}, common: true, arg: "NAME,…", tunable: useKey, help: "transports in order of preference"},
	{names: []string{"iface"}, arg: "NAME", defaultText: "the first usable", tunable: "transport.tcp.interface", help: "interface, address or subnet of tcp"},
	{names: []string{"provider"}, arg: "NAME", defaultText: "the first suitable", tunable: ProviderKey, help: "libfabric provider, such as tcp;ofi_rxm"},
	{names: []string{"p"}, common: true, arg: "KEY=VALUE", defaultText: "none", help: "set a tunable that -info lists; repeatable", candidates: tunables, set: (*commandLine).setTunable},

	{topic: "information", names: []string{"dry-run"}, common: true, help: "print the job, its placement and its settings; start nothing", set: action(DryRun)},
	{names: []string{"stacks"}, common: true, arg: "JOB", defaultText: "none", help: "print what the ranks of a job (id or gorun's pid) do", set: jobAction(Stacks)},
	{names: []string{"ps"}, common: true, help: "list the running jobs of this user on this host", set: action(PS)},
	{names: []string{"top"}, common: true, arg: "JOB", defaultText: "none", help: "show what the ranks of a running job do, again and again", set: jobAction(Top)},
	{names: []string{"stop"}, arg: "JOB", common: true, defaultText: "none", help: "end a running job, as SIGTERM to its gorun does", set: jobAction(Stop)},
	{names: []string{"info"}, common: true, help: "print all settings; -info WORD: those with WORD in their name", set: action(Info)},
	{names: []string{"v"}, common: true, help: "report each step of gorun and of the ranks on stderr", set: (*commandLine).setVerbose},
	{names: []string{"completion"}, arg: "SHELL", defaultText: "none", help: "print the completion for bash, zsh or fish", candidates: shellCandidates, set: (*commandLine).setCompletion},
	{names: []string{"man"}, help: "print the manual page, for man -l -", set: action(Man)},
	{names: []string{"version"}, help: "print the version, and the hash of the executable", set: action(Version)},
	{names: []string{"h", "help"}, common: true, help: "print this help; -help TOPIC: all flags of a topic", set: action(Help)},
}
