package transporttest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/weft-hpc/weft/transport"
)

var atomicCases = []testCase{
	{name: "atomics", needs: transport.CapAtomic, run: testAtomics},
	{name: "atomics at once", needs: transport.CapAtomic, run: testAtomicsAtOnce},
}

// atomic posts one atomic operation and waits until it is complete.
func (r *rank) atomic(q *request) error {
	return r.finish(q, func(q *request) error { return r.post(q, r.ep.(transport.AtomicEndpoint).Atomic) })
}

// testAtomics has each rank do every valid operation on elements of every type, in its own memory
// and in the memory of the next rank, and compares the elements with the result that a plain
// computation gives.
func testAtomics(w *world) {
	const room = 16 * 16
	all := make([]shared, len(w.ranks))
	w.each(func(r *rank) error {
		if err := r.share(all, make([]byte, room*r.n), transport.RemoteRead|transport.RemoteWrite); err != nil {
			return err
		}
		rng := rand.New(rand.NewPCG(uint64(r.id), 1))
		tried := 0
		for t := range transport.Datatypes {
			for op := range transport.AtomicOps {
				for fetch := range 2 {
					for _, p := range []transport.Addr{r.id, transport.Addr((int(r.id) + 1) % r.n)} {
						where := transport.Op{Peer: p, RemoteKey: all[p].key, RemoteAddr: all[p].at + uint64(room*int(r.id)), Datatype: t}
						n, err := r.tryAtomic(rng, where, op, fetch == 1)
						if err != nil {
							return fmt.Errorf("operation %d on type %d of rank %d: %w", op, t, p, err)
						}
						tried += n
					}
				}
			}
		}
		if tried == 0 {
			return errors.New("the domain declares CapAtomic, but no operation is valid")
		}
		return r.unshare(all)
	})
}

// tryAtomic does the operation op on 1, 3 and 16 elements, as far as AtomicValid permits, and
// checks the results. where holds the peer, the place in the peer's region and the element type.
// tryAtomic first writes random elements there. If fetch is set, op also fetches the former
// elements. tryAtomic returns how many of the three operations it has done.
func (r *rank) tryAtomic(rng *rand.Rand, where transport.Op, op transport.AtomicOp, fetch bool) (tried int, err error) {
	if !fetch && (op == transport.AtomicRead || op == transport.AtomicCswap) {
		return 0, nil // without Fetch these operations have no result
	}
	size := where.Datatype.Size()
	for _, elems := range []int{1, 3, 16} {
		n := elems * size
		former, data, compare, got := make([]byte, n), make([]byte, n), make([]byte, n), make([]byte, n)
		for _, b := range [][]byte{former, data, compare} {
			for i := 0; i < n; i += size {
				randomElement(rng, where.Datatype, b[i:])
			}
		}
		for i := 0; i < n; i += 2 * size {
			// Every second element of compare equals the element at the target.
			copy(compare[i:i+size], former[i:])
		}
		set, look, q := &request{op: where}, &request{op: where}, &request{op: where}
		set.op.Atomic, set.op.Data = transport.AtomicWrite, former
		look.op.Atomic, look.op.Fetch = transport.AtomicRead, make([]byte, n)
		q.op.Atomic, q.op.Data = op, data
		if fetch {
			q.op.Fetch = got
		}
		if op == transport.AtomicCswap {
			q.op.Compare = compare
		}
		for _, x := range []*request{set, look, q} {
			count, ok := r.ep.(transport.AtomicEndpoint).AtomicValid(&x.op)
			if !ok || count < elems {
				return tried, nil
			}
		}
		for _, x := range []*request{set, q, look} {
			if err := r.atomic(x); err != nil {
				return tried, err
			}
		}
		want := bytes.Clone(former)
		for i := 0; i < n; i += size {
			combineElement(op, where.Datatype, want[i:i+size], data[i:], compare[i:])
		}
		if fetch && !bytes.Equal(got, former) {
			return tried, fmt.Errorf("fetched %x, want %x", got, former)
		}
		if !bytes.Equal(look.op.Fetch, want) {
			return tried, fmt.Errorf("%x and %x give %x, want %x", former, data, look.op.Fetch, want)
		}
		tried++
	}
	return tried, nil
}

// randomElement writes a random element of type t to b. An integer may have any value. A
// floating-point number is an integer from -20 to 20, so that results are exact.
func randomElement(rng *rand.Rand, t transport.Datatype, b []byte) {
	small := func() float64 { return float64(rng.IntN(41) - 20) }
	switch t {
	case transport.Float32:
		binary.NativeEndian.PutUint32(b, math.Float32bits(float32(small())))
	case transport.Float64:
		binary.NativeEndian.PutUint64(b, math.Float64bits(small()))
	case transport.Complex64:
		randomElement(rng, transport.Float32, b)
		randomElement(rng, transport.Float32, b[4:])
	case transport.Complex128:
		randomElement(rng, transport.Float64, b)
		randomElement(rng, transport.Float64, b[8:])
	default:
		for i := range t.Size() {
			b[i] = byte(rng.IntN(256))
		}
		// The value 0 is false for the logical operations. Without this it would be rare for
		// large types.
		if rng.IntN(4) == 0 {
			clear(b[:t.Size()])
		}
	}
}

