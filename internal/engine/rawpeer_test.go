package engine

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
)

// rawPeer is rank 1 of a job of two ranks. It has an endpoint but no engine, so a test sends and
// receives the messages between engines itself.
type rawPeer struct {
	ep  transport.Endpoint
	cq  transport.CompletionQueue
	dom transport.Domain
	seq uint32 // sequence number of the last message of sendMessage
}

// openRawPeer opens the engine of rank 0, and a rawPeer as rank 1.
func openRawPeer(t *testing.T) (*Context, *rawPeer) {
	return openHooked(t, &hooks{}, nil)
}

// openHooked opens the engine of rank 0 with the parameters set, and a rawPeer as rank 1. h
// intercepts the calls of the engine to its transport.
func openHooked(t *testing.T, h *hooks, set map[string]string, opts ...inproc.Option) (*Context, *rawPeer) {
	f := inproc.NewFabric(opts...)
	open := func(self transport.Addr) (Rail, transport.AddressVector) {
		d, err := f.Open(transport.Config{Self: self, Size: 2})
		require.NoError(t, err)
		t.Cleanup(func() { _ = d.Close() })
		cq, err := d.OpenCQ()
		require.NoError(t, err)
		av, err := d.OpenAV()
		require.NoError(t, err)
		ep, err := d.OpenEndpoint(av, cq)
		require.NoError(t, err)
		return Rail{d, cq, ep}, av
	}
	us, usAV := open(0)
	them, themAV := open(1)
	addrs := []transport.Address{us.Endpoint.Address(), them.Endpoint.Address()}
	for _, av := range []transport.AddressVector{usAV, themAV} {
		_, err := av.Insert(addrs)
		require.NoError(t, err)
	}
	p := &params.Set{}
	for k, v := range set {
		require.NoError(t, p.Set(k, v, params.FromFlag))
	}
	rail := Rail{hookedDomain{us.Domain, h}, hookedQueue{us.CQ, h}, hookedEndpoint{us.Endpoint, h}}
	e, err := New(Config{Rank: 0, Size: 2, Params: p, Rails: []Rail{rail}, LocalRanks: 2})
	require.NoError(t, err)
	t.Cleanup(e.Kill)
	return e.OpenContext(0, []int{0, 1}), &rawPeer{ep: them.Endpoint, cq: them.CQ, dom: them.Domain}
}

// sendRaw sends the bytes b as a message to rank 0.
func (s *rawPeer) sendRaw(t *testing.T, b []byte) {
	op := &transport.Op{Peer: 0, Data: b}
	_, err := s.ep.Send(op)
	require.NoError(t, err)
}

// sendMessage sends a message to rank 0 with the next sequence number, as a correct peer does.
func (s *rawPeer) sendMessage(t *testing.T, m wire.Message, data ...byte) {
	s.seq++
	m.Seq = s.seq
	s.sendRaw(t, encode(m, data...))
}

// receiveOne reads one completion of rank 1, if there is one, and calls f with it.
func (s *rawPeer) receiveOne(t *testing.T, f func(*transport.Completion)) {
	var c [1]transport.Completion
	n, err := s.cq.Read(c[:])
	require.NoError(t, err)
	if n > 0 {
		f(&c[0])
	}
}

// encode returns the header m followed by data.
func encode(m wire.Message, data ...byte) []byte {
	var b [wire.MessageLong]byte
	return append(b[:m.Put(b[:]):wire.MessageLong], data...)
}

// noAsync turns asynchronous progress off, so that only the calls of a test poll.
var noAsync = map[string]string{"engine.async_progress": "false"}

// hooks intercepts the calls of an engine to its transport. Function fields may be nil. The engine
// calls all of them under its lock, except wait and shutdown.
type hooks struct {
	again bool // Send and Read of the endpoint return ErrAgain, as if it had no room
	// refuses says for which messages Send of the endpoint returns ErrAgain; nil: for none.
	refuses func(op *transport.Op) bool
	full    bool                   // RegisterMemory returns ErrAgain, as if there were no room for a region
	hold    bool                   // completions of operations are not delivered, but kept in held
	held    []transport.Completion // completions that were kept, which are delivered once hold is false
	// Runs before each Read of the queue; if it returns n > 0 or an error, the Read returns the
	// first n of entries and the error.
	read     func() (int, error)
	wait     func(done bool) // runs before each Wait of the queue with false, and after it with true
	left     atomic.Bool     // Arm of the queue returns false, as if there were unread completions
	shutdown func()          // runs at the beginning of Shutdown, without a lock
	posted   func()          // runs at the beginning of each Send and Read of the endpoint
	flushes  int             // number of calls of Flushed of the endpoint that return false
	closes   atomic.Int32    // number of Close calls of the domain
	reads    []int           // lengths of the Reads of the endpoint that it has accepted
	// Completions of which Read of the queue returns the first n, if the function read returns n.
	entries []transport.Completion
}

