// Package transporttest is the conformance suite of the contract in package transport. The engine
// works over any provider that passes the suite. A provider's tests call Run with an Opener. A test
// case that needs a capability runs only if the provider's domains declare the capability. At the
// end, Run logs a table of the cases that did not run, with the reasons.
package transporttest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// Job holds the open domains of one job. No queue, address vector or endpoint is open yet.
type Job struct {
	Domains []transport.Domain // by rank

	// Node and Service are the arguments of InsertSym, with nodes = 1, that insert the addresses
	// of all ranks. If Service is empty, the suite uses Insert.
	Node, Service string

	// Kill ends a rank as the death of its process would. The suite may call Kill in any
	// goroutine. If Kill is nil, the suite instead closes the rank's domain without a Shutdown.
	Kill func(rank int)
}

// Opener opens a job of n ranks. The suite closes the domains. If the Opener opens anything else,
// it must close that by t.Cleanup.
type Opener func(t testing.TB, n int) *Job

// OpenWith returns an Opener that gives each job its own job id and secret. For each job the Opener
// calls newProvider, opens the domains of all ranks from the provider p, and sets Job.Kill to kill,
// which may be nil.
func OpenWith(newProvider func(t testing.TB) (p transport.Provider, kill func(rank int))) Opener {
	jobs := 0
	return func(t testing.TB, n int) *Job {
		t.Helper()
		p, kill := newProvider(t)
		jobs++
		job := &Job{Kill: kill}
		for i := range n {
			cfg := transport.Config{
				Self:    transport.Addr(i),
				Size:    n,
				JobID:   fmt.Sprintf("transporttest-%d-%d", os.Getpid(), jobs),
				OneHost: true,
			}
			copy(cfg.Secret[:], cfg.JobID)
			d, err := p.Open(cfg)
			require.NoError(t, err, "open rank %d of %d", i, n)
			job.Domains = append(job.Domains, d)
		}
		return job
	}
}

// Option changes what Run does.
type Option func(*suite)

// WithRanks sets the numbers of ranks of the jobs on which each case runs. The default is 1, 2, 3,
// 4, 7, 8.
func WithRanks(n ...int) Option { return func(s *suite) { s.ranks = n } }

// Except excludes the test case called name. The table of the cases that did not run gives the
// reason.
func Except(name, reason string) Option { return func(s *suite) { s.except[name] = reason } }

// Only makes Run run just the test cases with these names.
func Only(names ...string) Option { return func(s *suite) { s.only = names } }

// timeout bounds each wait of a rank: if a rank gets no completion for that long, the test case
// fails.
const timeout = 10 * time.Second

type suite struct {
	open    Opener
	ranks   []int
	except  map[string]string
	only    []string // nil: all
	missing []string // the cases that did not run: lines of the table
}

// capReach is the suite's own capability: RMA reaches all regions of all peers. No domain
// declares it; attributes finds out by [transport.RegionReacher].
const capReach transport.Caps = 1 << 62

// testCase is one requirement of the contract.
type testCase struct {
	name     string
	needs    transport.Caps // the case runs only if the domain has all of these
	minRanks int            // the case runs only on jobs of at least this many ranks
	maxRanks int            // the case runs only on jobs of at most this many ranks; 0: no limit
	run      func(w *world)
}

// Run runs every test case whose needs the domains meet, on jobs of several sizes (see WithRanks),
// one after the other. It opens a new job for each run, and checks that no goroutine and no
// descriptor of the job is left after Close. So while Run runs, no other code of the process may
// start goroutines or open descriptors.
func Run(t *testing.T, open Opener, opts ...Option) {
	t.Helper()
	s := &suite{open: open, ranks: []int{1, 2, 3, 4, 7, 8}, except: map[string]string{}}
	for _, o := range opts {
		o(s)
	}
	startRuntime(t)
	attr := s.attributes(t)
	for _, c := range cases() {
		if s.only != nil && !slices.Contains(s.only, c.name) {
			continue
		}
		if reason, ok := s.except[c.name]; ok {
			s.missing = append(s.missing, c.name+"\texcluded: "+reason)
			continue
		}
		if !attr.Caps.Has(c.needs) {
			s.missing = append(s.missing, c.name+"\tno "+capNames(c.needs&^attr.Caps))
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			for _, n := range s.ranks {
				if n < c.minRanks || c.maxRanks > 0 && n > c.maxRanks {
					continue
				}
				t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) { s.one(t, c, n) })
			}
		})
	}
	t.Logf("%s", table(attr, s.missing))
}

// attributes returns the attributes of the domains of a job, with capReach if each of two ranks
// reaches the region of the other.
func (s *suite) attributes(t *testing.T) transport.Attr {
	t.Helper()
	w := connect(t, s.open(t, 2))
	defer w.closeAll()
	attr := w.attr
	attr.Caps |= capReach
	for i, r := range w.ranks {
		mr, err := r.dom.RegisterMemory(make([]byte, 8), transport.RemoteRead|transport.RemoteWrite)
		require.NoError(t, err)
		if !w.ranks[1-i].reaches(r.id, mr.Key()) {
			attr.Caps &^= capReach
		}
		require.NoError(t, mr.Close())
	}
	return attr
}

