//go:build libfabric

package libfabric

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/internal/local"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

const (
	// copyLimit is the largest message to a peer (header and data, in bytes) that Send copies. Up
	// to this size a copy costs less than pinning the caller's buffer. After the copy the caller
	// may reuse its buffer at once.
	copyLimit = 8 << 10
	// eagerLimit is the size of a message's data, in bytes, up to which the copies of an eager
	// message cost less than the round trip of a rendezvous. For some providers newDomain chooses a
	// lower Attr.EagerLimit.
	eagerLimit = 64 << 10
	// rxmEager is the largest message, frame included, in bytes, that rxm sends eagerly. For a
	// larger message rxm uses a rendezvous of its own, and may complete the receive after those of
	// later messages of the same peer.
	rxmEager = 16 << 10

	batch        = 32   // largest number of completions that one poll reads
	minQueueSize = 4096 // bounds of the size of the completion queue, in completions; see queueSize
	maxQueueSize = 64 << 10
)

// domain implements transport.Domain. It has the whole state of a rank's libfabric transport. The
// caller makes one call at a time. Exceptions: Wait and Signal use only the fields from epfd on, and
// RegisterMemory, KeptMemory and the Close of regions use only mrs and constant fields.
type domain struct {
	*lane                // the main lane
	lanes        []*lane // the main lane, and those of further NICs
	cfg          transport.Config
	at           netip.AddrPort // the IP address and port that the endpoint must have; not valid: any
	attr         transport.Attr
	mrMode       fi.MRMode
	multiRecv    bool     // the provider has FI_MULTI_RECV
	packed       bool     // the provider puts messages into a multi-receive buffer without gaps
	alternateRMA bool     // a read and a write with the same peer must not be in flight at the same time
	keySize      int      // size of a memory key in bytes, from 1 to 8
	mayRefuse    bool     // the provider may fail a message because the target has no receive posted
	inject       int      // largest message, frame included, in bytes, that is sent by fi_inject; 0: none is
	tries        int      // how often one poll reads the queue while it is empty; see also manyEmptyPolls
	emptyPolls   int      // consecutive polls without a completion
	writeFlags   fi.Flags // flags of every fi_writemsg

	arena     *arena
	avs       []*addressVector
	stripeMin int // size of the smallest read or write that is divided among lanes, in bytes

	cq         *completionQueue
	ep         *endpoint
	address    transport.Address // the addresses of the lanes, which peers insert into their address vectors
	mrs        regions
	peers      []peer
	rmaStarted uint64 // number of calls of fi_read and fi_writemsg so far
	atomics    atomicTable
	request    fi.RawAtomic // arguments of the current Atomic call; a field so that no call allocates

	closed       bool  // Close was called
	shutdown     bool  // Shutdown was called: no operation can be started
	dropMessages bool  // Shutdown was called: received messages are dropped
	broken       error // the error after which the completion queue cannot be read; nil: it can be read

	// loop holds messages of this rank to itself. libfabric does not send them, because providers
	// deliver them slowly.
	loop  local.SelfQueue
	done  local.Completions // messages and completions for the current Read, or for a later one
	polls uint64            // number of calls of poll
	// pendingAcks holds the peers whose close message has arrived, and for which [domain.sendAcks]
	// has not queued a PeerLeft yet.
	pendingAcks []transport.Addr
	resends     []int         // indices of the slots whose messages are to be sent again
	waiting     []int         // indices of the slots of divided operations with parts that are not posted
	waitPause   time.Duration // the last pause of domain.pauseWaiting
	waitDue     time.Time     // the end of that pause; zero: there is none
	lastFailure *fi.RawError  // the last failure of a receive; nil: there was none

	// Wait and Signal use the fields from here on. Wait holds sleepMu while it uses epfd and evfd,
	// and Signal holds sigMu while it uses evfd. Close takes sleepMu and then sigMu before it
	// closes these descriptors.
	epfd, evfd int  // the epoll descriptor and the eventfd of openPoll; -1: not open
	timerfd    int  // the timer that [domain.setTimer] sets; -1: not open
	canSleep   bool // the completion queues of all lanes have file descriptors
	// signaled: Signal was called after Wait last read evfd, so another Signal need not write to
	// evfd.
	signaled atomic.Bool
	found    atomic.Bool // a Read has returned completions since the last [domain.nextNap]
	closing  atomic.Bool // Close was called
	sleepMu  sync.Mutex
	sigMu    sync.Mutex
	// nap is the length of the next Wait's sleep if canSleep is false, in nanoseconds; 0 means minNap.
	// It is guarded by sleepMu.
	nap int64
}

