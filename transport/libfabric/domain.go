//go:build libfabric

package libfabric

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/internal/local"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

const (
	// copyLimit is the largest header and data, in bytes, that Send copies. Up to this size a copy
	// costs less than pinning the user's buffer, and the user may reuse the buffer at once.
	copyLimit = 8 << 10
	// eagerLimit is the largest data, in bytes, for which two copies cost less than the round trip
	// of a rendezvous. Some providers have a lower limit.
	eagerLimit = 64 << 10
	// rxmEager is the largest message that rxm sends eagerly. rxm uses its own rendezvous for a
	// larger message, and completes it after later messages of the same peer.
	rxmEager = 16 << 10

	batch     = 32 // completions per poll
	queueSize = 4096
)

// domain is the state of the transport. The user serialises all calls except Wait and Signal, which
// share only the fields of the sleeping part with the other calls.
type domain struct {
	cfg          transport.Config
	info         *fi.Info
	at           netip.AddrPort // the address that the endpoint must have, if valid
	attr         transport.Attr
	mrMode       fi.MRMode
	multiRecv    bool
	packed       bool // a multi-receive buffer holds messages without gaps
	alternateRMA bool // a peer never has reads and writes in flight at the same time
	keySize      int  // bytes of a memory key
	inject       int  // largest message with its frame that fi_inject takes
	tries        int  // how often one poll reads the queue while it is empty
	emptyPolls   int  // consecutive polls without a completion
	writeFlags   fi.Flags

	fabric *fi.Fabric
	fid    *fi.Domain
	ficq   *fi.CQ
	fiep   *fi.Endpoint
	raw    *fi.Raw
	arena  *arena
	avs    []*addressVector

	av         *addressVector // the endpoint's
	cq         *completionQueue
	ep         *endpoint
	address    transport.Address
	mrs        regions
	peers      []peer
	rmaStarted uint64 // reads and writes started so far
	atomics    atomicTable
	request    fi.RawAtomic // arguments of the current Atomic call; a field so that no call allocates

	closed       bool
	shutdown     bool  // Shutdown has begun
	dropMessages bool  // received messages are discarded
	broken       error // the error that ended the completion queue; nil: it works

	loop        local.SelfQueue // messages to this rank itself, which providers deliver slowly
	done        local.Completions
	polls       uint64
	pendingAcks []transport.Addr // peers whose close message has no acknowledgment yet
	deferring   bool             // a message of this Read did not fit and is queued for the next one

	// Sleeping. Wait holds sleepMu, Signal holds sigMu, and Close takes both
	// before it closes the descriptors.
	epfd, evfd int
	hasFD      bool // the queue has a descriptor, and epfd watches it
	signaled   atomic.Bool
	found      atomic.Bool // a Read has returned completions since the last sleep
	closing    atomic.Bool
	sleepMu    sync.Mutex
	sigMu      sync.Mutex
	nap        int64 // guarded by sleepMu; nanoseconds
}

func newDomain(cfg transport.Config, info *fi.Info) *domain {
	d := &domain{
		cfg: cfg, info: info, mrMode: info.Domain.MRMode, epfd: -1, evfd: -1,
		multiRecv:  info.Caps&fi.CapMultiRecv != 0,
		inject:     min(info.Tx.InjectSize, stageSize),
		keySize:    min(max(info.Domain.MRKeySize, 1), 8),
		tries:      4,
		writeFlags: fi.FlagCompletion | fi.FlagDeliveryComplete,
		peers:      make([]peer, cfg.Size),
	}
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
		// A message must fit into one packet. If no receive is posted when a message of
		// several packets arrives, 1.17 delivers only its first packet.
		frame = max(info.Tx.InjectSize, 1024)
		d.alternateRMA = true // 1.17 stalls if reads and writes of several packets are in flight
		if fi.LibraryVersion() < fi.MakeVersion(2, 4) {
			d.boundRXD()
		}
	case fi.ProtoSHM, fi.ProtoSM2:
		// shm copies a larger message in parts, and later messages overtake it.
		frame = max(info.Tx.InjectSize, 1024)
		latency = 1_000
		d.tries = 16
		if kernelCopies() {
			d.writeFlags = fi.FlagCompletion // the kernel has written the data when the call returns
		}
	default:
	}
	frame = min(frame, info.EP.MaxMsgSize)
	caps := transport.Caps(0)
	if info.Caps&fi.CapRMA != 0 {
		caps |= transport.CapRead | transport.CapWrite
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
	progress := transport.ProgressManual
	if info.Domain.DataProgress == fi.ProgressAuto {
		progress = transport.ProgressAuto
	}
	d.attr = transport.Attr{
		Provider:   name + " " + info.Fabric.ProvName,
		Name:       info.Domain.Name,
		Progress:   progress,
		MRMode:     mr,
		Caps:       caps,
		MaxMsgSize: frame - frameSize,
		EagerLimit: frame - frameSize - transport.HeaderSize,
		MaxRMASize: min(info.EP.MaxMsgSize, 1<<40),
		LatencyNs:  latency,
	}
	return d
}

