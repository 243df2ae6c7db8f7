//go:build linux

package run

import (
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/weft-hpc/weft/internal/testbed"
)

// RequireLines checks gorun's exit code, and that the lines that gorun itself has printed to stderr
// match patterns, in order. The other lines on stderr are of ranks, ssh and Slurm.
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

// Watchdog is a match for the watchdogs of gorun and of its agents.
func Watchdog(p testbed.Process) bool { return isWatchdog(p.Args) }

func isWatchdog(args []string) bool { return len(args) == 1 && args[0] == "gorun-watchdog" }

// KillWatchdog kills the watchdog of a gorun on this machine. In a testbed a watchdog would see the
// processes of all hosts, so tests that kill gorun kill its watchdog before.
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
