package mpiio

import (
	"os"

	"github.com/weft-hpc/weft/internal/mpi"
)

// write does a collective write.
func (x *operation) write(op string) error {
	f, mine := x.v.f, x.mine()
	w := &writer{x: x, full: make(chan filled, 1), empty: make(chan struct{}, 2)}
	if mine >= 0 {
		w.empty <- struct{}{}
		w.empty <- struct{}{}
		go w.run() // ends when full is closed; close waits for it
	}
	var windows []window
	var cerr error
	for round := 0; cerr == nil; round++ {
		var more bool
		if windows, more = x.next(windows); !more {
			break
		}
		sends := x.transfer(windows, true)
		if mine >= 0 && windows[mine].high > windows[mine].low {
			win := windows[mine]
			<-w.empty // the buffer of this round is free again
			buf, set := grow(&f.scratch.buffers[round%2], win.high-win.low), &f.scratch.covers[round%2]
			x.mark(set, win)
			if cerr = x.collect(buf, win); cerr == nil {
				w.full <- filled{buf, win, set}
			}
		}
		if err := x.wait(x.old); cerr == nil {
			cerr = err
		}
		x.old = sends
	}
	cerr = x.finish(op, cerr)
	if mine >= 0 {
		x.err = w.close()
	}
	if cerr != nil {
		return cerr
	}
	return f.agree(op, x.err)
}

// collect fills the buffer of an aggregator for a window with the data of this rank and of the
// others. It waits for the messages of the others.
func (x *operation) collect(buf []byte, win window) error {
	c, me := x.v.f.c, x.v.f.c.Rank()
	var recvs []mpi.Request
	for r, part := range win.parts {
		p, q, s := part.p, part.q, &x.v.streams[r]
		switch {
		case p == q:
			continue
		case r == me:
			x.copyIn(buf, p, q, win)
		default:
			recvs = append(recvs, c.Irecv(x.place(buf, s, p, q, win), r, tag))
		}
		if x.v.f.atomic.Load() { // where the data of ranks overlaps, that of the highest rank is the result
			if err := x.wait(recvs); err != nil {
				return err
			}
			recvs = recvs[:0]
		}
	}
	return x.wait(recvs)
}

// copyIn copies the data of this rank to a buffer of its own.
func (x *operation) copyIn(buf []byte, p, q int64, w window) {
	a, s := &x.ranks[x.v.f.c.Rank()], x.v.own()
	switch off := s.offset(p); {
	case s.offset(q-1)+1-off == q-p:
		x.m.pack(buf[off-w.low:][:q-p], p-a.start)
	case x.m.plain != nil:
		s.scatter(buf, x.m.plain[p-a.start:q-a.start], w.low, p)
	default:
		packed := make([]byte, q-p)
		x.m.pack(packed, p-a.start)
		s.scatter(buf, packed, w.low, p)
	}
}

// mark sets the bytes of a window for which a rank has data.
func (x *operation) mark(set *cover, w window) {
	set.reset(int(w.high - w.low))
	for r, part := range w.parts {
		p, q, s := part.p, part.q, &x.v.streams[r]
		if p == q {
			continue
		}
		if off := s.offset(p); s.offset(q-1)+1-off == q-p {
			set.add(int(off-w.low), int(q-p))
			continue
		}
		_ = s.each(p, q, func(off int64, n int) error { // the function returns no error
			set.add(int(off-w.low), n)
			return nil
		})
	}
}

// filled is a buffer with the data of a window.
type filled struct {
	buf []byte
	win window
	set *cover // the bytes of the window that have data
}

// writer is the goroutine of an aggregator that writes filled buffers to the file.
type writer struct {
	x     *operation
	full  chan filled
	empty chan struct{} // one value for each buffer that is free
	err   error         // the first error; read it after close
}

func (w *writer) run() {
	for b := range w.full {
		if w.err == nil { // else the rounds go on without access to the file
			w.err = w.write(b)
		}
		w.empty <- struct{}{}
	}
	close(w.empty)
}

// close waits until all buffers are written, and returns the first error.
func (w *writer) close() error {
	close(w.full)
	for range w.empty { // until run has closed the channel
	}
	return w.err
}

// write writes the bytes of a window that have data.
func (w *writer) write(b filled) error {
	f := w.x.v.f
	runs, bytes := b.set.runs()
	if runs == 1 && bytes == len(b.buf) {
		put := func() error {
			_, err := f.f.WriteAt(b.buf, b.win.low)
			return err
		}
		if f.sieving.Load() && !f.atomic.Load() {
			return f.locked(b.win.low, b.win.high, true, put)
		}
		return put()
	}
	s := stream{run: int64(bytes / runs), gap: int64((len(b.buf) - bytes) / runs)}
	sieves := w.x.v.sieveWrites && s.sieves(w.x.h.dsWrite, true)
	put := func() error {
		if sieves {
			return w.sieve(f.f, b)
		}
		for at := b.set.next(0, true); at < len(b.buf); {
			end := b.set.next(at, false)
			if _, err := f.f.WriteAt(b.buf[at:end], b.win.low+int64(at)); err != nil {
				return err
			}
			at = b.set.next(end, true)
		}
		return nil
	}
	if f.sieving.Load() && !f.atomic.Load() {
		return f.locked(b.win.low, b.win.high, true, put)
	}
	return put()
}

// sieve reads what the file has in the gaps of the window, and writes the whole window.
func (w *writer) sieve(f *os.File, b filled) error {
	old := grow(&w.x.v.f.scratch.old, int64(len(b.buf)))
	if err := readFull(f, old, b.win.low); err != nil {
		return err
	}
	for at := b.set.next(0, false); at < len(b.buf); {
		end := b.set.next(at, true)
		copy(b.buf[at:end], old[at:end])
		at = b.set.next(end, false)
	}
	_, err := f.WriteAt(b.buf, b.win.low)
	return err
}
