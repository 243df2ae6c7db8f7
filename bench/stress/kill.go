//go:build linux

package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// over is how long a job may go on after a rank was killed: what ranks promise.
const over = 2 * time.Second

var ready = regexp.MustCompile(`(?m)^stress (\d+) ready (\d+)$`)

// kill kills a rank once all are there, and looks at the job's end.
func (p *running) kill(j job) error {
	var pids map[int]int
	for begun := time.Now(); len(pids) < j.ranks; {
		if time.Since(begun) > hang || p.wait(time.Millisecond) {
			p.dump()
			return fmt.Errorf("of %d ranks %d were there: %w", j.ranks, len(pids), p.end())
		}
		pids = map[int]int{}
		for _, m := range ready.FindAllStringSubmatch(p.stdout.String(), -1) {
			rank, _ := strconv.Atoi(m[1])
			pids[rank], _ = strconv.Atoi(m[2])
		}
	}
	if p.wait(j.kill.after) {
		return fmt.Errorf("over before a rank was killed: %w", p.end())
	}
	killed := time.Now()
	if err := syscall.Kill(pids[j.kill.rank], syscall.SIGKILL); err != nil {
		return err
	}
	if !p.wait(over) {
		took := "it hangs"
		if p.dump() { // at once: gorun kills those that hang when they have had their grace
			took = fmt.Sprintf("after %v it is", time.Since(killed).Round(time.Millisecond))
		}
		return fmt.Errorf("not over %v after rank %d was killed; %s", over, j.kill.rank, took)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 128+int(syscall.SIGKILL) {
		return fmt.Errorf("exit code %d after rank %d was killed", code, j.kill.rank)
	}
	if want := fmt.Sprintf("rank %d ", j.kill.rank); !strings.Contains(p.stderr.String(), want) {
		return fmt.Errorf("gorun does not name rank %d, which was killed", j.kill.rank)
	}
	for rank, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("rank %d, process %d, is still there", rank, pid)
		}
	}
	if j.kill.survive {
		return p.survivors(j, killed)
	}
	return nil
}

// survivors returns an error unless a call of each rank except the killed one failed because
// a process had, or because a rank that had heard of it was in Finalize. After a rank was killed it may also have
// found memory of others that was not as it had been: of that nobody is told at once.
func (p *running) survivors(j job, killed time.Time) error {
	for rank := range j.ranks {
		if rank == j.kill.rank {
			continue
		}
		told := regexp.MustCompile(fmt.Sprintf(`(?m)^stress %d failed (\d+) (process-failed|revoked|finalized|others) `, rank))
		m := told.FindStringSubmatch(p.stdout.String())
		if m == nil {
			return fmt.Errorf("no call of rank %d told that a process had failed", rank)
		}
		if at, _ := strconv.ParseInt(m[1], 10, 64); m[2] == "others" && at < killed.UnixNano() {
			return fmt.Errorf("rank %d found memory of others spoilt before a rank was killed", rank)
		}
	}
	return nil
}
