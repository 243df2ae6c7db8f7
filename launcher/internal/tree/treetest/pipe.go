// Package treetest simulates hosts: streams in memory with a latency, and process managers without
// ranks. Tests of the tree and launcher/internal/tree/treebench use it.
package treetest

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Buffer is how many bytes may be on the way in one direction of a Pipe before Write blocks, like
// the size of a socket's buffer.
const Buffer = 128 << 10

var (
	errClosed = errors.New("stream is closed")
	errCut    = errors.New("stream was cut")
)

// Pipe is a connection. Tests can stall, break or cut it.
type Pipe struct {
	Parent, Child *Stream
}

// Stream is one end of a Pipe.
type Stream struct {
	in, out *half
	// Why is the result of Cause.
	Why error
}

// half is one direction of a Pipe.
type half struct {
	latency time.Duration

	mu      sync.Mutex // guards the following fields, except bytes
	change  sync.Cond
	chunks  []chunk   // bytes that were written and not read yet
	size    int       // number of bytes in chunks
	stalled bool      // Read blocks even if bytes have arrived
	eof     time.Time // when the reader gets io.EOF; zero: the writer has not closed the stream
	rerr    error     // not nil: every Read fails with it
	werr    error     // not nil: every Write fails with it

	bytes atomic.Int64
}

type chunk struct {
	at   time.Time
	data []byte
}

// NewPipe makes a pipe whose bytes arrive after latency.
func NewPipe(latency time.Duration) *Pipe {
	down, up := newHalf(latency), newHalf(latency)
	return &Pipe{Parent: &Stream{in: up, out: down}, Child: &Stream{in: down, out: up}}
}

func newHalf(latency time.Duration) *half {
	h := &half{latency: latency}
	h.change.L = &h.mu
	return h
}

func (h *half) set(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	h.change.Broadcast()
}

// waitUntil waits for a change, at most until the time at. The caller holds mu.
func (h *half) waitUntil(at time.Time) {
	t := time.AfterFunc(time.Until(at), func() { h.set(func() {}) })
	h.change.Wait()
	t.Stop()
}

// Read reads bytes that have arrived. It blocks until there are some, or the stream has ended.
func (s *Stream) Read(p []byte) (int, error) {
	h := s.in
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		now := time.Now()
		switch {
		case h.rerr != nil:
			return 0, h.rerr
		case h.stalled:
			h.change.Wait()
		case len(h.chunks) > 0 && !h.chunks[0].at.After(now):
			n := copy(p, h.chunks[0].data)
			if h.chunks[0].data = h.chunks[0].data[n:]; len(h.chunks[0].data) == 0 {
				h.chunks = h.chunks[1:]
			}
			h.size -= n
			h.change.Broadcast()
			return n, nil
		case len(h.chunks) > 0:
			h.waitUntil(h.chunks[0].at)
		case !h.eof.IsZero() && !h.eof.After(now):
			return 0, io.EOF
		case !h.eof.IsZero():
			h.waitUntil(h.eof)
		default:
			h.change.Wait()
		}
	}
}

// Write sends p. It blocks while the buffer is full.
func (s *Stream) Write(p []byte) (int, error) {
	h := s.out
	h.mu.Lock()
	defer h.mu.Unlock()
	sent := 0
	for sent < len(p) {
		switch {
		case h.werr != nil:
			return sent, h.werr
		case h.size >= Buffer:
			h.change.Wait()
			continue
		}
		n := min(len(p)-sent, Buffer-h.size)
		h.chunks = append(h.chunks, chunk{time.Now().Add(h.latency), append([]byte(nil), p[sent:sent+n]...)})
		h.size += n
		h.bytes.Add(int64(n))
		sent += n
		h.change.Broadcast()
	}
	return sent, nil
}

// Close ends the stream. The other side reads the bytes on the way to it, and then io.EOF. The
// bytes on the way to this side are lost.
func (s *Stream) Close() error {
	s.in.set(func() {
		s.in.rerr, s.in.werr = errClosed, io.ErrClosedPipe
		s.in.chunks, s.in.size = nil, 0
	})
	s.out.set(func() {
		if s.out.eof.IsZero() {
			s.out.eof = time.Now().Add(s.out.latency)
		}
		s.out.werr = errClosed
	})
	return nil
}

// Cause returns Why.
func (s *Stream) Cause() error { return s.Why }

// Bytes returns the number of bytes written to this end.
func (s *Stream) Bytes() int64 { return s.out.bytes.Load() }

// Cut makes all reads and writes of both ends fail from now on. Bytes on the way are lost.
func (p *Pipe) Cut() {
	for _, h := range []*half{p.Parent.in, p.Parent.out} {
		h.set(func() { h.rerr, h.werr, h.chunks, h.size = errCut, errCut, nil, 0 })
	}
}

// StallDown stops the delivery of what the parent sends, or continues it.
func (p *Pipe) StallDown(stalled bool) {
	h := p.Child.in
	h.set(func() { h.stalled = stalled })
}

// StallUp stops the delivery of what the child sends, or continues it.
func (p *Pipe) StallUp(stalled bool) {
	h := p.Parent.in
	h.set(func() { h.stalled = stalled })
}

// BreakDown makes all further writes of the parent fail. What the child sends still arrives.
func (p *Pipe) BreakDown() {
	h := p.Parent.out
	h.set(func() { h.werr = errCut })
}

// Stall stops the delivery in both directions, or continues it.
func (p *Pipe) Stall(stalled bool) {
	for _, h := range []*half{p.Parent.in, p.Parent.out} {
		h.set(func() { h.stalled = stalled })
	}
}
