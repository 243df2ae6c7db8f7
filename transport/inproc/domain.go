package inproc

import (
	crand "crypto/rand"
	"errors"
	"math/rand/v2"

	"github.com/weft-hpc/weft/transport"
)

// domain implements transport.Domain for one rank. The caller serialises calls, except of Asleep
// and Notify. Other ranks use only the mailbox.
type domain struct {
	fabric  *Fabric
	mailbox *mailbox
	keys    *rand.ChaCha8 // random numbers for keys of regions and, with MRVirtAddr, their bases
	cq      *queue        // nil until OpenCQ
	ep      *endpoint     // nil until OpenEndpoint
}

func newDomain(f *Fabric, b *mailbox) *domain {
	var seed [32]byte
	_, _ = crand.Read(seed[:]) // Read never fails
	return &domain{fabric: f, mailbox: b, keys: rand.NewChaCha8(seed)}
}

func (d *domain) ended() bool { return d.mailbox.state.Load() == stateClosed }

// Attr returns the domain's attributes. They follow from the options of NewFabric.
func (d *domain) Attr() transport.Attr {
	o := &d.fabric.opt
	a := transport.Attr{
		Provider:   name,
		Name:       "process",
		Progress:   transport.ProgressAuto,
		MRMode:     o.mrMode,
		Caps:       transport.CapWaitFD | transport.CapPeerDown | transport.CapSymmetric | transport.CapDisconnect,
		MaxMsgSize: o.maxMsgSize,
		EagerLimit: o.eagerLimit,
		MaxRMASize: o.maxRMASize,
		LatencyNs:  300,
	}
	if o.rma {
		a.Caps |= transport.CapRead | transport.CapWrite | transport.CapKeyCheck
	}
	if o.shared && o.rma && o.reach == nil && o.rmaDelay == 0 && o.mrMode == 0 {
		a.Caps |= transport.CapSharedMemory
	}
	if o.rmaDelay > 0 {
		a.Progress = transport.ProgressManual
	}
	return a
}

// OpenCQ opens the completion queue. A second call returns an error.
func (d *domain) OpenCQ() (transport.CompletionQueue, error) {
	if d.ended() {
		return nil, transport.ErrClosed
	}
	if d.cq != nil {
		return nil, errors.New("inproc: the domain has a completion queue already")
	}
	d.cq = &queue{mailbox: d.mailbox}
	return d.cq, nil
}

// OpenAV opens an empty address vector.
func (d *domain) OpenAV() (transport.AddressVector, error) {
	if d.ended() {
		return nil, transport.ErrClosed
	}
	return &addressVector{dom: d}, nil
}

// RegisterMemory allows peers to copy from buf (RemoteRead) or to buf (RemoteWrite).
func (d *domain) RegisterMemory(buf []byte, access transport.Access) (transport.MemoryRegion, error) {
	r, err := d.mailbox.register(d.keys, d.fabric.opt.mrMode, buf, access)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// OpenEndpoint opens the endpoint. av and cq must belong to the domain. A second call returns an
// error.
func (d *domain) OpenEndpoint(av transport.AddressVector, cq transport.CompletionQueue) (transport.Endpoint, error) {
	if d.ended() {
		return nil, transport.ErrClosed
	}
	v, ok := av.(*addressVector)
	if !ok || v.dom != d {
		return nil, errors.New("inproc: open endpoint: the address vector belongs to another domain")
	}
	if q, ok := cq.(*queue); !ok || q != d.cq {
		return nil, errors.New("inproc: open endpoint: the completion queue belongs to another domain")
	}
	if d.ep != nil {
		return nil, errors.New("inproc: the domain has an endpoint already")
	}
	d.ep = &endpoint{dom: d, av: v}
	if !d.fabric.opt.rma {
		return d.ep, nil
	}
	return &rmaEndpoint{endpoint: d.ep, cq: d.cq}, nil
}

// Close ends the domain. If the rank has not called Shutdown before, its peers report PeerDown.
// Close waits until no peer copies from or to the memory of the domain's regions.
func (d *domain) Close() error {
	d.fabric.end(d.mailbox, stateClosed)
	d.mailbox.withdrawAll()
	d.mailbox.closeFD()
	return nil
}
