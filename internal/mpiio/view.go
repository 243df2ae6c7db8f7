package mpiio

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/layout"
	"github.com/weft-hpc/weft/internal/mpi"
)

// stream is the data that a rank sees of a file: a layout that the file repeats without end, from
// the displacement on. Its bytes have positions from 0 on. Their offsets in the file ascend.
//
//	disp        tile 0                  tile 1
//	│·········│ ■ ■ ■ · · ■ · · · · · · │ ■ ■ ■ · · ■ · · · …
//	            0 1 2     3               4 5 6     7          positions
type stream struct {
	disp   int64
	tile   layout.Layout
	size   int64 // bytes of data of a tile; 0: the view has no data
	extent int64 // from the start of a tile to that of the next one, at least 1 if there is data
	limit  int64 // the positions from limit on would have offsets that do not fit into an int64

	run, gap int64 // mean length of a block of data, and of the gap after it; run is MaxInt64 without gaps
}

// tileSize is the number of bytes of data up to which small tiles are joined into a larger one, so
// that the work for a tile is small compared with that for its data.
const tileSize = 64 << 10

// newStream returns the stream of a view. The offsets of l are in bytes of the file.
func newStream(disp int64, l layout.Layout) (stream, error) {
	if err := l.Err(); err != nil {
		return stream{}, err
	}
	low, high := l.Span()
	if disp < 0 || l.Size() > 0 && disp+int64(low) < 0 || disp > math.MaxInt64/2 {
		return stream{}, fmt.Errorf("%w: the displacement %d, and a layout that begins at byte %d", mpi.ErrArg, disp, low)
	}
	if l.Size() == 0 {
		return stream{disp: disp}, nil
	}
	if !l.Ascending() || high-low < l.Size() || l.Extent() < high-low { // high-low may overflow
		return stream{}, fmt.Errorf("%w: the elements of a view must follow each other in the file, also from one layout to the next", layout.ErrLayout)
	}
	if n := tileSize / l.Size(); n > 1 {
		if more := layout.Repeat(n, l); more.Err() == nil {
			l = more
			_, high = l.Span()
		}
	}
	s := stream{disp: disp, tile: l, size: int64(l.Size()), extent: int64(l.Extent()), run: math.MaxInt64}
	s.limit = (math.MaxInt64 - disp - int64(max(high, 0))) / s.extent * s.size
	if n := int64(l.Blocks()); s.extent > s.size || n > 1 {
		s.run, s.gap = s.size/n, (s.extent-s.size)/n
	}
	return s, nil
}

// contiguous reports whether all bytes of the stream follow each other in the file.
func (s *stream) contiguous() bool { return s.run == math.MaxInt64 }

// offset returns the offset in the file of the byte at a position.
func (s *stream) offset(p int64) int64 {
	return s.disp + p/s.size*s.extent + int64(s.tile.At(int(p%s.size)))
}

// before returns the number of bytes of the stream whose offsets are less than off. It is at most
// most.
func (s *stream) before(off, most int64) int64 {
	if s.size == 0 {
		return 0
	}
	_, high := s.tile.Span()
	rel, tiles := off-s.disp, int64(0)
	if rel >= int64(high) {
		tiles = (rel-int64(high))/s.extent + 1
	}
	if tiles > most/s.size {
		return most
	}
	return min(most, tiles*s.size+int64(s.tile.Before(int(rel-tiles*s.extent))))
}

// gather copies the stream from position p on from window, a part of the file that begins at the
// offset at, and fills dst.
func (s *stream) gather(dst, window []byte, at, p int64) {
	for len(dst) > 0 {
		n := s.tile.Pack(dst, window, int(s.disp+p/s.size*s.extent-at), int(p%s.size))
		dst, p = dst[n:], p+int64(n)
	}
}

// scatter is the reverse of gather.
func (s *stream) scatter(window, src []byte, at, p int64) {
	for len(src) > 0 {
		n := s.tile.Unpack(window, src, int(s.disp+p/s.size*s.extent-at), int(p%s.size))
		src, p = src[n:], p+int64(n)
	}
}

