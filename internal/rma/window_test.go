package rma

import (
	"testing"
)

// TestLong checks the results of operations that are longer than one message or segment, with the
// other rank and on a rank's own part, over fabrics with all methods.
func TestLong(t *testing.T) {
	const size = 1 << 18
	for name, open := range flavours() {
		if name == "like verbs" || name == "native, slow" || name == "no room" || name == "small messages" {
			continue // long operations over this fabric take too long
		}
		t.Run(name, func(t *testing.T) {
			p, set := open()
			ms := openWindows(t, openEngines(t, 2, p, set), 2*size, ofInt64())
			each(t, ms, func(m *member) error {
				if err := m.fence(); err != nil {
					return err
				}
				for target := range 2 {
					at := size * m.rank
					src, ones, got := pattern(size, target), make([]byte, size), make([]byte, size)
					for i := 0; i < size; i += 8 {
						put(ones[i:], 1)
					}
					if err := m.Put(background, target, at, src); err != nil {
						return err
					}
					if err := m.Flush(background, target); err != nil {
						return err
					}
					if err := m.Accumulate(background, target, at, ones, Sum); err != nil {
						return err
					}
					if err := m.GetAccumulate(background, target, at, ones, got, Sum); err != nil {
						return err
					}
					again := make([]byte, size)
					if err := m.Flush(background, target); err != nil {
						return err
					}
					if err := m.Get(background, target, at, again); err != nil {
						return err
					}
					if err := m.Flush(background, target); err != nil {
						return err
					}
					for i := 0; i < size; i += 8 {
						put(src[i:], get(src[i:])+1)
					}
					if err := same(got, src); err != nil {
						return err
					}
					for i := 0; i < size; i += 8 {
						put(src[i:], get(src[i:])+1)
					}
					if err := same(again, src); err != nil {
						return err
					}
				}
				return m.fence()
			})
		})
	}
}

// TestPutAndGet puts data to the right neighbour and gets data from the left one, on every rank.
func TestPutAndGet(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 7} {
		everyFlavour(t, n, 1<<12, func(t *testing.T, ms []*member) {
			each(t, ms, func(m *member) error {
				if err := m.fence(); err != nil {
					return err
				}
				src := pattern(1000, m.rank)
				if err := m.Put(background, (m.rank+1)%n, 8, src); err != nil {
					return err
				}
				if err := m.fence(); err != nil {
					return err
				}
				got := make([]byte, 1000)
				if err := m.Get(background, (m.rank+n-1)%n, 8, got); err != nil {
					return err
				}
				if err := m.fence(); err != nil {
					return err
				}
				if err := same(got, pattern(1000, (m.rank+2*n-2)%n)); err != nil {
					return err
				}
				return same(m.local[8:1008], pattern(1000, (m.rank+n-1)%n))
			})
		})
	}
}
