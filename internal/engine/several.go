package engine

import "context"

// Waits and tests for several requests at once
//
// WaitAny and TestAny over thousands of requests examine only requests that have ended. A first
// pass over the slice gives each request a hint: its index in the slice. A request with a hint
// that has ended and is not collected yet is in Engine.finished, and the caller's slice confirms
// the hint. If no hint helps, another pass finds the requests that have ended and renews the
// hints. A request that only Wait is called for has no hint, and is in no list.

// hintsTried is the maximum number of finished requests whose hints are tried.
const hintsTried = 32

// anyFinished returns the index of one of n requests that has ended, found by a hint; -1: no hint
// leads to one.
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

// scan examines n requests in order and gives them hints. It returns the index of the first that
// has ended, or -1; whether any is under way or complete; and whether all of those are tasks.
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

// firstOf returns the first request that is not zero, and its engine. The engine is nil if all
// requests are zero.
func firstOf(n int, at func(i int) Request) (Request, *Engine) {
	for i := range n {
		if q := at(i); q.r != nil {
			return q, q.r.e
		}
	}
	return Request{}, nil
}

// WaitAny blocks until one of the n requests that at returns has ended, and returns its index
// without freeing the request. It returns -1 if no request is under way or complete because all
// are zero or stale. WaitAny calls at under the engine's lock, so at must not use the engine.
func WaitAny(ctx context.Context, n int, at func(i int) Request) (int, error) {
	_, e := firstOf(n, at)
	if e == nil {
		return -1, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		// A hint may be wrong: another goroutine has collected the request, or has replaced
		// the hint by the index in its own slice. Then scan examines all requests.
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

// TestAny is WaitAny without blocking: it polls the transports once. live reports whether any of
// the requests is under way or complete.
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
	if e.uncollected > 0 || first.r.gen != first.gen { // otherwise no request is complete, and the first one is under way
		if i, live, _ = scan(n, at); i >= 0 || !live {
			return i, live
		}
	}
	e.testFailed()
	return -1, true
}

// AllDone reports whether each of the n requests that at returns has ended. If not, it polls the
// transports once and checks again.
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

// EachDone calls f, in order, with the index of each of the n requests that at returns that has
// ended. It calls at and f under the engine's lock, so they must not use the engine.
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
