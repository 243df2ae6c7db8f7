package job

import (
	"strconv"
	"strings"
	"time"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
)

// settings lists them in the order in which -dry-run prints them.
var settings = []setting{
	{
		Param: params.Param{Key: "job.name", Kind: params.String, Help: "name of the job, for messages and file names; empty: the first program's base name"},
		apply: func(j *Job, s string) { j.Name = s },
		value: func(j *Job) string { return j.Name },
	},
	{
		Param: params.Param{Key: "job.timeout", Kind: params.Duration, Default: "0s", Help: "end the job after this long, with exit code 124; 0s: never"},
		apply: func(j *Job, s string) { j.Timeout = duration(s) },
		value: func(j *Job) string { return j.Timeout.String() },
	},
	{
		Param: params.Param{Key: "job.grace", Kind: params.Duration, Default: "1s", Help: "when a job is ended, the time between SIGTERM and SIGKILL"},
		apply: func(j *Job, s string) { j.Grace = duration(s) },
		value: func(j *Job) string { return j.Grace.String() },
	},
	{
		Param: params.Param{Key: "job.on_failure", Kind: params.String, Default: string(FailAbort), Choices: []string{string(FailAbort), string(FailNotify), string(FailRestart)},
			Help: "when a rank fails: end the job (abort), tell the others, who go on (notify), or begin anew (restart)"},
		apply: func(j *Job, s string) { j.OnFailure = OnFailure(s) },
		value: func(j *Job) string { return string(j.OnFailure) },
	},
	{
		Param: params.Param{Key: "job.max_restarts", Kind: params.Int, Default: "3",
			Help: "how often a job begins anew at most, with on_failure restart"},
		max:   1 << 16,
		apply: func(j *Job, s string) { j.MaxRestarts = integer(s) },
		value: func(j *Job) string { return strconv.Itoa(j.MaxRestarts) },
	},
	{
		Param: params.Param{Key: "job.stdin", Kind: params.String, Default: string(StdinRank0), Choices: []string{string(StdinRank0), string(StdinAll), string(StdinNone)},
			Help: "who reads gorun's standard input"},
		apply: func(j *Job, s string) { j.Stdin = Stdin(s) },
		value: func(j *Job) string { return string(j.Stdin) },
	},
	{
		Param: params.Param{Key: "job.tag_output", Kind: params.Bool, Default: "false", Help: "begin each line of output with the rank it came from"},
		apply: func(j *Job, s string) { j.TagOutput = params.IsTrue(s) },
		value: func(j *Job) string { return strconv.FormatBool(j.TagOutput) },
	},
	{
		Param: params.Param{Key: "job.output", Kind: params.String, Help: "directory for files RANK.out and RANK.err instead of the terminal"},
		apply: func(j *Job, s string) { j.OutputDir = s },
		value: func(j *Job) string { return j.OutputDir },
	},
	{
		Param: params.Param{Key: "job.report", Kind: params.String,
			Help: "file for a report, in JSON, of how the job went; empty: none"},
		want:  wantReport,
		apply: func(j *Job, s string) { j.Report = s },
		value: func(j *Job) string { return j.Report },
	},
	{
		Param: params.Param{Key: stacksKey, Kind: params.String,
			Help: "directory for files RANK.stacks, where the stacks of all goroutines go when gorun says what the ranks do; empty: none"},
		apply: func(j *Job, s string) { j.StacksDir = s },
		value: func(j *Job) string { return j.StacksDir },
	},
	{
		Param: params.Param{Key: "job.map_by", Kind: params.String, Default: "slot",
			Help: "over what ranks are laid: slot, node, core, numa, or ppr:N:node|core|numa with N ranks to each"},
		want:  wantMapBy,
		apply: func(j *Job, s string) { j.MapBy = s },
		value: func(j *Job) string { return j.MapBy },
	},
	{
		Param: params.Param{Key: "job.rank_by", Kind: params.String, Default: "slot", Choices: []string{"slot", "node"},
			Help: "whether ranks are numbered as they are laid (slot), or around the hosts (node)"},
		apply: func(j *Job, s string) { j.RankBy = s },
		value: func(j *Job) string { return j.RankBy },
	},
	{
		Param: params.Param{Key: "job.rankfile", Kind: params.String,
			Help: "file with a host and cores for each rank, instead of map_by, rank_by and bind; empty: none"},
		besideFile: true,
		apply:      func(j *Job, s string) { j.Rankfile = s },
		value:      func(j *Job) string { return j.Rankfile },
	},
	{
		Param: params.Param{Key: "job.bind", Kind: params.String, Default: string(BindNone), Choices: []string{string(BindNone), string(BindCore), string(BindNUMA)},
			Help: "bind each rank to one core, to one NUMA domain, or not"},
		apply: func(j *Job, s string) { j.Bind = Bind(s) },
		value: func(j *Job) string { return string(j.Bind) },
	},
	{
		Param: params.Param{Key: "job.gomaxprocs", Kind: params.Int, Default: "0", Help: "GOMAXPROCS of each rank; 0: its share of the cores, at least 2"},
		max:   1 << 16,
		apply: func(j *Job, s string) { j.GOMAXPROCS = integer(s) },
		value: func(j *Job) string { return strconv.Itoa(j.GOMAXPROCS) },
	},
	{
		Param: params.Param{Key: "job.strict", Kind: params.Bool, Default: "false", Help: "more ranks than slots is an error instead of a warning"},
		apply: func(j *Job, s string) { j.StrictSlot = params.IsTrue(s) },
		value: func(j *Job) string { return strconv.FormatBool(j.StrictSlot) },
	},
	{
		Param: params.Param{Key: "job.slots", Kind: params.Int, Default: "0", Help: "ranks that a host is meant to take; 0: as many as it has cores"},
		max:   MaxRanks,
		apply: func(j *Job, s string) { j.Slots = integer(s) },
		value: func(j *Job) string { return strconv.Itoa(j.Slots) },
	},
	{
		Param: params.Param{Key: "launcher.kind", Kind: params.String, Default: string(LaunchAuto), Choices: []string{
			string(LaunchAuto), string(LaunchLocal), string(LaunchSSH), string(LaunchSlurm), string(LaunchDial)},
			Help: "how gorun is started on other hosts; auto: dial with launcher.listen, slurm in a job of Slurm, else ssh"},
		apply: func(j *Job, s string) { j.Launcher = Launcher(s) },
		value: func(j *Job) string { return string(j.Launcher) },
	},
	{
		Param: params.Param{Key: "launcher.hostfile", Kind: params.String,
			Help: "file of the hosts to run on; empty: none"},
		besideFile: true,
		apply:      func(j *Job, s string) { j.Hostfile = s },
		value:      func(j *Job) string { return j.Hostfile },
	},
	{
		Param: params.Param{Key: "launcher.ssh", Kind: params.String, Default: "ssh",
			Help: "command of ssh, with arguments"},
		want:  wantCommand,
		apply: func(j *Job, s string) { j.SSH = s },
		value: func(j *Job) string { return j.SSH },
	},
	{
		Param: params.Param{Key: "launcher.slurm_args", Kind: params.String,
			Help: "more arguments of srun"},
		want:  wantArguments,
		apply: func(j *Job, s string) { j.SlurmArgs = wordsOf(s) },
		value: func(j *Job) string { return joinWords(j.SlurmArgs) },
	},
	{
		Param: params.Param{Key: "launcher.radix", Kind: params.Int, Default: "64",
			Help: "hosts that gorun, and each host in turn, connects with"},
		min: 1, max: hosts.Limit,
		apply: func(j *Job, s string) { j.Radix = integer(s) },
		value: func(j *Job) string { return strconv.Itoa(j.Radix) },
	},
	{
		Param: params.Param{Key: "launcher.at_once", Kind: params.Int, Default: "32",
			Help: "connections that each of them makes at the same time"},
		min: 1, max: hosts.Limit,
		apply: func(j *Job, s string) { j.AtOnce = integer(s) },
		value: func(j *Job) string { return strconv.Itoa(j.AtOnce) },
	},
	{
		Param: params.Param{Key: "launcher.connect_timeout", Kind: params.Duration, Default: "10s",
			Help: "how long a host may take to answer"},
		shortest: time.Millisecond,
		apply:    func(j *Job, s string) { j.ConnectTimeout = duration(s) },
		value:    func(j *Job) string { return j.ConnectTimeout.String() },
	},
	{
		Param: params.Param{Key: "launcher.heartbeat", Kind: params.Duration, Default: "5s",
			Help: "silence after which a host counts as lost"},
		shortest: 100 * time.Millisecond,
		apply:    func(j *Job, s string) { j.Heartbeat = duration(s) },
		value:    func(j *Job) string { return j.Heartbeat.String() },
	},
	{
		Param: params.Param{Key: "launcher.agent_path", Kind: params.String,
			Help: "gorun on the hosts; empty: it is looked for there, and else copied"},
		apply: func(j *Job, s string) { j.AgentPath = s },
		value: func(j *Job) string { return j.AgentPath },
	},
	{
		Param: params.Param{Key: "launcher.stage", Kind: params.Bool, Default: "false",
			Help: "copy executables to the hosts that do not have them"},
		apply: func(j *Job, s string) { j.Stage = params.IsTrue(s) },
		value: func(j *Job) string { return strconv.FormatBool(j.Stage) },
	},
	{
		Param: params.Param{Key: "launcher.stage_files", Kind: params.List,
			Help: "more files to copy to the hosts"},
		apply: func(j *Job, s string) { j.StageFiles = elements(s) },
		value: func(j *Job) string { return strings.Join(j.StageFiles, ",") },
	},
	{
		Param: params.Param{Key: portsKey, Kind: params.String,
			Help: "tcp ports that ranks listen on, as 20000-20999; empty: any"},
		want:  wantPorts,
		apply: func(j *Job, s string) { j.Ports, _ = parsePorts(s) },
		value: func(j *Job) string { return j.Ports.String() },
	},
	{
		Param: params.Param{Key: "launcher.listen", Kind: params.String,
			Help: "HOST:PORT that gorun on other hosts connects to, who is started otherwise; empty: none"},
		want:  wantListen,
		apply: func(j *Job, s string) { j.Listen = s },
		value: func(j *Job) string { return j.Listen },
	},
	{
		Param: params.Param{Key: "launcher.secret_file", Kind: params.String,
			Help: "file that proves who connects belongs to the job; empty: none"},
		besideFile: true,
		apply:      func(j *Job, s string) { j.SecretFile = s },
		value:      func(j *Job) string { return j.SecretFile },
	},
	{
		Param: params.Param{Key: "launcher.agents", Kind: params.Int, Default: "0",
			Help: "how many hosts connect; 0: not said"},
		max:   hosts.Limit,
		apply: func(j *Job, s string) { j.Agents = integer(s) },
		value: func(j *Job) string { return strconv.Itoa(j.Agents) },
	},
}

// joinWords is what wordsOf reads.
func joinWords(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return shellJoin(words)
}
