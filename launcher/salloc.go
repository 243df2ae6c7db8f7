package launcher

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/weft-hpc/weft/launcher/hosts"
	"github.com/weft-hpc/weft/launcher/job"
	"github.com/weft-hpc/weft/launcher/proto"
	"github.com/weft-hpc/weft/launcher/remote"
)

// envAllocated marks a gorun that salloc has started for another.
const envAllocated = "WEFT_ALLOCATED"

// allocate has a job that wants Slurm get an allocation where it has none: salloc
// takes the place of this process and runs it once more, with the same arguments.
// It returns where that is not wanted, or cannot be done.
func allocate(j *job.Job) error {
	if j.Launcher != job.LaunchSlurm || hosts.Manager(os.Getenv) == hosts.Slurm {
		return nil
	}
	if os.Getenv(envAllocated) != "" {
		return errors.New("salloc has started gorun, and there is no allocation of Slurm")
	}
	salloc, err := exec.LookPath("salloc")
	if err != nil {
		return &startError{proto.ExitNotFound, "-launcher slurm: there is no allocation of Slurm here, and no salloc on PATH"}
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	args := j.SlurmArgs
	if !j.Verbose {
		args = append([]string{"--quiet"}, args...)
	}
	np := j.NP()
	if !j.NPGiven && len(j.Apps) == 1 {
		np = 0
	}
	line := remote.Salloc(args, np, exe, os.Args[1:])
	err = syscall.Exec(salloc, line, append(os.Environ(), envAllocated+"=1"))
	return fmt.Errorf("%s: %w", salloc, err)
}
