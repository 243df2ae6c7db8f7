package launcher

import (
	"slices"
	"strings"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/launcher/internal/procs"
	"github.com/weft-hpc/weft/launcher/job"
)

// envVerbose is the variable that package comm asks whether to say what it does.
const envVerbose = "WEFT_VERBOSE"

// hostVars are variables that say something of the host, or of the login, that
// gorun runs on; a prefix ends with an underscore.
var hostVars = []string{
	"HOME", "USER", "LOGNAME", "SHELL", "MAIL", "HOSTNAME", "HOST", "DISPLAY", "XAUTHORITY", "WAYLAND_DISPLAY",
	"TMPDIR", "TMP", "TEMP", "TERM", "SHLVL", "_", "OLDPWD", "PWD", "TMUX", "STY", "WINDOWID", "INVOCATION_ID", "JOURNAL_STREAM",
	"SSH_", "XDG_", "DBUS_", "SUDO_", "SYSTEMD_", "GPG_",
}

// ofThisHost says whether a variable, as NAME=VALUE, is not to be sent to others.
func ofThisHost(kv string) bool {
	name, _, _ := strings.Cut(kv, "=")
	return slices.ContainsFunc(hostVars, func(v string) bool {
		return name == v || strings.HasSuffix(v, "_") && len(v) > 1 && strings.HasPrefix(name, v)
	})
}

// appEnv is a base, as gorun's own environment, then the job's variables, then the
// app's. What tells a rank who it is is left out: that is the launcher's to say.
func appEnv(j *job.Job, app job.App, base []string) []string {
	var own []string
	if j.Verbose {
		own = append(own, envVerbose+"=1") // so that rank 0 says how the ranks found each other
	}
	for _, vars := range [][]job.EnvVar{j.Env, app.Env} {
		for _, v := range vars {
			own = append(own, v.Name+"="+v.Value)
		}
	}
	return slices.DeleteFunc(procs.MergeEnv(base, own), procs.ForeignEnv)
}

// withoutEnv drops a variable.
func withoutEnv(env []string, name string) []string {
	return slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
}

func lookupEnv(env []string, name string) (string, bool) {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// markOf is the job's mark in the environment of what gorun starts beside the ranks.
func markOf(id string) string { return bootstrap.EnvJobID + "=" + id }
