package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	stdmaps "maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// sparseParts returns the parts that rank from sends in a round: to random ranks, some of them
// twice, of random lengths, which may be 0 or longer than one message.
func sparseParts(from, n, round int) (parts []comm.Part[int]) {
	r := rand.New(rand.NewPCG(uint64(from), uint64(round)))
	for range r.IntN(2 * n) {
		to := r.IntN(n)
		if round%3 == 0 {
			to = round % n // all ranks send to one
		}
		data := make([]int, r.IntN(3)*r.IntN(2000))
		for i := range data {
			data[i] = from<<40 | to<<20 | i
		}
		parts = append(parts, comm.Part[int]{Rank: to, Data: data})
	}
	return parts
}

func sequence(parts []comm.Part[int]) iter.Seq2[int, []int] {
	return func(yield func(int, []int) bool) {
		for _, p := range parts {
			if !yield(p.Rank, p.Data) {
				return
			}
		}
	}
}

// TestSparseAlltoall compares the parts that each rank receives with those that the others send, in
// many rounds one after the other, without a barrier between them.
func TestSparseAlltoall(t *testing.T) {
	overFabrics(t, []int{1, 2, 3, 5, 7}, func(c *comm.Comm) error {
		for round := range 12 {
			var want []comm.Part[int]
			for from := range c.Size() {
				for _, p := range sparseParts(from, c.Size(), round) {
					if p.Rank == c.Rank() {
						want = append(want, comm.Part[int]{Rank: from, Data: p.Data})
					}
				}
			}
			got, err := comm.SparseAlltoall(c, sequence(sparseParts(c.Rank(), c.Size(), round)))
			if err != nil {
				return err
			}
			if !slices.EqualFunc(got, want, func(a, b comm.Part[int]) bool { return a.Rank == b.Rank && slices.Equal(a.Data, b.Data) }) {
				return fmt.Errorf("round %d: %d parts, not %d, or other ones", round, len(got), len(want))
			}
		}
		return nil
	})
}

// TestSparseAlltoallLastPart: the receive of the last part ends before the barrier does, but the rank
// looks at both only later, because the function of the program takes long. The part must not be lost.
func TestSparseAlltoallLastPart(t *testing.T) {
	for range 20 {
		sent, returned := make(chan struct{}), make(chan struct{})
		ranks(t, 2, func(c *comm.Comm) error {
			if c.Rank() == 1 {
				defer close(returned)
				return comm.SparseAlltoallFunc(c, func(yield func(int, []int) bool) {
					_ = yield(0, []int{1}) && yield(0, []int{2})
					close(sent)
				}, func(int, []int) error { return nil })
			}
			<-sent // so the second part arrives before the receive for it is posted
			var got []int
			err := comm.SparseAlltoallFunc(c, nil, func(_ int, part []int) error {
				if got = append(got, part...); len(got) == 1 {
					<-returned
					for range 1000 { // makes progress, so that the barrier of this rank ends, too
						if _, _, err := c.Iprobe(0, 0); err != nil {
							return err
						}
						runtime.Gosched()
					}
				}
				return nil
			})
			if err == nil && !slices.Equal(got, []int{1, 2}) {
				err = fmt.Errorf("parts %v", got)
			}
			return err
		})
	}
}

// TestSparseAlltoallOfMaps passes sequences of the standard library, and types of other sizes.
func TestSparseAlltoallOfMaps(t *testing.T) {
	eachCount(t, func(c *comm.Comm) error {
		me, n := c.Rank(), c.Size()
		got, err := comm.SparseAlltoall(c, stdmaps.All(map[int][]float64{(me + 1) % n: {float64(me)}}))
		if err != nil || len(got) != 1 || got[0].Rank != (me+n-1)%n || !slices.Equal(got[0].Data, []float64{float64(got[0].Rank)}) {
			return fmt.Errorf("%v: %w", got, err)
		}
		all := make([][]struct{}, n)
		for r := range all {
			all[r] = make([]struct{}, r+me)
		}
		nothing, err := comm.SparseAlltoall(c, slices.All(all))
		if err != nil || len(nothing) != n {
			return fmt.Errorf("%v: %w", nothing, err)
		}
		for r, p := range nothing {
			if p.Rank != r || len(p.Data) != r+me {
				return fmt.Errorf("%v", p)
			}
		}
		none, err := comm.SparseAlltoall[int](c, nil)
		null, err2 := comm.SparseAlltoall(c, stdmaps.All(map[int][]int{comm.ProcNull: {1}}))
		if len(none)+len(null) > 0 {
			return fmt.Errorf("%v %v", none, null)
		}
		return first(err, err2, c.Barrier())
	})
}

