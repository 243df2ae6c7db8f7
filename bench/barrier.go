package main

import (
	"fmt"
	"time"

	"github.com/weft-hpc/weft/comm"
)

// barrier times calls of Barrier, one immediately after the other.
var barrier = benchmark{
	name:  "barrier",
	help:  "Barrier, mean over ranks",
	alone: true,
	prepare: func(c *comm.Comm, _ int) (*part, error) {
		return &part{
			mean:   true,
			repeat: timed(func() error { return c.Barrier() }),
			verify: func() error { return verifyBarrier(c) },
		}, nil
	},
}

// verifyBarrier does some barriers. Before each barrier one rank waits 2 ms, each time a different
// one. No rank may leave the barrier before that rank arrives. The barriers are among the ranks of
// one host, because verifyBarrier compares times, and only ranks of one host have the same clock.
func verifyBarrier(c *comm.Comm) error {
	node, err := c.SplitNode(0)
	if err != nil {
		return err
	}
	for late := range min(node.Size(), 4) {
		if node.Rank() == late {
			time.Sleep(2 * time.Millisecond)
		}
		arrived := []int64{time.Now().UnixNano()}
		if err := node.Barrier(); err != nil {
			return err
		}
		left := time.Now().UnixNano()
		if err := comm.Allreduce(node, arrived, arrived, comm.Max); err != nil {
			return err
		}
		if left < arrived[0] {
			return fmt.Errorf("a rank left %v before the last one arrived", time.Duration(arrived[0]-left))
		}
	}
	return node.Free()
}
