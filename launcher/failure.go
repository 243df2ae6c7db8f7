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

// cause describes the cause of a verdict. fail uses it to decide whether a failure that is
// reported later replaces the verdict.
type cause struct {
	rank   int // -1: none
	host   int // of the rank
	kind   kind
	timing timing
	dying  bool // the rank was already ending when it failed the job
	abort  bool // the rank called Abort and is about to end by itself
	end    bool // the user ended the job: it is not restarted
	first  bool // the rank ended before it got SIGTERM
}

// kind is how a rank or a host fails.
type kind int

const (
	kindOther       kind = iota // the user ended the job, a rank could not be started, or a rank ended without failing the job
	kindConsequence             // a rank aborted because of another rank's failure
	kindSilent                  // a rank ended by itself and gave no reason
	kindFollower                // as kindSilent, and an abort because of another rank's failure was reported before
	kindStated                  // a rank aborted for a reason of its own, or broke the protocol
	kindSignal                  // a signal ended a rank
	kindStruck                  // a signal ended a rank that did not ask for it
	kindLost                    // a host is lost
	kinds
)

// timing is what gorun knows about the order of a failure, the verdict's failure, and the end
// of the job.
type timing int

const (
	timingTold   timing = iota // the failure's host had begun to end the ranks, or the rank that aborted had got a signal
	timingAfter                // not timingTold; the verdict's failure was on the same host, and earlier
	timingApart                // not timingTold; the verdict's failure was on another host, so the order is not known
	timingBefore               // the failure began before the verdict's failure
)

// takesPlace holds the lowest timing with which a failure replaces the verdict. The first
// index is the kind of the verdict, the second the kind of the failure. If there is no entry,
// the verdict stays.
//
// Any failure that does not result from the end of the job replaces a consequence. A rank
// that ended without a reason after a consequence may have noticed the same failure, so a
// failure with a reason or by a signal replaces kindFollower too. In the other rows a failure
// replaces the verdict only if it began earlier, or if it is on another host and no failure
// of the verdict's host can have caused it.
var takesPlace = [kinds][kinds]timing{
	kindConsequence: {kindSilent: timingAfter, kindStated: timingAfter, kindSignal: timingAfter, kindStruck: timingAfter, kindLost: timingApart},
	kindFollower:    {kindSilent: timingBefore, kindStated: timingAfter, kindSignal: timingAfter, kindStruck: timingAfter, kindLost: timingApart},
	kindSilent:      {kindSilent: timingBefore, kindStated: timingBefore, kindSignal: timingBefore, kindStruck: timingApart, kindLost: timingApart},
	kindStated:      {kindSilent: timingBefore, kindStated: timingBefore, kindSignal: timingBefore, kindStruck: timingApart, kindLost: timingApart},
}

// replaces reports whether a failure with cause c replaces the verdict.
func (c cause) replaces(verdict cause) bool {
	least := takesPlace[verdict.kind][c.kind]
	return least > timingTold && c.timing >= least
}

// failedOf is the beginning of the reason of a rank that ended the job and said why.
const failedOf = "failed: "

const withoutFinalize = "exited without Finalize"

