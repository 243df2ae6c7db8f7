package launcher

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
)

// States of a host, as in the report of -report.
const (
	hostUp     = "up"     // the host's agent has answered
	hostFailed = "failed" // gorun could not reach the host, or the host could not do what a message asked for
	hostLost   = "lost"   // the host was up, and then the connection with its agent ended
)

// failedOf is the beginning of Failure.Reason of a rank that called Abort with a reason.
const failedOf = "failed: "

const noFinalizeReason = "exited without Finalize"

// fail handles a failure f with cause c. code is the exit code that gorun has if f is the outcome.
// If there is no outcome yet, fail makes f the outcome and ends the job. There is an exception: if
// gorun has got SIGTERM and c.first is not set, fail makes SIGTERM the outcome instead. If there is
// an outcome already, f replaces it only if minTiming says so.
func (r *run) fail(c cause, f Failure, code int) {
	if r.outcome != nil {
		if c.replaces(r.cause) {
			if c.kind == kindNoReason && (r.cause.kind == kindConsequence || r.cause.kind == kindFollower) {
				c.kind = kindFollower
			}
			r.setOutcome(c, f, code)
		}
		return
	}
	if r.gotSIGTERM && !c.first {
		c, code = cause{rank: -1, end: true}, proto.ExitSignalFloor+int(syscall.SIGTERM)
		f = Failure{Rank: -1, Host: r.host, Signal: syscall.SIGTERM}
	}
	r.setOutcome(c, f, code)
	if r.phase < phaseStarting {
		r.phase = phaseOver
		return
	}
	r.ending = true
	if r.killed {
		return
	}
	end := proto.End{Grace: r.job.Grace, Except: -1, Failed: !c.end || c.rank >= 0}
	if c.rank >= 0 {
		end.Linger = lingerLimit
	}
	if c.abort {
		end.Except = c.rank
	}
	r.node.Do(end)
}

// lingerLimit is how long busy ranks may continue after another rank has failed, because they may
// be about to write an error message and end by themselves. After that they get SIGTERM. Tests
// change it.
var lingerLimit = 500 * time.Millisecond

// setOutcome makes f the outcome of the run. If f is the failure of a rank, f.Rank is its number in
// the job, and setOutcome completes f: see complete.
func (r *run) setOutcome(c cause, f Failure, code int) {
	number := f.Rank
	r.complete(&f)
	r.cause = c
	r.outcome = &outcome{Failure: f, number: number, code: code, end: c.end || r.signaled != 0}
}

// complete sets the host, program and pid of a failure, if it is that of a rank. f.Rank is the number
// of the rank in the job; complete replaces it by the group and the rank in the group.
func (r *run) complete(f *Failure) {
	if f.Rank < 0 {
		return
	}
	n := f.Rank
	f.Host, f.Program, f.PID = r.nameOf(r.ranks[n].host), r.programOf(n).program, r.ranks[n].pid
	g := r.groupOf(n)
	f.Group, f.Rank = g.id, g.rank(n)
}

// failStart ends a run whose ranks cannot be started because of err. If err is nil or the run
// already has an outcome, failStart does nothing.
func (r *run) failStart(err error) {
	if err != nil && r.outcome == nil {
		r.outcome, r.phase = r.startFailure(err), phaseOver
	}
}

// failHosts ends a run whose ranks are not started yet, because hosts could not be reached or could
// not do what gorun asked for. failed lists these hosts and has at least one entry. If the run has
// no outcome yet, the new outcome has a line for each of these hosts.
func (r *run) failHosts(failed []proto.HostError) {
	r.phase = phaseOver
	if r.outcome != nil {
		return
	}
	code := proto.ExitFailed
	var lines []string
	for i, f := range failed {
		if i == 0 && f.Code != 0 {
			code = f.Code
		}
		r.hostFailed(f)
		lines = append(lines, r.hostErrorText(f))
	}
	r.outcome = &outcome{
		Failure: Failure{Rank: -1, Host: r.nameOf(failed[0].Index), ExitCode: code, Reason: lines[0]},
		number:  -1, code: code, lines: lines[1:],
		end: code == proto.ExitUsage || code == proto.ExitNotFound || code == proto.ExitNotExec,
	}
}

// hostErrorText returns the cause of a host's failure, with the host's name in front. It leaves out
// the name if this host is the job's only one, or if the cause already begins with the name.
func (r *run) hostErrorText(f proto.HostError) string {
	name := r.nameOf(f.Index)
	if r.onlyThisHost() || strings.HasPrefix(f.Cause, name+": ") {
		return f.Cause
	}
	return name + ": " + f.Cause
}

