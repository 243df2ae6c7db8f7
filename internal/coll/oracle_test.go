package coll_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/coll/colltest"
)

// scenario is one collective on all ranks: the call of each rank, and the expected contents of its
// buffers, computed naively from the inputs of all ranks.
type scenario struct {
	n    int
	call []func(l coll.Link) error
	want []want
}

// want is a buffer of a rank and its expected contents after the call. whole is the buffer with
// border bytes before and border bytes after it; the call must not change these bytes. wish is what
// whole must contain. The field what is the name of the buffer, for error messages.
type want struct {
	what        string
	rank        int
	whole, wish []byte
}

const border = 32

// newBuffer returns a buffer of n bytes, and the whole memory with the borders.
func newBuffer(n int) (whole, buf []byte) {
	whole = bytes.Repeat([]byte{0xee}, n+2*border)
	return whole, whole[border : border+n : border+n]
}

func (s *scenario) expect(what string, rank int, whole, content []byte) {
	wish := bytes.Repeat([]byte{0xee}, len(whole))
	copy(wish[border:len(wish)-border], content)
	s.want = append(s.want, want{what, rank, whole, wish})
}

func (s *scenario) run(opt colltest.Options) error {
	w := colltest.New(s.n, opt)
	for r, err := range w.Run(func(l *colltest.Link) error { return s.call[l.Rank()](l) }) {
		if err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return s.check()
}

// check compares the buffers of all ranks with their expected contents.
func (s *scenario) check() error {
	for _, w := range s.want {
		if i := mismatch(w.whole, w.wish); i >= 0 {
			return fmt.Errorf("rank %d: %s of %d bytes is wrong from byte %d on: %x, want %x",
				w.rank, w.what, len(w.whole)-2*border, i-border, w.whole[i:min(i+16, len(w.whole))], w.wish[i:min(i+16, len(w.wish))])
		}
	}
	return nil
}

func mismatch(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// affine composes maps x → ax + b modulo 2^32. It does not commute, and every operand affects the
// result.
var affine = coll.Op{Size: 8, Reduce2: func(inout, in []byte) {
	for i := 0; i+8 <= len(inout) && i+8 <= len(in); i += 8 {
		a1, b1 := binary.LittleEndian.Uint32(in[i:]), binary.LittleEndian.Uint32(in[i+4:])
		a2, b2 := binary.LittleEndian.Uint32(inout[i:]), binary.LittleEndian.Uint32(inout[i+4:])
		binary.LittleEndian.PutUint32(inout[i:], a1*a2)
		binary.LittleEndian.PutUint32(inout[i+4:], a1*b2+b1)
	}
}}

// matrix multiplies 2×2 matrices of 16-bit integers, which take 8 bytes each.
var matrix = coll.Op{Size: 8, Reduce2: func(inout, in []byte) {
	for i := 0; i+8 <= len(inout) && i+8 <= len(in); i += 8 {
		var a, b [4]uint16
		for j := range a {
			a[j], b[j] = binary.LittleEndian.Uint16(in[i+2*j:]), binary.LittleEndian.Uint16(inout[i+2*j:])
		}
		for j := range a {
			r, c := j/2*2, j%2
			binary.LittleEndian.PutUint16(inout[i+2*j:], a[r]*b[c]+a[r+1]*b[2+c])
		}
	}
}}

// reduced returns the serial reduction of the inputs, from the right.
func reduced(op coll.Op, inputs [][]byte) []byte {
	acc := bytes.Clone(inputs[len(inputs)-1])
	for r := len(inputs) - 2; r >= 0; r-- {
		op.Reduce2(acc, inputs[r])
	}
	return acc
}

// maker builds random scenarios of one kind of call.
type maker struct {
	rng *rand.Rand
	cfg *coll.Config
	n   int
	max int // most bytes of a block, approximately
	op  coll.Op

	fixed bool // elems always returns max/8
}

// elems returns a random number of 8-byte elements, often one near a special case of an algorithm.
// If fixed is set, it returns max/8.
func (m *maker) elems() int {
	if m.fixed {
		return m.max / 8
	}
	few := []int{0, 1, 2, 3, m.n - 1, m.n, m.n + 1, 2*m.n + 1, 31, 32, 33}
	if m.rng.IntN(3) > 0 {
		return min(few[m.rng.IntN(len(few))], m.max/8)
	}
	return m.rng.IntN(m.max/8 + 1)
}

func (m *maker) bytes(n int) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += 8 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], m.rng.Uint64())
		copy(b[i:], word[:])
	}
	if m.op.Size == affine.Size && !m.op.Commutes { // odd factors, so that no product loses bits of an operand
		for i := 0; i < n; i += 8 {
			b[i] |= 1
		}
	}
	return b
}

func (m *maker) inPlace() bool { return m.rng.IntN(3) == 0 }

