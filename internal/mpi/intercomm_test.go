package mpi_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// twoGroups splits c into the ranks that are a multiple of 3 and the others, and returns the
// caller's group and the intercommunicator of both. The leader of the second group is its last rank.
func twoGroups(c *comm.Comm) (local, inter *comm.Comm, err error) {
	color := min(1, c.Rank()%3)
	if local, err = c.Split(color, 0); err != nil {
		return nil, nil, err
	}
	last := c.Size() - 1
	if last%3 == 0 {
		last--
	}
	if color == 0 {
		inter, err = local.Intercomm(0, c, last, 7)
	} else {
		inter, err = local.Intercomm(local.Size()-1, c, 0, 7)
	}
	return local, inter, err
}

// remoteSize returns the number of ranks of the remote group.
func remoteSize(inter *comm.Comm) int {
	g, _ := inter.Remote()
	return g.Size()
}

// forms runs a collective in its three forms, the persistent one twice. check must be right after
// each of them; reset runs before each of them.
func forms(t require.TestingT, reset, check func(), call func() error, start func() comm.Request, init func() (*comm.Persistent, error)) {
	reset()
	require.NoError(t, call())
	check()
	reset()
	r := start()
	_, err := r.Wait()
	require.NoError(t, err)
	check()
	p, err := init()
	require.NoError(t, err)
	for range 2 {
		reset()
		require.NoError(t, p.Start())
		_, err = p.Wait()
		require.NoError(t, err)
		check()
	}
	require.NoError(t, p.Free())
}

// TestIntercomm checks messages, groups and the communicators that are made of an intercommunicator.
func TestIntercomm(t *testing.T) {
	overFabrics(t, []int{2, 3, 7}, func(c *comm.Comm) error {
		local, inter, err := twoGroups(c)
		require.NoError(t, err)
		n := remoteSize(inter)
		remote, ok := inter.Remote()
		require.True(t, ok)
		require.Equal(t, c.Size()-local.Size(), n)
		require.Equal(t, local.Rank(), inter.Rank())
		require.Equal(t, local.Size(), inter.Size())
		require.Equal(t, comm.Undefined, remote.Rank())
		require.Equal(t, comm.Ident, inter.Group().Compare(local.Group()))
		require.Equal(t, comm.Unequal, inter.Compare(local))

		// Each rank sends its rank to every rank of the other group, and gets theirs.
		var sends []comm.Request
		for r := range n {
			sends = append(sends, comm.Isend(inter, []int{inter.Rank(), r}, r, 5))
		}
		for r := range n {
			got := make([]int, 2)
			st, err := comm.Recv(inter, got, r, 5)
			require.NoError(t, err)
			require.Equal(t, []int{r, inter.Rank()}, got)
			require.Equal(t, r, st.Source)
		}
		for _, r := range sends {
			_, err := r.Wait()
			require.NoError(t, err)
		}
		require.NoError(t, inter.Barrier())
		for r := range n {
			sends[r] = comm.Isend(inter, []int{inter.Rank()}, r, 6)
		}
		seen := make([]bool, n)
		for range n {
			got := make([]int, 1)
			st, err := comm.Recv(inter, got, comm.AnySource, comm.AnyTag)
			require.NoError(t, err)
			require.Equal(t, st.Source, got[0])
			seen[st.Source] = true
		}
		require.NotContains(t, seen, false)
		for _, r := range sends {
			_, err := r.Wait()
			require.NoError(t, err)
		}

		d, err := inter.Dup()
		require.NoError(t, err)
		require.Equal(t, comm.Congruent, d.Compare(inter))
		require.Equal(t, comm.Ident, d.Compare(d.WithContext(t.Context())))
		require.NoError(t, d.Free())

		isA := c.Rank()%3 == 0
		m, err := inter.Merge(isA) // the second group gets the lower ranks
		require.NoError(t, err)
		want := inter.Rank()
		if isA {
			want += n
		}
		require.Equal(t, want, m.Rank())
		require.Equal(t, c.Size(), m.Size())
		sum := make([]int, 1)
		require.NoError(t, comm.Allreduce(m, []int{c.Rank()}, sum, comm.Sum))
		require.Equal(t, c.Size()*(c.Size()-1)/2, sum[0])
		require.NoError(t, m.Free())

		// The even ranks of both groups, in reverse order, and the odd ones.
		part, err := inter.Split(inter.Rank()%2, -inter.Rank())
		require.NoError(t, err)
		if n == 1 && inter.Rank()%2 == 1 {
			require.Nil(t, part) // no rank of the other group passes this colour
		} else if other := (n + 1 - inter.Rank()%2) / 2; other == 0 {
			require.Nil(t, part)
		} else {
			require.Equal(t, other, remoteSize(part))
			require.NoError(t, part.Barrier())
			first, _ := part.Remote()
			in, err := first.Translate([]int{0}, remote)
			require.NoError(t, err)
			require.Equal(t, (n-1-inter.Rank()%2)/2*2+inter.Rank()%2, in[0])
			require.NoError(t, part.Free())
		}

		// The first rank of each group.
		one, err := inter.Group().Incl(0)
		require.NoError(t, err)
		if inter.Rank() > 0 {
			one, err = inter.Group().Excl(inter.Rank())
			require.NoError(t, err)
			one, err = one.Incl(0)
			require.NoError(t, err)
		}
		pair, err := inter.Create(one)
		require.NoError(t, err)
		require.Equal(t, inter.Rank() == 0, pair != nil)
		if pair != nil {
			require.Equal(t, 1, remoteSize(pair))
			got := []int{-1}
			_, err := comm.Sendrecv(pair, []int{c.Rank()}, 0, 0, got, 0, 0)
			require.NoError(t, err)
			require.NotEqual(t, c.Rank(), got[0])
			require.NoError(t, pair.Free())
		}
		require.NoError(t, inter.Free())
		return local.Free()
	})
}