// hostFailed records that the host with index f.Index has failed, and why. A restart leaves this
// host out.
func (r *run) hostFailed(f proto.HostError) {
	if f.Index < 0 || f.Index >= len(r.hosts) {
		return
	}
	h := &r.hosts[f.Index]
	h.state, h.cause = hostFailed, f.Cause
	r.lost[h.Name] = f.Cause
}

// ranksStarted handles Started: it records the processes of the ranks of a group. If a host could not
// start one of its ranks, ranksStarted fails the job, or the spawned group.
func (r *run) ranksStarted(m proto.Started) {
	g := r.find(m.Group)
	if g == nil {
		return
	}
	n, rebound := 0, 0
	for _, s := range m.Ranks {
		if r.valid(s.Rank) {
			rk := &r.ranks[s.Rank]
			rk.pid, rk.started, rk.cpus = s.PID, time.Unix(0, s.At), s.CPUs
			n++
			if s.CPUs != nil {
				rebound++
			}
		}
	}
	if r.phaseOf(g) == phaseStarting {
		r.setPhase(g, phaseRunning)
	}
	g.startDone = time.Now()
	if v := r.outcome; v != nil && v.number >= 0 {
		v.PID = r.ranks[v.number].pid
	}
	r.show("")
	r.verbose("%s started after %v", plural(n, "rank"), r.since())
	if rebound > 0 {
		r.verbose("other jobs use the planned cores of %s, so gorun has chosen free cores", plural(rebound, "rank"))
	}
	f := m.Failed
	switch {
	case g.id > 0:
		r.spawned(g, f)
	case f != nil && r.valid(f.Rank):
		r.fail(cause{rank: f.Rank, host: r.ranks[f.Rank].host, end: true}, Failure{Rank: f.Rank, ExitCode: f.Code, Reason: f.Reason}, f.Code)
	}
}

// exited handles Exited, the report of a rank that has not ended normally, and decides whether the
// job fails.
func (r *run) exited(e proto.Exit) {
	if !r.valid(e.Rank) {
		return
	}
	rk := &r.ranks[e.Rank]
	rk.exit, rk.pid = &e, e.PID
	if r.groupOf(e.Rank).broken {
		return
	}
	f := Failure{Rank: e.Rank, ExitCode: e.Code, Signal: syscall.Signal(e.Signal)}
	c := cause{rank: e.Rank, host: rk.host, kind: r.kindOf(e), dying: e.Exiting, first: !e.AfterEnd}
	c.timing = r.timingOf(c.kind, e)
	code := exitCode(e)
	if code == 0 {
		f.Reason, code = noFinalizeReason, proto.ExitFailed
	}
	if e.Memory != "" {
		f.Reason = "was killed by " + signalName(f.Signal) + ", " + strings.ToValidUTF8(e.Memory, "?")
	}
	const exitQuit = 2 // exit code of a Go program that SIGQUIT has ended
	if r.signaled == syscall.SIGQUIT && e.Code == exitQuit {
		f.Signal, f.ExitCode, code = r.signaled, 0, proto.ExitSignalFloor+int(r.signaled)
	}
	if e.Stuck {
		r.printLine(fmt.Sprintf("rank %s, pid %d on %s, still runs after SIGKILL: gorun leaves it behind", r.nameOfRank(e.Rank), e.PID, r.nameOf(rk.host)))
	}
	switch {
	case rk.abort != nil:
		// The method [run.aborted] has failed the job already. The abort says more about the
		// failure than the exit does.
		f, code = rk.abort.failure(), rk.abort.Code
		r.fail(c, f, code)
	case r.outcome != nil, r.gotSIGTERM && e.AfterEnd:
		r.fail(c, f, code)
	case f.Signal != 0 && f.Signal == r.signaled:
		c.end = true
		r.fail(c, f, code)
	case r.job.OnFailure == job.FailNotify:
		r.continueWithout(e, f, code)
	case e.Code == 0 && e.Signal == 0 && e.Final:
		// The last rank of its host has exited with code 0 without Finalize. That fails the job
		// only if a rank of another host still runs, because that rank could wait for this one.
		// Other hosts may report only later that all their ranks have exited, so gorun decides
		// after noFinalizeGrace.
		if !r.onlyThisHost() {
			time.AfterFunc(noFinalizeGrace, func() { r.mail.post(exitedWithoutFinalize{c, f}) })
		}
	default:
		r.fail(c, f, code)
	}
}

// exitCode returns the exit code of a rank as a shell shows it: 128 plus the signal that ended the
// rank, or its argument of exit(2).
func exitCode(e proto.Exit) int {
	if e.Signal != 0 {
		return proto.ExitSignalFloor + e.Signal
	}
	return e.Code
}

