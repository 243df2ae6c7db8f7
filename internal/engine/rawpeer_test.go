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

// stranger is rank 1 of a job of two, which says what it likes.
type rawPeer struct {
	ep  transport.Endpoint
	cq  transport.CompletionQueue
	dom transport.Domain
	seq uint32
}

func openRawPeer(t *testing.T) (*Context, *rawPeer) {
	return openHooked(t, &hooks{}, nil)
}

// againstHooked lets h interfere with what the engine asks of its transport.
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

func (s *rawPeer) sendRaw(t *testing.T, b []byte) {
	op := &transport.Op{Peer: 0, Data: b}
	_, err := s.ep.Send(op)
	require.NoError(t, err)
}

// say sends a message as a correct peer numbers it.
func (s *rawPeer) sendMessage(t *testing.T, m wire.Message, data ...byte) {
	s.seq++
	m.Seq = s.seq
	s.sendRaw(t, encode(m, data...))
}

// listen tells f what has come to the stranger, one thing at a time.
func (s *rawPeer) receiveOne(t *testing.T, f func(*transport.Completion)) {
	var c [1]transport.Completion
	n, err := s.cq.Read(c[:])
	require.NoError(t, err)
	if n > 0 {
		f(&c[0])
	}
}

func encode(m wire.Message, data ...byte) []byte {
	var b [wire.MessageLong]byte
	return append(b[:m.Put(b[:]):wire.MessageLong], data...)
}

// noAsync leaves progress to the calls of a test.
var noAsync = map[string]string{"engine.async_progress": "false"}

// hooks stand between an engine and its transport. The functions may be nil;
// all but wait run under the engine's lock.
type hooks struct {
	again    bool                   // Send and Read answer ErrAgain
	full     bool                   // there is no room for a region
	hold     bool                   // completions of operations are held back
	held     []transport.Completion // those
	read     func() (int, error)    // before each Read of the queue; not 0: instead of it
	wait     func(done bool)        // before and after each Wait
	left     atomic.Bool            // Arm answers false
	shutdown func()                 // during Shutdown, under no lock
	posted   func()                 // at each Send and Read of the endpoint
	closes   atomic.Int32           // of the domain
	entries  []transport.Completion // what read's count is of
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
	return e.Endpoint.Send(op)
}

func (e hookedEndpoint) Read(op *transport.Op) error {
	if err := e.post(); err != nil {
		return err
	}
	return e.Endpoint.(transport.RMAEndpoint).Read(op)
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
