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

// Goroutines on Go's netpoller make and accept connections, so peers can connect to a rank that
// computes. They append their results to links.results, and progress takes them from there.
//
// A handshake ends with the responder's verdict, which says whether the connection is to be used.
// Two ranks may connect to each other at the same time. Then both keep the connection that the
// lower rank initiated: the lower rank answers the attempt of the higher rank with the verdict
// wire.TCPBusy, and the higher rank ends its own attempt when the lower rank's connection arrives.
// No rank sends a message before the verdict, so no message is lost or reordered.

var errTimeout = os.ErrDeadlineExceeded

// maxUnproved bounds the number of accepted connections whose initiators have not sent a valid
// hello. Among the connections with a valid hello, at most one per rank is in the handshake at a
// time.
const maxUnproved = 256

// maxDialing bounds the number of this rank's attempts to connect that run at the same time. If
// every rank of a large job connects to all others, the bound keeps each handshake short.
//
// If the peer's kernel has not answered an attempt within silentTime, the attempt no longer counts
// against the bound. If it has, the attempt counts until it ends, but at most answerTime after the
// answer. So n peers whose hosts do not answer delay an attempt with another peer by at most
// n/maxDialing times silentTime. The time for which the bound delays the first attempt with a peer
// is not part of transport.tcp.connect_timeout.
const maxDialing = 32

// answerTime is how long an attempt waits for an answer of the peer's kernel, which does not answer
// if the backlog of the peer's listener is full. Then dial begins a new attempt. This host's kernel
// would repeat its SYN only after 1, 3 and 7 seconds, which is too late if the peer dies meanwhile.
const answerTime = time.Second

// silentTime is the time after which an attempt without an answer no longer counts against
// maxDialing. The kernel of a host that is up answers much sooner.
const silentTime = answerTime / 10

// failureGap separates series of failures of this host: a failure more than failureGap after the
// last one starts a new series. If a connection fails because this process has no descriptor
// left, the peer tries again at most 100 ms later, so the failures of one series are closer
// together than failureGap.
const failureGap = time.Second

type linkState uint8

const (
	linkConnecting linkState = iota
	linkUp
	linkGone
)

// link is the state of the connection with a peer, as far as [links] makes, accepts or refuses it.
// The mutex of links guards it.
type link struct {
	state  linkState
	addr   transport.Address  // the peer's address; empty if this process has not asked for the connection
	cancel context.CancelFunc // ends this process's attempt to connect; set in the state linkConnecting
	// other is closed when a connection that the peer made has replaced this process's attempt.
	other chan struct{}
}

// linkResult is the outcome of connecting with a rank, for progress: the connection is made, it has
// failed, or the peer has left. If rank is -1, it is a notice for the user instead, whose text is
// err.
type linkResult struct {
	rank     transport.Addr
	fd       int   // the connected socket; -1: there is no connection
	left     bool  // the peer has left the job
	thisHost bool  // err is a failure of this host and says nothing about the peer
	err      error // nil: the connection is made, or left is set

	protection *wire.TCPProtection // the keys for fd
}

// links makes and accepts the connections of a rank. Its goroutines end in close.
type links struct {
	id         identity
	timeout    time.Duration // transport.tcp.connect_timeout
	listener   *net.TCPListener
	gate       *admission.Gate     // accepts connections and calls respond for each
	signal     func()              // ends a Wait of the completion queue
	dialing    *semaphore.Weighted // bounds the number of attempts at the same time; see [maxDialing]
	ctx        context.Context     // ends in close, and with it all attempts to connect
	stop       context.CancelFunc  // ends ctx
	wg         sync.WaitGroup      // counts the goroutines that connectLocked starts
	leaving    atomic.Bool         // Shutdown was called
	hasResults atomic.Bool         // results is not empty

	mu    sync.Mutex // guards the fields below
	peers map[transport.Addr]*link
	// inHandshake has the connections of initiators whose hello was valid, until the proof in the
	// handshake.
	inHandshake map[transport.Addr]net.Conn
	nonces      map[transport.Addr][]wire.TCPNonce // nonces of valid hellos; see [links.recordNonceLocked]
	// failingSince is the start of the current series of failures of this host. It is zero if
	// there is no such series.
	failingSince time.Time
	lastFailure  time.Time    // time of the last failure in that series
	results      []linkResult // the outcomes that progress has not taken yet
	// admitted is the number of peers that [links.admit] has accepted and whose connection is not
	// in results yet.
	admitted int
	noticed  bool // [links.notice] has reported an error
	closed   bool // close was called
}

