package main

import (
	"fmt"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/comm"
)

// idle measures the CPU time of a rank that is blocked in Recv: rank 0 sleeps for -time before it
// sends, and each other rank measures the CPU time that it uses until it has received.
var idle = benchmark{
	name:    "idle",
	help:    "CPU time of a rank that is blocked in Recv of such a message for -time; the rank that uses most",
	sizes:   "1,1m",
	measure: measureIdle,
}

// measureIdle does one measurement of idle for a size.
func measureIdle(c *comm.Comm, o *options, size int) (*result, error) {
	word, used := make([]byte, max(size, 1)), []float64{0}
	if err := c.Barrier(); err != nil {
		return nil, err
	}
	start := time.Now()
	if c.Rank() == 0 {
		time.Sleep(o.time)
		for to := 1; to < c.Size(); to++ {
			word[0] = byte(to)
			if err := comm.Send(c, word, to, tag); err != nil {
				return nil, err
			}
		}
	} else {
		before, err := cpuTime()
		if err != nil {
			return nil, err
		}
		if _, err := comm.Recv(c, word, 0, tag); err != nil {
			return nil, err
		}
		after, err := cpuTime()
		if err != nil {
			return nil, err
		}
		if word[0] != byte(c.Rank()) {
			return nil, fmt.Errorf("got %d, not %d", word[0], byte(c.Rank()))
		}
		used[0] = (after - before).Seconds() * 1e6
	}
	r := &result{Bench: o.bench.name, Size: size, Ranks: c.Size(), Iterations: 1}
	r.fill([]float64{time.Since(start).Seconds()}, new(part))
	err := comm.Reduce(c, used, used, comm.Max, 0)
	r.CPU = used[0]
	return r, err
}

// cpuTime returns the CPU time that this process has used.
func cpuTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