// wantElement is require.Equal, which is slow, for one of many elements.
func wantElement(t *testing.T, want, got int) {
	if want != got {
		require.Equal(t, want, got)
	}
}

// TestIntercommCollectives compares each collective of an intercommunicator with its definition.
func TestIntercommCollectives(t *testing.T) {
	overFabrics(t, []int{2, 5}, func(c *comm.Comm) error {
		local, inter, err := twoGroups(c)
		require.NoError(t, err)
		me, n, nl := inter.Rank(), remoteSize(inter), inter.Size()
		isA := c.Rank()%3 == 0
		value := func(group bool, rank, i int) int { // element i of a rank
			if group {
				return 1000 + rank*100 + i
			}
			return 5000 + rank*100 + i
		}
		mine := func(i int) int { return value(isA, me, i) }
		theirs := func(rank, i int) int { return value(!isA, rank, i) }
		nothing := func() {}

		for _, a := range []bool{true, false} { // the group of the root
			for root := range map[bool]int{true: nl, false: n}[isA == a] {
				arg := root
				atRoot := isA == a && me == root
				if isA == a {
					if arg = comm.ProcNull; atRoot {
						arg = comm.Root
					}
				}
				for _, count := range []int{0, 300} {
					// Bcast
					buf := make([]int, count)
					forms(t, func() {
						for i := range buf {
							buf[i] = -1
							if atRoot {
								buf[i] = mine(i)
							}
						}
					}, func() {
						for i := range buf {
							want := -1
							if atRoot {
								want = mine(i)
							} else if isA != a {
								want = theirs(root, i)
							}
							wantElement(t, want, buf[i])
						}
					}, func() error { return comm.Bcast(inter, buf, arg) },
						func() comm.Request { return comm.Ibcast(inter, buf, arg) },
						func() (*comm.Persistent, error) { return comm.BcastInit(inter, buf, arg) })

					// Gather and Gatherv
					// Ranks that are not the root pass buffers, too, which have no meaning there.
					send, recv := make([]int, count), make([]int, count*n)
					for i := range send {
						send[i] = mine(i)
					}
					reset := func() {
						for i := range recv {
							recv[i] = -1
						}
					}
					gathered := func() {
						for i := range recv {
							want := -1
							if atRoot {
								want = theirs(i/count, i%count)
							}
							wantElement(t, want, recv[i])
						}
					}
					forms(t, reset, gathered, func() error { return comm.Gather(inter, send, recv, arg) },
						func() comm.Request { return comm.Igather(inter, send, recv, arg) },
						func() (*comm.Persistent, error) { return comm.GatherInit(inter, send, recv, arg) })
					counts := slices.Repeat([]int{count}, n)
					forms(t, reset, gathered, func() error { return comm.Gatherv(inter, send, recv, counts, nil, arg) },
						func() comm.Request { return comm.Igatherv(inter, send, recv, counts, nil, arg) },
						func() (*comm.Persistent, error) { return comm.GathervInit(inter, send, recv, counts, nil, arg) })
					views := make([]comm.View[int], n)
					for r := range views {
						views[r] = comm.Of(recv[r*count:][:count], comm.Contiguous(count))
					}
					forms(t, reset, gathered, func() error { return comm.GatherView(inter, comm.Of(send, comm.Contiguous(count)), views, arg) },
						func() comm.Request { return comm.IgatherView(inter, comm.Of(send, comm.Contiguous(count)), views, arg) },
						func() (*comm.Persistent, error) {
							return comm.GatherViewInit(inter, comm.Of(send, comm.Contiguous(count)), views, arg)
						})

					// Scatter and Scatterv: block r of the root is value(root, r*count...)
					blocks, got := make([]int, count*n), make([]int, count)
					for i := range blocks {
						blocks[i] = mine(i)
					}
					reset = func() {
						for i := range got {
							got[i] = -1
						}
					}
					scattered := func() {
						for i := range got {
							want := -1
							if isA != a {
								want = theirs(root, me*count+i)
							}
							wantElement(t, want, got[i])
						}
					}
					forms(t, reset, scattered, func() error { return comm.Scatter(inter, blocks, got, arg) },
						func() comm.Request { return comm.Iscatter(inter, blocks, got, arg) },
						func() (*comm.Persistent, error) { return comm.ScatterInit(inter, blocks, got, arg) })
					forms(t, reset, scattered, func() error { return comm.Scatterv(inter, blocks, counts, nil, got, arg) },
						func() comm.Request { return comm.Iscatterv(inter, blocks, counts, nil, got, arg) },
						func() (*comm.Persistent, error) { return comm.ScattervInit(inter, blocks, counts, nil, got, arg) })
					for r := range views {
						views[r] = comm.Of(blocks[r*count:][:count], comm.Contiguous(count))
					}
					forms(t, reset, scattered, func() error { return comm.ScatterView(inter, views, comm.Of(got, comm.Contiguous(count)), arg) },
						func() comm.Request { return comm.IscatterView(inter, views, comm.Of(got, comm.Contiguous(count)), arg) },
						func() (*comm.Persistent, error) {
							return comm.ScatterViewInit(inter, views, comm.Of(got, comm.Contiguous(count)), arg)
						})

					// Reduce
					reset()
					forms(t, reset, func() {
						for i := range got {
							want := -1
							if atRoot {
								want = 0
								for r := range n {
									want += theirs(r, i)
								}
							}
							wantElement(t, want, got[i])
						}
					}, func() error { return comm.Reduce(inter, send, got, comm.Sum, arg) },
						func() comm.Request { return comm.Ireduce(inter, send, got, comm.Sum, arg) },
						func() (*comm.Persistent, error) { return comm.ReduceInit(inter, send, got, comm.Sum, arg) })
				}
			}
		}

		for _, count := range []int{0, 300} {
			// The groups send blocks of different lengths: group A count, group B 2*count.
			length := func(group bool) int {
				if group {
					return count
				}
				return 2 * count
			}
			out, in := length(isA), length(!isA)
			send, recv := make([]int, out), make([]int, in*n)
			for i := range send {
				send[i] = mine(i)
			}
			reset := func() {
				for i := range recv {
					recv[i] = -1
				}
			}
			gathered := func() {
				for i := range recv {
					wantElement(t, theirs(i/in, i%in), recv[i])
				}
			}
			forms(t, reset, gathered, func() error { return comm.Allgather(inter, send, recv) },
				func() comm.Request { return comm.Iallgather(inter, send, recv) },
				func() (*comm.Persistent, error) { return comm.AllgatherInit(inter, send, recv) })
			counts := slices.Repeat([]int{in}, n)
			forms(t, reset, gathered, func() error { return comm.Allgatherv(inter, send, recv, counts, nil) },
				func() comm.Request { return comm.Iallgatherv(inter, send, recv, counts, nil) },
				func() (*comm.Persistent, error) { return comm.AllgathervInit(inter, send, recv, counts, nil) })
			// The blocks in reverse order.
			displs := make([]int, n)
			for r := range displs {
				displs[r] = (n - 1 - r) * in
			}
			forms(t, reset, func() {
				for i := range recv {
					wantElement(t, theirs(n-1-i/in, i%in), recv[i])
				}
			}, func() error { return comm.Allgatherv(inter, send, recv, counts, displs) },
				func() comm.Request { return comm.Iallgatherv(inter, send, recv, counts, displs) },
				func() (*comm.Persistent, error) { return comm.AllgathervInit(inter, send, recv, counts, displs) })
			views := make([]comm.View[int], n)
			for r := range views {
				views[r] = comm.Of(recv[r*in:][:in], comm.Contiguous(in))
			}
			forms(t, reset, gathered, func() error { return comm.AllgatherView(inter, comm.Of(send, comm.Contiguous(out)), views) },
				func() comm.Request { return comm.IallgatherView(inter, comm.Of(send, comm.Contiguous(out)), views) },
				func() (*comm.Persistent, error) {
					return comm.AllgatherViewInit(inter, comm.Of(send, comm.Contiguous(out)), views)
				})

			// Alltoall: block r of a rank begins with element r*length of the rank.
			all := make([]int, out*n)
			for i := range all {
				all[i] = mine(i)
			}
			exchanged := func() {
				for i := range recv {
					wantElement(t, theirs(i/in, me*in+i%in), recv[i])
				}
			}
			forms(t, reset, exchanged, func() error { return comm.Alltoall(inter, all, recv) },
				func() comm.Request { return comm.Ialltoall(inter, all, recv) },
				func() (*comm.Persistent, error) { return comm.AlltoallInit(inter, all, recv) })
			sendcounts := slices.Repeat([]int{out}, n)
			forms(t, reset, exchanged, func() error { return comm.Alltoallv(inter, all, sendcounts, nil, recv, counts, nil) },
				func() comm.Request { return comm.Ialltoallv(inter, all, sendcounts, nil, recv, counts, nil) },
				func() (*comm.Persistent, error) {
					return comm.AlltoallvInit(inter, all, sendcounts, nil, recv, counts, nil)
				})
			from := make([]comm.View[int], n)
			for r := range from {
				from[r] = comm.Of(all[r*out:][:out], comm.Contiguous(out))
			}
			forms(t, reset, exchanged, func() error { return comm.AlltoallView(inter, from, views) },
				func() comm.Request { return comm.IalltoallView(inter, from, views) },
				func() (*comm.Persistent, error) { return comm.AlltoallViewInit(inter, from, views) })

			// Allreduce, ReduceScatterBlock and ReduceScatter
			sum := func(i int) (s int) {
				for r := range n {
					s += theirs(r, i)
				}
				return s
			}
			one, result := make([]int, count), make([]int, count)
			for i := range one {
				one[i] = mine(i)
			}
			forms(t, nothing, func() {
				for i := range result {
					wantElement(t, sum(i), result[i])
				}
			}, func() error { return comm.Allreduce(inter, one, result, comm.Sum) },
				func() comm.Request { return comm.Iallreduce(inter, one, result, comm.Sum) },
				func() (*comm.Persistent, error) { return comm.AllreduceInit(inter, one, result, comm.Sum) })
			total := make([]int, count*n*nl) // the same length in both groups
			for i := range total {
				total[i] = mine(i)
			}
			block := make([]int, count*n)
			forms(t, nothing, func() {
				for i := range block {
					wantElement(t, sum(me*count*n+i), block[i])
				}
			}, func() error { return comm.ReduceScatterBlock(inter, total, block, comm.Sum) },
				func() comm.Request { return comm.IreduceScatterBlock(inter, total, block, comm.Sum) },
				func() (*comm.Persistent, error) { return comm.ReduceScatterBlockInit(inter, total, block, comm.Sum) })
			blocks := slices.Repeat([]int{count * n}, nl)
			forms(t, nothing, func() {
				for i := range block {
					wantElement(t, sum(me*count*n+i), block[i])
				}
			}, func() error { return comm.ReduceScatter(inter, total, block, blocks, comm.Sum) },
				func() comm.Request { return comm.IreduceScatter(inter, total, block, blocks, comm.Sum) },
				func() (*comm.Persistent, error) { return comm.ReduceScatterInit(inter, total, block, blocks, comm.Sum) })
		}
		require.NoError(t, inter.Free())
		return local.Free()
	})
}

