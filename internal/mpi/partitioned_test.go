package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// partsOfRank has the cases of TestPartitions: the number n of elements, and the numbers of
// partitions into which the sender and the receiver divide them.
var partsOfRank = []struct{ n, send, recv int }{
	{0, 3, 1}, {12, 1, 1}, {12, 12, 3}, {12, 3, 12}, {24, 4, 6}, {24, 6, 4}, {9000, 9, 9}, {30_000, 3, 10}, {30_000, 10, 3},
}

// TestPartitions sends partitions along a ring, in several rounds. Several goroutines make the
// partitions ready, in a different order in each case. The receiver uses every method that reports
// which partitions have arrived.
func TestPartitions(t *testing.T) {
	overFabrics(t, []int{1, 2, 3}, func(c *comm.Comm) error {
		next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
		for k, x := range partsOfRank {
			out, in := make([]int32, x.n), make([]int32, x.n)
			p, err := comm.PsendInit(c, out, x.send, next, 3)
			if err != nil {
				return err
			}
			q, err := comm.PrecvInit(c, in, x.recv, prev, 3)
			if err != nil {
				return err
			}
			for round := range 4 {
				value := func(rank, i int) int32 { return int32(rank<<20 ^ round<<16 ^ i) }
				if err := errors.Join(q.Start(), p.Start()); err != nil {
					return err
				}
				var workers sync.WaitGroup
				errs := make([]error, 3)
				for w := range 3 {
					workers.Go(func() {
						for i := w; i < x.send; i += 3 {
							at := (i*7 + k) % x.send // 7 is coprime to all numbers of partitions
							size := x.n / x.send
							for j := at * size; j < (at+1)*size; j++ {
								out[j] = value(c.Rank(), j)
							}
							if err := p.Ready(at); err != nil {
								errs[w] = err
							}
						}
					})
				}
				check := func(i int) error {
					size := x.n / x.recv
					for j := i * size; j < (i+1)*size; j++ {
						if in[j] != value(prev, j) {
							return fmt.Errorf("partition %d has arrived, but element %d is %d, not %d", i, j, in[j], value(prev, j))
						}
					}
					return nil
				}
				switch round {
				case 0:
					for i := range x.recv {
						for {
							ok, err := q.Arrived(i)
							if err != nil {
								return err
							}
							if ok {
								break
							}
						}
						if err := check(i); err != nil {
							return err
						}
					}
				case 1:
					var seen []int
					for i, err := range q.All() {
						if err == nil {
							err = check(i)
						}
						if err != nil {
							return err
						}
						seen = append(seen, i)
					}
					if slices.Sort(seen); !slices.Equal(seen, seq(0, x.recv)) {
						return fmt.Errorf("partitions %v", seen)
					}
				case 2:
					for ok := false; !ok; {
						if ok, err = q.Test(); err != nil {
							return err
						}
					}
				}
				if err := q.Wait(); err != nil {
					return err
				}
				for i := range x.recv {
					if err := check(i); err != nil {
						return err
					}
				}
				if round == 3 {
					for ok := false; !ok; {
						if ok, err = p.Test(); err != nil {
							return err
						}
					}
				}
				err := p.Wait()
				workers.Wait()
				if err := errors.Join(append(errs, err)...); err != nil {
					return err
				}
				clear(in)
				// Without the barrier, data of the next round could arrive in the buffer before
				// this rank has cleared it.
				if err := c.Barrier(); err != nil {
					return err
				}
			}
			if err := errors.Join(p.Free(), q.Free()); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestPartitionsMatchInOrder makes several operations with the same tag, and starts them in another
// order. Ordinary messages with the same tag do not match these operations.
func TestPartitionsMatchInOrder(t *testing.T) {
	overFabrics(t, []int{2}, func(c *comm.Comm) error {
		const n = 4
		peer := 1 - c.Rank()
		var sends []*comm.PartSend
		var recvs []*comm.PartRecv
		var ins [][]int
		for i := range n {
			in := make([]int, 2)
			p, err1 := comm.PsendInit(c, []int{10 * i, 10*i + 1}, 2, peer, 0)
			q, err2 := comm.PrecvInit(c, in, 1, peer, 0)
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			sends, recvs, ins = append(sends, p), append(recvs, q), append(ins, in)
		}
		r := comm.Irecv(c, make([]int, 2), comm.AnySource, comm.AnyTag)
		for i := range n {
			if err := errors.Join(sends[n-1-i].Start(), recvs[(i+2)%n].Start(), sends[n-1-i].ReadyRange(0, 2)); err != nil {
				return err
			}
		}
		for i := range n {
			if err := errors.Join(recvs[i].Wait(), sends[i].Wait()); err != nil {
				return err
			}
			if err := same("partitions", ins[i], []int{10 * i, 10*i + 1}); err != nil {
				return err
			}
		}
		if err := comm.Send(c, []int{7, 8}, peer, 0); err != nil {
			return err
		}
		if st, err := r.Wait(); err != nil || st.Tag != 0 {
			return fmt.Errorf("%+v: %w", st, err)
		}
		return nil
	})
}

// TestAllBetweenArrivals: the sender waits for an acknowledgement of each partition before it sends
// the next one. The receiver acknowledges partitions in a loop over All. The first partition may
// arrive during a pass of All over the partitions, after All has looked for it. All must not wait for
// another one then.
func TestAllBetweenArrivals(t *testing.T) {
	const parts, operations, rounds = 64, 20, 2
	ranks(t, 2, func(c *comm.Comm) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		c = c.WithContext(ctx)
		token := make([]int, 1)
		for range operations {
			if c.Rank() == 0 {
				p, err := comm.PsendInit(c, make([]int, parts), parts, 1, 0)
				if err != nil {
					return err
				}
				for range rounds {
					if err := errors.Join(p.Start(), p.Ready(0), comm.Send(c, token, 1, 1)); err != nil {
						return err
					}
					for i := 1; i <= parts; i++ {
						if _, err := comm.Recv(c, token, 1, 2); err != nil {
							return err
						}
						if i < parts {
							if err := p.Ready(i); err != nil {
								return err
							}
						}
					}
					if err := p.Wait(); err != nil {
						return err
					}
				}
				if err := p.Free(); err != nil {
					return err
				}
				continue
			}
			var q *comm.PartRecv
			for round := range rounds {
				_, err := comm.Recv(c, token, 0, 1)
				if err == nil && round == 0 {
					q, err = comm.PrecvInit(c, make([]int, parts), parts, 0, 0)
				}
				if err := errors.Join(err, q.Start()); err != nil {
					return err
				}
				for _, err := range q.All() {
					if err := errors.Join(err, comm.Send(c, token, 0, 2)); err != nil {
						return err
					}
				}
				if err := q.Wait(); err != nil {
					return err
				}
			}
			if err := q.Free(); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestCompletePartSend: if a partitioned send is complete, Test reports that without the error of its
// context, even if the context has ended.
func TestCompletePartSend(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		for range 64 {
			if c.Rank() == 1 {
				q, err := comm.PrecvInit(c, make([]int, 4), 2, 0, 0)
				if err := errors.Join(err, q.Start(), q.Wait(), q.Free(), c.Barrier()); err != nil {
					return err
				}
				continue
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p, err := comm.PsendInit(c.WithContext(ctx), make([]int, 4), 2, 1, 0)
			if err := errors.Join(err, p.Start(), p.ReadyRange(0, 2), c.Barrier()); err != nil {
				return err
			}
			cancel()
			for done := false; !done && err == nil; {
				done, err = p.Test()
			}
			if err := errors.Join(err, p.Free()); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestPartitionsOfOtherLength: the receiver's buffer has another length than the sender's. Each round
// of the receiver returns ErrCount, and each round of the sender ends.
func TestPartitionsOfOtherLength(t *testing.T) {
	overFabrics(t, []int{2}, func(c *comm.Comm) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		c = c.WithContext(ctx)
		const parts, n = 2, 2 << 16
		token := make([]int, 1)
		for _, other := range []int{n / 2, 2 * n, 0} {
			if c.Rank() == 0 {
				p, err := comm.PsendInit(c, make([]int, n), parts, 1, 0)
				for range 3 {
					// Rank 1 may have refused the round before partition 1 is ready.
					err = errors.Join(err, p.Start(), p.Ready(0))
					if err == nil {
						_, err = comm.Recv(c, token, 1, 1)
					}
					if err := errors.Join(err, p.Ready(1), p.Wait()); err != nil {
						return err
					}
				}
				if err := errors.Join(p.Free(), c.Barrier()); err != nil {
					return err
				}
				continue
			}
			q, err := comm.PrecvInit(c, make([]int, other), 1, 0, 0)
			for range 3 {
				if err := errors.Join(err, q.Start()); err != nil {
					return err
				}
				if err := errors.Join(wantErr("Wait", q.Wait(), comm.ErrCount, "Wait"), comm.Send(c, token, 0, 1)); err != nil {
					return err
				}
			}
			if err := errors.Join(q.Free(), c.Barrier()); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestPartitionErrors checks the errors of wrong uses.
func TestPartitionErrors(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		peer := 1 - c.Rank()
		for _, parts := range []int{0, -1, 3} {
			_, err := comm.PsendInit(c, make([]int, 4), parts, peer, 0)
			require.ErrorIs(t, err, comm.ErrCount)
		}
		_, err := comm.PsendInit(c, []int{}, 1<<62, peer, 0)
		require.ErrorIs(t, err, comm.ErrCount)
		_, err = comm.PrecvInit(c, make([]int, 4), 2, comm.AnySource, 0)
		require.ErrorIs(t, err, comm.ErrRank)
		_, err = comm.PrecvInit(c, make([]int, 4), 2, peer, comm.AnyTag)
		require.ErrorIs(t, err, comm.ErrTag)
		_, err = comm.PsendInit(c, make([]string, 4), 2, peer, 0)
		require.ErrorIs(t, err, comm.ErrType)

		for _, n := range []int{2, 1 << 16} { // the partitions of a long buffer are one message
			p, err := comm.PsendInit(c, make([]int, n), 2, peer, 0)
			require.NoError(t, err)
			q, err := comm.PrecvInit(c, make([]int, n), 2, peer, 0)
			require.NoError(t, err)
			require.ErrorIs(t, p.Ready(0), comm.ErrArg)
			_, err = q.Arrived(0)
			require.ErrorIs(t, err, comm.ErrArg)
			require.NoError(t, errors.Join(p.Wait(), q.Wait())) // not active
			require.NoError(t, errors.Join(p.Start(), q.Start()))
			require.ErrorIs(t, p.Start(), comm.ErrArg)
			require.ErrorIs(t, q.Start(), comm.ErrArg)
			require.ErrorIs(t, p.Ready(2), comm.ErrArg)
			require.ErrorIs(t, p.Ready(-1), comm.ErrArg)
			require.NoError(t, p.Ready(1))
			require.ErrorIs(t, p.Ready(1), comm.ErrArg)
			require.ErrorIs(t, p.Free(), comm.ErrArg)
			require.ErrorIs(t, q.Free(), comm.ErrArg)
			ok, err := p.Test()
			require.NoError(t, err)
			require.False(t, ok, "partition 0 is not ready")
			require.NoError(t, p.ReadyList(0))
			require.NoError(t, errors.Join(p.Wait(), q.Wait(), p.Free(), q.Free()))
			require.ErrorIs(t, p.Start(), comm.ErrArg)
			require.ErrorIs(t, q.Start(), comm.ErrArg)
			require.ErrorIs(t, p.Ready(0), comm.ErrArg)
			for _, err := range q.All() {
				require.ErrorIs(t, err, comm.ErrArg)
			}
		}

		var noSend *comm.PartSend
		var noRecv *comm.PartRecv
		require.ErrorIs(t, noSend.Start(), comm.ErrArg)
		require.ErrorIs(t, noRecv.Start(), comm.ErrArg)
		require.ErrorIs(t, noSend.Ready(0), comm.ErrArg)
		_, err = noRecv.Arrived(0)
		require.ErrorIs(t, err, comm.ErrArg)
		for _, err := range noRecv.All() {
			require.ErrorIs(t, err, comm.ErrArg)
		}
		_, err1 := noSend.Test()
		_, err2 := noRecv.Test()
		require.NoError(t, errors.Join(err1, err2, noSend.Wait(), noRecv.Wait(), noSend.Free(), noRecv.Free()))

		// The lengths of the buffers differ.
		p, err := comm.PsendInit(c, []int{1, 2}, 2, peer, 0)
		require.NoError(t, err)
		q, err := comm.PrecvInit(c, make([]int, 3), 3, peer, 0)
		require.NoError(t, err)
		require.NoError(t, q.Start())
		require.ErrorIs(t, q.Wait(), comm.ErrCount)
		require.NoError(t, q.Start())
		require.ErrorIs(t, q.Wait(), comm.ErrCount) // again the error of the offer
		require.NoError(t, errors.Join(q.Free(), p.Free()))

		// An operation that is freed before its offer comes has consumed the offer.
		q, err = comm.PrecvInit(c, make([]int, 1), 1, peer, 7)
		require.NoError(t, errors.Join(err, q.Free()))
		in := make([]int, 1)
		q, err = comm.PrecvInit(c, in, 1, peer, 7)
		require.NoError(t, errors.Join(err, q.Start(), c.Barrier()))
		p, err = comm.PsendInit(c, []int{5}, 1, peer, 7)
		require.NoError(t, errors.Join(err, p.Free()))
		p, err = comm.PsendInit(c, []int{6}, 1, peer, 7)
		require.NoError(t, errors.Join(err, p.Start(), p.Ready(0), p.Wait(), q.Wait()))
		require.Equal(t, []int{6}, in)

		null, err := comm.PrecvInit(c, make([]int, 2), 2, comm.ProcNull, 0)
		require.NoError(t, err)
		require.NoError(t, null.Start())
		ok, err := null.Arrived(1)
		require.True(t, ok && err == nil)
		require.NoError(t, errors.Join(null.Wait(), null.Free()))

		// The context ends while partitions are missing.
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		late, err := comm.PrecvInit(c.WithContext(ctx), make([]int, 2), 2, peer, 1)
		require.NoError(t, err)
		require.NoError(t, late.Start())
		require.ErrorIs(t, late.Wait(), context.DeadlineExceeded)
		return c.Barrier() // if a rank ended early, the others could get another error
	})
}

// TestPartitionsFail: the peer ends, or the communicator is revoked, while a rank waits for
// partitions.
func TestPartitionsFail(t *testing.T) {
	for i := range 8 {
		kill, started, n := i&1 == 0, i&2 == 0, 2
		if i&4 != 0 {
			n = 1 << 16 // the round is one message of the engine
		}
		t.Run(fmt.Sprintf("kill=%v,started=%v,n=%d", kill, started, n), func(t *testing.T) {
			ranks(t, 2, func(c *comm.Comm) error {
				d, err := c.Dup()
				require.NoError(t, err)
				if c.Rank() == 1 {
					if started {
						p, err := comm.PsendInit(d, make([]int, n), 2, 0, 0)
						require.NoError(t, errors.Join(err, p.Start(), p.Ready(0)))
					}
					require.NoError(t, comm.Send(c, []int{1}, 0, 0))
					if kill {
						commtest.Kill(c)
						return nil
					}
					require.NoError(t, d.Revoke())
					_, err := comm.Recv(c, make([]int, 1), 0, 0)
					return err
				}
				q, err := comm.PrecvInit(d, make([]int, n), 2, 1, 0)
				require.NoError(t, errors.Join(err, q.Start()))
				_, err = comm.Recv(c, make([]int, 1), 1, 0)
				require.NoError(t, err)
				err = q.Wait()
				require.True(t, errors.Is(err, comm.ErrProcFailed) || errors.Is(err, comm.ErrRevoked), err)
				if kill {
					return nil
				}
				return comm.Send(c, []int{1}, 1, 0)
			}, commtest.WithNotify())
		})
	}
}
