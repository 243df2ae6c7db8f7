package bootstrap

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// place is what a launcher that offers no way for ranks to meet says of a
// process. The ranks meet by rendezvous.go.
type place struct {
	launcher   string // World.Launcher
	job        string // tells the job from all others in the directory where its ranks meet, for the name of a file
	what       string // names the job to people
	rank, size int
	app        int
	oneHost    bool   // all ranks are on this host
	hosts      string // names the hosts to people; "": unknown
}

// fromOpenMPI reads what mpirun, of Open MPI, says; nil where it has not started
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
		return nil, fmt.Errorf("found %s=%d, but neither PMIX_NAMESPACE nor OMPI_MCA_ess_base_jobid, of which one tells the job from others", sizeVar, p.size)
	}
	p.what = "job " + id
	// The number is made of mpirun's process id and comes again; this does not.
	p.job = fileName(p.launcher, id, getenv("OMPI_MCA_orte_precondition_transports"))
	p.oneHost = getenv("OMPI_COMM_WORLD_LOCAL_SIZE") == getenv(sizeVar)
	if app, err := strconv.Atoi(getenv("OMPI_MCA_orte_app_num")); err == nil && app > 0 {
		p.app = app
	}
	return p, nil
}

// firstSpecialStep is the least number that Slurm gives to steps that srun did not
// make: a batch script's, a shell's that salloc starts on a node.
const firstSpecialStep = 0xfffffff0

// fromSlurm reads what srun says; nil where it has not started this process, as in
// a batch script, which has a number too, and in the shell of salloc.
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

// numbers reads rank and size.
func (p *place) numbers(getenv func(string) string, sizeVar, rankVar string) error {
	size, rank := "", getenv(rankVar)
	if sizeVar != "" {
		size = getenv(sizeVar)
	}
	switch {
	case size == "":
		return fmt.Errorf("found %s=%s, but nothing that says how many ranks there are", rankVar, rank)
	case rank == "":
		return fmt.Errorf("found %s=%s, but no %s", sizeVar, size, rankVar)
	}
	var err1, err2 error
	p.size, err1 = strconv.Atoi(size)
	p.rank, err2 = strconv.Atoi(rank)
	if err1 != nil || err2 != nil || p.size < 1 || p.size > maxSize || p.rank < 0 || p.rank >= p.size {
		return fmt.Errorf("found %s=%q of %s=%q, which is no rank of a job", rankVar, rank, sizeVar, size)
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

// fileName makes a name of a job: its id as far as that can stand in a name, and
// a digest of the id and of what else tells it from others.
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
