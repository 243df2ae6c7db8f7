package launcher

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// printLine writes a line of gorun's own to stderr, never within a rank's line. It does not block.
func (s *session) printLine(line string) {
	s.out.print("gorun: " + line + "\n")
}

// printLast writes a line when the writer has ended, or waits for a reader. If no process reads
// stderr either, printLast gives up after drainLimit.
func (s *session) printLast(line string) {
	if s.stdio.Err == nil || !s.out.drained() && s.out.shared() {
		return
	}
	done := make(chan struct{})
	go func() { // ends with the write
		defer close(done)
		_, _ = io.WriteString(s.stdio.Err, "gorun: "+line+"\n")
	}()
	select {
	case <-done:
	case <-time.After(drainLimit):
	}
}

func (s *session) verbose(format string, args ...any) {
	if s.job.Verbose {
		s.printLine(fmt.Sprintf(format, args...))
	}
}

// since returns the time since the job began.
func (s *session) since() time.Duration {
	return time.Since(s.begun).Round(100 * time.Microsecond)
}

// Error returns the failure as one line.
func (f *Failure) Error() string {
	if f.Rank < 0 {
		return f.Reason
	}
	return fmt.Sprintf("rank %d %s", f.Rank, f.what())
}

// what returns what the rank did, as a sentence without its subject.
func (f *Failure) what() string {
	if f.PID == 0 {
		return "did not start: " + f.Reason
	}
	how := fmt.Sprintf("exited with code %d", f.ExitCode)
	switch {
	case f.Reason != "":
		how = f.Reason
		if f.ExitCode != 0 {
			how += fmt.Sprintf(" (exit code %d)", f.ExitCode)
		}
	case f.Signal != 0:
		how = "was killed by " + signalName(f.Signal)
	}
	return fmt.Sprintf("%s: %s, pid %d on %s", how, f.Program, f.PID, f.Host)
}

// signalName returns a text such as "signal 9 (SIGKILL)".
func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return fmt.Sprintf("signal %d (%s)", int(s), name)
	}
	return fmt.Sprintf("signal %d", int(s))
}

// printFailure writes a failure to stderr, after all output of the ranks.
func (s *session) printFailure(v *outcome) {
	f := &v.Failure
	if f.Signal != 0 && (f.Rank < 0 || v.asked) {
		f.Reason = "ended by " + signalName(f.Signal) + v.late
		s.printLine(f.Reason)
		return
	}
	if f.Rank < 0 || f.PID == 0 || len(f.Stderr) == 0 {
		s.out.print(v.text(f.Error()))
		return
	}
	// If the rank has just written the reason to stderr, printFailure does not repeat the reason.
	// Likewise it leaves out the last lines of stderr that the user has just seen. Lines that have
	// more than the reason stay.
	brief, stderr := *f, f.Stderr
	if reason, ok := strings.CutPrefix(f.Reason, failedOf); ok {
		if strings.Contains(strings.Join(stderr, "\n"), reason) {
			brief.Reason = strings.TrimSuffix(failedOf, ": ")
		}
		said := strings.Split(fmt.Sprintf("rank %d: %s", f.Rank, reason), "\n") // as comm.Main writes it
		for i := len(stderr) - len(said); i >= 0; i-- {
			if slices.Equal(stderr[i:i+len(said)], said) {
				stderr = slices.Delete(slices.Clone(stderr), i, i+len(said))
				break
			}
		}
	}
	long := v.text(f.Error())
	if len(stderr) > 0 {
		long += fmt.Sprintf("gorun: the last lines that rank %d wrote to stderr:\n", f.Rank)
	}
	for _, l := range stderr {
		long += "gorun:   " + strings.ToValidUTF8(l, "?") + "\n"
	}
	s.out.printOnce(long, v.text(brief.Error()), f.Stderr)
}

// text returns gorun's lines about a failure, beginning with line.
func (v *outcome) text(line string) string {
	if v.Rank >= 0 && v.PID != 0 {
		if n := v.others; n == 1 {
			line += "; the other rank was ended"
		} else if n > 1 {
			line += fmt.Sprintf("; the other %d ranks were ended", n)
		}
	}
	text := "gorun: " + line + "\n"
	for _, l := range v.lines {
		text += "gorun: " + l + "\n"
	}
	return text
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
