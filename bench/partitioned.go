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
		ready, stop := startFillers(func(i int) error { return send.ReadyRange(i*parts/fillers, (i+1)*parts/fillers) })
		p := pingPong(c, pair{
			send: func(int) error {
				if err := send.Start(); err != nil {
					return err
				}
				return errors.Join(ready(), send.Wait())
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
			stop()
			return errors.Join(send.Free(), recv.Free())
		}
		return p, nil
	},
}

// joined measures what a program without partitioned messages does: it sends one message when all
// goroutines have made their parts of it ready.
var joined = benchmark{
	name:  "joined",
	help:  fmt.Sprintf("half of a round trip of one message, which begins when %d goroutines have made it ready", fillers),
	sizes: "64k,1m,4m",
	prepare: func(c *comm.Comm, size int) (*part, error) {
		if c.Rank() > 1 {
			return &part{perOp: 2}, nil
		}
		out, in := make([]byte, size), make([]byte, size)
		fill(out, c.Rank())
		ready, stop := startFillers(func(int) error { return nil })
		p := pingPong(c, pair{
			send: func(to int) error { return errors.Join(ready(), comm.Send(c, out, to, tag)) },
			recv: func(from int) error {
				_, err := comm.Recv(c, in, from, tag)
				return err
			},
			verify: func(from int) error { return compare(in, from) },
		})
		p.bytes = float64(2 * size)
		p.close = func() error {
			stop()
			return nil
		}
		return p, nil
	},
}

// startFillers starts goroutines. Each call of all makes them call f, with the number of the
// goroutine, and waits until they have done so. stop ends the goroutines.
func startFillers(f func(i int) error) (all func() error, stop func()) {
	jobs, done := make(chan int), make(chan error, fillers)
	for range fillers {
		go func() { // ends after stop
			for i := range jobs {
				done <- f(i)
			}
		}()
	}
	all = func() (err error) {
		for i := range fillers {
			jobs <- i
		}
		for range fillers {
			err = errors.Join(err, <-done)
		}
		return err
	}
	return all, func() { close(jobs) }
}
