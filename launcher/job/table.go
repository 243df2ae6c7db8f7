package job

import (
	"strconv"
	"strings"
	"time"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
)

// settings lists all settings in the order in which -dry-run prints them.
var settings = []setting{
	{
		Param: params.Param{Key: "job.name", Kind: params.String, Help: "name of the job in the report; empty: the base name of the first program"},
		apply: func(j *Job, s string) { j.Name = s },
		value: func(j *Job) string { return j.Name },
	},
	{
		Param: params.Param{Key: "job.timeout", Kind: params.Duration, Default: "0s", Help: "end the job after this time, with exit code 124; 0s: never"},
		apply: func(j *Job, s string) { j.Timeout = duration(s) },
		value: func(j *Job) string { return j.Timeout.String() },
	},
	{
		Param: params.Param{Key: "job.grace", Kind: params.Duration, Default: "1s", Help: "time between SIGTERM and SIGKILL when gorun ends a job"},
		apply: func(j *Job, s string) { j.Grace = duration(s) },
		value: func(j *Job) string { return j.Grace.String() },
	},
	{
		Param: params.Param{Key: "job.on_failure", Kind: params.String, Default: string(FailAbort), Choices: []string{string(FailAbort), string(FailNotify), string(FailRestart)},
			Help: "if a rank fails: end the job (abort), tell the other ranks and continue (notify), or restart the job (restart)"},
		apply: func(j *Job, s string) { j.OnFailure = OnFailure(s) },
		value: func(j *Job) string { return string(j.OnFailure) },
	},
	{
		Param: params.Param{Key: "job.max_restarts", Kind: params.Int, Default: "3",
			Help: "maximum number of restarts, with on_failure restart"},
		max:   1 << 16,
		apply: func(j *Job, s string) { j.MaxRestarts = integer(s) },
		value: func(j *Job) string { return strconv.Itoa(j.MaxRestarts) },
	},
	{
		Param: params.Param{Key: "job.stdin", Kind: params.String, Default: string(StdinRank0), Choices: []string{string(StdinRank0), string(StdinAll), string(StdinNone)},
			Help: "ranks that read gorun's standard input"},
		apply: func(j *Job, s string) { j.Stdin = Stdin(s) },
		value: func(j *Job) string { return string(j.Stdin) },
	},
	{
		Param: params.Param{Key: "job.tag_output", Kind: params.Bool, Default: "false", Help: "begin each line of output with the rank that wrote it"},
		apply: func(j *Job, s string) { j.TagOutput = params.IsTrue(s) },
		value: func(j *Job) string { return strconv.FormatBool(j.TagOutput) },
	},
	{
		Param: params.Param{Key: "job.output", Kind: params.String, Help: "directory for the ranks' output, in files RANK.out and RANK.err; empty: the terminal"},
		apply: func(j *Job, s string) { j.OutputDir = s },
		value: func(j *Job) string { return j.OutputDir },
	},
	{
		Param: params.Param{Key: "job.tee", Kind: params.Bool, Default: "false", Help: "with job.output, write the ranks' output also to the terminal"},
		apply: func(j *Job, s string) { j.Tee = params.IsTrue(s) },
		value: func(j *Job) string { return strconv.FormatBool(j.Tee) },
	},
	{
		Param: params.Param{Key: "job.report", Kind: params.String,
			Help: "file for a report of the job, in JSON; empty: none"},
		want:  wantReport,
		apply: func(j *Job, s string) { j.Report = s },
		value: func(j *Job) string { return j.Report },
	},
	{
		Param: params.Param{Key: "job.stats", Kind: params.Bool, Default: "false", Help: "print statistics of calls and messages at the end of the job"},
		apply: func(j *Job, s string) { j.Stats = params.IsTrue(s) },
		value: func(j *Job) string { return strconv.FormatBool(j.Stats) },
	},
	{
		Param: params.Param{Key: statsDirKey, Kind: params.String,
			Help: "directory for statistics, in files stats.json, matrix.svg and matrix.png; empty: no files"},
		apply: func(j *Job, s string) { j.StatsDir = s },
		value: func(j *Job) string { return j.StatsDir },
	},
	{
		Param: params.Param{Key: "job.progress", Kind: params.Bool, Default: "false", Help: "show what the ranks do in a line on the terminal"},
		apply: func(j *Job, s string) { j.Progress = params.IsTrue(s) },
		value: func(j *Job) string { return strconv.FormatBool(j.Progress) },
	},
	{
		Param: params.Param{Key: "job.metrics", Kind: params.String,
			Help: "HOST:PORT of a server with metrics of the running job for Prometheus; empty host: loopback; empty: none"},
		want:  wantListen,
		apply: func(j *Job, s string) { j.Metrics = s },
		value: func(j *Job) string { return j.Metrics },
	},
	{
		Param: params.Param{Key: "job.ui", Kind: params.String,
			Help: "HOST:PORT of a server with a live page of the job; empty host: loopback; port 0: any; empty: none"},
		want:  wantListen,
		apply: func(j *Job, s string) { j.UI = s },
		value: func(j *Job) string { return j.UI },
	},
	{
		Param: params.Param{Key: stacksKey, Kind: params.String,
			Help: "directory for the stacks of all goroutines, in files RANK.stacks, when gorun reports what the ranks do; empty: none"},
		apply: func(j *Job, s string) { j.StacksDir = s },
		value: func(j *Job) string { return j.StacksDir },
	},
	{
		Param: params.Param{Key: "job.profile", Kind: params.List, Choices: wire.ProfileKinds,
			Help: "profiles of all ranks that gorun collects and merges; empty: none"},
		apply: func(j *Job, s string) { j.Profile = distinct(elements(s)) },
		value: func(j *Job) string { return strings.Join(j.Profile, ",") },
	},
	{
		Param: params.Param{Key: "job.profile_dir", Kind: params.String, Default: ".",
			Help: "directory for the merged profiles, in files weft-JOB.KIND.pprof"},
		apply: func(j *Job, s string) { j.ProfileDir = s },
		value: func(j *Job) string { return j.ProfileDir },
	},
	{
		Param: params.Param{Key: "job.trace", Kind: params.String,
			Help: "file for a trace of the calls and messages of all ranks, for ui.perfetto.dev; empty: none"},
		want:  wantReport,
		apply: func(j *Job, s string) { j.Trace = s },
		value: func(j *Job) string { return j.Trace },
	},
	{
		Param: params.Param{Key: "job.trace_format", Kind: params.String, Default: string(TraceAuto), Choices: []string{string(TraceAuto), string(TracePerfetto), string(TraceChrome)},
			Help: "format of the trace: perfetto, chrome (JSON), or chrome if the file's name ends in .json and otherwise perfetto (auto)"},
		apply: func(j *Job, s string) { j.TraceFormat = TraceFormat(s) },
		value: func(j *Job) string { return string(j.TraceFormat) },
	},
	{
		Param: params.Param{Key: "job.map_by", Kind: params.String, Default: "slot",
			Help: "rule that places ranks: by slot, node, core or numa, or N ranks on each node, core or NUMA domain by ppr:N:node|core|numa"},
		want:  wantMapBy,
		apply: func(j *Job, s string) { j.MapBy = s },
		value: func(j *Job) string { return j.MapBy },
	},
	{
		Param: params.Param{Key: "job.rank_by", Kind: params.String, Default: "slot", Choices: []string{"slot", "node"},
			Help: "number ranks in the order in which map_by places them (slot), or round-robin over the hosts (node)"},
		apply: func(j *Job, s string) { j.RankBy = s },
		value: func(j *Job) string { return j.RankBy },
	},
	{
		Param: params.Param{Key: "job.rankfile", Kind: params.String,
			Help: "file with the host and cores of each rank, instead of map_by, rank_by and bind; empty: none"},
		besideFile: true,
		apply:      func(j *Job, s string) { j.Rankfile = s },
		value:      func(j *Job) string { return j.Rankfile },
	},
	{
		Param: params.Param{Key: "job.bind", Kind: params.String, Default: string(BindNone), Choices: []string{string(BindNone), string(BindCore), string(BindNUMA)},
			Help: "bind each rank to a core, to a NUMA domain, or not at all"},
		apply: func(j *Job, s string) { j.Bind = Bind(s) },
		value: func(j *Job) string { return string(j.Bind) },
	},
	{
		Param: params.Param{Key: wrapKey, Kind: params.String,
			Help: "command, such as a debugger or a profiler, in whose arguments the programs of ranks are started; 0,3-5:COMMAND: only of these ranks; empty: none"},
		want:  wantWrap,
		apply: func(j *Job, s string) { j.Wrap = s },
		value: func(j *Job) string { return j.Wrap },
	},
	{
		Param: params.Param{Key: "job.gomaxprocs", Kind: params.Int, Default: "0", Help: "GOMAXPROCS of each rank; 0: its share of the cores, at least 2"},
		max:   1 << 16,
		apply: func(j *Job, s string) { j.GOMAXPROCS = integer(s) },
		value: func(j *Job) string { return strconv.Itoa(j.GOMAXPROCS) },
	},
	{
		Param: params.Param{Key: "job.strict", Kind: params.Bool, Default: "false", Help: "make more ranks than slots an error instead of a warning"},
		apply: func(j *Job, s string) { j.StrictSlot = params.IsTrue(s) },
		value: func(j *Job) string { return strconv.FormatBool(j.StrictSlot) },
	},
	{
		Param: params.Param{Key: "job.slots", Kind: params.Int, Default: "0", Help: "slots of each host: the number of ranks that it should run; 0: its number of cores"},
		max:   MaxRanks,
		apply: func(j *Job, s string) { j.Slots = integer(s) },
		value: func(j *Job) string { return strconv.Itoa(j.Slots) },
	},
	{
		Param: params.Param{Key: "launcher.kind", Kind: params.String, Default: string(LaunchAuto), Choices: []string{
			string(LaunchAuto), string(LaunchLocal), string(LaunchSSH), string(LaunchSlurm), string(LaunchDial)},
			Help: "how gorun is started on other hosts; auto: dial with launcher.listen, slurm in an allocation of Slurm, else ssh"},
		apply: func(j *Job, s string) { j.Launcher = Launcher(s) },
		value: func(j *Job) string { return string(j.Launcher) },
	},
	{
		Param: params.Param{Key: "launcher.hostfile", Kind: params.String,
			Help: "file with the hosts to run on; empty: none"},
		besideFile: true,
		apply:      func(j *Job, s string) { j.Hostfile = s },
		value:      func(j *Job) string { return j.Hostfile },
	},
	{
		Param: params.Param{Key: "launcher.ssh", Kind: params.String, Default: "ssh",
			Help: "ssh command with arguments"},
		want:  wantCommand,
		apply: func(j *Job, s string) { j.SSH = s },
		value: func(j *Job) string { return j.SSH },
	},
	{
		Param: params.Param{Key: "launcher.slurm_args", Kind: params.String,
			Help: "more arguments of srun; empty: none"},
		want:  wantArguments,
		apply: func(j *Job, s string) { j.SlurmArgs = wordsOf(s) },
		value: func(j *Job) string { return joinWords(j.SlurmArgs) },
	},
	{
		Param: params.Param{Key: "launcher.radix", Kind: params.Int, Default: "64",
			Help: "number of hosts that gorun, and each host in turn, connects with"},
		min: 1, max: hosts.Limit,
		apply: func(j *Job, s string) { j.Radix = integer(s) },
		value: func(j *Job) string { return strconv.Itoa(j.Radix) },
	},
	{
		Param: params.Param{Key: "launcher.at_once", Kind: params.Int, Default: "32",
			Help: "number of connections that a host makes at the same time"},
		min: 1, max: hosts.Limit,
		apply: func(j *Job, s string) { j.AtOnce = integer(s) },
		value: func(j *Job) string { return strconv.Itoa(j.AtOnce) },
	},
	{
		Param: params.Param{Key: "launcher.connect_timeout", Kind: params.Duration, Default: "10s",
			Help: "time limit for a host to answer"},
		shortest: time.Millisecond,
		apply:    func(j *Job, s string) { j.ConnectTimeout = duration(s) },
		value:    func(j *Job) string { return j.ConnectTimeout.String() },
	},
	{
		Param: params.Param{Key: "launcher.heartbeat", Kind: params.Duration, Default: "5s",
			Help: "time without a message after which a host counts as lost"},
		shortest: 100 * time.Millisecond,
		apply:    func(j *Job, s string) { j.Heartbeat = duration(s) },
		value:    func(j *Job) string { return j.Heartbeat.String() },
	},
	{
		Param: params.Param{Key: "launcher.agent_path", Kind: params.String,
			Help: "path of gorun on the hosts; empty: gorun searches for itself there, or copies itself there"},
		apply: func(j *Job, s string) { j.AgentPath = s },
		value: func(j *Job) string { return j.AgentPath },
	},
	{
		Param: params.Param{Key: "launcher.stage", Kind: params.Bool, Default: "false",
			Help: "copy executables to hosts that do not have them"},
		apply: func(j *Job, s string) { j.Stage = params.IsTrue(s) },
		value: func(j *Job) string { return strconv.FormatBool(j.Stage) },
	},
	{
		Param: params.Param{Key: "launcher.stage_files", Kind: params.List,
			Help: "more files to copy to the hosts; empty: none"},
		apply: func(j *Job, s string) { j.StageFiles = elements(s) },
		value: func(j *Job) string { return strings.Join(j.StageFiles, ",") },
	},
	{
		Param: params.Param{Key: portsKey, Kind: params.String,
			Help: "TCP ports that ranks listen on, such as 20000-20999; empty: any"},
		want:  wantPorts,
		apply: func(j *Job, s string) { j.Ports, _ = parsePorts(s) },
		value: func(j *Job) string { return j.Ports.String() },
	},
	{
		Param: params.Param{Key: "launcher.listen", Kind: params.String,
			Help: "HOST:PORT on which gorun waits for agents that someone else starts on the hosts; empty: none"},
		want:  wantListen,
		apply: func(j *Job, s string) { j.Listen = s },
		value: func(j *Job) string { return j.Listen },
	},
	{
		Param: params.Param{Key: "launcher.secret_file", Kind: params.String,
			Help: "file with the secret that agents must know to connect; empty: none"},
		besideFile: true,
		apply:      func(j *Job, s string) { j.SecretFile = s },
		value:      func(j *Job) string { return j.SecretFile },
	},
	{
		Param: params.Param{Key: "launcher.agents", Kind: params.Int, Default: "0",
			Help: "number of agents to wait for; 0: one for each named host"},
		max:   hosts.Limit,
		apply: func(j *Job, s string) { j.Agents = integer(s) },
		value: func(j *Job) string { return strconv.Itoa(j.Agents) },
	},
}

// joinWords returns words as one text, quoted so that wordsOf returns them from it.
func joinWords(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return shellJoin(words)
}
