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

// New returns the transport provider "libfabric".
func New() transport.Provider { return provider{} }

func (provider) Name() string { return name }

// Open opens the fabric, domain, completion queue and endpoint of the first libfabric provider that
// meets the job's needs and the parameters transport.libfabric.provider and
// transport.libfabric.interface. If cfg.Listener is set, the job names at most one interface, and
// takesListenerAddr returns true, the endpoint takes the listener's address. For this Open closes the
// listener, because libfabric makes sockets of its own. While the port is in use, Open waits for up to
// bindTimeout.
func (provider) Open(cfg transport.Config) (transport.Domain, error) {
	if cfg.Size < 1 || cfg.Size > 1<<31-1 || cfg.Self < 0 || int(cfg.Self) >= cfg.Size {
		return nil, fmt.Errorf("libfabric: open: rank %d of %d: %w", cfg.Self, cfg.Size, transport.ErrAddress)
	}
	h := hintsOf(cfg)
	if p2p := cfg.Params.String("transport.libfabric.hmem_p2p"); p2p != "default" && !h.hmem {
		return nil, fmt.Errorf("libfabric: open: transport.libfabric.hmem_p2p=%s needs transport.libfabric.hmem=true", p2p)
	}
	if cfg.Listener != nil {
		var err error
		if h.source, err = listening(cfg.Listener); err != nil {
			return nil, fmt.Errorf("libfabric: open: %w", err)
		}
	}
	infos, err := h.choose()
	if err != nil {
		return nil, fmt.Errorf("libfabric: open: %w", err)
	}
	info := infos[0]
	d := newDomain(cfg, infos)
	if h.source.IsValid() && takesListenerAddr(info) {
		d.at = h.source
		stopListening(cfg.Listener)
	}
	if err := d.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("libfabric: open %s: %w", info.Fabric.ProvName, err), d.Close())
	}
	return d, nil
}

// hintsOf returns what a job requires of a provider, without a listener.
func hintsOf(cfg transport.Config) *hints {
	return &hints{
		provider: cfg.Params.String("transport.libfabric.provider"),
		ifaces:   cfg.Params.List("transport.libfabric.interface"),
		nics:     cfg.Params.Int("transport.libfabric.nics"),
		hmem:     cfg.Params.Bool("transport.libfabric.hmem"),
		oneHost:  cfg.OneHost, turn: cfg.HostRank, sharers: cfg.HostSize,
	}
}

// takesListenerAddr reports whether an endpoint of this provider may take the address of the rank's
// listener. That is so for all providers over sockets of IP except the one named sockets. Until the
// listener is closed, the kernel accepts connections of peers to the listener, although no code
// reads from them. A peer's provider then gets no answer and connects again, but sockets loses the
// messages that it has sent by then. An adapter has an address of its own.
func takesListenerAddr(i *fi.Info) bool {
	return isIP(i.AddrFormat) && !isAdapter(i) && i.Fabric.ProvName != "sockets"
}

// listening returns the address that the listening socket f is bound to.
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

// stopListening closes f, so that an endpoint can bind its port. It shuts the socket down first, because
// other processes may have inherited it: a shell or a container's runtime that runs the rank keeps it
// until the rank ends. On Linux a socket that is shut down does not listen any more, and another socket
// can bind the port if both have SO_REUSEADDR. Providers and the launcher set it.
func stopListening(f *os.File) {
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RD) })
	}
	_ = f.Close()
}

// bindTimeout limits how long lane.openEndpoint tries to open an endpoint at the port of the rank's
// listener. Another job that looks for free ports may have bound the port for a moment.
const bindTimeout = time.Second

// open opens d's epoll descriptor and eventfd, its libfabric objects except address vectors, and
// its arena. After an error the caller must call Close, which closes what is open.
func (d *domain) open() error {
	if err := d.openPoll(); err != nil {
		return err
	}
	d.canSleep = true
	for i, l := range d.lanes {
		recvs := 0
		if i == 0 {
			recvs = recvBuffers
		}
		if err := l.open(d, recvs); err != nil {
			return err
		}
		d.canSleep = d.canSleep && l.hasFD
	}
	d.attr.NoWaitObject = !d.canSleep
	if d.canSleep {
		d.attr.Caps |= transport.CapWaitFD
	}
	if err := d.openMemory(); err != nil {
		return err
	}
	d.probeAtomics()
	if len(d.lanes) == 1 && isIP(d.info.AddrFormat) && (d.cfg.Listener == nil || d.at.IsValid()) && d.insertsSymmetric() {
		d.attr.Caps |= transport.CapSymmetric
	}
	return nil
}

// openMemory maps the arena and the contexts of all lanes.
func (d *domain) openMemory() error {
	var err error
	if d.arena, err = newArena(d.attr.MaxMsgSize+frameSize, d.cfg.Size, d.info.Tx.Size, d.multiRecv); err != nil {
		return err
	}
	d.contexts = d.arena.base
	for _, l := range d.lanes[1:] {
		if l.mem, err = fi.OffHeap(slotCount * contextSize); err != nil {
			return err
		}
		l.contexts = fi.AddressOf(l.mem)
	}
	return nil
}

// insertsSymmetric reports whether the provider supports fi_av_insertsym, which several providers
// lack. It tries the call on a temporary address vector.
func (d *domain) insertsSymmetric() bool {
	av, err := d.fid.OpenAV(fi.AVAttr{Type: d.avType(), Count: 2})
	if err != nil {
		return false
	}
	node := "127.0.0.1"
	if d.info.AddrFormat == fi.SockaddrIn6 {
		node = "::1"
	}
	out := make([]fi.Addr, 2)
	n, err := av.InsertSym(node, 1, "9", 2, out, 0)
	ok := err == nil && n == 2 && (d.avType() == fi.AVMap || out[0] == 0 && out[1] == 1)
	return av.Close() == nil && ok
}