// noFinalizeGrace is how long gorun waits for the other hosts to report that all their ranks have
// exited, when a rank was the last of its host and exited with code 0 without Finalize. The rank
// fails the job only if ranks still run after this time. Hosts report by State that all their ranks
// have exited. gorun does not wait for Ended, which a host sends only after all output of its
// ranks.
const noFinalizeGrace = 300 * time.Millisecond

// exitedWithoutFinalize is a message of a timer to [run.control]. A rank that was the last of its
// host has exited with code 0 without Finalize, and noFinalizeGrace has passed since then.
type exitedWithoutFinalize struct {
	cause
	Failure
}

// continueWithout handles the exit of a rank in a job that continues without failed ranks. If the
// exit is a failure, continueWithout reports it to the user and to the other ranks. f describes the
// exit, and code is the exit code that the job would have because of it.
func (r *run) continueWithout(e proto.Exit, f Failure, code int) {
	// If a rank has called Finalize, or has never called Init, and then exits without a signal, it
	// has not failed, because no other rank waits for it. But its exit code becomes that of the
	// job, if it is the first such code other than 0.
	if e.Signal == 0 && !e.Early {
		if r.nonzeroExit == 0 {
			r.nonzeroExit = code
		}
		return
	}
	f.Rank = e.Rank
	r.complete(&f)
	r.printLine(f.Error() + "; the others go on without it")
	r.reportFailed([]int{e.Rank}, f.what())
}

// reportFailed records that the job continues without these ranks, and reports that to the other
// ranks of the job, also to those of other groups, because they may be connected with the failed
// ranks. ranks are numbers in the job.
func (r *run) reportFailed(ranks []int, reason string) {
	of := make(map[int][]int) // by group: the failed ranks of the group
	for _, i := range ranks {
		r.ranks[i].failed = true
		g := r.groupOf(i)
		of[g.id] = append(of[g.id], g.rank(i))
	}
	for id, list := range of {
		for _, to := range r.groups {
			m := proto.RanksFailed{Group: to.id, Ranks: list, Reason: reason}
			if to.id != id {
				m.JobID = r.groups[id].jobID
			}
			if to.active() {
				r.node.Do(m)
			}
		}
	}
}

// abort is a report that a rank called Abort, or broke the PMI-1 protocol on its control channel.
type abort proto.Aborted

func (a *abort) kind() kind {
	if a.Consequence {
		return kindConsequence
	}
	return kindReason
}

func (a *abort) failure() Failure {
	switch {
	case a.Broken:
		return Failure{Rank: a.Rank, Reason: "does not speak PMI-1 on its control channel: " + a.Reason}
	case a.Reason != "":
		// Package comm reports a reason: the error that the function of Main returned, or a panic.
		return Failure{Rank: a.Rank, ExitCode: a.Code, Reason: failedOf + a.Reason}
	}
	return Failure{Rank: a.Rank, ExitCode: a.Code, Reason: "called Abort"}
}

// aborted handles Aborted: it fails the job because a rank called Abort or broke the PMI-1 protocol.
func (r *run) aborted(m proto.Aborted) {
	if !r.valid(m.Rank) {
		return
	}
	rk, a := &r.ranks[m.Rank], (*abort)(&m)
	if m.PID != 0 {
		rk.pid = m.PID
	}
	rk.abort = a
	if r.groupOf(m.Rank).broken {
		return
	}
	c := cause{rank: m.Rank, host: rk.host, kind: a.kind(), abort: !m.Broken}
	switch {
	case m.AfterEnd:
		c.timing = timingEnding
	case r.isApart(m.Rank):
		c.timing = timingApart
	default:
		c.timing = timingAfter
	}
	r.fail(c, a.failure(), m.Code)
}

// hostsLost handles the loss of hosts m.First to m.First+m.Count-1: the job fails, or continues
// without their ranks. If hosts without ranks are lost while the ranks start or run, hostsLost only
// records the loss. The connection with the first of these hosts was lost. The others are below it
// in the tree of agents, so gorun cannot reach them any more.
func (r *run) hostsLost(m proto.Lost) {
	var ranks []int
	first := max(m.First, 0)
	for i := first; i < min(m.First+m.Count, len(r.hosts)); i++ {
		h := &r.hosts[i]
		if h.state != hostUp {
			continue
		}
		h.state, h.cause = hostLost, m.Cause
		r.measureWithout(i)
		r.captureWithout(i)
		// A restart leaves out only this host, because those below it in the tree may still work.
		if i == first {
			r.lost[h.Name] = m.Cause
		}
		ranks = append(ranks, r.ranksOn(i)...)
	}
	r.dismissLost()
	if len(ranks) == 0 && r.phase >= phaseStarting {
		return
	}
	reason := m.Cause
	if name := r.nameOf(first); !strings.HasPrefix(reason, name) {
		reason = name + ": " + reason
	}
	if n := m.Count - 1; n > 0 {
		reason += fmt.Sprintf("; %s behind it cannot be reached any more either", plural(n, "host"))
	}
	if r.job.OnFailure == job.FailNotify && r.phase >= phaseStarting && r.outcome == nil {
		r.printLine(fmt.Sprintf("%s; the others go on without the %s there", reason, plural(len(ranks), "rank")))
		r.reportFailed(ranks, reason)
		return
	}
	c := cause{rank: -1, host: first, kind: kindLost, timing: timingAfter}
	if r.cause.host != first {
		c.timing = timingApart
	}
	r.fail(c, Failure{Rank: -1, Host: r.nameOf(first), Reason: reason}, proto.ExitFailed)
}

