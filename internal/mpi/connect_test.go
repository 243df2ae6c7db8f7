package mpi_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/mpi"
)

// publishIn makes processes publish ports in a directory of the test.
func publishIn(t *testing.T) commtest.Option {
	return commtest.WithParam("bootstrap.dir", t.TempDir())
}

// useConnection exchanges data over an intercommunicator, as messages and collectives, and over
// communicators that it makes of it.
func useConnection(inter *comm.Comm, low bool) error {
	remote, ok := inter.Remote()
	if !ok {
		return errors.New("not an intercommunicator")
	}
	n := remote.Size()
	sum := make([]int, 1)
	if err := comm.Allreduce(inter, []int{inter.Size()}, sum, comm.Sum); err != nil {
		return err
	}
	if sum[0] != n*n { // each rank of the other group passes the size of that group
		return fmt.Errorf("sum %d of %d ranks", sum[0], n)
	}
	long := make([]int, 300000)
	for i := range long {
		long[i] = inter.Rank() + i
	}
	got := make([]int, len(long))
	var rs []comm.Request
	if inter.Rank() < n {
		rs = append(rs, comm.Irecv(inter, got, inter.Rank(), 1), comm.Isend(inter, long, inter.Rank(), 1))
	}
	if err := comm.WaitAll(rs); err != nil {
		return err
	}
	if inter.Rank() < n {
		if err := same("data of the other job", got, long); err != nil {
			return err
		}
	}
	if inter.Rank() == 0 {
		if err := partitionsApart(inter, low, 0); err != nil {
			return err
		}
	}
	m, err := inter.Merge(!low)
	if err != nil {
		return err
	}
	if err := barrierOf(m, inter.Size()+n); err != nil {
		return err
	}
	w, err := comm.NewWin[int](m, 1)
	if err != nil {
		return err
	}
	if err := w.LockAll(); err != nil {
		return err
	}
	if _, err := w.FetchOp(1, 0, 0, comm.Sum); err != nil {
		return err
	}
	if err := first(w.UnlockAll(), w.Fence()); err != nil {
		return err
	}
	if m.Rank() == 0 && w.Local()[0] != m.Size() {
		return fmt.Errorf("%d ranks have added to the window of %d", w.Local()[0], m.Size())
	}
	return first(w.Fence(), w.Free(), m.Free())
}

// TestConnect connects two communicators of a job, with each rank as the root, several times at one
// port.
func TestConnect(t *testing.T) {
	for _, n := range []int{2, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			ranks(t, n, func(c *comm.Comm) error {
				server := c.Rank() < (n+1)/2
				color := 0
				if !server {
					color = 1
				}
				half, err := c.Split(color, -c.Rank())
				require.NoError(t, err)
				if server {
					root := half.Size() - 1
					p, err := half.Listen(root)
					require.NoError(t, err)
					require.NoError(t, p.Publish("test"))
					require.NoError(t, c.Barrier())
					for range 3 {
						inter, err := p.Accept(half)
						require.NoError(t, err)
						require.NoError(t, useConnection(inter, true))
						// The processes of the other side are those of the other half.
						g, _ := inter.Remote()
						in, err := g.Translate([]int{0}, c.Group())
						require.NoError(t, err)
						require.Equal(t, []int{n - 1}, in)
						require.Equal(t, comm.Ident, inter.Group().Compare(half.Group()))
						require.NoError(t, inter.Free())
					}
					require.NoError(t, p.Close())
					require.NoError(t, c.Barrier())
				} else {
					require.NoError(t, c.Barrier())
					addr, err := half.Lookup("test")
					require.NoError(t, err)
					for i := range 3 {
						inter, err := half.Dial(i%half.Size(), addr)
						require.NoError(t, err)
						require.NoError(t, useConnection(inter, false))
						require.NoError(t, inter.Free())
					}
					require.NoError(t, c.Barrier())
					_, err = half.Lookup("test")
					require.ErrorIs(t, err, comm.ErrPort)
				}
				return half.Free()
			}, publishIn(t))
		})
	}
}

// connectOver are settings with which TestConnectOverTransports runs, by the transport of the
// connection. Files with build tags add more.
var connectOver = map[string][]commtest.Option{
	"shm": {commtest.WithParam("transport.use", "shm")},
	"tcp": {commtest.WithParam("transport.use", "tcp")},
}

