package main

import (
	"fmt"
	"time"

	"github.com/weft-hpc/weft/comm"
	"golang.org/x/sync/errgroup"
)

// threads has many goroutines of ranks 0 and 1 communicate at the same time. Each goroutine does round
// trips with one goroutine of the other rank. Each pair of goroutines has its own tag.
var threads = benchmark{
	name:    "threads",
	help:    "round trips of 8 B between ranks 0 and 1 by N pairs of goroutines at once; us per round trip, all pairs together",
	sizes:   "1..64",
	counts:  "goroutines",
	prepare: prepareThreads,
}

// threadBytes is the size in bytes of a message between goroutines.
const threadBytes = 8

// team is a set of goroutines. When repeat is called, each goroutine repeats its own operation.
type team struct {
	start []chan int // by goroutine: how often to do the operation; closed: the goroutine ends
	done  chan error // receives one result from each goroutine after it has repeated its operation
}

func newTeam(n int, once func(i int) error) *team {
	t := &team{start: make([]chan int, n), done: make(chan error, n)}
	for i := range t.start {
		t.start[i] = make(chan int, 1)
		go func() { // ends when t.start[i] is closed; nothing waits for it
			for n := range t.start[i] {
				var err error
				for range n {
					if err = once(i); err != nil {
						break
					}
				}
				t.done <- err
			}
		}()
	}
	return t
}

// repeat makes every goroutine do its operation n times, waits for all, and returns the time that this
// takes together.
func (t *team) repeat(n int) (time.Duration, error) {
	start := time.Now()
	for _, s := range t.start {
		s <- n
	}
	var err error
	for range t.start {
		if e := <-t.done; err == nil {
			err = e
		}
	}
	return time.Since(start), err
}

func (t *team) close() error {
	for _, s := range t.start {
		close(s)
	}
	return nil
}

func prepareThreads(c *comm.Comm, pairs int) (*part, error) {
	p := &part{perOp: float64(pairs), message: float64(2 * pairs), sample: teamSample}
	if c.Rank() > 1 {
		return p, nil
	}
	peer := 1 - c.Rank()
	send, recv := make([][threadBytes]byte, pairs), make([][threadBytes]byte, pairs)
	for i := range send {
		fill(send[i][:], c.Rank())
	}
	t := newTeam(pairs, func(i int) error { return roundTrip(c, send[i][:], recv[i][:], peer, tag+i) })
	p.repeat, p.close = t.repeat, t.close
	p.verify = func() error {
		if _, err := t.repeat(1); err != nil {
			return err
		}
		for i := range recv {
			if err := compare(recv[i][:], peer); err != nil {
				return fmt.Errorf("goroutine %d: %w", i, err)
			}
		}
		return nil
	}
	return p, nil
}

// teamSample is the shortest time of a batch of a team. It is so long that the time in which the
// goroutines start does not matter.
const teamSample = 5 * time.Millisecond

// roundTrip does one round trip with a peer: on rank 0 it sends and then receives, on rank 1 it receives
// and then sends.
func roundTrip(c *comm.Comm, send, recv []byte, peer, tag int) error {
	if c.Rank() == 0 {
		if err := comm.Send(c, send, peer, tag); err != nil {
			return err
		}
		_, err := comm.Recv(c, recv, peer, tag)
		return err
	}
	if _, err := comm.Recv(c, recv, peer, tag); err != nil {
		return err
	}
	return comm.Send(c, send, peer, tag)
}

// waiters measures what latency measures, while N other goroutines of each of the two ranks are blocked
// in Recv. N is the size.
var waiters = benchmark{
	name:   "waiters",
	help:   "half of a round trip of 8 B between ranks 0 and 1 beside N goroutines on each that are blocked in Recv",
	sizes:  "0,1,10,100",
	counts: "goroutines",
	prepare: func(c *comm.Comm, n int) (*part, error) {
		p, err := prepareLatency(c, make([]byte, threadBytes), make([]byte, threadBytes))
		if err != nil || c.Rank() > 1 {
			return p, err
		}
		peer := 1 - c.Rank()
		var idle errgroup.Group
		for i := range n {
			// The goroutine ends when it has received the message that the peer's part.close sends.
			// part.close waits for it.
			idle.Go(func() error {
				_, err := comm.Recv(c, make([]byte, 1), peer, tag+1+i)
				return err
			})
		}
		p.close = func() error {
			for i := range n {
				if err := comm.Send(c, []byte{1}, peer, tag+1+i); err != nil {
					return err
				}
			}
			return idle.Wait()
		}
		return p, nil
	},
}

// besideIbarrier measures what latency measures, while ranks 0 and 1 each have an Ibarrier that cannot
// complete: rank 0 has called it on one communicator, and rank 1 on another.
var besideIbarrier = benchmark{
	name:  "beside-ibarrier",
	help:  "half of a round trip between ranks 0 and 1, each of which has an Ibarrier under way",
	sizes: "8,64k",
	prepare: func(c *comm.Comm, size int) (*part, error) {
		p, err := prepareLatency(c, make([]byte, size), make([]byte, size))
		if err != nil {
			return nil, err
		}
		var under [2]*comm.Comm
		var reqs [2]comm.Request
		for i := range under {
			if under[i], err = c.Dup(); err != nil {
				return nil, err
			}
			if c.Rank() == i {
				reqs[i] = under[i].Ibarrier()
			}
		}
		p.close = func() error {
			for i := range under {
				if c.Rank() != i {
					reqs[i] = under[i].Ibarrier()
				}
			}
			if err := comm.WaitAll(reqs[:]); err != nil {
				return err
			}
			for _, u := range under {
				if err := u.Free(); err != nil {
					return err
				}
			}
			return nil
		}
		return p, nil
	},
}

// besideStream measures what latency measures with small messages, while another goroutine of rank 0
// sends large messages to another goroutine of rank 1 without a pause.
var besideStream = benchmark{
	name:  "beside-stream",
	help:  "half of a round trip of 8 B between ranks 0 and 1 beside a stream of messages of this size",
	sizes: "1m",
	prepare: func(c *comm.Comm, size int) (*part, error) {
		p, err := prepareLatency(c, make([]byte, threadBytes), make([]byte, threadBytes))
		if err != nil || c.Rank() > 1 {
			return p, err
		}
		var stream errgroup.Group
		stop := make(chan struct{})
		// The goroutine ends after stop is closed on rank 0. p.close waits for it.
		stream.Go(func() error { return streamUntil(c, make([]byte, max(size, 1)), stop) })
		p.close = func() error {
			close(stop)
			return stream.Wait()
		}
		return p, nil
	},
}

// streamUntil sends messages from rank 0 to rank 1 until stop is closed on rank 0. Then rank 0 sends a
// shorter message, at which streamUntil returns on rank 1.
func streamUntil(c *comm.Comm, buf []byte, stop <-chan struct{}) error {
	for {
		if c.Rank() == 1 {
			st, err := comm.Recv(c, buf, 0, tag+1)
			if err != nil || st.Count < len(buf) {
				return err
			}
			continue
		}
		select {
		case <-stop:
			return comm.Send(c, buf[:0], 1, tag+1)
		default:
		}
		if err := comm.Send(c, buf, 1, tag+1); err != nil {
			return err
		}
	}
}
