//go:build linux && !libfabric

package launcher

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInfoSaysHowToListProviders(t *testing.T) {
	for _, c := range []struct {
		scripts map[string]string
		own     []string
		want    string
	}{
		{map[string]string{"pkg-config": "exit 0"}, []string{"go"}, "to list the providers: go build -tags libfabric ./cmd/gorun"},
		{map[string]string{"pkg-config": "exit 0"}, nil, "build it with Go and -tags libfabric to list the providers"},
		{map[string]string{"pkg-config": "exit 1"}, []string{"go"}, "pkg-config does not find libfabric; " + installHeaders},
	} {
		t.Run(c.want, func(t *testing.T) {
			t.Setenv("PATH", commands(t, c.scripts, append(c.own, "sh")...))
			var b strings.Builder
			require.NoError(t, writeProviders(&b))
			require.Equal(t, "\nLIBFABRIC\ngorun is built without libfabric; "+c.want+"\n", b.String())
		})
	}
}