func newLinks(id identity, l *net.TCPListener, timeout time.Duration, signal func()) *links {
	k := &links{
		id: id, timeout: timeout, listener: l, signal: signal, dialing: semaphore.NewWeighted(maxDialing),
		peers: make(map[transport.Addr]*link), inHandshake: make(map[transport.Addr]net.Conn), nonces: make(map[transport.Addr][]wire.TCPNonce),
	}
	k.ctx, k.stop = context.WithCancel(context.Background())
	k.gate = admission.Serve(l, maxUnproved, k.respond, nil)
	return k
}

// close ends all goroutines of links and waits for them. It closes the connections that takeResults
// has not returned.
func (k *links) close() {
	k.mu.Lock()
	k.closed = true
	for _, c := range k.inHandshake {
		_ = c.Close()
	}
	k.mu.Unlock()
	k.stop()
	// Another process may have inherited the listening socket and keep it open. Without the
	// shutdown, the kernel would go on to accept connections into the backlog of that socket, and
	// peers would wait for this rank's answer.
	if raw, err := k.listener.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RD) })
	}
	k.gate.Close()
	k.gate.Wait()
	k.wg.Wait()
	for _, h := range k.takeResults() {
		if h.fd >= 0 {
			_ = unix.Close(h.fd)
		}
	}
}

// takeResults returns the entries of results and empties it.
func (k *links) takeResults() []linkResult {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.results
	k.results = nil
	k.hasResults.Store(false)
	return h
}

// addResultLocked appends h to results and ends a Wait of the completion queue, so that the caller
// of Wait reads again. It drops the nonces of h's rank. The caller holds k.mu.
func (k *links) addResultLocked(h linkResult) {
	delete(k.nonces, h.rank)
	k.results = append(k.results, h)
	k.hasResults.Store(true)
	k.signal()
}

// idle reports whether no connection is being made, no admitted peer waits for its verdict, and
// takeResults has returned all results.
func (k *links) idle() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.peers {
		if l.state == linkConnecting {
			return false
		}
	}
	return len(k.results) == 0 && k.admitted == 0
}

// refuse ends this process's attempt to connect with a peer, if there is one. From now on admit
// refuses the peer's connections, and connect makes none.
func (k *links) refuse(rank transport.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.nonces, rank)
	if l := k.peers[rank]; l != nil {
		if l.state == linkConnecting {
			l.cancel()
		}
		l.state = linkGone
	} else {
		k.peers[rank] = &link{state: linkGone}
	}
}

// respond conducts the responder's side of the handshake on an accepted connection. The gate runs
// it in a goroutine per connection.
//
//	gate ── hello ──► inHandshake ── proof ──► descriptor ──► admit ── verdict ──► results
//
// respond duplicates the descriptor before it sends the verdict, because it cannot report a failure
// to the initiator after the verdict.
func (k *links) respond(c *admission.Conn) {
	defer func() { _ = c.Close() }()
	s, err := k.authenticate(c)
	if err != nil {
		if errors.Is(err, errNotMember) {
			k.notice(fmt.Errorf("%s: %w", c.RemoteAddr(), err))
		}
		return
	}
	rank := transport.Addr(s.From)
	if s.Security != k.id.security {
		_ = answer(c, &s, wire.TCPSecurityVerdict(k.id.security)) // if the answer is lost, the peer tries again
		k.securityDiffers(rank, s.Security)
		return
	}
	protection, err := s.Protection(k.id.security, false)
	if err != nil {
		k.notice(fmt.Errorf("%s: %w", c.RemoteAddr(), err))
		return
	}
	fd, err := detach(c.TCPConn)
	if k.noteAccept(rank, err) {
		return // the peer tries again
	}
	verdict := k.admit(rank)
	// The call of admit has changed the state of the link. So an expired deadline must not keep
	// back the verdict.
	_ = c.SetDeadline(time.Time{})
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
		k.addResultLocked(linkResult{rank: rank, fd: fd, protection: protection})
		return
	}
	// The verdict could not be sent, for example because the initiator has closed the connection.
	// If the initiator lives, it tries again. If admit has ended this process's own attempt in
	// favour of that connection, this process tries again too.
	if l := k.peers[rank]; l.state == linkUp {
		delete(k.peers, rank)
		if l.addr != "" {
			k.connectLocked(rank, l.addr)
		}
	}
}

