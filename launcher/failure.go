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

// States of a host.
const (
	hostUp     = "up"
	hostFailed = "failed"
	hostLost   = "lost"
)

// A run's outcome is the first failure that gorun hears of. Failures on several ranks and hosts can
// arrive in another order than they occurred, so a failure that is reported later can replace the
// outcome. kind, timing and minTiming decide that.

// cause holds what fail needs to know about a failure to decide whether it replaces the outcome, or a
// later failure replaces it.
type cause struct {
	rank   int // -1: not the failure of a rank
	host   int // of the rank, or the host that was lost
	kind   kind
	timing timing
	dying  bool // the rank was already exiting when it failed the job
	abort  bool // the rank called Abort and exits by itself
	end    bool // the user ended the job, so it is not restarted
	first  bool // the rank ended before it got SIGTERM
}

// kind is how a rank or a host fails.
type kind int

const (
	kindOther       kind = iota // the user ended the job, a rank could not be started, or a rank ended without failing the job
	kindConsequence             // a rank aborted because of another rank's failure
	kindNoReason                // a rank ended by itself and gave no reason
	kindFollower                // like kindNoReason, after gorun had heard of a consequence
	kindReason                  // a rank aborted for a reason of its own, or broke the protocol
	kindSignal                  // a signal ended a rank
	kindCrash                   // a crash or SIGKILL ended a rank; no failure of another rank causes that
	kindLost                    // a host is lost
	kinds
)

// timing is what gorun knows about the order of a failure, the outcome's failure, and the end
// of the job.
type timing int

const (
	timingEnding timing = iota // the failure's host had begun to end the ranks, or the rank that aborted had got a signal
	timingAfter                // not timingEnding; the outcome's failure was on the same host, and earlier
	timingApart                // not timingEnding; the outcome's failure was on another host, so the order is not known
	timingBefore               // the failure began before the outcome's failure
)

// minTiming holds the lowest timing with which a failure replaces the outcome. The first
// index is the kind of the outcome, the second the kind of the failure. If there is no entry,
// the outcome stays.
//
// Any failure that does not result from the end of the job replaces a consequence. A rank
// that ended without a reason after a consequence may have noticed the same failure, so a
// failure with a reason or by a signal replaces kindFollower too. In the other rows a failure
// replaces the outcome only if it began earlier, or if it is on another host and no failure
// of the outcome's host can have caused it.
var minTiming = [kinds][kinds]timing{
	kindConsequence: {kindNoReason: timingAfter, kindReason: timingAfter, kindSignal: timingAfter, kindCrash: timingAfter, kindLost: timingApart},
	kindFollower:    {kindNoReason: timingBefore, kindReason: timingAfter, kindSignal: timingAfter, kindCrash: timingAfter, kindLost: timingApart},
	kindNoReason:    {kindNoReason: timingBefore, kindReason: timingBefore, kindSignal: timingBefore, kindCrash: timingApart, kindLost: timingApart},
	kindReason:      {kindNoReason: timingBefore, kindReason: timingBefore, kindSignal: timingBefore, kindCrash: timingApart, kindLost: timingApart},
}

// replaces reports whether a failure with cause c replaces the outcome.
func (c cause) replaces(outcome cause) bool {
	least := minTiming[outcome.kind][c.kind]
	return least > timingEnding && c.timing >= least
}

// failedOf begins the reason of a rank that called Abort with a reason.
const failedOf = "failed: "

const noFinalizeReason = "exited without Finalize"

