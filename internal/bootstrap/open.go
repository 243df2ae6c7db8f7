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

// EnvJoined is a variable that Open sets in the environment of a rank, so that programs that the rank
// starts inherit it. Its value is a digest of the variables by which the launcher has given the rank
// its number (see envStamp). A program with the same digest is not a rank of its own.
const EnvJoined = "WEFT_JOINED"

// Open finds out the rank of this process and opens its World. It may wait for the other ranks
// until ctx ends. A process calls it once: Open takes over the inherited descriptors and marks
// them close-on-exec, and sets EnvJoined, so that a program which this process starts is a world
// of one.
//
// Open uses the first of these that is present: gorun's job card, PMI-1, Open MPI's variables,
// Slurm's variables. If the environment says that there are other ranks but not how to find them,
// Open returns an error. If this process is alone and that may not be intended, Open writes one
// line to stderr. Rank 0 warns on stderr of WEFT_ variables that nothing reads, unless gorun, or a
// rank that has started this process, has warned.
func Open(ctx context.Context) (*World, error) {
	inherited := os.Getenv(EnvJoined) != ""
	w, err := open(ctx, os.Getenv, os.Stderr)
	// In the other cases gorun, or the rank that started this process, has looked for such
	// variables.
	if err == nil && w.Rank == 0 && w.Launcher != native && !inherited {
		// Variables with these two prefixes are settings of gorun.
		for _, line := range params.UnknownVars(os.Environ(), "WEFT_JOB_", "WEFT_LAUNCHER_") {
			fmt.Fprintln(os.Stderr, "weft: warning:", line)
		}
	}
	if err == nil && w.Launcher != alone {
		err = os.Setenv(EnvJoined, envStamp(os.Getenv))
	}
	return w, err
}

