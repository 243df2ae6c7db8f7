// Package tcp carries messages and one-sided transfers over TCP connections,
// one per pair of ranks, made on first use.
//
// The goroutine that reads the completion queue polls the sockets, outside Go's netpoller.
// A message costs one system call on each side, or less if small messages follow each other
// closely; see BatchEndpoint. Other goroutines only make connections.
//
// Both ends of a connection prove that they know the job's secret, and every header carries
// a check that depends on it. If a header was changed, repeated, left out or invented, the
// connection ends with an error on both sides. With transport.tcp.security = "integrity"
// the same holds for every byte, and "encrypt" also hides the bytes; see wire.TCPCheck and
// wire.TCPSealer. With "none", the default, only TCP's checksum protects data against
// change.
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

// Open makes the process reachable: from now on peers may connect. The
// listener of cfg is duplicated and stays its owner's, who may close it; the
// socket is of no further use after the domain's Close.
func (provider) Open(cfg transport.Config) (transport.Domain, error) {
	if cfg.Size < 1 || cfg.Size > 1<<31-1 || cfg.Self < 0 || int(cfg.Self) >= cfg.Size {
		return nil, fmt.Errorf("tcp: open: rank %d of %d: %w", cfg.Self, cfg.Size, transport.ErrAddress)
	}
	which := cfg.Params.String("transport.tcp.interface")
	security, err := wire.ParseTCPSecurity(cfg.Params.String("transport.tcp.security"))
	if err != nil {
		return nil, fmt.Errorf("tcp: open: transport.tcp.security: %w", err)
	}
	var l *net.TCPListener
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
	d := &domain{self: cfg.Self, address: addr, conns: make([]*conn, cfg.Size), born: time.Now(),
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

// openPoll makes the descriptors that Wait sleeps on.
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
