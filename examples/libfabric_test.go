//go:build libfabric

package examples_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
)

const withLibfabric = true

// TestOverLibfabric runs examples over libfabric providers that need no network adapter, and over testprov
// in the manner of others. gorun
// itself builds the examples, with the build tag libfabric.
func TestOverLibfabric(t *testing.T) {
	allreduce := []string{"./examples/allreduce", "-n", "30001", "-reps", "2"}
	histogram := []string{"./examples/histogram", "-n", "300"}
	workqueue := []string{"./examples/workqueue", "-n", "300"}
	for _, e := range []struct {
		provider string
		args     []string
	}{
		{"shm", allreduce}, {"tcp;ofi_rxm", allreduce}, {libfabrictest.XNet(), allreduce}, {"udp;ofi_rxd", allreduce},
		{"sockets", allreduce}, {"tcp;ofi_rxm;ofi_hook_perf", allreduce},
		{"testprov,verbs,nics=2", allreduce}, {"testprov,efa", allreduce}, {"testprov,cxi,nics=2", histogram}, {"testprov,psm", workqueue},
		{"shm", histogram}, {"tcp;ofi_rxm", histogram}, {libfabrictest.XNet(), workqueue}, {"udp;ofi_rxd", workqueue},
	} {
		t.Run(e.provider+strings.TrimPrefix(e.args[0], "./examples"), func(t *testing.T) {
			provider, script, _ := strings.Cut(e.provider, ",")
			t.Setenv(libfabrictest.ScriptVariable, script)
			all := append([]string{"-timeout", "1m", "-transport", "libfabric", "-provider", provider, "-p", "transport.libfabric.nics=2", "-np", "4", "-v"}, e.args...)
			code, out, errs := gorun(t, all...)
			require.Zero(t, code, "gorun %q\n%s%s", all, out, errs)
			require.Regexp(t, `\b4 ranks\b.*: correct`, out)
			require.Contains(t, errs, "joined by libfabric "+strings.TrimSuffix(provider, ";ofi_hook_perf"))
			require.Contains(t, errs, "4 addresses inserted")
			if manner, _, several := strings.Cut(script, ",nics=2"); several {
				require.Contains(t, errs, "("+manner+","+manner+"1)")
			}
		})
	}
}
