// Package admission accepts connections and bounds the number of connections whose
// initiators have not yet proved that they belong to the job. Any process that reaches a
// port can open connections and send nothing. Such connections must not keep out the
// processes of the job.
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

// SilentTime is how long a connection may stay open if nothing arrives on it. If other
// connections wait for room, it is also how long a connection that has sent its first
// message keeps its place.
const SilentTime = time.Second

const (
	retryTime = 10 * time.Millisecond  // the pause after a failed Accept
	startTime = 100 * time.Millisecond // Evict does not close a younger connection, because its first bytes may be on the way
)

// ErrSilent reports that nothing arrived on a connection within SilentTime.
var ErrSilent = fmt.Errorf("nothing came from it within %v", SilentTime)

// Gate accepts the connections of a listener and runs the handshake of each in a
// goroutine of its own.
//
//	Accept ──► silent ──── Heard ───► heard ──── Proved ───► not counted
//	             │                      │
//	             └─ closed at need,     └─ closed at need after SilentTime
//	                the oldest first
//
// If the process has no descriptor left, the gate closes a spare descriptor that it holds
// for this case. So the gate can still accept, and its owner learns which peer connects
// and can report the lack of descriptors.
type Gate struct {
	listener *net.TCPListener
	limit    int
	handle   func(*Conn)
	failed   func(error)
	running  sync.WaitGroup // counts the goroutines of accept and of handle
	stop     chan struct{}  // closed by Close

	mu      sync.Mutex // guards what follows
	pending []*Conn    // silent and heard, in order of arrival
	room    chan struct{}
	spare   *os.File
	closed  bool
}

// Conn is an accepted connection. Its handler closes it or keeps it.
type Conn struct {
	*net.TCPConn
	gate  *Gate
	since time.Time
	heard atomic.Bool
}

// Serve accepts connections from l until Close. At any time at most limit connections are
// unproved, and they use at most a quarter of the process's limit of descriptors. handle
// owns the connection that it gets. If Accept fails, Serve calls failed, which may be nil.
func Serve(l *net.TCPListener, limit int, handle func(*Conn), failed func(error)) *Gate {
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil {
		limit = max(1, min(limit, int(min(files.Cur/4, 1<<20))))
	}
	g := &Gate{listener: l, limit: limit, handle: handle, failed: failed, stop: make(chan struct{}), room: make(chan struct{}, 1)}
	g.keepSpare()
	g.running.Add(1)
	go g.accept() // ends with the listener; Wait waits for it
	return g
}

// Close closes the listener and all unproved connections. The handlers of other
// connections continue. Close is idempotent.
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

// Wait blocks until all handlers have returned. The caller calls Close first.
func (g *Gate) Wait() { g.running.Wait() }

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
		go func() { // ends when handle does; Wait waits for it
			defer g.running.Done()
			defer g.keepSpare()
			defer c.Proved()
			g.handle(c)
		}()
	}
}

// sleep waits for d, or until wake delivers a value. It returns false if the gate is
// closed.
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

// enter waits until there is room for c. It returns false if the gate is closed.
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

// Evict closes the oldest connection on which nothing has arrived, to free its descriptor.
func (g *Gate) Evict() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.evictSilentLocked(startTime)
}

// evictSilentLocked closes the oldest silent connection that is older than spare.
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

// evictLocked closes one connection to make room, or returns the time until it may close
// one.
func (g *Gate) evictLocked() (wait time.Duration) {
	if g.evictSilentLocked(0) {
		return 0
	}
	if wait = time.Until(g.pending[0].since.Add(SilentTime)); wait <= 0 {
		g.dropLocked(0)
	}
	return wait
}

func (g *Gate) dropLocked(i int) {
	_ = g.pending[i].Close()
	g.pending = append(g.pending[:i:i], g.pending[i+1:]...)
}

// keepSpare opens the spare descriptor.
func (g *Gate) keepSpare() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.spare == nil && !g.closed {
		if f, err := os.Open(os.DevNull); err == nil {
			g.spare = f
		}
	}
}

// giveSpare closes the spare descriptor for a connection that waits in the backlog. It
// returns false if no connection waits (Accept also fails then if there is no
// descriptor), or if there is no spare descriptor.
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

// callerWaits reports whether a connection waits in the backlog.
func (g *Gate) callerWaits() bool {
	raw, err := g.listener.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	err = raw.Control(func(fd uintptr) { n, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) })
	return err == nil && n > 0
}

// Await blocks until bytes or the end of the stream have arrived, and reads nothing. If
// nothing arrives within SilentTime, Await returns [ErrSilent]. If the gate has closed the
// connection to make room, it returns net.ErrClosed. After Await, reads have no deadline.
func (c *Conn) Await() error {
	raw, err := c.SyscallConn()
	if err == nil {
		err = c.SetReadDeadline(time.Now().Add(SilentTime))
	}
	if err == nil {
		err = raw.Read(peek)
	}
	if err != nil && c.readable() { // the bytes arrived in time, but this process ran late
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

// Heard records that a first message has arrived. From then on the gate does not close the
// connection before SilentTime has passed since its arrival.
func (c *Conn) Heard() { c.heard.Store(true) }

// Proved records that the other end belongs to the job. The gate no longer counts the
// connection. Proved is idempotent.
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

// readable reports whether unread bytes, the end of the stream, or an error has arrived.
func (c *Conn) readable() bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false // this process has closed it
	}
	came := false
	return raw.Control(func(fd uintptr) { came = peek(fd) }) == nil && came
}

func peek(fd uintptr) bool {
	var b [1]byte
	_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
}
