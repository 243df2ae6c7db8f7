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
	readBuffer = 4 << 10 // large data goes past it
	batchBytes = maxOutput
	beats      = 4 // ticks in a heartbeat, and ticks without a sign of life that are too many
)

var (
	errNoBye    = errors.New("it did not end in time")
	errAgentEnd = errors.New("its agent has ended")
)

// link carries messages over a stream until one side ends it, or is silent for too
// long. Beats are its own matter.
//
//	        read ──► got, message by message, in order
//	stream ◄┤
//	        write ◄── send
//
// ended is called when all its goroutines are through and the stream is closed.
type link struct {
	stream   Stream
	period   time.Duration // of ticks
	patience int           // ticks of silence that are too many before the first byte
	got      func(m proto.Message)
	ended    func(err error)
	gate     *gate
	count    *counters

	heard   atomic.Bool // bytes have come since the last tick
	reading atomic.Bool // else it is our fault that nothing comes
	paused  atomic.Bool // the other side has said that it will be stopped
	wrote   atomic.Bool // bytes have gone since the last tick
	silent  int         // ticks; used by tick alone

	wake chan struct{} // capacity 1: write has something to do
	left atomic.Int32  // goroutines

	mu       sync.Mutex // guards what follows
	urgent   []*frame
	replies  int // in urgent
	releases int // in urgent
	states   map[int]*frame
	bulk     []*frame
	files    ahead // FilePart in bulk
	flow     fileFlow
	beat     bool  // a Beat is due
	busy     bool  // something is being written
	mute     error // of a write; what has come before the stream's end can be read still
	late     int   // ticks since then
	err      error
	timer    *time.Timer
}

func newLink(s Stream, l proto.Launch, g *gate, c *counters) *link {
	return &link{
		stream: s, period: l.Heartbeat / beats, gate: g, count: c, wake: make(chan struct{}, 1),
		patience: beats * int((max(l.Timeout, l.Heartbeat)+l.Heartbeat-1)/l.Heartbeat),
	}
}

// start sets the link going, with what has been sent already.
func (l *link) start() {
	l.left.Store(3)
	l.mu.Lock()
	l.timer = time.AfterFunc(l.period, l.tick) // fail stops it
	l.mu.Unlock()
	go l.read()  // ends with the stream, which fail has closed
	go l.write() // ends after fail, as does the third, which closes
}

// fail ends the link, once it has been started; the first error counts.
func (l *link) fail(err error) {
	l.mu.Lock()
	first := l.err == nil
	if first {
		l.err = err
		l.drop()
		if l.timer != nil {
			l.timer.Stop()
		}
	}
	l.mu.Unlock()
	if first {
		l.signal()
		go func() { // ends with Close, which may take its time
			defer l.out()
			_ = l.stream.Close() // whatever it says, nobody uses the stream any more
		}()
	}
}

// over says that the link has ended, or is about to.
func (l *link) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil
}

// tick looks for signs of life and gives one. Silence is counted in ticks and not
// by the clock, so that a process that was stopped does not think when it goes on
// that all others had been silent.
func (l *link) tick() {
	switch {
	case l.heard.Swap(false):
		l.silent, l.patience = 0, beats
	case l.paused.Load():
	case l.reading.Load():
		l.silent++
	}
	if l.silent >= l.patience {
		l.fail(fmt.Errorf("no sign of life for %v", l.period*time.Duration(l.patience)))
		return
	}
	if err := l.deaf(); err != nil {
		l.fail(err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	if !l.wrote.Swap(false) {
		l.beat = true
		l.signal()
	}
	l.timer.Reset(l.period)
}

// deaf says that the other side, which takes nothing, has had its last words.
func (l *link) deaf() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mute == nil {
		return nil
	}
	if l.late++; l.late <= beats {
		return nil
	}
	return fmt.Errorf("nothing can be sent: %w", l.mute)
}

// Read reads from the stream and notes signs of life.
func (l *link) Read(p []byte) (int, error) {
	l.reading.Store(true)
	n, err := l.stream.Read(p)
	if n > 0 {
		l.heard.Store(true)
	}
	l.reading.Store(false)
	l.count.bytesIn.Add(int64(n))
	return n, err
}

func (l *link) read() {
	defer l.out()
	r := bufio.NewReaderSize(l, readBuffer)
	for {
		m, err := proto.Read(r)
		if err != nil {
			l.fail(l.why(err))
			return
		}
		if _, ok := m.(proto.Beat); ok {
			continue
		}
		l.count.in.Add(1)
		switch m := m.(type) {
		case proto.FileCredit:
			if err := l.paid(m.Bytes); err != nil {
				l.fail(err)
				return
			}
			continue
		case proto.Signal:
			// gorun stops, too, a little later, and says so when it goes on.
			if s := syscall.Signal(m.Signal); s == syscall.SIGTSTP || s == syscall.SIGCONT {
				l.paused.Store(s == syscall.SIGTSTP)
			}
		case proto.End:
			l.paused.Store(false)
		}
		l.got(m)
		if p, ok := m.(proto.FilePart); ok {
			if err := l.owe(len(p.Data)); err != nil {
				l.fail(err)
				return
			}
		}
	}
}

// why makes a cause of what a Read has failed with.
func (l *link) why(err error) error {
	if errors.Is(err, proto.ErrFrame) || l.over() {
		return err
	}
	if cause := l.stream.Cause(); cause != nil {
		return cause
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the connection has ended: %w", err)
	}
	return err
}

func (l *link) write() {
	defer l.out()
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

// buffers are what frames are made in: a link that is idle, as most are most of the
// time, has none.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

func (l *link) put(buf []byte) error {
	l.wrote.Store(true)
	n, err := l.stream.Write(buf)
	l.wrote.Store(true)
	l.count.bytesOut.Add(int64(n))
	return err
}

// out is the end of a goroutine.
func (l *link) out() {
	if l.left.Add(-1) == 0 {
		l.ended(l.err) // nobody writes it any more
	}
}

// counters are of all links of a node.
type counters struct {
	in, out, bytesIn, bytesOut atomic.Int64
	queued, peak               atomic.Int64 // bytes of bulk that wait, and of Output that has not been credited
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
