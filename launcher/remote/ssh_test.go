package remote

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/launcher/hosts"
)

func TestSamePath(t *testing.T) {
	for _, shell := range []string{"sh", "bash", "dash", "csh", "tcsh", "fish", "zsh"} {
		t.Run(shell, func(t *testing.T) {
			p := fakeSSH(t, shell, "")
			conn := open(t, &p.ssh, hosts.Host{Name: "node"})
			require.Equal(t, "hello", echo(t, conn, "hello"))
			require.NoFileExists(t, p.cached(t))
		})
	}
}

func TestSend(t *testing.T) {
	for _, shell := range []string{"sh", "bash", "dash", "csh", "tcsh", "fish", "zsh"} {
		t.Run(shell, func(t *testing.T) {
			p := fakeSSH(t, shell, "")
			p.elsewhere(t)
			for range 2 {
				conn := open(t, &p.ssh, hosts.Host{Name: "node"})
				require.Equal(t, "hello", echo(t, conn, "hello"))
				require.NoError(t, conn.Close())
			}
			entries, err := os.ReadDir(filepath.Dir(p.cached(t)))
			require.NoError(t, err)
			require.Len(t, entries, 1)
			require.FileExists(t, p.cached(t))
		})
	}
}
