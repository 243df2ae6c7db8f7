package launcher

import (
	"slices"
	"strings"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/launcher/internal/procs"
	"github.com/weft-hpc/weft/launcher/job"
)

// envVerbose is the variable with which package comm prints how it connects ranks.
const envVerbose = "WEFT_VERBOSE"

// hostVars are variables that describe gorun's host or the user's login there. A name that ends
// with an underscore stands for all variables that begin with it.
var hostVars = []string{
	"HOME", "USER", "LOGNAME", "SHELL", "MAIL", "HOSTNAME", "HOST", "DISPLAY", "XAUTHORITY", "WAYLAND_DISPLAY",
	"TMPDIR", "TMP", "TEMP", "TERM", "SHLVL", "_", "OLDPWD", "PWD", "TMUX", "STY", "WINDOWID", "INVOCATION_ID", "JOURNAL_STREAM",
	"SSH_", "XDG_", "DBUS_", "SUDO_", "SYSTEMD_", "GPG_",
}

// ofThisHost reports whether gorun keeps a variable, NAME=VALUE, from ranks on other hosts.
func ofThisHost(kv string) bool {
	name, _, _ := strings.Cut(kv, "=")
	return slices.ContainsFunc(hostVars, func(v string) bool {
		return name == v || strings.HasSuffix(v, "_") && len(v) > 1 && strings.HasPrefix(name, v)
	})
}

// appEnv returns the environment of an app's ranks: base, then the job's variables, then the app's.
// It leaves out the variables by which launchers give a process its rank, because the process manager sets
// them.
func appEnv(j *job.Job, app job.App, base []string) []string {
	var own []string
	if j.Verbose {
		own = append(own, envVerbose+"=1") // rank 0 then prints how the ranks have connected
	}
	for _, vars := range [][]job.EnvVar{j.Env, app.Env} {
		for _, v := range vars {
			own = append(own, v.Name+"="+v.Value)
		}
	}
	return slices.DeleteFunc(procs.MergeEnv(base, own), procs.ForeignEnv)
}

// withoutEnv removes a variable.
func withoutEnv(env []string, name string) []string {
	return slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
}

// lookupEnv returns the value of a variable.
func lookupEnv(env []string, name string) (string, bool) {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// markOf returns the variable, NAME=VALUE, that marks the processes of a job that are not ranks.
func markOf(id string) string { return bootstrap.EnvJobID + "=" + id }
