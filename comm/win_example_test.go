package comm_test

import (
	"fmt"

	"github.com/weft-hpc/weft/comm"
)

func ExampleWin() {
	c := world()
	defer c.Finalize()
	w, err := comm.NewWin[float64](c, 4) // on each rank
	if err != nil {
		fmt.Println(err)
		return
	}
	next := (c.Rank() + 1) % c.Size()
	row := make([]float64, 2)
	for _, step := range []func() error{
		w.Fence,
		func() error { return w.Put([]float64{1.5, 2.5}, next, 1) },
		w.Fence, // what all have put is there
		func() error { return w.Get(row, next, 2) },
		w.Fence, // row is filled
	} {
		if err := step(); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(w.Local(), row)
	fmt.Println(w.Put(row, next, 3))
	fmt.Println(w.Free())
	// Output:
	// [0 1.5 2.5 0] [2.5 0]
	// comm: Put (win 0.1, rank 0): outside the target's part of the window: 2 elements from 3 on, and it has 4
	// <nil>
}

// A counter that all ranks draw numbers from, whatever rank 0 is doing.
func ExampleWin_FetchOp() {
	c := world()
	defer c.Finalize()
	n := 0
	if c.Rank() == 0 {
		n = 1
	}
	w, err := comm.NewWin[int64](c, n)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := w.LockAll(); err != nil {
		fmt.Println(err)
	}
	for range 3 {
		ticket, err := w.FetchOp(1, 0, 0, comm.Sum)
		fmt.Println(ticket, err)
	}
	drawn, err := w.FetchOp(0, 0, 0, comm.NoOp)
	fmt.Println(drawn, err)
	fmt.Println(w.UnlockAll(), w.Free())
	// Output:
	// 0 <nil>
	// 1 <nil>
	// 2 <nil>
	// 3 <nil>
	// <nil> <nil>
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
	was, err = w.CompareSwap(0, 6, 0, 0) // it is 5 by now
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
	if part, ok := w.Shared(next); ok { // ranks of one host: a store is all it takes
		part[2] = 2.5
	} else {
		_ = w.Lock(next, comm.LockShared)
		_ = w.Put([]float64{2.5}, next, 2)
		_ = w.Unlock(next)
	}
	err = comm.Barrier(c)
	fmt.Println(w.Local(), err)
	fmt.Println(w.Free()) // and with it the parts
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