// TestConnectOverTransports connects two jobs over each transport. The processes of a connection choose
// transports by the settings of the job.
func TestConnectOverTransports(t *testing.T) {
	for name, opts := range connectOver {
		t.Run(name, func(t *testing.T) {
			ranks(t, 5, func(c *comm.Comm) error {
				half, err := c.Split(c.Rank()%2, 0)
				require.NoError(t, err)
				var inter *comm.Comm
				if c.Rank()%2 == 0 {
					p, err := half.Listen(0)
					require.NoError(t, err)
					if half.Rank() == 0 {
						require.NoError(t, comm.SendValue(c, p.Addr(), 1, 0))
					}
					inter, err = p.Accept(half)
					require.NoError(t, err)
					require.NoError(t, p.Close())
				} else {
					addr := ""
					if half.Rank() == 0 {
						addr, _, err = comm.RecvValue[string](c, 0, 0)
						require.NoError(t, err)
					}
					inter, err = half.Dial(0, addr)
					require.NoError(t, err)
				}
				all, err := inter.Merge(c.Rank()%2 == 1)
				require.NoError(t, err)
				for r := range all.Size() {
					if r != all.Rank() {
						require.Equal(t, name, all.Transport(r))
					}
				}
				return first(all.Free(), useConnection(inter, c.Rank()%2 == 0), inter.Free())
			}, opts...)
		})
	}
}

// TestConnectJobs connects jobs: two clients with a server, which connects the two with each other by
// a communicator of all three.
func TestConnectJobs(t *testing.T) {
	addr := make(chan string, 2)
	var jobs sync.WaitGroup
	jobs.Go(func() { // ends with the job
		ranks(t, 3, func(c *comm.Comm) error {
			p, err := c.Listen(0)
			require.NoError(t, err)
			if c.Rank() == 0 {
				addr <- p.Addr()
				addr <- p.Addr()
			}
			var clients [2]*comm.Comm
			for i := range clients {
				clients[i], err = p.Accept(c)
				require.NoError(t, err)
			}
			for _, x := range clients {
				require.NoError(t, useConnection(x, true))
			}
			// The two clients are different processes.
			a, _ := clients[0].Remote()
			b, _ := clients[1].Remote()
			require.Equal(t, comm.Unequal, a.Compare(b))
			require.Equal(t, 7, a.Union(b).Union(c.Group()).Size())
			require.Zero(t, a.Intersection(b).Size())
			require.NoError(t, p.Close())
			return nil // Finalize ends the connections
		})
	})
	for range 2 {
		jobs.Go(func() { // ends with the job
			ranks(t, 2, func(c *comm.Comm) error {
				to := ""
				if c.Rank() == 1 {
					to = <-addr
				}
				inter, err := c.Dial(1, to)
				require.NoError(t, err)
				return useConnection(inter, false)
			})
		})
	}
	jobs.Wait()
}

// TestConnectErrors checks errors of Listen, Accept and Dial, after which the communicator works.
func TestConnectErrors(t *testing.T) {
	ranks(t, 3, func(c *comm.Comm) error {
		p, err := c.Listen(2)
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(p.Addr(), "weft:"))
		for name, addr := range map[string]string{
			"empty": "", "no address": "weft:%%", "other": "tcp:1.2.3.4", "notice": "weft:e30",
		} {
			_, err := c.Dial(1, addr)
			require.ErrorIs(t, err, comm.ErrPort, name)
		}
		require.NoError(t, p.Close())
		begun := time.Now()
		_, err = c.Dial(0, p.Addr()) // nobody listens there any more
		require.ErrorIs(t, err, comm.ErrPort)
		require.Less(t, time.Since(begun), 30*time.Second)
		_, err = p.Accept(c)
		require.ErrorIs(t, err, comm.ErrPort)
		_, err = c.Lookup("no such service")
		require.ErrorIs(t, err, comm.ErrPort)
		_, err = c.Lookup("")
		require.ErrorIs(t, err, comm.ErrPort)
		_, err = c.Spawn(0, comm.Proc{Path: "true", N: 1}) // there is no launcher
		require.ErrorIs(t, err, comm.ErrSpawn)
		_, err = c.Spawn(0)
		require.Error(t, err)
		require.Nil(t, c.Parent())
		require.NoError(t, barrierOf(c, 3))

		// A port of which the secret is another one.
		p, err = c.Listen(0)
		require.NoError(t, err)
		q, err := c.Listen(0)
		require.NoError(t, err)
		if c.Rank() == 0 {
			require.NoError(t, p.Publish("a"))
			require.ErrorIs(t, q.Publish("a"), comm.ErrPort)
			require.NoError(t, q.Publish("a/b c"))
			found, err := c.Lookup("a/b c")
			require.NoError(t, err)
			require.Equal(t, q.Addr(), found)
			require.NoError(t, p.Publish("c")) // instead of a
			require.NoError(t, q.Publish("a"))
		}
		return first(p.Close(), q.Close())
	}, publishIn(t))
}

