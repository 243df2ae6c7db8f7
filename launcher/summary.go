package launcher

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// printLine queues a line of gorun's own for stderr: "gorun: " and then line. It does not block.
func (s *session) printLine(line string) {
	s.out.print("gorun: " + line + "\n")
}

// printLast writes a line of gorun's own to stderr at the end of a job, as printAtEnd does.
func (s *session) printLast(line string) { s.printAtEnd("gorun: " + line + "\n") }

// printAtEnd writes text to stderr at the end of a job. It does not use the writer, which has ended, or
// is blocked because no process reads its output. If no process reads stderr, printAtEnd gives up
// after drainLimit. If the writer is blocked, and stdout and stderr are one file, printAtEnd does
// nothing.
func (s *session) printAtEnd(text string) {
	if s.stdio.Err == nil || !s.out.drained() && s.out.shared() {
		return
	}
	done := make(chan struct{})
	go func() { // ends when the write returns, which may be after printAtEnd has given up
		defer close(done)
		_, _ = io.WriteString(s.stdio.Err, text)
	}()
	select {
	case <-done:
	case <-time.After(drainLimit):
	}
}

// verbose queues a line of gorun's own, as printLine does, if the user wants -v.
func (s *session) verbose(format string, args ...any) {
	if s.job.Verbose {
		s.printLine(fmt.Sprintf(format, args...))
	}
}

// since returns the time since Run was called, rounded for messages.
func (s *session) since() time.Duration {
	return time.Since(s.begun).Round(100 * time.Microsecond)
}

// Error returns the failure as a text for the user, without "gorun: ". It may have several lines,
// because Reason may.
func (f *Failure) Error() string {
	if f.Rank < 0 {
		return f.Reason
	}
	return fmt.Sprintf("rank %s %s", proto.RankName(f.Group, f.Rank), f.what())
}

// what returns how the rank failed, as a sentence without its subject "rank N", such as "exited
// with code 3: app, pid 7 on host". The failure must be that of a rank.
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

// signalName returns a text such as "signal 9 (SIGKILL)", or "signal 45" for a signal without a
// name.
func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return fmt.Sprintf("signal %d (%s)", int(s), name)
	}
	return fmt.Sprintf("signal %d", int(s))
}

// printFailure queues the lines about a failure for stderr. The run must be over, so that these
// lines follow all output of the ranks. If a signal ended the job, printFailure sets v.Reason.
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
	// There are two texts. The long one has the reason, and then the last lines that the rank wrote
	// to stderr. If comm.Main has written the reason to stderr, the long text leaves out these
	// lines of stderr. The brief text is for stderr that already shows the rank's last lines: it
	// leaves out all of them, and also the reason if they contain it. printOnce chooses between the
	// two texts.
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
		long += fmt.Sprintf("gorun: the last lines that rank %s wrote to stderr:\n", proto.RankName(f.Group, f.Rank))
	}
	for _, l := range stderr {
		long += "gorun:   " + strings.ToValidUTF8(l, "?") + "\n"
	}
	s.out.printOnce(long, v.text(brief.Error()), f.Stderr)
}

// text returns gorun's lines about a failure, without the rank's stderr. line is the text of the
// first of them.
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

// plural returns a number with a noun, such as "1 rank" or "2 ranks". what is the noun in the
// singular.
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
