package engine

import (
	"errors"
	"sync"
)

// workers holds the goroutines that run the functions of Engine.Go, such as nonblocking
// collectives: code that blocks. The goroutines are used again. Their number has no limit, because
// a function may wait for a message that another one sends.
type workers struct {
	wg    sync.WaitGroup // counts the goroutines that exist
	tasks chan task      // tasks for goroutines that wait for reuse; a task without f makes a goroutine end
	// Number of goroutines that wait for a task, minus the tasks that were sent to them and that
	// they have not received yet; guarded by Engine.mu.
	idle int
}

// task is one call of Engine.Go: the function f, and the request r that completes when f returns.
type task struct {
	f func() error
	r *request
}

// maxIdleWorkers is the maximum of workers.idle: so many goroutines wait for reuse, and the others
// end.
const maxIdleWorkers = 16

// ErrGoexit is the error of the request of Engine.Go if the function has called runtime.Goexit.
var ErrGoexit = errors.New("a function of the program called runtime.Goexit")

// Go runs f on another goroutine and returns at once. The request completes with f's error, or with
// ErrGoexit if f calls runtime.Goexit. If the engine is closed, Go runs f before it returns.
func (e *Engine) Go(f func() error) Request {
	e.mu.Lock()
	t := task{f, e.take(kindTask)}
	q := e.name(t.r)
	e.tasks++
	if e.closed {
		e.mu.Unlock()
		e.run(t) // runs f, whose operations fail at once, so that f can free its resources
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
		// The goroutine ends after a task if maxIdleWorkers goroutines are idle, else at Close, which
		// waits for it.
		go e.work(t)
	}
	return q
}

// work runs the task t, and then tasks that it receives, until run returns false or a task without
// f arrives.
func (e *Engine) work(t task) {
	defer e.workers.wg.Done()
	for t.f != nil && e.run(t) {
		t = <-e.workers.tasks
	}
}

// run runs a task. more reports whether the goroutine should wait for another task.
func (e *Engine) run(t task) (more bool) {
	err, returned := ErrGoexit, false
	defer func() {
		if p := recover(); p != nil {
			panic(p) // ends the process; the code below would block if the function holds e.mu
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

// endWorkers ends the goroutines of workers, and waits until they have ended. The engine is closed,
// so tasks that still run end soon: all their operations fail.
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