// TestAcceptEnds: the context ends an Accept that nobody dials, and a Dial that nobody accepts.
func TestAcceptEnds(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		d, err := c.Dup()
		require.NoError(t, err)
		p, err := d.Listen(0)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err = p.Accept(d.WithContext(ctx))
		require.Error(t, err)
		d, err = c.Dup()
		require.NoError(t, err)
		ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err = d.WithContext(ctx).Dial(1, p.Addr())
		require.Error(t, err)
		return p.Close()
	})
}

// TestRequestsOfSeveralJobs waits for requests of a connection together with requests of the own job.
func TestRequestsOfSeveralJobs(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		own, err := c.Self()
		require.NoError(t, err)
		var inter *comm.Comm
		if c.Rank() == 0 {
			p, err := own.Listen(0)
			require.NoError(t, err)
			_, err = comm.BcastValue(c, p.Addr(), 0)
			require.NoError(t, err)
			inter, err = p.Accept(own)
			require.NoError(t, err)
			require.NoError(t, p.Close())
		} else {
			addr, err := comm.BcastValue(c, "", 0)
			require.NoError(t, err)
			inter, err = own.Dial(0, addr)
			require.NoError(t, err)
		}
		other := 1 - c.Rank()
		var bufs [4][1]int
		start := func() []comm.Request { // two receives in each job, the ones in the connection last
			return []comm.Request{
				comm.Irecv(c, bufs[0][:], other, 0), comm.Irecv(c, bufs[1][:], other, 1),
				comm.Irecv(inter, bufs[2][:], 0, 0), comm.Irecv(inter, bufs[3][:], 0, 1),
			}
		}
		send := func(i int) error { // the message for request i of the other rank
			if i < 2 {
				return comm.Ssend(c, []int{i}, other, i)
			}
			return comm.Ssend(inter, []int{i}, 0, i-2)
		}
		for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}} {
			if c.Rank() == 1 {
				require.NoError(t, c.Barrier())
				for _, i := range order {
					require.NoError(t, send(i))
				}
				require.NoError(t, c.Barrier())
				for _, i := range order {
					require.NoError(t, send(i))
				}
				continue
			}
			rs := start()
			_, _, done, err := comm.TestAny(rs)
			require.NoError(t, err)
			require.False(t, done)
			done, err = comm.TestAll(rs)
			require.NoError(t, err)
			require.False(t, done)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			two := []comm.Request{
				comm.Irecv(c.WithContext(ctx), make([]int, 1), other, 9), comm.Irecv(inter.WithContext(ctx), make([]int, 1), 0, 9)}
			_, _, err = comm.WaitAny(two)
			require.ErrorIs(t, err, context.Canceled)
			require.NoError(t, first(two[0].Cancel(), two[1].Cancel()))
			for _, r := range two {
				st, err := r.WaitContext(t.Context())
				require.NoError(t, err)
				require.True(t, st.Cancelled)
			}
			require.NoError(t, c.Barrier())
			var ended []int // several receives may be complete when WaitAny looks
			for range order {
				at, _, err := comm.WaitAny(rs)
				require.NoError(t, err)
				require.Equal(t, at, bufs[at][0])
				ended = append(ended, at)
			}
			require.ElementsMatch(t, order, ended)
			at, _, err := comm.WaitAny(rs)
			require.NoError(t, err)
			require.Equal(t, -1, at)
			rs = start()
			require.NoError(t, c.Barrier())
			for left := len(rs); left > 0; {
				some, err := comm.WaitSome(rs, nil)
				require.NoError(t, err)
				require.NotEmpty(t, some)
				left -= len(some)
			}
		}
		return first(c.Barrier(), inter.Free(), own.Free())
	})
}

