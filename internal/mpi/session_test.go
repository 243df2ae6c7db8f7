package mpi_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// TestSession makes communicators from process sets and groups, several at the same time and several
// with the same tag one after the other.
func TestSession(t *testing.T) {
	overFabrics(t, []int{1, 3, 5}, func(c *comm.Comm) error {
		s := c.Session()
		world, err := s.Group("mpi://WORLD")
		require.NoError(t, err)
		require.Equal(t, comm.Ident, world.Compare(c.Group()))
		self, err := s.Group("mpi://SELF")
		require.NoError(t, err)
		for range 3 {
			a, err := s.Comm(world, "a")
			require.NoError(t, err)
			require.Equal(t, `session comm "a"`, a.Name())
			require.NoError(t, barrierOf(a, c.Size()))
			one, err := s.Comm(self, "a")
			require.NoError(t, err)
			require.NoError(t, first(barrierOf(one, 1), one.Free(), a.Free()))
		}
		// Goroutines with tags of their own, in any order.
		var all sync.WaitGroup
		errs := make([]error, 6)
		for i := range errs {
			all.Go(func() { // ends with its calls
				x, err := s.Comm(world, fmt.Sprint("tag ", i))
				if err == nil {
					err = first(barrierOf(x, c.Size()), x.Free())
				}
				errs[i] = err
			})
		}
		all.Wait()
		require.NoError(t, first(errs...))
		// The even ranks and the odd ones, each with the same tag.
		var mine, theirs []int
		for r := range c.Size() {
			if r%2 == c.Rank()%2 {
				mine = append(mine, r)
			} else {
				theirs = append(theirs, r)
			}
		}
		half, err := world.Incl(mine...)
		require.NoError(t, err)
		h, err := s.Comm(half, "half")
		require.NoError(t, err)
		require.NoError(t, first(barrierOf(h, len(mine)), h.Free()))
		if len(theirs) == 0 {
			return nil
		}
		other, err := world.Incl(theirs...)
		require.NoError(t, err)
		x, err := s.Intercomm(half, len(mine)-1, other, len(theirs)-1, "two halves")
		require.NoError(t, err)
		sum := make([]int, 1)
		require.NoError(t, comm.Allreduce(x, []int{1}, sum, comm.Sum))
		require.Equal(t, len(theirs), sum[0])
		return x.Free()
	})
}

// partitionsApart sends partitions and a message with the same tag from one rank, on which sends is
// true, to another. peer is the other rank. The receive of the message must not get the offer of the
// partitions, which leaves first.
func partitionsApart(c *comm.Comm, sends bool, peer int) error {
	for _, n := range []int{4, 100000} { // a message for each partition; one message that the receiver reads
		if err := partitionsOf(c, n, sends, peer); err != nil {
			return fmt.Errorf("%d elements: %w", n, err)
		}
	}
	return nil
}

func partitionsOf(c *comm.Comm, n int, sends bool, peer int) error {
	const tag = 5
	parts := count(n, 10)
	if sends {
		p, err := comm.PsendInit(c, parts, 4, peer, tag)
		if err != nil {
			return err
		}
		return first(comm.Send(c, []int{7}, peer, tag), p.Start(), p.ReadyRange(0, 4), p.Wait(), p.Free())
	}
	message := []int{0, 0, 0, 0}
	if _, err := comm.Recv(c, message, comm.AnySource, tag); err != nil {
		return err
	}
	if err := same("message", message, []int{7, 0, 0, 0}); err != nil {
		return err
	}
	got := make([]int, n)
	p, err := comm.PrecvInit(c, got, 2, peer, tag)
	if err != nil {
		return err
	}
	return first(p.Start(), p.Wait(), same("partitions", got, parts), p.Free())
}

