package comm_test

import (
	"context"
	"fmt"

	"github.com/weft-hpc/weft/comm"
)

// world makes the world of an example: alone, as no launcher started it.
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

func ExampleSend() {
	c := world()
	defer c.Finalize()
	r := comm.Irecv(c, make([]int, 3), comm.AnySource, 5)
	if err := comm.Send(c, []int{1, 2}, c.Rank(), 5); err != nil {
		fmt.Println(err)
	}
	st, err := r.Wait()
	fmt.Println(st.Source, st.Tag, st.Count, err)

	err = comm.Send(c, []string{"no"}, 0, 5)
	fmt.Println(err)
	// Output:
	// 0 5 2 <nil>
	// comm: Send (world, rank 0, tag 5): type cannot be sent: string holds pointers
}

func ExampleAllreduce() {
	c := world()
	defer c.Finalize()

	type celsius float64
	coldest := make([]celsius, 2)
	err := comm.Allreduce(c, []celsius{-3.5, 20}, coldest, comm.Min)
	fmt.Println(coldest, err)

	// In place: both slices are the same.
	err = comm.Allreduce(c, coldest, coldest, comm.Sum)
	fmt.Println(coldest, err)

	// Where is the largest value?
	where := make([]comm.Loc[float64], 1)
	err = comm.Allreduce(c, []comm.Loc[float64]{{Value: 7.5, Index: c.Rank()}}, where, comm.MaxLoc)
	fmt.Println(where[0].Value, where[0].Index, err)
	// Output:
	// [-3.5 20] <nil>
	// [-3.5 20] <nil>
	// 7.5 0 <nil>
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

func ExampleComm_Split() {
	c := world()
	defer c.Finalize()
	half, err := c.Split(c.Rank()%2, c.Rank())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(half.Rank(), half.Size())
	fmt.Println(half.Free())
	// Output:
	// 0 1
	// <nil>
}

func ExampleSendValue() {
	c := world()
	defer c.Finalize()
	done := make(chan error)
	go func() { done <- comm.SendValue(c, map[string]int{"steps": 100}, 0, 0) }()
	var settings map[string]int
	_, err := comm.RecvValue(c, &settings, 0, 0)
	fmt.Println(settings["steps"], err, <-done)
	// Output: 100 <nil> <nil>
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