// TestWrongSecret: a Dial with the right place but another secret gets an error at once, and the
// Accept goes on.
func TestWrongSecret(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		own, err := c.Self()
		require.NoError(t, err)
		if c.Rank() == 0 {
			p, err := own.Listen(0)
			require.NoError(t, err)
			require.NoError(t, comm.SendValue(c, p.Addr(), 1, 0))
			inter, err := p.Accept(own)
			require.NoError(t, err)
			return first(useConnection(inter, true), inter.Free(), p.Close())
		}
		addr, _, err := comm.RecvValue[string](c, 0, 0)
		require.NoError(t, err)
		_, err = own.Dial(0, forge(t, addr))
		require.ErrorIs(t, err, comm.ErrPort)
		inter, err := own.Dial(0, addr)
		require.NoError(t, err)
		return first(useConnection(inter, false), inter.Free())
	})
}

// TestConnectionFails: a process of the other job fails.
func TestConnectionFails(t *testing.T) {
	addr := make(chan string, 1)
	dead := make(chan struct{})
	var jobs sync.WaitGroup
	jobs.Go(func() { // ends with the job
		ranks(t, 2, func(c *comm.Comm) error {
			p, err := c.Listen(0)
			require.NoError(t, err)
			if c.Rank() == 0 {
				addr <- p.Addr()
			}
			inter, err := p.Accept(c)
			require.NoError(t, err)
			require.NoError(t, inter.Barrier())
			<-dead
			_, err = comm.Recv(inter, []int{0}, 0, 0)
			require.ErrorIs(t, err, comm.ErrProcFailed)
			require.NoError(t, barrierOf(c, 2)) // the own job is not concerned
			require.Equal(t, "connection", inter.Name())
			require.ErrorIs(t, inter.Free(), comm.ErrProcFailed)
			return p.Close()
		})
	})
	jobs.Go(func() { // ends with the job
		ranks(t, 1, func(c *comm.Comm) error {
			inter, err := c.Dial(0, <-addr)
			require.NoError(t, err)
			require.NoError(t, inter.Barrier())
			commtest.Kill(inter)
			close(dead)
			return nil
		}, commtest.WithNotify())
	})
	jobs.Wait()
}

// forge returns the address of a port with another secret.
func forge(t require.TestingT, addr string) string {
	text, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(addr, "weft:"))
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(text, &fields))
	secret, err := base64.StdEncoding.DecodeString(fields["secret"].(string))
	require.NoError(t, err)
	secret[5]++
	fields["secret"] = base64.StdEncoding.EncodeToString(secret)
	text, err = json.Marshal(fields)
	require.NoError(t, err)
	return "weft:" + base64.RawURLEncoding.EncodeToString(text)
}

// TestConnectMistakes: ranks that disagree, and a process on both sides of a connection.
func TestConnectMistakes(t *testing.T) {
	t.Run("a call ends elsewhere", func(t *testing.T) { // the root of Accept notices that the communicator is revoked
		ranks(t, 2, func(c *comm.Comm) error {
			p, err := c.Listen(0)
			require.NoError(t, err)
			d, err := c.Dup()
			require.NoError(t, err)
			if c.Rank() == 1 {
				require.NoError(t, d.Revoke())
				return nil
			}
			_, err = p.Accept(d)
			require.Error(t, err)
			return p.Close()
		})
	})
	t.Run("Close", func(t *testing.T) { // ends an Accept
		ranks(t, 1, func(c *comm.Comm) error {
			p, err := c.Listen(0)
			require.NoError(t, err)
			done := make(chan error)
			go func() { // ends with Accept
				_, err := p.Accept(c)
				done <- err
			}()
			require.NoError(t, p.Close())
			require.ErrorIs(t, <-done, comm.ErrPort)
			return nil
		})
	})
	t.Run("different calls", func(t *testing.T) {
		ranks(t, 2, func(c *comm.Comm) error {
			d, err := c.Dup()
			require.NoError(t, err)
			if c.Rank() == 0 {
				p, err := d.Listen(0)
				if err == nil {
					err = errors.Join(d.Barrier(), p.Close())
				}
				require.Error(t, err)
				return nil
			}
			_, err = d.Dial(0, "")
			require.ErrorIs(t, err, comm.ErrMismatch)
			return nil
		})
	})
	t.Run("nil port", func(t *testing.T) {
		ranks(t, 2, func(c *comm.Comm) error {
			d, err := c.Dup()
			require.NoError(t, err)
			p, err := d.Listen(0)
			require.NoError(t, err)
			if c.Rank() == 1 {
				require.NoError(t, p.Close())
				p = nil
			}
			_, err = p.Accept(d)
			require.Error(t, err)
			return p.Close()
		})
	})
	t.Run("both sides", func(t *testing.T) {
		ranks(t, 1, func(c *comm.Comm) error {
			a, err := c.Self()
			require.NoError(t, err)
			b, err := c.Self()
			require.NoError(t, err)
			p, err := a.Listen(0)
			require.NoError(t, err)
			done := make(chan error)
			go func() { // ends with Dial
				_, err := b.Dial(0, p.Addr())
				done <- err
			}()
			_, err = p.Accept(a)
			require.ErrorIs(t, err, comm.ErrGroup)
			require.ErrorIs(t, <-done, comm.ErrGroup)
			return first(p.Close(), a.Free(), b.Free())
		})
	})
}

