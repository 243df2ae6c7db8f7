package launcher

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/proto"
	"golang.org/x/sys/unix"
)

// writer brings what comes from all hosts, and gorun's own lines, to where they
// are read. One goroutine writes, in the order in which things have come, except
// that nobody's line is cut by another's: while a host is in the midst of a long
// line on a sink, what others have for that sink waits, unless the line stalls for
// longer than stallLimit.
//
// The senders bound the bytes that wait here: a host has at most proto.Window bytes on the
// way, and this host's process manager waits until each of its pieces is written.
type writer struct {
	sinks [2]*sink         // of stdout and stderr, which may be the same file
	dir   string           // directory for each rank's output; set before the first output comes
	lossy map[string]error // by file: the first error, after which nothing is written to it; loop's

	mu     sync.Mutex // guards what follows
	more   *sync.Cond
	queue  []*piece
	closed bool // nothing comes any more
	given  bool // up: nothing is written any more

	quit chan struct{} // closed by abandon
	done chan struct{} // closed when everything is written
}

// stallLimit is for how long a long line that does not go on keeps others out.
const stallLimit = 100 * time.Millisecond

// lastBytes is how much is kept of what was written to a sink.
const lastBytes = 8 << 10

// gorunIndex stands for gorun itself among the hosts.
const gorunIndex = -2

// piece is an Output that waits for its turn.
type piece struct {
	proto.Output
	written func(err error) // is told when it has been; nil: nobody wants to know

	// If each line of shown is in what was written last, the writer writes short instead of
	// data.
	short []byte // nil: always write data
	shown []string

	status bool // the data is to be written over: a line of progress
}

// sink is a place where lines go.
type sink struct {
	w     io.Writer // nil: nowhere
	over  []byte    // the status that stands in the line, to be written over
	mid   bool      // the last thing written is a part of a line
	owner int       // of that line: the index of a host
	since time.Time // when that was
	last  []byte    // of what was written
	err   error     // of the first write that failed; none is tried after it; loop's

	broken atomic.Bool // err says that the reader has gone
}

func newWriter(out, err io.Writer) *writer {
	w := &writer{lossy: make(map[string]error), quit: make(chan struct{}), done: make(chan struct{})}
	w.more = sync.NewCond(&w.mu)
	w.sinks[0] = &sink{w: out}
	w.sinks[1] = w.sinks[0]
	if !sameWriter(out, err) {
		w.sinks[1] = &sink{w: err}
	}
	go w.loop() // ends with finish
	return w
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

// one says whether stdout and stderr are one file.
func (w *writer) one() bool { return w.sinks[0] == w.sinks[1] }

// put queues a piece, whose data must stay as it is until written is called.
func (w *writer) put(o proto.Output, written func(err error)) {
	w.mu.Lock()
	if !w.given {
		w.queue = append(w.queue, &piece{Output: o, written: written})
		w.more.Signal()
		w.mu.Unlock()
		return
	}
	w.mu.Unlock()
	if written != nil {
		written(errNobodyReads)
	}
}

// errNobodyReads is of what is not written because the job is to end, and has
// waited long enough for somebody to read.
var errNobodyReads = errors.New("nobody reads it")

// write writes a piece, and returns when it has been written.
func (w *writer) write(o proto.Output) error {
	o.Data = slices.Clone(o.Data) // abandon may come before the write has ended
	done := make(chan error, 1)
	w.put(o, func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-w.quit:
		return errNobodyReads
	}
}

// abandon has nobody wait for what is not being read.
func (w *writer) abandon() {
	w.mu.Lock()
	if w.given {
		w.mu.Unlock()
		return
	}
	w.given = true
	queue := w.queue
	w.queue = nil
	w.mu.Unlock()
	close(w.quit)
	for _, p := range queue {
		if p.written != nil {
			p.written(errNobodyReads)
		}
	}
}

// own is lines of gorun itself.
func own(lines string) proto.Output {
	return proto.Output{Index: gorunIndex, Stderr: true, Stream: proto.Merged, Data: []byte(lines)}
}

// status puts a line on the terminal that stderr is, which the next line of anybody
// writes over; empty: takes it away. It never blocks.
func (w *writer) status(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.given {
		return
	}
	w.queue = append(w.queue, &piece{Output: own(line), status: true})
	w.more.Signal()
}

// eraseLine goes back to the beginning of a line and empties it (ECMA-48, EL).
const eraseLine = "\r\x1b[K"

// passStatus writes a status, but not into the midst of somebody's line.
func (k *sink) passStatus(line []byte) {
	if k.mid || bytes.Equal(k.over, line) {
		return
	}
	_, k.err = k.w.Write(append([]byte(eraseLine), line...))
	k.over = line
}

// say queues whole lines of gorun's own, and never blocks.
func (w *writer) say(lines string) { w.put(own(lines), nil) }

// sayOnce writes long to stderr. If the lines of shown are in what was written last, in
// this order, sayOnce writes short instead. Other lines may stand between them.
func (w *writer) sayOnce(long, short string, shown []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.given {
		return
	}
	w.queue = append(w.queue, &piece{
		Output: own(long), short: []byte(short), shown: shown,
	})
	w.more.Signal()
}

// finish has loop end when all that was put is written.
func (w *writer) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.more.Signal()
}

