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
	jobLimit  = time.Minute      // a job that takes longer hangs
	dumpLimit = 10 * time.Second // bounds the time to print goroutines
)

// output collects a job's output. It can be read while the job runs.
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

// running is a started job.
type running struct {
	cmd            *exec.Cmd
	stdout, stderr output
	ended          chan struct{} // closed when gorun has ended
	err            error         // the result of Wait; valid when ended is closed
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
	go func() { // ends with the job, which dump and do wait for
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// do runs a job and checks it.
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
	if left := r.left(before); err == nil && len(left) > 0 {
		err = fmt.Errorf("left behind: %s", strings.Join(left, ", "))
	}
	return err
}

// finish waits for a job that must exit with 0.
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

// end returns the error of a job that ended too early.
func (p *running) end() error {
	if p.err == nil {
		return errors.New("it exited with 0")
	}
	return p.err
}

// dump makes all ranks print what they are doing, and ends the job. It returns true if the job
// ended by itself first.
func (p *running) dump() (itself bool) {
	_ = p.cmd.Process.Signal(syscall.SIGUSR1) // gorun forwards all these signals
	if p.wait(time.Second) {
		return true
	}
	for _, s := range []syscall.Signal{syscall.SIGQUIT, syscall.SIGTERM} {
		_ = p.cmd.Process.Signal(s)
		if p.wait(dumpLimit) {
			return false
		}
	}
	_ = p.cmd.Process.Kill() // ranks end with gorun
	<-p.ended
	return false
}

// said returns the job's output without gorun's remarks about cores.
func (p *running) said() string {
	var lines []string
	for line := range strings.Lines(p.stdout.String() + p.stderr.String()) {
		if !strings.Contains(line, "cores of this machine") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