// TestIntercommArguments checks that wrong arguments are errors on all ranks of both groups.
func TestIntercommArguments(t *testing.T) {
	for name, call := range map[string]func(inter *comm.Comm, wrong bool) error{
		"root": func(inter *comm.Comm, wrong bool) error {
			root := comm.ProcNull
			if wrong {
				root = 99
			}
			if err := comm.Bcast(inter, []int{1}, root); err != nil {
				return err
			}
			return inter.Barrier()
		},
		"two roots": func(inter *comm.Comm, wrong bool) error {
			root := 0
			if wrong {
				root = comm.Root
			}
			if err := comm.Bcast(inter, make([]int, 1), root); err != nil {
				return err
			}
			return inter.Barrier()
		},
		"blocks": func(inter *comm.Comm, wrong bool) error {
			n := 2 * remoteSize(inter)
			if wrong {
				n++
			}
			return comm.Alltoall(inter, make([]int, n), make([]int, 2*remoteSize(inter)))
		},
		"length": func(inter *comm.Comm, wrong bool) error {
			n := 2
			if wrong {
				n = 3
			}
			return comm.Allreduce(inter, make([]int, n), make([]int, n), comm.Sum)
		},
		"scan":   func(inter *comm.Comm, _ bool) error { return comm.Scan(inter, []int{1}, []int{1}, comm.Sum) },
		"window": func(inter *comm.Comm, _ bool) error { _, err := comm.NewWin[int](inter, 1); return err },
		"cart":   func(inter *comm.Comm, _ bool) error { _, err := inter.Cart([]int{1}, nil); return err },
		"graph":  func(inter *comm.Comm, _ bool) error { _, err := inter.Graph(nil, nil); return err },
		"node":   func(inter *comm.Comm, _ bool) error { _, err := inter.SplitNode(0); return err },
		"group":  func(inter *comm.Comm, _ bool) error { _, err := inter.CreateGroup(inter.Group(), 0); return err },
		"other": func(inter *comm.Comm, wrong bool) error {
			if wrong {
				return inter.Barrier()
			}
			return comm.Bcast(inter, make([]int, 1), 0)
		},
		"create": func(inter *comm.Comm, wrong bool) error { // one rank of a group leaves out another
			g := inter.Group()
			if wrong {
				g = must(g.Incl(g.Rank()))
			}
			_, err := inter.Create(g)
			return err
		},
		"split": func(inter *comm.Comm, wrong bool) error {
			color := 0
			if wrong {
				color = -7
			}
			_, err := inter.Split(color, 0)
			return err
		},
		"sparse": func(inter *comm.Comm, _ bool) error {
			_, err := comm.SparseAlltoall(inter, slices.All([][]int{{1}}))
			return err
		},
		"value":  func(inter *comm.Comm, _ bool) error { _, err := comm.BcastValue(inter, 1, 0); return err },
		"alloc":  func(inter *comm.Comm, _ bool) error { _, err := comm.AllgathervAlloc(inter, []int{1}); return err },
		"leader": func(inter *comm.Comm, _ bool) error { _, err := inter.Intercomm(0, inter, 0, 0); return err },
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 5, func(c *comm.Comm) error {
				_, inter, err := twoGroups(c)
				require.NoError(t, err)
				require.Error(t, call(inter, c.Rank() == 1))
				return nil
			})
		})
	}
	t.Run("common process", func(t *testing.T) {
		ranks(t, 3, func(c *comm.Comm) error {
			local, err := c.Self()
			require.NoError(t, err)
			if c.Rank() == 2 {
				return nil
			}
			d, err := c.CreateGroup(must(c.Group().Incl(0, 1)), 0)
			require.NoError(t, err)
			own := local
			if c.Rank() == 1 {
				own = d // which has rank 0, too
			}
			leader := own.Rank()
			_, err = own.Intercomm(leader, c, 1-c.Rank(), 3)
			if c.Rank() == 1 {
				require.ErrorIs(t, err, comm.ErrGroup)
			} else {
				require.ErrorIs(t, err, comm.ErrRevoked)
			}
			return nil
		})
	})
	t.Run("leader", func(t *testing.T) {
		ranks(t, 2, func(c *comm.Comm) error {
			own, err := c.Self()
			require.NoError(t, err)
			d, err := c.Dup()
			require.NoError(t, err)
			if c.Rank() == 0 {
				_, err = own.Intercomm(0, d, 2, 0)
				require.ErrorIs(t, err, comm.ErrRank)
			} else {
				_, err = own.Intercomm(0, d, 0, 0)
				require.ErrorIs(t, err, comm.ErrRevoked)
			}
			_, err = own.Intercomm(1, d, 0, 0)
			require.Error(t, err)
			return nil
		})
	})
	t.Run("merge", func(t *testing.T) {
		ranks(t, 5, func(c *comm.Comm) error {
			_, inter, err := twoGroups(c)
			require.NoError(t, err)
			_, err = inter.Merge(c.Rank() == 2)
			require.ErrorContains(t, err, "different values of high")
			_, err = c.Merge(true)
			require.Error(t, err)
			return nil
		})
	})
}

