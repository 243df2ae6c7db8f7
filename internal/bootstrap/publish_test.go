package bootstrap

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/params"
)

// TestPublishStale lets several processes replace the name of a process that was killed at the same
// time. One of them must publish its port, and the others must get an error.
func TestPublishStale(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	set, err := params.FromEnviron(nil)
	require.NoError(t, err)
	const rounds, n = 30, 4
	var ports [n]*Port
	for i := range ports {
		p, err := OpenPort(2)
		require.NoError(t, err)
		defer p.Close()
		ports[i] = p
	}
	for round := range rounds {
		name := fmt.Sprint("name ", round)
		stale, err := OpenPort(2)
		require.NoError(t, err)
		_, err = stale.Publish(set, name)
		require.NoError(t, err)
		require.NoError(t, stale.Close()) // the file stays, as that of a killed process

		errs := make([]error, n)
		done := make(chan struct{})
		for i, p := range ports {
			go func() { // ends when Publish has returned; the loop below waits for it
				_, errs[i] = p.Publish(set, name)
				done <- struct{}{}
			}()
		}
		for range n {
			<-done
		}
		var winner []string
		for i, err := range errs {
			if err == nil {
				winner = append(winner, ports[i].Addr())
			} else {
				require.ErrorContains(t, err, "already")
			}
		}
		require.Len(t, winner, 1)
		addr, err := LookupPort(set, name)
		require.NoError(t, err)
		require.Equal(t, winner[0], addr)
	}
	left, err := os.ReadDir(filepath.Join(home, ".weft"))
	require.NoError(t, err)
	require.Len(t, left, rounds, "only the published names are left")
}

// TestPublishFails: a name with many escaped letters is published like others. After Publish has failed, and
// after another port has replaced the file, Unpublish leaves the file alone.
func TestPublishFails(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	set, err := params.FromEnviron(nil)
	require.NoError(t, err)
	port, err := OpenPort(2)
	require.NoError(t, err)
	defer port.Close()
	long, other := strings.Repeat("é", 50), strings.Repeat("é", 49)+"ee"
	path, err := port.Publish(set, long)
	require.NoError(t, err)
	addr, err := LookupPort(set, long)
	require.NoError(t, err)
	require.Equal(t, port.Addr(), addr)
	_, err = LookupPort(set, other)
	require.ErrorContains(t, err, "no port is published")

	second, err := OpenPort(2)
	require.NoError(t, err)
	defer second.Close()
	failed, err := second.Publish(set, long)
	require.ErrorContains(t, err, "already")
	require.Empty(t, failed)
	require.NoError(t, second.Unpublish(path)) // the file is not of this port
	require.FileExists(t, path)
	require.NoError(t, port.Unpublish(path))
	require.NoFileExists(t, path)
	require.NoError(t, port.Unpublish(path))
}
