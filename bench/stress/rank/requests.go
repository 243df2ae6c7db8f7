package main

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/weft-hpc/weft/comm"
)

// requests waits for requests of this program's own operations together with those of a message to
// a neighbour, and cancels requests.
func requests(k *call) error {
	if err := k.ownRequests(); err != nil {
		return err
	}
	if err := k.cancelOwn(); err != nil {
		return err
	}
	return k.cancelReceives()
}

// peers returns the ranks that are by places away on the ring of ranks: this rank sends to to, and
// receives from from.
func (k *call) peers(by int) (to, from int) {
	p, me := k.c.Size(), k.c.Rank()
	return (me + by) % p, (me + p - by) % p
}

// ownRequests has goroutines complete requests, while a message is on its way.
func (k *call) ownRequests() error {
	n := 1 + k.length(8, 8*k.c.Size())
	to, from := k.peers(k.rng.IntN(k.c.Size()))
	element := func(rank, i int) uint64 { return mix(k.salt, uint64(rank), uint64(i)) }
	out, in, want := make([]uint64, n), make([]uint64, n), make([]uint64, n)
	for i := range n {
		out[i], want[i] = element(k.c.Rank(), i), element(from, i)
	}
	rs := []comm.Request{comm.Irecv(k.c, in, from, k.tag), comm.Isend(k.c, out, to, k.tag)}
	wanted := []comm.Status{{Source: from, Tag: k.tag, Bytes: 8 * n, Count: n}, {}}
	for i := range k.own.IntN(12) {
		r, complete := k.c.NewRequest(nil)
		st := comm.Status{Source: i, Tag: 2 * i, Bytes: k.own.IntN(1 << 20)}
		rng := k.branch()
		go func() { // ends with complete; k.wait waits for the request
			computeBriefly(rng)
			complete(st, nil)
		}()
		st.Count = st.Bytes // the elements have no type
		rs, wanted = append(rs, r), append(wanted, st)
	}
	k.own.Shuffle(len(rs), func(i, j int) { rs[i], rs[j], wanted[i], wanted[j] = rs[j], rs[i], wanted[j], wanted[i] })
	sts, err := k.wait(rs)
	if err != nil {
		return err
	}
	for i, st := range sts {
		if wanted[i] != (comm.Status{}) && st != wanted[i] { // the status of a send has no meaning
			return fmt.Errorf("request %d of %d: %+v instead of %+v", i, len(sts), st, wanted[i])
		}
	}
	return same("message", in, want)
}

// cancelOwn cancels a request of an operation of this program that runs, and one of an operation
// that has ended, and waits for one that has failed.
func (k *call) cancelOwn() error {
	var calls atomic.Int32
	var complete func(comm.Status, error)
	r, complete := k.c.NewRequest(func() {
		calls.Add(1)
		complete(comm.Status{Cancelled: true}, nil)
	})
	if st, ok, err := r.Test(); ok || err != nil {
		return fmt.Errorf("test of an operation that runs: %+v, %v, %w", st, ok, err)
	}
	if err := r.Cancel(); err != nil {
		return err
	}
	if st, err := r.Wait(); err != nil || !st.Cancelled || calls.Load() != 1 {
		return fmt.Errorf("wait after cancel: %+v, %d calls of the function: %w", st, calls.Load(), err)
	}
	r, complete = k.c.NewRequest(func() { calls.Add(1) })
	complete(comm.Status{Bytes: 7}, nil)
	complete(comm.Status{Bytes: 8}, errors.New("a second result")) // has no effect
	if err := r.Cancel(); err != nil {
		return err
	}
	if st, err := r.Wait(); err != nil || st.Cancelled || st.Bytes != 7 || calls.Load() != 1 {
		return fmt.Errorf("wait for an operation that ended before cancel: %+v, %d calls of the function: %w", st, calls.Load(), err)
	}
	failure := errors.New("the program's operation has failed")
	r, complete = k.c.NewRequest(nil)
	complete(comm.Status{}, failure)
	if _, err := r.Wait(); !errors.Is(err, failure) {
		return fmt.Errorf("wait for an operation that failed: %w", unexpected(err, failure))
	}
	return nil
}

// cancelReceives has each rank cancel receives before a message for them is sent. A later receive
// must get the message.
func (k *call) cancelReceives() error {
	c, n := k.c, 1+k.rng.IntN(3)
	to, from := k.peers(k.rng.IntN(c.Size()))
	tag := k.tag + 1
	var rs []comm.Request
	bufs := make([][]uint64, n)
	for i := range bufs {
		bufs[i] = []uint64{uint64(i)}
		source := from
		if k.own.IntN(2) == 0 {
			source = comm.AnySource
		}
		rs = append(rs, comm.Irecv(c, bufs[i], source, tag))
	}
	k.delay()
	for _, i := range k.own.Perm(n) {
		if err := rs[i].Cancel(); err != nil {
			return err
		}
	}
	sts, err := k.wait(rs)
	if err != nil {
		return err
	}
	for i, st := range sts {
		if !st.Cancelled || bufs[i][0] != uint64(i) {
			return fmt.Errorf("a cancelled receive: %+v, element %d instead of %d", st, bufs[i][0], i)
		}
	}
	if err := c.Barrier(); err != nil {
		return err
	}
	send := comm.Isend(c, []uint64{uint64(c.Rank()) + 100}, to, tag)
	got := []uint64{0}
	st, err := comm.Recv(c, got, from, tag)
	if err != nil {
		return err
	}
	if err := send.Cancel(); err != nil { // has no effect
		return err
	}
	if st.Cancelled || got[0] != uint64(from)+100 {
		return fmt.Errorf("a receive after cancelled ones: %+v, %d instead of %d", st, got[0], from+100)
	}
	if _, err := send.Wait(); err != nil {
		return err
	}
	return c.Barrier()
}
