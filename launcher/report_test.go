package launcher

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestReplaceFile keeps what stands there as it was, but for its content.
func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	mode := func(name string) fs.FileMode {
		st, err := os.Lstat(filepath.Join(dir, name))
		require.NoError(t, err)
		return st.Mode()
	}
	umask := unix.Umask(0o027)
	defer unix.Umask(umask)
	require.NoError(t, replaceFile(filepath.Join(dir, "new"), []byte("1")))
	require.Equal(t, fs.FileMode(0o640), mode("new"))

	require.NoError(t, os.WriteFile(filepath.Join(dir, "own"), nil, 0o600))
	require.NoError(t, os.Symlink("own", filepath.Join(dir, "link")))
	require.NoError(t, replaceFile(filepath.Join(dir, "link"), []byte("2")))
	require.Equal(t, fs.FileMode(0o600), mode("own"))
	require.Equal(t, fs.ModeSymlink, mode("link").Type())
	text, err := os.ReadFile(filepath.Join(dir, "own"))
	require.NoError(t, err)
	require.Equal(t, "2", string(text))

	require.Error(t, replaceFile(filepath.Join(dir, "none", "x"), nil))
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 3)
}
