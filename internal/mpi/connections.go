package mpi

import (
	"context"
	"errors"
	"sync"
)

// connections holds the connections of a process with other jobs.
type connections struct {
	mu   sync.Mutex
	open map[*job]*ending // the connections that have not ended, or have failed to; guarded by mu
	// Why processes have failed of which the launcher has reported that; guarded by mu.
	failed map[identity]string
}

// ending is the end of a connection.
type ending struct {
	freed  bool               // the program has freed all communicators of the connection
	cancel context.CancelFunc // nil: the end has not begun
	done   chan struct{}      // closed when the connection has ended, with err set
	err    error
}

func (x *connections) add(j *job) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.open == nil {
		x.open = make(map[*job]*ending)
	}
	x.open[j] = &ending{done: make(chan struct{})}
	for id, reason := range x.failed {
		j.lose(id, reason)
	}
}

// reported handles a report of the launcher that ranks have failed: those of the job with the id
// name, or of the own job of this process if name is "". A failed process is also failed in the
// connections that it takes part in.
func (j *job) reported(name string, ranks []int, reason string) {
	if name == "" {
		name = j.procs.self.job
	}
	x := &j.connections
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.failed == nil {
		x.failed = make(map[identity]string)
	}
	for _, r := range ranks {
		id := identity{name, r}
		if _, known := x.failed[id]; known {
			continue
		}
		x.failed[id] = reason
		for c := range x.open {
			c.lose(id, reason)
		}
	}
}

// lose marks a process as failed in a connection, if it is one of its ranks.
func (j *job) lose(id identity, reason string) {
	if n, ok := j.procs.find(id); ok {
		if rank, ok := j.rankOf[n]; ok {
			j.eng.MarkFailed(reason, rank)
		}
	}
}

// release starts the end of a connection whose communicators the program has freed.
func (x *connections) release(j *job) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.open[j]; e != nil && e.cancel == nil {
		e.freed = true
		x.begin(j, e)
	}
}

// begin starts the end of a connection. The caller holds mu.
func (x *connections) begin(j *job, e *ending) {
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	go func() { // ends when the ranks of the connection have ended it or have failed, or after cancel; endAll or awaitFreed waits for it
		defer close(e.done)
		defer cancel()
		err := j.finalize(ctx)
		x.mu.Lock()
		defer x.mu.Unlock()
		if e.err = err; err == nil || e.freed && isFailure(err) {
			delete(x.open, j)
		}
	}()
}

// await blocks until the connection, whose end has begun, has ended. If ctx ends first, it cancels the end.
func (e *ending) await(ctx context.Context) {
	select {
	case <-e.done:
	case <-ctx.Done():
		e.cancel()
		<-e.done
	}
}

// endAll ends all connections and returns their errors. It ends them at the same time, because the
// processes at their other ends may end them in another order. If ctx ends first, endAll gives up. If
// survives is set, the job continues after failures, and failures are no errors.
func (x *connections) endAll(ctx context.Context, survives bool) error {
	var all []*ending
	x.mu.Lock()
	for j, e := range x.open {
		if e.cancel == nil {
			x.begin(j, e)
		}
		all = append(all, e)
	}
	x.mu.Unlock()
	var errs []error
	for _, e := range all {
		e.await(ctx)
		if !e.freed && !survives || !isFailure(e.err) {
			errs = append(errs, e.err)
		}
	}
	return errors.Join(errs...)
}

// anyFreed reports whether there is a connection that the program has freed and awaitFreed has not awaited.
func (x *connections) anyFreed() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.open {
		if e.freed {
			return true
		}
	}
	return false
}

// awaitFreed blocks until the connections that the program has freed have ended, and returns their errors, which
// nothing reports again. If ctx ends first, awaitFreed gives up.
func (x *connections) awaitFreed(ctx context.Context) error {
	freed := make(map[*job]*ending)
	x.mu.Lock()
	for j, e := range x.open {
		if e.freed {
			freed[j] = e
		}
	}
	x.mu.Unlock()
	var errs []error
	for j, e := range freed {
		e.await(ctx)
		if !isFailure(e.err) {
			errs = append(errs, e.err)
		}
		x.mu.Lock()
		delete(x.open, j)
		x.mu.Unlock()
	}
	return errors.Join(errs...)
}

// released is called when a communicator of the job was freed. If it was the last one of a
// connection, the connection ends.
func (j *job) released() {
	if j.home == j {
		return
	}
	j.stall.mu.Lock()
	left := len(j.stall.states)
	j.stall.mu.Unlock()
	if left == statesOfJob {
		j.home.connections.release(j)
	}
}

// statesOfJob is the number of states that a job has for itself: first and final.
const statesOfJob = 2
