// Command gorun starts the ranks of a message passing program, as mpiexec does:
//
//	gorun -np 4 ./examples/allreduce -n 1024
//
// gorun -h lists the flags; docs/gorun.md describes them and the job file.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/weft-hpc/weft/launcher"
	"github.com/weft-hpc/weft/launcher/job"
)

// exitUsage is the exit code for a command line or a job file that makes no sense.
const exitUsage = 2

func main() {
	os.Exit(run(context.Background(), os.Stdin, os.Stdout, os.Stderr, os.Args[1:], os.Environ()))
}

// run does what the arguments say and returns the exit code.
func run(ctx context.Context, stdin *os.File, stdout, stderr io.Writer, args, environ []string) int {
	j, opts, err := job.Parse(args, environ)
	if err != nil {
		fmt.Fprintf(stderr, "gorun: %v\ngorun -h lists the flags\n", err)
		return exitUsage
	}
	switch opts.Action {
	case job.Help:
		err = job.WriteHelp(stdout)
	case job.Version:
		_, err = fmt.Fprintln(stdout, "gorun", version(), runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH)
	case job.Info:
		err = launcher.WriteInfo(stdout, j)
	case job.DryRun:
		return launcher.DryRun(stdout, stderr, j)
	case job.Agent:
		return launcher.AgentMain(ctx, opts, stderr)
	case job.Run:
		return launcher.Run(ctx, j, launcher.Stdio{In: stdin, Out: stdout, Err: stderr}).ExitCode
	}
	if err != nil {
		fmt.Fprintf(stderr, "gorun: print: %v\n", err)
		return 1
	}
	return 0
}

// version is the module's, or the commit it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && (v == "" || v == "(devel)") {
			v = s.Value
		}
	}
	if v == "" {
		return "unknown"
	}
	return v
}
