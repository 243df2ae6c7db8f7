package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// Connections are made and accepted by goroutines on Go's netpoller, so that a
// rank that computes can be connected to. What they have made goes to the
// domain's user through handed.
//
// Two ranks may connect to each other at once. Then the connection that the
// lower rank initiated stands: the lower one answers busy while its own is
// under way, the higher one gives its own up when the other's arrives. Nothing
// is sent before the verdict, so nothing can be lost or overtaken.

var errTimeout = os.ErrDeadlineExceeded

// maxStrangers is how many connections may be in the handshake at once; others
// wait in the listener's backlog.
const maxStrangers = 128

// answerTime is how long an attempt waits for the peer's kernel, which does not
// answer where its backlog is full. It would be asked again by ours after 1, 3
// and 7 seconds; should the peer die meanwhile, that is too late.
const answerTime = time.Second

// silenceTime is for how long connections that end in silence are repeated.
const silenceTime = 2 * time.Second

type linkState uint8

const (
	linkConnecting linkState = iota
	linkUp
	linkGone
)

// link is the connection with a peer as the goroutines see it.
type link struct {
	state  linkState
	cancel context.CancelFunc // ends the attempt
	other  chan struct{}      // closed when the peer's connection has come instead
}

// handoff tells the domain's user of a connection: made, failed, or left for
// rank; or, with rank -1, of a stranger.
type handoff struct {
	rank transport.Addr
	fd   int
	left bool
	err  error
}

type links struct {
	id       identity
	timeout  time.Duration
	listener *net.TCPListener
	signal   func()
	ctx      context.Context
	stop     context.CancelFunc
	wg       sync.WaitGroup
	leaving  atomic.Bool
	waiting  atomic.Bool // handed is not empty

	mu       sync.Mutex // guards what follows
	peers    map[transport.Addr]*link
	pending  map[net.Conn]struct{} // in the handshake as responder
	handed   []handoff
	admitted int // welcomed and not handed over yet
	noticed  bool
	closed   bool
}

func newLinks(id identity, l *net.TCPListener, signal func()) *links {
	k := &links{id: id, listener: l, signal: signal, peers: make(map[transport.Addr]*link), pending: make(map[net.Conn]struct{})}
	k.ctx, k.stop = context.WithCancel(context.Background())
	k.wg.Add(1)
	go k.accept() // ended by close of the listener in close, which waits for it
	return k
}

// close ends all goroutines and everything that has not been taken.
func (k *links) close() {
	k.mu.Lock()
	k.closed = true
	for c := range k.pending {
		_ = c.Close()
	}
	k.mu.Unlock()
	k.stop()
	// An inherited socket may stay open elsewhere; nobody shall wait in its
	// backlog for us.
	if raw, err := k.listener.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RD) })
	}
	_ = k.listener.Close()
	k.wg.Wait()
	for _, h := range k.take() {
		if h.fd >= 0 {
			_ = unix.Close(h.fd)
		}
	}
}

// take returns what has been handed over since the last time.
func (k *links) take() []handoff {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.handed
	k.handed = nil
	k.waiting.Store(false)
	return h
}

func (k *links) handLocked(h handoff) {
	k.handed = append(k.handed, h)
	k.waiting.Store(true)
	k.signal()
}

// idle says whether no connection is being made or waits to be taken.
func (k *links) idle() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.peers {
		if l.state == linkConnecting {
			return false
		}
	}
	return len(k.handed) == 0 && k.admitted == 0
}

// gone refuses the peer from now on, and ends the attempt to connect with it.
func (k *links) gone(rank transport.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l := k.peers[rank]; l != nil {
		if l.state == linkConnecting {
			l.cancel()
		}
		l.state = linkGone
	} else {
		k.peers[rank] = &link{state: linkGone}
	}
}

// accept takes connections until the listener is closed.
func (k *links) accept() {
	defer k.wg.Done()
	free := make(chan struct{}, maxStrangers)
	for {
		select {
		case free <- struct{}{}:
		case <-k.ctx.Done():
			return
		}
		c, err := k.listener.AcceptTCP()
		if err != nil {
			<-free
			if k.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of descriptors, or a connection that is gone again.
			select {
			case <-time.After(10 * time.Millisecond):
			case <-k.ctx.Done():
				return
			}
			continue
		}
		k.wg.Add(1)
		go func() { // ends by its deadline, or by close closing c; close waits for it
			defer k.wg.Done()
			defer func() { <-free }()
			k.respond(c)
		}()
	}
}

// respond conducts the handshake of an accepted connection.
func (k *links) respond(c *net.TCPConn) {
	defer func() { _ = c.Close() }()
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return
	}
	k.pending[c] = struct{}{}
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		delete(k.pending, c)
		k.mu.Unlock()
	}()
	if c.SetDeadline(time.Now().Add(strangerTime)) != nil {
		return
	}
	s, err := k.id.greet(c)
	if err != nil {
		if !errors.Is(err, errSilent) {
			k.notice(fmt.Errorf("%s: %w", c.RemoteAddr(), err))
		}
		return
	}
	rank := transport.Addr(s.From)
	verdict := k.admit(rank)
	err = answer(c, &s, verdict)
	if verdict != wire.TCPWelcome {
		return
	}
	h := handoff{rank: rank, fd: -1, err: err}
	if err == nil {
		h.fd, h.err = detach(c)
	}
	k.mu.Lock()
	k.admitted--
	k.handLocked(h)
	k.mu.Unlock()
}

