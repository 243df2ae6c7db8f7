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

// domain is one rank's access to the memory that it shares with the ranks of its host. The caller
// serialises calls, except of Wait, Signal, Asleep and Notify. Of the fields that change after
// join, these four use only those under "Sleeping".
type domain struct {
	// The fields that every poll reads.
	done   local.Completions // completions for this Read and later ones
	active []*peer           // the peers whose rings to this rank are polled
	bit    uint64            // this rank's bit in word self/64 of each bitmap of a peer's card
	// ringPolls is the number of polls of rings since the last call of [domain.retire]. Polls do
	// not count while active has only one ring.
	ringPolls uint
	// peers has the peers by world rank, including this rank. An entry is nil if the rank is on
	// another host or [domain.local] has not made the peer yet.
	peers      []*peer
	events     *atomic.Uint32 // [card.events] of this rank; nil before [domain.join]
	eventsSeen uint32         // the last value of events that [domain.takeEvents] has handled
	reads      uint           // number of calls of [domain.progress]; each Read calls it once
	closed     bool
	left       bool            // Shutdown or Close has begun: the domain sends and delivers no more messages
	loop       local.SelfQueue // messages of this rank to itself

	transfers transfers
	heap      heap

	cfg   transport.Config
	job   wire.ShmJob // the job's id and secret, with which this rank signs its card and checks others
	start uint64      // the position of the first message of every ring
	// wholeLeft is how many more rings to peers this rank may use in full because they are busy;
	// see [outRing.lap].
	wholeLeft int
	rank      transport.Addr // this rank in the world
	size      int            // number of ranks of the job
	// inherited: Config.Memory was set, so all ranks of the host have the memory file from the
	// start.
	inherited bool
	address   address  // this rank's address; its zero value if inherited is set
	file      *os.File // the memory file
	maxMsg    int      // bytes of the longest message, with its header
	eager     int      // the eager limit in bytes; see eager.go
	deaths    bool     // the kernel marks the death of a rank's process in the rank's rankState
	liveness  liveness

	seg       *segment         // nil before join
	self      int              // this rank's local rank
	ranks     []transport.Addr // by local rank: the world rank; ascending
	locals    []*peer          // by local rank; an entry is nil until [domain.local] makes the peer
	listed    [bitWords]uint64 // a bit for each local rank that is in active
	nextCheck int              // the local rank that [domain.checkSomePeers] has checked last

	cq *completionQueue
	av *addressVector
	ep *endpoint

	// Sleeping; see wait.go. Any goroutine may use these fields.
	attached atomic.Pointer[segment] // seg, from join to Close; else nil
	// early is the word that Wait sleeps on before join. After join, Wait sleeps on [card.sleep].
	early    atomic.Uint32
	signaled atomic.Bool // Signal was called, and no Wait has ended since
	down     atomic.Bool // Close was called
	// endKnown has a bit for each peer for which peer.ending or peer.err is set. Wait does not
	// check these peers.
	endKnown [bitWords]atomic.Uint64
	lastScan atomic.Int64 // when Wait last checked all peers, in ns since epoch
	fdWaiter fdWaiter
	waitMu   sync.Mutex // held during a Wait
}

// endpoint is the domain's endpoint.
type endpoint struct{ d *domain }

func (d *domain) Attr() transport.Attr {
	a := transport.Attr{
		Provider:   name,
		Name:       "memory of this host",
		Progress:   transport.ProgressManual,
		Caps:       transport.CapRead | transport.CapWrite | transport.CapSharedMemory | transport.CapWaitFD | transport.CapDisconnect | transport.CapKeyCheck,
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
		return nil, errors.New("shm: the domain has a completion queue already")
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
		return nil, errors.New("shm: open endpoint: the address vector or the completion queue belongs to another domain")
	}
	if d.ep != nil {
		return nil, errors.New("shm: the domain has an endpoint already")
	}
	d.av = v
	if err := v.complete(); err != nil {
		return nil, fmt.Errorf("shm: open endpoint: %w", err)
	}
	d.ep = &endpoint{d}
	return d.ep, nil
}

// Close ends all transfers and a Wait under way, and unmaps the memory, except memory of
// AllocLasting. The garbage collector unmaps segment.front later. Without an earlier Shutdown,
// peers report this rank as down.
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
			_ = unmapFile(p.out.mem) // it cannot fail for a mapping
			p.out = outRing{}
		}
	}
	d.active = nil
	if d.seg != nil {
		d.seg.close()
	}
	if d.file != nil {
		_ = d.file.Close() // a failed close loses no data
	}
	return nil
}

// signalPeers makes the peers to which this rank has sent, or whose rings it has polled, check this
// rank's state. It leaves out peers whose end this rank has reported.
func (d *domain) signalPeers() {
	for _, p := range d.locals {
		if p != nil && p.local != d.self && p.err == nil && (p.in.lines != nil || p.out.lines != nil) {
			d.signalPeer(p, eventState)
		}
	}
}

// emit reports c in this Read. If this Read has no room, other completions wait, or no Read is
// under way, a later Read reports c, and emit ends a Wait under way.
func (d *domain) emit(c transport.Completion) {
	if !d.done.Emit(c) {
		d.wakeWaiter()
	}
}

// completed reports the end of an operation.
func (d *domain) completed(op *transport.Op, err error) {
	d.emit(transport.Completion{Kind: transport.OpDone, Peer: op.Peer, Op: op, Err: err})
}
