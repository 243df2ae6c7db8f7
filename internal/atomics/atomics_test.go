package atomics

import (
	"encoding/binary"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// words returns n zeroed bytes, aligned to 8 bytes.
func words(n int) []byte {
	b := make([]byte, n+7)
	for !Aligned(b, 8) {
		b = b[1:]
	}
	return b[:n:n]
}

// wordTypes are the element types of 4 and 8 bytes.
var wordTypes = []transport.Datatype{
	transport.Int32, transport.Uint32, transport.Int64, transport.Uint64, transport.Float32, transport.Float64, transport.Complex64,
}

// element returns the bits of an element of 4 or 8 bytes.
func element(b []byte, size int) uint64 {
	if size == 4 {
		return uint64(binary.NativeEndian.Uint32(b))
	}
	return binary.NativeEndian.Uint64(b)
}

// putElement writes the bits of an element of 4 or 8 bytes.
func putElement(b []byte, size int, bits uint64) {
	if size == 4 {
		binary.NativeEndian.PutUint32(b, uint32(bits))
	} else {
		binary.NativeEndian.PutUint64(b, bits)
	}
}

// apply applies op to the elements of mem, one after the other, with the elements of data as
// operands, and writes the previous values to fetch, unless fetch is nil. Only AtomicCswap uses
// compare. data may be nil if op is AtomicRead.
func apply(op transport.AtomicOp, t transport.Datatype, mem, data, compare, fetch []byte) {
	c, size, swaps := For(op, t), t.Size(), op == transport.AtomicCswap
	for i := 0; i < len(mem); i += size {
		var in, with, old uint64
		if data != nil {
			in = element(data[i:], size)
		}
		if compare != nil {
			with = element(compare[i:], size)
		}
		switch {
		case size == 8 && swaps:
			old = CompareSwap64(Word64(mem[i:]), with, in)
		case size == 8:
			old = c.On64(Word64(mem[i:]), in)
		case swaps:
			old = uint64(CompareSwap32(Word32(mem[i:]), uint32(with), uint32(in)))
		default:
			old = uint64(c.On32(Word32(mem[i:]), uint32(in)))
		}
		if fetch != nil {
			putElement(fetch[i:], size, old)
		}
	}
}

func TestAligned(t *testing.T) {
	b := words(8)
	for at, largest := range []int{8, 1, 2, 1, 4, 1, 2, 1} {
		for n := 1; n <= 8; n *= 2 {
			require.Equal(t, n <= largest, Aligned(b[at:], n), "%d at %d", n, at)
		}
	}
	require.Panics(t, func() { Word64(b[:7]) })
	require.Panics(t, func() { Word32(b[:3]) })
}

// TestReadsWritesSwaps checks reads, writes and swaps, which are the same for all types, and that
// they do not change neighbouring bytes.
func TestReadsWritesSwaps(t *testing.T) {
	for _, typ := range wordTypes {
		size := typ.Size()
		mem, fetch := words(32), make([]byte, size)
		at := mem[8+8-size : 16] // the end of a word
		one, two, clean := element([]byte("12345678"), size), element([]byte("abcdefgh"), size), append([]byte(nil), mem...)
		bytes := func(bits uint64) []byte {
			b := words(size)
			putElement(b, size, bits)
			return b
		}
		for i, x := range []struct {
			op            transport.AtomicOp
			data, compare []byte
			before, after uint64
		}{
			{transport.AtomicWrite, bytes(one), nil, 0, one},
			{transport.AtomicRead, nil, nil, one, one},
			{transport.AtomicCswap, bytes(two), bytes(two), one, one},
			{transport.AtomicCswap, bytes(two), bytes(one), one, two},
			{transport.AtomicRead, bytes(one), nil, two, two},
			{transport.AtomicWrite, bytes(one), nil, two, one},
		} {
			apply(x.op, typ, at, x.data, x.compare, fetch)
			require.Equal(t, x.before, element(fetch, size), "type %d, step %d", typ, i)
			require.Equal(t, x.after, element(at, size), "type %d, step %d", typ, i)
			copy(clean[16-size:16], at)
			require.Equal(t, clean, mem, "type %d, step %d: the bytes beside", typ, i)
		}
		apply(transport.AtomicWrite, typ, at, bytes(two), nil, nil)
		require.Equal(t, two, element(at, size))
	}
}

// TestTogether runs goroutines that change neighbouring elements of both sizes at the same time. No
// update may be lost.
func TestTogether(t *testing.T) {
	const workers, rounds = 4, 500
	mem := words(32)
	type place struct {
		typ transport.Datatype
		at  int
	}
	places := []place{
		{transport.Float32, 4}, {transport.Int64, 8}, {transport.Float64, 16}, {transport.Uint32, 24},
	}
	ones := make([][]byte, len(places))
	for i, p := range places {
		ones[i] = words(p.typ.Size())
		switch p.typ {
		case transport.Float32:
			putElement(ones[i], 4, bits32(1))
		case transport.Float64:
			putElement(ones[i], 8, bits64(1))
		default:
			putElement(ones[i], p.typ.Size(), 1)
		}
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() { // ends after its rounds
			for range rounds {
				for i, p := range places {
					apply(transport.AtomicSum, p.typ, mem[p.at:p.at+p.typ.Size()], ones[i], nil, nil)
				}
			}
		})
	}
	wg.Wait()
	for _, p := range places {
		got := element(mem[p.at:], p.typ.Size())
		switch p.typ {
		case transport.Float32:
			require.Equal(t, bits32(workers*rounds), got)
		case transport.Float64:
			require.Equal(t, bits64(workers*rounds), got)
		default:
			require.Equal(t, uint64(workers*rounds), got, "%+v", p)
		}
	}
	require.Equal(t, make([]byte, 8), append(mem[:4:4], mem[28:]...), "bytes that belong to no element")
}

