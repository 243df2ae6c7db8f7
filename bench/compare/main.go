//go:build linux

// Compare measures weft on this machine and prints a table in Markdown. It makes these
// comparisons: weft over tcp with a C program that uses one socket, and with Open MPI, also
// between two hosts; the values of transport.tcp.security with each other; and weft over
// libfabric with C programs. bench/peers compares weft with MPI on one host.
//
//	go run ./bench/compare
//	go run ./bench/compare -only hosts
//	go run ./bench/compare -only security
//	go run ./bench/compare -only libfabric,rma -providers shm -sizes 8,4096
//
// Compare builds the programs in a temporary directory. The programs that are compared with weft are
// the peers; weft and the peers are the sides. In each round Compare measures every side once, because
// the speed of a machine changes over time. It prints the median of each side's figures over the
// rounds, their range, and the ratio to the better peer. It leaves out peers that are not installed,
// and prints their names. The hosts are made of Linux namespaces, for which Compare needs root; without
// root it leaves out the comparisons between hosts. No other program should run during the measurement.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
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
	time   time.Duration // duration of one measurement
	block  time.Duration // how long an idle rank is blocked in Recv
	only   []string      // the groups of comparisons to run; empty: all
	strict bool          // exit with 1 if a target is missed

	providers []string // libfabric providers to compare
	sizes     []int    // bytes of a message or RMA operation in the groups libfabric and rma
}

// names are the groups of comparisons.
var names = []string{"latency", "bandwidth", "rate", "idle", "hosts", "security", "libfabric", "rma"}

// wants reports whether a group of comparisons is to run.
func (s *settings) wants(name string) bool { return len(s.only) == 0 || slices.Contains(s.only, name) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Stdout, os.Stderr, os.Args[1:]))
}

// run runs the command Compare with these arguments, and returns its exit code.
func run(ctx context.Context, stdout, stderr io.Writer, args []string) int {
	s, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "compare: %v; -h lists the flags\n", err)
		return 2
	}
	missed, err := compare(ctx, stdout, stderr, s)
	if err != nil {
		fmt.Fprintf(stderr, "compare: %v\n", err)
		return 1
	}
	if missed && s.strict {
		return 1
	}
	return 0
}

func parse(args []string, help io.Writer) (*settings, error) {
	s := new(settings)
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.IntVar(&s.rounds, "rounds", 7, "`rounds`, in each of which every side is measured once")
	flags.DurationVar(&s.time, "time", time.Second, "`time` of a measurement of latency or bandwidth")
	flags.DurationVar(&s.block, "block", 5*time.Second, "`time` that an idle rank is blocked in Recv")
	flags.BoolVar(&s.strict, "strict", false, "exit with 1 if a target is missed")
	only := flags.String("only", "", "comma separated `names`: "+strings.Join(names, ", ")+"; all by default")
	providers := flags.String("providers", "shm,tcp;ofi_rxm,net,udp;ofi_rxd", "comma separated `names` of libfabric's providers")
	sizes := flags.String("sizes", "8,64,4096,65536,1048576", "comma separated `bytes` of messages and transfers over libfabric")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		flags.SetOutput(help)
		flags.Usage()
	}
	switch {
	case err != nil:
		return nil, err
	case flags.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case s.rounds < 1 || s.time <= 0 || s.block <= 0:
		return nil, errors.New("expected more than 0 for -rounds, -time and -block")
	case *only != "":
		s.only = strings.Split(*only, ",")
	}
	s.providers = strings.Split(*providers, ",")
	for text := range strings.SplitSeq(*sizes, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("-sizes: expected bytes, found %q", text)
		}
		s.sizes = append(s.sizes, n)
	}
	for _, name := range s.only {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("-only: no comparison %q; expected one of %s", name, strings.Join(names, ", "))
		}
	}
	return s, nil
}

// compare runs the comparisons, prints the table, and reports whether a target was missed.
func compare(ctx context.Context, w, progress io.Writer, s *settings) (missed bool, err error) {
	b, err := build(ctx, s)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	all := b.contests(s)
	fmt.Fprintf(w, "%v.\nMedians of %d rounds, their range in brackets; the sides took turns.\n", b.Machine(ctx), s.rounds)
	if len(b.Missing) > 0 {
		fmt.Fprintf(w, "Not installed, therefore left out: %s.\n", strings.Join(b.Missing, ", "))
	}
	if b.noHosts != nil {
		fmt.Fprintf(w, "Comparisons between hosts are left out: %v.\n", b.noHosts)
	}
	fmt.Fprintln(w)
	fmt.Fprintln(w, "| what | unit | weft | peers | ratio to the better peer | target | met |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|")
	for _, c := range all {
		if !s.wants(c.Name) {
			continue
		}
		results, err := c.Run(ctx, progress, s.rounds)
		if err != nil {
			return missed, err
		}
		for _, r := range results {
			if ours := r.Sides[0]; ours.Err != nil {
				return missed, fmt.Errorf("%s: %s: %w", c.Name, ours.Name, ours.Err)
			}
			fmt.Fprintln(w, row(&r))
			missed = missed || r.Verdict() == contest.Missed
		}
	}
	return missed, nil
}

// row returns the line of the table for a result.
func row(r *contest.Result) string {
	var peers []string
	for _, p := range r.Sides[1:] {
		text := " fails"
		if len(p.Rounds) > 0 {
			text = " " + spread(p)
		}
		peers = append(peers, p.Name+text)
	}
	ratio, bound := "–", r.Bound()
	switch {
	case len(peers) > 0 && math.IsNaN(r.Ratio()):
		bound = "–"
	case len(peers) > 0 && r.Of == contest.OfDifference:
		ratio = fmt.Sprintf("%.2f (%+.2f %s)", r.Ratio(), r.Value(), r.Unit)
	case len(peers) > 0:
		ratio = fmt.Sprintf("%.2f", r.Ratio())
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |",
		r.What, r.Unit, spread(r.Sides[0]), strings.Join(peers, "; "), ratio, bound, r.Verdict())
}

// spread returns the median of a side's figures and their range as text.
func spread(f contest.Figures) string {
	return fmt.Sprintf("**%s** (%s–%s)", contest.Digits(f.Median()), contest.Digits(slices.Min(f.Rounds)), contest.Digits(slices.Max(f.Rounds)))
}