// boundRXD avoids two faults of udp;ofi_rxd that libfabric 2.4 has fixed:
//
//   - If rxd has no entry for a message, it drops the message and reports success. It has
//     1024 entries (info.Tx.Size). An injected message holds an entry until the peer has
//     acknowledged the message, and rxd does not report that. So weft injects no message:
//     each takes a slot until it completes, and there are [slotCount] slots.
//   - If the completion queue is full, udp writes the completion of the next packet over the
//     oldest one. rxd then takes one packet for another: messages are lost, repeated or
//     cut. The queue has 2048 places (1280 rounded up). It holds at most rxPackets packets
//     that came, for each of these at most two acknowledgments, slotCount messages and, for
//     each peer, 128 packets of reads and writes. So it is not full with up to 8 such peers.
//     Rx.Size also bounds the reads of all peers that rxd serves at the same time. Above
//     that it refuses packets, and the peers send them again.
func (d *domain) boundRXD() {
	const rxPackets = 256
	d.inject = 0
	d.info.Rx.Size = min(d.info.Rx.Size, rxPackets)
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

// OpenEndpoint binds and enables the endpoint. When it has returned, peers can reach the endpoint.
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

// enable binds the endpoint to its vector and queue, enables it and posts the receives.
func (d *domain) enable(v *addressVector) error {
	if err := d.fiep.BindAV(v.av); err != nil {
		return err
	}
	d.av = v
	if err := d.fiep.BindCQ(d.ficq, fi.FlagTransmit|fi.FlagRecv); err != nil {
		return err
	}
	if err := d.fiep.Enable(); err != nil {
		if d.at.IsValid() && errors.Is(err, fi.ErrAddrInUse) {
			return fmt.Errorf("%s was promised to this rank and is in use: %w", d.at, err)
		}
		return err
	}
	if d.multiRecv { // after Enable: shm of 1.17 cannot store it earlier
		if e := d.raw.SetMinMultiRecv(d.attr.MaxMsgSize + frameSize); e != 0 {
			return fmt.Errorf("FI_OPT_MIN_MULTI_RECV: %w", e)
		}
	}
	at, err := d.fiep.Name()
	if err != nil {
		return err
	}
	if d.address, err = decode(d.info.AddrFormat, at); err != nil {
		return err
	}
	if d.at.IsValid() && string(d.address) != d.at.String() {
		return fmt.Errorf("the endpoint is at %s instead of %s", d.address, d.at)
	}
	if d.mrMode&fi.MRLocal != 0 {
		key, err := d.mrs.newKey(d.keySize)
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
	return d.poll(0) // posts the receives
}

// Close closes everything. A peer that Shutdown has not informed reports this rank as down.
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

	var errs []error
	closeRegions := func() {
		d.mrs.closeAll()
		if d.arena != nil {
			d.arena.closeRegions()
		}
	}
	if d.mrMode&fi.MREndpoint != 0 {
		closeRegions() // regions that are bound to the endpoint must be closed before it
	}
	errs = append(errs, d.closeFIEndpoint())
	closeRegions()
	for _, v := range d.avs {
		errs = append(errs, v.av.Close())
	}
	if d.ficq != nil {
		errs = append(errs, d.ficq.Close())
	}
	if d.fid != nil {
		errs = append(errs, d.fid.Close())
	}
	if d.fabric != nil {
		errs = append(errs, d.fabric.Close())
	}
	d.pendingAcks, d.done = nil, local.Completions{}
	if err := errors.Join(errs...); err != nil {
		abandon(d)
		return fmt.Errorf("libfabric: close: %w", err)
	}
	d.raw.Close()
	d.arena.release()
	d.mrs.release()
	return nil
}

// abandoned holds the domains that libfabric failed to close. libfabric may still write to their
// memory, so the memory stays mapped and pinned until the process ends.
var abandoned struct {
	sync.Mutex
	domains []*domain
}

func abandon(d *domain) {
	abandoned.Lock()
	defer abandoned.Unlock()
	abandoned.domains = append(abandoned.domains, d)
}

// closeFIEndpoint closes the endpoint. If the endpoint has no address vector, closeFIEndpoint binds
// one first, because rxm of 1.17 dereferences the vector without a check and crashes.
func (d *domain) closeFIEndpoint() error {
	if d.fiep == nil {
		return nil
	}
	if d.av == nil {
		av, err := d.fid.OpenAV(fi.AVAttr{Type: fi.AVTable, Count: 1})
		if err != nil {
			return err
		}
		d.avs = append(d.avs, &addressVector{d: d, av: av})
		if err := d.fiep.BindAV(av); err != nil {
			return err
		}
	}
	return d.fiep.Close()
}

func (d *domain) opDone(op *transport.Op, err error) {
	d.done.Emit(transport.Completion{Kind: transport.OpDone, Peer: op.Peer, Op: op, Err: err})
}