// newDomain returns a domain of the NICs with these infos, the main one first. Nothing is open yet.
func newDomain(cfg transport.Config, infos []*fi.Info) *domain {
	info := infos[0]
	d := &domain{
		cfg: cfg, mrMode: info.Domain.MRMode, epfd: -1, evfd: -1, timerfd: -1,
		mayRefuse:  !emulated(info.EP.Protocol),
		multiRecv:  info.Caps&fi.CapMultiRecv != 0,
		inject:     min(info.Tx.InjectSize, stageSize),
		keySize:    min(max(info.Domain.MRKeySize, 1), 8),
		tries:      4,
		writeFlags: fi.FlagCompletion | fi.FlagDeliveryComplete,
		peers:      make([]peer, cfg.Size),
	}
	for _, i := range infos {
		d.lanes = append(d.lanes, &lane{info: i})
	}
	d.lane = d.lanes[0]
	if d.mayRefuse {
		d.inject = 0
	}
	d.stripeMin = max(cfg.Params.Int("transport.libfabric.stripe_min"), partMin)
	d.mrs.kept.limit = cfg.Params.Int("transport.libfabric.keep_registered")
	switch info.EP.Protocol {
	case fi.ProtoXNet, fi.ProtoRXM, fi.ProtoRXMTCP, fi.ProtoRXD, fi.ProtoSockTCP:
		d.packed = true
	default:
	}
	frame := eagerLimit + transport.HeaderSize + frameSize
	latency := 10_000
	switch info.EP.Protocol {
	case fi.ProtoRXM, fi.ProtoRXMTCP:
		frame = rxmEager
	case fi.ProtoRXD:
		// A message must fit into one packet. If a message of several packets arrives before a
		// receive is posted, rxd of libfabric 1.17 delivers only its first packet.
		frame = max(info.Tx.InjectSize, 1024)
		// rxd of libfabric 1.17 stalls if reads and writes of several packets are in flight at the
		// same time.
		d.alternateRMA = true
		if fi.LibraryVersion() < fi.MakeVersion(2, 4) {
			d.boundRXD()
		}
	case fi.ProtoSHM, fi.ProtoSM2:
		// shm copies a larger message in parts, and later messages may overtake it.
		frame = max(info.Tx.InjectSize, 1024)
		latency = 1_000
		d.tries = 16
		if kernelCopies() && fi.LibraryVersion().Major() < 2 {
			// FI_DELIVERY_COMPLETE is not needed, because the kernel has written the data when
			// fi_writemsg returns. In libfabric 2.x the peer may copy the data later.
			d.writeFlags = fi.FlagCompletion
		}
	default:
	}
	if info.Tx.IovLimit < 2 || d.mrMode&fi.MRLocal != 0 {
		// A message in two segments, the arena's and the caller's, is not possible, or the caller's
		// segment would need a registration. So every message is copied, and larger ones use rendezvous.
		frame = min(frame, frameSize+copyLimit)
	}
	frame = min(frame, info.EP.MaxMsgSize)
	caps := transport.Caps(0)
	if info.Caps&fi.CapRMA != 0 {
		caps |= transport.CapRead | transport.CapWrite
	}
	if d.mayRefuse {
		caps |= transport.CapBatch
	}
	var mr transport.MRMode
	for _, m := range []struct {
		fi fi.MRMode
		mr transport.MRMode
	}{
		{fi.MRLocal, transport.MRLocal}, {fi.MRVirtAddr, transport.MRVirtAddr},
		{fi.MRAllocated, transport.MRAllocated},
	} {
		if d.mrMode&m.fi != 0 {
			mr |= m.mr
		}
	}
	if mr&transport.MRAllocated != 0 && info.Domain.Threading == fi.ThreadSafe {
		caps |= transport.CapPin
	}
	if caps.Has(transport.CapRead) && info.Caps&fi.CapHMEM != 0 {
		caps |= transport.CapDevice
	}
	progress := transport.ProgressManual
	if info.Domain.DataProgress == fi.ProgressAuto {
		progress = transport.ProgressAuto
	}
	d.attr = transport.Attr{
		Provider:   name + " " + info.Fabric.ProvName,
		Name:       domainNames(infos),
		Progress:   progress,
		MRMode:     mr,
		Caps:       caps | transport.CapFlush,
		MaxMsgSize: frame - frameSize,
		EagerLimit: frame - frameSize - transport.HeaderSize,
		MaxRMASize: min(info.EP.MaxMsgSize, 1<<40),
		LatencyNs:  latency,
	}
	return d
}