// authenticate reads the hello of the initiator at the other end of c, sends the challenge, and
// checks the initiator's proof.
func (k *links) authenticate(c *admission.Conn) (wire.TCPSession, error) {
	err := c.Await() // if it fails because a peer sends its hello too late, the peer tries again
	if err == nil {
		err = c.SetDeadline(time.Now().Add(k.timeout))
	}
	if err != nil {
		return wire.TCPSession{}, fmt.Errorf("%w: %w", errHandshakeEnded, err)
	}
	s, err := k.id.receiveHello(c)
	if err != nil {
		return s, err
	}
	rank := transport.Addr(s.From)
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return s, errHandshakeEnded
	}
	if !k.recordNonceLocked(rank, s.Initiator) {
		k.mu.Unlock()
		return s, fmt.Errorf("%w: it repeats what rank %d sent", errNotMember, rank)
	}
	c.Proved()
	// The initiator makes one attempt at a time. If there was an earlier one, the initiator has
	// given it up.
	if earlier := k.inHandshake[rank]; earlier != nil {
		_ = earlier.Close()
	}
	k.inHandshake[rank] = c
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		if k.inHandshake[rank] == c {
			delete(k.inHandshake, rank)
		}
		k.mu.Unlock()
	}()
	return s, k.id.challenge(c, &s)
}

// maxNonces bounds the number of nonces that links keeps of one peer. A peer makes at most ten
// attempts per second in the long run, and none after transport.tcp.connect_timeout. So with the
// default of 30 s links keeps the nonces of all attempts.
const maxNonces = 512

// recordNonceLocked records the nonce of a valid hello from rank, and reports whether the nonce is
// new. The caller holds k.mu. Each attempt of a peer has a new nonce, so a hello with a known nonce
// comes from a process that repeats the peer's hello. Once the connection with the peer is made or
// has failed, the peer makes no attempt that a repeated hello could disturb. Then addResultLocked
// and refuse drop the peer's nonces, and recordNonceLocked records none.
func (k *links) recordNonceLocked(rank transport.Addr, nonce wire.TCPNonce) bool {
	if l := k.peers[rank]; l != nil && l.state != linkConnecting && k.nonces[rank] == nil {
		return true
	}
	nonces := k.nonces[rank]
	if slices.Contains(nonces, nonce) {
		return false
	}
	if len(nonces) == maxNonces {
		nonces = slices.Delete(nonces, 0, 1)
	}
	k.nonces[rank] = append(nonces, nonce)
	return true
}

// noteAccept records err, with which respond failed to take over a connection that a peer made; nil
// if respond succeeded. It reports whether err is not nil. If a series of failures of this host
// lasts for half of k.timeout, noteAccept makes the domain fail. That is before the attempts of the
// peers time out, which would report this rank as failed.
func (k *links) noteAccept(rank transport.Addr, err error) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	switch {
	case err == nil:
		k.failingSince = time.Time{}
	case !isHostFailure(err): // the peer's connection has ended
	case k.failingSince.IsZero() || now.Sub(k.lastFailure) > failureGap:
		k.failingSince, k.lastFailure = now, now
	case now.Sub(k.failingSince) > k.timeout/2:
		k.addResultLocked(linkResult{rank: rank, fd: -1, thisHost: true, err: err})
	default:
		k.lastFailure = now
	}
	return err != nil
}

// securityDiffers marks a peer as failed because theirs, the peer's transport.tcp.security, differs
// from this rank's. If k.peers has an entry for the peer, securityDiffers does nothing. For
// example, an attempt of this process to connect to the peer reports the difference itself.
func (k *links) securityDiffers(rank transport.Addr, theirs wire.TCPSecurity) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.peers[rank] == nil && !k.closed {
		k.peers[rank] = &link{state: linkGone}
		k.addResultLocked(linkResult{rank: rank, fd: -1, err: errSecurityDiffers(k.id.security, rank, theirs)})
	}
}

// admit returns the verdict on a connection that an authenticated peer has made. If this rank is
// leaving the job (Shutdown), admit refuses a peer with which this rank neither has nor makes a
// connection, because this rank has no output for that peer. It admits a peer that this rank is
// connecting with, because this rank may have output for the peer, and the peer's connection may
// be the one that both ranks keep.
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

// notice makes the completion queue report err as a PeerNotice, for example because a process that
// is not a member of the job has connected. Only the first call has an effect, so that such a
// process cannot flood the user with warnings.
func (k *links) notice(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.noticed && !k.closed {
		k.noticed = true
		k.addResultLocked(linkResult{rank: -1, fd: -1, err: err})
	}
}

