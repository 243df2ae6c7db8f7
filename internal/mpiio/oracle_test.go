package mpiio_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/pio"
)

// trial is a random sequence of operations on one file. All ranks draw the same numbers from rng.
// The file is a sequence of elements, and model is what it should have.
type trial struct {
	c     *comm.Comm
	rng   *rand.Rand
	f     *pio.File
	model []int32
	next  int32 // the next value that is written

	disp int     // elements before the first layout
	ext  int     // elements of a layout, gaps included
	offs [][]int // by rank: the places of the elements of a layout
	v    *pio.View[int32]
	pos  []int64 // by rank: the individual file pointer
}

// TestRandomOperations compares random collective and independent operations, with random views,
// layouts in memory and hints, with an array in memory.
func TestRandomOperations(t *testing.T) {
	seed := uint64(1)
	if s := os.Getenv("WEFT_TEST_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	overFabrics(t, []int{1, 2, 3, 5}, func(c *comm.Comm, name string) error {
		for round := range uint64(4) {
			x := &trial{c: c, rng: rand.New(rand.NewPCG(seed, 100*round+uint64(c.Size()))), next: 1}
			if err := x.run(name); err != nil {
				return fmt.Errorf("seed %d, round %d: %w", seed, round, err)
			}
			if err := c.Barrier(); err != nil {
				return err
			}
			if c.Rank() == 0 {
				if err := os.Remove(name); err != nil {
					return err
				}
			}
			if err := c.Barrier(); err != nil {
				return err
			}
		}
		return nil
	})
}

func (x *trial) run(name string) error {
	choice := func() string { return []string{"automatic", "automatic", "enable", "disable"}[x.rng.IntN(4)] }
	hints := []pio.Hint{
		{Key: "cb_buffer_size", Value: strconv.Itoa([]int{1, 7, 100, 4096, 16 << 20}[x.rng.IntN(5)])},
		{Key: "cb_nodes", Value: strconv.Itoa(x.rng.IntN(4))},
		{Key: "romio_cb_read", Value: choice()}, {Key: "romio_cb_write", Value: choice()},
		{Key: "romio_ds_read", Value: choice()}, {Key: "romio_ds_write", Value: choice()},
		{Key: "ind_rd_buffer_size", Value: strconv.Itoa([]int{1, 64, 4096}[x.rng.IntN(3)])},
		{Key: "ind_wr_buffer_size", Value: strconv.Itoa([]int{1, 64, 4096}[x.rng.IntN(3)])},
	}
	return withFile(x.c, name, func(f *pio.File) error {
		x.f = f
		if x.rng.IntN(4) == 0 {
			if err := f.SetAtomic(true); err != nil {
				return err
			}
		}
		for range 4 {
			if err := x.newView(); err != nil {
				return err
			}
			for range 5 {
				how, err := x.operation()
				if err == nil {
					err = x.compare(name)
				}
				if err != nil {
					return fmt.Errorf("hints %v, displacement %d, extent %d, places %v: %s: %w", hints, x.disp, x.ext, x.offs, how, err)
				}
			}
		}
		return nil
	}, hints...)
}

// newView makes views of random disjoint elements, in which some elements belong to no rank.
func (x *trial) newView() error {
	n := x.c.Size()
	x.disp, x.ext = x.rng.IntN(5), 1+x.rng.IntN(60)
	x.offs, x.pos = make([][]int, n), make([]int64, n)
	longest := 1 + x.rng.IntN(10)
	for at := 0; at < x.ext; {
		k := min(1+x.rng.IntN(longest), x.ext-at)
		if r := x.rng.IntN(n + 1); r < n {
			for i := range k {
				x.offs[r] = append(x.offs[r], at+i)
			}
		}
		at += k
	}
	mine := x.offs[x.c.Rank()]
	l := comm.Layout{}
	if len(mine) > 0 {
		l = comm.IndexedBlock(1, mine).Resized(0, x.ext)
	}
	var err error
	x.v, err = pio.NewView[int32](x.f, int64(4*x.disp), l)
	return err
}

// place returns the place in the file of element i of a rank's view.
func (x *trial) place(rank int, i int64) int {
	n := int64(len(x.offs[rank]))
	return x.disp + int(i/n)*x.ext + x.offs[rank][i%n]
}