// TestSparseAlltoallFails: errors on one rank reach the others.
func TestSparseAlltoallFails(t *testing.T) {
	full := errors.New("the disk is full")
	for name, x := range map[string]struct {
		own, others error
		call        func(c *comm.Comm, send iter.Seq2[int, []int]) error
	}{
		"rank": {comm.ErrRank, comm.ErrRevoked, func(c *comm.Comm, _ iter.Seq2[int, []int]) error {
			_, err := comm.SparseAlltoall(c, stdmaps.All(map[int][]int{9: {1}}))
			return err
		}},
		"type": {comm.ErrType, comm.ErrRevoked, func(c *comm.Comm, _ iter.Seq2[int, []int]) error {
			_, err := comm.SparseAlltoall[*int](c, nil)
			return err
		}},
		"other elements": {comm.ErrMismatch, comm.ErrMismatch, func(c *comm.Comm, _ iter.Seq2[int, []int]) error {
			_, err := comm.SparseAlltoall(c, stdmaps.All(map[int][]float32{0: {1}, 2: {1}}))
			return err
		}},
		"another collective": {comm.ErrMismatch, comm.ErrMismatch, func(c *comm.Comm, _ iter.Seq2[int, []int]) error {
			return c.Barrier()
		}},
		"context": {context.Canceled, comm.ErrRevoked, func(c *comm.Comm, send iter.Seq2[int, []int]) error {
			_, err := comm.SparseAlltoall(ended(c), send)
			return err
		}},
		"panic": {comm.ErrOp, comm.ErrRevoked, func(c *comm.Comm, send iter.Seq2[int, []int]) (err error) {
			defer func() {
				if p := recover(); p == "out of cheese" {
					err = c.Barrier() // with the reason of the revocation
				}
			}()
			return comm.SparseAlltoallFunc(c, send, func(int, []int) error { panic("out of cheese") })
		}},
		"function": {full, nil, func(c *comm.Comm, send iter.Seq2[int, []int]) error {
			calls := 0
			err := comm.SparseAlltoallFunc(c, send, func(int, []int) error { calls++; return full })
			if calls != 1 {
				err = fmt.Errorf("%d calls", calls)
			}
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 3, func(c *comm.Comm) error {
				d, err := c.Dup()
				if err != nil {
					return err
				}
				send := slices.All([][]int{{1}, make([]int, 50000), {3}})
				if c.Rank() == 1 {
					err := x.call(d, send)
					if !errors.Is(err, x.own) && !errors.Is(err, comm.ErrRevoked) {
						return fmt.Errorf("want %w, got: %w", x.own, err)
					}
					return nil
				}
				_, err = comm.SparseAlltoall(d, send)
				if x.others == nil {
					return err
				}
				if !errors.Is(err, x.others) && !errors.Is(err, comm.ErrRevoked) {
					return fmt.Errorf("want %w, got: %w", x.others, err)
				}
				return nil
			})
		})
	}
}

// TestSparseAlltoallAfterFailure: a rank fails before or during the exchange.
func TestSparseAlltoallAfterFailure(t *testing.T) {
	overAll(t, 4, func(c *comm.Comm) error {
		send := slices.All([][]int{{1}, {2}, {3}, make([]int, 50000)})
		if c.Rank() == 3 {
			err := comm.SparseAlltoallFunc(c, send, func(int, []int) error {
				commtest.Kill(c)
				return nil
			})
			if err == nil {
				return errors.New("a rank that was killed has completed the exchange")
			}
			return nil
		}
		_, err := comm.SparseAlltoall(c, send)
		if !errors.Is(err, comm.ErrProcFailed) && !errors.Is(err, comm.ErrRevoked) {
			return err
		}
		live, err := c.Shrink()
		if err != nil {
			return err
		}
		got, err := comm.SparseAlltoall(live, stdmaps.All(map[int][]int{0: {live.Rank()}}))
		if live.Rank() == 0 && len(got) != 3 {
			return fmt.Errorf("%v: %w", got, err)
		}
		return err
	})
}
