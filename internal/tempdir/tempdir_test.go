//go:build unix

package tempdir

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// inChild is set in a process of TestKilled that makes a directory and waits to be killed.
const inChild = "WEFT_TEMPDIR_TEST"

// TestKilled kills a process that has a directory. The next Make must remove the directory, but none of a process that
// runs, and nothing that is not of this package.
func TestKilled(t *testing.T) {
	if os.Getenv(inChild) != "" {
		d, err := Make("weft-test-")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(d.Path, "file"), nil, 0o600))
		fmt.Println("at", d.Path)
		_, _ = io.Copy(io.Discard, os.Stdin) // until the parent ends
		return
	}
	t.Setenv("TMPDIR", t.TempDir())
	for _, name := range []string{"weft-test-other", "weft-other-1"} {
		require.NoError(t, os.Mkdir(filepath.Join(os.TempDir(), name), 0o700))
	}
	require.NoError(t, os.WriteFile(filepath.Join(os.TempDir(), "weft-other-1", owner), nil, 0o600))

	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilled$")
	child.Env = append(os.Environ(), inChild+"=1")
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	in, err := child.StdinPipe()
	require.NoError(t, err)
	defer func() { _ = in.Close() }()
	require.NoError(t, child.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	path := strings.TrimPrefix(strings.TrimSpace(line), "at ")

	first, err := Make("weft-test-")
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(path, "file"), "its process runs")
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
	second, err := Make("weft-test-")
	require.NoError(t, err)
	require.NoDirExists(t, path)
	require.DirExists(t, first.Path)

	require.NoError(t, first.Remove())
	require.NoError(t, second.Remove())
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Len(t, left, 2)
}