// admit decides on a connection of an authenticated peer. Who leaves has nothing
// for a peer that it has no connection with; what it has for others is yet to
// go, perhaps by the one that the peer has begun.
func (k *links) admit(rank transport.Addr) wire.TCPVerdict {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.peers[rank]
	switch {
	case k.closed, k.leaving.Load() && (l == nil || l.state == linkGone):
		return wire.TCPLeft
	case l == nil:
		k.peers[rank] = &link{state: linkUp}
		k.admitted++
		return wire.TCPWelcome
	case l.state == linkGone:
		return wire.TCPDead
	case l.state == linkConnecting && rank < transport.Addr(k.id.rank):
		l.state = linkUp
		k.admitted++
		close(l.other)
		l.cancel()
		return wire.TCPWelcome
	}
	return wire.TCPBusy
}

// notice reports a stranger, the first only.
func (k *links) notice(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.noticed && !k.closed {
		k.noticed = true
		k.handLocked(handoff{rank: -1, fd: -1, err: err})
	}
}

// connect makes the connection with rank, unless it is there or under way.
func (k *links) connect(rank transport.Addr, addr transport.Address) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.peers[rank] != nil || k.closed {
		return
	}
	ctx, cancel := context.WithTimeout(k.ctx, k.timeout)
	l := &link{cancel: cancel, other: make(chan struct{})}
	k.peers[rank] = l
	k.wg.Add(1)
	go func() { // ends by its context; close waits for it
		defer k.wg.Done()
		defer cancel()
		h := k.dial(ctx, l, rank, string(addr))
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.state != linkConnecting { // the peer's own has come
			if h.fd >= 0 {
				_ = unix.Close(h.fd)
			}
			return
		}
		l.state = linkUp
		if h.fd < 0 {
			l.state = linkGone
		}
		k.handLocked(h)
	}()
}

// dial tries until there is a verdict, or nobody is at the address: a peer's
// address is known to none before the peer listens, so that a refused connection
// is the peer's end, never a start that is late.
func (k *links) dial(ctx context.Context, l *link, rank transport.Addr, addr string) handoff {
	var silent time.Time // since when; zero: it has not been
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		fd, verdict, err := k.attempt(ctx, rank, addr)
		if err == nil {
			switch verdict {
			case wire.TCPWelcome:
				return handoff{rank: rank, fd: fd}
			case wire.TCPLeft:
				return handoff{rank: rank, fd: -1, left: true}
			case wire.TCPDead:
				return handoff{rank: rank, fd: -1, err: errRefused}
			case wire.TCPBusy:
			}
			select { // its connection is on its way; if not, the next verdict tells
			case <-l.other:
			case <-time.After(500 * time.Millisecond):
				continue
			case <-ctx.Done():
			}
			return handoff{rank: rank, fd: -1, err: errNoOther}
		}
		if ctx.Err() != nil || !again(err, &silent) {
			return handoff{rank: rank, fd: -1, err: err}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return handoff{rank: rank, fd: -1, err: err}
		}
	}
}

// again says whether an attempt that failed is to be repeated. A connection that
// ended in silence lay in the backlog of a peer that ends, or took this process
// too long: the next attempt tells which.
func again(err error, silent *time.Time) bool {
	switch {
	case errors.Is(err, errSilent), errors.Is(err, syscall.ECONNRESET):
		if silent.IsZero() {
			*silent = time.Now()
		}
		return time.Since(*silent) < silenceTime
	case errors.Is(err, errNoAnswer), errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.EAGAIN): // the last two are of this host
		return true
	}
	return false
}

// attempt connects once. The descriptor it returns is the caller's.
func (k *links) attempt(ctx context.Context, rank transport.Addr, addr string) (int, wire.TCPVerdict, error) {
	dialer := net.Dialer{Timeout: answerTime, KeepAlive: -1}
	nc, err := dialer.DialContext(ctx, "tcp", addr)
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() && ctx.Err() == nil {
		return -1, 0, fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	if err != nil {
		return -1, 0, err
	}
	c := nc.(*net.TCPConn)
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	v, err := k.id.initiate(c, uint32(rank))
	if err != nil || v != wire.TCPWelcome {
		return -1, v, err
	}
	fd, err := detach(c)
	return fd, v, err
}

// detach returns a descriptor of c's socket that Go's poller knows nothing of.
func detach(c *net.TCPConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, derr := -1, error(nil)
	if err := raw.Control(func(s uintptr) { fd, derr = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 3) }); err != nil {
		return -1, err
	}
	if derr != nil {
		return -1, fmt.Errorf("duplicate socket: %w", derr)
	}
	return fd, nil
}