// cut returns the layout of the positions from p up to q in a window that begins at the offset at.
func (s *stream) cut(p, q, at int64) layout.Layout {
	var offs []int
	var ls []layout.Layout
	for p < q {
		base, from := int(s.disp+p/s.size*s.extent-at), p%s.size
		l, n := s.tile.Cut(int(from), int(min(s.size, from+q-p))), min(s.size-from, q-p)
		if tiles := (q - p) / s.size; from == 0 && tiles > 1 {
			l, n = layout.HVector(int(tiles), 1, int(s.extent), s.tile), tiles*s.size
		}
		offs, ls, p = append(offs, base), append(ls, l), p+n
	}
	lengths := make([]int, len(ls))
	for i := range lengths {
		lengths[i] = 1
	}
	return layout.Struct(lengths, offs, ls)
}

// each calls do for each range of the file that has positions from p up to q, in ascending order,
// until do returns an error.
func (s *stream) each(p, q int64, do func(off int64, n int) error) error {
	var room [64]layout.Range
	for p < q {
		base := s.disp + p/s.size*s.extent
		from := int(p % s.size)
		list, end := s.tile.Ranges(room[:0], from, int(min(s.size, int64(from)+q-p)))
		for _, r := range list {
			if err := do(base+int64(r.Off), r.Len); err != nil {
				return err
			}
		}
		p += int64(end - from)
	}
	return nil
}

// View is the type behind pio.View: the elements of a file that a rank sees, and the file pointers.
type View struct {
	f         *File
	typ       *elem.Type
	size      int64 // bytes of an element in the file
	streams   []stream
	converter *converter // nil: the file has the elements as memory has them
	rep       string
	disp      int64
	// Arguments kind of File.exchange, which identify a collective call. They differ between the
	// views of a file.
	reads, writes string

	sieveWrites bool // writes may read and write a larger range; the same on all ranks

	pointer atomic.Int64 // the individual file pointer, in elements
	shared  *mpi.Win     // has the shared file pointer, in elements, on rank 0; nil: there is none

	splitMu sync.Mutex
	split   *split // the active split collective operation; nil: none; guarded by splitMu
}

// ViewConfig holds the arguments of NewView.
type ViewConfig struct {
	Type   *elem.Type
	Disp   int64
	Layout *elem.Layout // in elements; nil: no elements
	Rep    string       // the representation: native, internal or external32
	Shared bool         // the view has a shared file pointer
}

// NewView implements pio.NewView, which documents the call.
func NewView(f *File, cfg ViewConfig) (*View, error) {
	const op = "NewView"
	var v *View
	err := f.collectively(op, func() (err error) {
		v, err = f.newView(op, cfg)
		return err
	})
	if err != nil {
		return nil, err
	}
	return v, nil
}

func (f *File) newView(op string, cfg ViewConfig) (*View, error) {
	v := &View{f: f, typ: cfg.Type, rep: cfg.Rep, disp: cfg.Disp}
	own, err := v.describe(cfg)
	var code []byte
	var sieves, lockable int64
	if err == nil {
		code = own.tile.Append(nil)
		h := f.currentHints()
		if !own.contiguous() && own.size > 0 && f.checkAccess(true) == nil && f.checkAccess(false) == nil && h.dsWrite != disable {
			sieves = 1
		}
		if f.tryLock() == nil {
			lockable = 1
		}
	}
	var kind int64
	for i, r := range representations {
		if r == cfg.Rep {
			kind = int64(i)
		}
	}
	if cfg.Shared {
		kind += 16
	}
	const n = 6
	all, err := f.exchange(op, op, err, int64(len(code)), cfg.Disp, v.size, kind, sieves, lockable)
	if err != nil {
		return nil, err
	}
	f.views++ // all ranks are here
	v.reads, v.writes = fmt.Sprint("read of view ", f.views), fmt.Sprint("write of view ", f.views)
	counts, total, canLock := make([]int, f.c.Size()), 0, true
	for r := range counts {
		rec := all[r*n:][:n]
		if rec[0] < 0 || rec[0] > math.MaxInt32 {
			return nil, f.broken(op, fmt.Errorf("%w: rank %d has a layout of %d bytes", mpi.ErrMismatch, r, rec[0]))
		}
		if rec[2] != v.size || rec[3] != kind {
			// All ranks find a difference: each compares with all others.
			return nil, f.fail(op, r, fmt.Errorf("%w: its view has another element size, representation or kind of pointer", mpi.ErrMismatch))
		}
		counts[r] = int(rec[0])
		total += counts[r]
		v.sieveWrites = v.sieveWrites || rec[4] == 1
		canLock = canLock && rec[5] == 1
	}
	v.sieveWrites = v.sieveWrites && canLock
	codes := make([]byte, total)
	if err := f.c.Allgatherv(elem.Raw(code), elem.Raw(codes), counts, nil); err != nil {
		return nil, f.broken(op, err)
	}
	for r, at := 0, 0; r < len(counts); r++ {
		l, err := layout.Parse(codes[at : at+counts[r]])
		at += counts[r]
		var s stream
		if err == nil {
			s, err = newStream(all[r*n+1], l)
		}
		if err != nil {
			return nil, f.broken(op, err)
		}
		v.streams = append(v.streams, s)
	}
	if v.sieveWrites {
		f.gate.Lock() // waits for the writes without locks that are in progress
		f.sieving.Store(true)
		f.gate.Unlock()
	}
	return v, v.initPointers(op, cfg.Shared)
}

