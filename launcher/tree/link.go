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

	"github.com/weft-hpc/weft/launcher/proto"
)

// What waits on a link to be written:
//
//	urgent  bounded by the protocol: of each message that a whole subtree answers
//	        there is one at a time; per rank one Request or Reply, one Exited; per host
//	        a few State for each fence, and Logs. So it is a small number per host
//	        of the subtree upward, and per job downward.
//	bulk    Output within proto.Window; Stdin within proto.Window; FilePart within
//	        filesAhead and what comes at once, see gate; an Ended and a Bye.
const (
	readBuffer = 4 << 10 // large data goes past it
	batchBytes = maxOutput
	beats      = 4 // ticks in a heartbeat, and ticks without a sign of life that are too many
)

var (
	errNoBye    = errors.New("it did not end in time")
	errAgentEnd = errors.New("its agent has ended")
)

// frame is a message on its way. Links that send the same one share it, and its
// bytes.
type frame struct {
	m      proto.Message
	shared bool

	once  sync.Once // guards what follows
	bytes []byte
	err   error
}

func (f *frame) append(dst []byte) ([]byte, error) {
	if !f.shared {
		return proto.Append(dst, f.m)
	}
	f.once.Do(func() { f.bytes, f.err = proto.Append(nil, f.m) })
	return append(dst, f.bytes...), f.err
}

// size is what a message counts among what waits.
func size(m proto.Message) int {
	switch m := m.(type) {
	case proto.Output:
		return cost(m)
	case proto.FilePart:
		return len(m.Data)
	case proto.Stdin:
		return len(m.Data)
	}
	return 0
}

// isBulk says which messages others overtake.
func isBulk(m proto.Message) bool {
	switch m.(type) {
	case proto.Output, proto.FilePart, proto.Stdin, proto.Ended, proto.Bye:
		return true
	}
	return false
}

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

	mu     sync.Mutex // guards what follows
	urgent []*frame
	bulk   []*frame
	files  ahead // FilePart in bulk
	beat   bool  // a Beat is due
	busy   bool  // something is being written
	mute   bool  // a write has failed; what has come before the stream's end can be read still
	err    error
	timer  *time.Timer
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

// send queues a message. It does not block; after the link's end it does nothing.
func (l *link) send(m proto.Message) { l.sendFrame(&frame{m: m}) }

func (l *link) sendFrame(f *frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil || l.mute {
		return
	}
	if isBulk(f.m) {
		l.bulk = append(l.bulk, f)
		l.count.queue(size(f.m))
		if _, ok := f.m.(proto.FilePart); ok {
			l.files.add(l.gate, size(f.m))
		}
	} else {
		l.urgent = append(l.urgent, f)
	}
	l.signal()
}

func (l *link) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
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

// drop is called with mu held.
func (l *link) drop() {
	for _, f := range l.bulk {
		l.count.queue(-size(f.m))
	}
	l.urgent, l.bulk = nil, nil
	l.files.add(l.gate, -l.files.bytes)
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
		switch m := m.(type) {
		case proto.Beat:
			continue
		case proto.Signal:
			// gorun stops, too, a little later, and says so when it goes on.
			if s := syscall.Signal(m.Signal); s == syscall.SIGTSTP || s == syscall.SIGCONT {
				l.paused.Store(s == syscall.SIGTSTP)
			}
		case proto.End:
			l.paused.Store(false)
		}
		l.count.in.Add(1)
		l.got(m)
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

// next waits for something to write.
func (l *link) next() (batch []*frame, beat, ok bool) {
	for {
		l.mu.Lock()
		l.busy = false
		if l.err != nil {
			l.mu.Unlock()
			return nil, false, false
		}
		if len(l.urgent) > 0 {
			batch, l.urgent = l.urgent, nil
		} else {
			n, bytes := 0, 0
			for n < len(l.bulk) && (n == 0 || bytes+size(l.bulk[n].m) <= batchBytes) {
				bytes += size(l.bulk[n].m)
				n++
			}
			batch = append(batch, l.bulk[:n]...)
			clear(l.bulk[:n])
			if l.bulk = l.bulk[n:]; len(l.bulk) == 0 {
				l.bulk = nil
			}
		}
		beat, l.beat = l.beat && len(batch) == 0 && !l.mute, false
		l.busy = len(batch) > 0
		l.mu.Unlock()
		if len(batch) > 0 || beat {
			return batch, beat, true
		}
		<-l.wake
	}
}

// flushed says whether nothing urgent waits, or is being written.
func (l *link) flushed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil || len(l.urgent) == 0 && !l.busy
}

// written accounts for a batch. After an error the reader finds the stream's end,
// and before it the peer's last words.
func (l *link) written(batch []*frame, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range batch {
		if !isBulk(f.m) {
			continue
		}
		l.count.queue(-size(f.m))
		if _, ok := f.m.(proto.FilePart); ok && l.err == nil {
			l.files.add(l.gate, -size(f.m))
		}
	}
	if err != nil && l.err == nil {
		l.mute = true
		l.drop()
	}
}

// out is the end of a goroutine.
func (l *link) out() {
	if l.left.Add(-1) == 0 {
		l.ended(l.err) // nobody writes it any more
	}
}

// filesAhead is how many bytes of files may wait on a link, or for the own crew, before
// no more are taken.
const filesAhead = 1 << 20

// ahead is bytes of files that wait. Whoever has it guards it.
type ahead struct{ bytes int }

// add holds the gate from the byte on that is too many.
func (a *ahead) add(g *gate, n int) {
	was := a.bytes > filesAhead
	a.bytes += n
	switch is := a.bytes > filesAhead; {
	case is && !was:
		g.add(1)
	case was && !is:
		g.add(-1)
	}
}

// gate tells when every link, and the own crew, has room for more of a file. A link's
// mu may be held when its mu is taken, not the other way.
type gate struct {
	mu   sync.Mutex // guards what follows
	room sync.Cond
	full int // those with more than filesAhead, and parts that have not been routed yet
	over bool
}

func (g *gate) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.full += n; g.full == 0 {
		g.room.Broadcast()
	}
}

// wait blocks until there is room, or stop says that there is no use.
func (g *gate) wait(stop func() bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.full > 0 && !g.over && !stop() {
		g.room.Wait()
	}
}

func (g *gate) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	g.room.Broadcast()
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
