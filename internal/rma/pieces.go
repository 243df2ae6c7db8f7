package rma

import (
	"encoding/binary"
	"errors"
	"sync"

	"github.com/weft-hpc/weft/internal/layout"
)

// pieces walks the streams of the target, of the source and of the result of an operation together.
// It divides them into pieces that are contiguous in all three.
//
//	target   ■ ■ ■ · ■ ■ · · ■
//	source   ■ · ■ · ■ · ■ · ■ · ■     a view of every second element
//	pieces   1 1 1   1 1     1
type pieces struct {
	streams [3]stream
	pos     int // position in the streams of the next piece
	size    int // of each stream
}

// stream is a position in the stream of a layout, with a list of the next ranges.
type stream struct {
	layout *layout.Layout // nil: contiguous from offset 0
	buf    [16]layout.Range
	next   int // index in buf of the range that contains the next byte
	have   int // number of ranges in buf
	end    int // position in the stream of the end of the last range in buf
}

// The streams of pieces.
const (
	atTarget = iota
	atSource
	atResult
)

// walks holds pieces that no operation uses.
var walks = sync.Pool{New: func() any { return new(pieces) }}

// start begins a walk over streams of size bytes each.
func (p *pieces) start(target, source, result *layout.Layout, size int) {
	p.pos, p.size = 0, size
	for i, l := range [...]*layout.Layout{target, source, result} {
		s := &p.streams[i]
		s.layout, s.next, s.have, s.end = l, 0, 0, 0
	}
}

// piece is n contiguous bytes, with their offsets.
type piece struct{ target, source, result, n int }

// take returns the next piece, of at most limit bytes; n is 0 after the last one.
//
// Hot path: no allocation.
func (p *pieces) take(limit int) piece {
	n := min(limit, p.size-p.pos)
	if n <= 0 {
		return piece{}
	}
	var offs [3]int
	for i := range p.streams {
		off, left := p.streams[i].front(p.pos, p.size)
		offs[i], n = off, min(n, left)
	}
	for i := range p.streams {
		p.streams[i].skip(n)
	}
	p.pos += n
	return piece{offs[atTarget], offs[atSource], offs[atResult], n}
}

// front returns the offset of the byte at the position pos, and how many bytes the range has from
// there on.
func (s *stream) front(pos, size int) (off, left int) {
	if s.layout == nil {
		return pos, size - pos
	}
	if s.next == s.have {
		list, end := s.layout.Ranges(s.buf[:0], s.end, size)
		s.next, s.have, s.end = 0, len(list), end
	}
	r := s.buf[s.next]
	return r.Off, r.Len
}

// skip moves n bytes on, which the range has.
func (s *stream) skip(n int) {
	if s.layout == nil {
		return
	}
	if r := &s.buf[s.next]; r.Len > n {
		r.Off, r.Len = r.Off+n, r.Len-n
	} else {
		s.next++
	}
}

// Runs in messages
//
//	┌───────┬───┬───────────────────────────────┬───────────────┐
//	│ count │ 0 │ count × (off, len, stride, n) │ data          │   little endian
//	└───────┴───┴───────────────────────────────┴───────────────┘
//	 4 bytes  4   32 bytes each
const (
	runsHead = 8
	runBytes = 32
	maxRuns  = 64 // of a message
)

var errRuns = errors.New("runs that do not fit the message")

// runsLimits returns how many runs, and how many data bytes in whole units, a message of at most
// chunk bytes has. data is 0 if not even one unit fits.
func runsLimits(chunk, unit int) (runs, data int) {
	chunk = min(chunk, maxChunk)
	runs = max(1, min(maxRuns, chunk/2/runBytes))
	data = max(0, chunk-runsHead-runs*runBytes)
	return runs, data / unit * unit
}

// appendRuns appends the encoding of runs to b. disp is added to their offsets.
func appendRuns(b []byte, runs []layout.Run, disp int) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(uint32(len(runs))))
	for _, r := range runs {
		b = binary.LittleEndian.AppendUint64(b, uint64(disp+r.Off))
		b = binary.LittleEndian.AppendUint64(b, uint64(r.Len))
		b = binary.LittleEndian.AppendUint64(b, uint64(r.Stride))
		b = binary.LittleEndian.AppendUint64(b, uint64(r.Count))
	}
	return b
}

// parseRuns decodes the runs at the start of b into list, which has room for maxRuns, and returns
// the bytes after them. Each run has at least one byte, and at most maxRunBytes.
func parseRuns(list []layout.Run, b []byte) (runs []layout.Run, rest []byte, err error) {
	if len(b) < runsHead {
		return nil, nil, errRuns
	}
	n := binary.LittleEndian.Uint64(b)
	if b = b[runsHead:]; n == 0 || n > maxRuns || uint64(len(b)) < n*runBytes {
		return nil, nil, errRuns
	}
	for range n {
		r := layout.Run{
			Off: int(binary.LittleEndian.Uint64(b)), Len: int(binary.LittleEndian.Uint64(b[8:])),
			Stride: int(binary.LittleEndian.Uint64(b[16:])), Count: int(binary.LittleEndian.Uint64(b[24:])),
		}
		if r.Len <= 0 || r.Count <= 0 || r.Len > maxRunBytes || r.Count > maxRunBytes/r.Len {
			return nil, nil, errRuns
		}
		list, b = append(list, r), b[runBytes:]
	}
	return list, b, nil
}

// maxRunBytes is the maximum number of bytes of a run in a message.
const maxRunBytes = 1 << 30

// inside reports whether all bytes of a run, which parseRuns has returned, are in memory of size
// bytes.
func inside(r layout.Run, size int) bool {
	if r.Off < 0 || r.Off > size || r.Len > size-r.Off {
		return false
	}
	if r.Count == 1 {
		return true
	}
	// Compare distances by division, because the product may overflow.
	steps := r.Count - 1
	if r.Stride >= 0 {
		return r.Stride <= (size-r.Off-r.Len)/steps
	}
	return r.Stride >= -(r.Off / steps)
}