// fail records the first failure, and ends the job. If gorun has got SIGTERM, SIGTERM is the
// outcome, unless the rank failed before it got SIGTERM. If the job has failed already, fail
// records the failure if it replaces the outcome.
func (r *run) fail(c cause, f Failure, code int) {
	if r.outcome != nil {
		if c.replaces(r.first) {
			if c.kind == kindNoReason && (r.first.kind == kindConsequence || r.first.kind == kindFollower) {
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
	end := proto.End{Grace: r.job.Grace, Except: -1}
	if c.rank >= 0 {
		end.Linger = lingerLimit
	}
	if c.abort {
		end.Except = c.rank
	}
	r.node.Do(end)
}

// lingerLimit bounds the time that the other ranks have to end by themselves after a rank has
// failed. After it they get SIGTERM. Tests change it.
var lingerLimit = 500 * time.Millisecond

// setOutcome makes a failure the outcome of the run.
func (r *run) setOutcome(c cause, f Failure, code int) {
	if f.Rank >= 0 {
		f.Host, f.Program, f.PID = r.nameOf(r.ranks[f.Rank].host), r.job.Apps[r.ranks[f.Rank].app].Program, r.ranks[f.Rank].pid
	}
	r.first = c
	r.outcome = &outcome{Failure: f, code: code, end: c.end || r.signaled != 0}
}

// failStart ends a job that cannot be started because of err. If err is nil, it does nothing.
func (r *run) failStart(err error) {
	if err != nil && r.outcome == nil {
		r.outcome, r.phase = r.startFailure(err), phaseOver
	}
}

// failHosts ends a job that has not started because hosts cannot do their part. The user gets a
// line for each of these hosts.
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
		code:    code, lines: lines[1:],
		end: code == proto.ExitUsage || code == proto.ExitNotFound || code == proto.ExitNotExec,
	}
}

// hostErrorText returns the cause of a host's failure, with the host's name in front. It leaves the
// name out if the job runs on this host only, or if the cause begins with it.
func (r *run) hostErrorText(f proto.HostError) string {
	name := r.nameOf(f.Index)
	if r.onlyThisHost() || strings.HasPrefix(f.Cause, name+": ") {
		return f.Cause
	}
	return name + ": " + f.Cause
}

func (r *run) hostFailed(f proto.HostError) {
	if f.Index < 0 || f.Index >= len(r.hosts) {
		return
	}
	h := &r.hosts[f.Index]
	h.state, h.cause = hostFailed, f.Cause
	r.lost[h.Name] = f.Cause
}

// ranksStarted records which ranks run. If the hosts could not start a rank, ranksStarted fails the
// job.
func (r *run) ranksStarted(m proto.Started) {
	n, rebound := 0, 0
	for _, s := range m.Ranks {
		if s.Rank >= 0 && s.Rank < len(r.ranks) {
			rk := &r.ranks[s.Rank]
			rk.pid, rk.started, rk.cpus = s.PID, time.Unix(0, s.At), s.CPUs
			n++
			if s.CPUs != nil {
				rebound++
			}
		}
	}
	if r.phase == phaseStarting {
		r.phase = phaseRunning
	}
	r.startDone = time.Now()
	if v := r.outcome; v != nil && v.Rank >= 0 {
		v.PID = r.ranks[v.Rank].pid
	}
	r.show("")
	r.verbose("%s started after %v", plural(n, "rank"), r.since())
	if rebound > 0 {
		r.verbose("other jobs use the planned cores of %s, so gorun has chosen free cores", plural(rebound, "rank"))
	}
	if f := m.Failed; f != nil && f.Rank >= 0 && f.Rank < len(r.ranks) {
		r.fail(cause{rank: f.Rank, host: r.ranks[f.Rank].host, end: true}, Failure{Rank: f.Rank, ExitCode: f.Code, Reason: f.Reason}, f.Code)
	}
}

// exited handles the exit of a rank that did not end well, and decides whether the job fails.
func (r *run) exited(e proto.Exit) {
	if e.Rank < 0 || e.Rank >= len(r.ranks) {
		return
	}
	rk := &r.ranks[e.Rank]
	rk.exit, rk.pid = &e, e.PID
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
	const exitQuit = 2 // exit code of a Go program after SIGQUIT, when it has written its stacks
	if r.signaled == syscall.SIGQUIT && e.Code == exitQuit {
		f.Signal, f.ExitCode, code = r.signaled, 0, proto.ExitSignalFloor+int(r.signaled)
	}
	if e.Stuck {
		r.printLine(fmt.Sprintf("rank %d, pid %d on %s, still runs after SIGKILL: gorun leaves it behind", e.Rank, e.PID, r.nameOf(rk.host)))
	}
	switch {
	case rk.abort != nil: // the job has failed, and the rank's abort says more than its exit
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
		// This fails the job only if another rank still runs, and could wait for this one. Other
		// hosts may not have reported yet that their ranks have exited.
		if !r.onlyThisHost() {
			time.AfterFunc(noFinalizeGrace, func() { r.mail.post(exitedWithoutFinalize{c, f}) })
		}
	default:
		r.fail(c, f, code)
	}
}

// exitCode returns the exit code that a shell shows for an exit.
func exitCode(e proto.Exit) int {
	if e.Signal != 0 {
		return proto.ExitSignalFloor + e.Signal
	}
	return e.Code
}

// noFinalizeGrace is the time within which hosts report that all their ranks have exited. A rank
// that exited without Finalize fails the job only if ranks still run after this time. Ended would
// come too late for that, because it waits for output.
const noFinalizeGrace = 300 * time.Millisecond

// exitedWithoutFinalize reports, after noFinalizeGrace, a rank that exited without Finalize while
// ranks of other hosts may run.
type exitedWithoutFinalize struct {
	cause
	Failure
}

// continueWithout tells the other ranks that a rank has failed, in a job that continues without
// failed ranks.
func (r *run) continueWithout(e proto.Exit, f Failure, code int) {
	if e.Signal == 0 && !e.Early { // no rank waits for this one, but its exit code counts for the job
		if r.nonzeroExit == 0 {
			r.nonzeroExit = code
		}
		return
	}
	r.markFailed([]int{e.Rank})
	f.Host, f.Program, f.PID = r.nameOf(r.ranks[e.Rank].host), r.job.Apps[r.ranks[e.Rank].app].Program, r.ranks[e.Rank].pid
	r.printLine(f.Error() + "; the others go on without it")
	r.node.Do(proto.RanksFailed{Ranks: []int{e.Rank}, Reason: f.what()})
}

func (r *run) markFailed(ranks []int) {
	for _, i := range ranks {
		r.ranks[i].failed = true
	}
}

// kindOf returns the kind of failure of a rank that has ended.
func (r *run) kindOf(e proto.Exit) kind {
	abort := r.ranks[e.Rank].abort
	switch {
	case abort != nil:
		return abort.kind()
	case isCrash(syscall.Signal(e.Signal)):
		return kindCrash
	case e.Signal != 0:
		return kindSignal
	case !e.Early && (e.Code == 0 || r.job.OnFailure == job.FailNotify):
		return kindOther
	}
	return kindNoReason
}

// timingOf returns the timing of the failure of a rank that has ended. If the rank was already
// exiting when gorun heard of the outcome's failure, the rank failed before it. There are
// exceptions:
//
//   - If the outcome's failure was on another host, the rank may be exiting because it noticed that
//     failure, unless a signal such as SIGSEGV ends it.
//   - If several ranks were exiting, gorun names the rank that ended first.
//   - For kindSignal, e.Exiting proves nothing, because gorun also sends SIGTERM to a rank that is
//     exiting.
func (r *run) timingOf(k kind, e proto.Exit) timing {
	apart := r.onOtherHost(e.Rank)
	ending := e.Exiting && !r.first.dying && k != kindSignal && r.first.rank >= 0
	switch {
	case e.KillPending && syscall.Signal(e.Signal) == syscall.SIGKILL:
		return timingBefore
	case ending && (!apart || r.first.kind == kindConsequence || r.endedBefore(e)):
		return timingBefore
	case ending && k == kindCrash && syscall.Signal(e.Signal) != syscall.SIGKILL: // gorun may have sent the SIGKILL
		return timingApart
	case e.AfterEnd:
		return timingEnding
	case apart && r.endedBefore(e):
		return timingBefore
	case apart:
		return timingApart
	}
	return timingAfter
}

// onOtherHost reports whether a rank runs on another host than the rank of the outcome.
func (r *run) onOtherHost(rank int) bool {
	return r.first.rank >= 0 && r.ranks[rank].host != r.first.host
}

// endedBefore reports whether a rank ended before the rank of the outcome, although its host
// reported it later. It compares times of two hosts only if their clocks are known to differ by
// less than maxSkew: Start and Started are less than maxSkew apart, and each host's start time of
// the rank lies between them.
func (r *run) endedBefore(e proto.Exit) bool {
	const maxSkew = time.Second
	if r.startDone.Sub(r.startSent) > maxSkew {
		return false
	}
	first := &r.ranks[r.first.rank]
	for _, at := range []time.Time{first.started, r.ranks[e.Rank].started} {
		if r.startDone.IsZero() || at.Before(r.startSent) || at.After(r.startDone) {
			return false
		}
	}
	return first.exit != nil && e.At < first.exit.At
}

// isCrash reports whether a signal means that a rank crashed or was killed, which no failure of
// another rank causes.
func isCrash(s syscall.Signal) bool {
	return slices.Contains([]syscall.Signal{
		syscall.SIGKILL, syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE, syscall.SIGSYS, syscall.SIGXCPU,
	}, s)
}

// abort reports a rank that called Abort, or that broke the protocol on its control channel.
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
	case a.Reason != "": // package comm gives it: the error that the function of Main returned, or a panic
		return Failure{Rank: a.Rank, ExitCode: a.Code, Reason: failedOf + a.Reason}
	}
	return Failure{Rank: a.Rank, ExitCode: a.Code, Reason: "called Abort"}
}

