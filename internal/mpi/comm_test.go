package mpi_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/tcp"
)

// exercise checks that c works, and that its ranks are the ranks members of world, in this order.
func exercise(c, world *comm.Comm, members []int) error {
	got, err := c.Group().Translate(count(c.Size(), 0), world.Group())
	if err != nil {
		return err
	}
	if err := same("members", got, members); err != nil {
		return err
	}
	if members[c.Rank()] != world.Rank() || c.Group().Rank() != c.Rank() {
		return fmt.Errorf("rank %d of %v for world rank %d", c.Rank(), members, world.Rank())
	}
	all := make([]int, c.Size())
	if err := comm.Allgather(c, []int{world.Rank()}, all); err != nil {
		return err
	}
	if err := same("gathered", all, members); err != nil {
		return err
	}
	next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	one := make([]int, 1)
	if st, err := comm.Sendrecv(c, []int{world.Rank()}, next, 0, one, prev, 0); err != nil || st.Source != prev {
		return fmt.Errorf("%+v %w", st, err)
	}
	return same("from the left", one, []int{members[prev]})
}

func TestDup(t *testing.T) {
	eachCount(t, func(c *comm.Comm) error {
		d, err := c.Dup()
		if err != nil {
			return err
		}
		if err := exercise(d, c, count(c.Size(), 0)); err != nil {
			return err
		}
		// A receive on c does not match messages on d.
		r := comm.Irecv(c, make([]int, 1), comm.AnySource, comm.AnyTag)
		if err := exercise(d, c, count(c.Size(), 0)); err != nil {
			return err
		}
		if _, done, _ := r.Test(); done {
			return fmt.Errorf("a receive on the original got a message of the copy")
		}
		if err := first(r.Cancel(), wait(r)); err != nil {
			return err
		}
		if err := d.Free(); err != nil {
			return err
		}
		return first(wantErr("freed", d.Barrier(), comm.ErrClosed, "Barrier"), wantErr("freed twice", d.Free(), comm.ErrClosed, "Free"),
			wantErr("world", c.Free(), comm.ErrArg, "Finalize"))
	})
}

func TestSplit(t *testing.T) {
	eachCount(t, func(c *comm.Comm) error {
		for parts := 1; parts <= 3; parts++ {
			for _, key := range []func(r int) int{
				func(r int) int { return r }, func(r int) int { return -r }, func(int) int { return 0 }, func(r int) int { return r % 2 },
			} {
				color := c.Rank() % parts
				d, err := c.Split(color, key(c.Rank()))
				if err != nil {
					return err
				}
				var members []int
				for r := color; r < c.Size(); r += parts {
					members = append(members, r)
				}
				slices.SortStableFunc(members, func(a, b int) int { return key(a) - key(b) })
				if err := exercise(d, c, members); err != nil {
					return err
				}
				e, err := d.Split(0, -d.Rank())
				if err != nil {
					return err
				}
				slices.Reverse(members)
				if err := first(exercise(e, c, members), e.Free(), d.Free()); err != nil {
					return err
				}
			}
		}
		color := comm.Undefined
		if c.Rank() == 0 {
			color = 5
		}
		d, err := c.Split(color, 0)
		if err != nil || (d != nil) != (c.Rank() == 0) {
			return fmt.Errorf("undefined: %v, %w", d, err)
		}
		if d != nil {
			return exercise(d, c, []int{0})
		}
		return nil
	})
}

func TestSplitNode(t *testing.T) {
	ranks(t, 5, func(c *comm.Comm) error {
		d, err := c.SplitNode(0)
		if err != nil {
			return err
		}
		members := [][]int{{0, 2, 4}, {1, 3}}[c.Rank()%2]
		return exercise(d, c, members)
	}, commtest.WithNodes(0, 1, 0, 1, 0))
}

