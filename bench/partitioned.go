package main

import (
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/comm"
)

// partitions is the number of partitions of a message. If it does not divide the size, the
// benchmark partitioned uses fewer. fillers is the number of goroutines that make the partitions
// ready.
const (
	partitions = 16
	fillers    = 4
)

// partitioned measures half of a round trip of a message in partitions. The receiver has as many
// partitions as the sender.
var partitioned = benchmark{
	name:  "partitioned",
	help:  fmt.Sprintf("half of a round trip in %d partitions, which %d goroutines make ready", partitions, fillers),
	sizes: "64k,1m,4m",
	prepare: func(c *comm.Comm, size int) (*part, error) {
		if c.Rank() > 1 {
			return &part{perOp: 2}, nil
		}
		parts := partitions
		for size%parts > 0 {
			parts /= 2
		}
		out, in := make([]byte, size), make([]byte, size)
		fill(out, c.Rank())
		send, err := comm.PsendInit(c, out, parts, 1-c.Rank(), tag)
		if err != nil {
			return nil, err
		}
		recv, err := comm.PrecvInit(c, in, parts, 1-c.Rank(), tag)
		if err != nil {
			return nil, err
		}
		// The goroutines end when the benchmark calls the part's close.
		jobs, done := make(chan int), make(chan error, fillers)
		for range fillers {
			go func() {
				for i := range jobs {
					done <- send.ReadyRange(i*parts/fillers, (i+1)*parts/fillers)
				}
			}()
		}
		p := pingPong(c, pair{
			send: func(int) error {
				if err := send.Start(); err != nil {
					return err
				}
				for i := range fillers {
					jobs <- i
				}
				var err error
				for range fillers {
					err = errors.Join(err, <-done)
				}
				return errors.Join(err, send.Wait())
			},
			recv: func(int) error {
				if err := recv.Start(); err != nil {
					return err
				}
				return recv.Wait()
			},
			verify: func(from int) error { return compare(in, from) },
		})
		p.bytes = float64(2 * size)
		p.close = func() error {
			close(jobs)
			return errors.Join(send.Free(), recv.Free())
		}
		return p, nil
	},
}
