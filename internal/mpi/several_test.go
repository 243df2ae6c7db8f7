package mpi_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// TestSeveral: WaitAny, TestAny, WaitSome and TestSome return each request once, when it is
// complete, even if the requests change their places in the slice between calls, or new requests
// join them.
func TestSeveral(t *testing.T) {
	for _, seed := range []uint64{1, 2, 3, 4} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			commtest.Run(t, 1, func(c *comm.Comm) error { return several(c, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

// pending is a receive of a message from this rank itself, with its buffer.
type pending struct {
	r   comm.Request
	buf []int
	tag int
}

func several(c *comm.Comm, rnd *rand.Rand) error {
	const slots, steps = 100, 3000
	var all []pending // the receives that no call has returned yet
	next, sent := 0, map[int]bool{}
	add := func() {
		p := pending{buf: []int{-1}, tag: next}
		next++
		p.r = comm.Irecv(c, p.buf, 0, p.tag)
		all = append(all, p)
	}
	send := func(p pending) error {
		if sent[p.tag] {
			return nil
		}
		sent[p.tag] = true
		return comm.Send(c, []int{p.tag}, 0, p.tag)
	}
	// took checks that the request with index i, which a call has returned, is complete, and marks
	// it for removal by tag -1.
	took := func(i int, st comm.Status, err error) error {
		p := all[i]
		all[i].tag = -1
		if !sent[p.tag] || st.Tag != p.tag {
			return fmt.Errorf("tag %d is complete (sent: %v), status %v", p.tag, sent[p.tag], st)
		}
		return first(err, same("data", p.buf, []int{p.tag}))
	}
	for range steps {
		for len(all) < slots {
			add()
		}
		rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for range rnd.IntN(4) {
			if err := send(all[rnd.IntN(len(all))]); err != nil {
				return err
			}
		}
		part := all[:1+rnd.IntN(len(all))]
		rs := make([]comm.Request, len(part), len(part)+2)
		complete := 0
		for i, p := range part {
			rs[i] = p.r
			if sent[p.tag] {
				complete++
			}
		}
		rs = append(rs, comm.Request{}) // the calls must ignore a zero request
		var i int
		var st comm.Status
		var err error
		var some []comm.Completion
		one := func(i int) []comm.Completion { return []comm.Completion{{Index: i, Status: st, Err: err}} }
		switch kind := rnd.IntN(4); {
		case kind == 0:
			var done bool
			if i, st, done, err = comm.TestAny(rs); done {
				some = one(i)
			}
		case kind == 1:
			some = comm.TestSome(rs, nil)
			if len(some) != complete {
				return fmt.Errorf("TestSome found %d of %d", len(some), complete)
			}
		case complete == 0:
			continue // the call would block
		case kind == 2:
			i, st, err = comm.WaitAny(rs)
			some = one(i)
		default:
			if some, err = comm.WaitSome(rs, nil); err != nil {
				return err
			}
		}
		if (complete > 0) != (len(some) > 0) {
			return fmt.Errorf("found %d, and %d are complete", len(some), complete)
		}
		for _, x := range some {
			if rs[x.Index] != (comm.Request{}) {
				return errors.New("a request that was returned is not zero")
			}
			if err := took(x.Index, x.Status, x.Err); err != nil {
				return err
			}
		}
		kept := all[:0]
		for _, p := range all {
			if p.tag >= 0 {
				kept = append(kept, p)
			}
		}
		all = kept
	}
	rs := make([]comm.Request, len(all))
	for i, p := range all {
		rs[i] = p.r
		if err := send(p); err != nil {
			return err
		}
	}
	copies := append([]comm.Request(nil), rs...)
	if err := comm.WaitAll(rs); err != nil {
		return err
	}
	// Copies of requests that the program has waited for count as zero requests.
	i, _, done, err := comm.TestAny(append([]comm.Request(nil), copies...))
	if i >= 0 || !done || err != nil {
		return fmt.Errorf("TestAny of copies: %d, %v, %w", i, done, err)
	}
	if some := comm.TestSome(append([]comm.Request(nil), copies...), nil); len(some) != 0 {
		return fmt.Errorf("TestSome of copies: %d completions", len(some))
	}
	some, err := comm.WaitSome(append([]comm.Request(nil), copies...), nil)
	if err != nil || len(some) != 0 {
		return fmt.Errorf("WaitSome of copies: %d completions, %w", len(some), err)
	}
	i, _, err = comm.WaitAny(append([]comm.Request(nil), copies...))
	if err := first(err, same("WaitAny of copies", []int{i}, []int{-1})); err != nil {
		return err
	}
	// WaitSome waits for a request beside a copy.
	in := []int{-1}
	rs = []comm.Request{copies[0], comm.Irecv(c, in, 0, next)}
	if some := comm.TestSome(rs, nil); len(some) != 0 {
		return fmt.Errorf("TestSome of a copy and a request in progress: %v", some)
	}
	if err := comm.Send(c, []int{next}, 0, next); err != nil {
		return err
	}
	if some, err = comm.WaitSome(rs, nil); err != nil || len(some) != 1 || some[0].Index != 1 {
		return fmt.Errorf("WaitSome of a copy and a request: %v, %w", some, err)
	}
	return same("data", in, []int{next})
}
