package tcp

import (
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/transporttest"
)

func TestConformance(t *testing.T) {
	transporttest.Run(t, transporttest.OpenWith(func(testing.TB) (transport.Provider, func(int)) { return New(), nil }))
}

// TestConformanceSymmetric runs the conformance suite with InsertSym. The ranks inherit sockets
// that are bound to consecutive ports of one address, as the launcher binds them. The address is an
// IPv6 address.
func TestConformanceSymmetric(t *testing.T) {
	jobs := 0
	transporttest.Run(t, func(t testing.TB, n int) *transporttest.Job {
		t.Helper()
		files, port := consecutive(t, "::1", n)
		jobs++
		job := &transporttest.Job{Node: "::1", Service: strconv.Itoa(port)}
		for i, f := range files {
			cfg := config(i, n)
			cfg.Listener = f
			cfg.JobID = strconv.Itoa(jobs)
			d, err := New().Open(cfg)
			require.NoError(t, err)
			require.NoError(t, f.Close())
			job.Domains = append(job.Domains, d)
		}
		return job
	}, transporttest.WithRanks(2, 5))
}

// consecutive returns n sockets that are bound to consecutive ports of host and do not listen, and
// the first port.
func consecutive(t testing.TB, host string, n int) ([]*os.File, int) {
	t.Helper()
	for base := 21000; base < 30000; base += n {
		var files []*os.File
		for i := range n {
			fd, err := sys.Socket(unix.AF_INET6, unix.SOCK_STREAM)
			require.NoError(t, err)
			files = append(files, os.NewFile(uintptr(fd), "listener"))
			sa := &unix.SockaddrInet6{Port: base + i}
			copy(sa.Addr[:], net.ParseIP(host))
			// Closed connections of earlier jobs may still be in TIME_WAIT on the port.
			require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
			if unix.Bind(fd, sa) != nil {
				break
			}
			if i == n-1 {
				return files, base
			}
		}
		for _, f := range files {
			require.NoError(t, f.Close())
		}
	}
	t.Fatal("no consecutive ports are free")
	return nil, 0
}
