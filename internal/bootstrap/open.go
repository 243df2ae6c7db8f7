package bootstrap

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/internal/params"
)

// EnvJoined is what a rank sets in its own environment once it has found its
// place, and what programs that it starts inherit: the stamp of the variables
// that said so.
const EnvJoined = "WEFT_JOINED"

// Open finds out who this process is. It may wait for the other ranks, until
// ctx ends. A process calls it once: it takes over the inherited descriptors
// and marks them close-on-exec, and the process's environment, so that a program
// which this one starts is a world of one.
//
// Open uses the first of these that is present: gorun's job card, PMI-1, Open MPI's
// variables, Slurm's variables. If the environment says that there are other ranks but
// not how to find them, Open returns an error. If this process is alone and that may not
// be intended, Open writes one line to stderr. Rank 0 warns on stderr of WEFT_ variables
// that nothing reads, unless gorun has warned.
func Open(ctx context.Context) (*World, error) {
	inherited := os.Getenv(EnvJoined) != ""
	w, err := open(ctx, os.Getenv, os.Stderr)
	if err == nil && w.Rank == 0 && w.Launcher != native && !inherited { // gorun, or the rank that started this one, has warned
		for _, line := range params.UnknownVars(os.Environ(), "WEFT_JOB_", "WEFT_LAUNCHER_") { // gorun's settings
			fmt.Fprintln(os.Stderr, "weft: warning:", line)
		}
	}
	if err == nil && w.Launcher != alone {
		err = os.Setenv(EnvJoined, stamp(os.Getenv))
	}
	return w, err
}

func open(ctx context.Context, getenv func(string) string, stderr io.Writer) (*World, error) {
	w, err := openNative(ctx, getenv)
	if err != nil || w != nil {
		return w, wrap(err, "gorun")
	}
	if s := getenv(EnvJoined); s != "" && s == stamp(getenv) && !hasPMI(getenv) {
		return openAlone(getenv, stderr, several(getenv), "the process that started it is a rank")
	}
	w, err = openPMI(ctx, getenv)
	if err != nil || w != nil {
		return w, wrap(err, "PMI")
	}
	p, err := fromOpenMPI(getenv)
	if err != nil || p != nil {
		w, err = p.open(ctx, getenv, stderr, err)
		return w, wrap(err, "Open MPI")
	}
	if err := unusable(getenv); err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	p, err = fromSlurm(getenv)
	if err != nil || p != nil {
		w, err = p.open(ctx, getenv, stderr, err)
		return w, wrap(err, "Slurm")
	}
	if name, v := firstSet(getenv, "PMIX_RANK", "PMIX_NAMESPACE"); name != "" {
		return nil, fmt.Errorf("bootstrap: found %s=%s and nothing that says how many ranks there are: PMIx alone is not supported; %s", name, v, startWith)
	}
	if n, err := strconv.Atoi(getenv("SLURM_NTASKS")); err == nil && n > 1 {
		return openAlone(getenv, stderr, several(getenv), "it is no task of a step of Slurm; "+startWith)
	}
	return openAlone(getenv, stderr, "", "")
}

// startWith is advice.
const startWith = "start the ranks with gorun, srun, mpiexec.hydra or mpirun"

// open makes the world of a place, unless reading it was an error.
func (p *place) open(ctx context.Context, getenv func(string) string, stderr io.Writer, err error) (*World, error) {
	switch {
	case err != nil:
		return nil, err
	case p.size == 1:
		return openAlone(getenv, stderr, "", "")
	}
	return p.meet(ctx, getenv)
}

func wrap(err error, launcher string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("bootstrap from %s: %w", launcher, err)
}

// Values of World.Launcher: of a world of one, and of ranks that gorun has started.
const (
	alone  = "none"
	native = "gorun"
)

// openAlone makes a world of one. Where although is not empty, it says why that
// may not be what was meant.
func openAlone(getenv func(string) string, stderr io.Writer, although, hint string) (*World, error) {
	set, err := paramsOf(getenv)
	if err != nil {
		return nil, err
	}
	if although != "" {
		_, _ = fmt.Fprintf(stderr, "weft: this is a world of one, although %s is set: %s\n", although, hint)
	}
	w := &World{Size: 1, HostOf: []int{0}, JobID: NewJobID(), Secret: NewSecret(), Launcher: alone, Params: set, KVS: &localKVS{}}
	return w, nil
}

