package mpiio

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/weft-hpc/weft/internal/mpi"
)

// Independent access
//
// Data that is contiguous in the file and in memory needs one system call. For a view with gaps
// there are two ways:
//
//	ranges    one system call for each range of the file
//	sieving   a read of the whole range from the first to the last byte, gaps included, and a copy
//	          of the data from it; for a write: a read, a copy of the data to it, and a write
//
// (Thakur, Gropp and Lusk, Data Sieving and Collective I/O in ROMIO, 1999). A write by sieving also
// writes the bytes in the gaps, which another rank may change at the same time. So it locks the
// range, and all other writes of a file with such views lock their ranges, too.

// syscallBytes is about the number of bytes that the kernel copies in the time of the fixed cost of
// a system call.
const syscallBytes = 8 << 10

// sieves reports whether an access to the stream uses sieving. choice is the value of the hint for
// reads or writes.
func (s *stream) sieves(c choice, write bool) bool {
	switch {
	case s.contiguous() || c == disable:
		return false
	case c == enable:
		return true
	case write: // it copies the gap twice, and the data once more
		return s.run+2*s.gap < syscallBytes
	}
	return s.gap < syscallBytes
}

// readFull reads len(b) bytes from the offset off on. The bytes after the end of the file are zero.
func readFull(f *os.File, b []byte, off int64) error {
	n, err := f.ReadAt(b, off)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	clear(b[n:])
	return err
}

// readAt reads the positions of m from the position start of the stream on, up to the end of the
// file. It returns the number of bytes read.
func (v *View) readAt(start int64, m *memory) (n int64, err error) {
	if m.bytes == 0 {
		return 0, nil
	}
	s := v.own()
	if v.f.atomic.Load() {
		err = v.f.locked(s.offset(start), s.offset(start+m.bytes-1)+1, false, func() error {
			n, err = v.readUnlocked(start, m)
			return err
		})
		return n, err
	}
	return v.readUnlocked(start, m)
}

func (v *View) readUnlocked(start int64, m *memory) (int64, error) {
	s, h := v.own(), v.f.currentHints()
	if s.contiguous() && m.plain != nil {
		n, err := v.f.f.ReadAt(m.plain, s.offset(start))
		return int64(n), notEOF(err)
	}
	end := start + m.bytes
	sieves := s.sieves(h.dsRead, false)
	buf := make([]byte, min(int64(h.indRead), s.offset(end-1)+1-s.offset(start)))
	for p := start; p < end; {
		at := s.offset(p)
		q := max(s.before(at+int64(len(buf)), end), p+1)
		var n int64
		var err error
		if sieves || s.contiguous() {
			n, err = v.sieve(buf, at, p, q, start, m)
		} else {
			n, err = v.readRanges(buf, p, q, start, m)
		}
		if err != nil || n < q-p {
			return p - start + n, err
		}
		p = q
	}
	return m.bytes, nil
}

// sieve reads the positions from p up to q by one read. It returns the number of bytes of data.
func (v *View) sieve(buf []byte, at, p, q, start int64, m *memory) (int64, error) {
	s := v.own()
	k, err := v.f.f.ReadAt(buf[:s.offset(q-1)+1-at], at)
	if err = notEOF(err); err != nil {
		return 0, err
	}
	q = s.before(at+int64(k), q)
	if q <= p {
		return 0, nil
	}
	switch {
	case m.plain != nil:
		s.gather(m.plain[p-start:q-start], buf, at, p)
	case s.contiguous():
		m.unpack(buf[:q-p], p-start)
	default:
		packed := make([]byte, q-p)
		s.gather(packed, buf, at, p)
		m.unpack(packed, p-start)
	}
	return q - p, nil
}

var errShort = errors.New("end of the file")

// readRanges reads the positions from p up to q range by range. buf has room for them.
func (v *View) readRanges(buf []byte, p, q, start int64, m *memory) (int64, error) {
	dst := buf
	if m.plain != nil {
		dst = m.plain[p-start:]
	}
	n := int64(0)
	err := v.own().each(p, q, func(off int64, size int) error {
		k, err := v.f.f.ReadAt(dst[n:n+int64(size)], off)
		n += int64(k)
		if errors.Is(err, io.EOF) {
			return errShort
		}
		return err
	})
	if errors.Is(err, errShort) {
		err = nil
	}
	if m.plain == nil {
		m.unpack(buf[:n], p-start)
	}
	return n, err
}

func notEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// writeAt writes the positions of m from the position start of the stream on. It returns the number
// of bytes that it has certainly written.
func (v *View) writeAt(start int64, m *memory) (n int64, err error) {
	if m.bytes == 0 {
		return 0, nil
	}
	s := v.own()
	if v.f.atomic.Load() {
		err = v.f.locked(s.offset(start), s.offset(start+m.bytes-1)+1, true, func() error {
			n, err = v.writeLocked(start, m, func(_, _ int64, do func() error) error { return do() })
			return err
		})
		return n, err
	}
	v.f.gate.RLock()
	defer v.f.gate.RUnlock()
	lock := func(_, _ int64, do func() error) error { return do() }
	if v.f.sieving.Load() {
		lock = func(off, end int64, do func() error) error { return v.f.locked(off, end, true, do) }
	}
	return v.writeLocked(start, m, lock)
}

// writeLocked does the work of writeAt. It calls lock for each write of a range of the file.
func (v *View) writeLocked(start int64, m *memory, lock func(off, end int64, do func() error) error) (int64, error) {
	s, h, f := v.own(), v.f.currentHints(), v.f.f
	end := start + m.bytes
	if s.contiguous() && m.plain != nil {
		var n int
		off := s.offset(start)
		err := lock(off, off+m.bytes, func() (err error) {
			n, err = f.WriteAt(m.plain, off)
			return err
		})
		return int64(n), err
	}
	sieves := v.sieveWrites && s.sieves(h.dsWrite, true)
	buf := make([]byte, min(int64(h.indWrite), s.offset(end-1)+1-s.offset(start)))
	for p := start; p < end; {
		at := s.offset(p)
		q := max(s.before(at+int64(len(buf)), end), p+1)
		window := buf[:s.offset(q-1)+1-at]
		src := buf[:q-p]
		if m.plain != nil {
			src = m.plain[p-start : q-start]
		} else if sieves {
			src = make([]byte, q-p)
		}
		if m.plain == nil {
			m.pack(src, p-start)
		}
		err := lock(at, at+int64(len(window)), func() error {
			if sieves {
				if err := readFull(f, window, at); err != nil {
					return err
				}
				s.scatter(window, src, at, p)
				_, err := f.WriteAt(window, at)
				return err
			}
			if s.contiguous() {
				_, err := f.WriteAt(src, at)
				return err
			}
			return s.each(p, q, func(off int64, n int) error {
				_, err := f.WriteAt(src[:n], off)
				src = src[n:]
				return err
			})
		})
		if err != nil {
			return p - start, err
		}
		p = q
	}
	return m.bytes, nil
}

// ReadAt implements pio.File.ReadAt, which documents the call.
func (f *File) ReadAt(p []byte, off int64) (n int, err error) {
	if err := f.useBytes(false, off, len(p)); err != nil {
		return 0, f.fail("File.ReadAt", mpi.Undefined, err)
	}
	defer f.running.Done()
	t := f.c.StartCall()
	defer func() { t.EndCall("File.ReadAt", n) }()
	get := func() error {
		n, err = f.f.ReadAt(p, off)
		return nil
	}
	lerr := error(nil)
	if f.atomic.Load() && len(p) > 0 {
		lerr = f.locked(off, off+int64(len(p)), false, get)
	} else {
		lerr = get()
	}
	switch {
	case lerr != nil:
		return n, f.fail("File.ReadAt", mpi.Undefined, lerr)
	case errors.Is(err, io.EOF):
		return n, io.EOF
	}
	return n, f.fail("File.ReadAt", mpi.Undefined, err)
}

// WriteAt implements pio.File.WriteAt, which documents the call.
func (f *File) WriteAt(p []byte, off int64) (n int, err error) {
	if err := f.useBytes(true, off, len(p)); err != nil {
		return 0, f.fail("File.WriteAt", mpi.Undefined, err)
	}
	defer f.running.Done()
	t := f.c.StartCall()
	defer func() { t.EndCall("File.WriteAt", n) }()
	put := func() error {
		n, err = f.f.WriteAt(p, off)
		return err
	}
	f.gate.RLock()
	defer f.gate.RUnlock()
	if (f.atomic.Load() || f.sieving.Load()) && len(p) > 0 {
		err = f.locked(off, off+int64(len(p)), true, put)
	} else {
		err = put()
	}
	return n, f.fail("File.WriteAt", mpi.Undefined, err)
}

// useBytes is use for an access to n bytes from the offset off on, which it checks.
func (f *File) useBytes(write bool, off int64, n int) error {
	if err := f.live(); err != nil {
		return err
	}
	switch {
	case f.flag&Sequential != 0:
		return fmt.Errorf("%w: a sequential file has only the shared file pointer", ErrAccess)
	case off < 0 || off > math.MaxInt64-int64(n):
		return fmt.Errorf("%w: the offset %d", mpi.ErrArg, off)
	}
	if err := f.checkAccess(write); err != nil {
		return err
	}
	return f.use()
}