// groupEnded handles Ended: all ranks of a group on hosts that are not lost have ended, and gorun has
// received all their output. If no other group runs, the run ends, and groupEnded completes the
// outcome with what is known only now.
func (r *run) groupEnded(m proto.Ended) {
	g := r.find(m.Group)
	if g == nil {
		return
	}
	g.over, g.states = true, newStates()
	if g.id > 0 {
		g.prep, g.reply, g.request = nil, nil, proto.Spawn{} // of use only while ranks run
	}
	g.early = r.outcome == nil && !r.ending
	for i := range m.Exits {
		if e := &m.Exits[i]; r.valid(e.Rank) {
			r.ranks[e.Rank].exit = e
		}
	}
	for _, f := range m.Figures {
		if r.valid(f.Rank) {
			r.figures = append(r.figures, f)
		}
	}
	for _, t := range m.Tails {
		r.tails[t.Rank] = t.Lines // t.Rank is not checked: gorun reads only the entries of ranks of the job
	}
	if slices.ContainsFunc(r.groups, (*group).active) {
		return
	}
	r.phase = phaseOver
	if len(r.ranks) == 0 {
		return
	}
	if r.outcome == nil && r.job.OnFailure == job.FailNotify {
		r.endNotifyJob()
	}
	if v := r.outcome; v != nil && v.Signal == syscall.SIGTERM && v.Rank < 0 {
		v.late = r.lateRanks()
	}
	if v := r.outcome; v != nil && v.number >= 0 {
		v.PID = r.ranks[v.number].pid // when the rank failed, gorun may not have known its pid yet
		v.Stderr = r.tails[v.number]
		if r.ending {
			v.others = r.ended() - 1
		}
		v.asked = v.Signal != 0 && v.Signal == r.signaled
		if e := r.ranks[v.number].exit; e != nil && e.Last != "" && v.Signal != 0 && !v.asked {
			v.lines = append(v.lines, "rank "+r.nameOfRank(v.number)+" last: "+e.Last)
		}
		if v.Reason == "" && v.Signal == 0 && lacksLibrary(r.programOf(v.number).path, v.ExitCode, v.Stderr) {
			v.Reason = "found no " + libfabricSoname + "; " + installLibrary
		}
	}
}

// lateRanks returns the last part of a message: how many ranks still ran after the grace period and
// were ended by SIGKILL. It returns "" if there are none.
func (r *run) lateRanks() string {
	n := 0
	for i := range r.ranks {
		if e := r.ranks[i].exit; e != nil && e.Late {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %s still ran after %v and got SIGKILL", plural(n, "rank"), r.job.Grace)
}

// endNotifyJob sets the outcome of a job that continued without failed ranks, when all ranks have
// ended. If r.nonzeroExit is not 0, the job fails with that exit code, and the outcome names the
// lowest rank that has not failed and has that exit code. Otherwise the job fails if every rank has
// failed. In all other cases the job ended well, and the outcome stays nil.
func (r *run) endNotifyJob() {
	if r.nonzeroExit != 0 {
		for i := range r.ranks {
			if e := r.ranks[i].exit; e != nil && !r.ranks[i].failed && exitCode(*e) == r.nonzeroExit {
				r.setOutcome(cause{rank: i, host: r.ranks[i].host, kind: kindNoReason}, Failure{Rank: i, ExitCode: r.nonzeroExit}, r.nonzeroExit)
				return
			}
		}
	}
	for i := range r.ranks {
		if r.ranks[i].group == 0 && !r.ranks[i].failed {
			return
		}
	}
	code := proto.ExitFailed
	if e := r.ranks[0].exit; e != nil && exitCode(*e) != 0 {
		code = exitCode(*e)
	}
	r.outcome = &outcome{Failure: Failure{Rank: -1, Host: r.host, ExitCode: code, Reason: "every rank has failed"}, number: -1, code: code}
}
