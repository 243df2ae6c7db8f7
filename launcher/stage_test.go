package launcher

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/launcher/proto"
)

// TestStageFiles: files stand in one directory by their names, so that two of one name
// have to be the same.
func TestStageFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	ax, bx, cx, e, f := file("a/x", "1"), file("b/x", "1"), file("c/x", "2"), file("e", ""), file("f", "")
	j := testJob(1, "-c", `cd "$WEFT_STAGE_DIR" && cat x && ls`)
	j.Apps[0].Program = "/bin/sh"
	j.StageFiles = []string{ax, bx, e, f}
	res, out, errs := runJob(t, j)
	require.Zero(t, res.ExitCode, errs)
	require.Equal(t, "1e\nf\nx\n", out)

	j.StageFiles = []string{ax, e, cx}
	res, _, errs = runJob(t, j)
	require.Equal(t, proto.ExitUsage, res.ExitCode)
	require.Contains(t, errs, ax+" and "+cx+" differ, and would both be x on the hosts")
}
