package main

import (
	"fmt"
	"sync"

	"github.com/weft-hpc/weft/comm"
)

// persistent makes operations with fixed arguments and starts them several times: messages along a
// ring, an allreduce, a bcast and a partitioned message. Each round has different data.
func persistent(k *call) error {
	c, me, p := k.c, k.c.Rank(), k.c.Size()
	n, by := k.length(8, 8*p), k.rng.IntN(p)
	to, from, root := (me+by)%p, (me+p-by)%p, k.rng.IntN(p)
	sendParts, recvParts := 1+k.rng.IntN(9), 1+k.rng.IntN(9)
	n = n / (sendParts * recvParts) * (sendParts * recvParts)
	out, in, sums, cast := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	parts, arrived := make([]int64, n), make([]int64, n)

	var ps []*comm.Persistent
	for _, prepare := range []func() (*comm.Persistent, error){
		func() (*comm.Persistent, error) { return comm.RecvInit(c, in, from, k.tag) },
		func() (*comm.Persistent, error) { return comm.SendInit(c, out, to, k.tag) },
		func() (*comm.Persistent, error) { return comm.AllreduceInit(c, out, sums, comm.Sum[int64]) },
		func() (*comm.Persistent, error) { return comm.BcastInit(c, cast, root) },
	} {
		p, err := prepare()
		if err != nil {
			return err
		}
		ps = append(ps, p)
	}
	send, err := comm.PsendInit(c, parts, sendParts, to, k.tag)
	if err != nil {
		return err
	}
	recv, err := comm.PrecvInit(c, arrived, recvParts, from, k.tag)
	if err != nil {
		return err
	}
	for round := range 1 + k.rng.IntN(5) {
		value := func(rank, i int) int64 { return int64(mix(k.salt, uint64(rank)<<8|uint64(round), uint64(i)) >> 8) }
		total := make([]int64, n)
		for i := range n {
			out[i], cast[i], arrived[i] = value(me, i), value(root, i), 0
			if me != root {
				cast[i] = 0
			}
			for r := range p {
				total[i] += value(r, i)
			}
		}
		wanted := func(rank int) (s []int64) {
			for i := range n {
				s = append(s, value(rank, i))
			}
			return s
		}
		if err := recv.Start(); err != nil {
			return err
		}
		if err := send.Start(); err != nil {
			return err
		}
		var fillers sync.WaitGroup
		errs := make([]error, 3)
		for w := range errs {
			fillers.Go(func() {
				for i := w; i < sendParts; i += len(errs) {
					size := n / sendParts
					copy(parts[i*size:], wanted(me)[i*size:(i+1)*size])
					if err := send.Ready(i); err != nil {
						errs[w] = err
					}
				}
			})
		}
		// The order of the starts and of the waits may differ between ranks.
		for _, i := range k.own.Perm(len(ps)) {
			if err := ps[i].Start(); err != nil {
				return err
			}
			k.delay()
		}
		for _, i := range k.own.Perm(len(ps)) {
			var err error
			if k.own.IntN(2) == 0 {
				_, err = ps[i].Wait()
			} else {
				_, err = k.wait([]comm.Request{ps[i].Request()})
			}
			if err != nil {
				return fmt.Errorf("persistent operation %d, round %d: %w", i, round, err)
			}
		}
		fillers.Wait()
		for _, err := range append(errs, send.Wait(), recv.Wait()) {
			if err != nil {
				return fmt.Errorf("partitions, round %d: %w", round, err)
			}
		}
		for what, x := range map[string][2][]int64{
			"receive": {in, wanted(from)}, "allreduce": {sums, total}, "bcast": {cast, wanted(root)}, "partitions": {arrived, wanted(from)},
		} {
			if err := same(fmt.Sprintf("persistent %s, round %d", what, round), x[0], x[1]); err != nil {
				return err
			}
		}
	}
	for _, p := range ps {
		if err := p.Free(); err != nil {
			return err
		}
	}
	if err := send.Free(); err != nil {
		return err
	}
	return recv.Free()
}
