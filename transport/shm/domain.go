//go:build linux && !portable

package shm

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/internal/local"
)

// domain is one rank's access to the memory of its host. What does not say
// otherwise belongs to the rank's user, who serialises calls.
type domain struct {
	// What a poll looks at first.
	done       local.Completions
	active     []*peer        // those whose rings are polled
	bit        uint64         // of this rank in its word of a card's bitmap
	ringPolls  uint           // rings looked at since retire was called; not counted while there is one
	peers      []*peer        // by world rank, itself too; nil: not of this host, or not yet used, see local
	events     *atomic.Uint32 // of the own card; nil until there is one
	eventsSeen uint32
	reads      uint // counts Reads
	closed     bool
	left       bool // Shutdown or Close has begun: nothing is sent, messages are not delivered any more
	loop       local.SelfQueue

	transfers transfers
	heap      heap

	cfg       transport.Config
	job       wire.ShmJob
	start     uint64 // the position that rings begin with
	wholeLeft int    // see outRing
	rank      transport.Addr
	size      int
	inherited bool // the launcher gave the file
	address   address
	file      *os.File
	maxMsg    int
	eager     int  // the eager limit, see eager.go
	deaths    bool // the kernel reports the death of processes
	liveness  liveness

	seg       *segment         // nil until the ranks of the host are known
	self      int              // among them
	ranks     []transport.Addr // the world ranks of the host's ranks, in order
	locals    []*peer          // by local rank; nil: not yet used
	listed    [bitWords]uint64 // a bit for each local rank in active
	nextCheck int

	cq *completionQueue
	av *addressVector
	ep *endpoint

	// Sleeping; see wait.go. Any goroutine may use these.
	attached atomic.Pointer[segment] // seg, until Close
	early    atomic.Uint32           // what is slept on before that
	signaled atomic.Bool
	down     atomic.Bool
	endKnown [bitWords]atomic.Uint64 // a bit for each peer with ending or err: Wait does not look for its end
	lastScan atomic.Int64            // when all peers were last looked at, in ns since epoch
	fdWaiter fdWaiter
	waitMu   sync.Mutex // held during a Wait
}

// endpoint sends.
type endpoint struct{ d *domain }

func (d *domain) Attr() transport.Attr {
	a := transport.Attr{
		Provider:   name,
		Name:       "memory of this host",
		Progress:   transport.ProgressManual,
		Caps:       rmaCaps | heapCaps | transport.CapWaitFD | transport.CapDisconnect,
		MaxMsgSize: d.maxMsg,
		EagerLimit: min(d.eager, d.maxMsg-transport.HeaderSize),
		MaxRMASize: maxRMASize,
		LatencyNs:  150,
	}
	if d.deaths {
		a.Caps |= transport.CapPeerDown
	}
	return a
}

func (d *domain) OpenCQ() (transport.CompletionQueue, error) {
	if d.closed {
		return nil, fmt.Errorf("shm: open completion queue: %w", transport.ErrClosed)
	}
	if d.cq != nil {
		return nil, errors.New("shm: a domain has one completion queue")
	}
	d.cq = &completionQueue{d}
	return d.cq, nil
}

func (d *domain) OpenAV() (transport.AddressVector, error) {
	if d.closed {
		return nil, fmt.Errorf("shm: open address vector: %w", transport.ErrClosed)
	}
	v := &addressVector{d: d}
	if d.inherited {
		v.plain = d.size
	}
	return v, nil
}

func (d *domain) OpenEndpoint(av transport.AddressVector, cq transport.CompletionQueue) (transport.Endpoint, error) {
	if d.closed {
		return nil, fmt.Errorf("shm: open endpoint: %w", transport.ErrClosed)
	}
	v, okAV := av.(*addressVector)
	q, okCQ := cq.(*completionQueue)
	if !okAV || !okCQ || q.d != d || v.d != d {
		return nil, errors.New("shm: open endpoint: address vector and completion queue are not of this domain")
	}
	if d.ep != nil {
		return nil, errors.New("shm: a domain has one endpoint")
	}
	d.av = v
	if err := v.complete(); err != nil {
		return nil, fmt.Errorf("shm: open endpoint: %w", err)
	}
	d.ep = &endpoint{d}
	return d.ep, nil
}

// Close leaves the memory. Peers that were not told by Shutdown take this
// process for dead.
func (d *domain) Close() error {
	if d.closed {
		return nil
	}
	d.closed, d.left = true, true
	if d.seg != nil {
		d.closeTransfers()
		d.closeHeap()
	}
	d.liveness.end()
	if d.attached.Load() != nil {
		d.signalPeers()
	}
	d.endSleep()
	for _, p := range d.locals {
		if p != nil && p.out.mem != nil {
			_ = unmapFile(p.out.mem) // it was mapped
			p.out = outRing{}
		}
	}
	d.active = nil
	if d.seg != nil {
		d.seg.close()
	}
	if d.file != nil {
		_ = d.file.Close() // it holds no data of its own
	}
	return nil
}

// signalPeers makes all peers with a ring to or from this rank look at its state.
func (d *domain) signalPeers() {
	for _, p := range d.locals {
		if p != nil && p.local != d.self && p.err == nil && (p.in.lines != nil || p.out.lines != nil) {
			d.signalPeer(p, eventState)
		}
	}
}

// emit reports c in this Read or, without room, in a later one.
func (d *domain) emit(c transport.Completion) {
	if !d.done.Emit(c) {
		d.wakeWaiter()
	}
}

// completed queues the end of an operation for the completion queue.
func (d *domain) completed(op *transport.Op, err error) {
	d.emit(transport.Completion{Kind: transport.OpDone, Peer: op.Peer, Op: op, Err: err})
}
