//go:build libfabric

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLibfabric builds and runs an example: with the libfabric provider that the job file names,
// then with another provider, and then with another transport, both chosen by flags.
func TestLibfabric(t *testing.T) {
	file := filepath.Join(t.TempDir(), "job.toml")
	require.NoError(t, os.WriteFile(file, []byte(`
[job]
np = 3
timeout = "1m"
[transport]
use = ["libfabric"]
[transport.libfabric]
provider = "tcp;ofi_rxm"
[[app]]
program = "../../examples/allreduce"
args = ["-n", "64"]
`), 0o600))
	for _, c := range []struct {
		flags []string
		says  []string
	}{
		{nil, []string{"libfabric tcp;ofi_rxm: 3 addresses inserted symmetrically, from port ", "joined by libfabric tcp;ofi_rxm (lo)"}},
		{[]string{"-provider", "shm"}, []string{"libfabric shm: 3 addresses inserted in bulk", "joined by libfabric shm (shm)"}},
		{[]string{"-transport", "tcp"}, []string{"joined by tcp ("}},
	} {
		code, out, errs := gorun(t, append([]string{"-v", "-config", file}, c.flags...)...)
		require.Zero(t, code, errs)
		require.NotEmpty(t, out)
		for _, text := range c.says {
			require.Contains(t, errs, text)
		}
	}
}
