package main

import (
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/comm"
)

// parts does the collectives that exchange the lengths of their parts. The oracle is the matrix of all
// lengths, which every rank draws: lengths[i][j] is the number of elements from rank i to rank j.
func parts(k *call) error {
	c, me, p := k.c, k.c.Rank(), k.c.Size()
	most := max(1, min(k.length(8, p*p), 1000))
	lengths := make([][]int, p)
	for i := range lengths {
		for range p {
			lengths[i] = append(lengths[i], k.rng.IntN(2)*k.rng.IntN(most+1))
		}
	}
	part := func(from, to int) []int64 {
		s := make([]int64, lengths[from][to])
		for i := range s {
			s[i] = int64(from)<<48 | int64(to)<<32 | int64(i)
		}
		return s
	}
	root := k.rng.IntN(p)
	var to, from, ofRoot [][]int64 // the parts that this rank sends, that it receives, and that root receives
	for r := range p {
		to, from, ofRoot = append(to, part(me, r)), append(from, part(r, me)), append(ofRoot, part(r, root))
	}
	check := func(call string, got, want [][]int64, err error) error {
		if err == nil && !slices.EqualFunc(got, want, slices.Equal[[]int64]) {
			err = fmt.Errorf("%d parts with wrong data", len(got))
		}
		if err != nil {
			return fmt.Errorf("%s of %d ranks, root %d: %w", call, p, root, err)
		}
		return nil
	}
	k.delay()
	got, err := comm.AlltoallvAlloc(c, to)
	if err := check("AlltoallvAlloc", got, from, err); err != nil {
		return err
	}
	k.delay()
	got, err = comm.AllgathervAlloc(c, to[root])
	if err := check("AllgathervAlloc", got, ofRoot, err); err != nil {
		return err
	}
	want, all := [][]int64(nil), [][]int64(nil)
	if me == root {
		want, all = ofRoot, to
	}
	got, err = comm.GathervAlloc(c, to[root], root)
	if err := check("GathervAlloc", got, want, err); err != nil {
		return err
	}
	one, err := comm.ScattervAlloc(c, all, root)
	return check("ScattervAlloc", [][]int64{one}, [][]int64{part(root, me)}, err)
}
