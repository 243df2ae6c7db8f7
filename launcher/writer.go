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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/proto"
	"golang.org/x/sys/unix"
)

// writer writes the output of all ranks, and gorun's own lines, to stdout and stderr, or to the
// files of each rank. Other goroutines queue pieces of output. One goroutine, which runs
// [writer.loop], writes the pieces in the order in which they arrive, with an exception. While a
// host has written only the beginning of a line to stdout or stderr, pieces of other hosts, and of
// gorun itself, for the same destination wait. If no more of the line comes for stallLimit, they
// wait no longer.
//
// The queue has no limit of its own, because the senders have limits: each host has at most
// proto.Window bytes on the way, and this host's process manager waits until each of its pieces is
// written.
type writer struct {
	sinks [2]*sink // stdout and stderr; the same sink if both are one file or one writer
	// dir is the directory for the files with the ranks' output. It is set before the first output
	// arrives. If it is "", output goes to sinks.
	dir string
	// digits has, by number of a group, the number of digits of its largest rank, for the names of files.
	// emptyFiles sets it before the first output of the group arrives.
	digits sync.Map
	// fileErrs has, by name of a rank's file, the first error. After it, [writer.loop] writes
	// nothing to the file. Other goroutines may read fileErrs when loop has ended.
	fileErrs map[string]error
	// tail gets gorun's own lines, for the live page; nil: there is none. It is set before the first of
	// them.
	tail *tail

	mu        sync.Mutex // guards the fields below
	more      *sync.Cond // signals changes of queue and closed to [writer.loop], and the end of stallLimit
	queue     []*piece   // pieces that [writer.loop] has not taken, in the order of their arrival
	closed    bool       // [writer.finish] was called: [writer.loop] ends when queue is empty
	abandoned bool       // [writer.abandon] was called: no more pieces are queued

	quit chan struct{} // closed by [writer.abandon]
	done chan struct{} // closed when [writer.loop] has ended
}

// stallLimit is how long a host's unfinished line delays the output of other hosts to the same
// destination. The time begins again with each output of the host.
const stallLimit = 100 * time.Millisecond

// lastBytes is the number of bytes of the most recent output that a sink keeps for [sink.shows].
const lastBytes = 8 << 10

// gorunIndex takes the place of the host index in an Output that holds gorun's own lines. No host
// has this index.
const gorunIndex = -2

// piece is an Output that [writer.loop] must write.
type piece struct {
	proto.Output
	// written is called once, when [writer.loop] has written the piece or could not write it. If it
	// is nil, there is no call.
	written func(err error)

	// If the recent output of the sink contains all lines of shown, loop writes short instead of
	// Data: see printOnce.
	short []byte // nil: loop always writes Data
	shown []string

	status bool // Data is the line of progress, without a newline, which the next output overwrites
}

// owner returns the source of a piece: the index of the host, or gorunIndex, and the group of the
// ranks.
func owner(p *piece) [2]int { return [2]int{p.Index, p.Group} }

// sink is stdout or stderr, or both. Only [writer.loop] uses its fields, with exceptions that their
// comments name.
type sink struct {
	w      io.Writer // nil: output is discarded
	status []byte    // the line of progress that the terminal shows; empty: none
	mid    bool      // the last output has not ended with the end of a line
	owner  [2]int    // see owner, of the last output
	since  time.Time // when loop wrote the last output
	last   []byte    // the end of the output so far, at most lastBytes
	// err is the first write error, after which [writer.loop] writes nothing. Other goroutines may
	// read err when loop has ended.
	err error

	broken atomic.Bool // a write has failed because the reader has closed the pipe; any goroutine may read it
}

// newWriter returns a writer and starts its loop. out and err are stdout and stderr. If one of them
// is nil, loop discards its output. The caller must call finish.
func newWriter(out, err io.Writer) *writer {
	w := &writer{fileErrs: make(map[string]error), quit: make(chan struct{}), done: make(chan struct{})}
	w.more = sync.NewCond(&w.mu)
	w.sinks[0] = &sink{w: out}
	w.sinks[1] = w.sinks[0]
	if !sameWriter(out, err) {
		w.sinks[1] = &sink{w: err}
	}
	go w.loop() // ends after finish, when the queue is empty; it closes done
	return w
}

// sameWriter reports whether a and b are one file or one writer.
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

// shared reports whether stdout and stderr are one file or one writer.
func (w *writer) shared() bool { return w.sinks[0] == w.sinks[1] }

// put queues o. It does not block. loop calls written when it has written o, or with an error if it
// could not; written may be nil. o.Data must not change until then. After abandon, put drops o and
// calls written with an error.
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

// errNotRead is the error of output that is dropped at the end of the job, because no process has
// read earlier output.
var errNotRead = errors.New("it was not read in time")

// write queues o and blocks until loop has written it or could not write it, or until abandon is
// called. It returns the error.
func (w *writer) write(o proto.Output) error {
	o.Data = slices.Clone(o.Data) // because loop may still use Data after abandon has made write return
	done := make(chan error, 1)
	w.put(o, func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-w.quit:
		return errNotRead
	}
}

