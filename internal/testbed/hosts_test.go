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
	require.NoError(t, addHosts(file, "weft-1", []string{"10.0.1.1 a", "10.0.1.2 b"}))
	require.NoError(t, addHosts(file, "weft-11", []string{"10.0.11.1 c"}))
	require.NoError(t, removeHosts(file, "weft-1"))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1 localhost\n10.0.11.1 c # weft-11\n", string(text))
	require.NoError(t, removeHosts(file, "weft-1"), "no line has the mark now")
	require.NoError(t, removeHosts(file, "weft-11"))
	text, err = os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1 localhost\n", string(text))

	require.Error(t, addHosts(file+".none", "weft", nil))
}

// FuzzHostsFile checks that addHosts and removeHosts leave the other lines of the file as they are,
// except that addHosts ends the last line with a newline.
func FuzzHostsFile(f *testing.F) {
	f.Add("127.0.0.1 localhost\n")
	f.Add("no end of line # weft-")
	f.Add("\x00\n\n# weft-10\n")
	f.Add("10.0.0.1 x # weft-1 # weft-2\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		const mark = "weft-1"
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
