//go:build libfabric

package libfabric

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

type provider struct{}

// New returns the provider "libfabric".
func New() transport.Provider { return provider{} }

func (provider) Name() string { return name }

// Open opens fabric, domain, completion queue and endpoint of the first
// provider of libfabric that suits, or of the one that the parameters name. The
// listener of cfg is closed and its address taken, where that is possible:
// libfabric makes sockets of its own.
func (provider) Open(cfg transport.Config) (transport.Domain, error) {
	if cfg.Size < 1 || cfg.Size > 1<<31-1 || cfg.Self < 0 || int(cfg.Self) >= cfg.Size {
		return nil, fmt.Errorf("libfabric: open: rank %d of %d: %w", cfg.Self, cfg.Size, transport.ErrAddress)
	}
	w := wish{
		provider: cfg.Params.String("transport.libfabric.provider"),
		iface:    cfg.Params.String("transport.libfabric.interface"),
		oneHost:  cfg.OneHost,
	}
	if cfg.Listener != nil {
		var err error
		if w.source, err = listening(cfg.Listener); err != nil {
			return nil, fmt.Errorf("libfabric: open: %w", err)
		}
	}
	info, err := w.choose()
	if err != nil {
		return nil, fmt.Errorf("libfabric: open: %w", err)
	}
	d := newDomain(cfg, info)
	if cfg.Listener != nil && shakesHands(info) {
		d.at = w.source
		_ = cfg.Listener.Close() // so that the endpoint can have its port
	}
	if err := d.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("libfabric: open %s: %w", info.Fabric.ProvName, err), d.Close())
	}
	return d, nil
}

// shakesHands says whether an endpoint may take the place of a socket that has
// been listening. A peer that connects before that finds itself connected to
// nobody; most providers see that no answer comes and connect again, but what
// sockets has sent by then is lost.
func shakesHands(i *fi.Info) bool { return isIP(i.AddrFormat) && i.Fabric.ProvName != "sockets" }

// listening is the address that a socket is bound to.
func listening(f *os.File) (netip.AddrPort, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("listener: %w", err)
	}
	var sa unix.Sockaddr
	var nameErr error
	if err := raw.Control(func(fd uintptr) { sa, nameErr = unix.Getsockname(int(fd)) }); err != nil {
		return netip.AddrPort{}, fmt.Errorf("listener: %w", err)
	}
	if nameErr != nil {
		return netip.AddrPort{}, fmt.Errorf("listener: getsockname: %w", nameErr)
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)), nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port)), nil
	}
	return netip.AddrPort{}, errors.New("listener: not an IP socket")
}

// portPatience is how long an endpoint tries to get the port that its rank was
// promised: whoever else has the launcher's socket closes it soon.
const portPatience = 2 * time.Second

// open opens everything but address vectors. What is open on an error, Close
// closes.
func (d *domain) open() error {
	if err := d.openPoll(); err != nil {
		return err
	}
	var err error
	if d.fabric, err = fi.OpenFabric(d.info); err != nil {
		return err
	}
	if d.fid, err = d.fabric.OpenDomain(d.info); err != nil {
		return err
	}
	if err = d.openCQ(); err != nil {
		return err
	}
	if d.fiep, err = d.openFIEndpoint(); err != nil {
		return err
	}
	if d.raw, err = fi.NewRaw(d.fabric, d.fid, d.fiep, d.ficq, batch, recvBuffers, d.mrMode&fi.MREndpoint != 0); err != nil {
		return err
	}
	if d.arena, err = newArena(d.attr.MaxMsgSize+frameSize, d.multiRecv); err != nil {
		return err
	}
	d.probeAtomics()
	if isIP(d.info.AddrFormat) && (d.cfg.Listener == nil || d.at.IsValid()) && d.insertsSymmetric() {
		d.attr.Caps |= transport.CapSymmetric
	}
	return nil
}

// openCQ opens the queue with a descriptor to sleep on, or without where the
// provider has none.
func (d *domain) openCQ() error {
	attr := fi.CQAttr{Size: queueSize, Format: fi.CQData, Wait: fi.WaitFD}
	// The descriptor of net, in 1.17, is readable for ever after the first
	// completion.
	if d.info.Fabric.ProvName != "net" {
		if q, err := d.fid.OpenCQ(attr); err == nil {
			d.ficq = q
			if fd, err := q.FD(); err == nil {
				d.hasFD = true
				d.attr.Caps |= transport.CapWaitFD
				return d.watch(fd)
			}
			if err := q.Close(); err != nil {
				return err
			}
		}
	}
	d.attr.NoWaitObject = true
	attr.Wait = fi.WaitNone
	q, err := d.fid.OpenCQ(attr)
	if err == nil {
		d.ficq = q
	}
	return err
}

// openFIEndpoint opens the endpoint, patiently where it needs a certain port.
func (d *domain) openFIEndpoint() (*fi.Endpoint, error) {
	for end := time.Now().Add(portPatience); ; time.Sleep(20 * time.Millisecond) {
		ep, err := d.fid.OpenEndpoint(d.info)
		switch {
		case err == nil:
			return ep, nil
		case !d.at.IsValid() || !errors.Is(err, fi.ErrAddrInUse):
			return nil, err
		case time.Now().After(end):
			return nil, fmt.Errorf("%s was promised to this rank and is in use: %w", d.at, err)
		}
	}
}

// insertsSymmetric tries fi_av_insertsym, which several providers lack, on a
// vector of its own.
func (d *domain) insertsSymmetric() bool {
	av, err := d.fid.OpenAV(fi.AVAttr{Type: fi.AVTable, Count: 2})
	if err != nil {
		return false
	}
	node := "127.0.0.1"
	if d.info.AddrFormat == fi.SockaddrIn6 {
		node = "::1"
	}
	out := make([]fi.Addr, 2)
	n, err := av.InsertSym(node, 1, "9", 2, out, 0)
	return av.Close() == nil && err == nil && n == 2 && out[0] == 0 && out[1] == 1
}
