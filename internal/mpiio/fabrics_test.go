package mpiio_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/comm/pio"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/shm"
	"github.com/weft-hpc/weft/transport/tcp"
)

// fabric is a provider, with options for commtest.Run.
type fabric struct {
	name string
	open func() transport.Provider // called for each job
	opts []commtest.Option
}

// fabrics are the fabrics of the tests. The code of files does not depend on the fabric; the fabrics
// differ in how messages with layouts and windows work. Files with build tags add more. Ranks of different
// hosts would use any interface; those named here stay, while tests that run at the same time add and remove
// others.
var fabrics = []fabric{
	{name: "inproc", open: func() transport.Provider { return inproc.NewFabric() }},
	{name: "without RMA", open: func() transport.Provider {
		return inproc.NewFabric(inproc.WithoutRMA(), inproc.WithMaxMsgSize(2000))
	}},
	{name: "shm", open: shm.New},
	{name: "tcp", open: func() transport.Provider { return tcp.New() },
		opts: []commtest.Option{commtest.WithParam("transport.tcp.interface", "127.0.0.1")}},
}

// overFabrics runs f over each of fabrics with each number of ranks in counts.
func overFabrics(t *testing.T, counts []int, f func(c *comm.Comm, name string) error) {
	t.Helper()
	for _, fab := range fabrics {
		for _, n := range counts {
			t.Run(fmt.Sprintf("%s/%d", fab.name, n), func(t *testing.T) {
				name := filepath.Join(t.TempDir(), "file")
				nodes := make([]int, n)
				for r := range nodes {
					nodes[r] = r / 2 // two ranks of a host, so that there are several aggregators
				}
				commtest.Run(t, n, func(c *comm.Comm) error { return f(c, name) },
					append([]commtest.Option{commtest.WithProviders(fab.open()), commtest.WithNodes(nodes...)}, fab.opts...)...)
			})
		}
	}
}

// withFile opens a file for reading and writing, calls f with it, and closes it.
func withFile(c *comm.Comm, name string, f func(f *pio.File) error, hints ...pio.Hint) error {
	file, err := pio.Open(c, name, os.O_RDWR|os.O_CREATE, 0o600, hints...)
	if err != nil {
		return err
	}
	if err := f(file); err != nil {
		return err
	}
	return file.Close()
}
