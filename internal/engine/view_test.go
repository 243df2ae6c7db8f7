package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/layout"
)

// viewShapes returns layouts of exactly n bytes: contiguous data (nil), and blocks of several sizes
// with gaps between them.
func viewShapes(n int) []*layout.Layout {
	blocks := func(size, stride int) *layout.Layout {
		l := layout.HVector(n/size, size, stride, layout.Bytes(1))
		if rest := n % size; rest > 0 { // add a shorter last block
			l = layout.Struct([]int{1, 1}, []int{0, n / size * stride}, []layout.Layout{l, layout.Bytes(rest)})
		}
		l = layout.Shift(5, l)
		return &l
	}
	return []*layout.Layout{nil, blocks(3, 7), blocks(64, 100), blocks(5000, 5001)}
}

// formOf returns l as a Form; nil for nil.
func formOf(l *layout.Layout) layout.Form {
	if l == nil {
		return nil
	}
	return l
}

// memoryOf returns memory for n bytes of data with the layout. Every byte of the memory is fill.
func memoryOf(l *layout.Layout, n int, fill byte) []byte {
	if l != nil {
		_, n = l.Span()
	}
	mem := make([]byte, n)
	for i := range mem {
		mem[i] = fill
	}
	return mem
}

// viewOf returns memory that holds data with the layout.
func viewOf(l *layout.Layout, data []byte) []byte {
	if l == nil {
		return data
	}
	mem := memoryOf(l, len(data), 0xEE)
	l.Unpack(mem, data, 0, 0)
	return mem
}

// checkView returns an error if mem does not hold data with the layout, or if a byte outside the
// layout is not fill.
func checkView(l *layout.Layout, mem, data []byte, fill byte) error {
	want := memoryOf(l, len(mem), fill)
	if l == nil {
		copy(want, data)
	} else {
		l.Unpack(want, data, 0, 0)
	}
	return check(mem, want)
}

// TestViews sends data of many sizes between ranks, and from a rank to itself, with each pair of a
// sender's and a receiver's layout.
func TestViews(t *testing.T) {
	everyFlavour(t, 3, func(t *testing.T, engines []*Engine, cs []*Context) {
		ranks(t, cs, func(c *Context, rank int) error {
			for i, n := range []int{0, 1, 7, 512, 5000, 70_000, 150_000} {
				shapes := viewShapes(n)
				for k := range len(shapes) * len(shapes) {
					from, to := shapes[k%len(shapes)], shapes[k/len(shapes)]
					mode := []Mode{Standard, Synchronous}[k%2]
					dest, source := (rank+i)%3, (rank+3-i%3)%3
					mem := memoryOf(to, n, 0xAA)
					recv := func() Request { return c.Irecv(mem, Env{Peer: source, Tag: i, Form: formOf(to)}) }
					var r Request
					// If k%3 is 0, the message can arrive before the receive, and is then
					// unexpected.
					if k%3 > 0 {
						r = recv()
					}
					s := c.Isend(viewOf(from, pattern(n, rank)), Env{Peer: dest, Tag: i, Mode: mode, Form: formOf(from)})
					if k%3 == 0 {
						r = recv()
					}
					st, err := r.Wait(background)
					if err != nil {
						return err
					}
					if st != (Status{Source: source, Tag: i, Bytes: n}) {
						return fmt.Errorf("status %+v for %d bytes", st, n)
					}
					if err := checkView(to, mem, pattern(n, source), 0xAA); err != nil {
						return fmt.Errorf("%d bytes, layouts %d and %d: %w", n, k%len(shapes), k/len(shapes), err)
					}
					if _, err := s.Wait(background); err != nil {
						return err
					}
				}
			}
			return nil
		})
		for _, e := range engines {
			e.mu.Lock()
			for _, r := range e.slots {
				require.True(t, r == nil || r.packed == nil, "a buffer of a packed part was not freed")
			}
			e.mu.Unlock()
		}
	})
}

// TestViewTooShort: a message that is longer than a receive with a layout fills the layout, and the
// receive fails with ErrTruncate. The next message is not affected.
func TestViewTooShort(t *testing.T) {
	everyFlavour(t, 2, func(t *testing.T, _ []*Engine, cs []*Context) {
		ranks(t, cs, func(c *Context, rank int) error {
			for _, n := range []int{10, 600, 100_000} {
				for _, self := range []bool{true, false} {
					from, to := viewShapes(n + 3)[1], viewShapes(n)[2]
					peer := 1 - rank
					if self {
						peer = rank
					}
					s := c.Isend(viewOf(from, pattern(n+3, rank)), Env{Peer: peer, Form: formOf(from)})
					mem := memoryOf(to, n, 0xAA)
					st, err := c.Recv(background, mem, Env{Peer: peer, Form: formOf(to)})
					if err := wantErr(err, ErrTruncate); err != nil {
						return err
					}
					if st.Bytes != n+3 {
						return fmt.Errorf("status %+v for %d bytes", st, n+3)
					}
					if err := checkView(to, mem, pattern(n+3, peer), 0xAA); err != nil {
						return err
					}
					_, _ = s.Wait(background) // fails if the send had to wait for the receive
					if _, err := c.sendrecv(pattern(8, rank), mem[:8], peer); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
}

// sendrecv sends to and receives from the same rank.
func (c *Context) sendrecv(send, recv []byte, peer int) (Status, error) {
	r := c.Irecv(recv, Env{Peer: peer, Tag: 1})
	if err := c.Send(background, send, Env{Peer: peer, Tag: 1}); err != nil {
		return Status{}, err
	}
	return r.Wait(background)
}

// TestAViewAllocatesNothing: the engine reuses the buffers for packed parts.
func TestAViewAllocatesNothing(t *testing.T) {
	everyFlavour(t, 1, func(t *testing.T, _ []*Engine, cs []*Context) {
		c := cs[0]
		for _, n := range []int{600, 1 << 20} {
			l := viewShapes(n)[2]
			send, recv := viewOf(l, pattern(n, 0)), memoryOf(l, n, 0)
			require.Zero(t, testing.AllocsPerRun(20, func() {
				r := c.Irecv(recv, Env{Peer: 0, Form: formOf(l)})
				require.NoError(t, c.Send(background, send, Env{Peer: 0, Form: formOf(l)}))
				_, err := r.Wait(background)
				require.NoError(t, err)
			}), "%d bytes", n)
		}
	})
}
