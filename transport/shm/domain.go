package shm

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/internal/local"
)

// eagerLimit is the largest data worth copying twice to save the two sides'
// meeting for one copy.
const eagerLimit = 12 << 10

// domain is one rank's access to the memory of its host. What does not say
// otherwise belongs to the rank's user, who serialises calls.
type domain struct {
	// What a poll looks at first.
	done     local.Completions
	active   []*peer        // those that have ever sent
	peers    []*peer        // by world rank, itself too; nil: not of this host, or not yet known
	news     *atomic.Uint32 // of the own card; nil until there is one
	newsSeen uint32
	turn     uint // counts Reads
	closed   bool
	left     bool // Shutdown or Close has begun: nothing is sent, messages are not delivered any more
	loop     local.SelfQueue

	transfers transfers
	heap      heap

	cfg     transport.Config
	job     wire.ShmJob
	start   uint64 // the position that rings begin with
	rank    transport.Addr
	size    int
	given   bool // the launcher gave the file
	address address
	file    *os.File
	maxMsg  int
	deaths  bool // the kernel tells of the death of processes
	life    life

	seg      *segment // nil until the ranks of the host are known
	self     int      // among them
	locals   []*peer  // by local rank
	lookNext int

	cq *completionQueue
	av *addressVector
	ep *endpoint

	// Sleeping; see wait.go. Any goroutine may use these.
	attached atomic.Pointer[segment] // seg, until Close
	early    atomic.Uint32           // what is slept on before that
	signaled atomic.Bool
	down     atomic.Bool
	surveyed atomic.Int64 // when all peers were last looked at, in ns since epoch
	watch    watch
}

// endpoint sends.
type endpoint struct{ d *domain }

func (d *domain) Attr() transport.Attr {
	a := transport.Attr{
		Provider:    name,
		Name:        "memory of this host",
		Threading:   transport.ThreadDomain,
		Progress:    transport.ProgressManual,
		Caps:        rmaCaps | heapCaps | transport.CapWaitFD | transport.CapDisconnect,
		InjectSize:  d.maxMsg,
		MaxMsgSize:  d.maxMsg,
		EagerLimit:  min(eagerLimit, d.maxMsg-transport.HeaderSize),
		MaxRMASize:  maxRMASize,
		MRKeySize:   8,
		LatencyNs:   150,
		BytesPerSec: 15e9,
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
	if d.given {
		v.ruled = d.size
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
	d.life.end()
	if d.attached.Load() != nil {
		d.tellAll()
	}
	d.endSleep()
	for _, p := range d.locals {
		if p.out.mem != nil {
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

// tellAll has all that this rank has to do with look at its card.
func (d *domain) tellAll() {
	for _, p := range d.locals {
		if p.local != d.self && p.err == nil && (p.active || p.out.lines != nil) {
			d.tell(p, newsState)
		}
	}
}

// emit reports c in this Read or, without room, in a later one.
func (d *domain) emit(c transport.Completion) {
	if !d.done.Emit(c) {
		d.stir()
	}
}

// completed queues the end of an operation for the completion queue.
func (d *domain) completed(op *transport.Op, err error) {
	d.emit(transport.Completion{Kind: transport.OpDone, Peer: op.Peer, Op: op, Err: err})
}