// drained says whether everything is written.
func (w *writer) drained() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

func (w *writer) loop() {
	defer close(w.done)
	for {
		p := w.next()
		if p == nil {
			return
		}
		err := w.pass(p)
		if p.written != nil {
			p.written(err)
		}
	}
}

// next takes the first piece that may be written now; nil: there will be no more.
func (w *writer) next() *piece {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		wait := time.Duration(-1)
		for i, p := range w.queue {
			k := w.sinkOf(p)
			if k != nil && k.mid && k.owner != p.Index && !w.closed {
				if left := stallLimit - time.Since(k.since); left > 0 {
					wait = left
					continue
				}
			}
			w.queue = slices.Delete(w.queue, i, i+1)
			return p
		}
		switch {
		case w.closed:
			return nil
		case wait < 0:
			w.more.Wait()
		default:
			t := time.AfterFunc(wait, w.more.Signal)
			w.more.Wait()
			t.Stop()
		}
	}
}

// sinkOf is where a piece goes; nil: to a file of its rank.
func (w *writer) sinkOf(p *piece) *sink {
	switch {
	case p.Stream != proto.Merged:
		return nil
	case p.Stderr:
		return w.sinks[1]
	}
	return w.sinks[0]
}

func (w *writer) pass(p *piece) error {
	k := w.sinkOf(p)
	if k == nil {
		return w.toFile(p)
	}
	if k.w == nil || k.err != nil {
		return k.err
	}
	if p.status {
		k.passStatus(p.Data)
		return k.err
	}
	if len(k.over) > 0 {
		k.passStatus(nil)
	}
	data := p.Data
	if p.short != nil && k.shows(p.shown) {
		data = p.short
	}
	if k.mid && k.owner != p.Index {
		data = append([]byte{'\n'}, data...)
	}
	_, k.err = k.w.Write(data)
	k.mid, k.owner, k.since = p.Mid, p.Index, time.Now()
	k.broken.Store(k.gone())
	if keep := lastBytes; len(data) >= keep {
		k.last = append(k.last[:0], data[len(data)-keep:]...)
	} else {
		k.last = append(k.last[max(len(k.last)+len(data)-keep, 0):], data...)
	}
	return k.err
}

// toFile appends to the file of a rank, which is opened each time: there may be
// more ranks than files that may be open.
func (w *writer) toFile(p *piece) (err error) {
	name := outputFile(w.dir, p.Stream, p.Stderr)
	if err := w.lossy[name]; err != nil {
		return err
	}
	defer func() {
		if err != nil {
			w.lossy[name] = err
		}
	}()
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(p.Data)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// shows reports whether lines are in what was written last, in this order.
func (k *sink) shows(lines []string) bool {
	rest := k.last
	for _, l := range lines {
		_, behind, ok := bytes.Cut(rest, []byte(l+"\n"))
		if !ok {
			return false
		}
		rest = behind
	}
	return true
}

// gone says whether the reader of a pipe has closed it.
func (k *sink) gone() bool { return errors.Is(k.err, unix.EPIPE) }

// lost is why output was not written that somebody wanted; loop has ended.
func (w *writer) lost() error {
	for _, k := range w.sinks {
		if k.err != nil && !k.gone() {
			return k.err
		}
	}
	if len(w.lossy) == 0 {
		return nil
	}
	return w.lossy[slices.Min(slices.Collect(maps.Keys(w.lossy)))]
}

// emptyFiles makes empty output files for n ranks, or empties existing ones.
func emptyFiles(dir string, n int) error {
	for rank := range n {
		for _, stderr := range []bool{false, true} {
			f, err := os.Create(outputFile(dir, rank, stderr))
			if err == nil {
				err = f.Close()
			}
			if err != nil {
				return fmt.Errorf("output of rank %d: %w", rank, err)
			}
		}
	}
	return nil
}

// outputFile returns the name of the file for a rank's stdout or stderr.
func outputFile(dir string, rank int, stderr bool) string {
	ext := ".out"
	if stderr {
		ext = ".err"
	}
	return filepath.Join(dir, strconv.Itoa(rank)+ext)
}
