package commtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"github.com/weft-hpc/weft/comm"
)

// Tests on the ranks of a launcher
//
//	go test -exec 'gorun -np 4' ./…
//
//	process 0 ─ TestMain ─ Main ─ TestA ─ Run(t, 3, f) ─ f ─┐           ┌─ result of all ranks ─ TestB …
//	process 1 ─ TestMain ─ Main ─ TestA ─ Run(t, 3, f) ─ f ─┼─ exchange ┼─ result of all ranks ─ TestB …
//	process 2 ─ TestMain ─ Main ─ TestA ─ Run(t, 3, f) ─ f ─┤           ├─ result of all ranks ─ TestB …
//	process 3 ─ TestMain ─ Main ─ TestA ─ Run(t, 3, f) ─────┘           └─ result of all ranks ─ TestB …
//
// All processes run the same tests in the same order; turns.go makes it the same for parallel tests.
// A test fails in all of them if it fails in one.

// world is the communicator of the processes that Main runs the tests in. It is nil if Main was not
// called, or if no launcher has started the process. Main sets it before the tests run.
var world *comm.Comm

// Main runs the tests of a package on the ranks of a launcher, if one has started the test binary:
//
//	func TestMain(m *testing.M) { commtest.Main(m) }
//
//	$ go test ./solver                             # ranks are goroutines
//	$ go test -exec 'gorun -np 4' ./solver         # ranks are processes
//	$ go test -exec 'gorun -H node1,node2' ./solver
//
// Each process runs all tests. In a job of at least n ranks, [Run] with n ranks calls f once in
// each of the first n processes, and waits for them in the others. Run uses goroutines nevertheless
// if the job has fewer ranks, for benchmarks, and for options that only goroutines can have: all
// except WithTimeout. f must not call Finalize, and a call of Abort ends the job. A test fails in
// all processes if it fails in one of them.
//
// The processes must run the same tests in the same order. So Main gives all processes the seed of
// -shuffle. Run calls f for one test at a time, also in parallel tests, which package testing starts in
// any order; for them Main sets -parallel to a large number. If the tests differ, for example
// because of a condition in one process, Run fails the test. Only process 0 writes profiles, and the output of the others
// appears only if their tests fail.
//
// Main ends the process if the tests fail; otherwise it returns, and TestMain must return, too.
func Main(m *testing.M) {
	c, err := comm.Init(context.Background())
	if err != nil {
		fmt.Fprintf(os.Stderr, "commtest: %v\n", err)
		os.Exit(1)
	}
	if c.Job().Launcher == "none" {
		if err := c.Finalize(); err != nil { // so that tests may call Init
			fmt.Fprintf(os.Stderr, "commtest: %v\n", err)
			os.Exit(1)
		}
		if code := m.Run(); code != 0 {
			os.Exit(code)
		}
		return
	}
	code, err := runOn(c, m)
	if ferr := c.Finalize(); err == nil && code == 0 {
		err = ferr
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "commtest: rank %d: %v\n", c.Job().Rank, err)
		code = max(code, 1)
	}
	if code != 0 {
		os.Exit(code)
	}
}

// runOn runs the tests in the processes of c.
func runOn(c *comm.Comm, m *testing.M) (code int, err error) {
	flag.Parse()
	if err := agreeOnFlags(c); err != nil {
		return 1, err
	}
	world = c
	if c.Rank() == 0 {
		return m.Run(), nil
	}
	out, err := os.CreateTemp("", "commtest")
	if err != nil {
		return 1, err
	}
	defer func() { _ = errors.Join(out.Close(), os.Remove(out.Name())) }() // the file is of no further use
	stdout := os.Stdout
	os.Stdout = out
	code = m.Run()
	os.Stdout = stdout
	if code != 0 {
		if _, err = out.Seek(0, io.SeekStart); err == nil {
			_, err = io.Copy(stdout, out)
		}
	}
	return code, err
}

// agreeOnFlags makes the processes run the tests in the same order, and only process 0 write files.
func agreeOnFlags(c *comm.Comm) error {
	shuffle := ""
	if f := flag.Lookup("test.shuffle"); f != nil {
		shuffle = f.Value.String()
	}
	if shuffle == "on" {
		shuffle = strconv.FormatInt(time.Now().UnixNano(), 10)
	}
	shuffle, err := comm.BcastValue(c, shuffle, 0)
	if err != nil {
		return err
	}
	set := map[string]string{"test.shuffle": shuffle, "test.parallel": strconv.Itoa(allParallel)}
	if c.Rank() > 0 {
		for _, name := range []string{"blockprofile", "coverprofile", "cpuprofile", "memprofile", "mutexprofile", "testlogfile", "trace"} {
			set["test."+name] = ""
		}
	}
	for name, value := range set {
		if flag.Lookup(name) != nil {
			err = errors.Join(err, flag.Set(name, value))
		}
	}
	return err
}

// onProcesses reports whether Run uses the processes of the job for n ranks. own says whether an
// option needs goroutines.
func onProcesses(t testing.TB, n int, own bool) bool {
	_, isBenchmark := t.(*testing.B) // its number of iterations differs between processes
	return world != nil && n <= world.Size() && !own && !isBenchmark
}

// verdict is the result of a test in one process.
type verdict struct {
	Failed  string // the error; empty: the test has not failed
	Follows bool   // the error follows from that of another process
}

// runProcesses runs f in the first n processes of the job.
func runProcesses(t testing.TB, n int, f func(c *comm.Comm) error, timeout time.Duration) {
	t.Helper()
	if err := awaitTurn(t); err != nil {
		t.Fatal(err)
	}
	defer endTurn()
	color := comm.Undefined
	if world.Rank() < n {
		color = 0
	}
	c, err := world.Split(color, 0)
	if err != nil {
		t.Fatalf("commtest: %v", err)
	}
	if c == nil { // this process is not among the first n
		compareVerdicts(t, verdict{})
		return
	}
	bounded := c
	if timeout > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		bounded = c.WithContext(ctx)
	}
	ended := false
	defer func() {
		if ended {
			return
		}
		// f has panicked, or has called t.FailNow or t.SkipNow.
		v := verdict{Failed: errGoexit.Error()}
		if p := recover(); p != nil {
			v.Failed = fmt.Sprintf("panic: %v\n%s", p, debug.Stack())
		}
		if t.Skipped() {
			v.Failed = ""
		} else {
			_ = c.Revoke() // so that the other ranks do not wait for this one
		}
		compareVerdicts(t, v)
	}()
	err = f(bounded)
	ended = true
	var v verdict
	if err != nil {
		v = verdict{err.Error(), errors.Is(err, comm.ErrRevoked) || errors.Is(err, comm.ErrProcFailed)}
		_ = c.Revoke()
	}
	compareVerdicts(t, v)
	if err := c.Free(); err != nil {
		t.Fatalf("commtest: %v", err)
	}
}

// compareVerdicts exchanges the verdicts of all processes, and fails the test if it has failed in
// any process. It names the first process whose error does not follow from another one.
func compareVerdicts(t testing.TB, own verdict) {
	t.Helper()
	all, err := comm.AllgatherValue(world, own)
	if err != nil {
		t.Fatalf("commtest: %v", err)
	}
	first := -1
	for rank, v := range all {
		if v.Failed != "" && (first < 0 || all[first].Follows && !v.Follows) {
			first = rank
		}
	}
	if first >= 0 {
		t.Fatalf("rank %d: %s", first, all[first].Failed)
	}
}