// combineElement computes the expected result of the operation op on one element: it sets elem, the
// former value, to the new value for the operands data and compare.
func combineElement(op transport.AtomicOp, t transport.Datatype, elem, data, compare []byte) {
	size := t.Size()
	switch {
	case op == transport.AtomicRead:
	case op == transport.AtomicWrite:
		copy(elem, data[:size])
	case op == transport.AtomicCswap:
		if bytes.Equal(elem, compare[:size]) {
			copy(elem, data[:size])
		}
	case t == transport.Complex64, t == transport.Complex128:
		x, y := complexOf(elem), complexOf(data[:size])
		switch op {
		case transport.AtomicSum:
			putComplex(elem, x+y)
		case transport.AtomicProd:
			putComplex(elem, x*y)
		default:
			putComplex(elem, complex(combineReal(op, truth(x != 0), truth(y != 0)), 0))
		}
	case t == transport.Float32:
		x := combineReal(op, float64(math.Float32frombits(binary.NativeEndian.Uint32(elem))), float64(math.Float32frombits(binary.NativeEndian.Uint32(data))))
		binary.NativeEndian.PutUint32(elem, math.Float32bits(float32(x)))
	case t == transport.Float64:
		x := combineReal(op, math.Float64frombits(binary.NativeEndian.Uint64(elem)), math.Float64frombits(binary.NativeEndian.Uint64(data)))
		binary.NativeEndian.PutUint64(elem, math.Float64bits(x))
	default:
		signed := t == transport.Int8 || t == transport.Int16 || t == transport.Int32 || t == transport.Int64
		putInteger(elem, combineInteger(op, integerOf(elem, signed), integerOf(data[:size], signed), signed))
	}
}

