// Command calls is for two ranks. It makes persistent and sparse collectives, whose numbers a test knows.
package main

import (
	"maps"
	"time"

	"github.com/weft-hpc/weft/comm"
)

func main() {
	comm.Main(func(c *comm.Comm) error {
		one, sum := []int{1}, make([]int, 1)
		p, err := comm.AllreduceInit(c, one, sum, comm.Sum)
		if err != nil {
			return err
		}
		for range 3 {
			if err := p.Start(); err != nil {
				return err
			}
			if _, err := p.Wait(); err != nil {
				return err
			}
		}
		time.Sleep(2 * time.Second) // not in a call
		if err := p.Free(); err != nil {
			return err
		}
		unused, err := c.BarrierInit()
		if err != nil {
			return err
		}
		if err := unused.Free(); err != nil {
			return err
		}
		if _, err := comm.SparseAlltoall(c, maps.All(map[int][]int{1 - c.Rank(): one})); err != nil {
			return err
		}
		return c.Barrier()
	})
}
