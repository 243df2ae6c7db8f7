package launcher

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/launcher/job"
)

// foreignEnv are the prefixes of variables by which a launcher tells its
// ranks who they are. Ours must not see those of a launcher around gorun.
var foreignEnv = []string{
	bootstrap.EnvRank + "=", bootstrap.EnvJobFD + "=", bootstrap.EnvListenFD + "=", bootstrap.EnvJobID + "=",
	"PMI_", "PMI2_", "PMIX_", "MPI_LOCALRANKID=", "MPI_LOCALNRANKS=", "HYDI_CONTROL_FD=",
	"OMPI_COMM_WORLD_", "OMPI_UNIVERSE_SIZE=", "MV2_COMM_WORLD_",
}

// envVerbose is the variable that package comm asks whether to say what it does.
const envVerbose = "WEFT_VERBOSE"

// environ is the launcher's environment, then the job's variables, then the
// app's; a later one takes the place of an earlier one with its name. What
// tells a rank who it is is left out: that is the launcher's to say.
func environ(j *job.Job, app job.App) []string {
	var env []string
	at := make(map[string]int)
	set := func(name, value string) {
		kv := name + "=" + value
		for _, prefix := range foreignEnv {
			if strings.HasPrefix(kv, prefix) {
				return
			}
		}
		if i, ok := at[name]; ok {
			env[i] = kv
			return
		}
		at[name] = len(env)
		env = append(env, kv)
	}
	for _, kv := range os.Environ() {
		if name, value, ok := strings.Cut(kv, "="); ok && name != "" {
			set(name, value)
		}
	}
	if app.Wdir != "" {
		if wd, err := filepath.Abs(app.Wdir); err == nil {
			set("PWD", wd)
		}
	}
	if j.Verbose {
		set(envVerbose, "1") // so that rank 0 says how the ranks found each other
	}
	for _, vars := range [][]job.EnvVar{j.Env, app.Env} {
		for _, v := range vars {
			set(v.Name, v.Value)
		}
	}
	return env
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

// The numbers under which a rank inherits its descriptors, behind stdio.
const (
	childControl = 3 // PMI-1
	childCard    = 4
	childMemory  = 5 // where ranks share memory
	childListen  = 6
)

// rankEnv is an app's environment with a rank's place in the job. base is
// shared by all ranks and not changed.
func rankEnv(base []string, id string, rank, size, maxprocs int, listens bool) []string {
	env := make([]string, len(base), len(base)+10)
	copy(env, base)
	r, n := strconv.Itoa(rank), strconv.Itoa(size)
	env = append(env,
		bootstrap.EnvRank+"="+r,
		bootstrap.EnvJobFD+"="+strconv.Itoa(childCard),
		bootstrap.EnvJobID+"="+id,
		"PMI_FD="+strconv.Itoa(childControl), "PMI_RANK="+r, "PMI_SIZE="+n,
		"MPI_LOCALRANKID="+r, "MPI_LOCALNRANKS="+n, // as Hydra says it: one host
	)
	if listens {
		env = append(env, bootstrap.EnvListenFD+"="+strconv.Itoa(childListen))
	}
	if maxprocs > 0 {
		env = append(env, "GOMAXPROCS="+strconv.Itoa(maxprocs))
	}
	return env
}