func open(ctx context.Context, getenv func(string) string, stderr io.Writer) (*World, error) {
	w, err := openNative(ctx, getenv)
	if err != nil || w != nil {
		return w, wrap(err, "gorun")
	}
	if s := getenv(EnvJoined); s != "" && s == envStamp(getenv) && !hasPMI(getenv) {
		return openAlone(getenv, stderr, multiRankVar(getenv), "the process that started it is a rank")
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
	if err := missingLauncher(getenv); err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	p, err = fromSlurm(getenv)
	if err != nil || p != nil {
		w, err = p.open(ctx, getenv, stderr, err)
		return w, wrap(err, "Slurm")
	}
	if name, v := firstSet(getenv, "PMIX_RANK", "PMIX_NAMESPACE"); name != "" {
		return nil, fmt.Errorf("bootstrap: found %s=%s, but no variable with the number of ranks: PMIx alone is not supported; %s", name, v, startWith)
	}
	if n, err := strconv.Atoi(getenv("SLURM_NTASKS")); err == nil && n > 1 {
		return openAlone(getenv, stderr, multiRankVar(getenv), "it is not a task of a Slurm step; "+startWith)
	}
	return openAlone(getenv, stderr, "", "")
}

// startWith is the advice at the end of several error messages.
const startWith = "start the ranks with gorun, srun, mpiexec.hydra or mpirun"

// open opens the World of a place. err is the error of fromOpenMPI or fromSlurm; if it is not nil,
// open returns it.
func (p *place) open(ctx context.Context, getenv func(string) string, stderr io.Writer, err error) (*World, error) {
	switch {
	case err != nil:
		return nil, err
	case p.size == 1:
		return openAlone(getenv, stderr, "", "")
	}
	return p.openByRendezvous(ctx, getenv)
}

func wrap(err error, launcher string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("bootstrap from %s: %w", launcher, err)
}

// Values of World.Launcher: in a world of one, and in ranks that gorun has started.
const (
	alone  = "none"
	native = "gorun"
)

// openAlone returns a world of one. If although is not empty, it is a variable with its value that
// suggests several ranks. Then openAlone writes a line with although and hint to stderr.
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

// NewJobID returns a random job id: 16 hexadecimal digits.
func NewJobID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// NewSecret returns a random secret for a job.
func NewSecret() (s [32]byte) {
	_, _ = rand.Read(s[:]) // never fails
	return s
}

// paramsOf returns the parameters that environment variables set.
func paramsOf(getenv func(string) string) (*params.Set, error) {
	environ := make([]string, 0, len(params.Table))
	for _, p := range params.Table {
		environ = append(environ, p.Env()+"="+getenv(p.Env()))
	}
	return params.FromEnviron(environ)
}

// rankVars lists the variables by which Open MPI, PMI, MVAPICH2, Flux and Slurm give a process the
// number of ranks and its rank.
var rankVars = []struct{ size, rank string }{
	{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
	{"PMI_SIZE", "PMI_RANK"},
	{"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},
	{"FLUX_JOB_SIZE", "FLUX_TASK_RANK"},
	{"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
	{"SLURM_NTASKS", "SLURM_PROCID"},
}

// envStamp returns a digest of the variables by which launchers give a process its rank. If a program
// has the same digest as the rank that started it, the program has inherited all these variables, and
// no launcher has made it a rank of its own.
func envStamp(getenv func(string) string) string {
	h := sha256.New()
	names := []string{
		EnvJobID, EnvRank, EnvJobFD, "PMI_FD", "PMI_PORT", "PMI_ID", "PMIX_NAMESPACE", "PMIX_RANK",
		"OMPI_MCA_ess_base_jobid", "FLUX_JOB_ID", "SLURM_JOB_ID", "SLURM_STEP_ID",
	}
	for _, p := range rankVars {
		names = append(names, p.size, p.rank)
	}
	for _, name := range names {
		fmt.Fprintf(h, "%s=%q\n", name, getenv(name))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// multiRankVar returns a variable, as NAME=VALUE, that says that the job has several ranks, or that
// is gorun's variable with the rank. If there is none, it returns "".
func multiRankVar(getenv func(string) string) string {
	for _, p := range rankVars {
		if n, err := strconv.Atoi(getenv(p.size)); err == nil && n > 1 {
			return p.size + "=" + strconv.Itoa(n)
		}
	}
	if v := getenv(EnvRank); v != "" {
		return EnvRank + "=" + v
	}
	return ""
}

// missingLauncher returns an error if the environment says that there are other ranks of PMI-1,
// or of a launcher that should provide PMI-1, but this process cannot reach the launcher.
func missingLauncher(getenv func(string) string) error {
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
		return fmt.Errorf("found %s, but not the descriptors of gorun; a program between gorun and this one may have closed them; to run this program alone, unset %s", text, EnvRank)
	}
	switch found("PMI_SIZE", "MV2_COMM_WORLD_SIZE", "FLUX_JOB_SIZE") {
	case "PMI_SIZE=1", "MV2_COMM_WORLD_SIZE=1", "FLUX_JOB_SIZE=1":
		return nil
	}
	if text := found("PMI_RANK", "PMI_SIZE", "PMI_FD"); text != "" {
		if getenv("PMI_FD") == "" {
			return fmt.Errorf("found %s, but neither PMI_FD nor PMI_PORT, which PMI-1 needs; %s", text, startWith)
		}
		return fmt.Errorf("found %s, but PMI_FD is not a socket; a program between the launcher and this one may have closed it; to run this program alone, unset PMI_FD, PMI_RANK and PMI_SIZE", text)
	}
	if text := found("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"); text != "" {
		return fmt.Errorf("found %s, but neither PMI_FD nor PMI_PORT, which the launcher of MVAPICH2 should set; %s", text, startWith)
	}
	if text := found("FLUX_TASK_RANK", "FLUX_JOB_SIZE"); text != "" {
		return fmt.Errorf("found %s, but not PMI_FD: start the ranks with flux run -o pmi=simple", text)
	}
	return nil
}
