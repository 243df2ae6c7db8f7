//go:build linux

package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// killLimit is the longest time that a job may run after one of its ranks was killed. On a quiet machine
// the job ends within 2 s.
const killLimit = 10 * time.Second

// recoverLimit is the same for a job whose other ranks do further operations.
const recoverLimit = jobLimit

var (
	ready        = regexp.MustCompile(`(?m)^stress (\d+) ready (\d+)$`)
	spawnedReady = regexp.MustCompile(`(?m)^stress spawned ready (\d+)$`)
)

// kill waits until all ranks are ready and for j.kill.after, does what j.kill says, and checks how the job
// ends: in time, with the right exit code and message, and without a process left.
func (p *running) kill(j job) error {
	var pids map[int]int
	const spawned = -1 // the key of the process to kill, if it is not a rank
	all, victim, want := j.ranks, j.kill.rank, fmt.Sprintf("rank %d ", j.kill.rank)
	sig, status := syscall.SIGKILL, 128+int(syscall.SIGKILL)
	switch k := j.kill; {
	case k.recover: // all other ranks exit with 0, so the job is a success
		status = 0
	case k.spawned:
		all, victim, want = j.ranks+1, spawned, `rank \d+\.\d+ `
	case k.abort != 0:
		sig, status, want = syscall.SIGUSR2, k.abort, fmt.Sprintf("rank %d .*called Abort", k.rank)
	case k.terminate:
		sig, status, want = syscall.SIGTERM, 128+int(syscall.SIGTERM), "SIGTERM"
	}
	for begun := time.Now(); len(pids) < all; {
		if time.Since(begun) > jobLimit || p.wait(time.Millisecond) {
			p.dump()
			return fmt.Errorf("%d of %d ranks were ready: %w", len(pids), all, p.end())
		}
		pids = map[int]int{}
		for _, m := range ready.FindAllStringSubmatch(p.stdout.String(), -1) {
			rank, _ := strconv.Atoi(m[1])
			pids[rank], _ = strconv.Atoi(m[2])
		}
		if m := spawnedReady.FindStringSubmatch(p.stdout.String()); m != nil && j.kill.spawned {
			pids[spawned], _ = strconv.Atoi(m[1])
		}
	}
	if p.wait(j.kill.after) {
		return fmt.Errorf("the job ended before %s: %w", j.kill.event(), p.end())
	}
	killed, pid := time.Now(), pids[victim]
	if j.kill.terminate {
		pid = p.cmd.Process.Pid
	}
	if err := syscall.Kill(pid, sig); err != nil {
		return err
	}
	limit := killLimit
	if j.kill.recover {
		limit = recoverLimit
	}
	if !p.wait(limit) {
		took := "the job hangs"
		if p.dump() { // dump at once, because gorun kills ranks that hang when its grace period is over
			took = fmt.Sprintf("it ended after %v", time.Since(killed).Round(time.Millisecond))
		}
		return fmt.Errorf("the job still ran for %v: %s; %s", limit, j.kill.event(), took)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != status {
		return fmt.Errorf("exit code %d, not %d: %s", code, status, j.kill.event())
	}
	if !regexp.MustCompile(want).MatchString(p.stderr.String()) {
		return fmt.Errorf("gorun does not say %q: %s", want, j.kill.event())
	}
	for rank, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("rank %d, process %d, still exists", rank, pid)
		}
	}
	if j.kill.terminate {
		return p.canceled(j)
	}
	if j.kill.survive {
		return p.survivors(j, killed)
	}
	return nil
}

// canceled checks that all ranks have ended by themselves: one at least because its context has ended, and the
// others for this reason or because another rank has ended before they got SIGTERM.
func (p *running) canceled(j job) error {
	out := p.stdout.String()
	for rank := range j.ranks {
		if !regexp.MustCompile(fmt.Sprintf(`(?m)^stress %d (canceled$|failed \d+ (process-failed|revoked|finalized|connection) )`, rank)).MatchString(out) {
			return fmt.Errorf("rank %d has not ended by itself", rank)
		}
	}
	if !strings.Contains(out, " canceled\n") {
		return errors.New("no context has ended")
	}
	return nil
}

// spawnedFailed matches the line of a spawned process about an error that no kill can cause.
var spawnedFailed = regexp.MustCompile(`(?m)^stress spawned failed \d+ other .*$`)

// survivors checks the output of the ranks that were not killed, the survivors. On each survivor a call
// must have failed, for one of these reasons: a process has failed, the communicator was revoked,
// another survivor is in Finalize, the other side of a Spawn or a Dial has gone, or gorun ends the job while
// the survivor is in Init. A survivor may instead have found unexpected contents in another
// rank's memory, but only after the kill: a survivor detects the failure only after some time, and the
// memory of a killed rank may hold anything.
func (p *running) survivors(j job, killed time.Time) error {
	for rank := range j.ranks {
		if rank == j.kill.rank && !j.kill.spawned {
			continue
		}
		reported := regexp.MustCompile(fmt.Sprintf(`(?m)^stress %d failed (\d+) (process-failed|revoked|finalized|connection|ending|others) `, rank))
		m := reported.FindStringSubmatch(p.stdout.String())
		if m == nil {
			return fmt.Errorf("no call of rank %d reported that a process had failed", rank)
		}
		if at, _ := strconv.ParseInt(m[1], 10, 64); slices.Contains([]string{"others", "connection", "ending"}, m[2]) && at < killed.UnixNano() {
			return fmt.Errorf("rank %d found wrong contents in another rank's memory, or could not connect, or gorun ended the job, before a rank was killed", rank)
		}
		if recovered := fmt.Sprintf("stress %d recovered %d\n", rank, j.ranks-1); j.kill.recover && !strings.Contains(p.stdout.String(), recovered) {
			return fmt.Errorf("rank %d did not go on without rank %d", rank, j.kill.rank)
		}
	}
	if m := spawnedFailed.FindString(p.stdout.String()); m != "" {
		return fmt.Errorf("a spawned process failed for another reason: %s", m)
	}
	return nil
}