// layout returns random blocks, in random order and with gaps.
func (m *maker) layout() (counts, displs []int, total int) {
	counts, displs = make([]int, m.n), make([]int, m.n)
	for _, r := range m.rng.Perm(m.n) {
		counts[r] = 8 * m.elems() / max(1, m.rng.IntN(m.n+1))
		total += m.rng.IntN(9)
		displs[r] = total
		total += counts[r]
	}
	return counts, displs, total + m.rng.IntN(9)
}

func (m *maker) make(k coll.Kind, root int) *scenario {
	s := &scenario{n: m.n, call: make([]func(coll.Link) error, m.n)}
	switch k {
	case coll.KindBarrier:
		m.barrier(s)
	case coll.KindBcast:
		m.bcast(s, root)
	case coll.KindReduce, coll.KindAllreduce, coll.KindScan, coll.KindExscan:
		m.reduction(s, k, root)
	case coll.KindReduceScatter, coll.KindReduceScatterBlock:
		m.reduceScatter(s, k)
	case coll.KindGather, coll.KindGatherv, coll.KindAllgather, coll.KindAllgatherv:
		m.gather(s, k, root)
	case coll.KindScatter, coll.KindScatterv:
		m.scatter(s, k, root)
	case coll.KindAlltoall, coll.KindAlltoallv:
		m.alltoall(s, k)
	}
	return s
}

func (m *maker) bcast(s *scenario, root int) {
	data := m.bytes(8*m.elems() + m.rng.IntN(8))
	for r := range m.n {
		whole, buf := newBuffer(len(data))
		if r == root {
			copy(buf, data)
		}
		s.call[r] = func(l coll.Link) error { return coll.Bcast(l, m.cfg, buf, root) }
		s.expect("buf", r, whole, data)
	}
}

func (m *maker) reduction(s *scenario, k coll.Kind, root int) {
	size := 8 * m.elems()
	inputs := make([][]byte, m.n)
	for r := range inputs {
		inputs[r] = m.bytes(size)
	}
	for r := range m.n {
		whole, recv := newBuffer(size)
		wholeSend, send := newBuffer(size)
		inPlace := m.inPlace() && (k != coll.KindReduce || r == root)
		if inPlace {
			wholeSend, send = whole, recv
		}
		copy(send, inputs[r])
		result := bytes.Clone(recv)
		switch k {
		default:
			panic(k)
		case coll.KindReduce:
			s.call[r] = func(l coll.Link) error { return coll.Reduce(l, m.cfg, send, recv, m.op, root) }
			if r == root {
				result = reduced(m.op, inputs)
			}
		case coll.KindAllreduce:
			s.call[r] = func(l coll.Link) error { return coll.Allreduce(l, m.cfg, send, recv, m.op) }
			result = reduced(m.op, inputs)
		case coll.KindScan:
			s.call[r] = func(l coll.Link) error { return coll.Scan(l, m.cfg, send, recv, m.op) }
			result = reduced(m.op, inputs[:r+1])
		case coll.KindExscan:
			s.call[r] = func(l coll.Link) error { return coll.Exscan(l, m.cfg, send, recv, m.op) }
			if r > 0 {
				result = reduced(m.op, inputs[:r])
			}
		}
		s.expect("recv", r, whole, result)
		if !inPlace {
			s.expect("send", r, wholeSend, inputs[r])
		}
	}
}

func (m *maker) reduceScatter(s *scenario, k coll.Kind) {
	counts := make([]int, m.n)
	if !m.fixed {
		m.max = max(m.max/m.n, 40*8) // each rank's operand consists of n blocks
	}
	same, total := 8*m.elems(), 0
	for r := range counts {
		if counts[r] = same; k == coll.KindReduceScatter {
			counts[r] = 8 * m.elems()
		}
		total += counts[r]
	}
	inputs := make([][]byte, m.n)
	for r := range inputs {
		inputs[r] = m.bytes(total)
	}
	all, off := reduced(m.op, inputs), 0
	for r := range m.n {
		wholeSend, send := newBuffer(total)
		copy(send, inputs[r])
		whole, recv := newBuffer(counts[r])
		part := all[off : off+counts[r]]
		off += counts[r]
		if m.inPlace() {
			recv = send
			if m.rng.IntN(2) == 0 {
				recv = send[:counts[r]]
			}
			s.expect("recv in place", r, wholeSend, append(bytes.Clone(part), inputs[r][counts[r]:]...))
		} else {
			s.expect("recv", r, whole, part)
			s.expect("send", r, wholeSend, inputs[r])
		}
		s.call[r] = func(l coll.Link) error {
			if k == coll.KindReduceScatter {
				return coll.ReduceScatter(l, m.cfg, send, recv, counts, m.op)
			}
			return coll.ReduceScatterBlock(l, m.cfg, send, recv, m.op)
		}
	}
}

