//go:build libfabric

package libfabric

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
	"github.com/weft-hpc/weft/transport/transporttest"
)

// withParams is a provider whose Open gets the parameters in set.
type withParams struct {
	transport.Provider
	set *params.Set
}

func (p withParams) Open(cfg transport.Config) (transport.Domain, error) {
	cfg.Params = p.set
	return p.Provider.Open(cfg)
}

// withProvider returns the provider of this package with the parameter
// transport.libfabric.provider set to prov.
func withProvider(t testing.TB, prov string) transport.Provider {
	t.Helper()
	set := &params.Set{}
	require.NoError(t, set.Set("transport.libfabric.provider", prov, params.FromFlag))
	return withParams{New(), set}
}

func conform(t *testing.T, prov string, opts ...transporttest.Option) {
	t.Helper()
	transporttest.Run(t, transporttest.OpenWith(func(t testing.TB) (transport.Provider, func(int)) {
		t.Helper()
		return withProvider(t, prov), nil
	}), opts...)
}

// refusals returns options that exclude, with this reason, the test cases in which the target must
// refuse an access. Some libfabric providers fail these cases; docs/libfabric.md explains why.
func refusals(reason string) []transporttest.Option {
	var l []transporttest.Option
	for _, name := range []string{"refused reads", "refused writes", "region closed under reads", "region closed under writes"} {
		l = append(l, transporttest.Except(name, reason))
	}
	return l
}

const connectionEnds = "the target ends the connection at a wrong key, so the peer is reported down instead of ErrKey"

func TestConformance(t *testing.T) {
	t.Run("tcp;ofi_rxm", func(t *testing.T) {
		conform(t, "tcp;ofi_rxm", append(refusals(connectionEnds), transporttest.WithRanks(1, 2, 3, 5))...)
	})
	t.Run("xnet", func(t *testing.T) {
		conform(t, libfabrictest.XNet(), append(refusals(connectionEnds), transporttest.WithRanks(1, 2, 4))...)
	})
	t.Run("shm", func(t *testing.T) {
		conform(t, "shm", append(refusals("accesses are copied by the kernel, which knows no keys"),
			transporttest.WithRanks(1, 2, 3, 5),
			transporttest.Except("close with operations in flight",
				"endpoints of one process use each other's memory, and crash when it is unmapped"))...)
	})
	t.Run("udp;ofi_rxd", func(t *testing.T) {
		conform(t, "udp;ofi_rxd", append(refusals("the target ignores an access that it refuses, which never completes"),
			transporttest.WithRanks(1, 2, 3))...)
	})
	t.Run("sockets", func(t *testing.T) {
		const (
			bounds = "EACCES reports a wrong key, range and right alike: all are ErrKey"
			late   = "the target may continue an access while and after it closes the region"
			stalls = "with hundreds of messages in flight it stalls for ever in one run of six"
		)
		conform(t, "sockets", transporttest.WithRanks(1, 2),
			transporttest.Except("refused reads", bounds), transporttest.Except("refused writes", bounds),
			transporttest.Except("region closed under reads", late), transporttest.Except("region closed under writes", late),
			transporttest.Except("flood", stalls), transporttest.Except("shutdown delivers", stalls))
	})
}

// TestConformanceSymmetric gives the ranks listeners on consecutive ports, as the launcher does, so
// that addresses can be inserted with InsertSym.
func TestConformanceSymmetric(t *testing.T) {
	jobs := 0
	base := portBlock(t)
	for _, prov := range []string{"tcp;ofi_rxm", libfabrictest.XNet()} {
		t.Run(prov, func(t *testing.T) {
			transporttest.Run(t, func(t testing.TB, n int) *transporttest.Job {
				t.Helper()
				files := listen(t, base, n)
				jobs++
				job := &transporttest.Job{Node: "127.0.0.1", Service: strconv.Itoa(base)}
				for i, f := range files {
					cfg := transport.Config{Self: transport.Addr(i), Size: n, JobID: strconv.Itoa(jobs), Listener: f}
					d, err := withProvider(t, prov).Open(cfg)
					require.NoError(t, err)
					require.True(t, d.Attr().Caps.Has(transport.CapSymmetric))
					job.Domains = append(job.Domains, d)
				}
				return job
			}, append(refusals(connectionEnds), transporttest.WithRanks(3))...)
		})
	}
}

// portBlock returns the first of ten consecutive free ports of 127.0.0.1. The provider takes over
// ports on which a test listens, and each is free for a moment. So that no other process with this test
// takes it, portBlock listens on the port before the block until the test ends, and other processes
// use other blocks.
func portBlock(t testing.TB) int {
	t.Helper()
	for owned := 23000; owned < 30000; owned += 11 {
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", owned)); err == nil {
			t.Cleanup(func() { require.NoError(t, l.Close()) })
			return owned + 1
		}
	}
	t.Fatal("no block of ports is free")
	return 0
}

// listen listens on n ports of 127.0.0.1 from port on, and returns the sockets.
func listen(t testing.TB, port, n int) (files []*os.File) {
	t.Helper()
	for i := range n {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+i))
		require.NoError(t, err)
		f, err := l.(*net.TCPListener).File()
		require.NoError(t, err)
		require.NoError(t, l.Close())
		files = append(files, f)
	}
	return files
}

// TestConformanceHooked runs the conformance tests with a hook provider layered over tcp;ofi_rxm.
// It runs in a process of its own, because libfabric reads the names of the hooks once per process.
func TestConformanceHooked(t *testing.T) {
	if inSubprocess(t, "WEFT_LIBFABRIC_TEST_HOOKED") {
		conform(t, "tcp;ofi_rxm;ofi_hook_perf", append(refusals(connectionEnds), transporttest.WithRanks(2))...)
		require.Equal(t, "ofi_hook_perf", os.Getenv("FI_HOOK"))
	}
}

// TestConformanceUncopied runs the conformance tests with shm and FI_SHM_DISABLE_CMA. With that
// variable shm does not use process_vm_readv(2) and process_vm_writev(2), which many containers
// forbid.
func TestConformanceUncopied(t *testing.T) {
	if inSubprocess(t, "FI_SHM_DISABLE_CMA") {
		conform(t, "shm", append(refusals("not over shm"), transporttest.WithRanks(2),
			transporttest.Except("close with operations in flight", "not within one process"))...)
	}
}

// inSubprocess returns true if the environment has the variable: then this process is the
// subprocess, and the caller does the test. Otherwise inSubprocess runs the test in a subprocess
// with the variable, requires that it succeeds, and returns false.
func inSubprocess(t *testing.T, variable string) bool {
	t.Helper()
	if os.Getenv(variable) != "" {
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), variable+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return false
}
