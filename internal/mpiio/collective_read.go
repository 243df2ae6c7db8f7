package mpiio

import (
	"fmt"
	"io"
	"os"
)

// read does a collective read.
func (x *operation) read(op string) error {
	f, mine := x.v.f, x.mine()
	c, me := f.c, f.c.Rank()
	windows, more := x.next(nil)
	next := x.prefetch(mine, 0, windows)
	cerr := error(nil)
	for round := 0; more && cerr == nil; round++ {
		recvs := x.transfer(windows, false)
		now, win := next, window{}
		if mine >= 0 {
			win = windows[mine]
		}
		windows, more = x.next(windows)
		var buf []byte
		if now != nil {
			r := <-now
			buf = r.buf
			x.note(r.err) // the messages are sent nevertheless, so that no rank waits for them
		}
		// The buffer of the next round is that of the round before, whose messages must have ended.
		if cerr = x.wait(x.old); cerr == nil {
			next = x.prefetch(mine, round+1, windows)
		} else {
			next = nil
		}
		x.old = nil
		for r, part := range win.parts {
			p, q, s := part.p, part.q, &x.v.streams[r]
			switch {
			case p == q:
			case r == me:
				x.copyOut(buf, p, q, win)
			default:
				x.old = append(x.old, c.Isend(x.place(buf, s, p, q, win), r, tag))
			}
		}
		if err := x.wait(recvs); cerr == nil {
			cerr = err
		}
	}
	cerr = x.finish(op, cerr)
	if next != nil {
		<-next // a read of a round that did not take place
	}
	if cerr != nil {
		return cerr
	}
	return f.agree(op, x.err)
}

// fetched is the result of prefetch.
type fetched struct {
	buf []byte
	err error
}

// prefetch reads the window of the aggregator with index mine in another goroutine. It returns nil
// if there is nothing to read.
func (x *operation) prefetch(mine, round int, windows []window) <-chan fetched {
	if mine < 0 || windows[mine].high <= windows[mine].low {
		return nil
	}
	w := windows[mine]
	buf, result := grow(&x.v.f.scratch.buffers[round%2], w.high-w.low), make(chan fetched, 1)
	go func() { // ends when it has sent the result; read receives it
		err := readWindow(x.v.f.f, buf, w.low)
		result <- fetched{buf, err}
	}()
	return result
}

// readWindow fills buf from the file. The file has all these bytes.
func readWindow(f *os.File, buf []byte, off int64) error {
	n, err := f.ReadAt(buf, off)
	if err = notEOF(err); err == nil && n < len(buf) {
		err = fmt.Errorf("%w: another program has made the file shorter", io.ErrUnexpectedEOF)
	}
	return err
}

// copyOut is the reverse of copyIn.
func (x *operation) copyOut(buf []byte, p, q int64, w window) {
	a, s := &x.ranks[x.v.f.c.Rank()], x.v.own()
	switch off := s.offset(p); {
	case s.offset(q-1)+1-off == q-p:
		x.m.unpack(buf[off-w.low:][:q-p], p-a.start)
	case x.m.plain != nil:
		s.gather(x.m.plain[p-a.start:q-a.start], buf, w.low, p)
	default:
		packed := make([]byte, q-p)
		s.gather(packed, buf, w.low, p)
		x.m.unpack(packed, p-a.start)
	}
}
