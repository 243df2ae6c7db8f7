package comm_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// t stands for the *testing.T of a test, because examples have none.
var t exampleT

// exampleT is a testing.TB for commtest.Run. It panics if Run fails the test.
type exampleT struct{ testing.TB }

func (exampleT) Helper() {}

func (exampleT) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (exampleT) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// world returns the world, which has one rank, because no launcher has started the process.
func world() *comm.Comm {
	c, err := comm.Init(context.Background())
	if err != nil {
		panic(err)
	}
	return c
}

func ExampleMain() {
	comm.Main(func(c *comm.Comm) error {
		x := []float64{float64(c.Rank() + 1)}
		sum := make([]float64, 1)
		if err := comm.Allreduce(c, x, sum, comm.Sum); err != nil {
			return err
		}
		fmt.Println(c.Rank(), "of", c.Size(), "sum", sum[0])
		return nil
	})
	// Output: 0 of 1 sum 1
}

// A rank sends two numbers to another rank.
func ExampleSend() {
	commtest.Run(t, 2, func(c *comm.Comm) error {
		const tag = 5
		if c.Rank() == 0 {
			return comm.Send(c, []int{1, 2}, 1, tag)
		}
		buf := make([]int, 3)
		st, err := comm.Recv(c, buf, 0, tag)
		fmt.Println(st.Source, st.Tag, buf[:st.Count], err)
		return err
	})
	// Output: 0 5 [1 2] <nil>
}

// The elements of a message must not hold pointers.
func ExampleSend_pointers() {
	c := world()
	defer c.Finalize()
	fmt.Println(comm.Send(c, []string{"no"}, 0, 5))
	// Output: comm: Send (world, rank 0, tag 5): type cannot be sent: string holds pointers
}

// Rank 0 receives a message from each other rank, in the order in which they arrive.
func ExampleRecv() {
	commtest.Run(t, 4, func(c *comm.Comm) error {
		if c.Rank() != 0 {
			return comm.Send(c, []int{10 * c.Rank()}, 0, 0)
		}
		sent := make([]int, c.Size())
		for range c.Size() - 1 {
			buf := make([]int, 1)
			st, err := comm.Recv(c, buf, comm.AnySource, comm.AnyTag)
			if err != nil {
				return err
			}
			sent[st.Source] = buf[0]
		}
		fmt.Println(sent)
		return nil
	})
	// Output: [0 10 20 30]
}

// A halo exchange: each rank has two cells of a line, and a copy of the nearest cell of each
// neighbor. The ends of the line have one neighbor only.
func ExampleSendrecv() {
	commtest.Run(t, 3, func(c *comm.Comm) error {
		const n = 2
		cells := make([]float64, n+2) // the first and the last one are the copies
		for i := range n {
			cells[1+i] = float64(1 + n*c.Rank() + i)
		}
		left, right := c.Rank()-1, c.Rank()+1
		if left < 0 {
			left = comm.ProcNull
		}
		if right == c.Size() {
			right = comm.ProcNull
		}
		if _, err := comm.Sendrecv(c, cells[n:n+1], right, 0, cells[:1], left, 0); err != nil {
			return err
		}
		if _, err := comm.Sendrecv(c, cells[1:2], left, 1, cells[n+1:], right, 1); err != nil {
			return err
		}
		all := make([]float64, c.Size()*len(cells))
		if err := comm.Gather(c, cells, all, 0); err != nil || c.Rank() != 0 {
			return err
		}
		for rank := range c.Size() {
			fmt.Println(rank, all[rank*len(cells):][:len(cells)])
		}
		return nil
	})
	// Output:
	// 0 [0 1 2 3]
	// 1 [2 3 4 5]
	// 2 [4 5 6 0]
}

// All ranks get the lowest of their temperatures, the sum, and the rank with the highest one.
func ExampleAllreduce() {
	type celsius float64
	commtest.Run(t, 3, func(c *comm.Comm) error {
		own := []celsius{-3.5, 20, 7}[c.Rank()]

		coldest := make([]celsius, 1)
		if err := comm.Allreduce(c, []celsius{own}, coldest, comm.Min); err != nil {
			return err
		}
		sum := []celsius{own} // in place: both slices are the same
		if err := comm.Allreduce(c, sum, sum, comm.Sum); err != nil {
			return err
		}
		warmest := make([]comm.Loc[celsius], 1)
		if err := comm.Allreduce(c, []comm.Loc[celsius]{{Value: own, Index: c.Rank()}}, warmest, comm.MaxLoc); err != nil {
			return err
		}
		if c.Rank() == 2 {
			fmt.Println(coldest[0], sum[0], warmest[0].Value, "on rank", warmest[0].Index)
		}
		return nil
	})
	// Output: -3.5 23.5 20 on rank 1
}