// TestSessionPartitions: in a communicator of a session, the messages of partitioned operations match
// neither receives nor collectives of the program.
func TestSessionPartitions(t *testing.T) {
	overFabrics(t, []int{2}, func(c *comm.Comm) error {
		s := c.Session()
		for i := range 8 { // the id of the communicator depends on the tag
			x, err := s.Comm(c.Group(), fmt.Sprint("partitions ", i))
			require.NoError(t, err)
			require.NoError(t, partitionsApart(x, x.Rank() == 0, 1-x.Rank()))
			sums := make([]int, 1)
			for range 5 { // the partitions have the numbers from 0 on as tags, and so have the collectives
				require.NoError(t, comm.Allreduce(x, []int{1}, sums, comm.Sum))
				require.Equal(t, 2, sums[0])
			}
			require.NoError(t, x.Free())
		}
		return nil
	})
}

// TestSessionHosts checks the set of the processes of a host, and wrong arguments.
func TestSessionHosts(t *testing.T) {
	ranks(t, 5, func(c *comm.Comm) error {
		s := c.Session()
		host, err := s.Group("weft://HOST")
		require.NoError(t, err)
		require.Equal(t, []int{3, 2, 3, 2, 3}[c.Rank()], host.Size())
		h, err := s.Comm(host, "")
		require.NoError(t, err)
		require.NoError(t, first(barrierOf(h, host.Size()), h.Free()))
		_, err = s.Group("mpi://NOBODY")
		require.ErrorIs(t, err, comm.ErrArg)
		others, err := c.Group().Excl(c.Rank())
		require.NoError(t, err)
		_, err = s.Comm(others, "others")
		require.ErrorIs(t, err, comm.ErrGroup)
		_, err = s.Comm(comm.Group{}, "nobody")
		require.ErrorIs(t, err, comm.ErrGroup)
		_, err = s.Intercomm(host, 9, others, 0, "leader")
		require.ErrorIs(t, err, comm.ErrRank)
		var none *comm.Session
		_, err = none.Comm(host, "")
		require.ErrorIs(t, err, comm.ErrClosed)
		_, err = none.Psets()
		require.ErrorIs(t, err, comm.ErrClosed)
		require.ErrorIs(t, none.Close(), comm.ErrClosed)
		require.NoError(t, s.Close())
		_, err = s.Group("mpi://WORLD")
		require.ErrorIs(t, err, comm.ErrClosed)
		return nil
	}, commtest.WithNodes(0, 1, 0, 1, 0))
}

// TestSessionFailure: a process of the group dies instead of calling Comm.
func TestSessionFailure(t *testing.T) {
	ranks(t, 3, func(c *comm.Comm) error {
		if c.Rank() == 1 {
			commtest.Kill(c)
			return nil
		}
		s := c.Session()
		_, err := s.Comm(c.Group(), "all")
		require.Error(t, err) // ErrProcFailed, or ErrRevoked after that of the other rank
		live, err := c.Group().Excl(1)
		require.NoError(t, err)
		x, err := s.Comm(live, "live")
		require.NoError(t, err)
		return first(barrierOf(x, 2), x.Free())
	}, commtest.WithNotify())
}

