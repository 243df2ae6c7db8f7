package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/admission"
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

// maxStrangers bounds the connections whose initiators have not shown that they know the
// job's secret. Of the initiators that have, at most one per rank is in the handshake.
const maxStrangers = 256

// maxDialing bounds the attempts to connect that run at the same time. If every rank of a
// large job connects to all others, the handshakes take turns and each one is short. An
// attempt stops counting after silentTime if the peer's kernel has not answered, and
// otherwise after answerTime. So n peers whose hosts do not answer delay an attempt
// with another peer by at most n/maxDialing times silentTime. The wait before the first attempt with a
// peer does not count against transport.tcp.connect_timeout.
const maxDialing = 32

// answerTime is how long an attempt waits for the peer's kernel, which does not answer if
// the backlog is full. This host's kernel would repeat the attempt only after 1, 3 and 7
// seconds, which is too late if the peer dies meanwhile.
const answerTime = time.Second

// silentTime is much longer than the kernel of a peer whose host is up takes to answer.
const silentTime = answerTime / 10

// lackGap separates failures of this host: a failure more than lackGap after the last one
// starts a new series. A peer that finds no descriptor here tries again after a tenth of
// lackGap.
const lackGap = time.Second

type linkState uint8

const (
	linkConnecting linkState = iota
	linkUp
	linkGone
)

// link is the connection with a peer as the goroutines see it.
type link struct {
	state  linkState
	addr   transport.Address  // of the peer, if this process wants the connection
	cancel context.CancelFunc // ends the attempt
	other  chan struct{}      // closed when a connection that the peer made has replaced the attempt
}

// handoff reports to the domain's user what happened to a connection with rank: made,
// failed, or left. Rank -1 is a stranger.
type handoff struct {
	rank transport.Addr
	fd   int
	left bool
	here bool // err is a failure of this host, and says nothing about the peer
	err  error

	protection *wire.TCPProtection // of fd
}

type links struct {
	id       identity
	timeout  time.Duration
	listener *net.TCPListener
	gate     *admission.Gate
	signal   func()
	dialing  *semaphore.Weighted // bounds the attempts that count
	ctx      context.Context
	stop     context.CancelFunc
	wg       sync.WaitGroup
	leaving  atomic.Bool
	waiting  atomic.Bool // handed is not empty

	mu       sync.Mutex // guards what follows
	peers    map[transport.Addr]*link
	greeting map[transport.Addr]net.Conn        // connections of initiators whose hello was right, until the verdict
	met      map[transport.Addr][]wire.TCPNonce // see meetLocked
	lacking  time.Time                          // since when this process has had no descriptor for peers that connect; zero: it has
	lacked   time.Time                          // when a descriptor was last missing
	handed   []handoff
	admitted int // welcomed and not handed over yet
	noticed  bool
	closed   bool
}

func newLinks(id identity, l *net.TCPListener, timeout time.Duration, signal func()) *links {
	k := &links{
		id: id, timeout: timeout, listener: l, signal: signal, dialing: semaphore.NewWeighted(maxDialing),
		peers: make(map[transport.Addr]*link), greeting: make(map[transport.Addr]net.Conn), met: make(map[transport.Addr][]wire.TCPNonce),
	}
	k.ctx, k.stop = context.WithCancel(context.Background())
	k.gate = admission.Serve(l, maxStrangers, k.respond, nil)
	return k
}

// close ends all goroutines and everything that has not been taken.
func (k *links) close() {
	k.mu.Lock()
	k.closed = true
	for _, c := range k.greeting {
		_ = c.Close()
	}
	k.mu.Unlock()
	k.stop()
	// Another process may have inherited the socket and keep it open. No peer may wait for
	// this rank in the backlog.
	if raw, err := k.listener.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RD) })
	}
	k.gate.Close()
	k.gate.Wait()
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
	delete(k.met, h.rank)
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
	delete(k.met, rank)
	if l := k.peers[rank]; l != nil {
		if l.state == linkConnecting {
			l.cancel()
		}
		l.state = linkGone
	} else {
		k.peers[rank] = &link{state: linkGone}
	}
}

