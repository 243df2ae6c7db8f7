package params

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnknownVars(t *testing.T) {
	environ := []string{"WEFT_ZZZ=1", "WEFT_TRANSPORT_USED=shm", "WEFT_RANK=0", "WEFT_TRANSPORT_USE=tcp", "WEFT_A_B=1", "WEFT=1", "PATH=x", "WEFT_MINE=1"}
	require.Equal(t, []string{
		"WEFT_TRANSPORT_USED is set, and nothing reads it; did you mean WEFT_TRANSPORT_USE?",
		"WEFT_ZZZ is set, and nothing reads it",
	}, UnknownVars(environ, "WEFT_A_", "WEFT_MINE"))
}

// TestAllVarsAreKnown checks that each variable that the project's code names, outside of tests, is
// that of a tunable or in others. The variables of gorun's settings do not occur in the code,
// because gorun makes their names from keys.
func TestAllVarsAreKnown(t *testing.T) {
	literal := regexp.MustCompile(`"(WEFT_[A-Z0-9_]*[A-Z0-9])"`)
	names := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/internal/testbed/") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range literal.FindAllStringSubmatch(string(text), -1) {
			names++
			known := slices.Contains(others, m[1]) || slices.ContainsFunc(Table, func(p Param) bool { return p.Env() == m[1] })
			require.True(t, known, "%s: %s is in no table: add it to others", path, m[1])
		}
		return err
	})
	require.NoError(t, err)
	require.Greater(t, names, len(others))
}