// aborted ends the job because a rank called Abort or broke the protocol.
func (r *run) aborted(m proto.Aborted) {
	if m.Rank < 0 || m.Rank >= len(r.ranks) {
		return
	}
	rk, a := &r.ranks[m.Rank], (*abort)(&m)
	if m.PID != 0 {
		rk.pid = m.PID
	}
	rk.abort = a
	c := cause{rank: m.Rank, host: rk.host, kind: a.kind(), abort: !m.Broken}
	switch {
	case m.AfterEnd:
		c.timing = timingEnding
	case r.onOtherHost(m.Rank):
		c.timing = timingApart
	default:
		c.timing = timingAfter
	}
	r.fail(c, a.failure(), m.Code)
}

// hostsLost handles the loss of hosts: the job fails, or continues without their ranks.
func (r *run) hostsLost(m proto.Lost) {
	var ranks []int
	first := max(m.First, 0)
	for i := first; i < min(m.First+m.Count, len(r.hosts)); i++ {
		h := &r.hosts[i]
		if h.state != hostUp {
			continue
		}
		h.state, h.cause = hostLost, m.Cause
		if i == first { // the hosts behind it may be well, so a restart may use them
			r.lost[h.Name] = m.Cause
		}
		if i < len(r.plans) {
			for _, rk := range r.plans[i].Ranks {
				ranks = append(ranks, rk.Rank)
			}
		}
	}
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
		r.markFailed(ranks)
		r.printLine(fmt.Sprintf("%s; the others go on without the %s there", reason, plural(len(ranks), "rank")))
		r.node.Do(proto.RanksFailed{Ranks: ranks, Reason: reason})
		return
	}
	c := cause{rank: -1, host: first, kind: kindLost, timing: timingAfter}
	if r.first.host != first {
		c.timing = timingApart
	}
	r.fail(c, Failure{Rank: -1, Host: r.nameOf(first), Reason: reason}, proto.ExitFailed)
}

