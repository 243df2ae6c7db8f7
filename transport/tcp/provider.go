// Package tcp carries messages and one-sided transfers over TCP. A pair of ranks uses one
// connection, which the first operation between them makes.
//
// The goroutine that reads the completion queue polls the sockets, outside Go's netpoller.
// A small message costs one system call on each side, or less if such messages follow each other
// closely; see transport.BatchEndpoint. Other goroutines only make and accept connections.
//
// Both ends of a connection prove that they know the job's secret. Every frame header carries
// a check, which is a message authentication code whose key is derived from the secret. If a
// header was changed, repeated, left out or invented on the way, the connection ends with an
// error on both sides. With transport.tcp.security = "integrity" the same holds for every byte,
// and "encrypt" also hides the bytes; see wire.TCPCheck and wire.TCPSealer. With "none", the
// default, only TCP's checksum protects the data that follow a header.
package tcp

import (
	"fmt"
	"net"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

type provider struct{}

// New returns the provider "tcp".
func New() transport.Provider { return provider{} }

func (provider) Name() string { return name }

// Open opens the domain. From then on peers may connect. Open duplicates the descriptor of
// cfg.Listener, so the caller may close cfg.Listener. The domain's Close shuts the listening
// socket down, also for every other duplicate of the descriptor.
func (provider) Open(cfg transport.Config) (transport.Domain, error) {
	if cfg.Size < 1 || cfg.Size > 1<<31-1 || cfg.Self < 0 || int(cfg.Self) >= cfg.Size {
		return nil, fmt.Errorf("tcp: open: rank %d of %d: %w", cfg.Self, cfg.Size, transport.ErrAddress)
	}
	iface := cfg.Params.String("transport.tcp.interface")
	security, err := wire.ParseTCPSecurity(cfg.Params.String("transport.tcp.security"))
	if err != nil {
		return nil, fmt.Errorf("tcp: open: transport.tcp.security: %w", err)
	}
	var l *net.TCPListener
	if cfg.Listener != nil {
		l, err = inherit(cfg.Listener)
	} else {
		l, err = listen(iface, cfg.OneHost)
	}
	if err != nil {
		return nil, fmt.Errorf("tcp: open: %w", err)
	}
	addr, err := reachable(l, iface, cfg.OneHost)
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("tcp: open: %w", err)
	}
	d := &domain{self: cfg.Self, address: addr, conns: make([]*conn, cfg.Size), created: time.Now(),
		sealed: recordPool{size: recordRoom}, received: recordPool{size: 2 * recordRoom}}
	if err := d.openPoll(); err != nil {
		d.closePoll()
		_ = l.Close()
		return nil, fmt.Errorf("tcp: open: %w", err)
	}
	d.links = newLinks(identity{rank: uint32(cfg.Self), size: uint32(cfg.Size), jobID: cfg.JobID, secret: cfg.Secret, security: security},
		l, cfg.Params.Duration("transport.tcp.connect_timeout"), d.Signal)
	d.sendBuf = cfg.Params.Int("transport.tcp.send_buffer")
	return d, nil
}

// openPoll opens the poller, in which Wait sleeps, and the waker, by which Signal ends a Wait.
func (d *domain) openPoll() error {
	var err error
	if d.poller, err = sys.NewPoller(); err != nil {
		return err
	}
	if d.waker, err = sys.NewWaker(); err != nil {
		return err
	}
	_, d.waitFD = d.poller.FD()
	return d.poller.Add(d.waker.FD(), -1, sys.In)
}

func (d *domain) closePoll() {
	if d.poller != nil {
		d.poller.Close()
	}
	if d.waker != nil {
		d.waker.Close()
	}
	d.poller, d.waker = nil, nil
}