// TestZeroViewsBetweenGroups: views that have no meaning at a rank may be zero there.
func TestZeroViewsBetweenGroups(t *testing.T) {
	ranks(t, 3, func(c *comm.Comm) error {
		own, err := c.Split(c.Rank()/2, 0)
		require.NoError(t, err)
		x, err := own.Intercomm(0, c, []int{2, 2, 0}[c.Rank()], 0)
		require.NoError(t, err)
		root := []int{comm.Root, comm.ProcNull, 0}[c.Rank()] // rank 0 is the root, and rank 2 the other group
		var none comm.View[int]
		got := []int{-1}
		used := func(at int) comm.View[int] { // a view of got, if it has a meaning at this rank
			if at == c.Rank() {
				return comm.Slice(got)
			}
			return none
		}
		list := func(at int) []comm.View[int] {
			if at == c.Rank() {
				return []comm.View[int]{comm.Slice(got)}
			}
			return nil
		}
		for _, call := range []struct {
			name     string
			from, to int
			f        func() error
		}{
			{"GatherView", 2, 0, func() error { return comm.GatherView(x, used(2), list(0), root) }},
			{"ScatterView", 0, 2, func() error { return comm.ScatterView(x, list(0), used(2), root) }},
			{"ReduceView", 2, 0, func() error { return comm.ReduceView(x, used(2), used(0), comm.Sum, root) }},
			{"Bcast", 0, 2, func() error {
				if c.Rank() == 1 {
					return none.Bcast(x, root)
				}
				return comm.Slice(got).Bcast(x, root)
			}},
		} {
			got[0] = 100 * c.Rank()
			require.NoError(t, call.f(), call.name)
			want := 100 * c.Rank()
			if c.Rank() == call.to {
				want = 100 * call.from
			}
			require.Equal(t, want, got[0], call.name)
		}
		err = none.Bcast(x, []int{comm.Root, comm.ProcNull, 0}[c.Rank()])
		if c.Rank() != 1 {
			require.Error(t, err)
		}
		return nil
	})
}

