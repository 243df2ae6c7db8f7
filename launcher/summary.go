package launcher

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// tell writes a line of gorun's own. While output.loop runs it does the
// writing, so that no line is mixed with a rank's.
func (r *run) tell(line string) {
	line = "gorun: " + line + "\n"
	if r.output != nil {
		r.output.say(line)
		return
	}
	_, _ = io.WriteString(r.stderr, line)
}

func (r *run) verbose(format string, args ...any) {
	if r.job.Verbose {
		r.tell(fmt.Sprintf(format, args...))
	}
}

// Error is the failure in one line.
func (f *Failure) Error() string {
	if f.Rank < 0 {
		return f.Reason
	}
	if f.PID == 0 {
		return fmt.Sprintf("rank %d did not start: %s", f.Rank, f.Reason)
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
	return fmt.Sprintf("rank %d %s: %s, pid %d on %s", f.Rank, how, f.Program, f.PID, f.Host)
}

// signalName is "signal 9 (SIGKILL)".
func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return fmt.Sprintf("signal %d (%s)", int(s), name)
	}
	return fmt.Sprintf("signal %d", int(s))
}

// unstarted tells why a job never began.
func (r *run) unstarted(err error) Result {
	code := exitFailed
	var se *startError
	if errors.As(err, &se) {
		code = se.code
	}
	r.output = nil
	r.tell(err.Error())
	return Result{ExitCode: code, Failure: &Failure{Rank: -1, Host: r.host, ExitCode: code, Reason: err.Error()}}
}

// result makes the summary of the first failure and writes it, last of all.
func (r *run) result() Result {
	f := r.failure
	if f == nil {
		return r.written()
	}
	if f.Rank >= 0 {
		f.PID = r.ranks[f.Rank].pid // it may have failed before the thread that forked it came to note it
		f.Stderr = r.lastWords(f.Rank)
		if f.Reason == "" && f.Signal == 0 && lacksLibrary(r.path[r.ranks[f.Rank].app], f.ExitCode, f.Stderr) {
			f.Reason = "found no " + libfabricSoname + "; " + installLibrary
		}
	}
	if !r.drained() {
		return Result{ExitCode: r.exitCode, Failure: f} // nobody reads what we write
	}
	r.output = nil // it has ended: tell writes itself
	switch {
	case f.Signal != 0 && (f.Signal == r.signaled || f.Rank < 0):
		f.Reason = "ended by " + signalName(f.Signal)
		r.tell(f.Reason)
		return Result{ExitCode: r.exitCode, Failure: f}
	case f.Rank < 0 || f.PID == 0:
		r.tell(f.Error())
		return Result{ExitCode: r.exitCode, Failure: f}
	}
	var b strings.Builder
	b.WriteString(f.Error())
	if n := len(r.ranks) - 1; n == 1 {
		b.WriteString("; the other rank was ended")
	} else if n > 1 {
		fmt.Fprintf(&b, "; the other %d ranks were ended", n)
	}
	r.tell(b.String())
	if len(f.Stderr) > 0 {
		r.tell(fmt.Sprintf("the last that rank %d wrote to stderr:", f.Rank))
		for _, line := range f.Stderr {
			r.tell("  " + line)
		}
	}
	return Result{ExitCode: r.exitCode, Failure: f}
}

// written is the result of a job whose ranks have all ended well.
func (r *run) written() Result {
	if !r.drained() || r.output.lost() == nil {
		return Result{}
	}
	f := &Failure{Rank: -1, Host: r.host, ExitCode: exitFailed, Reason: "output of the ranks is lost: " + r.output.lost().Error()}
	r.output = nil
	r.tell(f.Reason)
	return Result{ExitCode: exitFailed, Failure: f}
}

// drained says whether output.loop has ended.
func (r *run) drained() bool {
	select {
	case <-r.output.done:
		return true
	default:
		return false
	}
}

// lastWords are the last lines of a rank's stderr.
func (r *run) lastWords(rank int) []string {
	if r.job.OutputDir == "" {
		if !r.drained() {
			return nil
		}
		return lastLines(r.output.streams[2*rank+1].tail)
	}
	f, err := os.Open(filepath.Join(r.job.OutputDir, strconv.Itoa(rank)+".err"))
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return nil
	}
	at := max(st.Size()-tailBytes, 0)
	tail := make([]byte, st.Size()-at)
	n, err := f.ReadAt(tail, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	return lastLines(tail[:n])
}
