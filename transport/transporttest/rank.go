package transporttest

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// world is a job whose ranks have endpoints and have inserted all addresses. Each rank runs in a
// goroutine of its own. What a rank writes to shared variables before sync, the others may read
// after sync.
type world struct {
	t     testing.TB
	job   *Job
	ranks []*rank
	attr  transport.Attr // of rank 0's domain

	arrived atomic.Int64 // number of calls of sync so far, by all ranks
	failed  atomic.Bool  // a rank has returned an error
}

// rank is one rank of a world. One goroutine at a time uses it, except that other goroutines call
// Signal and Wait of its queue.
type rank struct {
	w    *world
	id   transport.Addr
	n    int
	attr transport.Attr
	dom  transport.Domain
	cq   transport.CompletionQueue
	av   transport.AddressVector
	ep   transport.Endpoint
	rma  transport.RMAEndpoint // nil without CapRead and CapWrite

	unsent func() bool // BatchEndpoint.Unsent; nil without CapBatch

	syncs   int64                                       // number of calls of sync
	entries []transport.Completion                      // argument of Read
	onMsg   func(from transport.Addr, msg []byte) error // called for each message; nil: a message is an error
	// onBatch, if not nil, is called after each Read that returned completions, while its
	// messages are valid.
	onBatch func() error
	isDown  []int // by peer: number of PeerDown completions
	hasLeft []int // by peer: number of PeerLeft completions
	downErr error // the error of the last PeerDown

	closed bool // the test case has closed the domain, so closeAll must not close it
	left   bool // the test case has called Shutdown, so closeAll must not call it
}

// request is an operation and its result. op.User points to the request while the operation is
// under way.
type request struct {
	op   transport.Op
	busy bool  // the operation is under way: the endpoint owns op
	err  error // the error of the completion; nil while the operation is under way
}

var errElsewhere = errors.New("another rank has failed")

// connect opens the queues, address vectors and endpoints of a job's ranks, and inserts all
// addresses.
func connect(t testing.TB, job *Job) *world {
	t.Helper()
	n := len(job.Domains)
	w := &world{t: t, job: job, attr: job.Domains[0].Attr()}
	addrs := make([]transport.Address, n)
	for i, d := range job.Domains {
		r := &rank{
			w: w, id: transport.Addr(i), n: n, attr: d.Attr(), dom: d,
			entries: make([]transport.Completion, 32),
			isDown:  make([]int, n),
			hasLeft: make([]int, n),
		}
		var err error
		r.cq, err = d.OpenCQ()
		require.NoError(t, err)
		r.av, err = d.OpenAV()
		require.NoError(t, err)
		r.ep, err = d.OpenEndpoint(r.av, r.cq)
		require.NoError(t, err)
		r.rma, _ = r.ep.(transport.RMAEndpoint)
		if r.attr.Caps.Has(transport.CapBatch) {
			b := r.ep.(transport.BatchEndpoint)
			b.EnableBatch()
			r.unsent = b.Unsent
		}
		addrs[i] = r.ep.Address()
		w.ranks = append(w.ranks, r)
	}
	for _, r := range w.ranks {
		var first transport.Addr
		var err error
		switch {
		case r.av.Len() == n: // OpenAV has inserted all addresses
		case w.symmetric():
			first, err = r.av.InsertSym(job.Node, 1, job.Service, n)
		default:
			first, err = r.av.Insert(addrs)
		}
		require.NoError(t, err)
		require.Zero(t, first)
	}
	return w
}

func (w *world) symmetric() bool {
	return w.attr.Caps.Has(transport.CapSymmetric) && w.job.Service != ""
}

