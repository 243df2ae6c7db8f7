package docs

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExamplesAreListed checks that examples.md has a link to each folder of examples/.
func TestExamplesAreListed(t *testing.T) {
	page, err := os.ReadFile("examples.md")
	require.NoError(t, err)
	folders, err := os.ReadDir("../examples")
	require.NoError(t, err)
	listed := 0
	for _, f := range folders {
		if f.IsDir() {
			require.Regexp(t, `\[(examples/)?`+f.Name()+`\]\(\.\./examples/`+f.Name()+`\)`, string(page))
			listed++
		}
	}
	require.NotZero(t, listed)
}