// abandon drops the queued pieces, calls their written functions with an error, and makes calls of
// write return. If loop itself is blocked in a write, it stays blocked until a process reads the
// output. abandon does not block.
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

// setStatus queues a line of progress for stderr, which must be a terminal. The next output on
// stderr overwrites the line. If line is empty, loop removes the current line of progress instead.
// setStatus does not block.
func (w *writer) setStatus(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.abandoned {
		return
	}
	w.queue = append(w.queue, &piece{Output: gorunOutput(line), status: true})
	w.more.Signal()
}

// eraseLine moves the cursor to the beginning of the terminal's line and clears the line from there
// to its end, by the control sequence EL of ECMA-48.
const eraseLine = "\r\x1b[K"

// writeStatus replaces the line of progress on the terminal by line; nil: by nothing. It does
// nothing if the last output has not ended its line, or if the terminal already shows this line of
// progress.
func (k *sink) writeStatus(line []byte) {
	if k.mid || bytes.Equal(k.status, line) {
		return
	}
	_, k.err = k.w.Write(append([]byte(eraseLine), line...))
	k.status = line
}

// print queues whole lines of gorun itself for stderr. It does not block.
func (w *writer) print(lines string) {
	w.tail.addOwn(lines)
	w.put(gorunOutput(lines), nil)
}

// printOnce queues lines of gorun itself for stderr. When loop writes them, it writes short if the
// recent output of stderr contains the lines of shown in this order, with or without other text
// between them. Otherwise it writes long. printOnce does not block.
func (w *writer) printOnce(long, short string, shown []string) {
	w.tail.addOwn(long)
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

// finish makes loop end as soon as it has written all queued pieces. It does not wait for the end
// of loop: see done. Pieces that are queued after the end of loop are never written.
func (w *writer) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.more.Signal()
}

// drained reports whether loop has ended. Then loop has written all queued output, except what it
// dropped after an error or abandon.
func (w *writer) drained() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// loop writes queued pieces until finish was called and the queue is empty.
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
// finish was called and the queue is empty.
func (w *writer) next() *piece {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		wait := time.Duration(-1)
		for i, p := range w.queue {
			k := w.sinkOf(p)
			if k != nil && k.mid && k.owner != owner(p) && !w.closed {
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

// sinkOf returns the sink of a piece, or nil if the piece belongs into a file of its rank.
func (w *writer) sinkOf(p *piece) *sink {
	switch {
	case p.Stream != proto.Merged:
		return nil
	case p.Stderr:
		return w.sinks[1]
	}
	return w.sinks[0]
}

// writePiece writes a piece to its sink or file, and returns the first error of that sink or file.
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
	if k.mid && k.owner != owner(p) {
		data = append([]byte{'\n'}, data...)
	}
	_, k.err = k.w.Write(data)
	k.mid, k.owner, k.since = p.Mid, owner(p), time.Now()
	k.broken.Store(k.readerGone())
	if keep := lastBytes; len(data) >= keep {
		k.last = append(k.last[:0], data[len(data)-keep:]...)
	} else {
		k.last = append(k.last[max(len(k.last)+len(data)-keep, 0):], data...)
	}
	return k.err
}

// toFile appends a piece to the file of its rank. It opens and closes the file each time, because a
// job may have more ranks than a process may have open files.
func (w *writer) toFile(p *piece) (err error) {
	name := w.outputFile(p.Group, p.Stream, p.Stderr)
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

// shows reports whether the last output of the sink, at most lastBytes bytes, contains the lines in
// this order. Each of lines must be the end of a line of the output, because a tag such as "[1] "
// may stand before it.
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

// readerGone reports whether a write has failed because the sink is a pipe whose reader has closed
// it.
func (k *sink) readerGone() bool { return errors.Is(k.err, unix.EPIPE) }

// lostOutput returns a write error by which output was lost, or nil if there is none. An error
// because the reader of a pipe has closed it does not count. lostOutput may be called only when
// loop has ended.
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

// emptyFiles makes, in the directory for files, empty ones for stdout and stderr of ranks 0 to n-1 of a
// group. It truncates existing files.
func (w *writer) emptyFiles(group, n int) error {
	w.digits.Store(group, len(strconv.Itoa(n-1)))
	for rank := range n {
		for _, stderr := range []bool{false, true} {
			f, err := os.Create(w.outputFile(group, rank, stderr))
			if err == nil {
				err = f.Close()
			}
			if err != nil {
				return fmt.Errorf("output of rank %s: %w", proto.RankName(group, rank), err)
			}
		}
	}
	return nil
}

// outputFile returns the name of the file for a rank's stdout or, if stderr is set, its stderr. The names
// of all ranks of a group have the same length, so that their order is that of the ranks.
func (w *writer) outputFile(group, rank int, stderr bool) string {
	ext := ".out"
	if stderr {
		ext = ".err"
	}
	name, digits := strconv.Itoa(rank), 0
	if d, ok := w.digits.Load(group); ok {
		digits = d.(int) //nolint:forcetypeassert // emptyFiles stores ints
	}
	name = strings.Repeat("0", max(digits-len(name), 0)) + name
	if group > 0 {
		name = strconv.Itoa(group) + "." + name
	}
	return filepath.Join(w.dir, name+ext)
}