// NewJobID makes the name of a job: 16 hexadecimal digits by chance.
func NewJobID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// NewSecret makes the secret of a job.
func NewSecret() (s [32]byte) {
	_, _ = rand.Read(s[:]) // never fails
	return s
}

// paramsOf reads the tunables from the environment.
func paramsOf(getenv func(string) string) (*params.Set, error) {
	environ := make([]string, 0, len(params.Table))
	for _, p := range params.Table {
		environ = append(environ, p.Env()+"="+getenv(p.Env()))
	}
	return params.FromEnviron(environ)
}

// places are the variables by which launchers give a process its place.
var places = []struct{ launcher, size, rank string }{
	{"Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
	{"PMI", "PMI_SIZE", "PMI_RANK"},
	{"MVAPICH2", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},
	{"Flux", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"},
	{"Slurm", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
	{"Slurm", "SLURM_NTASKS", "SLURM_PROCID"},
}

// stamp tells the places of processes apart: a program that inherits all of
// these variables has been given none of its own.
func stamp(getenv func(string) string) string {
	h := sha256.New()
	names := []string{
		EnvJobID, EnvRank, EnvJobFD, "PMI_FD", "PMI_PORT", "PMI_ID", "PMIX_NAMESPACE", "PMIX_RANK",
		"OMPI_MCA_ess_base_jobid", "FLUX_JOB_ID", "SLURM_JOB_ID", "SLURM_STEP_ID",
	}
	for _, p := range places {
		names = append(names, p.size, p.rank)
	}
	for _, name := range names {
		fmt.Fprintf(h, "%s=%q\n", name, getenv(name))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// several names a variable that says that there are several ranks; "" if none
// does.
func several(getenv func(string) string) string {
	for _, p := range places {
		if n, err := strconv.Atoi(getenv(p.size)); err == nil && n > 1 {
			return p.size + "=" + strconv.Itoa(n)
		}
	}
	if v := getenv(EnvRank); v != "" {
		return EnvRank + "=" + v
	}
	return ""
}

// unusable is why a process cannot find the other ranks that PMI-1, or a launcher
// which should speak it, says there are; nil where nothing says so.
func unusable(getenv func(string) string) error {
	found := func(names ...string) string {
		var list []string
		for _, name := range names {
			if v := getenv(name); v != "" {
				list = append(list, name+"="+v)
			}
		}
		return strings.Join(list, " ")
	}
	if text := found(EnvRank, EnvJobFD, "PMI_FD"); getenv(EnvRank) != "" {
		return fmt.Errorf("found %s, but not the descriptors of gorun, as if a program in between had closed them; to run this one alone, unset %s", text, EnvRank)
	}
	switch found("PMI_SIZE", "MV2_COMM_WORLD_SIZE", "FLUX_JOB_SIZE") {
	case "PMI_SIZE=1", "MV2_COMM_WORLD_SIZE=1", "FLUX_JOB_SIZE=1":
		return nil
	}
	if text := found("PMI_RANK", "PMI_SIZE", "PMI_FD"); text != "" {
		if getenv("PMI_FD") == "" {
			return fmt.Errorf("found %s, but neither PMI_FD nor PMI_PORT, by which PMI-1 is spoken; %s", text, startWith)
		}
		return fmt.Errorf("found %s, but no socket there, as if a program in between had closed it; to run this one alone, unset PMI_FD, PMI_RANK and PMI_SIZE", text)
	}
	if text := found("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"); text != "" {
		return fmt.Errorf("found %s, but neither PMI_FD nor PMI_PORT, which the launcher of MVAPICH2 should set; %s", text, startWith)
	}
	if text := found("FLUX_TASK_RANK", "FLUX_JOB_SIZE"); text != "" {
		return fmt.Errorf("found %s, but not PMI_FD: start the ranks with flux run -o pmi=simple", text)
	}
	return nil
}
