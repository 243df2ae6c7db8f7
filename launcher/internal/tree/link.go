package tree

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

const (
	readBuffer = 4 << 10   // bytes of the reader's buffer; larger reads bypass it
	batchBytes = maxOutput // number of bytes of encoded messages after which they are written
	// beats is the number of ticks in a heartbeat. After the first bytes, a link on which no bytes
	// come for as many ticks is lost.
	beats = 4
)

var (
	errNoBye    = errors.New("it did not end in time")
	errAgentEnd = errors.New("its agent has ended")
)

// link carries messages over a stream until one side ends the stream, a message is invalid, nothing
// can be sent, or no bytes come for too long. It sends and receives heartbeats (Beat) itself.
//
//	        read ──► got, message by message, in order
//	stream ◄┤
//	        write ◄── send
//
// When its goroutines have ended and the stream is closed, it calls its field ended.
type link struct {
	stream      Stream
	period      time.Duration // time between two ticks
	maxSilent   int           // number of ticks without bytes after which the link is lost
	got         func(m proto.Message)
	ended       func(err error)
	flowControl *fileFlowControl
	count       *counters

	gotBytes  atomic.Bool // bytes were received since the last tick
	reading   atomic.Bool // the goroutine read waits for bytes
	paused    atomic.Bool // a Signal with SIGTSTP has come: gorun is about to be stopped
	sentBytes atomic.Bool // bytes were sent since the last tick

	// silent is the number of consecutive ticks at which no bytes had come. Such a tick is not
	// counted while paused is set or reading is not set. Only tick uses silent.
	silent int

	wake chan struct{} // capacity 1: wakes the goroutine write
	left atomic.Int32  // number of goroutines of the link that have not ended

	mu        sync.Mutex // guards the following fields
	urgent    []*frame
	replies   int         // number of Replies in urgent
	releases  map[int]int // by group: number of Releases in urgent
	states    map[stateKey]*frame
	bulk      []*frame
	files     ahead // bytes of FilePart in bulk
	flow      fileFlow
	beat      bool  // a Beat must be sent
	busy      bool  // the goroutine write has taken a batch from the queues and not written all of it
	writeErr  error // error of a Write to the stream; nil: none has failed
	lateTicks int   // number of ticks since writeErr was set
	err       error // why the link has ended
	timer     *time.Timer
}

// stateKey is what a State is about: a group on a host.
type stateKey struct{ index, group int }

func newLink(s Stream, l proto.Launch, g *fileFlowControl, c *counters) *link {
	return &link{
		stream: s, period: l.Heartbeat / beats, flowControl: g, count: c, wake: make(chan struct{}, 1),
		maxSilent: beats * int((max(l.Timeout, l.Heartbeat)+l.Heartbeat-1)/l.Heartbeat),
	}
}

// start starts the link. Messages for which send was called before are written first.
func (l *link) start() {
	l.left.Store(3) // read, write, and the goroutine in fail that closes the stream
	l.mu.Lock()
	l.timer = time.AfterFunc(l.period, l.tick) // fail stops it
	l.mu.Unlock()
	go l.read()  // ends when fail closes the stream
	go l.write() // ends after fail
}

// fail ends a link that was started. The function l.ended gets the error of the first call. Later
// calls do nothing.
func (l *link) fail(err error) {
	l.mu.Lock()
	first := l.err == nil
	if first {
		l.err = err
		l.clearQueues()
		if l.timer != nil {
			l.timer.Stop()
		}
	}
	l.mu.Unlock()
	if first {
		l.signal()
		go func() { // ends when Close returns, which may take a while; goroutineEnded counts it
			defer l.goroutineEnded()
			_ = l.stream.Close() // the stream is no longer used
		}()
	}
}

// done reports whether the link has ended or is ending.
func (l *link) done() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil
}

