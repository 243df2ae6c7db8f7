package procs

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"golang.org/x/sys/unix"
)

// Output goes from the ranks' pipes to Config.Output, line by line:
//
//	rank 0 stdout ─┐                     ┌─► stdout
//	rank 0 stderr ─┤  one goroutine:     │
//	rank 1 stdout ─┼─ epoll, read, cut ──┤
//	…             ─┘  into lines         └─► stderr
//
// The same goroutine reads and calls Config.Output. So if Config.Output blocks, the pipes fill up
// and the ranks block; nothing is dropped, and the memory of each stream stays bounded. A stream is
// one rank's stdout or stderr. A sink is where the lines of several streams go: the job's stdout,
// for example. If the unfinished line of a stream is longer than lineLimit, it is passed on in
// parts. Until that line ends, the goroutine reads no other stream, unless no bytes of the line
// come for stallLimit or the line takes longer than holdLimit. With Prepare.PerRank each stream has
// a sink of its own for its file, which gets the bytes as they come, without tags. The lines then go to
// stdout and stderr only with Prepare.Tee.
//
// Except for such a long line, and for a line that a stream does not finish before its end, only
// whole lines are passed on. But a prompt is a line that does not end. So if a line does not end
// within partialDelay, its beginning is passed on, provided that the job has one rank, or that the
// line is rank 0's and goes to a terminal. This does not hold for spawned ranks.
const (
	readBytes  = 64 << 10               // largest number of bytes that are read at once
	lineLimit  = 64 << 10               // an unfinished line with more bytes is passed on in parts
	stallLimit = 100 * time.Millisecond // time without bytes after which a long line blocks no other streams

	partialDelay = 100 * time.Millisecond // age at which the beginning of an unfinished line is passed on

	holdLimit = time.Second // time for which one long line may block other streams
	tailBytes = 8 << 10     // at least so many of the last bytes of a rank's stderr are kept
)

// output passes on what the ranks of this host write. loop is its goroutine.
type output struct {
	poller *sys.Poller
	wake   *sys.Waker               // wakes loop; nil: loop has ended
	pass   func(proto.Output) error // Config.Output
	tags   []string                 // prefix of lines, by stream; nil: no prefixes

	// mu guards closed and finished, the fd of a stream until loop has its first event, and poller
	// and wake when loop ends.
	mu       sync.Mutex
	closed   [2]bool // [0]: the reader of the job's stdout has closed it; [1]: the same for stderr
	finished bool    // finish was called: all ranks have ended

	streams []stream // stdout of local rank 0, its stderr, stdout of rank 1, …

	files []*sink // by stream: the sink of its file; nil: the output does not go to files
	sinks []*sink // one for stdout and one for stderr, or one for both; nil: the output goes only to files
	buf   []byte
	done  chan struct{} // closed when loop has ended, or will not run

	prompts    []int   // indexes of the streams whose unfinished lines are passed on after partialDelay
	seenClosed [2]bool // the value of closed that loop has handled last
	draining   bool    // drain has counted the bytes that are still to be read: loop is about to end
}

// stream is a rank's stdout or stderr.
type stream struct {
	fd      int       // read end; -1: the stream has ended, or the rank has not started
	left    int       // while draining: bytes that are still to be read
	partial []byte    // bytes of a line that has not ended, which were not passed on yet
	since   time.Time // when the first bytes of partial arrived
	tail    []byte    // the last bytes of stderr: tailBytes to 2*tailBytes, or all if there are fewer
}

// sink is a destination of lines: the job's stdout, stderr, or both, or one rank's stream.
type sink struct {
	to  proto.Output // template for each Output: all fields except Mid and Data
	buf []byte       // bytes that are ready to be passed on
	mid int          // if what was passed on last is an unfinished line: 1 + index of its stream; otherwise 0

	// err is the first error of output.pass, or EPIPE if the reader of the sink has closed it. If
	// it is not nil, nothing more is passed on.
	err error
}

