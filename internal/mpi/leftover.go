package mpi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/stack"
)

// Requests and messages that are left at the end of a program
//
//	failed request whose error no Wait or Test has returned ─► error of Finalize and Main
//	request that is not complete, message that is not received ─► a line on stderr
//
// A request that failed because a process failed, because the communicator was revoked for another
// reason than ErrMismatch, or because a context ended is not reported: the program may tolerate
// that. A request that failed because the other side is in Finalize, or because the communicator
// was freed, counts as one that is not complete.

// refusals counts refused requests. A request is refused if its call failed before it started an
// operation, because of a mistake of the program such as a rank that does not exist. A request
// counts until a Wait or Test returns its error.
type refusals struct {
	mu sync.Mutex
	n  int // number of requests that count; guarded by mu
	// At most reportLimit of the requests that count, in the order of their calls; guarded by mu.
	few []*completedRequest
	// One entry for each pair of function (such as Isend) and source line with refused requests, in
	// the order of the first refusals; guarded by mu.
	calls []refusedCall
}

// refusedCall counts the refused requests of one call, such as Isend, at one line of the program.
type refusedCall struct {
	op   string // the name of the call; empty if the error does not name it
	line string // line of the program, as in completedRequest.line
	n    int    // number of refused requests whose error no Wait or Test has returned
}

// add starts counting a refused request.
func (r *refusals) add(e *completedRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.counted = true
	r.callOf(e).n++
	if r.n++; len(r.few) < reportLimit {
		r.few = append(r.few, e)
	}
}

// remove stops counting a request whose error Wait or Test reports.
func (r *refusals) remove(e *completedRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !e.counted {
		return
	}
	e.counted = false
	r.callOf(e).n--
	r.n--
	if i := slices.Index(r.few, e); i >= 0 {
		r.few = slices.Delete(r.few, i, i+1)
	}
}

// callOf returns the entry of r.calls for the call of a request; it adds the entry if there is
// none. The caller holds r.mu.
func (r *refusals) callOf(e *completedRequest) *refusedCall {
	op := ""
	if err := (*Error)(nil); errors.As(e.err, &err) {
		op = err.Op
	}
	i := slices.IndexFunc(r.calls, func(c refusedCall) bool { return c.op == op && c.line == e.line })
	if i < 0 {
		i = len(r.calls)
		r.calls = append(r.calls, refusedCall{op: op, line: e.line})
	}
	return &r.calls[i]
}

// unreported returns the number of refused requests that no Wait or Test has reported, and at most
// reportLimit of them.
func (r *refusals) unreported() (int, []*completedRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n, slices.Clone(r.few)
}

// unreportedCalls returns a text that names at most reportLimit calls, each with the number of its
// refused requests that no Wait or Test has reported.
func (r *refusals) unreportedCalls() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var calls []string
	for _, c := range r.calls {
		if c.n > 0 && len(calls) < reportLimit {
			calls = append(calls, fmt.Sprintf("%d of %s%s", c.n, c.op, startedAt(c.line)))
		}
	}
	return strings.Join(calls, "; ")
}

// ownJob is the job that Init has started for this process. It is nil before Init and after
// Finalize, and in tests whose ranks are goroutines. It counts the refused requests of calls on a
// nil communicator.
var ownJob atomic.Pointer[job]

// refused returns a request for a call that failed before it started an operation. Wait and Test of
// the request return the error.
func (c *Comm) refused(op string, peer, tag int, err error) Request {
	e := &completedRequest{err: c.fail(op, peer, tag, err)}
	if c != nil && c.s != nil {
		e.job = c.s.job
	} else {
		e.job = ownJob.Load()
	}
	if e.job != nil && !e.job.closed.Load() && isMistake(e.err) {
		if e.job.checks {
			e.line = stack.ProgramLine()
		}
		e.job.refusals.add(e)
	}
	return Request{c: &Comm{completed: e}}
}

// result returns the status and the error that Wait or Test returns, and records that the program
// has seen the error.
func (e *completedRequest) result() (Status, error) {
	if e.job != nil {
		e.job.refusals.remove(e)
	}
	if e.use != nil {
		return e.st, e.c.fail(e.at.op().String(), e.at.peer(), e.at.tag(), e.use.End(nil))
	}
	return e.st, e.err
}

// noteLine records in the engine the line of the program that has started the request r, for
// reports. It is not inlined, so that calls without the tunable check do not contain its code.
//
//go:noinline
func noteLine(r engine.Request) { r.SetOrigin(stack.ProgramLine()) }

// listed returns the words with which the error of n failed requests refers to the requests that
// WEFT_CHECK=1 would list: "them" or "the first 8".
func listed(n int) string {
	if n > reportLimit {
		return fmt.Sprintf("the first %d", reportLimit)
	}
	return "them"
}

// reportLimit is the maximum number of requests, and of messages, that a report describes.
const reportLimit = 8

