// Package launcher runs a job: it builds or finds the programs, lays out
// addresses, starts the ranks, carries their input and output, serves PMI-1 to
// them, passes signals on, and ends with the job's exit code. One machine.
package launcher

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/weft-hpc/weft/launcher/job"
)

// Stdio is where a job reads and writes.
type Stdio struct {
	In  *os.File  // what Job.Stdin hands to the ranks; nil: nothing
	Out io.Writer // whole lines of the ranks' stdout; nil: discarded
	Err io.Writer // whole lines of the ranks' stderr, and what the launcher says; nil: discarded
}

// Result is how a job ended.
type Result struct {
	// ExitCode is what gorun exits with: 0; the first failure's exit code, or
	// 128+signal; 124 after the job's timeout; 127 or 126 for a program that
	// does not exist or cannot be executed; 1 for one that cannot be built;
	// 2 for a job that makes no sense.
	ExitCode int
	// Failure is the first failure in time; nil where the job ended well.
	// Run has already written it to Stdio.Err.
	Failure *Failure
}

// Failure says what failed first.
type Failure struct {
	Rank     int            // -1: the job as a whole (timeout, build, cancellation)
	Host     string         // where the rank ran
	Program  string         // as the job names it
	PID      int            // 0: it never started
	ExitCode int            // of the rank; 0 where Signal ended it
	Signal   syscall.Signal // that ended the rank; 0: none
	Reason   string         // why, where a code or a signal does not say it: an abort's reason, "exited without Finalize"
	Stderr   []string       // the rank's last lines of stderr, at most ten
}

// Error is the failure in one line.
func (f *Failure) Error() string { return fmt.Sprintf("rank %d: %s", f.Rank, f.Reason) }

// Run runs a job to its end and returns when every process of it has ended and
// everything that they wrote has been passed on. Errors of every kind are told
// on io.Err, in lines that begin with "gorun: "; the caller only exits with
// Result.ExitCode.
//
// While it runs, Run catches INT, TERM, HUP, QUIT, USR1, USR2 and TSTP of this
// process and passes them to the ranks' process groups; a second INT kills the
// job at once. The end of ctx ends the job as a timeout does, with exit code 1.
// A process runs one job at a time: Run makes it the reaper of its orphaned
// descendants. It starts this executable once more as a watchdog, which takes
// over in this package's init: callers need do nothing for that.
func Run(ctx context.Context, j *job.Job, io Stdio) Result {
	return Result{ExitCode: 1}
}