// respond conducts the handshake of an accepted connection.
//
//	gate ── hello ──► greeting ── proof ──► descriptor ──► admit ── verdict ──► handed
//
// respond gets the descriptor before it sends the verdict: a failure after the verdict
// would be unknown to the initiator.
func (k *links) respond(c *admission.Conn) {
	defer func() { _ = c.Close() }()
	s, err := k.greet(c)
	if err != nil {
		if errors.Is(err, errStranger) {
			k.notice(fmt.Errorf("%s: %w", c.RemoteAddr(), err))
		}
		return
	}
	rank := transport.Addr(s.From)
	if s.Security != k.id.security {
		_ = answer(c, &s, wire.TCPSecurityVerdict(k.id.security)) // if the answer is lost, the peer tries again
		k.unlike(rank, s.Security)
		return
	}
	protection, err := s.Protection(k.id.security, false)
	if err != nil {
		k.notice(fmt.Errorf("%s: %w", c.RemoteAddr(), err))
		return
	}
	fd, err := detach(c.TCPConn)
	if k.lacks(rank, err) {
		return // the peer tries again
	}
	verdict := k.admit(rank)
	_ = c.SetDeadline(time.Time{}) // a decided verdict must not miss the deadline
	err = answer(c, &s, verdict)
	if verdict != wire.TCPWelcome || err != nil {
		_ = unix.Close(fd)
	}
	if verdict != wire.TCPWelcome {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.admitted--
	if err == nil {
		k.handLocked(handoff{rank: rank, fd: fd, protection: protection})
		return
	}
	// The initiator has closed the connection. If the initiator lives, it tries again.
	// This process also tries again if it has given up its own attempt for that
	// connection.
	if l := k.peers[rank]; l.state == linkUp {
		delete(k.peers, rank)
		if l.addr != "" {
			k.connectLocked(rank, l.addr)
		}
	}
}

// greet reads the hello of the initiator at the other end of c and checks its proof.
func (k *links) greet(c *admission.Conn) (wire.TCPSession, error) {
	err := c.Await() // if a peer is late, it tries again
	if err == nil {
		err = c.SetDeadline(time.Now().Add(k.timeout))
	}
	if err != nil {
		return wire.TCPSession{}, fmt.Errorf("%w: %w", errSilent, err)
	}
	s, err := k.id.meet(c)
	if err != nil {
		return s, err
	}
	rank := transport.Addr(s.From)
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return s, errSilent
	}
	if !k.meetLocked(rank, s.Initiator) {
		k.mu.Unlock()
		return s, fmt.Errorf("%w: it repeats what rank %d sent", errStranger, rank)
	}
	c.Proved()
	if earlier := k.greeting[rank]; earlier != nil { // the initiator makes one attempt at a time, so it has given up the earlier one
		_ = earlier.Close()
	}
	k.greeting[rank] = c
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		if k.greeting[rank] == c {
			delete(k.greeting, rank)
		}
		k.mu.Unlock()
	}()
	return s, k.id.challenge(c, &s)
}

// maxMet bounds the nonces that are kept of one peer. A peer that tries for longer than
// transport.tcp.connect_timeout gives up, and makes at most ten attempts in a second. So with
// the default of 30 s the bound keeps all of them.
const maxMet = 512

// meetLocked records the nonce of a valid hello from rank, and reports whether it is new: each
// attempt of a peer has a new one. Once the connection with the peer is made or has failed,
// the peer makes no attempt whose place a repeated hello could take. Then handLocked and gone
// drop the peer's nonces, and meetLocked keeps none.
func (k *links) meetLocked(rank transport.Addr, nonce wire.TCPNonce) bool {
	if l := k.peers[rank]; l != nil && l.state != linkConnecting && k.met[rank] == nil {
		return true
	}
	met := k.met[rank]
	if slices.Contains(met, nonce) {
		return false
	}
	if len(met) == maxMet {
		met = slices.Delete(met, 0, 1)
	}
	k.met[rank] = append(met, nonce)
	return true
}

// lacks reports whether err keeps this process from accepting the connection of a peer. If
// failures of this host last for half of the timeout, the domain fails, before the peers
// take this process for dead.
func (k *links) lacks(rank transport.Addr, err error) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	switch {
	case err == nil:
		k.lacking = time.Time{}
	case !ofThisHost(err): // the peer's connection has ended
	case k.lacking.IsZero() || now.Sub(k.lacked) > lackGap:
		k.lacking, k.lacked = now, now
	case now.Sub(k.lacking) > k.timeout/2:
		k.handLocked(handoff{rank: rank, fd: -1, here: true, err: err})
	default:
		k.lacked = now
	}
	return err != nil
}