// fail records the first failure in time, and ends the job. If SIGTERM has ended the job,
// SIGTERM is also the cause of later failures. If the job has failed already, fail records
// the failure if it replaces the verdict.
func (r *run) fail(c cause, f Failure, code int) {
	if r.verdict != nil {
		if c.replaces(r.first) {
			if c.kind == kindSilent && (r.first.kind == kindConsequence || r.first.kind == kindFollower) {
				c.kind = kindFollower
			}
			r.blame(c, f, code)
		}
		return
	}
	if r.termed && !c.first {
		c, code = cause{rank: -1, end: true}, proto.ExitSignalFloor+int(syscall.SIGTERM)
		f = Failure{Rank: -1, Host: r.host, Signal: syscall.SIGTERM}
	}
	r.blame(c, f, code)
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

// lingerLimit is how long ranks that are busy when another rank fails have to end by
// themselves before SIGTERM. Tests change it.
var lingerLimit = 500 * time.Millisecond

// blame notes what the job failed of.
func (r *run) blame(c cause, f Failure, code int) {
	if f.Rank >= 0 {
		f.Host, f.Program, f.PID = r.nameOf(r.ranks[f.Rank].host), r.job.Apps[r.ranks[f.Rank].app].Program, r.ranks[f.Rank].pid
	}
	r.first = c
	r.verdict = &verdict{Failure: f, code: code, end: c.end || r.signaled != 0}
}

// refuseWith ends a job that cannot be started.
func (r *run) refuseWith(err error) {
	if err != nil && r.verdict == nil {
		r.verdict, r.phase = r.refuse(err), phaseOver
	}
}

// failHosts ends a job that has not begun because of hosts that cannot do their
// part. Each is told of in a line.
func (r *run) failHosts(failed []proto.HostError) {
	r.phase = phaseOver
	if r.verdict != nil {
		return
	}
	code := proto.ExitFailed
	var lines []string
	for i, f := range failed {
		if i == 0 && f.Code != 0 {
			code = f.Code
		}
		r.hostFailed(f)
		lines = append(lines, r.told(f))
	}
	r.verdict = &verdict{
		Failure: Failure{Rank: -1, Host: r.nameOf(failed[0].Index), ExitCode: code, Reason: lines[0]},
		code:    code, lines: lines[1:],
		end: code == proto.ExitUsage || code == proto.ExitNotFound || code == proto.ExitNotExec,
	}
}

// told is the cause with its host before it, unless this one is meant and no other
// takes part.
func (r *run) told(f proto.HostError) string {
	name := r.nameOf(f.Index)
	if r.alone() || strings.HasPrefix(f.Cause, name+": ") {
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

// ranksStarted notes what the hosts have started, and judges what they have not.
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
	if v := r.verdict; v != nil && v.Rank >= 0 {
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

// exited judges a rank that has not ended well.
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
		f.Reason, code = withoutFinalize, proto.ExitFailed
	}
	if e.Memory != "" {
		f.Reason = "was killed by " + signalName(f.Signal) + ", " + strings.ToValidUTF8(e.Memory, "?")
	}
	const exitQuit = 2 // of a Go program that SIGQUIT ends, when it has written its stacks
	if r.signaled == syscall.SIGQUIT && e.Code == exitQuit {
		f.Signal, f.ExitCode, code = r.signaled, 0, proto.ExitSignalFloor+int(r.signaled)
	}
	if e.Stuck {
		r.tell(fmt.Sprintf("rank %d, pid %d on %s, does not die by SIGKILL: it is left behind", e.Rank, e.PID, r.nameOf(rk.host)))
	}
	switch {
	case rk.abort != nil: // the job has failed, and the rank's abort says more than its exit
		f, code = rk.abort.failure(), rk.abort.Code
		r.fail(c, f, code)
	case r.verdict != nil, r.termed && e.AfterEnd:
		r.fail(c, f, code)
	case f.Signal != 0 && f.Signal == r.signaled:
		c.end = true
		r.fail(c, f, code)
	case r.job.OnFailure == job.FailNotify:
		r.goOn(e, f, code)
	case e.Code == 0 && e.Signal == 0 && e.Final:
		// Perhaps nobody is left who could wait for it: then the job ends now.
		if !r.alone() {
			time.AfterFunc(earlyDelay, func() { r.mail.post(deserted{c, f}) })
		}
	default:
		r.fail(c, f, code)
	}
}

// exitCode is what a shell makes of an exit.
func exitCode(e proto.Exit) int {
	if e.Signal != 0 {
		return proto.ExitSignalFloor + e.Signal
	}
	return e.Code
}

// earlyDelay is for the news that all ranks have ended, of which hosts tell within
// that time where Ended has to wait for output.
const earlyDelay = 300 * time.Millisecond

// deserted is a rank that left without Finalize while ranks on other hosts run.
type deserted struct {
	cause
	Failure
}

// goOn tells the other ranks of one that has failed, where the job goes on without.
func (r *run) goOn(e proto.Exit, f Failure, code int) {
	if e.Signal == 0 && !e.Early { // it has failed nobody, but not done what it was to do
		if r.soft == 0 {
			r.soft = code
		}
		return
	}
	r.mark([]int{e.Rank})
	f.Host, f.Program, f.PID = r.nameOf(r.ranks[e.Rank].host), r.job.Apps[r.ranks[e.Rank].app].Program, r.ranks[e.Rank].pid
	r.tell(f.Error() + "; the others go on without it")
	r.node.Do(proto.RanksFailed{Ranks: []int{e.Rank}, Reason: f.what()})
}

func (r *run) mark(ranks []int) {
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
	case strikes(syscall.Signal(e.Signal)):
		return kindStruck
	case e.Signal != 0:
		return kindSignal
	case !e.Early && (e.Code == 0 || r.job.OnFailure == job.FailNotify):
		return kindOther
	}
	return kindSilent
}

// timingOf returns the timing of the failure of a rank that has ended. If the rank was
// already ending when the verdict's failure was reported, the rank had failed before. But if
// the verdict's failure was on another host, the rank may be ending because it noticed that
// failure, unless a signal such as SIGSEGV ends it. If several ranks were ending, gorun names
// the rank that ended first. For kindSignal, e.Exiting proves nothing, because gorun sends
// SIGTERM also to a rank that is ending.
func (r *run) timingOf(k kind, e proto.Exit) timing {
	apart := r.elsewhere(e.Rank)
	ending := e.Exiting && !r.first.dying && k != kindSignal && r.first.rank >= 0
	switch {
	case e.KillPending && syscall.Signal(e.Signal) == syscall.SIGKILL:
		return timingBefore
	case ending && (!apart || r.first.kind == kindConsequence || r.earlier(e)):
		return timingBefore
	case ending && k == kindStruck && syscall.Signal(e.Signal) != syscall.SIGKILL: // gorun sends SIGKILL, too
		return timingApart
	case e.AfterEnd:
		return timingTold
	case apart && r.earlier(e):
		return timingBefore
	case apart:
		return timingApart
	}
	return timingAfter
}

// elsewhere says whether a rank runs on another host than the one that the job has
// failed of.
func (r *run) elsewhere(rank int) bool {
	return r.first.rank >= 0 && r.ranks[rank].host != r.first.host
}

// earlier says whether a rank ended before the one that the job has failed of, whose
// host may just have been faster to tell. Clocks count that are known to be right:
// those by which a rank was started between Start and Started, where these are less
// than maxSkew apart.
func (r *run) earlier(e proto.Exit) bool {
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

// strikes says whether a signal ends a process that did not ask for it.
func strikes(s syscall.Signal) bool {
	return slices.Contains([]syscall.Signal{
		syscall.SIGKILL, syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE, syscall.SIGSYS, syscall.SIGXCPU,
	}, s)
}

// abort is the report about a rank that called Abort or broke the protocol on its control
// channel.
type abort proto.Aborted

func (a *abort) kind() kind {
	if a.Consequence {
		return kindConsequence
	}
	return kindStated
}

func (a *abort) failure() Failure {
	switch {
	case a.Broken:
		return Failure{Rank: a.Rank, Reason: "does not speak PMI-1 on its control channel: " + a.Reason}
	case a.Reason != "": // package comm reports it: the error that Main's function returned, or a panic
		return Failure{Rank: a.Rank, ExitCode: a.Code, Reason: failedOf + a.Reason}
	}
	return Failure{Rank: a.Rank, ExitCode: a.Code, Reason: "called Abort"}
}

// aborted ends the job at the wish of a rank.
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
		c.timing = timingTold
	case r.elsewhere(m.Rank):
		c.timing = timingApart
	default:
		c.timing = timingAfter
	}
	r.fail(c, a.failure(), m.Code)
}

