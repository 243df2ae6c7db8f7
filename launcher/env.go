package launcher

import (
	"slices"
	"strings"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/launcher/internal/procs"
	"github.com/weft-hpc/weft/launcher/job"
)

// envVerbose is the variable that makes package comm print how it connects ranks. gorun sets it to
// 1.
const envVerbose = "WEFT_VERBOSE"

// hostVars are the names of variables that describe gorun's host or the user's login there. In a
// job that uses another host, ranks do not get gorun's values of these variables. A name that ends
// with an underscore stands for all variables whose names begin with it; "_" stands only for the
// variable of that name.
var hostVars = []string{
	"HOME", "USER", "LOGNAME", "SHELL", "MAIL", "HOSTNAME", "HOST", "DISPLAY", "XAUTHORITY", "WAYLAND_DISPLAY",
	"TMPDIR", "TMP", "TEMP", "TERM", "SHLVL", "_", "OLDPWD", "PWD", "TMUX", "STY", "WINDOWID", "INVOCATION_ID", "JOURNAL_STREAM",
	"SSH_", "XDG_", "DBUS_", "SUDO_", "SYSTEMD_", "GPG_",
}

// ofThisHost reports whether hostVars has the name of the variable kv, which has the form
// NAME=VALUE.
func ofThisHost(kv string) bool {
	name, _, _ := strings.Cut(kv, "=")
	return slices.ContainsFunc(hostVars, func(v string) bool {
		return name == v || strings.HasSuffix(v, "_") && len(v) > 1 && strings.HasPrefix(name, v)
	})
}

// appEnv returns the environment of an app's ranks: base, then envVerbose if the user has set -v,
// then the job's variables, then the app's. A later value of a variable replaces an earlier one.
// appEnv leaves out the variables by which launchers give a process its rank, such as PMI_RANK,
// because the process manager sets its own.
func appEnv(j *job.Job, app job.App, base []string) []string {
	var own []string
	if j.Verbose {
		own = append(own, envVerbose+"=1") // makes rank 0 print how the ranks have connected
	}
	for _, vars := range [][]job.EnvVar{j.Env, app.Env} {
		for _, v := range vars {
			own = append(own, v.Name+"="+v.Value)
		}
	}
	return slices.DeleteFunc(procs.MergeEnv(base, own), procs.ForeignEnv)
}

// withoutEnv returns env without the variable of this name. The result shares memory with env.
func withoutEnv(env []string, name string) []string {
	return slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
}

// lookupEnv returns the value of a variable in env, and whether env has the variable. If env has it
// several times, the first value counts.
func lookupEnv(env []string, name string) (string, bool) {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// markOf returns the variable, NAME=VALUE, that gorun puts into the environment of processes that
// are not ranks but belong to the job, such as compilers. By this variable the watchdog finds these
// processes.
func markOf(id string) string { return bootstrap.EnvJobID + "=" + id }