func newOutput(c *Manager) (*output, error) {
	np := len(c.plan.Ranks)
	merged := !c.job.PerRank || c.job.Tee
	o := &output{pass: c.cfg.Output,
		streams: make([]stream, 2*np), buf: make([]byte, readBytes), done: make(chan struct{})}
	for s := range o.streams {
		o.streams[s].fd = -1
		if c.job.Tag && merged {
			o.tags = append(o.tags, c.tagOf(s))
		}
		terminal := []bool{c.job.OutTerm, c.job.ErrTerm}[s%2]
		if c.job.Card.Group == 0 && (c.job.Card.Size == 1 || c.rankOf(s/2) == 0 && terminal) {
			o.prompts = append(o.prompts, s)
		}
		if c.job.PerRank {
			o.files = append(o.files, &sink{to: proto.Output{Index: c.cfg.Index, Group: c.job.Card.Group, Stderr: s%2 == 1, Stream: c.rankOf(s / 2)}})
		}
	}
	if merged {
		o.sinks = []*sink{{to: proto.Output{Index: c.cfg.Index, Group: c.job.Card.Group, Stream: proto.Merged}}}
		if !c.job.OneSink {
			o.sinks = append(o.sinks, &sink{to: proto.Output{Index: c.cfg.Index, Group: c.job.Card.Group, Stream: proto.Merged, Stderr: true}})
		}
	}
	var e error
	if o.poller, o.wake, e = newPoller(wakeIndex); e != nil {
		return nil, e
	}
	return o, nil
}

// tagOf returns the prefix of a stream's lines, such as "[3@node1]<stderr> ". s is the stream's
// index. The tag of a spawned rank begins with its group: [1.3].
func (c *Manager) tagOf(s int) string {
	tag := "[" + proto.RankName(c.job.Card.Group, c.rankOf(s/2))
	if c.job.TagHost {
		tag += "@" + c.cfg.Host
	}
	tag += "]"
	if s%2 == 1 {
		tag += "<stderr>"
	}
	return tag + " "
}

// sink returns the sink of a stream: that of its lines or, if there is none, that of its file.
func (o *output) sink(s int) *sink {
	switch len(o.sinks) {
	case 0:
		return o.files[s]
	case 1:
		return o.sinks[0]
	}
	return o.sinks[s%2]
}

var errNoLoop = errors.New("the output of ranks is no longer read")

// add takes over the read ends of the pipes of a rank's stdout and stderr; -1: none. Even if add
// fails, the output closes them. rank is the rank's local number. add may run at the same time as
// loop: add holds mu until both pipes are in the poller, and loop takes mu before it handles an
// event of either.
func (o *output) add(rank, out, err int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	ends := [2]int{out, err}
	if o.poller == nil { // loop has ended
		for _, fd := range ends {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
		}
		return errNoLoop
	}
	for i, fd := range ends {
		o.streams[2*rank+i].fd = fd
	}
	for i, fd := range ends {
		if fd < 0 {
			continue
		}
		if err := o.poller.Add(fd, 2*rank+i, sys.In); err != nil {
			return err
		}
	}
	return nil
}

// broken records that the reader of the job's stdout, or stderr, has closed it.
func (o *output) broken(stderr bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	k := 0
	if stderr {
		k = 1
	}
	o.closed[k] = true
	o.signal()
}

// finish makes loop pass on what is still in the pipes, and end. The caller makes sure that all
// ranks have ended.
func (o *output) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.finished = true
	o.signal()
}

// signal wakes loop unless it has ended. The caller holds o.mu.
func (o *output) signal() {
	if o.wake != nil {
		o.wake.Wake()
	}
}

// loop passes on output until finish is called or the poller fails, and then what is left in the
// pipes. At its end it closes o.done.
func (o *output) loop() {
	defer close(o.done)
	var events [64]sys.Event
	for last := false; !last; {
		n, err := o.poller.Wait(events[:], o.timeout())
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			break
		}
		for i := range n {
			if events[i].ID() == wakeIndex {
				o.wake.Clear() // before closeBroken, so that a Wake after it wakes loop again
			}
		}
		last = o.closeBroken() // takes mu: from here on loop sees what add did before these events
		for i := range n {
			if s := events[i].ID(); s >= 0 {
				o.read(s)
			}
		}
		o.passPrompts()
		o.flush()
	}
	o.drain()
	for s := range o.streams {
		o.end(s)
	}
	o.flush()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closeFDs()
}

// timeout returns the time, in milliseconds, until the next unfinished line of the streams in
// o.prompts must be passed on. If there is no such line, it returns -1.
func (o *output) timeout() int {
	next := -1
	for _, s := range o.prompts {
		if st := &o.streams[s]; len(st.partial) > 0 {
			left := int(max(time.Until(st.since.Add(partialDelay))+time.Millisecond-1, 0) / time.Millisecond)
			if next < 0 || left < next {
				next = left
			}
		}
	}
	return next
}

// passPrompts passes on the unfinished lines of the streams in o.prompts that are older than
// partialDelay.
func (o *output) passPrompts() {
	for _, s := range o.prompts {
		if st := &o.streams[s]; len(st.partial) > 0 && time.Since(st.since) >= partialDelay {
			o.passPartial(o.sink(s), s)
		}
	}
}

