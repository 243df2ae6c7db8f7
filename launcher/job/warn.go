package job

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/internal/params"
)

// unknownVars returns warnings about variables whose names begin with WEFT_ and that have no
// effect. In environ, gorun's environment, that is a variable that nothing reads. Among the
// variables that the job gives to ranks, that is also the variable of a setting or of a parameter
// in params.Table: gorun reads these only in its own environment, and ranks get the parameters from
// gorun in another way.
func (j *Job) unknownVars(environ []string) []string {
	var known []string
	for _, s := range settings {
		known = append(known, s.Env())
	}
	lines := params.UnknownVars(environ, known...)
	// If a variable has the name of a flag, such as WEFT_IFACE, suggest the variable of that flag, and
	// not the variable with the most similar name.
	for i, line := range lines {
		name, _, _ := strings.Cut(line, " ")
		if env := envOfFlag(strings.ToLower(strings.TrimPrefix(name, "WEFT_"))); env != "" {
			lines[i] = name + " is set, and nothing reads it; did you mean " + env + "?"
		}
	}
	var given []string
	for _, list := range append([][]EnvVar{j.Env}, appEnvs(j.Apps)...) {
		for _, v := range list {
			if kv := v.Name + "="; !slices.Contains(given, kv) {
				given = append(given, kv)
			}
		}
	}
	for _, kv := range given {
		name := strings.TrimSuffix(kv, "=")
		for _, p := range params.Table {
			if p.Env() == name {
				lines = append(lines, fmt.Sprintf("%s has no effect as a variable of ranks, because ranks get tunables from gorun; use -p %s=VALUE", name, p.Key))
			}
		}
		for _, s := range settings {
			if s.Env() == name {
				lines = append(lines, fmt.Sprintf("%s has no effect as a variable of ranks, because gorun reads it from its own environment", name))
			}
		}
	}
	for _, line := range params.UnknownVars(given, known...) {
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// appEnvs returns the variables of each app.
func appEnvs(apps []App) (envs [][]EnvVar) {
	for _, a := range apps {
		envs = append(envs, a.Env)
	}
	return envs
}

// envOfFlag returns the environment variable of the setting, or of the parameter in params.Table,
// that a flag sets. name is the name of the flag without its dash, with "_" or "-" between words.
// envOfFlag returns "" if there is no such flag, or if the flag sets neither a setting nor a
// parameter.
func envOfFlag(name string) string {
	for _, o := range options {
		if !slices.Contains(o.names, strings.ReplaceAll(name, "_", "-")) {
			continue
		}
		if s, ok := settingOf(o.setting); ok {
			return s.Env()
		}
		if p, ok := params.Lookup(o.tunable); ok {
			return p.Env()
		}
	}
	return ""
}

// strayFlags returns a warning if the only program has -np and a number among its arguments, and
// the user has not given a number of ranks. The user has probably put -np after the program by
// mistake.
func (j *Job) strayFlags() []string {
	if len(j.Apps) != 1 || j.NPGiven {
		return nil
	}
	a := j.Apps[0]
	for i, arg := range a.Args {
		text, ok := "", false
		switch {
		case strings.HasPrefix(arg, "-np="), strings.HasPrefix(arg, "--np="):
			_, text, ok = strings.Cut(arg, "=")
		case arg == "-np" || arg == "--np":
			if ok = i+1 < len(a.Args); ok {
				text = a.Args[i+1]
			}
		}
		if _, err := strconv.Atoi(text); ok && err == nil {
			return []string{fmt.Sprintf("-np %s is an argument of %s here, because gorun's flags come before the program: gorun -np %s %s", text, a.Program, text, a.Program)}
		}
	}
	return nil
}
