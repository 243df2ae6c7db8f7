//go:build linux

// Stress runs random jobs with gorun, one after the other, and checks each:
//
//	go run ./bench/stress -jobs 1000 -kills 100 -seed 1
//
// A job runs bench/stress/rank with a random number of ranks, random parameters of weft, and
// random forced algorithms of collectives. It must exit with 0. If it runs for longer than three
// minutes, Stress prints the stacks of its goroutines. With -kills, Stress runs further jobs and
// ends each by force at a random time: it kills a random rank by SIGKILL, or a process that a rank has
// started. Or a rank calls Abort, or gorun gets SIGTERM, which ends the contexts of all ranks
// (comm.MainContext). The job must end in time and leave no process and no file behind, and gorun must
// say the cause. In a quarter of the jobs with -kills the other ranks make a communicator without the
// killed rank, and do further operations with it. After a failure Stress prints the command that repeats
// the job.
//
// With -testprov, the jobs use libfabric over weft's test provider (transport/libfabric/testprov)
// in a random one of the given manners:
//
//	go run ./bench/stress -jobs 100 -testprov 'plain;verbs;efa;cxi;psm;late=300;enorx=6'
//
//	draw.go  chooses a random job    run.go   runs a job
//	kill.go  kills a rank            left.go  finds what a job leaves behind
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/internal/tempdir"
	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
)

func main() { os.Exit(run(os.Stdout, os.Stderr, os.Args[1:])) }

func run(stdout, stderr io.Writer, args []string) int {
	flags := flag.NewFlagSet("stress", flag.ContinueOnError)
	flags.SetOutput(stderr)
	jobs := flags.Int("jobs", 100, "`number` of jobs")
	kills := flags.Int("kills", 0, "`number` of further jobs that end by force, mostly because a rank is killed")
	seed := flags.Uint64("seed", uint64(time.Now().UnixNano()%1e9), "`seed` of the first job; each further job has the next seed")
	ops := flags.Int("ops", 30, "`number` of operations per job")
	transports := flags.String("transports", "", "`list` of transports for all jobs, for example tcp,shm; empty: random")
	only := flags.String("only", "", "`list` of operations for all jobs, for example spawn,connect,sessions; empty: all")
	scripts := flags.String("testprov", "", "`list` of scripts of testprov, separated by semicolons; a job uses one of them, over libfabric")
	crowds := flags.Bool("crowds", false, "make most operations run in many goroutines at the same time")
	timeout := flags.Duration("timeout", 0, "`time` after which the run fails and prints the current job; 0: no limit")
	first := flags.Bool("first", false, "stop at the first failure")
	verbose := flags.Bool("v", false, "print the command of every job")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if *timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *timeout)
		defer cancel()
	}
	var manners []string
	if *scripts != "" {
		manners = strings.Split(*scripts, ";")
	}
	r, err := newRunner(ctx, *ops, strings.Contains(*transports, "libfabric"), manners)
	if err != nil {
		fmt.Fprintln(stderr, "stress:", err)
		return 1
	}
	defer r.close()
	r.crowds, r.only = *crowds, *only
	same := "" // the flags that every command to repeat a job needs
	if r.transports = *transports; r.transports != "" {
		same = " -transports " + r.transports
	}
	if *scripts != "" {
		same += fmt.Sprintf(" -testprov %q", *scripts)
	}
	if r.crowds {
		same += " -crowds"
	}
	if r.only != "" {
		same += " -only " + r.only
	}
	fmt.Fprintf(stdout, "%d jobs and %d kills from seed %d\n", *jobs, *kills, *seed)
	failed, begun := 0, time.Now()
	for i := range *jobs + *kills {
		s, kill := *seed+uint64(i), i >= *jobs
		what, again := "job", fmt.Sprintf("go run ./bench/stress -jobs 1 -ops %d -seed %d%s", *ops, s, same)
		if kill {
			s -= uint64(*jobs)
			what, again = "kill", fmt.Sprintf("go run ./bench/stress -jobs 0 -kills 1 -seed %d%s", s, same)
		}
		j := r.draw(s, kill)
		if *verbose {
			fmt.Fprintf(stdout, "%s %d: %s\n", what, s, j)
		}
		err := r.do(j)
		if errors.Is(ctx.Err(), context.Canceled) {
			fmt.Fprintf(stdout, "interrupted in %s %d\n", what, s)
			return 1
		}
		if err != nil {
			failed++
			fmt.Fprintf(stdout, "%s %d FAILED: %v\n%s\nagain: %s\n\n", what, s, err, j, again)
			if *first || ctx.Err() != nil {
				return 1
			}
		}
		if n := i + 1; n%100 == 0 || n == *jobs+*kills {
			fmt.Fprintf(stdout, "%d jobs in %v, %d failed\n", n, time.Since(begun).Round(time.Second), failed)
		}
	}
	if failed > 0 {
		return 1
	}
	return 0
}

// runner runs jobs. It holds what all jobs have in common.
type runner struct {
	ctx        context.Context // when it ends, the running job ends
	dir        *tempdir.Dir    // the folder with the programs
	tmp        string          // TMPDIR of the jobs
	ops        int             // number of operations of a job in which no rank is killed
	transports string          // value of transport.use for all jobs; "": random
	crowds     bool            // most operations of a job use many goroutines
	only       string          // the operations of all jobs; "": all
	scripts    []string        // scripts of testprov, over which all jobs run; nil: they do not
	algorithms []setting       // a setting for each collective, which forces an algorithm
}

// newRunner returns a runner. It builds gorun and the ranks' program in a temporary folder, which
// close removes. If libfabric is true, they can use libfabric; with scripts, also testprov, which
// newRunner builds.
func newRunner(ctx context.Context, ops int, libfabric bool, scripts []string) (*runner, error) {
	dir, err := tempdir.Make("weft-stress-")
	if err != nil {
		return nil, err
	}
	r := &runner{ctx: ctx, dir: dir, tmp: filepath.Join(dir.Path, "tmp"), ops: ops, scripts: scripts}
	if err := r.prepare(libfabric || scripts != nil); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *runner) prepare(libfabric bool) error {
	const project = "github.com/weft-hpc/weft/"
	args := []string{"build", "-o", r.dir.Path}
	if libfabric {
		args = append(args, "-tags", "libfabric")
	}
	if r.scripts != nil {
		if err := libfabrictest.Load(); err != nil {
			return err
		}
	}
	build := exec.CommandContext(r.ctx, "go", append(args, project+"cmd/gorun", project+"bench/stress/rank")...)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	if err := os.Mkdir(r.tmp, 0o700); err != nil {
		return err
	}
	info, err := exec.CommandContext(r.ctx, r.program("gorun"), "-info").Output()
	if err != nil {
		return fmt.Errorf("gorun -info: %w", err)
	}
	r.algorithms, err = algorithms(string(info))
	return err
}

// published returns the directory in which the jobs publish ports.
func (r *runner) published() string { return filepath.Join(r.dir.Path, "published") }

func (r *runner) program(name string) string { return filepath.Join(r.dir.Path, name) }

func (r *runner) close() { _ = r.dir.Remove() } // an error leaves only a temporary folder