// unreportedFailures returns an error if requests have failed because of mistakes of the program,
// and no Wait or Test has returned their errors. Otherwise it returns nil.
func (j *job) unreportedFailures() error {
	var errs []error
	var lines []string
	n, few := j.refusals.unreported()
	for _, e := range few {
		errs, lines = append(errs, e.err), append(lines, e.line)
	}
	for _, l := range j.eng.Leftovers() {
		if !l.Unfinished() && isMistake(l.Err) {
			n++
			errs, lines = append(errs, leftoverError(&l)), append(lines, l.Origin)
		}
	}
	if n == 0 {
		return nil
	}
	head := "1 request failed, and the program did not wait for it"
	if n > 1 {
		head = fmt.Sprintf("%d requests failed, and the program did not wait for them", n)
	}
	// If errs is empty, the program has waited for all requests that the slice few has held. few
	// was full when the other requests were refused.
	if len(errs) == 0 {
		calls := j.refusals.unreportedCalls()
		if !j.checks {
			calls += " (WEFT_CHECK=1 names the lines of the calls)"
		}
		return fmt.Errorf("%s: %s", head, calls)
	}
	if !j.checks {
		errs = errs[:1]
	}
	errs = errs[:min(len(errs), reportLimit)]
	tail := ""
	for i, err := range errs {
		if i > 0 {
			tail += "; " + err.Error()
		}
		tail += startedAt(lines[i])
	}
	switch {
	case !j.checks && n > 1:
		tail = fmt.Sprintf("; and %d more (WEFT_CHECK=1 lists %s, with the lines that started them)", n-1, listed(n))
	case !j.checks:
		tail = " (WEFT_CHECK=1 names the line that started it)"
	case n > len(errs):
		tail += fmt.Sprintf("; and %d more", n-len(errs))
	}
	return fmt.Errorf("%s: %w%s", head, errs[0], tail)
}

// isMistake reports whether err, the error of a request, shows a mistake of the program. It returns
// false for failures (see isFailure), ranks in Finalize and contexts that have ended, which a
// program may tolerate.
func isMistake(err error) bool {
	return !isFailure(err) && !errors.Is(err, ErrFinalized) && !isContext(err)
}

// isFailure reports whether err follows from the failure of a process, or from a revocation for a
// reason other than ErrMismatch.
func isFailure(err error) bool {
	return errors.Is(err, ErrProcFailed) || errors.Is(err, ErrRevoked) && !errors.Is(err, ErrMismatch)
}

// leftoverError returns the error of the failed request l: that of a collective as it is, any other
// with a description of the call.
func leftoverError(l *engine.Leftover) error {
	if e := (*Error)(nil); errors.As(l.Err, &e) {
		return e
	}
	return leftoverCall(l)
}

// leftoverCall returns an Error that describes the call that started the request l.
func leftoverCall(l *engine.Leftover) *Error {
	e := &Error{Peer: noRank, Tag: noRank, Err: l.Err}
	switch l.Kind {
	case engine.LeftTask:
		e.Op = "nonblocking collective"
		return e
	case engine.LeftOneSided:
		e.Op = "one-sided operation"
		return e
	case engine.LeftProgram:
		e.Op = opNewRequest.String()
		return e
	case engine.LeftSend:
		e.Op = opIsend.String()
	case engine.LeftSsend:
		e.Op = opIssend.String()
	case engine.LeftRecv:
		e.Op = opIrecv.String()
	case engine.LeftMrecv:
		e.Op = opImrecv.String()
	}
	e.Comm, e.Peer, e.Tag = commName("comm", l.Context/2), l.Peer, l.Tag
	return e
}

func startedAt(line string) string {
	if line == "" {
		return ""
	}
	return ", started at " + line
}

// settleTime is the maximum time for which Finalize waits for transfers that the program did not
// wait for.
const settleTime = time.Second

// settle blocks, for at most settleTime, until the transfers that the program did not wait for are
// complete, if they can complete without another call of this rank's program. All ranks are in
// Finalize.
func (j *job) settle() {
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	j.eng.Settle(ctx)
}

// reportLeftovers writes a line to stderr if requests of the program are not complete, or if it
// has not received messages. Finalize calls it after settle.
func (j *job) reportLeftovers() {
	var parts, calls []string
	for _, l := range j.eng.Leftovers() {
		if l.Unfinished() {
			calls = append(calls, leftoverCall(&l).call()+startedAt(l.Origin))
		}
	}
	switch n := len(calls); n {
	case 0:
	case 1:
		parts = append(parts, "1 request did not complete"+j.list(n, calls))
	default:
		parts = append(parts, fmt.Sprintf("%d requests did not complete%s", n, j.list(n, calls)))
	}
	n, few := j.eng.Unreceived()
	var messages []string
	of, where := "world", ""
	if j.home != j {
		of, where = "connection", "on a connection, "
	}
	for _, m := range few {
		messages = append(messages, fmt.Sprintf("from rank %d of the %s, tag %d, %d bytes (%s)", m.Source, of, m.Tag, m.Bytes, commName("comm", m.Context/2)))
	}
	switch n {
	case 0:
	case 1:
		parts = append(parts, "1 message was not received"+j.list(n, messages))
	default:
		parts = append(parts, fmt.Sprintf("%d messages were not received%s", n, j.list(n, messages)))
	}
	if len(parts) == 0 {
		return
	}
	line := strings.Join(parts, ", and ")
	if !j.checks {
		line += " (WEFT_CHECK=1 lists them)"
	}
	fmt.Fprintf(os.Stderr, "weft: rank %d: %s%s\n", j.home.world.Rank, where, line)
}

// list returns the part of a report that describes n requests or messages. few holds a text for
// each of them, or for the first ones. Without the tunable check the result is empty.
func (j *job) list(n int, few []string) string {
	if !j.checks {
		return ""
	}
	few = few[:min(len(few), reportLimit)]
	text := ": " + strings.Join(few, "; ")
	if n > len(few) {
		text += fmt.Sprintf("; and %d more", n-len(few))
	}
	return text
}