// operation does one operation on all ranks. It returns a description.
func (x *trial) operation() (string, error) {
	n, me := x.c.Size(), x.c.Rank()
	write, all, form, pointer := x.rng.IntN(2) == 0, x.rng.IntN(3) > 0, x.rng.IntN(3), x.rng.IntN(2) == 0
	at, counts := make([]int64, n), make([]int, n)
	for r := range n {
		if len(x.offs[r]) > 0 {
			at[r], counts[r] = int64(x.rng.IntN(50)), x.rng.IntN(100)
		}
		if pointer {
			at[r] = x.pos[r]
		}
	}
	how := fmt.Sprintf("write %v, all %v, form %d, pointer %v, at %v, %v elements", write, all, form, pointer, at, counts)
	data := make([]int32, counts[me])
	want := counts[me] // number of elements that the operation should return
	for r := range n {
		got := counts[r]
		for i := range counts[r] {
			p := x.place(r, at[r]+int64(i))
			switch {
			case !write && p >= len(x.model):
				got = min(got, i)
			case write:
				x.model = append(x.model, make([]int32, max(0, p+1-len(x.model)))...)
				x.model[p] = x.next
				if r == me {
					data[i] = x.next
				}
				x.next++
			}
		}
		if pointer {
			x.pos[r] += int64(got)
		}
		if r == me {
			want = got
		}
	}
	expect := make([]int32, counts[me])
	for i := range want {
		if !write {
			expect[i] = x.model[x.place(me, at[me]+int64(i))]
		}
	}
	scattered := x.rng.IntN(2) == 0
	var k int
	var err error
	if scattered { // every second element of a larger slice
		l := comm.Vector(len(data), 1, 2).Shift(1)
		mem := make([]int32, 2*len(data)+1)
		for i, d := range data {
			mem[2*i+1] = d
		}
		if k, err = do(x.v, comm.Of(mem, l), write, all, form, pointer, at[me]); err == nil && !write {
			for i := range data {
				if data[i] = mem[2*i+1]; mem[2*i] != 0 {
					err = fmt.Errorf("element %d beside the view has changed", 2*i)
				}
			}
		}
	} else {
		k, err = do(x.v, data, write, all, form, pointer, at[me])
	}
	switch {
	case err != nil:
	case k != want:
		err = fmt.Errorf("%d elements instead of %d", k, want)
	case !write && !slices.Equal(data, expect):
		err = fmt.Errorf("read %v instead of %v", data, expect)
	case pointer && x.v.Position() != x.pos[me]:
		// A nonblocking form advances the pointer by all elements.
		if form == 0 || write || x.v.Position() != at[me]+int64(counts[me]) {
			err = fmt.Errorf("the pointer is %d instead of %d", x.v.Position(), x.pos[me])
		}
	}
	if err == nil && pointer {
		_, err = x.v.Seek(x.pos[me], 0)
	}
	return how, err
}

// do does an operation in one of its forms: blocking, nonblocking or split.
func do[M pio.Memory[int32]](v *pio.View[int32], mem M, write, all bool, form int, pointer bool, at int64) (int, error) {
	wait := func(r comm.Request) (int, error) {
		st, err := r.Wait()
		return st.Count, err
	}
	var err error
	switch {
	case !all && write && pointer && form == 0:
		return pio.Write(v, mem)
	case !all && write && pointer:
		return wait(pio.Iwrite(v, mem))
	case !all && write && form == 0:
		return pio.WriteAt(v, mem, at)
	case !all && write:
		return wait(pio.IwriteAt(v, mem, at))
	case !all && pointer && form == 0:
		return pio.Read(v, mem)
	case !all && pointer:
		return wait(pio.Iread(v, mem))
	case !all && form == 0:
		return pio.ReadAt(v, mem, at)
	case !all:
		return wait(pio.IreadAt(v, mem, at))
	case write && pointer && form == 0:
		return pio.WriteAll(v, mem)
	case write && pointer && form == 1:
		return wait(pio.IwriteAll(v, mem))
	case write && pointer:
		if err = pio.WriteAllBegin(v, mem); err == nil {
			return pio.WriteAllEnd(v)
		}
	case write && form == 0:
		return pio.WriteAtAll(v, mem, at)
	case write && form == 1:
		return wait(pio.IwriteAtAll(v, mem, at))
	case write:
		if err = pio.WriteAtAllBegin(v, mem, at); err == nil {
			return pio.WriteAtAllEnd(v)
		}
	case pointer && form == 0:
		return pio.ReadAll(v, mem)
	case pointer && form == 1:
		return wait(pio.IreadAll(v, mem))
	case pointer:
		if err = pio.ReadAllBegin(v, mem); err == nil {
			return pio.ReadAllEnd(v)
		}
	case form == 0:
		return pio.ReadAtAll(v, mem, at)
	case form == 1:
		return wait(pio.IreadAtAll(v, mem, at))
	default:
		if err = pio.ReadAtAllBegin(v, mem, at); err == nil {
			return pio.ReadAtAllEnd(v)
		}
	}
	return 0, err
}

// compare compares the file with the model, after all ranks have done the operation.
func (x *trial) compare(name string) error {
	if err := x.c.Barrier(); err != nil {
		return err
	}
	var err error
	if x.c.Rank() == 0 {
		err = compareFile(name, x.model)
	}
	ok := []int{0}
	if err != nil {
		ok[0] = 1
	}
	if err := comm.Bcast(x.c, ok, 0); err != nil {
		return err
	}
	if err == nil && ok[0] != 0 {
		return fmt.Errorf("rank 0 has found a difference")
	}
	return err
}

func compareFile(name string, want []int32) error {
	raw, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	got := make([]int32, len(raw)/4)
	for i := range got {
		got[i] = int32(uint32(raw[4*i]) | uint32(raw[4*i+1])<<8 | uint32(raw[4*i+2])<<16 | uint32(raw[4*i+3])<<24)
	}
	if len(raw) != 4*len(want) {
		return fmt.Errorf("the file has %d bytes instead of %d", len(raw), 4*len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("element %d of the file is %d instead of %d", i, got[i], want[i])
		}
	}
	return nil
}