// closeBroken closes the streams of each sink whose reader has closed it, if o.closed has changed
// since the last call. It reports whether loop must end.
func (o *output) closeBroken() (last bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed == o.seenClosed {
		return o.finished
	}
	o.seenClosed = o.closed
	for _, k := range slices.Concat(o.sinks, o.files) {
		if k.err == nil && (k.to.Stderr && o.closed[1] || !k.to.Stderr && o.closed[0]) {
			k.err = unix.EPIPE
		}
	}
	for s := range o.streams {
		if o.sink(s).broken() {
			o.closeStream(s)
			o.streams[s].partial = nil
		}
	}
	return o.finished
}

// drain passes on the bytes that are in the pipes when it is called. It does not wait for the end
// of the pipes, because a process that a rank has left behind may keep a pipe open and write for
// ever.
func (o *output) drain() {
	for s := range o.streams {
		st := &o.streams[s]
		if st.fd >= 0 {
			st.left = sys.Unread(st.fd)
		}
	}
	o.draining = true
	for again := true; again; o.flush() {
		again = false
		o.closeBroken()
		for s := range o.streams {
			if st := &o.streams[s]; st.fd >= 0 && st.left > 0 {
				o.read(s)
				again = true
			}
		}
	}
}

// take reads once from a stream, and passes the bytes on to the stream's file, if there is one. While
// draining, it reads at most what drain has counted. The result is valid until the next call of
// take.
func (o *output) take(s int) ([]byte, error) {
	st := &o.streams[s]
	buf := o.buf
	if o.draining {
		buf = buf[:min(len(buf), st.left)]
	}
	n, err := unix.Read(st.fd, buf)
	if err != nil {
		return nil, err
	}
	st.left -= n
	if s%2 == 1 {
		st.tail = keepTail(st.tail, buf[:n])
	}
	if o.files != nil && n > 0 {
		f := o.files[s]
		f.buf = append(f.buf, buf[:n]...)
		o.send(f)
	}
	return buf[:n], nil
}

// abandon ends an output whose loop was not started.
func (o *output) abandon() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closeFDs()
	close(o.done)
}

// closeFDs closes the poller and its waker. The caller holds o.mu, or no other goroutine knows o.
func (o *output) closeFDs() {
	if o.poller != nil {
		o.poller.Close()
		o.wake.Close()
		o.poller, o.wake = nil, nil
	}
}

// read reads once from a stream and passes on the lines. At the end of the stream, or after an
// error, it closes the stream. If the pipe is open and empty, it blocks.
func (o *output) read(s int) {
	st := &o.streams[s]
	if st.fd < 0 {
		return
	}
	if o.sink(s).broken() {
		o.end(s) // the rank's next write fails with EPIPE, as it would without gorun
		return
	}
	data, err := o.take(s)
	switch {
	case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		return
	case err != nil || len(data) == 0:
		o.end(s)
		return
	}
	if o.sinks == nil {
		return
	}
	k := o.sink(s)
	if i := bytes.LastIndexByte(data, '\n'); i >= 0 {
		o.lines(k, s, data[:i+1])
		data = data[i+1:]
	}
	if len(st.partial) == 0 {
		st.since = time.Now()
	}
	st.partial = append(st.partial, data...)
	if len(st.partial) > lineLimit {
		o.passPartial(k, s)
		o.hold(k, s)
	}
}

// lines appends whole lines of stream s to its sink: the stream's unfinished line, which data
// continues, and then the rest of data. data ends with a newline.
func (o *output) lines(k *sink, s int, data []byte) {
	st := &o.streams[s]
	resumed := o.enter(k, s)
	if o.tags == nil {
		k.buf = append(append(k.buf, st.partial...), data...)
	} else {
		prefix := o.tags[s]
		for len(data) > 0 {
			i := bytes.IndexByte(data, '\n') + 1
			if !resumed {
				k.buf = append(k.buf, prefix...)
			}
			k.buf = append(append(k.buf, st.partial...), data[:i]...)
			data, st.partial, resumed = data[i:], st.partial[:0], false
		}
	}
	st.partial = st.partial[:0]
	k.mid = 0
	if len(k.buf) >= readBytes {
		o.send(k)
	}
}

// passPartial passes on the unfinished line of stream s, if there is one.
func (o *output) passPartial(k *sink, s int) {
	st := &o.streams[s]
	if len(st.partial) == 0 {
		return
	}
	if resumed := o.enter(k, s); !resumed && o.tags != nil {
		k.buf = append(k.buf, o.tags[s]...)
	}
	k.buf = append(k.buf, st.partial...)
	st.partial = st.partial[:0]
	k.mid = s + 1
	o.send(k)
}

