//go:build linux

package testbed

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHostsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hosts")
	require.NoError(t, os.WriteFile(file, []byte("127.0.0.1 localhost"), 0o644))
	require.NoError(t, addHosts(file, "bed-1", []string{"10.0.1.1 a", "10.0.1.2 b"}))
	require.NoError(t, addHosts(file, "bed-11", []string{"10.0.11.1 c"}))
	require.NoError(t, removeHosts(file, "bed-1"))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1 localhost\n10.0.11.1 c # bed-11\n", string(text))
	require.NoError(t, removeHosts(file, "bed-1"), "none are left")
	require.NoError(t, removeHosts(file, "bed-11"))
	text, err = os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1 localhost\n", string(text))

	require.Error(t, addHosts(file+".none", "bed", nil))
}

// What others wrote stays, whatever it is.
func FuzzHostsFile(f *testing.F) {
	f.Add("127.0.0.1 localhost\n")
	f.Add("no end of line # bed-")
	f.Add("\x00\n\n# bed-10\n")
	f.Add("10.0.0.1 x # bed-1 # bed-2\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		const mark = "bed-1"
		for line := range strings.Lines(text) {
			if strings.HasSuffix(strings.TrimRight(line, "\n"), " # "+mark) {
				t.Skip("a line of the file has the mark of the added lines")
			}
		}
		file := filepath.Join(t.TempDir(), "hosts")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		require.NoError(t, addHosts(file, mark, []string{"10.0.0.1 a", "10.0.0.2 b"}))
		require.NoError(t, removeHosts(file, mark))
		got, err := os.ReadFile(file)
		require.NoError(t, err)
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		assert.Equal(t, text, string(got))
	})
}
