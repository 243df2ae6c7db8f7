//go:build linux

package launcher

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/job"
)

// BenchmarkStart measures a job of 64 ranks from its start to its end: C programs that do nothing,
// and Go programs that call Init, one fence and Finalize. BenchmarkFloor measures the processes of
// the former without a launcher.
func BenchmarkStart(b *testing.B) {
	for name, app := range map[string]job.App{
		"true":  {Program: "true", NP: 64},
		"world": {Program: os.Args[0], Args: []string{"world"}, NP: 64},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				j := testJob(64)
				j.Apps[0] = app
				require.Zero(b, Run(b.Context(), j, Stdio{Err: os.Stderr}).ExitCode)
			}
		})
	}
}

func BenchmarkFloor(b *testing.B) {
	for b.Loop() {
		cmds := make([]*exec.Cmd, 64)
		for i := range cmds {
			cmds[i] = exec.Command("true")
			require.NoError(b, cmds[i].Start())
		}
		for _, c := range cmds {
			require.NoError(b, c.Wait())
		}
	}
}