func combineReal(op transport.AtomicOp, x, y float64) float64 {
	switch op {
	case transport.AtomicMin:
		return math.Min(x, y)
	case transport.AtomicMax:
		return math.Max(x, y)
	case transport.AtomicSum:
		return x + y
	case transport.AtomicProd:
		return x * y
	case transport.AtomicLor:
		return truth(x != 0 || y != 0)
	case transport.AtomicLand:
		return truth(x != 0 && y != 0)
	case transport.AtomicLxor:
		return truth((x != 0) != (y != 0))
	default:
		return math.NaN() // AtomicValid returns false for bitwise operations on floating-point numbers
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func combineInteger(op transport.AtomicOp, x, y int64, signed bool) int64 {
	less := x < y
	if !signed {
		less = uint64(x) < uint64(y)
	}
	yes := false
	switch op {
	case transport.AtomicMin:
		if less {
			return x
		}
		return y
	case transport.AtomicMax:
		if less {
			return y
		}
		return x
	case transport.AtomicSum:
		return x + y
	case transport.AtomicProd:
		return x * y
	case transport.AtomicBor:
		return x | y
	case transport.AtomicBand:
		return x & y
	case transport.AtomicBxor:
		return x ^ y
	case transport.AtomicLor:
		yes = x != 0 || y != 0
	case transport.AtomicLand:
		yes = x != 0 && y != 0
	case transport.AtomicLxor:
		yes = (x != 0) != (y != 0)
	default: // combineElement handles read, write and compare-and-swap
	}
	if yes {
		return 1
	}
	return 0
}

// integerOf returns the integer that b holds in the machine's byte order. signed says whether the
// highest bit is a sign.
func integerOf(b []byte, signed bool) int64 {
	var x uint64
	switch len(b) {
	case 1:
		x = uint64(b[0])
	case 2:
		x = uint64(binary.NativeEndian.Uint16(b))
	case 4:
		x = uint64(binary.NativeEndian.Uint32(b))
	default:
		x = binary.NativeEndian.Uint64(b)
	}
	if above := 64 - 8*len(b); signed {
		return int64(x<<above) >> above
	}
	return int64(x)
}

func putInteger(b []byte, x int64) {
	switch len(b) {
	case 1:
		b[0] = byte(x)
	case 2:
		binary.NativeEndian.PutUint16(b, uint16(x))
	case 4:
		binary.NativeEndian.PutUint32(b, uint32(x))
	default:
		binary.NativeEndian.PutUint64(b, uint64(x))
	}
}

func complexOf(b []byte) complex128 {
	if len(b) == 8 {
		return complex(float64(math.Float32frombits(binary.NativeEndian.Uint32(b))), float64(math.Float32frombits(binary.NativeEndian.Uint32(b[4:]))))
	}
	return complex(math.Float64frombits(binary.NativeEndian.Uint64(b)), math.Float64frombits(binary.NativeEndian.Uint64(b[8:])))
}

func putComplex(b []byte, x complex128) {
	if len(b) == 8 {
		binary.NativeEndian.PutUint32(b, math.Float32bits(float32(real(x))))
		binary.NativeEndian.PutUint32(b[4:], math.Float32bits(float32(imag(x))))
		return
	}
	binary.NativeEndian.PutUint64(b, math.Float64bits(real(x)))
	binary.NativeEndian.PutUint64(b[8:], math.Float64bits(imag(x)))
}

// testAtomicsAtOnce has all ranks change the same elements of every rank at the same time. They
// increment one word, and no two increments may fetch the same value. They increment small elements
// that are side by side in one word. And they increment an element by compare-and-swap.
func testAtomicsAtOnce(w *world) {
	const (
		rounds = 60
		// Offsets of the elements in a rank's memory, and its size in bytes.
		sum64  = 0
		sum32f = 8
		bytes4 = 12 // of the first of four bytes
		swaps  = 16
		length = 24
	)
	all := make([]shared, len(w.ranks))
	seen := make([][]bool, len(w.ranks)) // seen[p][v]: the value v was fetched from rank p
	marks := make(chan [2]int, rounds*len(w.ranks)*len(w.ranks))
	for i := range seen {
		seen[i] = make([]bool, rounds*len(w.ranks))
	}
	w.each(func(r *rank) error {
		if err := r.share(all, make([]byte, length), transport.RemoteRead|transport.RemoteWrite); err != nil {
			return err
		}
		at := func(p transport.Addr, off int, op transport.AtomicOp, t transport.Datatype) *request {
			size := t.Size()
			return &request{op: transport.Op{
				Peer: p, RemoteKey: all[p].key, RemoteAddr: all[p].at + uint64(off), Atomic: op, Datatype: t,
				Data: make([]byte, size), Fetch: make([]byte, size),
			}}
		}
		valid := func(qs ...*request) bool {
			for _, q := range qs {
				if n, ok := r.ep.(transport.AtomicEndpoint).AtomicValid(&q.op); !ok || n < 1 {
					return false
				}
			}
			return true
		}
		for round := range rounds {
			err := r.peers(func(p transport.Addr) error {
				q := at(p, sum64, transport.AtomicSum, transport.Int64)
				if putInteger(q.op.Data, 1); valid(q) {
					if err := r.atomic(q); err != nil {
						return err
					}
					marks <- [2]int{int(p), int(integerOf(q.op.Fetch, true))}
				}
				q = at(p, sum32f, transport.AtomicSum, transport.Float32)
				binary.NativeEndian.PutUint32(q.op.Data, math.Float32bits(1))
				if q.op.Fetch = nil; valid(q) {
					if err := r.atomic(q); err != nil {
						return err
					}
				}
				q = at(p, bytes4+(int(r.id)+round)%4, transport.AtomicSum, transport.Uint8)
				q.op.Data[0] = 1
				if q.op.Fetch = nil; valid(q) {
					if err := r.atomic(q); err != nil {
						return err
					}
				}
				q = at(p, swaps, transport.AtomicCswap, transport.Uint64)
				q.op.Compare = make([]byte, 8)
				for valid(q) {
					was := integerOf(q.op.Compare, false)
					putInteger(q.op.Data, was+1)
					if err := r.atomic(q); err != nil {
						return err
					}
					if bytes.Equal(q.op.Fetch, q.op.Compare) {
						break
					}
					copy(q.op.Compare, q.op.Fetch)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		if err := r.sync(); err != nil {
			return err
		}
		total := int64(rounds * r.n)
		got := make([]byte, length)
		// The elements are read by atomics, as they were changed by atomics.
		for off := 0; off < length; off += 8 {
			q := at(r.id, off, transport.AtomicRead, transport.Uint64)
			if q.op.Data = nil; !valid(q) {
				continue
			}
			if err := r.atomic(q); err != nil {
				return err
			}
			copy(got[off:], q.op.Fetch)
		}
		small := 0
		for _, b := range got[bytes4 : bytes4+4] {
			small += int(b)
		}
		check := func(what string, q *request, have, want int64) error {
			if valid(q) && have != want {
				return fmt.Errorf("%s: got %d, want %d", what, have, want)
			}
			return nil
		}
		swap := at(r.id, swaps, transport.AtomicCswap, transport.Uint64)
		swap.op.Compare = swap.op.Data
		err := errors.Join(
			check("sum", at(r.id, 0, transport.AtomicSum, transport.Int64), integerOf(got[sum64:sum64+8], true), total),
			check("sum of floats", at(r.id, 0, transport.AtomicSum, transport.Float32), int64(math.Float32frombits(binary.NativeEndian.Uint32(got[sum32f:]))), total),
			check("sum of bytes", at(r.id, 0, transport.AtomicSum, transport.Uint8), int64(small), total),
			check("swaps", swap, integerOf(got[swaps:swaps+8], false), total),
		)
		return errors.Join(err, r.unshare(all))
	})
	close(marks)
	for m := range marks {
		if m[1] < 0 || m[1] >= len(seen[m[0]]) || seen[m[0]][m[1]] {
			w.t.Fatalf("the value %d was fetched twice from rank %d, or is out of range", m[1], m[0])
		}
		seen[m[0]][m[1]] = true
	}
}
