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

// eagerLimit is Attr.EagerLimit in bytes. Up to this size, the two copies of an eager message
// take less time than the round trip of a rendezvous.
const eagerLimit = 64 << 10

// domain implements transport.Domain: it is the state of this rank. The caller serialises all
// calls to the domain, its endpoint and its queue. So the fields need no lock, except links and
// the fields under "Sleeping", which other goroutines use too.
type domain struct {
	self    transport.Addr
	address transport.Address
	av      *addressVector   // the addresses of all ranks; nil until OpenEndpoint
	cq      *completionQueue // nil until OpenCQ
	ep      *endpoint        // nil until OpenEndpoint
	mrs     regions          // the open memory regions
	links   *links           // makes and accepts connections
	closed  bool             // Close was called
	broken  error            // a failure of this host, which each Read returns; nil: none
	left    bool             // Shutdown was called: every new operation returns ErrClosed
	drop    bool             // Shutdown was called: received messages are dropped
	sendBuf int              // transport.tcp.send_buffer in bytes; 0: not set
	waitFD  bool             // the poller has a descriptor, which FD returns

	conns []*conn           // by rank; an entry is nil until the first use of that peer
	live  []*conn           // connections with an open socket; progress polls them
	outq  []*conn           // connections with output; progress removes those that have none left
	loop  local.SelfQueue   // messages of this rank to itself
	done  local.Completions // completions for the caller of Read

	round   uint          // number of calls of progress
	anyMore bool          // true: a connection may have conn.more set; false: none has
	events  [64]sys.Event // where pollReady receives the poller's events

	created  time.Time // when Open made the domain; conn.sentAt counts from here
	batching bool      // EnableBatch was called
	batched  bool      // true: a connection may have conn.batched set; false: none has
	armed    bool      // Arm has returned true since the last Read, so Send must not hold back messages

	streams  *stream       // unused stream values, linked by next
	freeBufs [][]byte      // input buffers that no connection has borrowed
	drained  []*conn       // connections whose input buffer the next Read may take back; see [domain.collect]
	sealed   recordPool    // unused records for output
	received recordPool    // unused records for input
	gather   gather        // the arguments of a sendmsg, reused by all connections
	frame    wire.TCPFrame // the frame that parse reads; here to save an allocation

	// scratch holds the prefix, the header and up to copyLimit bytes of data of the message
	// that Send writes.
	scratch [wire.TCPPrefixSize + transport.HeaderSize + copyLimit]byte

	// Sleeping. Wait holds sleepMu while it uses poller and waker. Signal holds sigMu while it
	// uses waker. Close locks both before it closes the descriptors.
	poller   *sys.Poller // nil after Close
	waker    *sys.Waker  // makes the poller's Wait return; nil after Close
	signaled atomic.Bool // Signal has used waker, and no Wait has cleared it since
	down     atomic.Bool // Close was called: Wait returns ErrClosed
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

// caps returns Attr.Caps. CapWaitFD is set only if the system's poller has a descriptor.
func (d *domain) caps() transport.Caps {
	c := transport.CapRead | transport.CapWrite | transport.CapPeerDown | transport.CapSymmetric | transport.CapConnect |
		transport.CapDisconnect | transport.CapBatch | transport.CapKeyCheck
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

// Close closes every connection. If the caller has not called Shutdown before, the peers that have
// a connection with this rank report it as failed.
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
