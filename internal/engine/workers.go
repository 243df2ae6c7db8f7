package engine

import (
	"errors"
	"sync"
)

// workers runs the functions of Engine.Go, such as nonblocking collectives: blocking code on
// goroutines that are reused. The number of goroutines is unlimited, because each may wait for a
// message that another one sends.
type workers struct {
	wg    sync.WaitGroup
	tasks chan task // tasks for idle goroutines; a task without f ends a goroutine
	idle  int       // number of goroutines that wait for a task, minus the tasks that are on their way to them; guarded by Engine.mu
}

type task struct {
	f func() error
	r *request
}

// maxIdleWorkers is the maximum number of goroutines that wait for reuse.
const maxIdleWorkers = 16

// ErrGoexit is the error of a function of Engine.Go that has called runtime.Goexit.
var ErrGoexit = errors.New("a function of the program called runtime.Goexit")

// Go runs f on another goroutine. The request completes with f's error, or with ErrGoexit
// if f calls runtime.Goexit.
func (e *Engine) Go(f func() error) Request {
	e.mu.Lock()
	t := task{f, e.take(kindTask)}
	q := e.name(t.r)
	e.tasks++
	if e.closed {
		e.mu.Unlock()
		e.run(t) // its operations fail at once, and it frees its resources
		return q
	}
	idle := e.workers.idle > 0
	if idle {
		e.workers.idle--
	} else {
		e.workers.wg.Add(1)
	}
	e.mu.Unlock()
	if idle {
		e.workers.tasks <- t
	} else {
		go e.work(t) // ends after a task if enough goroutines are idle, else at Close, which waits for it
	}
	return q
}

func (e *Engine) work(t task) {
	defer e.workers.wg.Done()
	for t.f != nil && e.run(t) {
		t = <-e.workers.tasks
	}
}

// run runs a task. It reports whether its goroutine should wait for another one.
func (e *Engine) run(t task) (more bool) {
	err, returned := ErrGoexit, false
	defer func() {
		if p := recover(); p != nil {
			panic(p) // ends the process; complete must not run, because the function may hold mu
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.tasks--
		e.complete(t.r, err)
		if more = returned && !e.closed && e.workers.idle < maxIdleWorkers; more {
			e.workers.idle++
		}
	}()
	err = t.f()
	returned = true
	return more
}

// endWorkers ends the goroutines of an engine that is closed. Tasks that still run end soon,
// because the engine has failed their operations.
func (e *Engine) endWorkers() {
	w := &e.workers
	e.mu.Lock()
	idle := w.idle
	w.idle = 0
	e.mu.Unlock()
	for range idle {
		w.tasks <- task{}
	}
	w.wg.Wait()
}
