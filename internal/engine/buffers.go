package engine

import "math/bits"

// bufferPool keeps unused buffers for the data of unexpected eager messages. The size of each
// buffer is a power of two.
type bufferPool struct {
	free [64][][]byte // by c: unused buffers of 2^c bytes
	kept int          // bytes of all buffers in free; at most bufferKept
}

const (
	// bufferMin is the binary logarithm of the size of the smallest buffer, which is 64 bytes.
	bufferMin = 6

	// bufferKept is the maximum of bufferPool.kept. Buffers beyond it, which a burst of messages
	// needed, are left to the garbage collector.
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
