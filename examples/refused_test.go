//go:build linux && !portable

package examples_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/testbed"
)

// TestHostRefusesMemoryFiles runs jobs where the kernel refuses memory files (memfd_create), as the system
// call filters of some containers do, or where there is no /proc. The jobs succeed: over tcp if memory files
// are refused, and otherwise over shm.
func TestHostRefusesMemoryFiles(t *testing.T) {
	refuse := buildRefuse(t)
	hidden := []string{"unshare", "--mount", "sh", "-c", `mount -t tmpfs none /proc && exec "$0" "$@"`}
	for name, c := range map[string]struct {
		wrap   []string
		says   []string
		shares bool
	}{
		"memory files":           {[]string{refuse}, []string{"its ranks cannot share memory", "memfd_create: operation not permitted", "joined by tcp ("}, false},
		"no /proc":               {hidden, []string{"joined by shm ("}, true},
		"memory files, no /proc": {append(hidden, refuse), []string{"its ranks cannot share memory", "joined by tcp ("}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if c.wrap[0] == "unshare" && exec.Command("unshare", "--mount", "true").Run() != nil {
				t.Skip("this user cannot make namespaces")
			}
			for _, program := range []string{"ring", "allreduce", "histogram"} {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				argv := append(append([]string{}, c.wrap...), filepath.Join(bin, "gorun"), "-v", "-np", "3", filepath.Join(bin, program))
				cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
				var errs bytes.Buffer
				cmd.Stderr = &errs
				require.NoError(t, cmd.Run(), "%s: %s", program, &errs)
				for _, text := range c.says {
					require.Contains(t, errs.String(), text)
				}
				if !c.shares {
					require.NotContains(t, errs.String(), "the ranks share memory")
				}
			}
		})
	}
	// A job whose only transport is shm fails and reports the cause.
	cmd := exec.Command(refuse, filepath.Join(bin, "gorun"), "-np", "2", filepath.Join(bin, "ring"))
	cmd.Env = append(cmd.Environ(), "WEFT_TRANSPORT_USE=shm")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "memfd_create: operation not permitted")
}

// buildRefuse builds a program and returns its path. The program runs another command, for which the kernel
// refuses memory files.
func buildRefuse(t *testing.T) string {
	t.Helper()
	refuse := filepath.Join(bin, "refuse")
	build := exec.Command("go", "build", "-o", refuse, "./internal/testbed/refuse")
	build.Dir = ".."
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return refuse
}

// sshTo is the format of a shell script that runs ssh. For one host the script puts another command before
// the remote command. The arguments of the format are the name of that host, the other command, and the
// ssh command.
const sshTo = `#!/bin/sh
for last; do :; done
case " $* " in *" %s "*)
	text=$(printf %%s "$last" | base64 -w0)
	left=$#
	for a; do
		shift
		[ $left -gt 1 ] || a="%s sh -c \"\$(echo $text | base64 -d)\""
		set -- "$@" "$a"
		left=$((left-1))
	done
esac
exec %s "$@"
`

// TestOneHostOfTwoRefusesMemoryFiles runs a job on two hosts, one of which refuses memory files. The ranks on
// that host use tcp among each other, and the ranks on the other host share memory.
func TestOneHostOfTwoRefusesMemoryFiles(t *testing.T) {
	refuse := buildRefuse(t)
	// What rank 0 prints if its own host refuses, and what it prints if the other host does.
	joined := []string{"joined by tcp (", "joined by shm (memory of this host) to 2, tcp ("}
	c := testbed.Up(t, 2)
	for refused := range 2 {
		ssh := filepath.Join(t.TempDir(), "ssh")
		require.NoError(t, os.WriteFile(ssh, fmt.Appendf(nil, sshTo, c.Names()[refused], refuse, c.SSH()), 0o700))
		for _, program := range []string{"ring", "allreduce", "histogram"} {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, filepath.Join(bin, "gorun"), "-v", "-np", "6", "-host", c.Names()[0]+":3,"+c.Names()[1]+":3",
				"-ssh", ssh, filepath.Join(bin, program))
			var errs bytes.Buffer
			cmd.Stderr = &errs
			require.NoError(t, cmd.Run(), "%s: %s", program, &errs)
			require.Equal(t, 1, strings.Count(errs.String(), "its ranks cannot share memory"), errs.String())
			require.Contains(t, errs.String(), c.Names()[refused]+": its ranks cannot share memory")
			require.Contains(t, errs.String(), fmt.Sprintf("rank %d and the others of its host try tcp: ", 3*refused))
			require.Contains(t, errs.String(), joined[refused])
		}
	}
}
