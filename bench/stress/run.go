//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// A job that runs for longer than jobLimit is taken to hang. On a busy machine, ranks that spin need more
	// than a minute.
	jobLimit  = 3 * time.Minute
	dumpLimit = 10 * time.Second // the time that dump gives a job to end after a signal
)

// output collects a job's output. One goroutine may call String while another calls Write.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// running is a job that was started.
type running struct {
	cmd            *exec.Cmd
	stdout, stderr output
	ended          chan struct{} // closed when gorun has ended
	err            error         // the result of cmd.Wait; must not be read before ended is closed
}

func (r *runner) start(j job) (*running, error) {
	p := &running{cmd: exec.CommandContext(r.ctx, j.gorun, j.command()...), ended: make(chan struct{})}
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.Env = append(os.Environ(), "TMPDIR="+r.tmp, "GOTRACEBACK=all")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	p.cmd.WaitDelay = dumpLimit
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // ends with gorun; the caller waits for p.ended, by wait or dump
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// do runs a job, and returns an error if the job failed or left something behind.
func (r *runner) do(j job) error {
	before := r.found()
	p, err := r.start(j)
	if err != nil {
		return err
	}
	if j.kill != nil {
		err = p.kill(j)
	} else {
		err = p.finish()
	}
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, p.said())
	}
	if j.kill != nil {
		_ = os.RemoveAll(r.published()) // the publication of a killed process stays
	}
	if left := r.left(before); err == nil && len(left) > 0 {
		err = fmt.Errorf("left behind: %s", strings.Join(left, ", "))
	}
	return err
}

// finish waits for a job in which no rank is killed. The job must exit with 0 within jobLimit.
func (p *running) finish() error {
	if !p.wait(jobLimit) {
		p.dump()
		return fmt.Errorf("the job still ran after %v", jobLimit)
	}
	return p.err
}

// wait waits up to d for the job, and reports whether it has ended.
func (p *running) wait(d time.Duration) bool {
	select {
	case <-p.ended:
		return true
	case <-time.After(d):
		return false
	}
}

// end returns the error of a job that has ended before this program could kill the rank that
// job.kill names.
func (p *running) end() error {
	if p.err == nil {
		return errors.New("it exited with 0")
	}
	return p.err
}

// dump makes all ranks print their current operations (SIGUSR1) and the stacks of their goroutines
// (SIGQUIT), and ends the job. If the job ends by itself within a second, dump returns true.
func (p *running) dump() (itself bool) {
	_ = p.cmd.Process.Signal(syscall.SIGUSR1) // gorun forwards SIGUSR1, SIGQUIT and SIGTERM to the ranks
	if p.wait(time.Second) {
		return true
	}
	for _, s := range []syscall.Signal{syscall.SIGQUIT, syscall.SIGTERM} {
		_ = p.cmd.Process.Signal(s)
		if p.wait(dumpLimit) {
			return false
		}
	}
	_ = p.cmd.Process.Kill() // the ranks end when gorun ends
	<-p.ended
	return false
}

// said returns the job's output, except gorun's warnings about the number of cores.
func (p *running) said() string {
	var lines []string
	for line := range strings.Lines(p.stdout.String() + p.stderr.String()) {
		if !strings.Contains(line, "cores of this machine") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
