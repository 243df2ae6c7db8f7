package launcher

import (
	"bytes"
	"errors"
	"io"
	"os"
	"reflect"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Output goes from the ranks' pipes to two sinks, line by line:
//
//	rank 0 stdout ─┐                     ┌─► Stdio.Out
//	rank 0 stderr ─┤  one goroutine:     │
//	rank 1 stdout ─┼─ epoll, read, cut ──┤
//	…             ─┘  into lines         └─► Stdio.Err
//
// The goroutine that reads also writes, so a sink that blocks is back-pressure
// for every rank; nothing is dropped and memory is bounded by lineLimit per
// stream. A line longer than that is passed on in pieces, and while it lasts
// nobody else may write to its sink, unless it stalls for longer than
// stallLimit.
const (
	readBytes  = 64 << 10
	lineLimit  = 64 << 10
	stallLimit = 100 * time.Millisecond
	holdLimit  = time.Second // for which one long line may keep the others out
	tailBytes  = 8 << 10     // of stderr, kept for the summary
	tailLines  = 10

	launcherStream = -1 // for sink.enter: no rank's
)

type output struct {
	ep   int
	wake int // eventfd: messages, or drained
	tag  bool

	mu       sync.Mutex // guards the fd of streams while add and loop run together, and what follows up to the blank line
	messages []byte     // whole lines of the launcher's own
	last     bool       // all writers are dead

	streams []stream // out and err of each rank in turn

	sinks [2]*sink
	buf   []byte
	done  chan struct{} // closed when everything is written
}

// stream is a rank's stdout or stderr.
type stream struct {
	fd    int    // read end; -1: ended, or never a pipe
	carry []byte // the beginning of a line
	tail  []byte // the last of stderr
}

// sink is a place where lines go; stdout and stderr are one sink where both
// are one file.
type sink struct {
	w   io.Writer
	buf []byte
	mid int   // 1 + index of the stream whose unfinished line is the last thing written
	err error // of the first write that failed; none is tried after it
}

func newOutput(np int, tag bool, out, err io.Writer) (*output, error) {
	o := &output{ep: -1, wake: -1, tag: tag, streams: make([]stream, 2*np), buf: make([]byte, readBytes), done: make(chan struct{})}
	for i := range o.streams {
		o.streams[i].fd = -1
	}
	o.sinks[0] = &sink{w: out}
	o.sinks[1] = o.sinks[0]
	if !sameWriter(out, err) {
		o.sinks[1] = &sink{w: err}
	}
	var e error
	if o.ep, e = unix.EpollCreate1(unix.EPOLL_CLOEXEC); e != nil {
		return nil, e
	}
	if o.wake, e = unix.Eventfd(0, unix.EFD_CLOEXEC); e == nil {
		e = watch(o.ep, o.wake, -1)
	}
	if e != nil {
		o.closeFDs()
		return nil, e
	}
	return o, nil
}

// watch has an epoll tell when a descriptor can be read; its events carry index.
func watch(ep, fd, index int) error {
	return unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd), Pad: int32(index)})
}

func sameWriter(a, b io.Writer) bool {
	fa, ok1 := a.(*os.File)
	fb, ok2 := b.(*os.File)
	if ok1 && ok2 {
		sa, err1 := fa.Stat()
		sb, err2 := fb.Stat()
		return err1 == nil && err2 == nil && os.SameFile(sa, sb)
	}
	return a != nil && b != nil && reflect.TypeOf(a).Comparable() && a == b
}

// add takes over the read ends of a rank's pipes. It may run beside loop.
func (o *output) add(rank, out, err int) error {
	for i, fd := range [2]int{out, err} {
		if fd < 0 {
			continue
		}
		s := 2*rank + i
		o.mu.Lock()
		o.streams[s].fd = fd // before the event that makes loop read it
		o.mu.Unlock()
		if err := watch(o.ep, fd, s); err != nil {
			return err
		}
	}
	return nil
}

