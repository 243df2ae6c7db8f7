package rma

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
)

// atomicFabric is the inproc transport with atomics of int64 that are atomic only with respect to
// each other, like those of a network adapter. The initiator executes them, under one lock.
type atomicFabric struct {
	*inproc.Fabric
	count int                      // maximum number of elements of an atomic; 0: 16
	delay int                      // number of Reads of the completion queue until a posted atomic is executed
	lacks func(*transport.Op) bool // reports whether the fabric lacks an operation; nil: it lacks none

	broken atomic.Bool // if set, Reads of all completion queues fail

	mu      sync.Mutex
	regions map[uint64]atomicRegion // by key
	done    int                     // number of executed atomics
}

var errBroken = errors.New("the fabric is broken")

type atomicRegion struct {
	base uint64
	buf  []byte
}

func (f *atomicFabric) Open(cfg transport.Config) (transport.Domain, error) {
	d, err := f.Fabric.Open(cfg)
	return &atomicDomain{Domain: d, f: f}, err
}

type atomicDomain struct {
	transport.Domain
	f     *atomicFabric
	later []delayed
	ready []transport.Completion
}

type delayed struct {
	op    *transport.Op
	reads int
}

func (d *atomicDomain) Attr() transport.Attr {
	a := d.Domain.Attr()
	a.Caps |= transport.CapAtomic
	return a
}

func (d *atomicDomain) RegisterMemory(buf []byte, access transport.Access) (transport.MemoryRegion, error) {
	mr, err := d.Domain.RegisterMemory(buf, access)
	if err != nil {
		return nil, err
	}
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if d.f.regions == nil {
		d.f.regions = map[uint64]atomicRegion{}
	}
	d.f.regions[mr.Key()] = atomicRegion{mr.Base(), buf}
	return &atomicMR{MemoryRegion: mr, f: d.f, key: mr.Key()}, nil
}

type atomicMR struct {
	transport.MemoryRegion
	f   *atomicFabric
	key uint64
}

func (m *atomicMR) Close() error {
	m.f.mu.Lock()
	delete(m.f.regions, m.key)
	m.f.mu.Unlock()
	return m.MemoryRegion.Close()
}

func (d *atomicDomain) OpenCQ() (transport.CompletionQueue, error) {
	cq, err := d.Domain.OpenCQ()
	return &atomicQueue{cq, d}, err
}

func (d *atomicDomain) OpenEndpoint(av transport.AddressVector, cq transport.CompletionQueue) (transport.Endpoint, error) {
	ep, err := d.Domain.OpenEndpoint(av, cq.(*atomicQueue).CompletionQueue)
	if err != nil {
		return nil, err
	}
	return &atomicEndpoint{ep, ep.(transport.RMAEndpoint), d}, nil
}

type atomicEndpoint struct {
	transport.Endpoint
	transport.RMAEndpoint
	d *atomicDomain
}

func (e *atomicEndpoint) AtomicValid(op *transport.Op) (int, bool) {
	if op.Datatype != transport.Int64 || e.d.f.lacks != nil && e.d.f.lacks(op) {
		return 0, false
	}
	if e.d.f.count > 0 {
		return e.d.f.count, true
	}
	return 16, true
}

func (e *atomicEndpoint) Atomic(op *transport.Op) error {
	n := len(op.Data) + len(op.Fetch)
	if limit, ok := e.AtomicValid(op); !ok || n == 0 || max(len(op.Data), len(op.Fetch)) > 8*limit {
		return transport.ErrTooLarge
	}
	e.d.later = append(e.d.later, delayed{op, e.d.f.delay})
	return nil
}

type atomicQueue struct {
	transport.CompletionQueue
	d *atomicDomain
}

func (q *atomicQueue) Arm() bool {
	return len(q.d.later)+len(q.d.ready) == 0 && q.CompletionQueue.Arm()
}

func (q *atomicQueue) Read(c []transport.Completion) (int, error) {
	d := q.d
	if d.f.broken.Load() {
		return 0, errBroken
	}
	// Execute the newest first, because a fabric does not order atomics.
	for i := len(d.later) - 1; i >= 0; i-- {
		if x := &d.later[i]; x.reads > 0 {
			x.reads--
			continue
		}
		op := d.later[i].op
		d.later = append(d.later[:i], d.later[i+1:]...)
		d.ready = append(d.ready, transport.Completion{Kind: transport.OpDone, Peer: op.Peer, Op: op, Err: d.f.carryOut(op)})
	}
	if n := copy(c, d.ready); n > 0 {
		d.ready = append(d.ready[:0], d.ready[n:]...)
		return n, nil
	}
	return q.CompletionQueue.Read(c)
}

func (f *atomicFabric) carryOut(op *transport.Op) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.regions[op.RemoteKey]
	if !ok {
		return transport.ErrKey
	}
	f.done++
	at := op.RemoteAddr - r.base
	n := uint64(max(len(op.Data), len(op.Fetch)))
	if at+n > uint64(len(r.buf)) {
		return transport.ErrBounds
	}
	part := r.buf[at : at+n]
	copy(op.Fetch, part)
	switch op.Atomic {
	case transport.AtomicRead:
	case transport.AtomicWrite:
		copy(part, op.Data)
	case transport.AtomicCswap:
		if bytes.Equal(part, op.Compare) {
			copy(part, op.Data)
		}
	default:
		for i := Sum; i < Ops; i++ {
			if fabricOps[i] == op.Atomic {
				kernels(i)(part, op.Data)
			}
		}
	}
	return nil
}

// TestNativeIsDecidedOnce checks that all ranks agree on whether accumulates use the fabric's
// atomics.
func TestNativeIsDecidedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		f    *atomicFabric
		want bool
	}{
		"all":        {&atomicFabric{}, true},
		"no swap":    {&atomicFabric{lacks: func(op *transport.Op) bool { return op.Atomic == transport.AtomicCswap }}, false},
		"no fetch":   {&atomicFabric{lacks: func(op *transport.Op) bool { return op.Atomic == transport.AtomicProd && op.Fetch != nil }}, false},
		"no land":    {&atomicFabric{lacks: func(op *transport.Op) bool { return op.Atomic == transport.AtomicLand }}, false},
		"some ranks": {&atomicFabric{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.f.Fabric = inproc.NewFabric()
			engines := openEngines(t, 3, c.f, nil)
			if name == "some ranks" {
				asked := 0
				c.f.lacks = func(*transport.Op) bool { asked++; return asked > 30 } // a rank makes 23 queries
			}
			ms := openWindows(t, engines, 64, ofInt64())
			for _, m := range ms {
				require.Equal(t, c.want, m.Native())
			}
			before := c.f.done
			each(t, ms, func(m *member) error {
				if err := m.fence(); err != nil {
					return err
				}
				for target := range m.size {
					if err := m.Accumulate(background, target, 8, word(int64(m.rank+1)), Sum); err != nil {
						return err
					}
				}
				return m.fence()
			})
			for _, m := range ms {
				require.Equal(t, int64(6), get(m.local[8:]))
			}
			if c.want {
				require.Equal(t, before+9, c.f.done, "accumulates on a rank's own part use the fabric too")
			} else {
				require.Equal(t, before, c.f.done)
			}
		})
	}
}