// TestProcNullOfTheOtherGroup: a rank of the other group than the root's takes no part. The ranks get an
// error that says so.
func TestProcNullOfTheOtherGroup(t *testing.T) {
	ranks(t, 3, func(world *comm.Comm) error {
		c, err := world.Dup()
		require.NoError(t, err)
		own, err := c.Split(min(c.Rank(), 1), 0)
		require.NoError(t, err)
		leader := []int{1, 0, 0}[c.Rank()]
		x, err := own.Intercomm(0, c, leader, 0)
		require.NoError(t, err)
		for range 3 { // right calls, in which a rank of either group takes no part
			switch c.Rank() {
			case 0:
				err = comm.Gather(x, []int{1}, nil, 0)
			case 1:
				err = comm.Gather(x, nil, []int{0}, comm.Root)
			case 2:
				err = comm.Gather[int](x, nil, nil, comm.ProcNull)
			}
			require.NoError(t, err)
		}
		switch c.Rank() {
		case 0:
			err = comm.Gather(x, nil, []int{0, 0}, comm.Root)
		case 1:
			err = comm.Gather(x, []int{1}, nil, 0)
		case 2:
			err = comm.Gather(x, []int{1}, nil, comm.ProcNull)
		}
		if err == nil {
			err = x.Barrier()
		}
		require.ErrorContains(t, err, "Gather with ProcNull")
		return world.Barrier()
	}, commtest.WithTimeout(20*time.Second))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestIntercommFailure: after a process of either group fails, Agree reports the failure until all
// have acknowledged it, and Shrink makes an intercommunicator of the others.
func TestIntercommFailure(t *testing.T) {
	for _, dead := range []int{1, 3} { // of the second and of the first group
		t.Run(fmt.Sprint(dead), func(t *testing.T) {
			ranks(t, 7, func(c *comm.Comm) error {
				_, inter, err := twoGroups(c)
				require.NoError(t, err)
				if c.Rank() == dead {
					commtest.Kill(c)
					return nil
				}
				for err == nil {
					err = inter.Barrier()
				}
				require.NoError(t, inter.Revoke())
				_, err = inter.Agree(1)
				require.ErrorIs(t, err, comm.ErrProcFailed)
				want := []int{}
				if sameGroup := (c.Rank()%3 == 0) == (dead%3 == 0); !sameGroup {
					want = []int{dead / 3} // rank 1 is rank 0 of its group, rank 3 is rank 1
				}
				require.ElementsMatch(t, want, inter.FailedRanks())
				require.ElementsMatch(t, want, inter.AckFailed())
				flag, err := inter.Agree(3)
				require.NoError(t, err)
				require.Equal(t, 3, flag)
				live, err := inter.Shrink()
				require.NoError(t, err)
				require.Equal(t, 6, live.Size()+remoteSize(live))
				sum := make([]int, 1)
				require.NoError(t, comm.Allreduce(live, []int{1}, sum, comm.Sum))
				require.Equal(t, remoteSize(live), sum[0])
				return live.Free()
			}, commtest.WithNotify())
		})
	}
	t.Run("no other group", func(t *testing.T) {
		ranks(t, 2, func(c *comm.Comm) error {
			_, inter, err := twoGroups(c)
			require.NoError(t, err)
			if c.Rank() == 1 {
				commtest.Kill(c)
				return nil
			}
			for err == nil {
				err = inter.Barrier()
			}
			_, err = inter.Shrink()
			require.ErrorIs(t, err, comm.ErrProcFailed)
			return nil
		}, commtest.WithNotify())
	})
}
