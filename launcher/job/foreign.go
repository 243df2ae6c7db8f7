package job

import "strings"

// foreign lists flags of other launchers, and what to use instead in gorun, for hints in errors.
// docs/gorun.md has the same table.
var foreign = []struct {
	names   string // flags of mpirun, mpiexec.hydra, srun or torchrun, without their dashes, separated by spaces
	instead string // gorun's flag, or, if it does not begin with a dash, another hint
}{
	{"ntasks nprocs", "-n N"},
	{"N npernode ntasks-per-node nproc-per-node nproc_per_node perhost", "-map-by ppr:N:node, and -n for all of them"},
	{"npersocket ntasks-per-socket", "-map-by ppr:N:numa"},
	{"bynode cyclic", "-map-by node"},
	{"hosts nodelist w", "-host HOST,…"},
	{"oversubscribe overcommit O", "not needed: more ranks than slots are a warning"},
	{"nooversubscribe", "-strict"},
	{"env genv", "-x NAME=VALUE"},
	{"envlist genvlist export", "-x NAME, for each of them"},
	{"envall genvall", "not needed: ranks get gorun's environment"},
	{"wd chdir D", "-wdir DIR"},
	{"l label prepend-rank", "-tag-output"},
	{"output-filename outfile-pattern errfile-pattern o e", "-output DIR"},
	{"display-map display-allocation report-bindings display", "-dry-run"},
	{"mca gmca", "-p KEY=VALUE; -info lists the keys"},
	{"cpus-per-task cpus-per-rank cpus-per-proc c", "-gomaxprocs N"},
	{"cpu-bind", "-bind-to none|core|numa"},
	{"preload-binary", "-stage"},
	{"preload-files", "-stage-files FILE,…"},
	{"configfile app", "-config FILE, of a job file"},
	{"launcher-exec", "-ssh COMMAND"},
	{"launch-agent", "-agent-path PATH"},
	{"time t", "-timeout DURATION"},
	{"kill-on-bad-exit K", "not needed: the first failure ends the job"},
	{"enable-recovery with-ft disable-auto-cleanup", "-on-failure notify"},
	{"print-all-exitcodes", "-report FILE"},
	{"partition account A qos reservation exclusive", "-slurm-args, with the flag and its value"},
	{"allow-run-as-root", "not needed: root may run jobs"},
}

// foreignHint returns the last part of an error about an unknown flag: what to use in gorun instead
// of this flag of another launcher. It returns "" if foreign does not list the flag.
func foreignHint(name string) string {
	for _, f := range foreign {
		for n := range strings.FieldsSeq(f.names) {
			if n == name {
				if f.instead[0] == '-' {
					return "; use " + f.instead
				}
				return "; " + f.instead
			}
		}
	}
	return ""
}

// attachedNumberHint returns the last part of an error about an unknown flag such as -n4: a flag of
// gorun and its number without a space between them. It returns "" for other unknown flags.
func attachedNumberHint(name string) string {
	flag := strings.TrimRight(name, "0123456789")
	for _, o := range options {
		for _, n := range o.names {
			if n == flag && flag != name && o.arg != "" {
				return "; did you mean -" + flag + " " + name[len(flag):] + "?"
			}
		}
	}
	return ""
}