// unlike marks a peer as failed because its transport.tcp.security differs. If this process
// is connecting to the peer, that attempt reports the difference instead.
func (k *links) unlike(rank transport.Addr, peers wire.TCPSecurity) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.peers[rank] == nil && !k.closed {
		k.peers[rank] = &link{state: linkGone}
		k.handLocked(handoff{rank: rank, fd: -1, err: errUnlike(k.id.security, rank, peers)})
	}
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
	k.connectLocked(rank, addr)
}

func (k *links) connectLocked(rank transport.Addr, addr transport.Address) {
	if l := k.peers[rank]; l != nil {
		l.addr = addr
		return
	}
	if k.closed {
		return
	}
	ctx, cancel := context.WithCancel(k.ctx)
	l := &link{addr: addr, cancel: cancel, other: make(chan struct{})}
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

// dial tries to connect until it gets a verdict, nothing listens at the address, or the
// time is over. No process knows a peer's address before the peer listens, so a refused
// connection means that the peer has ended, never that it starts late. Other failures say
// nothing about the peer, and dial tries again.
func (k *links) dial(ctx context.Context, l *link, rank transport.Addr, addr string) handoff {
	failed := func(err error) handoff { return handoff{rank: rank, fd: -1, err: err} }
	if err := k.dialing.Acquire(ctx, 1); err != nil {
		return failed(err)
	}
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	var lacking time.Time // since when attempts fail because of this host; zero: they do not
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		fd, verdict, protection, err := k.attempt(ctx, rank, addr)
		unlike, differs := verdict.OtherSecurity()
		wait, other := pause, (chan struct{})(nil)
		switch {
		case err == nil && verdict == wire.TCPWelcome:
			return handoff{rank: rank, fd: fd, protection: protection}
		case err == nil && verdict == wire.TCPLeft:
			return handoff{rank: rank, fd: -1, left: true}
		case err == nil && verdict == wire.TCPDead:
			return failed(errRefused)
		case err == nil && differs:
			return failed(errUnlike(k.id.security, rank, unlike))
		case err == nil: // busy: the peer's connection should be on its way; if not, the next verdict says so
			wait, other, err = 500*time.Millisecond, l.other, errNoOther
		case !again(err):
			return failed(err)
		}
		here := ofThisHost(err)
		switch {
		case !here:
			lacking = time.Time{}
		case lacking.IsZero():
			lacking = time.Now()
		case time.Since(lacking) > k.timeout/2: // before peers take this process for dead
			cancel()
		}
		if here {
			k.gate.Evict() // a stranger may hold the missing descriptor
		}
		select {
		case <-other:
			return failed(err) // the peer's connection is up, so the error is ignored
		case <-time.After(wait):
		case <-ctx.Done():
		}
		if k.dialing.Acquire(ctx, 1) != nil {
			h := failed(fmt.Errorf("no connection within %v (transport.tcp.connect_timeout): %w", k.timeout, err))
			if here {
				h.here, h.err = true, err
			}
			return h
		}
	}
}

// again reports whether another attempt may succeed after one that ended with err.
func again(err error) bool {
	return !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, transport.ErrProtocol) && !errors.Is(err, errNotProven)
}

// attempt connects once. The caller has acquired k.dialing, which attempt releases. The
// caller owns the descriptor that attempt returns.
func (k *links) attempt(ctx context.Context, rank transport.Addr, addr string) (int, wire.TCPVerdict, *wire.TCPProtection, error) {
	answered, done := k.count()
	defer done()
	dialer := net.Dialer{Timeout: answerTime, KeepAlive: -1}
	nc, err := dialer.DialContext(ctx, "tcp", addr)
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() && ctx.Err() == nil {
		return -1, 0, nil, fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	if err != nil {
		return -1, 0, nil, err
	}
	answered()
	c := nc.(*net.TCPConn)
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	fd, err := detach(c) // nothing may fail here after the verdict
	if err != nil {
		return -1, 0, nil, err
	}
	v, protection, err := k.id.initiate(c, uint32(rank))
	if err != nil || v != wire.TCPWelcome {
		_ = unix.Close(fd)
		return -1, v, nil, err
	}
	return fd, v, protection, nil
}

// count ends the count of an attempt that has acquired k.dialing: when done is called, after
// silentTime, or, if answered is called before, answerTime after that.
func (k *links) count() (answered, done func()) {
	release := sync.OnceFunc(func() { k.dialing.Release(1) })
	timer := time.AfterFunc(silentTime, release)
	answered = func() { timer.Reset(answerTime) }
	done = func() {
		timer.Stop()
		release()
	}
	return answered, done
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
