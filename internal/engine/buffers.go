package engine

import "math/bits"

// bufferPool keeps the buffers of unexpected eager messages, by powers of two.
// The credits bound how much it can ever hold.
type bufferPool struct {
	free [32][][]byte
}

const bufferMin = 6 // 64 bytes

func (p *bufferPool) get(n int) []byte {
	if n == 0 {
		return nil
	}
	c := max(bits.Len(uint(n-1)), bufferMin)
	if l := len(p.free[c]); l > 0 {
		b := p.free[c][l-1]
		p.free[c][l-1] = nil
		p.free[c] = p.free[c][:l-1]
		return b[:n]
	}
	return make([]byte, n, 1<<c)
}

func (p *bufferPool) put(b []byte) {
	if cap(b) == 0 {
		return
	}
	c := bits.Len(uint(cap(b) - 1))
	p.free[c] = append(p.free[c], b)
}
