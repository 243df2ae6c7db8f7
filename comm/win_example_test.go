package comm_test

import (
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// Each rank puts two numbers into the window part of the next rank, and gets two from there.
func ExampleNewWin() {
	commtest.Run(t, 3, func(c *comm.Comm) error {
		w, err := comm.NewWin[float64](c, 4) // four elements on each rank
		if err != nil {
			return err
		}
		next := (c.Rank() + 1) % c.Size()
		row := make([]float64, 2)
		for _, step := range []func() error{
			w.Fence,
			func() error { return w.Put([]float64{float64(c.Rank()), 0.5}, next, 1) },
			w.Fence, // now each part holds what the previous rank has put there
			func() error { return w.Get(row, next, 1) },
			w.Fence, // now row holds what Get has read
		} {
			if err := step(); err != nil {
				return err
			}
		}
		if c.Rank() == 1 {
			fmt.Println(w.Local(), row)
			fmt.Println(w.Put(row, next, 3))
		}
		return w.Free()
	})
	// Output:
	// [0 0 0.5 0] [1 0.5]
	// comm: Put (win 0.1, rank 2): outside the target's part of the window: 2 elements from element 3 on, but the part has 4
}

// A shared counter: all ranks draw numbers from an element of rank 0's part. Rank 0 need not call
// anything for that. No number is drawn twice.
func ExampleWin_FetchOp() {
	commtest.Run(t, 3, func(c *comm.Comm) error {
		n := 0
		if c.Rank() == 0 {
			n = 1
		}
		w, err := comm.NewWin[int64](c, n)
		if err != nil {
			return err
		}
		if err := w.LockAll(); err != nil {
			return err
		}
		drawn := make([]int64, 2)
		for i := range drawn {
			if drawn[i], err = w.FetchOp(1, 0, 0, comm.Sum); err != nil {
				return err
			}
		}
		if err := w.UnlockAll(); err != nil {
			return err
		}
		all := make([]int64, len(drawn)*c.Size())
		if err := comm.Gather(c, drawn, all, 0); err != nil {
			return err
		}
		if c.Rank() == 0 {
			slices.Sort(all)
			fmt.Println(all)
		}
		return w.Free()
	})
	// Output: [0 1 2 3 4 5]
}

func ExampleWin_CompareSwap() {
	c := world()
	defer c.Finalize()
	w, err := comm.WinOf(c, []uint32{0})
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = w.Lock(0, comm.LockShared)
	was, err := w.CompareSwap(0, 5, 0, 0)
	fmt.Println(was, err)
	was, err = w.CompareSwap(0, 6, 0, 0) // fails, because the element is 5
	fmt.Println(was, err)
	_ = w.Unlock(0)
	fmt.Println(w.Local(), w.Free())
	// Output:
	// 0 <nil>
	// 5 <nil>
	// [5] <nil>
}

func ExampleWin_Shared() {
	c := world()
	defer c.Finalize()
	w, err := comm.NewWin[float64](c, 3)
	if err != nil {
		fmt.Println(err)
		return
	}
	next := (c.Rank() + 1) % c.Size()
	if part, ok := w.Shared(next); ok { // this rank has mapped the part, so a store is enough
		part[2] = 2.5
	} else {
		_ = w.Lock(next, comm.LockShared)
		_ = w.Put([]float64{2.5}, next, 2)
		_ = w.Unlock(next)
	}
	err = c.Barrier()
	fmt.Println(w.Local(), err)
	fmt.Println(w.Free()) // also frees the memory of the parts
	// Output:
	// [0 0 2.5] <nil>
	// <nil>
}

func ExampleAlloc() {
	c := world()
	defer c.Finalize()
	mem, free, err := comm.Alloc[float64](c, 1<<20)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer free()
	mem[1<<20-1] = 2.5
	fmt.Println(len(mem), mem[0], mem[1<<20-1])
	// Output: 1048576 0 2.5
}
