package mpi_test

import (
	"fmt"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/mpi"
	"github.com/weft-hpc/weft/transport/inproc"
)

// TestDisagreementInACircle checks that ranks that wait for each other in calls with different
// arguments get an error, although no message arrives that would show the difference.
func TestDisagreementInACircle(t *testing.T) {
	const odd = 5 // the rank that passes other counts
	counts := func(c *comm.Comm, good, other int) int {
		if c.Rank() == odd {
			return other
		}
		return good
	}
	other := func(c *comm.Comm) int { return 1 - c.Rank() }
	for name, x := range map[string]struct {
		ranks int
		call  func(c *comm.Comm) error
	}{
		"roots of Bcast":  {2, func(c *comm.Comm) error { return comm.Bcast(c, count(3, 0), other(c)) }},
		"roots of Ibcast": {2, func(c *comm.Comm) error { return wait(comm.Ibcast(c, count(3, 0), other(c))) }},
		"roots of Reduce": {2, func(c *comm.Comm) error { return comm.Reduce(c, count(3, 0), count(3, 0), comm.Sum, c.Rank()) }},
		"counts of Bcast": {7, func(c *comm.Comm) error {
			return comm.Bcast(c, make([]int, counts(c, 40000, 200000)), 0)
		}},
		"counts of Allreduce": {7, func(c *comm.Comm) error {
			n := counts(c, 40000, 200000)
			return comm.Allreduce(c, make([]int, n), make([]int, n), comm.Sum)
		}},
		"counts of Gather": {9, func(c *comm.Comm) error {
			n := counts(c, 100, 9000)
			return comm.Gather(c, make([]int, n), make([]int, 9*n), 0)
		}},
	} {
		for _, memory := range []string{"256k", "0"} {
			t.Run(name+"/shared memory "+memory, func(t *testing.T) {
				t.Parallel()
				ranks(t, x.ranks, func(world *comm.Comm) error {
					c, err := world.Dup()
					if err != nil {
						return err
					}
					// If the collective of this rank waited for no other rank, it returns no error,
					// but the next call does.
					if err = x.call(c); err == nil {
						_, err = comm.Recv(c, []int{1}, comm.AnySource, 0)
					}
					if !isErr(err, comm.ErrMismatch) && !isErr(err, comm.ErrRevoked) && !isErr(err, comm.ErrCount) {
						return fmt.Errorf("%s: %w", name, err)
					}
					return first(c.Free(), world.Barrier())
				}, commtest.WithParam("coll.shared_memory", memory))
			})
		}
	}
}

// TestCountsThatDiffer checks that ranks get an error if the slices of counts that they pass differ
// but have the same sum.
func TestCountsThatDiffer(t *testing.T) {
	counts := func(c *comm.Comm) []int { return [][]int{{1, 2}, {2, 1}}[c.Rank()] }
	for name, call := range map[string]func(c *comm.Comm) error{
		"Allgatherv": func(c *comm.Comm) error {
			n := counts(c)
			return comm.Allgatherv(c, make([]int, n[c.Rank()]), make([]int, 3), n, nil)
		},
		"ReduceScatter": func(c *comm.Comm) error {
			n := counts(c)
			return comm.ReduceScatter(c, make([]int, 3), make([]int, n[c.Rank()]), n, comm.Sum)
		},
	} {
		for _, memory := range []string{"256k", "0"} {
			t.Run(name+"/shared memory "+memory, func(t *testing.T) {
				ranks(t, 2, func(world *comm.Comm) error {
					c, err := world.Dup()
					if err != nil {
						return err
					}
					if err := call(c); !isErr(err, comm.ErrMismatch) && !isErr(err, comm.ErrRevoked) {
						return fmt.Errorf("%s: %w", name, err)
					}
					return first(c.Free(), world.Barrier())
				}, commtest.WithParam("coll.shared_memory", memory))
			})
		}
	}
}

// TestQueriesOfHostilePeers checks that a rank ignores a query that is too long, whether it
// arrives by the eager or by the rendezvous protocol, and handles later queries.
func TestQueriesOfHostilePeers(t *testing.T) {
	for name, limit := range map[string]int{"eager": 1 << 14, "rendezvous": 0} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 2, func(world *comm.Comm) error {
				c, err := world.Dup()
				if err != nil {
					return err
				}
				// This is the first collective of c. Contradict sends queries about it.
				if err := c.Barrier(); err != nil {
					return err
				}
				if c.Rank() == 1 {
					for _, n := range []int{mpi.QueryCalls + 1, 1 << 16} {
						if err := mpi.Contradict((*mpi.Comm)(c), 0, n); err != nil {
							return err
						}
					}
				}
				if err := first(world.Barrier(), c.Barrier()); err != nil {
					return err
				}
				if c.Rank() == 1 {
					if err := mpi.Contradict((*mpi.Comm)(c), 0, mpi.QueryCalls); err != nil {
						return err
					}
				}
				_, err = comm.Recv(c, []int{1}, 1-c.Rank(), 0)
				return wantErr("Recv", err, comm.ErrRevoked, "rank 1 called Bcast")
			}, commtest.WithProviders(inproc.NewFabric(inproc.WithEagerLimit(limit))))
		})
	}
}