// boundRXD limits the messages and packets in flight, to avoid two faults of udp;ofi_rxd that are
// fixed in libfabric 2.4:
//
//   - rxd has 1024 entries (info.Tx.Size) for messages that it sends. If no entry is free, it drops
//     the message and reports success. An injected message holds its entry until the peer has
//     acknowledged the message, and rxd does not report when that happens. So this package injects
//     no message: each message takes a slot of the [arena] until it completes, and there are only
//     [slotCount] slots.
//   - If the completion queue between udp and rxd is full, udp writes the completion of the next
//     packet over the oldest one. rxd then takes one packet for another: messages are lost,
//     repeated or cut. The queue has 2048 places (1280 rounded up to a power of two). It holds at
//     most the completions of rxPackets received packets, of two acknowledgments for each of these,
//     of slotCount sent messages and, for each peer with reads or writes in flight, of 128 packets.
//     So with up to 8 such peers it does not become full. Rx.Size also limits how many reads of
//     peers rxd serves at the same time. rxd refuses packets beyond these limits, and the peers
//     send these packets again.
func (d *domain) boundRXD() {
	const rxPackets = 256
	d.inject = 0
	for _, l := range d.lanes {
		l.info.Rx.Size = min(l.info.Rx.Size, rxPackets)
	}
}

func (d *domain) Attr() transport.Attr { return d.attr }

func (d *domain) OpenCQ() (transport.CompletionQueue, error) {
	if d.closed {
		return nil, fmt.Errorf("libfabric: open completion queue: %w", transport.ErrClosed)
	}
	if d.cq != nil {
		return nil, errors.New("libfabric: a domain has one completion queue")
	}
	d.cq = &completionQueue{d}
	return d.cq, nil
}

// OpenEndpoint binds the endpoint, which Open has opened, to av and cq, and enables it. When
// OpenEndpoint returns without an error, peers can reach the endpoint. The result is also a
// transport.RMAEndpoint or transport.AtomicEndpoint, as Attr.Caps says.
func (d *domain) OpenEndpoint(av transport.AddressVector, cq transport.CompletionQueue) (transport.Endpoint, error) {
	if d.closed {
		return nil, fmt.Errorf("libfabric: open endpoint: %w", transport.ErrClosed)
	}
	v, okAV := av.(*addressVector)
	q, okCQ := cq.(*completionQueue)
	if !okAV || !okCQ || v.d != d || q.d != d {
		return nil, errors.New("libfabric: open endpoint: address vector and completion queue are not of this domain")
	}
	if d.ep != nil {
		return nil, errors.New("libfabric: a domain has one endpoint")
	}
	if err := d.enable(v); err != nil {
		return nil, fmt.Errorf("libfabric: open endpoint: %w", err)
	}
	d.ep = &endpoint{d}
	switch {
	case d.attr.Caps.Has(transport.CapAtomic):
		return atomicEndpoint{rmaEndpoint{d.ep}}, nil
	case d.attr.Caps.Has(transport.CapRead):
		return rmaEndpoint{d.ep}, nil
	}
	return d.ep, nil
}

