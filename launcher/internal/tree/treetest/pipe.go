// Package treetest is hosts that are not there: streams in memory that take their
// time, and crews without ranks. Tests of the tree and launcher/internal/tree/treebench use it.
package treetest

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Buffer is how many bytes are on the way on a stream before Write blocks, as in a
// socket.
const Buffer = 128 << 10

var (
	errClosed = errors.New("stream is closed")
	errCut    = errors.New("stream was cut")
)

// Pipe is a connection: two streams, and what can happen to it.
type Pipe struct {
	Parent, Child *Stream
}

// Stream is an end of a Pipe.
type Stream struct {
	in, out *half
	// Why is what Cause says.
	Why error
}

// half is one direction.
type half struct {
	latency time.Duration

	mu      sync.Mutex // guards what follows
	change  sync.Cond
	chunks  []chunk
	size    int
	stalled bool
	eof     time.Time // when the reader sees its end; zero: the writer has not closed
	rerr    error     // of Read, at once
	werr    error     // of Write, at once

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

// waitUntil waits for a change, or for a time.
func (h *half) waitUntil(at time.Time) {
	t := time.AfterFunc(time.Until(at), func() { h.set(func() {}) })
	h.change.Wait()
	t.Stop()
}

// Read reads what has arrived.
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

// Write sends p, and blocks while the buffer is full.
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

// Close ends the stream; the other side reads what is on the way, and then its end.
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

// Cause is Why.
func (s *Stream) Cause() error { return s.Why }

// Bytes is how many were written to this end.
func (s *Stream) Bytes() int64 { return s.out.bytes.Load() }

// Cut ends both sides at once; what is on the way is lost.
func (p *Pipe) Cut() {
	for _, h := range []*half{p.Parent.in, p.Parent.out} {
		h.set(func() { h.rerr, h.werr, h.chunks, h.size = errCut, errCut, nil, 0 })
	}
}

// StallDown has nothing of what the parent sends arrive any more, or again.
func (p *Pipe) StallDown(stalled bool) {
	h := p.Child.in
	h.set(func() { h.stalled = stalled })
}

// StallUp has nothing of what the child sends arrive any more, or again.
func (p *Pipe) StallUp(stalled bool) {
	h := p.Parent.in
	h.set(func() { h.stalled = stalled })
}

// BreakDown has all fail that the parent sends from now on; what the child sends
// arrives.
func (p *Pipe) BreakDown() {
	h := p.Parent.out
	h.set(func() { h.werr = errCut })
}

// Stall has nothing arrive any more, or again.
func (p *Pipe) Stall(stalled bool) {
	for _, h := range []*half{p.Parent.in, p.Parent.out} {
		h.set(func() { h.stalled = stalled })
	}
}
