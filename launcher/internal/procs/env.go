package procs

import (
	"slices"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/launcher/internal/place"
)

// foreignEnv lists the beginnings of variables that the ranks of this job must not inherit from
// another launcher that has started gorun. By most of them a launcher tells a process its rank. By
// EnvAllocated gorun tells a gorun that it starts that salloc has started it.
var foreignEnv = []string{
	bootstrap.EnvRank + "=", bootstrap.EnvJobFD + "=", bootstrap.EnvListenFD + "=", bootstrap.EnvJobID + "=", bootstrap.EnvEpoch + "=",
	envSize + "=", envLocalRank + "=", envLocalSize + "=",
	"PMI_", "PMI2_", "PMIX_", "MPI_LOCALRANKID=", "MPI_LOCALNRANKS=", "HYDI_CONTROL_FD=",
	"OMPI_COMM_WORLD_", "OMPI_UNIVERSE_SIZE=", "MV2_COMM_WORLD_", EnvAllocated + "=",
}

// ForeignEnv reports whether kv, which has the form NAME=VALUE, is a variable that a launcher sets
// for the processes that it starts, such as the variable with a process's rank. The ranks of
// another launcher's job must not inherit it.
func ForeignEnv(kv string) bool {
	return slices.ContainsFunc(foreignEnv, func(prefix string) bool { return strings.HasPrefix(kv, prefix) })
}

// Variables for scripts, besides bootstrap.EnvRank. A weft program gets these values from its
// job card.
const (
	envSize      = "WEFT_SIZE"       // number of ranks of the job
	envLocalRank = "WEFT_LOCAL_RANK" // number of the rank among the ranks of its host
	envLocalSize = "WEFT_LOCAL_SIZE" // number of ranks on the rank's host
)

// EnvAllocated is set in the environment of a gorun that another gorun has started by salloc.
const EnvAllocated = "WEFT_ALLOCATED"

// envStage is the variable with the path of the directory of files that gorun has copied to this
// host.
const envStage = "WEFT_STAGE_DIR"

// MergeEnv merges lists of variables, which have the form NAME=VALUE. A later variable replaces an
// earlier one of the same name. Strings without a name or without = are left out.
func MergeEnv(lists ...[]string) []string {
	var env []string
	at := make(map[string]int)
	for _, list := range lists {
		for _, kv := range list {
			name, _, ok := strings.Cut(kv, "=")
			if !ok || name == "" {
				continue
			}
			if i, ok := at[name]; ok {
				env[i] = kv
				continue
			}
			at[name] = len(env)
			env = append(env, kv)
		}
	}
	return env
}

// hostEnv returns the environment of an app's ranks on this host. If base is nil, app is the
// complete environment. Otherwise base is this host's environment. hostEnv removes from it the
// variables that only gorun may set, adds those of app, and sets PWD to wdir. staged is the
// directory of files that gorun has copied to this host; "": none.
func hostEnv(base, app []string, wdir, staged string) []string {
	if base != nil {
		base = slices.DeleteFunc(slices.Clone(base), func(kv string) bool {
			return ForeignEnv(kv) || strings.HasPrefix(kv, "GOMAXPROCS=") // only gorun may set these
		})
		app = MergeEnv(base, app, []string{"PWD=" + wdir})
	}
	if staged != "" {
		app = MergeEnv(app, []string{envStage + "=" + staged})
	}
	return app
}

// rankEnv returns the environment of local rank i: the environment of its app, and the variables
// that differ between ranks. listens means that the rank inherits a listening socket.
func (c *Manager) rankEnv(i int, listens bool) []string {
	rk, a := &c.ranks[i], &c.apps[c.ranks[i].app]
	env := make([]string, len(a.env), len(a.env)+16)
	copy(env, a.env)
	r, n := strconv.Itoa(c.rankOf(i)), strconv.Itoa(c.job.Card.Size)
	env = append(env,
		bootstrap.EnvRank+"="+r, envSize+"="+n, envLocalRank+"="+strconv.Itoa(i), envLocalSize+"="+strconv.Itoa(len(c.ranks)),
		bootstrap.EnvJobFD+"="+strconv.Itoa(childCard),
		bootstrap.EnvJobID+"="+c.job.Card.JobID,
		bootstrap.EnvEpoch+"="+strconv.Itoa(c.job.Card.Epoch),
		"PMI_FD="+strconv.Itoa(childControl), "PMI_RANK="+r, "PMI_SIZE="+n,
		// MPICH's launcher Hydra sets these, too.
		"MPI_LOCALRANKID="+strconv.Itoa(i), "MPI_LOCALNRANKS="+strconv.Itoa(len(c.ranks)),
	)
	if c.job.Card.Group > 0 {
		env = append(env, "PMI_SPAWNED=1")
	}
	if listens {
		env = append(env, bootstrap.EnvListenFD+"="+strconv.Itoa(childListen))
	}
	if !a.keep {
		procs := c.job.Apps[rk.app].MaxProcs
		if procs == 0 {
			procs = c.topo().MaxProcs(rk.cpus, len(c.ranks))
		}
		env = append(env, "GOMAXPROCS="+strconv.Itoa(procs))
	}
	return env
}

// topo returns this host's topology, which it reads in its first call.
func (c *Manager) topo() place.Topology {
	c.topology.Do(func() { c.here = place.Here() })
	return c.here
}
