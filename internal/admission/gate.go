// Package admission accepts tcp connections, and bounds the number of those whose initiators have
// not yet proved that they belong to the job. The bound is necessary because any process that
// reaches a port of the job can open connections and send nothing. Such connections must not keep
// out the processes of the job.
package admission

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// SilentTime is how long Conn.Await waits for the first bytes of a connection. If a new connection
// needs room and something has arrived on all others, SilentTime is also the age from which on the
// gate may close the oldest of them.
const SilentTime = time.Second

const (
	retryTime = 10 * time.Millisecond // pause after an Accept that has failed
	// startTime is the age below which Evict does not close a connection, because its first bytes
	// may still be on their way.
	startTime = 100 * time.Millisecond
)

// ErrSilent is the error of Conn.Await if nothing has arrived on the connection within SilentTime.
var ErrSilent = fmt.Errorf("nothing came from it within %v", SilentTime)

// Gate accepts the connections of a listener and calls a function, handle, for each of them on a
// goroutine of its own. handle runs the handshake. A connection is silent as long as its handler
// has not called Conn.Heard and it has no unread bytes; otherwise it is heard. When the handler
// calls Conn.Proved or returns, the connection no longer counts toward the gate's limit:
//
//	Accept ──► silent ──── Heard ───► heard ──── Proved ───► not counted
//	             │                      │
//	             └─ closed if others    └─ closed after SilentTime if others
//	                need room, the         need room
//	                oldest first
//
// If the gate has reached its limit, a new connection needs room: the gate closes a silent
// connection or, if there is none, waits until it may close a heard one or a connection no longer
// counts.
//
// A process may have no free file descriptor for a new connection. For this case the gate holds a
// spare descriptor, which it closes to accept the connection. So the handler can read which peer
// connects, and can report the lack of descriptors.
type Gate struct {
	listener *net.TCPListener
	limit    int            // maximum length of pending
	handle   func(*Conn)    // runs the handshake of a connection
	failed   func(error)    // called with each error of Accept; nil: the gate drops these errors
	running  sync.WaitGroup // counts the goroutine of accept, and those of handle
	stop     chan struct{}  // closed by Close; ends a wait of [Gate.sleep]

	mu sync.Mutex // guards what follows
	// pending holds the connections that count toward limit, silent and heard ones, in the order of
	// their arrival.
	pending []*Conn
	room    chan struct{} // gets a value when Proved is called; has room for one
	spare   *os.File      // the spare descriptor; nil: the gate has closed it, or could not open it
	closed  bool          // Close was called, so the gate accepts no more connections
}

// Conn is a connection that a Gate has accepted. Its handler closes it, or keeps it after the
// handshake.
type Conn struct {
	*net.TCPConn
	gate  *Gate
	since time.Time   // when the connection was accepted
	heard atomic.Bool // Heard was called
}

// Serve starts a goroutine that accepts connections from l until Close is called, and returns at
// once. At any time at most limit of the accepted connections are not proved. Serve lowers limit to
// a quarter of the process's limit of file descriptors, but not below 1. handle runs on a goroutine
// of its own for each connection, and owns the connection. The accepting goroutine calls failed
// with each error of Accept, except after Close; failed may be nil.
func Serve(l *net.TCPListener, limit int, handle func(*Conn), failed func(error)) *Gate {
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil {
		limit = max(1, min(limit, int(min(files.Cur/4, 1<<20))))
	}
	g := &Gate{listener: l, limit: limit, handle: handle, failed: failed, stop: make(chan struct{}), room: make(chan struct{}, 1)}
	g.keepSpare()
	g.running.Add(1)
	go g.accept() // ends when Close closes the listener; Wait waits for it
	return g
}

// Close closes the listener, and all connections that are not proved. Handlers of other connections
// continue. Close is idempotent, and does not wait for handlers.
func (g *Gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	g.closed = true
	close(g.stop)
	_ = g.listener.Close()
	for _, c := range g.pending {
		_ = c.Close()
	}
	g.closeSpareLocked()
}

// Wait blocks until all handlers have returned, and the gate's own goroutine has ended. The caller
// calls Close before.
func (g *Gate) Wait() { g.running.Wait() }

// accept is the goroutine of the gate: it accepts connections and starts their handlers, until
// Close is called.
func (g *Gate) accept() {
	defer g.running.Done()
	for {
		g.keepSpare()
		conn, err := g.listener.AcceptTCP()
		if lacksDescriptors(err) && g.giveSpare() {
			conn, err = g.listener.AcceptTCP()
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			if g.failed != nil {
				g.failed(err)
			}
			if !g.sleep(retryTime, nil) {
				return
			}
			continue
		}
		c := &Conn{TCPConn: conn, gate: g, since: time.Now()}
		if !g.enter(c) {
			_ = conn.Close()
			return
		}
		go func() { // ends when handle returns; Wait waits for it
			defer g.running.Done()
			defer g.keepSpare()
			defer c.Proved()
			g.handle(c)
		}()
	}
}

// sleep blocks for the time d, or until wake delivers a value. It returns false if the gate is
// closed before that.
func (g *Gate) sleep(d time.Duration, wake <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-wake:
	case <-g.stop:
		return false
	}
	return true
}

