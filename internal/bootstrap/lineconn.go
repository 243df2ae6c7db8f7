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

// errClosed is what calls after Finalize get.
var errClosed = errors.New("the launcher's control channel is closed")

// lineConn speaks lines over a blocking stream descriptor. The descriptor may
// be shared with other processes (a shell that started us), so it is never
// made non-blocking; waiting is done in poll(2), beside a Waker for
// cancellation.
//
// One goroutine at a time may call roundTrip; send may be called by any.
type lineConn struct {
	in []byte // read, not yet a whole line

	mu     sync.Mutex // guards fd against being closed while it is written to
	fd     int
	closed bool
}

// send writes one line, waiting at most limit for room; 0: for ever.
func (c *lineConn) send(m wire.PMIMessage, limit time.Duration) error {
	line, err := m.Append(make([]byte, 0, wire.PMIMaxLine))
	if err != nil {
		return err
	}
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
		if errors.Is(err, unix.EAGAIN) { // somebody else made it non-blocking
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

// recv returns the next line.
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
				<-woken // or it would write to a descriptor that is somebody else's by then
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

// close ends the channel; no roundTrip may be under way.
func (c *lineConn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		_ = unix.Close(c.fd)
	}
}