func (m *maker) gather(s *scenario, k coll.Kind, root int) {
	counts, displs, total := m.layout()
	v := k == coll.KindGatherv || k == coll.KindAllgatherv
	rooted := k == coll.KindGather || k == coll.KindGatherv
	if !v {
		for r := range counts {
			counts[r] = counts[0]
			displs[r] = r * counts[0]
		}
		total = m.n * counts[0]
	}
	inputs := make([][]byte, m.n)
	_, result := newBuffer(total)
	for r := range inputs {
		inputs[r] = m.bytes(counts[r])
		copy(result[displs[r]:], inputs[r])
	}
	for r := range m.n {
		whole, recv := newBuffer(total)
		wholeSend, send := newBuffer(counts[r])
		holds := !rooted || r == root
		switch {
		case holds && m.inPlace():
			send = recv[displs[r] : displs[r]+counts[r]]
			copy(send, inputs[r])
			if total > 0 && m.rng.IntN(2) == 0 {
				send = recv
			}
		default:
			copy(send, inputs[r])
			s.expect("send", r, wholeSend, inputs[r])
		}
		if holds {
			s.expect("recv", r, whole, result)
		} else {
			recv = nil
		}
		s.call[r] = func(l coll.Link) error {
			switch {
			case k == coll.KindGather:
				return coll.Gather(l, m.cfg, send, recv, root)
			case k == coll.KindGatherv && r == root:
				return coll.Gatherv(l, m.cfg, send, recv, counts, displs, root)
			case k == coll.KindGatherv:
				return coll.Gatherv(l, m.cfg, send, nil, nil, nil, root)
			case k == coll.KindAllgather:
				return coll.Allgather(l, m.cfg, send, recv)
			}
			return coll.Allgatherv(l, m.cfg, send, recv, counts, displs)
		}
	}
}

func (m *maker) scatter(s *scenario, k coll.Kind, root int) {
	counts, displs, total := m.layout()
	if k == coll.KindScatter {
		for r := range counts {
			counts[r] = counts[0]
			displs[r] = r * counts[0]
		}
		total = m.n * counts[0]
	}
	data := m.bytes(total)
	for r := range m.n {
		wholeSend, send := newBuffer(total)
		copy(send, data)
		whole, recv := newBuffer(counts[r])
		switch {
		case r == root && total > 0 && m.inPlace():
			recv = send
		default:
			s.expect("recv", r, whole, data[displs[r]:displs[r]+counts[r]])
		}
		if r == root {
			s.expect("send", r, wholeSend, data)
		}
		s.call[r] = func(l coll.Link) error {
			switch {
			case r != root && k == coll.KindScatter:
				return coll.Scatter(l, m.cfg, nil, recv, root)
			case k == coll.KindScatter:
				return coll.Scatter(l, m.cfg, send, recv, root)
			case r != root:
				return coll.Scatterv(l, m.cfg, nil, nil, nil, recv, root)
			}
			return coll.Scatterv(l, m.cfg, send, counts, displs, recv, root)
		}
	}
}

func (m *maker) alltoall(s *scenario, k coll.Kind) {
	// size[a][b] is the number of bytes from a to b. The matrix is symmetric, so every rank may
	// call in place.
	size := make([][]int, m.n)
	same := 8 * m.elems() / m.n
	for a := range size {
		size[a] = make([]int, m.n)
		for b := range a + 1 {
			if size[a][b] = same; k == coll.KindAlltoallv {
				size[a][b] = m.elems() * 8 / m.n
			}
			size[b][a] = size[a][b]
		}
	}
	data := make([][][]byte, m.n)
	for a := range data {
		data[a] = make([][]byte, m.n)
		for b := range data[a] {
			data[a][b] = m.bytes(size[a][b])
		}
	}
	for r := range m.n {
		place := func() (displs []int, total int) {
			displs = make([]int, m.n)
			for p := range displs {
				if k == coll.KindAlltoallv {
					total += m.rng.IntN(5)
				}
				displs[p] = total
				total += size[r][p]
			}
			return displs, total
		}
		sendDispls, sendTotal := place()
		recvDispls, recvTotal := place()
		wholeRecv, recv := newBuffer(recvTotal)
		wholeSend, send := newBuffer(sendTotal)
		inPlace := recvTotal > 0 && m.inPlace()
		if inPlace {
			send, sendDispls = recv, recvDispls
		}
		result := bytes.Clone(recv)
		for p := range m.n {
			copy(result[recvDispls[p]:], data[p][r])
			copy(send[sendDispls[p]:], data[r][p])
		}
		s.expect("recv", r, wholeRecv, result)
		if !inPlace {
			s.expect("send", r, wholeSend, bytes.Clone(send))
		}
		s.call[r] = func(l coll.Link) error {
			if k == coll.KindAlltoall {
				return coll.Alltoall(l, m.cfg, send, recv)
			}
			return coll.Alltoallv(l, m.cfg, send, size[r], sendDispls, recv, size[r], recvDispls)
		}
	}
}

// barrier records the arrival of each rank before the barrier. After it, each rank checks that all
// ranks have arrived.
func (m *maker) barrier(s *scenario) {
	b := newArrivals(m.n)
	for r := range m.n {
		s.call[r] = func(l coll.Link) error {
			b.add(r)
			if err := coll.Barrier(l, m.cfg); err != nil {
				return err
			}
			return b.all()
		}
	}
}