// say passes whole lines of the launcher's to stderr, without ever blocking.
func (o *output) say(lines string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.messages = append(o.messages, lines...)
	_, _ = unix.Write(o.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// finish tells loop that nobody writes any more: what stands in the pipes is
// all there is.
func (o *output) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = true
	_, _ = unix.Write(o.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// loop ends after finish, when the pipes are empty; its caller waits for done.
func (o *output) loop() {
	defer close(o.done)
	var events [64]unix.EpollEvent
	timeout := -1
	for {
		n, err := unix.EpollWait(o.ep, events[:], timeout)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			break
		}
		o.mu.Lock() // from here on loop sees what add did before these events
		messages := o.messages
		o.messages = nil
		if o.last {
			timeout = 0
		}
		o.mu.Unlock()
		if len(messages) > 0 {
			o.sinks[1].enter(launcherStream)
			o.sinks[1].buf = append(o.sinks[1].buf, messages...)
		}
		for _, e := range events[:n] {
			if e.Pad >= 0 {
				o.read(int(e.Pad))
				continue
			}
			var count [8]byte
			_, _ = unix.Read(o.wake, count[:])
		}
		o.flush()
	}
	for s := range o.streams {
		o.end(s)
	}
	o.flush()
	o.closeFDs()
}

func (o *output) closeFDs() {
	for _, fd := range []int{o.ep, o.wake} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// read passes on what a stream has; it blocks only if there is nothing.
func (o *output) read(s int) {
	st := &o.streams[s]
	if st.fd < 0 {
		return
	}
	if o.sinks[s%2].gone() {
		o.end(s) // the rank's next write fails, as if there were no launcher between
		return
	}
	n, err := unix.Read(st.fd, o.buf)
	switch {
	case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		return
	case err != nil || n == 0:
		o.end(s)
		return
	}
	data := o.buf[:n]
	if s%2 == 1 {
		st.tail = keepTail(st.tail, data)
	}
	k := o.sinks[s%2]
	if i := bytes.LastIndexByte(data, '\n'); i >= 0 {
		o.lines(k, s, data[:i+1])
		data = data[i+1:]
	}
	st.carry = append(st.carry, data...)
	if len(st.carry) > lineLimit {
		o.piece(k, s)
		o.hold(k, s)
	}
}

// lines appends whole lines to the sink: the carried beginning, then data.
func (o *output) lines(k *sink, s int, data []byte) {
	st := &o.streams[s]
	resumed := k.enter(s)
	if !o.tag {
		k.buf = append(append(k.buf, st.carry...), data...)
	} else {
		prefix := tagOf(s)
		for len(data) > 0 {
			i := bytes.IndexByte(data, '\n') + 1
			if !resumed {
				k.buf = append(k.buf, prefix...)
			}
			k.buf = append(append(k.buf, st.carry...), data[:i]...)
			data, st.carry, resumed = data[i:], st.carry[:0], false
		}
	}
	st.carry = st.carry[:0]
	k.mid = 0
	if len(k.buf) >= readBytes {
		k.flush()
	}
}

// piece appends an unfinished line to the sink.
func (o *output) piece(k *sink, s int) {
	st := &o.streams[s]
	if len(st.carry) == 0 {
		return
	}
	if resumed := k.enter(s); !resumed && o.tag {
		k.buf = append(k.buf, tagOf(s)...)
	}
	k.buf = append(k.buf, st.carry...)
	st.carry = st.carry[:0]
	k.mid = s + 1
	k.flush()
}

// hold reads from one stream alone until its long line ends, or stalls.
func (o *output) hold(k *sink, s int) {
	st := &o.streams[s]
	deadline := time.Now().Add(holdLimit)
	for k.mid == s+1 && k.err == nil && time.Now().Before(deadline) {
		p := []unix.PollFd{{Fd: int32(st.fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, int(stallLimit.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		n, err = unix.Read(st.fd, o.buf)
		if err != nil || n == 0 {
			return // the next event sees it again
		}
		data := o.buf[:n]
		if s%2 == 1 {
			st.tail = keepTail(st.tail, data)
		}
		if i := bytes.LastIndexByte(data, '\n'); i >= 0 {
			o.lines(k, s, data[:i+1])
			data = data[i+1:]
			st.carry = append(st.carry, data...)
			return
		}
		st.carry = append(st.carry, data...)
		o.piece(k, s)
	}
}

// end closes a stream and passes on its last, unfinished line.
func (o *output) end(s int) {
	st := &o.streams[s]
	if st.fd >= 0 {
		// Closing would not do: a rank that is being forked has a copy.
		_ = unix.EpollCtl(o.ep, unix.EPOLL_CTL_DEL, st.fd, nil)
		_ = unix.Close(st.fd)
		st.fd = -1
	}
	o.piece(o.sinks[s%2], s)
}

func (o *output) flush() {
	o.sinks[0].flush()
	if o.sinks[1] != o.sinks[0] {
		o.sinks[1].flush()
	}
}

// enter readies the sink for a stream. It reports whether the last thing there
// is this stream's own unfinished line; a line of another is ended first.
func (k *sink) enter(s int) (resumed bool) {
	if k.mid == s+1 && k.mid != 0 {
		return true
	}
	if k.mid != 0 {
		k.buf = append(k.buf, '\n')
		k.mid = 0
	}
	return false
}

// flush writes; after an error the sink swallows what it gets, since a full
// disk is no reason to end a job that runs.
func (k *sink) flush() {
	if k.w != nil && k.err == nil && len(k.buf) > 0 {
		_, k.err = k.w.Write(k.buf)
	}
	k.buf = k.buf[:0]
}

// gone says whether the reader of a pipe has closed it.
func (k *sink) gone() bool { return errors.Is(k.err, unix.EPIPE) }

// lost is why output was not written that somebody wanted; loop has ended.
func (o *output) lost() error {
	for _, k := range o.sinks {
		if k.err != nil && !k.gone() {
			return k.err
		}
	}
	return nil
}

// tagOf is the prefix of a stream's lines.
func tagOf(s int) string {
	if s%2 == 1 {
		return "[" + strconv.Itoa(s/2) + "]<stderr> "
	}
	return "[" + strconv.Itoa(s/2) + "] "
}

// keepTail appends data and keeps the last tailBytes or a little more.
func keepTail(tail, data []byte) []byte {
	tail = append(tail, data...)
	if len(tail) > 2*tailBytes {
		n := copy(tail, tail[len(tail)-tailBytes:])
		tail = tail[:n]
	}
	return tail
}

// lastLines are the last lines of a tail, at most tailLines.
func lastLines(tail []byte) []string {
	tail = bytes.TrimRight(tail, "\n")
	if len(tail) > tailBytes {
		tail = tail[len(tail)-tailBytes:]
	}
	if len(tail) == 0 {
		return nil
	}
	lines := bytes.Split(tail, []byte{'\n'})
	if len(lines) > tailLines {
		lines = lines[len(lines)-tailLines:]
	}
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = string(l)
	}
	return out
}