// hostsLost judges hosts that do not answer any more.
func (r *run) hostsLost(m proto.Lost) {
	var ranks []int
	first := max(m.First, 0)
	for i := first; i < min(m.First+m.Count, len(r.hosts)); i++ {
		h := &r.hosts[i]
		if h.state != hostUp {
			continue
		}
		h.state, h.cause = hostLost, m.Cause
		if i == first { // those behind it are perhaps well, and may be tried again
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
	if r.job.OnFailure == job.FailNotify && r.phase >= phaseStarting && r.verdict == nil {
		r.mark(ranks)
		r.tell(fmt.Sprintf("%s; the others go on without the %s there", reason, plural(len(ranks), "rank")))
		r.node.Do(proto.RanksFailed{Ranks: ranks, Reason: reason})
		return
	}
	c := cause{rank: -1, host: first, kind: kindLost, timing: timingAfter}
	if r.first.host != first {
		c.timing = timingApart
	}
	r.fail(c, Failure{Rank: -1, Host: r.nameOf(first), Reason: reason}, proto.ExitFailed)
}

// states is what hosts have told of themselves, and what follows for all.
type states struct {
	of      map[int]proto.State
	begun   int         // hosts with a rank that lives and has called Init
	gone    int         // hosts without a rank that lives
	waiting map[int]int // hosts in which a rank waits, by its fence
	left    map[int]int // a rank that has ended and is in no fence, by host
	absent  map[int]int // a rank that has ended and never called Init, by host
}

func newStates() states {
	return states{of: make(map[int]proto.State), waiting: make(map[int]int), left: make(map[int]int), absent: make(map[int]int)}
}

// note takes the newest state of a host.
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

// awaits says whether a rank waits in a fence that has not been let go.
func (t *states) awaits(released int) bool {
	for fence := range t.waiting { // two at most
		if fence > released {
			return true
		}
	}
	return false
}

// lowest is the lowest of ranks, by host.
func lowest(list map[int]int) int {
	rank := -1
	for _, r := range list {
		if rank < 0 || r < rank {
			rank = r
		}
	}
	return rank
}

// judgeState ends a job in which ranks wait for others that will never come. When
// the first host tells of its state, all are asked for theirs. A job that goes on
// without failed ranks does not hang because of them.
func (r *run) judgeState(s proto.State) {
	if len(r.states.of) == 0 && !s.Ended && r.job.OnFailure != job.FailNotify {
		r.node.Do(proto.Watch{})
	}
	r.states.note(s)
	if r.verdict != nil || r.job.OnFailure == job.FailNotify {
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
		r.fail(cause{rank: rank, host: r.ranks[rank].host, kind: kindSilent}, Failure{Rank: rank, Reason: why}, proto.ExitFailed)
	}
}

// allEnded is the end of the run.
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
		r.tails[t.Rank] = t.Lines // of whoever; only those of a rank of the job are looked at
	}
	if r.verdict == nil && r.job.OnFailure == job.FailNotify {
		r.judgeRest()
	}
	if v := r.verdict; v != nil && v.Signal == syscall.SIGTERM && v.Rank < 0 {
		v.late = r.lateRanks()
	}
	if v := r.verdict; v != nil && v.Rank >= 0 {
		rk := &r.ranks[v.Rank]
		v.PID = rk.pid // it may have failed before it was known to have been started
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

// lateRanks returns a text about the ranks that SIGKILL ended after the grace period; "":
// there are none.
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

// judgeRest makes the verdict on a job that went on without ranks that failed: how
// those that were left ended, and where none was, the first failure.
func (r *run) judgeRest() {
	if r.soft != 0 {
		for i := range r.ranks {
			if e := r.ranks[i].exit; e != nil && !r.ranks[i].failed && exitCode(*e) == r.soft {
				r.blame(cause{rank: i, host: r.ranks[i].host, kind: kindSilent}, Failure{Rank: i, ExitCode: r.soft}, r.soft)
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
	r.verdict = &verdict{Failure: Failure{Rank: -1, Host: r.host, ExitCode: code, Reason: "every rank has failed"}, code: code}
}
