package bootstrap

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// place is the rank of a process, and what else its environment says, for a launcher that only
// numbers its ranks. The ranks of such a launcher find each other by a rendezvous (rendezvous.go).
type place struct {
	launcher   string // World.Launcher
	job        string // file name of the notice (type notice) of the job; no other job has the same name
	what       string // name of the job for messages
	rank, size int
	app        int    // number of the program of an MPMD job that this rank runs
	oneHost    bool   // all ranks are on this host
	hosts      string // names of the hosts for messages; "": unknown
}

// fromOpenMPI reads the variables of Open MPI's mpirun. It returns nil if mpirun has not started
// this process.
func fromOpenMPI(getenv func(string) string) (*place, error) {
	const sizeVar, rankVar = "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"
	p := &place{launcher: "openmpi"}
	if getenv(sizeVar) == "" && getenv(rankVar) == "" {
		return nil, nil
	}
	if err := p.numbers(getenv, sizeVar, rankVar); err != nil {
		return nil, err
	}
	if p.size == 1 {
		return p, nil
	}
	_, id := firstSet(getenv, "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
	if id == "" {
		return nil, fmt.Errorf("found %s=%d, but neither PMIX_NAMESPACE nor OMPI_MCA_ess_base_jobid, one of which identifies the job", sizeVar, p.size)
	}
	p.what = "job " + id
	// The id depends on mpirun's process id, which a later job may have again. The variable
	// OMPI_MCA_orte_precondition_transports is different in every job.
	p.job = fileName(p.launcher, id, getenv("OMPI_MCA_orte_precondition_transports"))
	p.oneHost = getenv("OMPI_COMM_WORLD_LOCAL_SIZE") == getenv(sizeVar)
	if app, err := strconv.Atoi(getenv("OMPI_MCA_orte_app_num")); err == nil && app > 0 {
		p.app = app
	}
	return p, nil
}

// firstSpecialStep is the smallest number that Slurm gives to steps that srun did not start: a
// batch script, or a shell that salloc starts on a node.
const firstSpecialStep = 0xfffffff0

// fromSlurm reads the variables of srun. If srun has not started this process, fromSlurm returns nil.
// Examples are a batch script, although it has a SLURM_PROCID, and the shell of salloc.
func fromSlurm(getenv func(string) string) (*place, error) {
	const rankVar = "SLURM_PROCID"
	p := &place{launcher: "slurm"}
	_, job := firstSet(getenv, "SLURM_JOB_ID", "SLURM_JOBID")
	stepVar, step := firstSet(getenv, "SLURM_STEP_ID", "SLURM_STEPID")
	if n, err := strconv.ParseUint(step, 10, 32); step == "" || err == nil && n >= firstSpecialStep {
		return nil, nil
	}
	sizeVar, _ := firstSet(getenv, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
	if err := p.numbers(getenv, sizeVar, rankVar); err != nil {
		return nil, fmt.Errorf("%s=%s: %w", stepVar, step, err)
	}
	if p.size == 1 {
		return p, nil
	}
	if job == "" {
		return nil, fmt.Errorf("found %s=%s and %s=%d, but no SLURM_JOB_ID", stepVar, step, rankVar, p.rank)
	}
	p.what = "step " + job + "." + step
	p.job = fileName(p.launcher, job+"."+step, getenv("SLURM_CLUSTER_NAME")+"/"+getenv("SLURM_RESTART_COUNT"))
	p.hosts = getenv("SLURM_STEP_NODELIST")
	p.oneHost = getenv("SLURM_STEP_NUM_NODES") == "1" && getenv("SLURM_HET_SIZE") == ""
	return p, nil
}

// numbers reads rank and size from the environment.
func (p *place) numbers(getenv func(string) string, sizeVar, rankVar string) error {
	size, rank := "", getenv(rankVar)
	if sizeVar != "" {
		size = getenv(sizeVar)
	}
	switch {
	case size == "":
		return fmt.Errorf("found %s=%s, but no variable with the number of ranks", rankVar, rank)
	case rank == "":
		return fmt.Errorf("found %s=%s, but no %s", sizeVar, size, rankVar)
	}
	var err1, err2 error
	p.size, err1 = strconv.Atoi(size)
	p.rank, err2 = strconv.Atoi(rank)
	if err1 != nil || err2 != nil || p.size < 1 || p.size > maxSize || p.rank < 0 || p.rank >= p.size {
		return fmt.Errorf("found %s=%q and %s=%q, which is not a rank of a job", rankVar, rank, sizeVar, size)
	}
	return nil
}

func firstSet(getenv func(string) string, names ...string) (name, value string) {
	for _, name := range names {
		if v := getenv(name); v != "" {
			return name, v
		}
	}
	return "", ""
}

// fileName returns a file name for a job. It consists of the launcher, the job's id, in which '_'
// replaces unusual characters, and a digest of id and more, which makes the name unique.
func fileName(launcher, id, more string) string {
	sum := sha256.Sum256([]byte(id + "\x00" + more))
	id = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '_'
	}, id)
	return launcher + "-" + id[:min(len(id), 64)] + "-" + hex.EncodeToString(sum[:6])
}
