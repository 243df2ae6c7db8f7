//go:build linux

package launcher

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/job"
)

func TestBuild(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	abs, err := filepath.Abs("testdata/prog")
	require.NoError(t, err)
	for _, program := range []string{"./testdata/prog", "testdata/prog/main.go", abs, "github.com/weft-hpc/weft/launcher/testdata/prog"} {
		j := testJob(1, "a", "b")
		j.Apps[0].Program = program
		j.Apps[0].Wdir = "/"
		j.Apps = append(j.Apps, j.Apps[0], job.App{Program: "echo", Args: []string{"other"}, NP: 1})
		res, out, stderr := runJob(t, j)
		require.Zero(t, res.ExitCode, stderr)
		require.Equal(t, []string{"other", "prog 0 [a b] <nil>", "prog 1 [a b] <nil>"}, sortedLines(out))
	}
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestBuildOfThisDirectory(t *testing.T) {
	t.Chdir("testdata/prog")
	for _, program := range []string{".", "../prog"} {
		j := testJob(1, "a")
		j.Apps[0].Program = program
		res, out, stderr := runJob(t, j)
		require.Zero(t, res.ExitCode, stderr)
		require.Equal(t, "prog 0 [a] <nil>\n", out)
	}
}

func TestBuildErrors(t *testing.T) {
	for program, says := range map[string]string{
		"./testdata/broken":  "main.go:4:15: undefined: undefined",
		"./testdata/library": "gorun: cannot run ./testdata/library: it is not a main package",
	} {
		j := testJob(2)
		j.Apps[0].Program = program
		res, _, stderr := runJob(t, j)
		require.Equal(t, 1, res.ExitCode)
		require.Contains(t, stderr, says)
		require.Contains(t, stderr, program)
	}
}