// states holds what hosts have reported about ranks that may wait for ever, and totals over all
// hosts.
type states struct {
	of      map[int]proto.State // by host: its last report
	begun   int                 // number of hosts with a running rank that has called Init
	gone    int                 // number of hosts without a running rank
	waiting map[int]int         // by fence: the number of hosts with a rank that waits in it
	left    map[int]int         // by host: a rank that has ended and is in no fence
	absent  map[int]int         // by host: a rank that has ended and has never called Init
}

func newStates() states {
	return states{of: make(map[int]proto.State), waiting: make(map[int]int), left: make(map[int]int), absent: make(map[int]int)}
}

// note replaces a host's last report.
func (t *states) note(s proto.State) {
	t.count(t.of[s.Index], -1)
	t.of[s.Index] = s
	t.count(s, 1)
	delete(t.left, s.Index)
	delete(t.absent, s.Index)
	if s.Left >= 0 {
		t.left[s.Index] = s.Left
	}
	if s.Absent >= 0 {
		t.absent[s.Index] = s.Absent
	}
}

func (t *states) count(s proto.State, n int) {
	if s.Begun {
		t.begun += n
	}
	if s.Ended {
		t.gone += n
	}
	if s.Waiting > 0 {
		if t.waiting[s.Waiting] += n; t.waiting[s.Waiting] == 0 {
			delete(t.waiting, s.Waiting)
		}
	}
}