// connect starts to connect with rank, unless the connection is made, is being made, has failed or
// is refused.
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
	go func() { // ends at the latest when ctx ends; k.close waits for it
		defer k.wg.Done()
		defer cancel()
		h := k.dial(ctx, l, rank, string(addr))
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.state != linkConnecting { // admit or refuse has ended this attempt
			if h.fd >= 0 {
				_ = unix.Close(h.fd)
			}
			return
		}
		l.state = linkUp
		if h.fd < 0 {
			l.state = linkGone
		}
		k.addResultLocked(h)
	}()
}

// dial tries to connect until one of these ends it: a verdict other than wire.TCPBusy, an error for
// which canRetry returns false, a connection that the peer made, the end of ctx, k.timeout, or a
// series of failures of this host that lasts for half of k.timeout. A peer listens before any
// process knows its address. So a refused connection (ECONNREFUSED) means that the peer has ended,
// and not that it starts late. Most other failures say nothing about the peer, so dial tries again.
func (k *links) dial(ctx context.Context, l *link, rank transport.Addr, addr string) linkResult {
	failed := func(err error) linkResult { return linkResult{rank: rank, fd: -1, err: err} }
	if err := k.dialing.Acquire(ctx, 1); err != nil {
		return failed(err)
	}
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	// failingSince is the time since which every attempt has failed because of this host. It is
	// zero if the last attempt has not failed because of this host.
	var failingSince time.Time
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		fd, verdict, protection, err := k.attempt(ctx, rank, addr)
		theirs, differs := verdict.OtherSecurity()
		wait, other := pause, (chan struct{})(nil)
		switch {
		case err == nil && verdict == wire.TCPWelcome:
			return linkResult{rank: rank, fd: fd, protection: protection}
		case err == nil && verdict == wire.TCPLeft:
			return linkResult{rank: rank, fd: -1, left: true}
		case err == nil && verdict == wire.TCPDead:
			return failed(errPeerDisconnected)
		case err == nil && differs:
			return failed(errSecurityDiffers(k.id.security, rank, theirs))
		case err == nil:
			// The verdict is wire.TCPBusy. Wait for the connection that the peer makes. If it
			// does not come, try again.
			wait, other, err = 500*time.Millisecond, l.other, errNotConnected
		case !canRetry(err):
			return failed(err)
		}
		local := isHostFailure(err)
		switch {
		case !local:
			failingSince = time.Time{}
		case failingSince.IsZero():
			failingSince = time.Now()
		case time.Since(failingSince) > k.timeout/2:
			// End before the attempts of peers time out, which would report this rank as failed.
			cancel()
		}
		if local {
			k.gate.Evict() // frees a descriptor, if a process outside the job holds a silent connection
		}
		select {
		case <-other:
			return failed(err) // the peer's connection is up, so connectLocked drops this result
		case <-time.After(wait):
		case <-ctx.Done():
		}
		if k.dialing.Acquire(ctx, 1) != nil {
			h := failed(fmt.Errorf("no connection within %v (transport.tcp.connect_timeout): %w", k.timeout, err))
			if local {
				h.thisHost, h.err = true, err
			}
			return h
		}
	}
}

// canRetry reports whether another attempt to connect may succeed after err.
func canRetry(err error) bool {
	return !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, transport.ErrProtocol) && !errors.Is(err, errNotProven)
}

// attempt makes one attempt to connect with rank at addr. The caller has acquired k.dialing, and
// attempt releases it. attempt returns a connected descriptor, which the caller must close, if the
// verdict is wire.TCPWelcome; otherwise -1.
func (k *links) attempt(ctx context.Context, rank transport.Addr, addr string) (int, wire.TCPVerdict, *wire.TCPProtection, error) {
	answered, done := k.releaseTimer()
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
	// Duplicate the descriptor before the handshake. After the verdict the responder counts on
	// the connection, so nothing may fail.
	fd, err := detach(c)
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

// releaseTimer starts a timer that releases k.dialing, which the caller has acquired. The timer
// fires silentTime from now, or, if the caller calls answered before that, answerTime after that
// call. If the caller calls done, the timer stops, and k.dialing is released at once.
func (k *links) releaseTimer() (answered, done func()) {
	release := sync.OnceFunc(func() { k.dialing.Release(1) })
	timer := time.AfterFunc(silentTime, release)
	answered = func() { timer.Reset(answerTime) }
	done = func() {
		timer.Stop()
		release()
	}
	return answered, done
}

// detach returns a duplicate of c's descriptor that Go's netpoller does not poll. The caller closes
// the duplicate.
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
