package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/internal/wire"
	"golang.org/x/sys/unix"
)

// errClosed is the error of calls after Finalize.
var errClosed = errors.New("the launcher's control channel is closed")

// lineConn sends and receives lines over a blocking stream descriptor. Another process, such as a
// shell that has started this one, may share the open file, so lineConn never makes it nonblocking.
// recv waits in poll(2) for the descriptor, and for a sys.Waker that fires when the context ends.
//
// Only one goroutine at a time may call recv. Any goroutine may call send.
type lineConn struct {
	in []byte // bytes that were read and not returned by recv yet

	mu     sync.Mutex // held by send and close, so that close waits until a send has ended
	fd     int
	closed bool
}

// send writes one line. It waits at most limit for room; 0: no limit.
func (c *lineConn) send(m wire.PMIMessage, limit time.Duration) error {
	line, err := m.Append(make([]byte, 0, wire.PMIMaxLine))
	if err != nil {
		return err
	}
	return c.write(line, limit)
}

// write writes one line or several. It waits at most limit for room; 0: no limit.
func (c *lineConn) write(line []byte, limit time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errClosed
	}
	for len(line) > 0 {
		if limit > 0 {
			p := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLOUT}}
			if n, err := unix.Poll(p, int(limit.Milliseconds())); err == nil && n == 0 {
				return fmt.Errorf("the launcher does not read: %w", context.DeadlineExceeded)
			}
		}
		n, err := unix.Write(c.fd, line)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) { // another process has made the descriptor nonblocking
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLOUT}}, 1000)
			continue
		}
		if err != nil {
			return fmt.Errorf("write to the launcher: %w", err)
		}
		line = line[n:]
	}
	return nil
}

// recv returns the next line. It blocks until the line has come or ctx ends.
func (c *lineConn) recv(ctx context.Context) (wire.PMIMessage, error) {
	for {
		line, rest, ok, err := wire.PMILine(c.in)
		if err != nil {
			return wire.PMIMessage{}, err
		}
		if ok {
			m, err := wire.ParsePMI(line)
			c.in = append(c.in[:0], rest...)
			return m, err
		}
		if err := c.wait(ctx); err != nil {
			return wire.PMIMessage{}, err
		}
		var buf [wire.PMIMaxLine]byte
		n, err := unix.Read(c.fd, buf[:])
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		case err != nil:
			return wire.PMIMessage{}, fmt.Errorf("read from the launcher: %w", err)
		case n == 0:
			return wire.PMIMessage{}, fmt.Errorf("the launcher closed the control channel: %w", io.ErrUnexpectedEOF)
		default:
			c.in = append(c.in, buf[:n]...)
		}
	}
}

// wait blocks until the descriptor is readable or ctx ends.
func (c *lineConn) wait(ctx context.Context) error {
	p := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}
	if ctx.Done() != nil {
		if err := ctx.Err(); err != nil {
			return err
		}
		cancel, err := sys.NewWaker()
		if err != nil {
			return err
		}
		defer cancel.Close()
		woken := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			defer close(woken)
			cancel.Wake()
		})
		defer func() {
			if !stop() {
				<-woken // otherwise Wake could write to a descriptor that is closed and used again
			}
		}()
		p = append(p, unix.PollFd{Fd: int32(cancel.FD()), Events: unix.POLLIN})
	}
	for {
		_, err := unix.Poll(p, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		if p[0].Revents != 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// close closes the descriptor. The caller makes sure that no recv runs.
func (c *lineConn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		_ = unix.Close(c.fd)
	}
}