// one runs a test case on a new job of n ranks.
func (s *suite) one(t *testing.T, c testCase, n int) {
	before := countResources(t)
	w := connect(t, s.open(t, n))
	defer func() {
		w.closeAll()
		if !t.Failed() {
			before.check(t)
		}
	}()
	c.run(w)
}

// closeAll shuts down and closes the ranks, except those that the test case has closed. If the test
// has failed, it closes all ranks without a Shutdown.
func (w *world) closeAll() {
	if w.t.Failed() { // no Shutdown, because it could wait for a rank that has stopped
		for _, r := range w.ranks {
			_ = r.dom.Close()
		}
		return
	}
	w.each(func(r *rank) error {
		if r.closed {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		if !r.left {
			if err := r.ep.Shutdown(ctx); err != nil {
				return fmt.Errorf("shutdown at the end: %w", err)
			}
		}
		return r.dom.Close()
	})
}

// cases returns all test cases of the suite.
func cases() []testCase {
	all := []testCase{}
	for _, part := range [][]testCase{
		basicCases, messageCases, rmaCases, sharedCases, atomicCases, waitCases, endCases, disconnectCases, allocationCases,
	} {
		all = append(all, part...)
	}
	return all
}

func table(attr transport.Attr, missing []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ", attr.Provider)
	if len(missing) == 0 {
		fmt.Fprintf(&b, "all cases ran")
		return b.String()
	}
	fmt.Fprintf(&b, "cases that did not run\n")
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, l := range missing {
		fmt.Fprintln(tw, l)
	}
	_ = tw.Flush() // a strings.Builder returns no error
	return b.String()
}

func capNames(c transport.Caps) string {
	var l []string
	for _, e := range []struct {
		bit  transport.Caps
		name string
	}{
		{transport.CapRead, "CapRead"},
		{transport.CapWrite, "CapWrite"},
		{transport.CapAtomic, "CapAtomic"},
		{transport.CapWaitFD, "CapWaitFD"},
		{transport.CapSharedMemory, "CapSharedMemory"},
		{transport.CapPeerDown, "CapPeerDown"},
		{transport.CapSymmetric, "CapSymmetric"},
		{transport.CapDisconnect, "CapDisconnect"},
		{transport.CapBatch, "CapBatch"}, {transport.CapFlush, "CapFlush"}, {transport.CapKeyCheck, "CapKeyCheck"}, {transport.CapPin, "CapPin"},
		{transport.CapDevice, "CapDevice"},
		{capReach, "access to all regions"},
	} {
		if c.Has(e.bit) {
			l = append(l, e.name)
		}
	}
	return strings.Join(l, ", ")
}

// resources is a count of what the process uses. A job must release what it has added.
type resources struct {
	goroutines int
	fds        map[string]string // by descriptor number: the file
}

func openFDs(t testing.TB) map[string]string {
	t.Helper()
	dir, err := os.Open("/proc/self/fd")
	if errors.Is(err, os.ErrNotExist) && runtime.GOOS != "linux" {
		return nil // this system has no /proc
	}
	require.NoError(t, err)
	names, err := dir.Readdirnames(-1)
	require.NoError(t, err)
	require.NoError(t, dir.Close())
	fds := make(map[string]string, len(names))
	for _, n := range names {
		// Readlink fails for the descriptor of dir, which is closed.
		if l, err := os.Readlink("/proc/self/fd/" + n); err == nil {
			fds[n] = l
		}
	}
	return fds
}

func countResources(t testing.TB) resources {
	t.Helper()
	return resources{goroutines: runtime.NumGoroutine(), fds: openFDs(t)}
}

// check fails the test if the process has more goroutines than before, or a descriptor that it did
// not have before. A domain must have closed its descriptors when Close returns. A goroutine may
// need a moment longer to end, so check waits up to two seconds for it.
func (before resources) check(t testing.TB) {
	t.Helper()
	for n, l := range openFDs(t) {
		if _, ok := before.fds[n]; !ok {
			t.Errorf("descriptor %s (%s) was left open", n, l)
		}
	}
	for end := time.Now().Add(2 * time.Second); runtime.NumGoroutine() > before.goroutines; runtime.Gosched() {
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Errorf("%d goroutines have not ended\n%s", runtime.NumGoroutine()-before.goroutines, buf[:runtime.Stack(buf, true)])
			return
		}
	}
}

// startRuntime makes the Go runtime open the descriptors of its netpoller before the first job, so
// that check does not take them for descriptors of a job.
func startRuntime(t testing.TB) {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, r.SetReadDeadline(time.Now()))
	_, err = r.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, r.Close())
	require.NoError(t, w.Close())
}
