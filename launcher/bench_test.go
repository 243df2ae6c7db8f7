//go:build linux

package launcher

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/job"
)

// BenchmarkStart measures a job of 64 ranks from its start to its end. In "true" the ranks are
// processes of true(1), which does nothing. In "world" they are Go programs that run showWorld:
// they join the job by PMI, enter one or two fences, and call Finalize.
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

// BenchmarkFloor measures 64 processes of true(1) without a launcher: the least time that
// BenchmarkStart could take for "true".
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
