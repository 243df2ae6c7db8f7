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

// writer writes the output of all ranks, and gorun's own lines, to stdout and stderr. One
// goroutine, loop, writes all of it in the order in which it arrives, except that loop does not
// write into the middle of a line. While a host has written only the beginning of a long line to a
// sink, pieces of other hosts for this sink wait. If the rest of the line does not come within
// stallLimit, they wait no longer.
//
// The senders bound the bytes that wait here: a host has at most proto.Window bytes on the way, and
// this host's process manager waits until each of its pieces is written.
type writer struct {
	sinks    [2]*sink         // for stdout and stderr; the same one if both are one file
	dir      string           // directory for each rank's output; set before the first output arrives
	fileErrs map[string]error // by file: the first error, after which loop writes nothing to it; only loop uses it

	mu        sync.Mutex // guards the fields below
	more      *sync.Cond
	queue     []*piece
	closed    bool // finish was called: nothing is added to queue
	abandoned bool // abandon was called: nothing more is written

	quit chan struct{} // closed by abandon
	done chan struct{} // closed when loop has ended
}

// stallLimit is the time after which the unfinished line of a host no longer delays other output.
const stallLimit = 100 * time.Millisecond

// lastBytes is the number of bytes of recent output that a sink remembers.
const lastBytes = 8 << 10

// gorunIndex is the host index of gorun's own lines.
const gorunIndex = -2

// piece is an Output in the queue.
type piece struct {
	proto.Output
	written func(err error) // called after the write; nil: no call

	// If the sink's recent output has each line of shown, the writer writes short instead of Data.
	short []byte // nil: always write data
	shown []string

	status bool // Data is the line of progress, which the next line overwrites
}

// sink is stdout or stderr.
type sink struct {
	w      io.Writer // nil: output is discarded
	status []byte    // the line of progress on the terminal; empty: none
	mid    bool      // the last output ended within a line
	owner  int       // host index of that output
	since  time.Time // time of that output
	last   []byte    // the end of the output so far
	err    error     // the first write error, after which loop writes nothing; only loop uses it

	broken atomic.Bool // err means that the reader has closed the pipe
}

// newWriter returns a writer. The caller calls finish.
func newWriter(out, err io.Writer) *writer {
	w := &writer{fileErrs: make(map[string]error), quit: make(chan struct{}), done: make(chan struct{})}
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

// shared reports whether stdout and stderr are one file.
func (w *writer) shared() bool { return w.sinks[0] == w.sinks[1] }

// put queues a piece. o.Data must not change until written is called.
func (w *writer) put(o proto.Output, written func(err error)) {
	w.mu.Lock()
	if !w.abandoned {
		w.queue = append(w.queue, &piece{Output: o, written: written})
		w.more.Signal()
		w.mu.Unlock()
		return
	}
	w.mu.Unlock()
	if written != nil {
		written(errNotRead)
	}
}

// errNotRead is the error of output that is not written, because it was not read in time at the end
// of the job.
var errNotRead = errors.New("it was not read in time")

// write writes a piece and waits until it is written.
func (w *writer) write(o proto.Output) error {
	o.Data = slices.Clone(o.Data) // after abandon, loop may still write it when write has returned
	done := make(chan error, 1)
	w.put(o, func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-w.quit:
		return errNotRead
	}
}

// abandon discards the queue, and ends all waiting for output to be read.
func (w *writer) abandon() {
	w.mu.Lock()
	if w.abandoned {
		w.mu.Unlock()
		return
	}
	w.abandoned = true
	queue := w.queue
	w.queue = nil
	w.mu.Unlock()
	close(w.quit)
	for _, p := range queue {
		if p.written != nil {
			p.written(errNotRead)
		}
	}
}

// gorunOutput returns lines of gorun itself as an Output.
func gorunOutput(lines string) proto.Output {
	return proto.Output{Index: gorunIndex, Stderr: true, Stream: proto.Merged, Data: []byte(lines)}
}

// setStatus shows a line of progress on stderr, which is a terminal. The next line overwrites it.
// "" removes it. setStatus does not block.
func (w *writer) setStatus(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.abandoned {
		return
	}
	w.queue = append(w.queue, &piece{Output: gorunOutput(line), status: true})
	w.more.Signal()
}

// eraseLine moves the cursor to the beginning of the line and clears the line (ECMA-48, EL).
const eraseLine = "\r\x1b[K"

// writeStatus writes a line of progress, but not into the middle of another line.
func (k *sink) writeStatus(line []byte) {
	if k.mid || bytes.Equal(k.status, line) {
		return
	}
	_, k.err = k.w.Write(append([]byte(eraseLine), line...))
	k.status = line
}

// print queues whole lines of gorun itself. It does not block.
func (w *writer) print(lines string) { w.put(gorunOutput(lines), nil) }

// printOnce queues long for stderr, or short if the recent output of stderr has the lines of shown
// in this order. Other lines may be between them. It does not block.
func (w *writer) printOnce(long, short string, shown []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.abandoned {
		return
	}
	w.queue = append(w.queue, &piece{
		Output: gorunOutput(long), short: []byte(short), shown: shown,
	})
	w.more.Signal()
}

// finish ends loop when it has written the queue.
func (w *writer) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.more.Signal()
}

// drained reports whether all output is written.
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
		err := w.writePiece(p)
		if p.written != nil {
			p.written(err)
		}
	}
}

// next waits for a piece that may be written now, and takes it from the queue. It returns nil if
// there will be none.
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

// sinkOf returns the sink of a piece, or nil if the piece goes to a file of its rank.
func (w *writer) sinkOf(p *piece) *sink {
	switch {
	case p.Stream != proto.Merged:
		return nil
	case p.Stderr:
		return w.sinks[1]
	}
	return w.sinks[0]
}

func (w *writer) writePiece(p *piece) error {
	k := w.sinkOf(p)
	if k == nil {
		return w.toFile(p)
	}
	if k.w == nil || k.err != nil {
		return k.err
	}
	if p.status {
		k.writeStatus(p.Data)
		return k.err
	}
	if len(k.status) > 0 {
		k.writeStatus(nil)
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
	k.broken.Store(k.readerGone())
	if keep := lastBytes; len(data) >= keep {
		k.last = append(k.last[:0], data[len(data)-keep:]...)
	} else {
		k.last = append(k.last[max(len(k.last)+len(data)-keep, 0):], data...)
	}
	return k.err
}

// toFile appends a piece to the file of its rank. It opens and closes the file each time, because
// there may be more ranks than files that a process may open.
func (w *writer) toFile(p *piece) (err error) {
	name := outputFile(w.dir, p.Stream, p.Stderr)
	if err := w.fileErrs[name]; err != nil {
		return err
	}
	defer func() {
		if err != nil {
			w.fileErrs[name] = err
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

// shows reports whether the sink's recent output has lines, in this order.
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

// readerGone reports whether the reader of a pipe has closed it.
func (k *sink) readerGone() bool { return errors.Is(k.err, unix.EPIPE) }

// lostOutput returns the first error by which output was lost, unless the reader had closed the
// pipe. The caller calls it when loop has ended.
func (w *writer) lostOutput() error {
	for _, k := range w.sinks {
		if k.err != nil && !k.readerGone() {
			return k.err
		}
	}
	if len(w.fileErrs) == 0 {
		return nil
	}
	return w.fileErrs[slices.Min(slices.Collect(maps.Keys(w.fileErrs)))]
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
