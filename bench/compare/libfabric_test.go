//go:build linux && libfabric

package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/bench/contest"
	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
)

func testedProviders() []string {
	return []string{"shm", "tcp;ofi_rxm", libfabrictest.XNet(), "udp;ofi_rxd"}
}

// TestPeersOverLibfabric runs the C programs with which weft is compared over libfabric. Each must
// report a figure.
func TestPeersOverLibfabric(t *testing.T) {
	p, err := contest.NewPrograms(t.Context(), "./bench")
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	b := &built{Programs: p}
	b.findLibfabric(t.Context())
	require.True(t, b.libfabric, "pkg-config finds libfabric, which this test was built with")
	require.NoError(t, b.buildLibfabric(t.Context()))
	s := &settings{time: 10 * time.Millisecond, providers: testedProviders(), sizes: []int{64, 4096}}
	messages := b.messages(s)
	require.Len(t, messages, len(s.providers)*2)
	require.Equal(t, contest.OfDifference, messages[0].Lines[0].Of)
	require.Equal(t, contest.OfRatio, messages[1].Lines[0].Of)
	s.sizes = s.sizes[:1]
	transfers := b.onesided(s)
	require.Len(t, transfers, len(s.providers)*2*2)
	for _, c := range append(messages[:1], transfers...) {
		require.Len(t, c.Peers, 1)
		xs, err := c.Peers[0].Measure(t.Context())
		require.NoError(t, err, c.Lines[0].What)
		require.Len(t, xs, 1)
		require.Positive(t, xs[0], c.Lines[0].What)
	}
	for _, p := range s.providers {
		x, err := runPingpong(t.Context(), sideLimit, p, 64, 20)
		require.NoError(t, err, p)
		require.Positive(t, x, p)
	}
}

// TestCompareLibfabric runs all comparisons over one provider, too briefly for meaningful
// figures. Each must print its row of the table.
func TestCompareLibfabric(t *testing.T) {
	var out, progress bytes.Buffer
	code := run(t.Context(), &out, &progress, []string{"-only", "libfabric,rma", "-providers", "shm", "-sizes", "8,4096", "-rounds", "1", "-time", "20ms"})
	require.Zero(t, code, progress.String())
	require.NotContains(t, out.String(), " fails")
	for _, row := range []string{
		`(?m)^\| shm, 8 B, one way \| µs \| \*\*.*fi_pingpong \*\*.* µs\) \| ≤ \+0\.25 µs \| (yes|no) \|$`,
		`(?m)^\| shm, 4 KiB, one way \| µs \| \*\*.*fi_pingpong \*\*.* \| ≤ 1\.3 \| (yes|no) \|$`,
		`(?m)^\| shm, put and flush, 8 B \| µs \| \*\*.*C \*\*.* \| ≤ \+0\.25 µs \| (yes|no) \|$`,
		`(?m)^\| shm, get, windows of 64 × 4 KiB \| MB/s \| \*\*.*C \*\*.* \| ≥ 0\.95 \| (yes|no) \|$`,
	} {
		require.Regexp(t, row, out.String())
	}
	require.Equal(t, 1+8, strings.Count(out.String(), "\n| "), out.String())
}

func TestPingpongThatFails(t *testing.T) {
	_, err := runPingpong(t.Context(), 10*time.Second, "no-such-provider", 8, 10)
	require.Error(t, err)
}

func TestListening(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, listening(t.Context(), port))
	require.NoError(t, l.Close())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorContains(t, listening(ctx, port), fmt.Sprintf("nobody listens on port %d", port))
}

func TestColumn(t *testing.T) {
	const table = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n" +
		"1m      200     =200     400m        0.12s   3404.27     308.02       0.00\n"
	x, err := column(table, "usec/xfer")
	require.NoError(t, err)
	require.InDelta(t, 308.02, x, 1e-9)
	for _, bad := range []string{"", "usec/xfer\n", "bytes\n8\n"} {
		_, err := column(bad, "usec/xfer")
		require.Error(t, err, bad)
	}
}
