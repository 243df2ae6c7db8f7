// Package tcp carries messages and one-sided transfers over TCP connections,
// one per pair of ranks, made on first use.
//
// Sockets are polled by whoever reads the completion queue, outside Go's
// netpoller, and a message costs one system call on each side. Only making
// connections is left to goroutines.
package tcp

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
)

type provider struct{}

// New returns the provider "tcp".
func New() transport.Provider { return provider{} }

func (provider) Name() string { return name }

// Open makes the process reachable: from now on peers may connect. The
// listener of cfg is duplicated and stays its owner's, who may close it; the
// socket is of no further use after the domain's Close.
func (provider) Open(cfg transport.Config) (transport.Domain, error) {
	if cfg.Size < 1 || cfg.Size > 1<<31-1 || cfg.Self < 0 || int(cfg.Self) >= cfg.Size {
		return nil, fmt.Errorf("tcp: open: rank %d of %d: %w", cfg.Self, cfg.Size, transport.ErrAddress)
	}
	which := cfg.Params.String("transport.tcp.interface")
	var l *net.TCPListener
	var err error
	if cfg.Listener != nil {
		l, err = inherit(cfg.Listener)
	} else {
		l, err = listen(which, cfg.OneHost)
	}
	if err != nil {
		return nil, fmt.Errorf("tcp: open: %w", err)
	}
	addr, err := reachable(l, which, cfg.OneHost)
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("tcp: open: %w", err)
	}
	d := &domain{self: cfg.Self, address: addr, conns: make([]*conn, cfg.Size), epfd: -1, evfd: -1}
	if err := d.openPoll(); err != nil {
		d.closePoll()
		_ = l.Close()
		return nil, fmt.Errorf("tcp: open: %w", err)
	}
	d.links = newLinks(identity{rank: uint32(cfg.Self), size: uint32(cfg.Size), jobID: cfg.JobID, secret: cfg.Secret}, l, d.Signal)
	d.links.timeout = cfg.Params.Duration("transport.tcp.connect_timeout")
	return d, nil
}

// openPoll makes the descriptors that Wait sleeps on.
func (d *domain) openPoll() error {
	var err error
	if d.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll_create1: %w", err)
	}
	if d.evfd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: -1}
	if err = unix.EpollCtl(d.epfd, unix.EPOLL_CTL_ADD, d.evfd, &ev); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

func (d *domain) closePoll() {
	if d.epfd >= 0 {
		_ = unix.Close(d.epfd)
	}
	if d.evfd >= 0 {
		_ = unix.Close(d.evfd)
	}
	d.epfd, d.evfd = -1, -1
}
