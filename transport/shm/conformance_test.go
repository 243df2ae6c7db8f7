//go:build linux && !portable

package shm

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/transporttest"
)

// inherited returns an Opener of jobs whose ranks get a memory file in Config.Memory, as from the
// launcher.
func inherited(p transport.Provider) transporttest.Opener {
	jobs := 0
	return func(t testing.TB, n int) *transporttest.Job {
		t.Helper()
		jobs++
		memory, err := newMemory()
		require.NoError(t, err)
		defer memory.Close()
		job := &transporttest.Job{}
		for i := range n {
			cfg := config(i, n)
			cfg.JobID = fmt.Sprintf("inherited-%d-%d", os.Getpid(), jobs)
			cfg.Memory, cfg.Locals = memory, ranks(n)
			d, err := p.Open(cfg)
			require.NoError(t, err)
			job.Domains = append(job.Domains, d)
		}
		return job
	}
}

// TestConformance runs the conformance suite on ranks that get a memory file, as from the launcher.
func TestConformance(t *testing.T) { transporttest.Run(t, inherited(New())) }

// TestConformanceFound runs the conformance suite on ranks that find each other by their addresses.
func TestConformanceFound(t *testing.T) {
	transporttest.Run(t, transporttest.OpenWith(func(testing.TB) (transport.Provider, func(int)) { return New(), nil }),
		transporttest.WithRanks(1, 2, 5))
}

// TestConformanceWrap runs the conformance suite with message rings whose 32-bit sequence numbers
// begin at 2^32-100, so that they soon wrap around to 0.
func TestConformanceWrap(t *testing.T) {
	transporttest.Run(t, inherited(provider{start: 1<<32 - 100}), transporttest.WithRanks(2, 3))
}
