package mpi_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weft-hpc/weft/comm"
)

// partOf returns the elements that rank from sends to rank to in these tests: of a random number, which
// may be 0, and of values that tell the two ranks.
func partOf(from, to, seed int) []int {
	r := rand.New(rand.NewPCG(uint64(from*1000+to), uint64(seed)))
	part := make([]int, r.IntN(4)*r.IntN(300))
	for i := range part {
		part[i] = from<<40 | to<<20 | i
	}
	return part
}

// TestPartsOfUnknownLength checks the collectives that exchange the lengths of their parts.
func TestPartsOfUnknownLength(t *testing.T) {
	eachCount(t, func(c *comm.Comm) error {
		me, n := c.Rank(), c.Size()
		for seed := range 5 {
			root := seed % n
			var to, from, gathered [][]int
			for r := range n {
				to = append(to, partOf(me, r, seed))
				from = append(from, partOf(r, me, seed))
				gathered = append(gathered, partOf(r, root, seed))
			}
			got, err := comm.AlltoallvAlloc(c, to)
			if err := sameParts("AlltoallvAlloc", got, from, err); err != nil {
				return err
			}
			got, err = comm.AllgathervAlloc(c, to[root])
			if err := sameParts("AllgathervAlloc", got, gathered, err); err != nil {
				return err
			}
			want := gathered
			if me != root {
				want = nil
			}
			got, err = comm.GathervAlloc(c, to[root], root)
			if err := sameParts("GathervAlloc", got, want, err); err != nil {
				return err
			}
			var parts [][]int
			if me == root {
				parts = to
			}
			part, err := comm.ScattervAlloc(c, parts, root)
			if err := sameParts("ScattervAlloc", [][]int{part}, [][]int{partOf(root, me, seed)}, err); err != nil {
				return err
			}
		}
		return nil
	})
}

func sameParts(call string, got, want [][]int, err error) error {
	if err != nil || !slices.EqualFunc(got, want, slices.Equal[[]int]) {
		return fmt.Errorf("%s: %v, not %v: %w", call, got, want, err)
	}
	return nil
}

// TestPartsOfTheWrongNumber passes another number of parts than there are ranks, on one rank. The error of
// that rank names the call, and the other ranks get an error, too.
func TestPartsOfTheWrongNumber(t *testing.T) {
	for name, call := range map[string]func(c *comm.Comm, parts [][]int) error{
		"AlltoallvAlloc": func(c *comm.Comm, parts [][]int) error { _, err := comm.AlltoallvAlloc(c, parts); return err },
		"ScattervAlloc":  func(c *comm.Comm, parts [][]int) error { _, err := comm.ScattervAlloc(c, parts, 1); return err },
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 3, func(c *comm.Comm) error {
				d, err := c.Dup()
				if err != nil {
					return err
				}
				parts := make([][]int, 3)
				if c.Rank() == 1 {
					parts = parts[:2]
					return wantErr(name, call(d, parts), comm.ErrCount, name)
				}
				return wantErr(name, call(d, parts), comm.ErrRevoked, "")
			})
		})
	}
}

// TestOpOf checks that OpOf passes the operand of the lower ranks first, and that AllreduceOne returns the
// same value on all ranks. The operation, composition of linear functions, does not commute.
func TestOpOf(t *testing.T) {
	type linear struct{ A, B uint32 } // x ↦ A·x + B
	compose := comm.OpOf(func(f, g linear) linear { return linear{f.A * g.A, f.A*g.B + f.B} })
	eachCount(t, func(c *comm.Comm) error {
		of := func(r int) linear { return linear{uint32(r + 2), uint32(3*r + 1)} }
		want := of(0)
		for r := 1; r < c.Size(); r++ {
			g := of(r)
			want = linear{want.A * g.A, want.A*g.B + want.B}
		}
		got, err := comm.AllreduceOne(c, of(c.Rank()), compose)
		if err != nil || got != want {
			return fmt.Errorf("%v, not %v: %w", got, want, err)
		}
		_, err = comm.AllreduceOne(c, 1, comm.OpOf[int](nil))
		return wantErr("no function", err, comm.ErrOp, "AllreduceOne")
	})
}
