package examples_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSilentConnections opens a thousand connections to the port of each rank before the ranks' programs
// start, as any local user can, and sends nothing. The job succeeds, and the ranks close these connections.
func TestSilentConnections(t *testing.T) {
	const ranks, perRank = 3, 1000
	ready := filepath.Join(t.TempDir(), "ready")
	first := freePorts(t, ranks)
	var silent []net.Conn
	opened := make(chan error, 1)
	go func() { // ends when all connections are open, or after a minute; the test receives its result below
		for i := range ranks * perRank {
			c, err := dialUntil(net.JoinHostPort("127.0.0.1", strconv.Itoa(first+i%ranks)), time.Now().Add(time.Minute))
			if err != nil {
				opened <- err
				return
			}
			silent = append(silent, c)
		}
		opened <- os.WriteFile(ready, nil, 0o600)
	}()
	code, stdout, stderr := gorun(t, "-np", strconv.Itoa(ranks), "-transport", "tcp", "-ports", fmt.Sprintf("%d-%d", first, first+ranks-1),
		"sh", "-c", `while [ ! -e "$1" ]; do sleep 0.01; done; exec "$0"`, filepath.Join(bin, "ring"), ready)
	require.NoError(t, <-opened, stderr)
	require.Zero(t, code, stderr)
	require.NotEmpty(t, stdout)
	for _, c := range silent {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err := io.ReadAll(c) // any result except a timeout means that the rank has closed c
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, c.Close())
	}
}

// freePorts returns the first of n consecutive TCP ports that no process uses.
func freePorts(t *testing.T, n int) (first int) {
	t.Helper()
	for {
		first = 20000 + rand.IntN(8000)
		free := 0
		for ; free < n; free++ {
			l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first+free)))
			if err != nil {
				break
			}
			require.NoError(t, l.Close())
		}
		if free == n {
			return first
		}
	}
}

// dialUntil tries to connect to addr until that succeeds, because a process listens there, or until the time
// end.
func dialUntil(addr string, end time.Time) (c net.Conn, err error) {
	for {
		if c, err = net.Dial("tcp", addr); err == nil || time.Now().After(end) {
			return c, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