type hookedDomain struct {
	transport.Domain
	h *hooks
}

func (d hookedDomain) RegisterMemory(buf []byte, access transport.Access) (transport.MemoryRegion, error) {
	if d.h.full {
		return nil, transport.ErrAgain
	}
	return d.Domain.RegisterMemory(buf, access)
}

func (d hookedDomain) Attr() transport.Attr {
	a := d.Domain.Attr()
	a.Caps |= transport.CapFlush
	return a
}

func (d hookedDomain) Close() error {
	d.h.closes.Add(1)
	return d.Domain.Close()
}

type hookedEndpoint struct {
	transport.Endpoint
	h *hooks
}

func (e hookedEndpoint) post() error {
	if e.h.posted != nil {
		e.h.posted()
	}
	if e.h.again {
		return transport.ErrAgain
	}
	return nil
}

func (e hookedEndpoint) Send(op *transport.Op) (bool, error) {
	if err := e.post(); err != nil {
		return false, err
	}
	if e.h.refuses != nil && e.h.refuses(op) {
		return false, transport.ErrAgain
	}
	return e.Endpoint.Send(op)
}

func (e hookedEndpoint) Read(op *transport.Op) error {
	if err := e.post(); err != nil {
		return err
	}
	err := e.Endpoint.(transport.RMAEndpoint).Read(op)
	if err == nil {
		e.h.reads = append(e.h.reads, len(op.Data))
	}
	return err
}

func (e hookedEndpoint) Flushed(func(transport.Addr) bool) bool {
	e.h.flushes--
	return e.h.flushes < 0
}

func (e hookedEndpoint) Write(op *transport.Op) error {
	return e.Endpoint.(transport.RMAEndpoint).Write(op)
}

func (e hookedEndpoint) Shutdown(ctx context.Context) error {
	if e.h.shutdown != nil {
		e.h.shutdown()
	}
	return e.Endpoint.Shutdown(ctx)
}

type hookedQueue struct {
	transport.CompletionQueue
	h *hooks
}

func (q hookedQueue) Read(c []transport.Completion) (int, error) {
	if q.h.read != nil {
		if n, err := q.h.read(); n > 0 || err != nil {
			return copy(c, q.h.entries[:n]), err
		}
	}
	if !q.h.hold && len(q.h.held) > 0 {
		n := copy(c, q.h.held)
		q.h.held = q.h.held[n:]
		return n, nil
	}
	n, err := q.CompletionQueue.Read(c)
	kept := c[:0]
	for _, x := range c[:n] {
		if q.h.hold && x.Kind == transport.OpDone {
			q.h.held = append(q.h.held, x)
		} else {
			kept = append(kept, x)
		}
	}
	return len(kept), err
}

func (q hookedQueue) Arm() bool { return !q.h.left.Load() && q.CompletionQueue.Arm() }

func (q hookedQueue) Wait(timeout time.Duration) error {
	if q.h.wait != nil {
		q.h.wait(false)
		defer q.h.wait(true)
	}
	return q.CompletionQueue.Wait(timeout)
}

// TestFlushAwaitsTransport: Flush does not return before the transport has sent all messages.
func TestFlushAwaitsTransport(t *testing.T) {
	h := &hooks{flushes: 3}
	c, _ := openHooked(t, h, noAsync)
	require.NoError(t, c.Send(background, []byte{1}, Env{Peer: 1}))
	reads := 0
	h.read = func() (int, error) {
		reads++
		return 0, nil
	}
	require.NoError(t, c.e.Flush(background))
	require.Equal(t, -1, h.flushes)
	require.Equal(t, 3, reads)
	h.flushes = 1 << 30
	ctx, cancel := context.WithCancel(background)
	cancel()
	require.ErrorIs(t, c.e.Flush(ctx), context.Canceled)
}
