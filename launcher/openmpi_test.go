//go:build linux

package launcher

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWarningAboutOpenMPI: gorun must warn about a job of two ranks whose program is linked with
// Open MPI, because each rank would be a job of its own. It must not warn about a job of one rank,
// or about a program that is linked with MPICH.
func TestWarningAboutOpenMPI(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "main.c")
	require.NoError(t, os.WriteFile(source, []byte("int MPI_Init(int *, char ***);\nint main(int n, char **v) { return n > 1 ? MPI_Init(&n, &v) : 0; }\n"), 0o600))
	for cc, told := range map[string]bool{"mpicc.openmpi": true, "mpicc.mpich": false} {
		exe := filepath.Join(dir, cc+".out")
		out, err := exec.Command(cc, "-o", exe, source).CombinedOutput()
		require.NoError(t, err, string(out))
		for _, np := range []int{1, 2} {
			j := testJob(np)
			j.Apps[0].Program = exe
			_, _, stderr := runJob(t, j)
			require.Equal(t, told && np > 1, strings.Contains(stderr, "is linked with Open MPI"), stderr)
		}
	}
}
