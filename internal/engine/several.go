package engine

import "context"

// Waits and tests for several requests at once
//
// A call of WaitAny or TestAny with thousands of requests examines only requests that have ended,
// in most cases. The first pass over the caller's requests gives each one a hint: its index in the
// caller's slice. When a request with a hint ends, the engine puts it into the list
// Engine.finished, until the program collects it. So a later call looks into this list. For each
// request there it checks whether the caller's slice has the request at the index that the hint
// says. If no hint is right, another pass over the slice finds the requests that have ended, and
// renews the hints. A request that is in no call of WaitAny or TestAny has no hint, and is never in
// the list.

// hintsTried is the maximum number of ended requests in Engine.finished whose hints one call of
// anyFinished checks.
const hintsTried = 32

// anyFinished returns the index of a request that has ended, among the n requests that at returns.
// It finds the request by its hint. It returns -1 if none of the examined hints is right.
func (e *Engine) anyFinished(n int, at func(i int) Request) int {
	tried := 0
	for ended := e.finished.head; ended != nil && tried < hintsTried; ended = ended.next {
		r := ended.req
		if i := int(r.hint) - 1; i < n {
			if q := at(i); q.r == r && q.gen == r.gen {
				return i
			}
		}
		tried++
	}
	return -1
}

// scan examines the n requests that at returns, in order, and gives them hints. done is the index
// of the first request that has ended and was not collected; -1: there is none. live reports
// whether any request was not collected. tasks reports whether all of those are tasks (functions of
// Engine.Go).
func scan(n int, at func(i int) Request) (done int, live, tasks bool) {
	tasks = true
	for i := range n {
		q := at(i)
		if q.r == nil || q.r.gen != q.gen {
			continue
		}
		if q.r.done {
			return i, true, false
		}
		q.r.hint = uint32(i + 1)
		live, tasks = true, tasks && q.r.kind == kindTask
	}
	return -1, live, tasks
}

// firstOf returns the first of the n requests that is not the zero Request, and its engine. The
// engine is nil if all requests are zero.
func firstOf(n int, at func(i int) Request) (Request, *Engine) {
	for i := range n {
		if q := at(i); q.r != nil {
			return q, q.r.e
		}
	}
	return Request{}, nil
}

// WaitAny blocks until one of the n requests that at returns has ended, and returns its index. It
// does not free the request. It returns -1 if every request is zero or was collected before. If ctx
// ends first, WaitAny returns ctx's error. WaitAny calls at under the engine's lock, so at must not
// use the engine.
func WaitAny(ctx context.Context, n int, at func(i int) Request) (int, error) {
	_, e := firstOf(n, at)
	if e == nil {
		return -1, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		// A hint may be wrong: another goroutine may have collected the request, or may have
		// replaced the hint by the index in its own slice. Then scan examines all requests.
		if i := e.anyFinished(n, at); i >= 0 {
			return i, nil
		}
		i, live, tasks := scan(n, at)
		if i >= 0 || !live {
			return i, nil
		}
		if err := e.awaitIn(ctx, &e.completionWaiters, awaited{passive: tasks}); err != nil {
			for i := range n {
				if q := at(i); !q.doneLocked() {
					q.r.reported = true
				}
			}
			return -1, err
		}
	}
}

// TestAny is WaitAny without blocking: it polls the transports once. i is -1 if none of the
// requests has ended. live reports whether any of the requests was not collected before.
func TestAny(n int, at func(i int) Request) (i int, live bool) {
	first, e := firstOf(n, at)
	if e == nil {
		return -1, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if i = e.anyFinished(n, at); i >= 0 {
		return i, true
	}
	e.poll()
	// If both conditions are false, no request is complete, and the first one is under way. So a
	// scan would find nothing.
	if e.uncollected > 0 || first.r.gen != first.gen {
		if i, live, _ = scan(n, at); i >= 0 || !live {
			return i, live
		}
	}
	e.testFailed()
	return -1, true
}

// AllDone reports whether all of the n requests that at returns have ended. If one has not, AllDone
// polls the transports once and checks again. It frees no request.
func AllDone(n int, at func(i int) Request) bool {
	_, e := firstOf(n, at)
	if e == nil {
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	first := 0
	for polled := false; ; polled = true {
		for first < n && at(first).doneLocked() {
			first++
		}
		switch {
		case first == n:
			return true
		case polled:
			e.testFailed()
			return false
		}
		e.poll()
	}
}

// EachDone calls f, in order, with the index of each request that has ended, among the n requests
// that at returns. It leaves out zero requests. It calls at and f under the engine's lock, so they
// must not use the engine.
func EachDone(n int, at func(i int) Request, f func(i int)) {
	_, e := firstOf(n, at)
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range n {
		if q := at(i); q.r != nil && q.doneLocked() {
			f(i)
		}
	}
}