// enter adds c to the connections that are not proved. If there is no room, enter waits for room,
// or closes another connection. It returns false if the gate is closed.
func (g *Gate) enter(c *Conn) bool {
	for {
		g.mu.Lock()
		if g.closed {
			g.mu.Unlock()
			return false
		}
		var wait time.Duration
		if len(g.pending) >= g.limit {
			wait = g.evictLocked()
		}
		if wait <= 0 {
			g.pending = append(g.pending, c)
			g.running.Add(1)
			g.mu.Unlock()
			return true
		}
		g.mu.Unlock()
		if !g.sleep(wait, g.room) {
			return false
		}
	}
}

// Evict closes the oldest silent connection, if it is older than startTime. A caller that needs a
// file descriptor calls it.
func (g *Gate) Evict() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.evictSilentLocked(startTime)
}

// evictSilentLocked closes the oldest silent connection, if it is at least as old as spare. It
// reports whether it has closed one.
func (g *Gate) evictSilentLocked(spare time.Duration) bool {
	for i, c := range g.pending {
		if time.Since(c.since) < spare {
			break
		}
		if !c.heard.Load() && !c.readable() {
			g.dropLocked(i)
			return true
		}
	}
	return false
}

// evictLocked closes one connection to make room: the oldest silent one or, if there is none, the
// oldest one, if it is older than SilentTime. If it closes none, it returns the time until the
// oldest one is older than SilentTime.
func (g *Gate) evictLocked() (wait time.Duration) {
	if g.evictSilentLocked(0) {
		return 0
	}
	if wait = time.Until(g.pending[0].since.Add(SilentTime)); wait <= 0 {
		g.dropLocked(0)
	}
	return wait
}

// dropLocked closes the connection i of pending, and removes it from pending.
func (g *Gate) dropLocked(i int) {
	_ = g.pending[i].Close()
	g.pending = append(g.pending[:i:i], g.pending[i+1:]...)
}

// keepSpare opens the spare descriptor, if it is not open and the gate is not closed.
func (g *Gate) keepSpare() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.spare == nil && !g.closed {
		if f, err := os.Open(os.DevNull); err == nil {
			g.spare = f
		}
	}
}

// giveSpare runs after Accept has failed for lack of a file descriptor. It closes the spare
// descriptor, so that the next Accept succeeds, and returns true. It returns false if no connection
// waits in the listener's backlog: without a free descriptor, Accept fails even then. It also
// returns false if there is no spare descriptor; then it closes the oldest silent connection that
// is older than startTime, so that a descriptor becomes free.
func (g *Gate) giveSpare() bool {
	if !g.callerWaits() {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.spare == nil {
		g.evictSilentLocked(startTime)
		return false
	}
	g.closeSpareLocked()
	return true
}

func (g *Gate) closeSpareLocked() {
	if g.spare != nil {
		_ = g.spare.Close()
		g.spare = nil
	}
}

func lacksDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// callerWaits reports whether a connection waits in the listener's backlog.
func (g *Gate) callerWaits() bool {
	raw, err := g.listener.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	err = raw.Control(func(fd uintptr) { n, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) })
	return err == nil && n > 0
}

// Await blocks until a read would return at once: with bytes, at the end of the stream, or with an
// error. It reads nothing. If nothing arrives within SilentTime, Await returns [ErrSilent]. If the
// gate has closed the connection, Await returns net.ErrClosed. After Await has returned nil, reads
// of c have no deadline.
func (c *Conn) Await() error {
	raw, err := c.SyscallConn()
	if err == nil {
		err = c.SetReadDeadline(time.Now().Add(SilentTime))
	}
	if err == nil {
		err = raw.Read(peek)
	}
	// If bytes are here, the deadline has passed only because this process got no core.
	if err != nil && c.readable() {
		err = nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ErrSilent
	}
	if err != nil {
		return err
	}
	return c.SetReadDeadline(time.Time{})
}

// Heard records that the initiator's first message has arrived: the connection is no longer silent.
// From then on the gate closes it, to make room, only if it is older than SilentTime. The handler
// calls Heard.
func (c *Conn) Heard() { c.heard.Store(true) }

// Proved records that the initiator has proved that it belongs to the job. From then on the gate
// does not count the connection, and does not close it. The handler calls Proved; the gate calls it
// when the handler returns. Proved is idempotent.
func (c *Conn) Proved() {
	g := c.gate
	g.mu.Lock()
	for i, p := range g.pending {
		if p == c {
			g.pending = append(g.pending[:i:i], g.pending[i+1:]...)
			break
		}
	}
	g.mu.Unlock()
	select {
	case g.room <- struct{}{}:
	default:
	}
}

// readable reports whether a read of the connection would return at once: with bytes, at the end of
// the stream, or with an error. It returns false if this process has closed the connection.
func (c *Conn) readable() bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false // this process has closed the connection
	}
	came := false
	return raw.Control(func(fd uintptr) { came = peek(fd) }) == nil && came
}

// peek reports whether a read of the socket fd would return at once, without reading anything.
func peek(fd uintptr) bool {
	var b [1]byte
	_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
}
