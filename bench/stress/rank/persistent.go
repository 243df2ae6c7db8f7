package main

import (
	"errors"
	"fmt"
	"runtime"
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
		func() (*comm.Persistent, error) {
			if k.own.IntN(2) == 0 {
				return comm.SsendInit(c, out, to, k.tag)
			}
			return comm.SendInit(c, out, to, k.tag)
		},
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
		how := k.own.IntN(3) // Ready, ReadyRange or ReadyList
		var fillers sync.WaitGroup
		errs := make([]error, 3)
		for w := range errs {
			fillers.Go(func() {
				var list []int
				first, end := w*sendParts/len(errs), (w+1)*sendParts/len(errs)
				for i := first; i < end; i++ {
					size := n / sendParts
					copy(parts[i*size:], wanted(me)[i*size:(i+1)*size])
					if how == 0 {
						errs[w] = errors.Join(errs[w], send.Ready(i))
					}
					list = append([]int{i}, list...)
				}
				switch how {
				case 1:
					errs[w] = send.ReadyRange(first, end)
				case 2:
					errs[w] = send.ReadyList(list...)
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
		if err := k.arrivals(recv, recvParts, arrived, wanted(from)); err != nil {
			return err
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

// arrivals sometimes waits for the partitions of a receive, in the order of their arrival or in any
// other order, and checks each.
func (k *call) arrivals(recv *comm.PartRecv, parts int, got, want []int64) error {
	size := len(got) / parts
	check := func(i int) error {
		return same(fmt.Sprintf("partition %d of %d", i, parts), got[i*size:(i+1)*size], want[i*size:(i+1)*size])
	}
	switch k.own.IntN(3) {
	case 0:
		seen := 0
		for i, err := range recv.All() {
			if err == nil {
				err = check(i)
			}
			if err != nil {
				return err
			}
			seen++
		}
		if seen != parts {
			return fmt.Errorf("%d of %d partitions have arrived", seen, parts)
		}
	case 1:
		for _, i := range k.own.Perm(parts) {
			for there := false; !there; runtime.Gosched() {
				var err error
				if there, err = recv.Arrived(i); err != nil {
					return err
				}
			}
			if err := check(i); err != nil {
				return err
			}
		}
	}
	return nil
}
