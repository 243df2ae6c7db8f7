// Command gorun starts the ranks of a message passing program, as mpiexec does:
//
//	gorun -np 4 ./examples/allreduce -n 1024
//
// gorun -h lists the flags; docs/gorun.md describes them and the job file.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/weft-hpc/weft/launcher"
	"github.com/weft-hpc/weft/launcher/job"
)

// exitUsage is the exit code of an invalid command line or job file.
const exitUsage = 2

func main() {
	os.Exit(run(context.Background(), os.Stdin, os.Stdout, os.Stderr, os.Args[1:], os.Environ()))
}

// run executes gorun with the arguments args, without argument 0, in the environment environ, which
// has the form of os.Environ. It returns the exit code.
func run(ctx context.Context, stdin *os.File, stdout, stderr io.Writer, args, environ []string) int {
	j, opts, err := job.Parse(args, environ)
	if err != nil {
		fmt.Fprintf(stderr, "gorun: %v\ngorun -h lists the flags\n", err)
		return exitUsage
	}
	switch opts.Action {
	case job.Help:
		err = job.WriteHelp(stdout, opts.Topic)
	case job.Completion:
		err = job.WriteCompletion(stdout, opts.Shell)
	case job.Complete:
		err = job.WriteCandidates(stdout, opts.Words)
	case job.Man:
		err = job.WriteMan(stdout)
	case job.Version:
		err = launcher.WriteVersion(stdout)
	case job.Info:
		for _, w := range j.Warnings {
			fmt.Fprintf(stderr, "gorun: warning: %s\n", w)
		}
		if err = launcher.WriteInfo(stdout, j, opts.Words); errors.As(err, new(*job.UsageError)) {
			fmt.Fprintf(stderr, "gorun: %v\n", err)
			return exitUsage
		}
	case job.DryRun:
		return launcher.DryRun(stdout, stderr, j)
	case job.Agent:
		return launcher.AgentMain(ctx, opts, stderr)
	case job.Stacks:
		return launcher.Stacks(ctx, stdout, stderr, opts)
	case job.PS:
		return launcher.PS(ctx, stdout, stderr)
	case job.Top:
		return launcher.Top(ctx, stdout, stderr, opts)
	case job.Stop:
		return launcher.Stop(ctx, stderr, opts)
	case job.Run:
		return launcher.Run(ctx, j, launcher.Stdio{In: stdin, Out: stdout, Err: stderr}).ExitCode
	}
	if err != nil {
		fmt.Fprintf(stderr, "gorun: print: %v\n", err)
		return 1
	}
	return 0
}
