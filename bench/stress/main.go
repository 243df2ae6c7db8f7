//go:build linux

// Stress runs random jobs through gorun, one after the other, and looks whether
// each does what it must:
//
//	go run ./bench/stress -jobs 1000 -kills 100 -seed 1
//
// A job is bench/stress/rank with a random number of ranks, transports, sizes and
// forced algorithms. It must end with 0 within a minute, or its goroutines are
// printed. With -kills, a random rank of further jobs dies by SIGKILL at a random
// moment: the job must be over within two seconds, tell who died, and leave nothing
// behind. Of a failure the command that repeats it is printed.
//
//	draw.go  what a job is      run.go   runs one
//	kill.go  kills a rank       left.go  what is left behind
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
	"syscall"
	"time"
)

func main() { os.Exit(run(os.Stdout, os.Stderr, os.Args[1:])) }

func run(stdout, stderr io.Writer, args []string) int {
	flags := flag.NewFlagSet("stress", flag.ContinueOnError)
	flags.SetOutput(stderr)
	jobs := flags.Int("jobs", 100, "`number` of jobs")
	kills := flags.Int("kills", 0, "`number` of jobs of which a rank is killed, after the others")
	seed := flags.Uint64("seed", uint64(time.Now().UnixNano()%1e9), "`number` that the first job is drawn from; the next has the next number")
	ops := flags.Int("ops", 30, "`operations` of a job")
	transports := flags.String("transports", "", "`list` of transports that all jobs use, as shm or tcp,shm; empty: each draws its own")
	crowds := flags.Bool("crowds", false, "let most operations of the jobs be of many goroutines at once")
	timeout := flags.Duration("timeout", 0, "`time` after which it fails with what it is at; 0: none")
	first := flags.Bool("first", false, "end at the first failure")
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
	r, err := newRunner(ctx, *ops)
	if err != nil {
		fmt.Fprintln(stderr, "stress:", err)
		return 1
	}
	defer r.close()
	r.crowds = *crowds
	same := "" // of the commands that repeat jobs
	if r.transports = *transports; r.transports != "" {
		same = " -transports " + r.transports
	}
	if r.crowds {
		same += " -crowds"
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

// runner has what jobs need: programs, in a folder of its own.
type runner struct {
	ctx        context.Context // ends what runs
	dir        string          // absolute
	tmp        string          // TMPDIR of the jobs
	ops        int
	transports string // of all jobs; "": drawn
	crowds     bool   // most operations are of many goroutines
	algorithms []setting
}

// newRunner builds the programs.
func newRunner(ctx context.Context, ops int) (*runner, error) {
	dir, err := os.MkdirTemp("", "weft-stress-")
	if err != nil {
		return nil, err
	}
	r := &runner{ctx: ctx, dir: dir, tmp: filepath.Join(dir, "tmp"), ops: ops}
	if err := r.prepare(); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *runner) prepare() error {
	const project = "github.com/weft-hpc/weft/"
	build := exec.CommandContext(r.ctx, "go", "build", "-o", r.dir, project+"cmd/gorun", project+"bench/stress/rank")
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

func (r *runner) program(name string) string { return filepath.Join(r.dir, name) }

func (r *runner) close() { _ = os.RemoveAll(r.dir) } // a temporary folder
