package mpi_test

import (
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// BenchmarkSeveral measures calls on many requests: none of them is complete, or they complete one
// after the other. It also measures Bsend.
func BenchmarkSeveral(b *testing.B) {
	const many = 1000
	start := func(c *comm.Comm) ([]comm.Request, []int) {
		rs, bufs := make([]comm.Request, many), make([]int, many)
		for i := range rs {
			rs[i] = comm.Irecv(c, bufs[i:i+1], 0, i)
		}
		return rs, bufs
	}
	finish := func(c *comm.Comm, rs []comm.Request) error {
		for i := range rs {
			if err := comm.Send(c, []int{i}, 0, i); err != nil {
				return err
			}
		}
		return comm.WaitAll(rs)
	}
	alone := func(f func(c *comm.Comm) error) {
		commtest.Run(b, 1, f)
	}
	b.Run("TestAny", func(b *testing.B) {
		alone(func(c *comm.Comm) error {
			rs, _ := start(c)
			for b.Loop() {
				if _, _, done, err := comm.TestAny(rs); done || err != nil {
					b.Error("complete", err)
				}
			}
			return finish(c, rs)
		})
	})
	b.Run("TestAll", func(b *testing.B) {
		alone(func(c *comm.Comm) error {
			rs, _ := start(c)
			for b.Loop() {
				if done, err := comm.TestAll(rs); done || err != nil {
					b.Error("complete", err)
				}
			}
			return finish(c, rs)
		})
	})
	b.Run("WaitAny", func(b *testing.B) {
		alone(func(c *comm.Comm) error {
			rs, bufs := start(c)
			next := 0
			for b.Loop() {
				if err := comm.Send(c, []int{next}, 0, next); err != nil {
					return err
				}
				i, _, err := comm.WaitAny(rs)
				if err != nil || i != next || bufs[i] != next {
					b.Error("found", i, err)
				}
				rs[i] = comm.Irecv(c, bufs[i:i+1], 0, i)
				next = (next + 1) % many
			}
			return finish(c, rs)
		})
	})
	b.Run("Bsend", func(b *testing.B) {
		alone(func(c *comm.Comm) error {
			sent := 0
			for b.Loop() {
				if err := comm.Bsend(c, []int{1}, 0, many); err != nil {
					return err
				}
				sent++
			}
			var x [1]int
			for range sent {
				if _, err := comm.Recv(c, x[:], 0, many); err != nil {
					return err
				}
			}
			return nil
		})
	})
}
