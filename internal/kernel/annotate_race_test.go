//go:build race

package kernel

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRaceDetectorSeesAssembly starts a process for each operand of a kernel. In that process a
// goroutine writes to the operand without synchronization with the kernel, and the race detector
// must report it.
func TestRaceDetectorSeesAssembly(t *testing.T) {
	const variable = "KERNEL_TEST_RACE"
	operands := map[string][]byte{"dst": make([]byte, 1<<10), "left": make([]byte, 1<<10), "right": make([]byte, 1<<10)}
	if touched := os.Getenv(variable); touched != "" {
		done := make(chan struct{})
		go func() {
			operands[touched][500] = 1
			close(done)
		}()
		kernels()[Sum][Int8].Reduce3(operands["dst"], operands["left"], operands["right"])
		<-done
		return
	}
	for name := range operands {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRaceDetectorSeesAssembly$", "-test.timeout=30s")
		cmd.Env = append(os.Environ(), variable+"="+name)
		out, err := cmd.CombinedOutput()
		require.Error(t, err, name)
		require.Contains(t, string(out), "DATA RACE", name)
	}
}