// enable binds the endpoints of all lanes to v and to their completion queues, enables them, registers
// the arena if the domain has FI_MR_LOCAL, and posts the first receives.
func (d *domain) enable(v *addressVector) error {
	for i, l := range d.lanes {
		if err := l.enable(d, v.of(i)); err != nil {
			return err
		}
	}
	if d.multiRecv { // after Enable, because shm of libfabric 1.17 crashes if the option is set earlier
		if e := d.raw.SetMinMultiRecv(d.attr.MaxMsgSize + frameSize); e != 0 {
			return fmt.Errorf("FI_OPT_MIN_MULTI_RECV: %w", e)
		}
	}
	list := make([]transport.Address, len(d.lanes))
	for i, l := range d.lanes {
		var err error
		if list[i], err = l.name(); err != nil {
			return err
		}
	}
	d.address = joinAddresses(list)
	if d.at.IsValid() && string(d.address) != d.at.String() {
		return fmt.Errorf("the endpoint is at %s instead of %s", d.address, d.at)
	}
	if d.mrMode&fi.MRLocal != 0 {
		key, err := d.mrs.newKey(d.keySize) // no other goroutine uses d yet
		if err != nil {
			return err
		}
		access := fi.AccessSend | fi.AccessRecv | fi.AccessRead | fi.AccessWrite
		mr, e := d.raw.Register(d.arena.base, len(d.arena.mem), access, key)
		if e != 0 {
			return fmt.Errorf("register %d bytes of buffers: %w", len(d.arena.mem), e)
		}
		d.arena.mr, d.arena.desc = mr, mr.Desc
	}
	return d.poll(0) // with room for 0 completions, poll only posts the receives
}

// Close closes the domain and everything that was opened in it. A peer that notices this without
// having received a close message of Shutdown reports this rank as down. If libfabric fails to
// close an object, Close returns the error, and the domain's memory stays mapped and pinned. A
// second Close returns nil.
func (d *domain) Close() error {
	if d.closed {
		return nil
	}
	d.closed = true
	d.closing.Store(true)
	d.wake()
	d.sleepMu.Lock()
	d.sigMu.Lock()
	d.closePoll()
	d.sigMu.Unlock()
	d.sleepMu.Unlock()

	d.mrs.end()
	var errs []error
	closeRegions := func() {
		d.mrs.closeAll()
		if d.arena != nil {
			d.arena.closeRegion()
		}
	}
	if d.mrMode&fi.MREndpoint != 0 {
		closeRegions() // regions that are bound to the endpoint must be closed before it
	}
	for _, l := range d.lanes {
		errs = append(errs, l.closeEndpoint(d))
	}
	closeRegions()
	for _, v := range d.avs {
		errs = append(errs, v.av.Close())
	}
	for _, l := range d.lanes {
		errs = append(errs, l.close())
	}
	d.pendingAcks, d.done = nil, local.Completions{}
	if err := errors.Join(errs...); err != nil {
		abandon(d)
		return fmt.Errorf("libfabric: close: %w", err)
	}
	for _, l := range d.lanes {
		l.release()
	}
	d.arena.release()
	d.mrs.release()
	return nil
}

// abandoned keeps the domains in which libfabric failed to close an object. libfabric may still
// write to their memory, so the memory must stay mapped and pinned until the process ends.
var abandoned struct {
	sync.Mutex
	domains []*domain
}

func abandon(d *domain) {
	abandoned.Lock()
	defer abandoned.Unlock()
	abandoned.domains = append(abandoned.domains, d)
}

func (d *domain) opDone(op *transport.Op, err error) {
	d.done.Emit(transport.Completion{Kind: transport.OpDone, Peer: op.Peer, Op: op, Err: err})
}
