package engine

import (
	"context"
	"sync"
)

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

// The requests of a call may belong to several engines, if the process is connected with another
// job. inSeveral reports whether the n requests that at returns belong to e and to other engines. It
// takes constant time if the process has one engine.
func (e *Engine) inSeveral(n int, at func(i int) Request) bool {
	if engines.Load() <= 1 {
		return false
	}
	for i := range n {
		if q := at(i); q.r != nil && q.r.e != e {
			return true
		}
	}
	return false
}

// byEngine calls f for each engine of the n requests that at returns, with a function that returns
// those requests of this engine, and the zero Request for others. That function uses copies of the
// requests, so that at does not escape to the heap.
func byEngine(n int, at func(i int) Request, f func(e *Engine, own func(i int) Request)) {
	all := make([]Request, n)
	for i := range n {
		all[i] = at(i)
	}
	seen := make(map[*Engine]bool)
	for _, q := range all {
		if q.r == nil || seen[q.r.e] {
			continue
		}
		e := q.r.e
		seen[e] = true
		f(e, func(i int) Request {
			if q := all[i]; q.r != nil && q.r.e == e {
				return q
			}
			return Request{}
		})
	}
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
		if q.r.done || q.r.pendingErr() != nil {
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

// WaitAny blocks until one of the n requests that at returns has ended, or until a wait for it would
// return ErrPending, and returns its index. It does not free the request. It returns -1 if every
// request is zero or was collected before. If ctx ends first, WaitAny returns ctx's error. WaitAny
// calls at under an engine's lock, so at must not use the engine.
func WaitAny(ctx context.Context, n int, at func(i int) Request) (int, error) {
	_, e := firstOf(n, at)
	if e == nil {
		return -1, nil
	}
	var i int
	var err error
	if e.inSeveral(n, at) {
		i, err = waitAnyEngine(ctx, n, at)
	} else {
		i, err = e.waitAny(ctx, n, at)
	}
	if err != nil {
		eachLocked(n, at, func(_ int, q Request) bool {
			if !q.doneLocked() {
				q.r.reported = true
			}
			return true
		})
	}
	return i, err
}

// waitAnyEngine is waitAny for requests of several engines. It waits in each engine at the same
// time.
func waitAnyEngine(ctx context.Context, n int, at func(i int) Request) (int, error) {
	if ctx == nil {
		ctx = context.Background()
	}
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	found := -1
	var mu sync.Mutex // guards found
	var waits sync.WaitGroup
	byEngine(n, at, func(e *Engine, own func(i int) Request) {
		waits.Go(func() { // ends when a request has ended, in this engine or in another one, or ctx
			i, err := e.waitAny(bounded, n, own)
			if err != nil || i < 0 {
				return
			}
			mu.Lock()
			found = i
			mu.Unlock()
			cancel()
		})
	})
	waits.Wait()
	if found < 0 {
		return -1, ctx.Err()
	}
	return found, nil
}

// waitAny is WaitAny for requests of e.
func (e *Engine) waitAny(ctx context.Context, n int, at func(i int) Request) (int, error) {
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
	if e.inSeveral(n, at) {
		i = -1
		byEngine(n, at, func(_ *Engine, own func(i int) Request) {
			if i < 0 {
				var some bool
				i, some = TestAny(n, own)
				live = live || some
			}
		})
		return i, live
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if i = e.anyFinished(n, at); i >= 0 {
		return i, true
	}
	e.poll()
	// If all conditions are false, no request is complete, and the first one is under way. So a
	// scan would find nothing.
	if e.uncollected > 0 || e.failures > 0 || first.r.gen != first.gen {
		if i, live, _ = scan(n, at); i >= 0 || !live {
			return i, live
		}
	}
	e.testFailed()
	return -1, true
}

// eachLocked calls f, in order, with each of the n requests that at returns, except zero ones, until
// f returns false. It calls f under the lock of the request's engine.
func eachLocked(n int, at func(i int) Request, f func(i int, q Request) bool) {
	var e *Engine
	for i := range n {
		q := at(i)
		if q.r == nil {
			continue
		}
		if q.r.e != e {
			if e != nil {
				e.mu.Unlock()
			}
			e = q.r.e
			e.mu.Lock()
		}
		if !f(i, q) {
			break
		}
	}
	if e != nil {
		e.mu.Unlock()
	}
}

// AllDone reports whether all of the n requests that at returns have ended. If one has not, AllDone
// polls the transports once and checks again. It frees no request.
func AllDone(n int, at func(i int) Request) bool {
	all := true
	eachLocked(n, at, func(_ int, q Request) bool {
		if q.doneLocked() {
			return true
		}
		q.r.e.poll()
		if all = q.doneLocked(); !all {
			q.r.e.testFailed()
		}
		return all
	})
	return all
}

// FirstPending returns the index of the first of the n requests that at returns for which a wait
// returns ErrPending, or -1.
func FirstPending(n int, at func(i int) Request) int {
	first := -1
	eachLocked(n, at, func(i int, q Request) bool {
		if q.r.e.failures == 0 && engines.Load() <= 1 {
			return false // none is pending
		}
		if !q.doneLocked() && q.r.pendingErr() != nil {
			first = i
		}
		return first < 0
	})
	return first
}

// EachDone calls f, in order, with the index of each request that has ended and was not collected,
// among the n requests that at returns. It leaves out zero requests. It calls at and f under an
// engine's lock, so they must not use the engine.
func EachDone(n int, at func(i int) Request, f func(i int)) {
	eachLocked(n, at, func(i int, q Request) bool {
		if q.r.gen == q.gen && q.r.done {
			f(i)
		}
		return true
	})
}
