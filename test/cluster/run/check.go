//go:build linux

package run

import (
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/weft-hpc/weft/internal/testbed"
)

// RequireLines checks gorun's exit code, and that the lines that gorun itself has printed to stderr, which
// begin with "gorun: ", match the patterns in their order. Other lines on stderr, for example those of
// ranks, ssh and Slurm, do not count.
func RequireLines(t testing.TB, r Result, code int, patterns ...string) {
	t.Helper()
	if r.Code != code || r.Report != nil && r.Report.ExitCode != code {
		t.Fatalf("exit code %d, want %d (report: %+v)\nstderr: %s", r.Code, code, r.Report, r.Stderr)
	}
	var lines []string
	for line := range strings.Lines(r.Stderr) {
		if strings.HasPrefix(line, "gorun: ") {
			lines = append(lines, line)
		}
	}
	if len(lines) != len(patterns) {
		t.Fatalf("%d lines of gorun, want %d\nstderr: %s", len(lines), len(patterns), r.Stderr)
	}
	for i, pattern := range patterns {
		if !regexp.MustCompile("^gorun: " + pattern + "\n$").MatchString(lines[i]) {
			t.Fatalf("%q does not match %q", lines[i], pattern)
		}
	}
}

// Watchdog reports whether a process is a watchdog of gorun or of an agent: the process that ends the
// ranks if gorun or the agent dies.
func Watchdog(p testbed.Process) bool { return isWatchdog(p.Args) }

func isWatchdog(args []string) bool { return len(args) == 1 && args[0] == "gorun-watchdog" }

// KillWatchdog kills the watchdog of a gorun on this machine. Tests that kill gorun kill its watchdog
// first: in a testbed the watchdog sees the processes of all hosts, so it would also end the ranks of
// other hosts, which the agents must end.
func KillWatchdog(t testing.TB, gorun int) {
	t.Helper()
	for _, pid := range Children(t, gorun) {
		if isWatchdog(Args(pid)) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
}
