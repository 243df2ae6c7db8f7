package engine

import "context"

// Several requests at once
//
// WaitAny and TestAny over thousands of requests look at those that have ended,
// not at all of them. A first pass over the slice gives each request a hint: the
// index at which it was found. A request with a hint that has ended and is not
// collected yet is in Engine.finished, and the caller's slice confirms the hint.
// Where no hint helps, one more pass finds what is complete and renews the hints.
// A request that only Wait is called for has no hint, and costs no list.

// hintsTried bounds how many finished requests are looked at by their hints.
const hintsTried = 32

// anyFinished returns the index of one of n requests that has ended, found by the
// hints; -1: the hints lead to none.
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

// scan looks at all of n requests. It returns the index of the first that has
// ended, or -1; whether any is under way; and whether all of those are tasks.
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

// firstOf returns the first request that is not zero, and its engine; nil: all
// are zero.
func firstOf(n int, at func(i int) Request) (Request, *Engine) {
	for i := range n {
		if q := at(i); q.r != nil {
			return q, q.r.e
		}
	}
	return Request{}, nil
}

// WaitAny blocks until one of the n requests that at returns has ended, and
// returns its index without freeing it; -1 where none is under way or complete:
// all are zero or stale. at is called under the engine's lock and must not use
// the engine.
func WaitAny(ctx context.Context, n int, at func(i int) Request) (int, error) {
	_, e := firstOf(n, at)
	if e == nil {
		return -1, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		// A hint may be lost: another goroutine has collected the request, or has put
		// the index in its own slice there. Then scan looks at all requests.
		if i := e.anyFinished(n, at); i >= 0 {
			return i, nil
		}
		i, live, tasks := scan(n, at)
		if i >= 0 || !live {
			return i, nil
		}
		if err := e.awaitIn(ctx, &e.watchers, awaited{passive: tasks}); err != nil {
			for i := range n {
				if q := at(i); !q.doneLocked() {
					q.r.reported = true
				}
			}
			return -1, err
		}
	}
}

// TestAny is WaitAny that does not block: it moves the engine on once. live
// reports whether any of the requests is under way or complete.
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
	if e.ended > 0 || first.r.gen != first.gen { // else none is complete, and the first is under way
		if i, live, _ = scan(n, at); i >= 0 || !live {
			return i, live
		}
	}
	e.foundNothing()
	return -1, true
}

// AllDone reports whether each of the n requests that at returns has ended. If
// not, it moves the engine on once and looks again.
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
			e.foundNothing()
			return false
		}
		e.poll()
	}
}

// EachDone calls f with the index of each of the n requests that at returns that
// has ended, in order. at and f are called under the engine's lock and must not
// use the engine.
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