// TestReportedInConnection: the launcher reports that a process has failed, which no transport notices
// because the process lives. Calls on connections with the process fail, with the launcher's reason:
// on a connection of both, and on one that a process of another job has. The failure is no error of
// Finalize, also if the program has not freed the connection.
func TestReportedInConnection(t *testing.T) {
	for _, free := range []bool{true, false} {
		t.Run(fmt.Sprint("free ", free), func(t *testing.T) { reportedInConnection(t, free) })
	}
}

func reportedInConnection(t *testing.T, free bool) {
	const reason = "host c7 does not answer"
	addr, id := make(chan string, 1), make(chan string, 1)
	var jobs sync.WaitGroup
	var seen sync.WaitGroup // by ranks 0 and 1, and by the other job
	seen.Add(3)
	jobs.Go(func() { // ends with the job
		ranks(t, 3, func(c *comm.Comm) error {
			p, err := c.Listen(0)
			require.NoError(t, err)
			if c.Rank() == 0 {
				addr <- p.Addr()
				id <- c.Job().ID
			}
			inter, err := p.Accept(c)
			require.NoError(t, err)
			m, err := inter.Merge(false) // ranks 0 to 2 are of this job, and 3 of the other
			require.NoError(t, err)
			require.NoError(t, m.Barrier())
			switch c.Rank() {
			case 0:
				commtest.Report(c, reason, 2)
				fallthrough
			case 1:
				_, err = comm.Recv(m, []int{0}, 2, 0)
				require.ErrorIs(t, err, comm.ErrProcFailed)
				require.ErrorContains(t, err, reason)
				seen.Done()
				seen.Wait()
				if free {
					_, _ = m.Free(), inter.Free() // ErrProcFailed on the first rank
				}
				return p.Close()
			}
			seen.Wait()
			commtest.Kill(c)
			return nil
		}, commtest.WithNotify())
	})
	jobs.Go(func() { // ends with the job
		ranks(t, 1, func(c *comm.Comm) error {
			inter, err := c.Dial(0, <-addr)
			require.NoError(t, err)
			m, err := inter.Merge(true)
			require.NoError(t, err)
			require.NoError(t, m.Barrier())
			mpi.Reported((*mpi.Comm)(c), <-id, []int{2, 77}, reason)
			_, err = comm.Recv(m, []int{0}, 2, 0)
			require.ErrorIs(t, err, comm.ErrProcFailed)
			require.ErrorContains(t, err, reason)
			seen.Done()
			seen.Wait()
			if free {
				_, _ = m.Free(), inter.Free()
			}
			return nil
		}, commtest.WithNotify())
	})
	jobs.Wait()
}

// TestConnectionLeftovers: what a rank leaves behind on a connection is reported at its end, with the
// rank in the world.
func TestConnectionLeftovers(t *testing.T) {
	stderr := os.Stderr
	defer func() { os.Stderr = stderr }()
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	os.Stderr = file
	ranks(t, 3, func(c *comm.Comm) error {
		self, err := c.Self()
		if err != nil || c.Rank() == 0 {
			return err
		}
		var inter *comm.Comm
		if c.Rank() == 1 {
			p, err := self.Listen(0)
			if err := first(err, comm.SendValue(c, p.Addr(), 2, 0)); err != nil {
				return err
			}
			if inter, err = p.Accept(self); err != nil {
				return err
			}
			return first(p.Close(), comm.Send(inter, []int{7}, 0, 5))
		}
		addr, _, err := comm.RecvValue[string](c, 1, 0)
		if err != nil {
			return err
		}
		if inter, err = self.Dial(0, addr); err != nil {
			return err
		}
		if _, err := inter.Probe(0, 5); err != nil {
			return err
		}
		comm.Irecv(inter, make([]int, 1), 0, 6) // and the message with tag 5 is not received
		return nil
	}, commtest.WithParam("check", "true"))
	require.NoError(t, file.Close())
	text, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	require.Regexp(t, `^weft: rank 2: on a connection, 1 request did not complete: Irecv \(connection, rank 0, tag 6\), started at connect_test.go:\d+, `+
		`and 1 message was not received: from rank 0 of the connection, tag 5, 8 bytes \(connection\)\n$`, string(text))
}