// describe checks the arguments of NewView, sets the fields that follow from the element type, and
// returns the stream of this rank.
func (v *View) describe(cfg ViewConfig) (stream, error) {
	t := cfg.Type
	switch {
	case t.Err != nil:
		return stream{}, t.Err
	case t.Size == 0:
		return stream{}, fmt.Errorf("%w: %v has no bytes", mpi.ErrType, t.Go)
	case v.f.flag&Sequential != 0 && cfg.Disp != 0:
		return stream{}, fmt.Errorf("%w: a displacement in a sequential file", ErrAccess)
	}
	v.size = int64(t.Size)
	switch cfg.Rep {
	case Native, Internal:
	case External32:
		v.converter = converterOf(t)
		v.size = int64(v.converter.size)
	default:
		return stream{}, fmt.Errorf("%w: the representation %q: expected native, internal or external32", mpi.ErrArg, cfg.Rep)
	}
	var l layout.Layout
	if cfg.Layout != nil {
		l = layout.Scale(int(v.size), cfg.Layout.Elements())
	}
	return newStream(cfg.Disp, l)
}

// own returns the stream of this rank.
func (v *View) own() *stream { return &v.streams[v.f.c.Rank()] }

// File returns the file of the view, or nil for a nil view.
func (v *View) File() *File {
	if v == nil {
		return nil
	}
	return v.f
}

// Get implements pio.View.Get, which documents the call.
func (v *View) Get() (disp int64, representation string) {
	if v == nil {
		return 0, ""
	}
	return v.disp, v.rep
}

// ElemSize implements pio.View.ElemSize, which documents the call.
func (v *View) ElemSize() int {
	if v == nil {
		return 0
	}
	return int(v.size)
}

// ByteOffset implements pio.View.ByteOffset, which documents the call.
func (v *View) ByteOffset(i int64) (int64, error) {
	if err := v.live(); err != nil {
		return 0, v.File().fail("ByteOffset", mpi.Undefined, err)
	}
	s := v.own()
	if err := s.check(i, 1, v.size); err != nil {
		return 0, v.f.fail("ByteOffset", mpi.Undefined, err)
	}
	return s.offset(i * v.size), nil
}

// check checks that the stream has n elements of size bytes from element i on.
func (s *stream) check(i, n, size int64) error {
	switch {
	case i < 0 || n < 0:
		return fmt.Errorf("%w: element %d of the view", mpi.ErrArg, i)
	case n > 0 && s.size == 0:
		return fmt.Errorf("%w: %d elements, but the view has none", mpi.ErrCount, n)
	case n > 0 && (i > s.limit/size || n > s.limit/size-i):
		return fmt.Errorf("%w: the offset of element %d of the view does not fit into an int64", mpi.ErrArg, i)
	}
	return nil
}

func (v *View) live() error {
	if v == nil {
		return errClosed
	}
	return v.f.live()
}
