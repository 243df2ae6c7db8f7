package engine

import "math/bits"

// bufferPool keeps buffers for unexpected eager messages, by powers of two.
type bufferPool struct {
	free [64][][]byte
	kept int // bytes in free; at most bufferKept
}

const (
	bufferMin = 6 // 64 bytes

	// bufferKept bounds the bytes that the pool keeps for later messages. The garbage
	// collector frees the other buffers of a burst.
	bufferKept = 4 << 20
)

func (p *bufferPool) get(n int) []byte {
	if n == 0 {
		return nil
	}
	c := max(bits.Len(uint(n-1)), bufferMin)
	if l := len(p.free[c]); l > 0 {
		b := p.free[c][l-1]
		p.free[c][l-1] = nil
		p.free[c] = p.free[c][:l-1]
		p.kept -= cap(b)
		return b[:n]
	}
	return make([]byte, n, 1<<c)
}

func (p *bufferPool) put(b []byte) {
	if cap(b) == 0 || p.kept+cap(b) > bufferKept {
		return
	}
	p.kept += cap(b)
	c := bits.Len(uint(cap(b) - 1))
	p.free[c] = append(p.free[c], b)
}
