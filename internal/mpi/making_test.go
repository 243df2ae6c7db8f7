package mpi_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// TestMakingDisagrees: ranks pass different arguments to a call that makes a communicator, or only some of
// them make this call. Each rank gets an error from the call, or from the new communicator. No rank is in
// Finalize while another one still waits, because that would end the wait.
func TestMakingDisagrees(t *testing.T) {
	use := func(c *comm.Comm, err error) error { // an error of the call, or of the communicator that it has made
		if err == nil && c != nil {
			err = c.Barrier()
		}
		return err
	}
	for name, x := range map[string]struct {
		n    int
		call func(c *comm.Comm) error // c is a duplicate of the world
		want map[int]error            // by rank
	}{
		"Dup and Init": {2, func(c *comm.Comm) error {
			if c.Rank() == 0 {
				return use(c.Dup())
			}
			p, err := c.BarrierInit()
			return first(err, start(p))
		}, nil},
		"Dup and Barrier": {3, func(c *comm.Comm) error {
			if c.Rank() != 2 {
				return use(c.Dup())
			}
			return c.Barrier()
		}, nil},
		"kinds of hardware": {2, func(c *comm.Comm) error {
			kind := comm.Host
			if c.Rank() == 1 {
				kind = comm.Package
			}
			return use(c.SplitHardware(kind, 0))
		}, map[int]error{0: comm.ErrMismatch}},
		"Split and SplitNode": {3, func(c *comm.Comm) error {
			if c.Rank() == 1 {
				return use(c.SplitNode(0))
			}
			return use(c.Split(0, 0))
		}, nil},
		"Graph with and without Reorder": {2, func(c *comm.Comm) error {
			var opts []comm.TopoOption
			if c.Rank() == 1 {
				opts = append(opts, comm.Reorder())
			}
			other := []int{1 - c.Rank()}
			_, err := c.Graph(other, other, opts...)
			return err
		}, nil},
		"edges of Graph": {2, func(c *comm.Comm) error {
			if c.Rank() == 0 {
				_, err := c.Graph([]int{1}, []int{1})
				return err
			}
			_, err := c.Graph(nil, []int{0})
			return err
		}, map[int]error{1: comm.ErrMismatch}},
		"GraphOf with and without Reorder": {4, func(c *comm.Comm) error {
			edges := []comm.Edge{{From: c.Rank(), To: (c.Rank() + 1) % 4}}
			var opts []comm.TopoOption
			if c.Rank() != 1 {
				opts = append(opts, comm.Reorder())
			}
			_, err := c.GraphOf(edges, opts...)
			return err
		}, nil},
		"groups of CreateGroup": {3, func(c *comm.Comm) error {
			g := must(c.Group().Incl(0, 1, 2))
			if c.Rank() < 2 {
				d, err := c.CreateGroup(g, 7)
				if c.Rank() == 0 {
					err = first(err, comm.Send(c, []int{1}, 2, 5))
				}
				return use(d, err)
			}
			if _, err := comm.Recv(c, []int{0}, 0, 5); err != nil {
				return err
			}
			return use(c.CreateGroup(must(c.Group().Incl(0, 2, 1)), 7))
		}, map[int]error{2: comm.ErrGroup}},
		"leaders of Intercomm": {3, func(c *comm.Comm) error {
			return use(intercommOf(c, c.Rank()))
		}, nil},
		"leaders that point at each other": {3, func(c *comm.Comm) error {
			return use(intercommOf(c, 1-c.Rank()))
		}, nil},
		"a leader of the own group": {2, func(c *comm.Comm) error {
			d, err := c.Dup()
			if err != nil {
				return err
			}
			return use(c.Intercomm(0, d, 1, 0))
		}, map[int]error{0: comm.ErrGroup}},
		"context of a leader": {2, func(c *comm.Comm) error {
			own, err := c.Self()
			if err != nil {
				return err
			}
			if c.Rank() == 1 { // calls later
				_, err := comm.Recv(c, []int{0}, 0, 5)
				if err == nil {
					err = use(own.Intercomm(0, c, 0, 0))
				}
				return err
			}
			ctx, stop := context.WithTimeout(c.Context(), 20*time.Millisecond)
			defer stop()
			d, err := own.WithContext(ctx).Intercomm(0, c, 1, 0)
			_ = comm.Send(c, []int{0}, 1, 5) // c is revoked
			return use(d, err)
		}, map[int]error{0: context.DeadlineExceeded}},
		"a freed communicator of a leader": {2, func(c *comm.Comm) error {
			own, err := c.Dup()
			if err != nil {
				return err
			}
			self, err := c.Self()
			if err != nil {
				return err
			}
			if err = own.Free(); err == nil && c.Rank() == 1 {
				return use(self.Intercomm(0, c, 0, 0))
			}
			return use(own.Intercomm(0, c, 1, 0))
		}, map[int]error{0: comm.ErrClosed, 1: comm.ErrRevoked}},
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, x.n, func(world *comm.Comm) error {
				c, err := world.Dup()
				require.NoError(t, err)
				err = x.call(c)
				require.Error(t, err)
				if want := x.want[c.Rank()]; want != nil {
					require.ErrorIs(t, err, want)
				}
				return world.Barrier()
			}, commtest.WithTimeout(20*time.Second), commtest.WithNodes([]int{0, 1, 0, 1}[:x.n]...))
		})
	}
}

// intercommOf makes an intercommunicator of the ranks 0 and 1, which pass leader, and the rank 2 of c.
func intercommOf(c *comm.Comm, leader int) (*comm.Comm, error) {
	own, err := c.Split(c.Rank()/2, 0)
	if err != nil {
		return nil, err
	}
	if c.Rank() == 2 {
		return own.Intercomm(0, c, 0, 0)
	}
	return own.Intercomm(leader, c, 2, 0)
}

// start starts a persistent operation, if there is one, and waits for it.
func start(p *comm.Persistent) error {
	if p == nil {
		return nil
	}
	if err := p.Start(); err != nil {
		return err
	}
	_, err := p.Wait()
	return err
}