func ExampleOpFunc() {
	c := world()
	defer c.Finalize()
	join := comm.OpFunc(false, func(inout, in []rune) {
		for i := range inout {
			inout[i] = max(in[i], inout[i])
		}
	})
	last := make([]rune, 3)
	err := comm.Allreduce(c, []rune("bye"), last, join)
	fmt.Println(string(last), err)
	// Output: bye <nil>
}

// The ranks with even and with odd numbers get a communicator each.
func ExampleComm_Split() {
	commtest.Run(t, 5, func(c *comm.Comm) error {
		half, err := c.Split(c.Rank()%2, c.Rank())
		if err != nil {
			return err
		}
		sum := make([]int, 1)
		if err := comm.Allreduce(half, []int{c.Rank()}, sum, comm.Sum); err != nil {
			return err
		}
		all := make([][3]int, c.Size())
		if err := comm.Gather(c, [][3]int{{half.Rank(), half.Size(), sum[0]}}, all, 0); err != nil {
			return err
		}
		if c.Rank() == 0 {
			for rank, x := range all {
				fmt.Printf("rank %d: rank %d of %d, sum %d\n", rank, x[0], x[1], x[2])
			}
		}
		return half.Free()
	})
	// Output:
	// rank 0: rank 0 of 3, sum 6
	// rank 1: rank 0 of 2, sum 4
	// rank 2: rank 1 of 3, sum 6
	// rank 3: rank 1 of 2, sum 4
	// rank 4: rank 2 of 3, sum 6
}

func ExampleSendValue() {
	c := world()
	defer c.Finalize()
	done := make(chan error)
	go func() { done <- comm.SendValue(c, map[string]int{"steps": 100}, 0, 0) }()
	settings, _, err := comm.RecvValue[map[string]int](c, 0, 0)
	fmt.Println(settings["steps"], err, <-done)
	// Output: 100 <nil> <nil>
}

func ExampleAllreduceValue() {
	commtest.Run(t, 3, func(c *comm.Comm) error {
		words := map[string]int{"all": 1, fmt.Sprint("rank ", c.Rank()): 1}
		sum, err := comm.AllreduceValue(c, words, func(a, b map[string]int) map[string]int {
			for word, n := range b {
				a[word] += n
			}
			return a
		})
		if c.Rank() == 0 {
			fmt.Println(sum)
		}
		return err
	})
	// Output: map[all:3 rank 0:1 rank 1:1 rank 2:1]
}

// moments describes numbers by their count, their mean, and the sum of the squares of their distances
// from the mean.
type moments struct{ N, Mean, Squares float64 }

// Each rank has some numbers. All ranks get the variance of all numbers, by a reduction of structs.
func ExampleOpOf() {
	merge := comm.OpOf(func(a, b moments) moments {
		n, d := a.N+b.N, b.Mean-a.Mean
		return moments{n, a.Mean + d*b.N/n, a.Squares + b.Squares + d*d*a.N*b.N/n}
	})
	commtest.Run(t, 3, func(c *comm.Comm) error {
		own := moments{N: 1, Mean: float64(10 * c.Rank())} // one number: 0, 10 or 20
		all, err := comm.AllreduceOne(c, own, merge)
		if c.Rank() == 0 {
			fmt.Println(all.Mean, all.Squares/all.N)
		}
		return err
	})
	// Output: 10 66.66666666666667
}

func ExampleWaitAny() {
	c := world()
	defer c.Finalize()
	rs := []comm.Request{
		comm.Irecv(c, make([]int, 1), 0, 1),
		comm.Irecv(c, make([]int, 1), 0, 2),
	}
	for tag := 2; tag > 0; tag-- {
		if err := comm.Send(c, []int{tag}, 0, tag); err != nil {
			fmt.Println(err)
		}
		i, st, err := comm.WaitAny(rs)
		fmt.Println(i, st.Tag, err)
	}
	// Output:
	// 1 2 <nil>
	// 0 1 <nil>
}

// A library keeps a table for each communicator that programs pass to it.
func ExampleKey() {
	type table struct{ calls int }
	key := comm.NewKey(comm.OnDup(func(t *table) (*table, bool) { return &table{}, true }))
	count := func(c *comm.Comm) (int, error) { // a function of the library
		own, ok := key.Get(c)
		if !ok {
			own = new(table)
			if err := key.Set(c, own); err != nil {
				return 0, err
			}
		}
		own.calls++
		return own.calls, nil
	}
	commtest.Run(t, 1, func(c *comm.Comm) error {
		for range 2 {
			n, err := count(c)
			if err != nil {
				return err
			}
			fmt.Println(n)
		}
		d, err := c.Dup()
		if err != nil {
			return err
		}
		n, err := count(d)
		fmt.Println("duplicate:", n)
		return errors.Join(err, d.Free())
	})
	// Output:
	// 1
	// 2
	// duplicate: 1
}
