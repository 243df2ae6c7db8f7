package launcher

import (
	"slices"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
)

// A run's outcome (run.outcome) is the failure that gorun reports to the user as the cause of the
// job's end. At first this is usually the first failure that gorun receives. Failures of several
// ranks and hosts can arrive in another order than they occurred, so a failure that arrives later
// can replace the outcome. Whether it does depends on the kind and the timing of the failure: see
// minTiming.

// cause describes a failure to [run.fail]. From it fail finds out whether the failure replaces the
// outcome and, once the failure is the outcome itself, whether a later failure replaces it.
type cause struct {
	rank int // the rank that failed; -1: the failure is not that of a rank
	// host is the index in run.hosts of the host of the rank, or of the host that was lost. It is
	// not used for other failures.
	host   int
	kind   kind   // how the rank or host has failed
	timing timing // when the rank or host failed, compared with the failure that is the outcome
	// dying is the field Exiting of the rank's proto.Exit: the rank was ending already when another
	// rank of its host failed, or when its host began to end the ranks.
	dying bool
	abort bool // the rank called Abort and is about to exit by itself
	end   bool // the job must not be restarted, for example because the user has ended it
	first bool // the rank exited before its host had begun to end the ranks; false for an abort
}

// kind is how a rank or a host fails.
type kind int

const (
	// kindOther is none of the kinds below. For example, the user or the timeout ended the job, or
	// the exit of a rank is no failure.
	kindOther       kind = iota
	kindConsequence      // a rank aborted and named the failure of another rank as its reason
	// kindNoReason: a rank failed without a signal and without a reason. For example, it exited
	// with a code other than 0, or without Finalize.
	kindNoReason
	// kindFollower is kindNoReason for a failure that has replaced an outcome of kindConsequence or
	// kindFollower: see minTiming.
	kindFollower
	// kindReason: a rank aborted for another reason than the failure of a rank, or broke the PMI
	// protocol.
	kindReason
	kindSignal // a signal other than those of kindCrash ended a rank
	// kindCrash: SIGKILL or a signal such as SIGSEGV ended a rank. No failure of another rank
	// causes such a signal: see isCrash.
	kindCrash
	kindLost // the connection with a host was lost
	kinds    // number of kinds
)

// timing says when a failure occurred, compared with the failure that is the outcome and with the
// end of the job. The order of the values matters: see minTiming.
type timing int

const (
	// timingEnding: the host of the failed rank had already begun to end its ranks. For an abort,
	// the rank had already got SIGTERM or SIGKILL.
	timingEnding timing = iota
	// timingAfter: not timingEnding, and the outcome's failure was on the same host and in the same
	// group, and gorun received it first.
	timingAfter
	// timingApart: the outcome's failure was on another host or in another group, and the order of
	// the two failures is not known.
	timingApart
	// timingBefore: the failure began before the outcome's failure, or counts as if it had: see
	// timingOf.
	timingBefore
)

// minTiming decides whether a failure replaces the outcome: it does if its timing is not less than
// the entry. The first index is the kind of the outcome, the second the kind of the failure. If
// there is no entry, the outcome stays.
//
// A consequence is replaced by any failure other than kindOther and kindConsequence, unless the
// failure results from the end of the job (timingEnding). The loss of a host replaces a consequence
// only if the rank of the consequence ran on another host. A rank of kindFollower ended without a
// reason, and may have noticed the failure that the consequence before it names. So kindFollower is
// replaced like a consequence, except by another failure of kindNoReason, which must have begun
// earlier. In the rows of kindNoReason and kindReason a failure replaces the outcome only if it
// began earlier, or if it is a crash or a lost host, and not on the outcome's host.
var minTiming = [kinds][kinds]timing{
	kindConsequence: {kindNoReason: timingAfter, kindReason: timingAfter, kindSignal: timingAfter, kindCrash: timingAfter, kindLost: timingApart},
	kindFollower:    {kindNoReason: timingBefore, kindReason: timingAfter, kindSignal: timingAfter, kindCrash: timingAfter, kindLost: timingApart},
	kindNoReason:    {kindNoReason: timingBefore, kindReason: timingBefore, kindSignal: timingBefore, kindCrash: timingApart, kindLost: timingApart},
	kindReason:      {kindNoReason: timingBefore, kindReason: timingBefore, kindSignal: timingBefore, kindCrash: timingApart, kindLost: timingApart},
}

