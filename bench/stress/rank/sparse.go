package main

import (
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/comm"
)

// sparse does sparse exchanges, one after the other. All ranks draw the same parts: some between the
// same ranks, some of a rank to itself, some empty.
func sparse(k *call) error {
	c, p := k.c, k.c.Size()
	type part struct {
		from, to int
		data     []int64
	}
	for round := range 1 + k.rng.IntN(4) {
		var parts []part
		n := k.rng.IntN(3 * p)
		for i := range n {
			x := part{from: k.rng.IntN(p), to: k.rng.IntN(p), data: make([]int64, k.length(8, 4*n))}
			for j := range x.data {
				x.data[j] = int64(mix(k.salt, uint64(round)<<32|uint64(i), uint64(j)))
			}
			parts = append(parts, x)
		}
		send := func(yield func(int, []int64) bool) {
			for _, x := range parts {
				if x.from == c.Rank() && !yield(x.to, x.data) {
					return
				}
			}
		}
		var want []part
		for _, x := range parts {
			if x.to == c.Rank() {
				want = append(want, x)
			}
		}
		slices.SortStableFunc(want, func(a, b part) int { return a.from - b.from })
		k.delay()
		got, err := []comm.Part[int64](nil), error(nil)
		if k.rng.IntN(2) == 0 {
			got, err = comm.SparseAlltoall(c, send)
		} else {
			// The parts come in the order of their arrival.
			err = comm.SparseAlltoallFunc(c, send, func(source int, data []int64) error {
				got = append(got, comm.Part[int64]{Rank: source, Data: data})
				return nil
			})
			slices.SortStableFunc(got, func(a, b comm.Part[int64]) int { return a.Rank - b.Rank })
		}
		if err == nil && len(got) != len(want) {
			err = fmt.Errorf("%d parts, not %d", len(got), len(want))
		}
		for i := 0; err == nil && i < len(got); i++ {
			if err = same("part", got[i].Data, want[i].data); err == nil && got[i].Rank != want[i].from {
				err = fmt.Errorf("part of rank %d, not %d", got[i].Rank, want[i].from)
			}
		}
		if err != nil {
			return fmt.Errorf("round %d of %d parts: %w", round, n, err)
		}
	}
	return nil
}