// each calls f for every rank, each in its own goroutine, waits for all, and fails the test if one
// returns an error. When f returns an error for a rank, the waits of the other ranks return
// errElsewhere, so that they do not wait for that rank.
func (w *world) each(f func(r *rank) error) {
	w.t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(w.ranks))
	for i, r := range w.ranks {
		wg.Go(func() { // ends when f returns, because all its waits have time limits; wg.Wait waits for it
			if errs[i] = f(r); errs[i] != nil {
				w.failed.Store(true)
				w.signalAll()
			}
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil && !errors.Is(err, errElsewhere) {
			w.t.Errorf("rank %d of %d: %v", i, len(w.ranks), err)
		}
	}
	if w.t.Failed() {
		w.t.FailNow()
	}
}

func (w *world) signalAll() {
	for _, r := range w.ranks {
		r.cq.Signal()
	}
}

// peers calls f for every rank of the job. It starts with the rank after r, so that not all ranks
// start with the same peer, and ends with r itself.
func (r *rank) peers(f func(p transport.Addr) error) error {
	for i := range r.n {
		if err := f(transport.Addr((int(r.id) + 1 + i) % r.n)); err != nil {
			return err
		}
	}
	return nil
}

// poll reads the queue once, handles the completions, and returns the number of completions.
func (r *rank) poll() (int, error) {
	n, err := r.cq.Read(r.entries)
	if err != nil {
		return 0, fmt.Errorf("read the queue: %w", err)
	}
	for i := range n {
		if err := r.handle(&r.entries[i]); err != nil {
			return n, err
		}
	}
	if n > 0 && r.onBatch != nil {
		return n, r.onBatch()
	}
	return n, nil
}

func (r *rank) handle(c *transport.Completion) error {
	if c.Kind != transport.PeerNotice && (c.Peer < 0 || int(c.Peer) >= r.n) {
		return fmt.Errorf("completion of kind %d from rank %d", c.Kind, c.Peer)
	}
	switch c.Kind {
	case transport.RecvDone:
		if r.onMsg == nil {
			return fmt.Errorf("unexpected message of %d bytes from rank %d", len(c.Msg), c.Peer)
		}
		if r.isDown[c.Peer]+r.hasLeft[c.Peer] > 0 {
			return fmt.Errorf("message from rank %d after its end", c.Peer)
		}
		return r.onMsg(c.Peer, c.Msg)
	case transport.OpDone:
		req, ok := c.Op.User.(*request)
		if !ok || &req.op != c.Op || !req.busy {
			return fmt.Errorf("completion of an operation that is not in flight, peer %d", c.Peer)
		}
		req.busy, req.err = false, c.Err
	case transport.PeerDown:
		r.isDown[c.Peer]++
		r.downErr = c.Err
	case transport.PeerLeft:
		r.hasLeft[c.Peer]++
	case transport.PeerNotice:
		return fmt.Errorf("notice from the provider: %w", c.Err)
	default:
		return fmt.Errorf("completion of unknown kind %d", c.Kind)
	}
	return nil
}

// until reads the queue until cond returns true. If a Read returns no completion, until sleeps in
// Wait. If there is no completion for the time timeout, until returns an error. what describes in
// errors what the rank waits for.
func (r *rank) until(what string, cond func() bool) error {
	return r.untilBy(what, cond, r.cq.Wait)
}

// untilBy does what until does, but calls sleep in place of Wait.
func (r *rank) untilBy(what string, cond func() bool, sleep func(limit time.Duration) error) error {
	end := time.Now().Add(timeout)
	for !cond() {
		if r.w.failed.Load() {
			return errElsewhere
		}
		n, err := r.poll()
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if n > 0 {
			end = time.Now().Add(timeout)
			continue
		}
		left := time.Until(end)
		if left < 0 {
			return fmt.Errorf("%s: no completion for %v", what, timeout)
		}
		if !r.cq.Arm() {
			runtime.Gosched() // let peers make progress, which this rank may need
			continue
		}
		// cond may have become true since the last check, and its Signal may have come before
		// Arm.
		if cond() {
			return nil
		}
		if err := sleep(left); err != nil {
			return fmt.Errorf("%s: wait: %w", what, err)
		}
	}
	return nil
}

// flush reads the queue until the endpoint has sent the messages that BatchEndpoint permits it to
// hold back. A rank that reads the queue next for another reason need not call flush.
func (r *rank) flush() error {
	if r.unsent == nil {
		return nil
	}
	return r.until("flush", func() bool { return !r.unsent() })
}

// sync is a barrier among all ranks. A rank that waits in sync reads its queue.
func (r *rank) sync() error {
	r.syncs++
	r.w.arrived.Add(1)
	r.w.signalAll()
	want := r.syncs * int64(r.n)
	return r.until("wait for the other ranks", func() bool { return r.w.arrived.Load() >= want })
}

// again calls post until post returns something other than ErrAgain, and returns that. Between the
// calls it reads the queue.
func (r *rank) again(post func() error) error {
	end := time.Now().Add(timeout)
	for {
		err := post()
		if !errors.Is(err, transport.ErrAgain) {
			return err
		}
		n, err := r.poll()
		if err != nil {
			return err
		}
		if n > 0 {
			end = time.Now().Add(timeout)
			continue
		}
		if r.w.failed.Load() {
			return errElsewhere
		}
		if time.Now().After(end) {
			return fmt.Errorf("ErrAgain for %v", timeout)
		}
		runtime.Gosched()
	}
}

// send posts the message q.op. q.busy is true until the operation is complete.
func (r *rank) send(q *request) error {
	q.op.User, q.busy, q.err = q, true, nil
	err := r.again(func() error {
		done, err := r.ep.Send(&q.op)
		if done {
			q.busy = false
		}
		return err
	})
	if err != nil {
		q.busy = false
	}
	return err
}

func (r *rank) read(q *request) error { return r.post(q, r.rma.Read) }

func (r *rank) write(q *request) error { return r.post(q, r.rma.Write) }

// post posts the operation q.op by a call of f. q.busy is true until the operation is complete.
func (r *rank) post(q *request, f func(*transport.Op) error) error {
	q.op.User, q.busy, q.err = q, true, nil
	err := r.again(func() error { return f(&q.op) })
	if err != nil {
		q.busy = false
	}
	return err
}

// wait waits until the operation of a request is complete, and returns the error of its completion.
func (r *rank) wait(q *request) error {
	if err := r.until("complete an operation", func() bool { return !q.busy }); err != nil {
		return err
	}
	return q.err
}

// finish calls post for a request and waits until the operation is complete. It returns the error
// of post or of the completion.
func (r *rank) finish(q *request, post func(*request) error) error {
	if err := post(q); err != nil {
		return err
	}
	return r.wait(q)
}