// TestCompareSwapGuards uses AtomicCswap as a spin lock around an increment, and checks that no
// increment is lost, and that the race detector sees no data race.
func TestCompareSwapGuards(t *testing.T) {
	const workers, rounds = 4, 200
	for _, typ := range []transport.Datatype{transport.Uint32, transport.Uint64} {
		size := typ.Size()
		lock, counter := words(8)[:size], 0
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() { // ends after its rounds
				free, taken, was := words(size), words(size), words(size)
				taken[0] = 1
				for range rounds {
					for was[0] = 1; was[0] != 0; {
						apply(transport.AtomicCswap, typ, lock, taken, free, was)
					}
					counter++
					apply(transport.AtomicWrite, typ, lock, free, nil, nil)
				}
			})
		}
		wg.Wait()
		require.Equal(t, workers*rounds, counter)
	}
}

func TestAllocations(t *testing.T) {
	mem, data, fetch := words(64), words(64), words(64)
	require.Zero(t, testing.AllocsPerRun(20, func() {
		for _, typ := range wordTypes {
			for op := range transport.AtomicOps {
				switch {
				case op == transport.AtomicCswap:
					apply(op, typ, mem, data, data, fetch)
				case op == transport.AtomicRead || op == transport.AtomicWrite || Combines(op, typ):
					apply(op, typ, mem, data, nil, fetch)
				}
			}
		}
	}))
}

// TestNaNs checks that an operation with a NaN operand, including Min and Max, yields the one NaN
// of package kernel.
func TestNaNs(t *testing.T) {
	for _, op := range []transport.AtomicOp{transport.AtomicMin, transport.AtomicMax, transport.AtomicSum, transport.AtomicProd} {
		mem, data := words(8), words(8)
		binary.NativeEndian.PutUint64(mem, math.Float64bits(1))
		binary.NativeEndian.PutUint64(data, 0xfff8000000000123)
		apply(op, transport.Float64, mem, data, nil, nil)
		require.EqualValues(t, 0x7ff8000000000000, binary.NativeEndian.Uint64(mem))
	}
}