// TestManyDials: of several jobs that dial at the same time, each call of Accept accepts one.
func TestManyDials(t *testing.T) {
	const n = 6
	ranks(t, n+1, func(c *comm.Comm) error {
		own, err := c.Self()
		require.NoError(t, err)
		if c.Rank() > 0 {
			addr, err := comm.BcastValue(c, "", 0)
			require.NoError(t, err)
			inter, err := own.Dial(0, addr)
			require.NoError(t, err)
			return first(useConnection(inter, false), inter.Free())
		}
		p, err := own.Listen(0)
		require.NoError(t, err)
		_, err = comm.BcastValue(c, p.Addr(), 0)
		require.NoError(t, err)
		for range n {
			inter, err := p.Accept(own)
			require.NoError(t, err)
			require.NoError(t, first(useConnection(inter, true), inter.Free()))
		}
		return p.Close()
	})
}

// TestConnectWithFailures lets a process of the dialing side fail after the roots have met and before
// all ranks meet. Accept, and Dial on the other ranks, must return an error long before the limit of
// bootstrap.timeout.
func TestConnectWithFailures(t *testing.T) {
	connect := func(t *testing.T, n int, dial func(half *comm.Comm, addr string) error) {
		begun := time.Now()
		ranks(t, n, func(c *comm.Comm) error {
			half, err := c.Split(min(c.Rank(), 1), 0)
			require.NoError(t, err)
			addr := ""
			if c.Rank() > 0 {
				if addr, err = comm.BcastValue(c, "", 0); err != nil {
					return err
				}
				return dial(half, addr)
			}
			p, err := half.Listen(0)
			require.NoError(t, err)
			_, err = comm.BcastValue(c, p.Addr(), 0)
			require.NoError(t, err)
			_, err = p.Accept(half)
			require.ErrorIs(t, err, comm.ErrPort)
			require.NoError(t, p.Close())
			commtest.Kill(c) // otherwise Run would call Finalize, which returns an error after a failure
			return nil
		}, commtest.WithParam("bootstrap.timeout", "10m"))
		require.Less(t, time.Since(begun), 5*time.Minute)
	}
	t.Run("the root leaves", func(t *testing.T) {
		connect(t, 2, func(half *comm.Comm, addr string) error {
			require.NoError(t, mpi.DialRoots((*mpi.Comm)(half), addr))
			commtest.Kill(half)
			return nil
		})
	})
	t.Run("another rank fails", func(t *testing.T) {
		connect(t, 3, func(half *comm.Comm, addr string) error {
			if half.Rank() == 1 {
				require.NoError(t, mpi.DialShared((*mpi.Comm)(half), 0))
			} else {
				_, err := half.Dial(0, addr)
				require.ErrorIs(t, err, comm.ErrPort)
				require.ErrorIs(t, err, comm.ErrProcFailed)
			}
			commtest.Kill(half)
			return nil
		})
	})
}

// TestAcceptAfterFailure: a rank that waits for a Dial must notice that another rank of its own
// communicator fails, although no call needs that rank, and although over tcp the two ranks have no
// connection yet.
func TestAcceptAfterFailure(t *testing.T) {
	overMortal(t, func(run runJob) {
		for _, n := range []int{2, 8} {
			run(fmt.Sprint(n), n, func(c *comm.Comm) error {
				p, err := c.Listen(0)
				require.NoError(t, err)
				if c.Rank() < c.Size()-1 {
					_, err = p.Accept(c)
					require.True(t, errors.Is(err, comm.ErrProcFailed) || errors.Is(err, comm.ErrRevoked), "%v", err)
					require.NoError(t, p.Close())
				}
				commtest.Kill(c) // otherwise Run would call Finalize, which returns an error after a failure
				return nil
			})
		}
	})
}