func TestCreate(t *testing.T) {
	eachCount(t, func(c *comm.Comm) error {
		n := c.Size()
		var odd, even []int
		for r := n - 1; r >= 0; r-- {
			if r%2 == 0 {
				even = append(even, r)
			} else {
				odd = append(odd, r)
			}
		}
		mine := even
		if c.Rank()%2 == 1 {
			mine = odd
		}
		g, err := c.Group().Incl(mine...)
		if err != nil {
			return err
		}
		d, err := c.Create(g) // the even and the odd ranks pass different groups
		if err != nil {
			return err
		}
		if err := exercise(d, c, mine); err != nil {
			return err
		}
		g, err = c.Group().Incl(even...)
		if err != nil {
			return err
		}
		if c.Rank()%2 == 1 {
			g = comm.Group{}
		}
		d, err = c.Create(g)
		if err != nil || (d == nil) != (c.Rank()%2 == 1) {
			return fmt.Errorf("%v %w", d, err)
		}
		if c.Rank()%2 == 1 {
			return nil
		}
		for tag := range 3 { // only the even ranks call CreateGroup
			e, err := c.CreateGroup(g, tag)
			if err != nil {
				return err
			}
			if err := first(exercise(e, c, even), e.Free()); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestCreateErrors(t *testing.T) {
	ranks(t, 3, func(c *comm.Comm) error {
		g, _ := c.Group().Incl(0, 1)
		if c.Rank() == 2 {
			own, err := c.Self()
			if err != nil {
				return err
			}
			_, err = own.CreateGroup(g, 0)
			if err := wantErr("not in the group", err, comm.ErrGroup, "not in the group"); err != nil {
				return err
			}
			if own, err = c.Self(); err != nil {
				return err
			}
			_, err = own.CreateGroup(own.Group(), -1)
			if err := wantErr("tag", err, comm.ErrTag, ""); err != nil {
				return err
			}
		}
		part, err := c.Split(c.Rank()%2, 0) // one communicator has ranks 0 and 2, the other one rank 1
		if err != nil {
			return err
		}
		if c.Rank() != 1 {
			_, err := part.CreateGroup(c.Group(), 0)
			if err := wantErr("strangers", err, comm.ErrGroup, "does not have"); err != nil {
				return err
			}
		}
		d, err := c.Dup()
		if err != nil {
			return err
		}
		// Rank 1 passes another group than the other ranks.
		g, _ = c.Group().Incl(0, 1, 2)
		if c.Rank() == 1 {
			g, _ = c.Group().Incl(2, 1)
		}
		_, err = d.Create(g)
		if !isErr(err, comm.ErrGroup) && !isErr(err, comm.ErrRevoked) {
			return fmt.Errorf("different groups: %w", err)
		}
		return d.Free()
	})
}

// TestManyComms makes communicators by Split, uses them once and frees them, many times.
func TestManyComms(t *testing.T) {
	ranks(t, 4, func(c *comm.Comm) error {
		for i := range 200 {
			d, err := c.Split(c.Rank()*i%3, i)
			if err != nil {
				return err
			}
			if err := first(d.Barrier(), d.Free()); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestWorldOfOne(t *testing.T) {
	ranks(t, 1, func(c *comm.Comm) error {
		if c.Size() != 1 || c.Rank() != 0 {
			return fmt.Errorf("rank %d of %d", c.Rank(), c.Size())
		}
		return exercise(c, c, []int{0})
	})
}

func TestManyRanks(t *testing.T) {
	ranks(t, 64, func(c *comm.Comm) error {
		d, err := c.Split(c.Rank()%5, -c.Rank())
		if err != nil {
			return err
		}
		sum := []int{c.Rank()}
		if err := comm.Allreduce(c, sum, sum, comm.Sum); err != nil || sum[0] != 64*63/2 {
			return fmt.Errorf("sum %d: %w", sum[0], err)
		}
		return d.Free()
	})
}

func TestTransport(t *testing.T) {
	for want, p := range map[string]transport.Provider{"inproc": inproc.NewFabric(), "tcp": tcp.New()} {
		ranks(t, 3, func(c *comm.Comm) error {
			d, err := c.Split(0, -c.Rank())
			if err != nil {
				return err
			}
			for _, x := range []*comm.Comm{c, d} {
				names := []string{x.Transport(-1), x.Transport(3)}
				names = append(names, x.Transport(0), x.Transport(1), x.Transport(2))
				wants := []string{"", "", want, want, want}
				wants[2+x.Rank()] = "self"
				if err := same("names", names, wants); err != nil {
					return err
				}
			}
			return same("of nil", []string{(*comm.Comm)(nil).Transport(0)}, []string{""})
		}, commtest.WithProviders(p))
	}
}

// TestCreateGroupBesideCollectives runs CreateGroup and a collective of the same communicator at
// the same time. They have no order, so neither may wait until the other one has ended.
func TestCreateGroupBesideCollectives(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		g, err := c.Group().Incl(1, 0)
		if err != nil {
			return err
		}
		create := func() error {
			s, err := c.CreateGroup(g, 7)
			if err != nil {
				return err
			}
			return s.Free()
		}
		if c.Rank() == 1 {
			return first(c.Barrier(), create())
		}
		done := make(chan error, 1)
		go func() { done <- create() }() // ends when rank 1 calls CreateGroup, after its barrier
		untilWaiting(c, "CreateGroup")
		return first(c.Barrier(), <-done)
	}, commtest.WithTimeout(10*time.Second))
}