// replaces reports whether a failure with cause c replaces the outcome, whose cause is outcome.
func (c cause) replaces(outcome cause) bool {
	least := minTiming[outcome.kind][c.kind]
	return least > timingEnding && c.timing >= least
}

// kindOf returns the kind of the failure of a rank that has ended. The kind is kindOther if the
// exit is not a failure.
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

// timingOf returns the timing of the failure of a rank that has ended. e is its exit, and k the
// kind of its failure. If e.KillPending is set and SIGKILL ended the rank, the timing is
// timingBefore. If e.Exiting is set, the rank was already in exit(2), or a signal was ending it,
// when the first rank of its host failed, or when its host began to end the ranks. So it failed
// before the outcome's rank, and the timing is timingBefore, too. There are exceptions for
// e.Exiting:
//
//   - If the outcome's failure was on another host or in another group, the rank may have been in exit(2) because it
//     had noticed that failure. Then the timing is timingBefore only if the outcome is a
//     consequence, or if the rank ended first by the clocks of the hosts. If a signal such as
//     SIGSEGV ended the rank, the timing is at least timingApart.
//   - If Exiting is set in the exit of the outcome's rank too, e.Exiting does not show which of the
//     two ranks failed first.
//   - For kindSignal, e.Exiting proves nothing, because gorun may have sent the signal to a rank
//     that was in exit(2).
func (r *run) timingOf(k kind, e proto.Exit) timing {
	apart := r.isApart(e.Rank)
	ending := e.Exiting && !r.cause.dying && k != kindSignal && r.cause.rank >= 0
	switch {
	case e.KillPending && syscall.Signal(e.Signal) == syscall.SIGKILL:
		return timingBefore
	case ending && (!apart || r.cause.kind == kindConsequence || r.endedBefore(e)):
		return timingBefore
	case ending && k == kindCrash && syscall.Signal(e.Signal) != syscall.SIGKILL: // SIGKILL may come from gorun
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

// isApart reports whether a rank runs on another host than the rank of the outcome, or in another
// group. Then another Manager watches it, and the order in which gorun receives the two failures does
// not show which was first. isApart returns false if the outcome is not the failure of a rank.
func (r *run) isApart(rank int) bool {
	return r.cause.rank >= 0 && (r.ranks[rank].host != r.cause.host || r.ranks[rank].group != r.ranks[r.cause.rank].group)
}

// endedBefore reports whether a rank ended before the rank of the outcome, by the clocks of their
// hosts, although gorun received its exit later. It returns false if gorun has not got the exit of
// the outcome's rank, and unless both clocks are known to be within maxSkew of gorun's clock. They
// are if gorun received Started at most maxSkew after it had sent Start, and if the start time of
// each of the two ranks, by its host's clock, lies between these two times of gorun's clock. The
// outcome must be the failure of a rank.
func (r *run) endedBefore(e proto.Exit) bool {
	const maxSkew = time.Second
	first := &r.ranks[r.cause.rank]
	for _, number := range []int{r.cause.rank, e.Rank} {
		g, at := r.groupOf(number), r.ranks[number].started
		if g.startDone.IsZero() || g.startDone.Sub(g.startSent) > maxSkew || at.Before(g.startSent) || at.After(g.startDone) {
			return false
		}
	}
	return first.exit != nil && e.At < first.exit.At
}

// isCrash reports whether a signal is SIGKILL, or one by which the kernel ends a program that
// crashes or exceeds its CPU time. Such an end is not caused by the failure of another rank.
func isCrash(s syscall.Signal) bool {
	return slices.Contains([]syscall.Signal{
		syscall.SIGKILL, syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE, syscall.SIGSYS, syscall.SIGXCPU,
	}, s)
}
