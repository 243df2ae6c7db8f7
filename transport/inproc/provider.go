// Package inproc is a fabric whose ranks are goroutines of one process. Send copies a message into
// a buffer in the receiver's mailbox. RMA (Read and Write of the endpoint) makes one copy between
// the two ranks' buffers, in the goroutine that posts it; with WithRMADelay, in a later Read of the
// completion queue. The same calls in the same order give the same deliveries in the same order, so
// a failed test can be reproduced.
//
//	rank 0: Send ── reserve ─ copy ─ deliver ──► mailbox of rank 1 ── Read of its queue ──► rank 1
//	rank 0: RMA ── copy under the region's read lock ── completion ──► mailbox of rank 0
//
// The options of NewFabric make the fabric behave like other fabrics, for tests of the layers
// above.
package inproc

import (
	"errors"
	"fmt"
	"sync"

	"github.com/weft-hpc/weft/transport"
)

// Fabric connects the ranks of one job in one process. It is the provider: each rank opens its
// domain from the same Fabric. Any goroutine may call the methods at any time.
type Fabric struct {
	opt options

	// Lock order: Fabric.mu, then mailbox.mu. A goroutine never holds the mu of two mailboxes,
	// and holds no other lock while it holds region.mu.
	mu     sync.Mutex // guards the fields below
	size   int        // number of ranks of the job; 0 until the first Open
	jobID  string
	secret [32]byte
	// mailboxes has one mailbox for each rank. The first Open of any rank makes them all, so that
	// a rank can send before the receiver's Open.
	mailboxes []*mailbox
}

var _ transport.Provider = (*Fabric)(nil)

// options are what the Options set. Sizes are in bytes.
type options struct {
	eagerLimit int
	injectSize int // -1: maxMsgSize
	maxMsgSize int
	maxRMASize int
	backlog    int
	rma        bool                               // CapRead and CapWrite
	reach      func(from, to transport.Addr) bool // see WithReach; nil: RMA reaches all regions
	shared     bool                               // CapSharedMemory, unless other options exclude it
	rmaDelay   int                                // in Reads of the queue; 0: no delay
	mrMode     transport.MRMode
}

// Option changes the behaviour of a Fabric.
type Option func(*options)

// WithEagerLimit sets Attr.EagerLimit in bytes of data (default 8 KiB). If MaxMsgSize is less than
// the sum of that and transport.HeaderSize, NewFabric raises it to the sum.
func WithEagerLimit(n int) Option { return func(o *options) { o.eagerLimit = n } }

// WithMaxMsgSize sets Attr.MaxMsgSize in bytes of header and data (default 64 KiB, minimum
// transport.HeaderSize). If the sum of the EagerLimit, as the earlier options have left it, and
// transport.HeaderSize is greater, WithMaxMsgSize lowers the EagerLimit.
func WithMaxMsgSize(n int) Option {
	return func(o *options) {
		o.maxMsgSize = max(n, transport.HeaderSize)
		o.eagerLimit = min(o.eagerLimit, o.maxMsgSize-transport.HeaderSize)
	}
}

// WithInjectSize sets the largest message, in bytes of header and data, for which Send returns done
// (default MaxMsgSize). For a larger message a completion follows.
func WithInjectSize(n int) Option { return func(o *options) { o.injectSize = n } }

// WithMaxRMASize sets Attr.MaxRMASize in bytes (default 1 << 40).
func WithMaxRMASize(n int) Option { return func(o *options) { o.maxRMASize = n } }

// WithBacklog sets how many bytes the buffers of waiting messages may take in one rank's mailbox
// (default 8 MiB). The size of a buffer is a power of two. If a message would exceed the limit,
// Send returns ErrAgain. A mailbox without messages takes a message of any size.
func WithBacklog(n int) Option { return func(o *options) { o.backlog = n } }

// WithoutRMA makes a fabric without CapRead, CapWrite and CapSharedMemory.
func WithoutRMA() Option { return func(o *options) { o.rma = false } }

// WithReach limits Read and Write to the pairs of ranks for which reach returns true, like a
// host whose kernel forbids copies between some processes. reach(from, to) reports whether rank
// from reaches the memory of rank to, which is another rank.
func WithReach(reach func(from, to transport.Addr) bool) Option {
	return func(o *options) { o.reach = reach }
}

// WithoutSharedMemory makes a fabric without CapSharedMemory. WithoutRMA and WithReach have that
// effect too, and so have WithRMADelay and WithMRMode with an argument other than 0.
func WithoutSharedMemory() Option { return func(o *options) { o.shared = false } }