// hold reads from stream s alone until its long line ends, no bytes come for stallLimit, holdLimit
// is over, the stream ends or fails, or the sink has an error. While draining, it also returns when
// it has read what drain has counted.
func (o *output) hold(k *sink, s int) {
	st := &o.streams[s]
	deadline := time.Now().Add(holdLimit)
	for k.mid == s+1 && k.err == nil && time.Now().Before(deadline) && (!o.draining || st.left > 0) {
		p := []unix.PollFd{{Fd: int32(st.fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, int(stallLimit.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		data, err := o.take(s)
		if err != nil || len(data) == 0 {
			return // the next call of read handles the error or the end
		}
		if i := bytes.LastIndexByte(data, '\n'); i >= 0 {
			o.lines(k, s, data[:i+1])
			data = data[i+1:]
			st.partial = append(st.partial, data...)
			return
		}
		st.partial = append(st.partial, data...)
		o.passPartial(k, s)
	}
}

// end closes a stream and passes on its last line if that line is unfinished.
func (o *output) end(s int) {
	o.closeStream(s)
	o.passPartial(o.sink(s), s)
}

func (o *output) closeStream(s int) {
	st := &o.streams[s]
	if st.fd >= 0 {
		// Close alone does not remove fd from the poller: a rank that is being forked may have a
		// copy of it.
		o.poller.Remove(st.fd)
		_ = unix.Close(st.fd)
		st.fd = -1
	}
}

func (o *output) flush() {
	for _, k := range o.sinks {
		o.send(k)
	}
}

// send passes on what is in a sink's buf. After an error of a sink, send drops its bytes, because
// the job need not end if nobody reads its output.
func (o *output) send(k *sink) {
	if k.err == nil && len(k.buf) > 0 {
		m := k.to
		m.Mid, m.Data = k.mid != 0, k.buf
		k.err = o.pass(m)
	}
	k.buf = k.buf[:0]
}

// enter prepares the sink for bytes of stream s. If the sink's last bytes are an unfinished line of
// this stream, enter returns true: the bytes continue that line. If they are an unfinished line of
// another rank, enter ends it with a newline. If they are an unfinished line of the same rank's
// other stream, enter ends it only if lines have tags. Without tags the bytes continue it, as they
// do on a terminal without gorun.
func (o *output) enter(k *sink, s int) (resumed bool) {
	if k.mid == s+1 {
		return true
	}
	if k.mid != 0 && (o.tags != nil || (k.mid-1)/2 != s/2) {
		k.buf = append(k.buf, '\n')
	}
	k.mid = 0
	return false
}

// broken reports whether the sink's error is EPIPE: its reader has closed it.
func (k *sink) broken() bool { return errors.Is(k.err, unix.EPIPE) }

// keepTail appends data to tail, and drops the oldest bytes if there are more than 2*tailBytes. It
// keeps at least the last tailBytes bytes.
func keepTail(tail, data []byte) []byte {
	data = data[max(len(data)-tailBytes, 0):]
	if len(tail)+len(data) > 2*tailBytes {
		tail = tail[:copy(tail, tail[len(tail)+len(data)-tailBytes:])]
	}
	return append(tail, data...)
}

// tailLines is how many of the last lines of a rank's stderr gorun reports. If they contain a
// message of the Go runtime (panics), gorun reports up to panicLines lines from that message on
// instead.
const (
	tailLines  = 10
	panicLines = 40
)

// panics are beginnings of the messages that the Go runtime writes when it ends a program.
var panics = [][]byte{[]byte("panic: "), []byte("fatal error: "), []byte("SIGQUIT: "), []byte("unexpected fault address ")}

// lastLines returns the last tailLines lines of a tail. If one of panics is in the tail, lastLines
// returns up to panicLines lines from there on, because such a message begins with its reason.
func lastLines(tail []byte) []string {
	tail = bytes.TrimRight(tail, "\n")
	if len(tail) > tailBytes {
		tail = tail[len(tail)-tailBytes:]
	}
	if len(tail) == 0 {
		return nil
	}
	lines := bytes.Split(tail, []byte{'\n'})
	from := max(len(lines)-tailLines, 0)
	panicked := slices.IndexFunc(lines, func(l []byte) bool {
		if rest, ok := bytes.CutPrefix(l, []byte("rank ")); ok { // comm.Main writes "rank N: panic: …"
			if _, text, ok := bytes.Cut(rest, []byte(": ")); ok {
				l = text
			}
		}
		return slices.ContainsFunc(panics, func(p []byte) bool { return bytes.HasPrefix(l, p) })
	})
	if panicked >= 0 {
		from = panicked
		lines = lines[:min(len(lines), panicked+panicLines)]
	}
	var out []string
	for _, l := range lines[from:] {
		out = append(out, string(l))
	}
	return out
}