// tick runs once in each period. It checks whether bytes have come since the last tick, and makes
// the goroutine write send a Beat if no bytes were sent since then. After the first bytes, it
// lowers maxSilent to beats. It counts ticks instead of reading the clock: if this process was
// stopped for a while, it must not conclude afterwards that all others were silent.
func (l *link) tick() {
	switch {
	case l.gotBytes.Swap(false):
		l.silent, l.maxSilent = 0, beats
	case l.paused.Load():
	case l.reading.Load():
		l.silent++
	}
	if l.silent >= l.maxSilent {
		l.fail(fmt.Errorf("no sign of life for %v", l.period*time.Duration(l.maxSilent)))
		return
	}
	if err := l.writeFailed(); err != nil {
		l.fail(err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	if !l.sentBytes.Swap(false) {
		l.beat = true
		l.signal()
	}
	l.timer.Reset(l.period)
}

// writeFailed returns an error if a Write to the stream has failed and the other side has since had
// beats ticks of time to send its last messages.
func (l *link) writeFailed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.writeErr == nil {
		return nil
	}
	if l.lateTicks++; l.lateTicks <= beats {
		return nil
	}
	return fmt.Errorf("nothing can be sent: %w", l.writeErr)
}

// Read reads from the stream. The goroutine read uses the link as an io.Reader, so that Read can
// record that bytes have come.
func (l *link) Read(p []byte) (int, error) {
	l.reading.Store(true)
	n, err := l.stream.Read(p)
	if n > 0 {
		l.gotBytes.Store(true)
	}
	l.reading.Store(false)
	l.count.bytesIn.Add(int64(n))
	return n, err
}

func (l *link) read() {
	defer l.goroutineEnded()
	r := bufio.NewReaderSize(l, readBuffer)
	for {
		m, err := proto.Read(r)
		if err != nil {
			l.fail(l.readError(err))
			return
		}
		if _, ok := m.(proto.Beat); ok {
			continue
		}
		l.count.in.Add(1)
		switch m := m.(type) {
		case proto.FileCredit:
			if err := l.gotFileCredit(m.Bytes); err != nil {
				l.fail(err)
				return
			}
			continue
		case proto.Signal:
			// gorun itself stops a little later. When it continues, it sends SIGCONT.
			if s := syscall.Signal(m.Signal); s == syscall.SIGTSTP || s == syscall.SIGCONT {
				l.paused.Store(s == syscall.SIGTSTP)
			}
		case proto.End:
			l.paused.Store(false)
		}
		l.got(m)
		if p, ok := m.(proto.FilePart); ok {
			if err := l.countReceived(len(p.Data)); err != nil {
				l.fail(err)
				return
			}
		}
	}
}

// readError returns the error with which the link ends if [proto.Read] has returned err: err itself
// if a frame was invalid or the link has already ended, else the reason that the stream gives by
// Cause, else err.
func (l *link) readError(err error) error {
	if errors.Is(err, proto.ErrFrame) || l.done() {
		return err
	}
	if cause := l.stream.Cause(); cause != nil {
		return cause
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the connection ended: %w", err)
	}
	return err
}

func (l *link) write() {
	defer l.goroutineEnded()
	for {
		batch, beat, ok := l.next()
		if !ok {
			return
		}
		pooled := buffers.Get().(*[]byte)
		buf := (*pooled)[:0]
		var err error
		if beat {
			buf, _ = proto.Append(buf, proto.Beat{}) // always fits
		}
		for i := 0; i < len(batch) && err == nil; i++ {
			if buf, err = batch[i].append(buf); err != nil {
				l.fail(err)
				return
			}
			l.count.out.Add(1)
			if len(buf) >= batchBytes && i < len(batch)-1 {
				err = l.put(buf)
				buf = buf[:0]
			}
		}
		if err == nil {
			err = l.put(buf)
		}
		l.written(batch, err)
		if cap(buf) <= 4*batchBytes {
			*pooled = buf
			buffers.Put(pooled)
		}
	}
}

// buffers holds the memory for encoded frames. Most links are idle most of the time and need none.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

func (l *link) put(buf []byte) error {
	l.sentBytes.Store(true)
	n, err := l.stream.Write(buf)
	l.sentBytes.Store(true)
	l.count.bytesOut.Add(int64(n))
	return err
}

// goroutineEnded is called at the end of each goroutine of the link. Its last call calls l.ended.
func (l *link) goroutineEnded() {
	if l.left.Add(-1) == 0 {
		l.ended(l.err) // no goroutine writes err any more
	}
}

// counters counts messages and bytes over all links of a node.
type counters struct {
	in, out, bytesIn, bytesOut atomic.Int64

	// queued counts the bytes that wait in the queues bulk of links, and the bytes of Output that
	// wait in sources for credit. peak is the largest value of queued so far.
	queued, peak atomic.Int64
}

func (c *counters) queue(n int) {
	now := c.queued.Add(int64(n))
	for {
		peak := c.peak.Load()
		if now <= peak || c.peak.CompareAndSwap(peak, now) {
			return
		}
	}
}
