// Package inproc is a fabric whose ranks are goroutines of one process. Send copies a message
// into a buffer of the receiver's queue. Read and Write make one copy between the two
// ranks' buffers, in the goroutine that posts them. The same calls in the same order give the
// same deliveries in the same order, so failures can be reproduced.
//
//	rank 0: Send ── reserve ─ copy ─ deliver ──► mailbox of rank 1 ── Read ──► rank 1
//	rank 0: Read ── copy under the region's read lock ── event ──► mailbox of rank 0
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

// Fabric connects the ranks of one job in one process: each rank opens its
// domain from the same Fabric. Its methods may be called by any goroutine at
// any time.
type Fabric struct {
	opt options

	// Lock order: Fabric.mu, then mailbox.mu; never two mailboxes at once, and
	// region.mu with neither.
	mu        sync.Mutex
	size      int // 0 until the first Open
	jobID     string
	secret    [32]byte
	mailboxes []*mailbox // by rank; made by the first Open, so that a message may come before its receiver
}

var _ transport.Provider = (*Fabric)(nil)

type options struct {
	eagerLimit int
	injectSize int // -1: maxMsgSize
	maxMsgSize int
	maxRMASize int
	backlog    int
	rma        bool
	shared     bool
	rmaDelay   int
	mrMode     transport.MRMode
}

// Option changes the behaviour of a Fabric.
type Option func(*options)

// WithEagerLimit sets Attr.EagerLimit in bytes of data (default 8 KiB).
// If such data and a header exceed MaxMsgSize, MaxMsgSize grows.
func WithEagerLimit(n int) Option { return func(o *options) { o.eagerLimit = n } }

// WithMaxMsgSize sets Attr.MaxMsgSize in bytes of header and data (default
// 64 KiB), at least a header. If EagerLimit and a header exceed it, EagerLimit shrinks.
func WithMaxMsgSize(n int) Option {
	return func(o *options) {
		o.maxMsgSize = max(n, transport.HeaderSize)
		o.eagerLimit = min(o.eagerLimit, o.maxMsgSize-transport.HeaderSize)
	}
}

// WithInjectSize sets the largest message, in bytes of header and data, whose Send is
// done when it returns (default MaxMsgSize). A larger message ends by a completion.
func WithInjectSize(n int) Option { return func(o *options) { o.injectSize = n } }

// WithMaxRMASize sets Attr.MaxRMASize in bytes (default 1 << 40).
func WithMaxRMASize(n int) Option { return func(o *options) { o.maxRMASize = n } }

// WithBacklog sets how many bytes of messages may wait in one rank's queue
// (default 8 MiB) before Send returns ErrAgain. An empty queue takes any message.
func WithBacklog(n int) Option { return func(o *options) { o.backlog = n } }

// WithoutRMA makes a fabric without CapRead and CapWrite.
func WithoutRMA() Option { return func(o *options) { o.rma = false } }

// WithoutSharedMemory makes a fabric without CapSharedMemory. WithoutRMA, WithRMADelay
// and WithMRMode do so too.
func WithoutSharedMemory() Option { return func(o *options) { o.shared = false } }

// WithRMADelay delays each Read or Write until the n-th Read of the initiator's
// completion queue after it was posted, like a fabric with ProgressManual.
func WithRMADelay(n int) Option { return func(o *options) { o.rmaDelay = n } }

// WithMRMode sets Attr.MRMode. Under MRVirtAddr a region's Base is not 0; under MRLocal a Read
// or Write without Op.Region fails with ErrAccess.
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

// Open opens the domain of rank cfg.Self. Every rank of the job calls Open once, with
// the same Size, JobID and Secret. If Kill has ended the rank before, Open returns ErrClosed.
// It does not block.
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

// Kill ends the rank's domain as the death of a process would. From now on, calls of the
// rank return ErrClosed, its Wait ends, and completions that it has not read are
// lost. Its peers report PeerDown once, and their operations with it fail
// with ErrPeerDown. When Kill returns, no peer touches the rank's memory any more. Any
// goroutine may call Kill at any time. Before the first Open, or for a rank that is closed,
// it does nothing.
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

// end sets a rank's state to a later state, to. If the rank was open, end queues its end at
// all peers, after all messages that the rank has sent to them.
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
