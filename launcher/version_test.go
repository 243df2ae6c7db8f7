package launcher

import (
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVersionOf(t *testing.T) {
	commit := []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"}}
	for _, test := range []struct {
		released bool
		info     *debug.BuildInfo
		want     string
	}{
		{true, nil, "0.1.0"},
		{true, &debug.BuildInfo{Settings: commit}, "0.1.0"},
		{false, nil, "0.1.0-dev"},
		{false, &debug.BuildInfo{Main: debug.Module{Version: "v0.1.0"}}, "0.1.0"},
		{false, &debug.BuildInfo{Main: debug.Module{Version: "v0.0.0-20260102030405-0123456789ab"}, Settings: commit[:1]}, "0.1.0-dev+0123456789ab"},
		{false, &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: commit}, "0.1.0-dev+0123456789ab.modified"},
	} {
		require.Equal(t, test.want, versionOf("0.1.0", test.released, test.info))
	}
}

// TestChangelog: the changelog must have a section for the version.
func TestChangelog(t *testing.T) {
	text, err := os.ReadFile("../CHANGELOG.md")
	require.NoError(t, err)
	require.Contains(t, string(text), "\n## "+strings.TrimSpace(number)+"\n")
}