// TestSessionIntercommFailure: a process of one group is dead, the ranks of a group pass different
// leaders, or some pass wrong arguments. No rank of either group waits for ever. Ranks that get an error are
// not in Finalize while others wait, because that would end the wait.
func TestSessionIntercommFailure(t *testing.T) {
	for name, x := range map[string]struct {
		dead         int                    // -1: none
		leader       func(c *comm.Comm) int // rank in the own group
		remoteLeader func(c *comm.Comm) int // rank in the other group
		again        bool                   // a call with right arguments works afterwards
	}{
		"a leader is dead":                 {0, nil, nil, false},
		"a process is dead":                {4, nil, nil, false},
		"different leaders":                {-1, func(c *comm.Comm) int { return c.Rank() / 4 }, nil, true},
		"a rank passes a wrong leader":     {-1, func(c *comm.Comm) int { return c.Rank() / 4 * 7 }, nil, true},
		"leaders that point at each other": {-1, func(c *comm.Comm) int { return c.Rank() % 2 * (1 - c.Rank()/2) }, nil, true},
		"a group passes a wrong leader":    {-1, func(c *comm.Comm) int { return 7 * (1 - c.Rank()%2) }, nil, true},
		"a wrong remote leader":            {-1, nil, func(c *comm.Comm) int { return 5 * (1 - c.Rank()%2) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 5, func(c *comm.Comm) error {
				if c.Rank() == x.dead {
					commtest.Kill(c)
					return nil
				}
				leader, remoteLeader := 0, 0
				if x.leader != nil {
					leader = x.leader(c)
				}
				if x.remoteLeader != nil {
					remoteLeader = x.remoteLeader(c)
				}
				groups := []comm.Group{must(c.Group().Incl(0, 2, 4)), must(c.Group().Incl(1, 3))}
				local, remote := groups[c.Rank()%2], groups[1-c.Rank()%2]
				s := c.Session()
				_, err := s.Intercomm(local, leader, remote, remoteLeader, "failure")
				require.Error(t, err)
				if name == "different leaders" && c.Rank()%2 == 0 {
					require.ErrorContains(t, err, "Intercomm with leader ")
				}
				if !x.again {
					return nil
				}
				if err := c.Barrier(); err != nil {
					return err
				}
				y, err := s.Intercomm(local, 0, remote, 0, "failure")
				require.NoError(t, err)
				return first(y.Barrier(), y.Free())
			}, commtest.WithNotify(), commtest.WithTimeout(20*time.Second))
		})
	}
}

// TestSessionIntercommRemote: a rank that is not the leader passes another remote group. Its group gets an
// error, and later calls work, also if that rank is the leader then.
func TestSessionIntercommRemote(t *testing.T) {
	for name, wrong := range map[string]func(c *comm.Comm) comm.Group{
		"none":      func(*comm.Comm) comm.Group { return comm.Group{} },
		"the local": func(c *comm.Comm) comm.Group { return must(c.Group().Incl(0, 2)) },
		"a part":    func(c *comm.Comm) comm.Group { return must(c.Group().Incl(1)) },
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 4, func(c *comm.Comm) error {
				groups := []comm.Group{must(c.Group().Incl(0, 2)), must(c.Group().Incl(1, 3))}
				local, remote := groups[c.Rank()%2], groups[1-c.Rank()%2]
				passed := remote
				if c.Rank() == 2 {
					passed = wrong(c)
				}
				s := c.Session()
				_, err := s.Intercomm(local, 0, passed, 0, "remote")
				require.Error(t, err)
				if err := c.Barrier(); err != nil {
					return err
				}
				for leader := range 2 {
					x, err := s.Intercomm(local, leader*(1-c.Rank()%2), remote, leader*(1-(c.Rank()+1)%2), "remote")
					require.NoError(t, err)
					require.NoError(t, first(x.Barrier(), x.Free()))
				}
				return nil
			}, commtest.WithTimeout(20*time.Second))
		})
	}
}

// TestSessionIntercommTogether: two goroutines of each rank make intercommunicators of different groups with
// the same tag, in any order.
func TestSessionIntercommTogether(t *testing.T) {
	ranks(t, 4, func(c *comm.Comm) error {
		s := c.Session()
		for range withRace(50, 10) {
			var both sync.WaitGroup
			errs := make([]error, 2)
			for i, near := range [][]int{{0, 1}, {0, 2}} {
				both.Go(func() {
					a := must(c.Group().Incl(near...))
					b := must(c.Group().Excl(near...))
					if a.Rank() == comm.Undefined {
						a, b = b, a
					}
					x, err := s.Intercomm(a, 0, b, 0, "together")
					if err == nil {
						err = first(x.Barrier(), x.Free())
					}
					errs[i] = err
				})
			}
			both.Wait()
			if err := first(errs...); err != nil {
				return err
			}
		}
		return nil
	}, commtest.WithTimeout(60*time.Second))
}