// awaits reports whether a rank waits in a fence that gorun has not released.
func (t *states) awaits(released int) bool {
	for fence := range t.waiting { // at most two fences
		if fence > released {
			return true
		}
	}
	return false
}

// lowest returns the lowest of the ranks in list, or -1.
func lowest(list map[int]int) int {
	rank := -1
	for _, r := range list {
		if rank < 0 || r < rank {
			rank = r
		}
	}
	return rank
}

// checkState records a host's report, and fails the job if ranks wait for ranks that have ended.
// After the first report of a host with running ranks, it asks all hosts for reports. A job that
// continues without failed ranks does not need them: the ranks' calls return errors.
func (r *run) checkState(s proto.State) {
	if len(r.states.of) == 0 && !s.Ended && r.job.OnFailure != job.FailNotify {
		r.node.Do(proto.Watch{})
	}
	r.states.note(s)
	if r.outcome != nil || r.job.OnFailure == job.FailNotify {
		return
	}
	rank, why := -1, ""
	switch {
	case r.states.begun > 0 && len(r.states.absent) > 0:
		rank, why = lowest(r.states.absent), "ended without Init, which other ranks have called"
	case len(r.states.left) > 0 && r.states.awaits(r.released):
		rank, why = lowest(r.states.left), "ended while other ranks wait for it in a fence"
	}
	if rank >= 0 && rank < len(r.ranks) {
		r.fail(cause{rank: rank, host: r.ranks[rank].host, kind: kindNoReason}, Failure{Rank: rank, Reason: why}, proto.ExitFailed)
	}
}

// allEnded ends the run: all ranks have ended, and all output has been sent.
func (r *run) allEnded(m proto.Ended) {
	r.phase = phaseOver
	if len(r.ranks) == 0 {
		return
	}
	for i := range m.Exits {
		e := &m.Exits[i]
		if e.Rank >= 0 && e.Rank < len(r.ranks) {
			r.ranks[e.Rank].exit = e
		}
	}
	for _, t := range m.Tails {
		r.tails[t.Rank] = t.Lines // a host may send any rank; gorun reads only the entries of ranks of the job
	}
	if r.outcome == nil && r.job.OnFailure == job.FailNotify {
		r.endNotifyJob()
	}
	if v := r.outcome; v != nil && v.Signal == syscall.SIGTERM && v.Rank < 0 {
		v.late = r.lateRanks()
	}
	if v := r.outcome; v != nil && v.Rank >= 0 {
		rk := &r.ranks[v.Rank]
		v.PID = rk.pid // gorun may have heard of the failure before the rank's pid
		v.Stderr = r.tails[v.Rank]
		if r.ending {
			v.others = len(r.ranks) - 1
		}
		v.asked = v.Signal != 0 && v.Signal == r.signaled
		if v.Reason == "" && v.Signal == 0 && lacksLibrary(r.programs[rk.app].path, v.ExitCode, v.Stderr) {
			v.Reason = "found no " + libfabricSoname + "; " + installLibrary
		}
	}
}

// lateRanks returns a text about the ranks that SIGKILL ended after the grace period. It returns ""
// if there are none.
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

// endNotifyJob sets the outcome of a job that continued without failed ranks. The job fails with
// the exit code of a rank that did not fail but exited with a code other than 0. If every rank has
// failed, the job fails too.
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
		if !r.ranks[i].failed {
			return
		}
	}
	code := proto.ExitFailed
	if e := r.ranks[0].exit; e != nil && exitCode(*e) != 0 {
		code = exitCode(*e)
	}
	r.outcome = &outcome{Failure: Failure{Rank: -1, Host: r.host, ExitCode: code, Reason: "every rank has failed"}, code: code}
}
