package mpi_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/fault"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/shm"
	"github.com/weft-hpc/weft/transport/tcp"
)

// fabric is a provider, with options for commtest.Run.
type fabric struct {
	name string
	open func() transport.Provider // called for each job
	opts []commtest.Option
	// immortal says that tests must not kill a rank over this fabric: the fabric does not report
	// the death of a rank (it lacks CapPeerDown), or it does not survive the death of one of
	// several ranks in the same process.
	immortal bool
}

// fabrics are fabrics over which messages and windows use each of their ways to move data: mappings,
// RMA and messages. Files with build tags add more fabrics.
var fabrics = []fabric{
	{name: "inproc", open: func() transport.Provider { return inproc.NewFabric() }},
	{name: "RMA", open: func() transport.Provider { return inproc.NewFabric(inproc.WithoutSharedMemory()) }},
	{name: "without RMA", open: func() transport.Provider {
		return inproc.NewFabric(inproc.WithoutRMA(), inproc.WithMaxMsgSize(2000))
	}},
	{name: "like verbs", open: func() transport.Provider {
		return inproc.NewFabric(inproc.WithMRMode(transport.MRVirtAddr|transport.MRLocal), inproc.WithInjectSize(0),
			inproc.WithMaxRMASize(3000), inproc.WithRMADelay(2))
	}},
	{name: "at random", open: func() transport.Provider {
		return fault.Wrap(inproc.NewFabric(inproc.WithoutSharedMemory()), fault.Legal(7))
	}},
	{name: "no async", open: func() transport.Provider { return inproc.NewFabric(inproc.WithoutSharedMemory()) },
		opts: []commtest.Option{commtest.WithParam("engine.async_progress", "false")}},
	{name: "own shm", open: shm.New},
	{name: "tcp", open: func() transport.Provider { return tcp.New() }},
}

// fabricCounts holds the numbers of ranks with which most tests over fabrics run.
var fabricCounts = []int{1, 2, 3, 5, 7}

// overFabrics runs f over each of fabrics, with each number of ranks in counts.
func overFabrics(t *testing.T, counts []int, f func(c *comm.Comm) error) {
	t.Helper()
	over(t, fabrics, counts, f)
}

// runJob starts a subtest with a job of n ranks.
type runJob = func(name string, n int, job func(c *comm.Comm) error)

// overMortal calls f for each fabric over which ranks can die. f calls run for each of its jobs, with the
// job's number of ranks. Most fabrics notice a death after a second, so all jobs of a fabric run at the same time.
func overMortal(t *testing.T, f func(run runJob)) {
	t.Helper()
	for _, fab := range fabrics {
		if fab.immortal {
			continue
		}
		t.Run(fab.name, func(t *testing.T) {
			f(func(name string, n int, job func(c *comm.Comm) error) {
				if raceEnabled {
					n = min(n, 5) // as in over
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					ranks(t, n, job, append([]commtest.Option{commtest.WithProviders(fab.open())}, fab.opts...)...)
				})
			})
		})
	}
}

func over(t *testing.T, fabrics []fabric, counts []int, f func(c *comm.Comm) error) {
	t.Helper()
	if raceEnabled && len(counts) > 1 { // the race detector takes ten times as long
		counts = slices.DeleteFunc(slices.Clone(counts), func(n int) bool { return n > 5 })
	}
	for _, fab := range fabrics {
		for _, n := range counts {
			t.Run(fmt.Sprintf("%s/%d", fab.name, n), func(t *testing.T) {
				ranks(t, n, f, append([]commtest.Option{commtest.WithProviders(fab.open())}, fab.opts...)...)
			})
		}
	}
}

// withWindow makes a window, calls f with it, and frees it.
func withWindow[T any](c *comm.Comm, n int, f func(w *comm.Win[T]) error) error {
	w, err := comm.NewWin[T](c, n)
	if err != nil {
		return err
	}
	if err := f(w); err != nil {
		return err
	}
	return w.Free()
}
