package engine

import "sync"

// workers runs the nonblocking collectives: plain blocking code on goroutines
// that are kept for reuse. There is no bound on how many run at once, for each
// may wait for a message that another one sends.
type workers struct {
	mu   sync.Mutex
	idle []chan task // guarded by mu
	wg   sync.WaitGroup
	shut bool // guarded by mu
}

type task struct {
	f func() error
	r *request
}

// maxIdleWorkers is how many goroutines wait for reuse.
const maxIdleWorkers = 16

// Go runs f on another goroutine; the request completes with f's error.
func (e *Engine) Go(f func() error) Request {
	e.mu.lock()
	if e.closed {
		e.mu.unlock()
		return e.completed(f()) // it fails at once, and gives up what it has
	}
	r := e.take(kindTask)
	q := Request{r: r, gen: r.gen}
	e.tasks++
	e.mu.unlock()
	t := task{f, r}

	w := &e.workers
	w.mu.Lock()
	if w.shut { // since we looked
		w.mu.Unlock()
		e.endTask(r, f())
		return q
	}
	if n := len(w.idle); n > 0 {
		ch := w.idle[n-1]
		w.idle = w.idle[:n-1]
		w.mu.Unlock()
		ch <- t
		return q
	}
	w.wg.Add(1)
	w.mu.Unlock()
	go e.work(t) // ends with its task where enough are idle, else at close, which waits
	return q
}

func (e *Engine) work(t task) {
	w := &e.workers
	defer w.wg.Done()
	ch := make(chan task, 1)
	for {
		err := t.f()
		e.endTask(t.r, err)
		w.mu.Lock()
		if w.shut || len(w.idle) >= maxIdleWorkers {
			w.mu.Unlock()
			return
		}
		w.idle = append(w.idle, ch)
		w.mu.Unlock()
		var ok bool
		if t, ok = <-ch; !ok {
			return
		}
	}
}

func (e *Engine) endTask(r *request, err error) {
	e.mu.lock()
	e.tasks--
	e.complete(r, err)
	e.mu.unlock()
}

// close ends the workers. Their tasks have been failed by the engine, so that
// they end by themselves.
func (w *workers) close() {
	w.mu.Lock()
	w.shut = true
	for _, ch := range w.idle {
		close(ch)
	}
	w.idle = nil
	w.mu.Unlock()
	w.wg.Wait()
}