// WithRMADelay delays each RMA Read or Write: the n-th Read of the initiator's completion queue
// after the operation was posted makes the copy. Attr.Progress is then ProgressManual. 0, the
// default: no delay.
func WithRMADelay(n int) Option { return func(o *options) { o.rmaDelay = n } }

// WithMRMode sets Attr.MRMode (default 0). With MRVirtAddr a region's Base is a random number. With
// MRLocal an RMA Read or Write of more than 0 bytes without Op.Region fails with ErrAccess.
func WithMRMode(m transport.MRMode) Option { return func(o *options) { o.mrMode = m } }

// NewFabric returns a fabric that no rank has opened yet.
func NewFabric(opts ...Option) *Fabric {
	o := options{
		eagerLimit: 8 << 10,
		injectSize: -1,
		maxMsgSize: 64 << 10,
		maxRMASize: 1 << 40,
		backlog:    8 << 20,
		rma:        true,
		shared:     true,
	}
	for _, opt := range opts {
		opt(&o)
	}
	o.maxMsgSize = max(o.maxMsgSize, o.eagerLimit+transport.HeaderSize)
	if o.injectSize < 0 || o.injectSize > o.maxMsgSize {
		o.injectSize = o.maxMsgSize
	}
	return &Fabric{opt: o}
}

// Name returns "inproc".
func (f *Fabric) Name() string { return name }

// Open opens the domain of rank cfg.Self. It must be called once for every rank of the job, with
// the same Size, JobID and Secret. If Kill has ended the rank before, Open returns ErrClosed.
// Open does not block.
func (f *Fabric) Open(cfg transport.Config) (transport.Domain, error) {
	if cfg.Size < 1 || cfg.Self < 0 || int(cfg.Self) >= cfg.Size {
		return nil, fmt.Errorf("inproc: open: rank %d of %d: %w", cfg.Self, cfg.Size, transport.ErrAddress)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.size == 0 {
		f.size, f.jobID, f.secret = cfg.Size, cfg.JobID, cfg.Secret
		f.mailboxes = make([]*mailbox, cfg.Size)
		for i := range f.mailboxes {
			f.mailboxes[i] = newMailbox(transport.Addr(i), cfg.Size, f.opt.backlog)
		}
	}
	if f.size != cfg.Size || f.jobID != cfg.JobID || f.secret != cfg.Secret {
		return nil, errors.New("inproc: open: size, job id or secret differ from those of the other ranks")
	}
	b := f.mailboxes[cfg.Self]
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state.Load() != stateOpen {
		return nil, fmt.Errorf("inproc: open rank %d: %w", cfg.Self, transport.ErrClosed)
	}
	if b.opened {
		return nil, fmt.Errorf("inproc: open: rank %d is open already", cfg.Self)
	}
	b.opened = true
	return newDomain(f, b), nil
}

// Kill ends the rank's domain as the death of a process would. Later calls by the rank fail with
// ErrClosed, a Wait of the rank ends, and completions that the rank has not read are lost. If the
// rank has not called Shutdown before, its peers report PeerDown once, and their operations with
// the rank fail with ErrPeerDown. When Kill returns, no peer accesses the rank's regions any more.
// Any goroutine may call Kill at any time. Before the first Open of any rank, or for a rank that is
// closed, Kill has no effect.
func (f *Fabric) Kill(rank int) {
	f.mu.Lock()
	if rank < 0 || rank >= len(f.mailboxes) {
		f.mu.Unlock()
		return
	}
	b := f.mailboxes[rank]
	f.mu.Unlock()
	f.end(b, stateClosed)
	b.withdrawAll()
}

// end changes the state of the rank of b to the state to, if that is a later state. If the rank was
// open, end puts PeerLeft or PeerDown in the mailboxes of all peers, after all messages that the
// rank has sent to them.
func (f *Fabric) end(b *mailbox, to int32) {
	b.mu.Lock()
	was := b.state.Load()
	if was >= to {
		b.mu.Unlock()
		return
	}
	b.state.Store(to)
	b.left = was == stateLeft || to == stateLeft
	b.dropLocked()
	b.notifyLocked()
	b.mu.Unlock()
	if was != stateOpen {
		return
	}
	ev := event{kind: transport.PeerDown, peer: b.rank, err: fail("receive", b.rank, transport.ErrPeerDown)}
	if to == stateLeft {
		ev = event{kind: transport.PeerLeft, peer: b.rank}
	}
	for _, p := range f.mailboxes {
		if p != b {
			p.pushEnd(ev)
		}
	}
}
