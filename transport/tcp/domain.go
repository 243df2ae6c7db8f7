package tcp

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/internal/local"
)

// eagerLimit is the largest message, in bytes, for which two copies cost less than the round
// trip that they save.
const eagerLimit = 64 << 10

// domain is the state of one rank. Its user serialises all calls, so the fields need no lock,
// except links and the fields under "Sleeping", which other goroutines use too.
type domain struct {
	self    transport.Addr
	address transport.Address
	av      *addressVector
	cq      *completionQueue
	ep      *endpoint
	mrs     regions
	links   *links
	closed  bool
	broken  error // the error that keeps this process from making a connection that it needs
	left    bool  // Shutdown has begun
	drop    bool  // received messages are dropped
	sendBuf int   // transport.tcp.send_buffer in bytes; 0: not set
	waitFD  bool  // FD returns a descriptor

	conns []*conn // by rank; nil until first use
	live  []*conn // with an open socket; progress polls them
	outq  []*conn // with output; progress removes those that have none left
	loop  local.SelfQueue
	done  local.Completions

	round   uint // counts calls of progress
	anyMore bool // false: no connection has more set
	events  [64]sys.Event

	created  time.Time // the zero of conn.sentAt
	batching bool      // EnableBatch was called
	batched  bool      // false: no connection has batched set; true: one may have
	armed    bool      // the user may be in Wait, so Send batches nothing until the next round

	streams  *stream    // unused ones
	freeBufs [][]byte   // unused input buffers for connections
	drained  []*conn    // connections whose input buffer may be no longer needed
	sealed   recordPool // of records that are written
	received recordPool // of records that are read
	gather   gather
	frame    wire.TCPFrame // the frame that parse reads; here to save an allocation
	scratch  [wire.TCPPrefixSize + transport.HeaderSize + copyLimit]byte

	// Sleeping. Wait holds sleepMu and Signal holds sigMu. Close locks both before it closes
	// the descriptors.
	poller   *sys.Poller // nil after Close
	waker    *sys.Waker
	signaled atomic.Bool
	down     atomic.Bool
	sleepMu  sync.Mutex
	sigMu    sync.Mutex
}

func (d *domain) Attr() transport.Attr {
	return transport.Attr{
		Provider:   name,
		Name:       string(d.address),
		Progress:   transport.ProgressManual,
		Caps:       d.caps(),
		MaxMsgSize: wire.TCPMaxMsg,
		EagerLimit: eagerLimit,
		MaxRMASize: 1<<63 - 1,
		LatencyNs:  5000,
	}
}

// caps returns the capabilities. The completion queue has a descriptor (CapWaitFD) only if the
// system's poller has one.
func (d *domain) caps() transport.Caps {
	c := transport.CapRead | transport.CapWrite | transport.CapPeerDown | transport.CapSymmetric | transport.CapConnect |
		transport.CapDisconnect | transport.CapBatch
	if d.waitFD {
		c |= transport.CapWaitFD
	}
	return c
}

func (d *domain) OpenCQ() (transport.CompletionQueue, error) {
	if d.closed {
		return nil, fmt.Errorf("tcp: open completion queue: %w", transport.ErrClosed)
	}
	if d.cq != nil {
		return nil, errors.New("tcp: a domain has one completion queue")
	}
	d.cq = &completionQueue{d}
	return d.cq, nil
}

func (d *domain) OpenAV() (transport.AddressVector, error) {
	if d.closed {
		return nil, fmt.Errorf("tcp: open address vector: %w", transport.ErrClosed)
	}
	return &addressVector{}, nil
}

func (d *domain) OpenEndpoint(av transport.AddressVector, cq transport.CompletionQueue) (transport.Endpoint, error) {
	if d.closed {
		return nil, fmt.Errorf("tcp: open endpoint: %w", transport.ErrClosed)
	}
	v, okAV := av.(*addressVector)
	q, okCQ := cq.(*completionQueue)
	if !okAV || !okCQ || q.d != d {
		return nil, errors.New("tcp: open endpoint: address vector and completion queue are not of this domain")
	}
	if d.ep != nil {
		return nil, errors.New("tcp: a domain has one endpoint")
	}
	d.av = v
	d.ep = &endpoint{d}
	return d.ep, nil
}

// Close closes every connection. If Shutdown has not run before, the peers report this rank as
// failed.
func (d *domain) Close() error {
	if d.closed {
		return nil
	}
	d.closed = true
	d.links.close()
	for _, c := range d.conns {
		if c != nil {
			c.closeFD()
			c.state = connGone
			c.err = transport.ErrClosed
		}
	}
	d.outq = nil
	d.down.Store(true)
	d.wake()
	d.sleepMu.Lock()
	d.sigMu.Lock()
	d.closePoll()
	d.sigMu.Unlock()
	d.sleepMu.Unlock()
	return nil
}

func (d *domain) opDone(op *transport.Op, err error) {
	d.done.Emit(transport.Completion{Kind: transport.OpDone, Peer: op.Peer, Op: op, Err: err})
}
