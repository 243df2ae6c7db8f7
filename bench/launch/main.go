//go:build linux

// Launch measures four costs of gorun: how long jobs take from start to end, on one host and on
// several by ssh, compared with Open MPI's mpirun; gorun's memory; the rate at which gorun
// forwards output; and how soon a job ends after a failure.
//
//	go run ./bench/launch [-rounds 7] [-only start,memory,output,failure]
//
// Launch prints tables in Markdown. It makes hosts of Linux namespaces, for which it needs root. It also
// needs iproute2, the OpenSSH server, and mpirun and mpicc of Open MPI. No other program should run
// during the measurement.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/weft-hpc/weft/internal/tempdir"
	"github.com/weft-hpc/weft/internal/testbed"
)

// bench is the state that the measurements share.
type bench struct {
	dir     string // folder of the programs
	rounds  int    // number of rounds, of which figures are medians
	cluster *testbed.Cluster
	from    *testbed.Host   // the host of the launchers
	hosts   []*testbed.Host // the hosts of the ranks
}

// hosts is the number of hosts that run ranks. gorun and mpirun run on another host.
const hosts = 4

func main() {
	rounds := flag.Int("rounds", 7, "number of rounds; figures are medians of them")
	only := flag.String("only", "start,memory,output,failure", "what to measure")
	flag.Parse()
	if err := run(*rounds, strings.Split(*only, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "launch:", err)
		os.Exit(1)
	}
}

func run(rounds int, what []string) (err error) {
	dir, err := tempdir.Make("weft-launch-")
	if err != nil {
		return err
	}
	defer func() { _ = dir.Remove() }()
	b := &bench{dir: dir.Path, rounds: rounds}
	if err := b.build(); err != nil {
		return err
	}
	if b.cluster, err = testbed.Open(hosts + 1); err != nil {
		return err
	}
	defer func() {
		if e := testbed.Down(); err == nil {
			err = e
		}
	}()
	b.hosts, b.from = b.cluster.Hosts()[:hosts], b.cluster.Hosts()[hosts]
	fmt.Printf("%s, %d hardware threads, %s, %s\n", time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.Version(), commit())
	for _, m := range []struct {
		name    string
		measure func() error
	}{{"start", b.start}, {"memory", b.memory}, {"output", b.output}, {"failure", b.failure}} {
		if !slices.Contains(what, m.name) {
			continue
		}
		if err := m.measure(); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return nil
}

func commit() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "commit unknown"
	}
	return "commit " + strings.TrimSpace(string(out))
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bench) build() error {
	for _, argv := range [][]string{
		{"go", "build", "-o", b.path("gorun"), "./cmd/gorun"},
		{"go", "build", "-o", b.path("hello"), "./bench/peers/hello"},
		{"mpicc.openmpi", "-O2", "-o", b.path("hello.openmpi"), "bench/peers/mpi/hello.c"},
	} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, out)
		}
	}
	return nil
}

// over returns an argument for -host: a list of n hosts with this number of slots each.
func (b *bench) over(n, slots int) string {
	var list []string
	for _, h := range b.hosts[:n] {
		list = append(list, fmt.Sprintf("%s:%d", h.Name(), slots))
	}
	return strings.Join(list, ",")
}

// gorun returns the command line of a job of np ranks on n hosts, which gorun starts by ssh. The
// method mpirun does the same for the command mpirun. more is the program with its arguments.
func (b *bench) gorun(n, np int, more ...string) []string {
	return append([]string{b.path("gorun"), "-ssh", b.cluster.SSH(), "-host", b.over(n, (np+n-1)/n), "-np", fmt.Sprint(np)}, more...)
}

func (b *bench) mpirun(n, np int, more ...string) []string {
	return append([]string{"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", b.cluster.SSH(),
		"--host", b.over(n, (np+n-1)/n), "-n", fmt.Sprint(np)}, more...)
}

// jobTimeout bounds the time of a job.
const jobTimeout = 5 * time.Minute

// job runs a command on the host b.from, calls check with its output, and returns how long the command
// took.
func (b *bench) job(argv []string, check func(out string) error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), jobTimeout)
	defer cancel()
	cmd := b.from.Command(ctx, argv[0], argv[1:]...)
	var words strings.Builder
	cmd.Stderr = &words
	begun := time.Now()
	out, err := cmd.Output()
	took := time.Since(begun)
	if err != nil {
		return 0, fmt.Errorf("%s: %w\n%s%s", strings.Join(argv, " "), err, out, words.String())
	}
	return took, check(string(out))
}

// lines returns a check for job: the output contains a line of the program hello for each of np
// ranks.
func lines(np int) func(string) error {
	return func(out string) error {
		if n := strings.Count(out, " of "); n != np {
			return fmt.Errorf("%d of %d ranks said hello:\n%s", n, np, out)
		}
		return nil
	}
}

func median[T float64 | time.Duration](list []T) T {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }

// manyRanks is a number of ranks. start runs jobs of that many ranks or more on the launcher's host
// only once, because they take long.
const manyRanks = 256

// start times jobs of the program hello, from the start of the launcher to its end. It compares gorun
// with mpirun, which run alternately; the ratio is the median of the ratios of the rounds. Then it
// times jobs of gorun whose ranks all run on the launcher's host.
func (b *bench) start() error {
	fmt.Printf("\n| hosts | ranks | gorun, s | mpirun, s | ratio |\n|---|---|---|---|---|\n")
	for _, c := range []struct{ hosts, np int }{{hosts, hosts}, {hosts, 16}, {hosts, 64}, {1, 64}} {
		var ours, theirs []time.Duration
		var ratios []float64
		for round := range b.rounds + 1 {
			x, err := b.job(b.gorun(c.hosts, c.np, b.path("hello")), lines(c.np))
			if err != nil {
				return err
			}
			y, err := b.job(b.mpirun(c.hosts, c.np, b.path("hello.openmpi")), lines(c.np))
			if err != nil {
				return err
			}
			// The first round does not count, because it copies gorun to the hosts and fills
			// caches.
			if round > 0 {
				ours, theirs, ratios = append(ours, x), append(theirs, y), append(ratios, x.Seconds()/y.Seconds())
			}
		}
		fmt.Printf("| %d by ssh | %d | %s | %s | %.2f |\n", c.hosts, c.np, seconds(median(ours)), seconds(median(theirs)), median(ratios))
	}
	fmt.Printf("\n| ranks on this host | hello, s | true, s |\n|---|---|---|\n")
	for np := 2; np <= 1024; np *= 2 {
		var took [2][]time.Duration
		rounds := max(b.rounds/2, 1)
		if np >= manyRanks {
			rounds = 1
		}
		for range rounds {
			for i, program := range []string{b.path("hello"), "true"} {
				check := lines(np)
				if i == 1 {
					check = func(string) error { return nil }
				}
				d, err := b.job([]string{b.path("gorun"), "-np", fmt.Sprint(np), program}, check)
				if err != nil {
					return err
				}
				took[i] = append(took[i], d)
			}
		}
		fmt.Printf("| %d | %s | %s |\n", np, seconds(median(took[0])), seconds(median(took[1])))
	}
	return nil
}
