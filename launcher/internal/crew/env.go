package crew

import (
	"slices"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/launcher/internal/place"
)

// foreignEnv are the prefixes of variables by which a launcher tells its
// ranks who they are, or a gorun the one that salloc starts for it. Ours must not see
// those of a launcher around gorun.
var foreignEnv = []string{
	bootstrap.EnvRank + "=", bootstrap.EnvJobFD + "=", bootstrap.EnvListenFD + "=", bootstrap.EnvJobID + "=", bootstrap.EnvEpoch + "=",
	envSize + "=", envLocalRank + "=", envLocalSize + "=",
	"PMI_", "PMI2_", "PMIX_", "MPI_LOCALRANKID=", "MPI_LOCALNRANKS=", "HYDI_CONTROL_FD=",
	"OMPI_COMM_WORLD_", "OMPI_UNIVERSE_SIZE=", "MV2_COMM_WORLD_", EnvAllocated + "=",
}

// ForeignEnv says whether a variable, as NAME=VALUE, is how a launcher tells a rank
// who it is.
func ForeignEnv(kv string) bool {
	return slices.ContainsFunc(foreignEnv, func(prefix string) bool { return strings.HasPrefix(kv, prefix) })
}

// The variables that tell a script where it is among the ranks, beside
// bootstrap.EnvRank; programs of weft have it from the job card.
const (
	envSize      = "WEFT_SIZE"
	envLocalRank = "WEFT_LOCAL_RANK" // among those of its host
	envLocalSize = "WEFT_LOCAL_SIZE"
)

// EnvAllocated marks a gorun that salloc has started for another.
const EnvAllocated = "WEFT_ALLOCATED"

// envStage names the directory of files that gorun has copied to the hosts.
const envStage = "WEFT_STAGE_DIR"

// MergeEnv lays variables, as NAME=VALUE, over others; a later one takes the place
// of an earlier one with its name.
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

// hostEnv is the environment of an app's ranks on this host: what base says, where
// it is not nil, and over it what gorun says.
func hostEnv(base, app []string, wdir, staged string) []string {
	if base != nil {
		base = slices.DeleteFunc(slices.Clone(base), func(kv string) bool {
			return ForeignEnv(kv) || strings.HasPrefix(kv, "GOMAXPROCS=") // gorun's word counts
		})
		app = MergeEnv(base, app, []string{"PWD=" + wdir})
	}
	if staged != "" {
		app = MergeEnv(app, []string{envStage + "=" + staged})
	}
	return app
}

// rankEnv is an app's environment with a rank's place in the job.
func (c *Crew) rankEnv(i int, listens bool) []string {
	rk, a := &c.ranks[i], &c.apps[c.ranks[i].app]
	env := make([]string, len(a.env), len(a.env)+16)
	copy(env, a.env)
	r, n := strconv.Itoa(c.plan.Ranks[i].Rank), strconv.Itoa(c.job.Card.Size)
	env = append(env,
		bootstrap.EnvRank+"="+r, envSize+"="+n, envLocalRank+"="+strconv.Itoa(i), envLocalSize+"="+strconv.Itoa(len(c.ranks)),
		bootstrap.EnvJobFD+"="+strconv.Itoa(childCard),
		bootstrap.EnvJobID+"="+c.job.Card.JobID,
		bootstrap.EnvEpoch+"="+strconv.Itoa(c.job.Card.Epoch),
		"PMI_FD="+strconv.Itoa(childControl), "PMI_RANK="+r, "PMI_SIZE="+n,
		"MPI_LOCALRANKID="+strconv.Itoa(i), "MPI_LOCALNRANKS="+strconv.Itoa(len(c.ranks)), // as Hydra says it
	)
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

// topo is this host's topology, read once.
func (c *Crew) topo() place.Topology {
	c.topology.Do(func() { c.here = place.Here() })
	return c.here
}
