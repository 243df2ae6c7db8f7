// Peers measures weft against Open MPI and MPICH between the ranks of this host,
// with the same loops (./bench, and bench/peers/mpi in C), and prints a table in
// Markdown:
//
//	go run ./bench/peers
//	go run ./bench/peers -only latency,barrier -ranks 2 -rounds 3
//	go run ./bench/peers -write docs/performance.md -svg docs/peers.svg    (make bench-peers)
//
// Open MPI and MPICH are the peers; weft and the peers are the sides. Peers builds the programs in a
// temporary directory. In each round it measures every side once, because the speed of a machine
// changes over time. It prints the medians of the rounds and the ratio to the better peer. If a peer
// fails or takes too long, its further figures are missing, and the run continues. No other program
// should run during the measurement.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/bench/contest"
)

// settings are the command line.
type settings struct {
	rounds int           // number of rounds
	time   time.Duration // duration of the measurement of one size
	ranks  []int         // numbers of ranks
	start  int           // number of ranks of the job that is timed from start to end
	only   []string      // the benchmarks to run; empty: all
	sizes  []int         // sizes in bytes, for [benchmark.at]; empty: the sizes of all goals
	strict bool          // exit with 1 if a target is missed

	write string // the page to write the table to; "": none
	svg   string // the file to draw the ratios to; "": none
	json  string // the file to write all figures to; "": none
	from  string // the file of an earlier -json to read instead of measuring; "": measure
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Stdout, os.Stderr, os.Args[1:]))
}

// run runs the command Peers with these arguments, and returns its exit code.
func run(ctx context.Context, stdout, stderr io.Writer, args []string) int {
	s, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "peers: %v; -h lists the flags\n", err)
		return 2
	}
	r, err := s.report(ctx, stderr)
	if err == nil {
		err = s.publish(ctx, stdout, r)
	}
	if err == nil && s.strict && r.count(contest.Missed) > 0 {
		err = fmt.Errorf("%d targets are missed", r.count(contest.Missed))
	}
	if err == nil {
		err = r.failure()
	}
	if err != nil {
		fmt.Fprintf(stderr, "peers: %v\n", err)
		return 1
	}
	return 0
}

func parse(args []string, help io.Writer) (*settings, error) {
	s := new(settings)
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.IntVar(&s.rounds, "rounds", 5, "`rounds`, in each of which every side is measured once")
	flags.DurationVar(&s.time, "time", 500*time.Millisecond, "`time` of a measurement of one size")
	flags.IntVar(&s.start, "start", 64, "`ranks` of the job that is timed from start to end")
	ranks := flags.String("ranks", "2,4,8", "comma separated `numbers` of ranks")
	only := flags.String("only", "", "comma separated `names`: "+strings.Join(names(), ", ")+"; all by default")
	quick := flags.Bool("quick", false, "for tests: one short round with 8 and 4096 bytes, or two of other sizes; its figures mean nothing")
	flags.BoolVar(&s.strict, "strict", false, "exit with 1 if a target is missed")
	flags.StringVar(&s.write, "write", "", "write the table into this `page`, between its markers")
	flags.StringVar(&s.svg, "svg", "", "draw the ratios into this `file`")
	flags.StringVar(&s.json, "json", "", "write all figures into this `file`")
	flags.StringVar(&s.from, "from", "", "measure nothing, read the `file` that -json wrote")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		flags.SetOutput(help)
		flags.Usage()
	}
	if err != nil {
		return nil, err
	}
	if *quick {
		s.rounds, s.time, s.start, s.sizes = 1, 10*time.Millisecond, 4, []int{8, 4096}
	}
	switch {
	case flags.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case s.rounds < 1 || s.time <= 0 || s.start < 1:
		return nil, errors.New("expected more than 0 for -rounds, -time and -start")
	case *only != "":
		s.only = strings.Split(*only, ",")
	}
	for text := range strings.SplitSeq(*ranks, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 2 || n%2 != 0 {
			return nil, fmt.Errorf("-ranks: expected even numbers, found %q", text)
		}
		s.ranks = append(s.ranks, n)
	}
	for _, name := range s.only {
		if !slices.Contains(names(), name) {
			return nil, fmt.Errorf("-only: no benchmark %q", name)
		}
	}
	return s, nil
}

// report returns the report of a new run, or with -from that of an earlier run.
func (s *settings) report(ctx context.Context, progress io.Writer) (*report, error) {
	if s.from == "" {
		return measure(ctx, progress, s)
	}
	text, err := os.ReadFile(s.from)
	if err != nil {
		return nil, err
	}
	r := new(report)
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("parse %s: %w", s.from, err)
	}
	return r, nil
}

// measure builds the programs, runs all contests, and returns the report.
func measure(ctx context.Context, progress io.Writer, s *settings) (r *report, err error) {
	b, err := build(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	r = &report{Machine: b.Machine(ctx), Rounds: s.rounds, Time: s.time.String()}
	for _, c := range b.contests() {
		results, err := c.Run(ctx, progress, s.rounds)
		if err != nil {
			return nil, err
		}
		for i, result := range results {
			r.Rows = append(r.Rows, entry{Bench: c.bench.name, Ranks: c.ranks, Size: c.sizes[i], Counts: c.bench.counts, Result: result})
		}
	}
	r.Notes = b.notes()
	return r, nil
}
