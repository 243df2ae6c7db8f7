//go:build linux

package launcher

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// TestStageFiles: gorun puts all files of -stage-files into one directory. It must accept two files
// with the same name if their contents are equal, and must refuse the job if the contents differ.
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
	require.Contains(t, errs, ax+" and "+cx+" differ, but both would be x on the hosts")
}

// TestStageFileThatTakesTooLong: gorun reads a file for -stage-files, and the read does not return.
// The job must end at its timeout all the same.
func TestStageFileThatTakesTooLong(t *testing.T) {
	large := filepath.Join(t.TempDir(), "large")
	require.NoError(t, os.WriteFile(large, nil, 0o600))
	proceed, ended := make(chan struct{}), make(chan struct{})
	hash := hashFile
	hashFile = func(string) (string, int64, error) {
		defer close(ended)
		<-proceed
		return "", 0, io.ErrUnexpectedEOF
	}
	defer func() {
		close(proceed)
		<-ended // until then, a goroutine of gorun is in the function that has replaced hashFile
		hashFile = hash
	}()
	j := testJob(1, "exit", "0")
	j.StageFiles, j.Timeout = []string{large}, time.Second
	res, _, errs := runJob(t, j)
	require.Equal(t, proto.ExitTimeout, res.ExitCode, errs)
	require.Contains(t, errs, "the job ran longer than its timeout of 1s, while gorun read or wrote files")
}
