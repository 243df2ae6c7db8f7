package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/fault"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/tcp"
)

const reason = "host node2 does not answer"

// failureChannel returns both ends of a stream for failure reports, like the one that gorun makes:
// that of the launcher, and that of the rank.
func failureChannel(t testing.TB) (launcher, rank *os.File) {
	t.Helper()
	pair, err := sys.Socketpair()
	require.NoError(t, err)
	for _, fd := range pair {
		require.NoError(t, unix.SetNonblock(fd, true))
	}
	launcher, rank = os.NewFile(uintptr(pair[0]), "gorun"), os.NewFile(uintptr(pair[1]), "news")
	t.Cleanup(func() { _ = launcher.Close() })
	return launcher, rank
}

// openWithLauncher makes the engines of n ranks, each with a stream from a launcher, and returns
// the launcher's ends. before[i] is a line that is in the stream of rank i before its engine
// exists.
func openWithLauncher(t testing.TB, n int, provider transport.Provider, before ...string) ([]*Engine, []*os.File) {
	t.Helper()
	rails := openRail(t, n, &params.Set{}, provider)
	engines, launcher := make([]*Engine, n), make([]*os.File, n)
	for i := range n {
		var news *os.File
		launcher[i], news = failureChannel(t)
		if i < len(before) {
			say(t, launcher[i], before[i])
		}
		var err error
		engines[i], err = New(Config{Rank: i, Size: n, Rails: rails[i : i+1], LocalRanks: n, Launcher: news})
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		for _, e := range engines {
			e.Kill()
		}
	})
	return engines, launcher
}

// say writes a line to a stream as the launcher.
func say(t testing.TB, to *os.File, line string) {
	t.Helper()
	_, err := to.WriteString(line)
	require.NoError(t, err)
}

// receive waits for a message from source that no rank sends, and returns the error that ends the
// wait.
func receive(c *Context, source int) error {
	ctx, cancel := context.WithTimeout(background, testTimeout)
	defer cancel()
	_, err := c.Recv(ctx, make([]byte, 8), Env{Peer: source, Tag: 1})
	return err
}

// TestMarkFailedEndsEveryCall: rank 2 is alive and sends nothing. Rank 0 marks it as failed. Then
// every call of rank 0 that waits for rank 2 fails.
func TestMarkFailedEndsEveryCall(t *testing.T) {
	endDuring(t, ErrProcFailed, func(engines []*Engine, _ []*Context) { engines[0].MarkFailed(reason, 2) })
}

func TestTheLauncherReportsFailures(t *testing.T) {
	for name, open := range map[string]func() transport.Provider{
		"inproc": func() transport.Provider { return inproc.NewFabric() },
		"faults": func() transport.Provider { return fault.Wrap(inproc.NewFabric(), fault.Legal(7)) },
		"tcp":    func() transport.Provider { return tcp.New() },
	} {
		t.Run(name, func(t *testing.T) {
			engines, launcher := openWithLauncher(t, 4, open(), "", "failed 3 early\n")
			cs := world(engines)
			line := string(wire.AppendFailures(nil, "", []int{2, 3}, reason))
			ends := make(chan error, 2)
			go func() { ends <- receive(cs[0], 2) }()         // ends when the report arrives
			go func() { ends <- receive(cs[0], AnySource) }() // ends when the report arrives
			say(t, launcher[0], line[:5])
			say(t, launcher[0], line[5:]+line)
			for range 2 {
				err := <-ends
				require.ErrorIs(t, err, ErrProcFailed)
				require.ErrorContains(t, err, "failed: "+reason)
			}
			require.EqualError(t, receive(cs[0], 3), "rank 3 of the world failed: "+reason)
			require.Equal(t, []int{2, 3}, engines[0].Failed())
			require.EqualError(t, receive(cs[1], 3), "rank 3 of the world failed: early")
			err := cs[3].Send(background, nil, Env{Peer: 1, Tag: 1, Mode: Synchronous})
			require.ErrorIs(t, err, ErrProcFailed, "the rank that was marked as failed gets an error")
			ranks(t, cs[:2], func(c *Context, rank int) error {
				s := c.Isend(pattern(100000, 1), Env{Peer: 1 - rank, Tag: 2})
				buf := make([]byte, 100000)
				_, rerr := c.Recv(background, buf, Env{Peer: 1 - rank, Tag: 2})
				_, serr := s.Wait(background)
				return errors.Join(rerr, serr, check(buf, pattern(100000, 1)))
			})
		})
	}
}

// TestMalformedFailureReports: if the launcher sends a malformed line, the engine fails, with the
// parser's error.
func TestMalformedFailureReports(t *testing.T) {
	for line, want := range map[string]error{
		"saved 1\n":    wire.ErrFailuresVerb,
		"failed 2\n":   wire.ErrFailuresSize,
		"failed 1,0\n": wire.ErrFailuresRanks,
		"\n":           wire.ErrFailuresVerb,
		strings.Repeat("x", wire.FailuresMaxLine+10): wire.ErrFailuresLong,
	} {
		t.Run(line[:min(len(line), 10)], func(t *testing.T) {
			engines, launcher := openWithLauncher(t, 2, inproc.NewFabric())
			cs := world(engines)
			ends := make(chan error, 1)
			go func() { ends <- receive(cs[0], 1) }() // ends when the engine fails
			say(t, launcher[0], line)
			err := <-ends
			require.ErrorIs(t, err, want)
			require.ErrorIs(t, err, ErrClosed)
			require.ErrorIs(t, receive(cs[1], 0), ErrProcFailed, "the other rank gets an error")
		})
	}
}

func TestTheLauncherClosesItsChannel(t *testing.T) {
	engines, launcher := openWithLauncher(t, 2, inproc.NewFabric())
	cs := world(engines)
	require.NoError(t, launcher[0].Close())
	say(t, launcher[1], "failed 0") // an incomplete line, after which the stream ends
	require.NoError(t, launcher[1].Close())
	require.Error(t, receive(cs[1], 0))
	require.ErrorIs(t, receive(cs[0], 1), ErrProcFailed, "because rank 1 has failed, not because the channel has ended")
	require.NoError(t, engines[0].Close(background))
}

// TestFailureReportOfThisRank: rank 1 gets a report of its own failure. Its engine fails, because
// the other ranks have marked rank 1 as failed.
func TestFailureReportOfThisRank(t *testing.T) {
	engines, launcher := openWithLauncher(t, 3, inproc.NewFabric())
	cs := world(engines)
	requests := []Request{
		cs[1].Irecv(make([]byte, 8), Env{Peer: 0, Tag: 1}),
		cs[1].Isend(make([]byte, 1<<20), Env{Peer: 2, Tag: 1}),
	}
	say(t, launcher[1], "failed 0-1 "+reason+"\n")
	for _, r := range requests {
		_, err := r.Wait(background)
		require.ErrorIs(t, err, ErrProcFailed)
	}
	err := receive(cs[1], 2)
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorContains(t, err, "rank 1 of the world failed: "+reason)
	require.ErrorIs(t, receive(cs[2], 1), ErrProcFailed)
	_ = engines[1].Close(background) // must return
}

// connectRanks makes rank 0 send a message to rank 1, so that the ranks have a connection.
func connectRanks(t *testing.T, engines []*Engine) {
	t.Helper()
	ranks(t, world(engines), func(c *Context, rank int) error {
		if rank == 0 {
			return c.Send(background, make([]byte, 8), Env{Peer: 1, Tag: 1})
		}
		_, err := c.Recv(background, make([]byte, 8), Env{Peer: 0, Tag: 1})
		return err
	})
}

// TestCloseWithoutDisconnect: rank 0 has marked rank 1 as failed, but its transport cannot
// disconnect a single peer, so Shutdown would wait for rank 1. Close returns nevertheless.
func TestCloseWithoutDisconnect(t *testing.T) {
	engines, _ := openWithLauncher(t, 2, tcp.New())
	connectRanks(t, engines)
	engines[0].mu.Lock()
	engines[0].rails[0].disconnect = nil
	engines[0].mu.Unlock()
	engines[0].MarkFailed(reason, 1)
	ctx, cancel := context.WithTimeout(background, testTimeout)
	defer cancel()
	require.NoError(t, engines[0].Close(ctx))
	require.NoError(t, ctx.Err())
}

// TestFailureReportDuringClose: Close of rank 0 waits in Shutdown for rank 1, which does not
// answer. A report that rank 1 has failed ends the wait.
func TestFailureReportDuringClose(t *testing.T) {
	engines, launcher := openWithLauncher(t, 2, tcp.New())
	connectRanks(t, engines)
	closed := make(chan error, 1)
	go func() { closed <- engines[0].Close(background) }() // ends after the failure report below
	for left := false; !left; time.Sleep(time.Millisecond) {
		engines[0].mu.Lock()
		left = engines[0].cancelShutdown != nil
		engines[0].mu.Unlock()
	}
	say(t, launcher[0], "failed 1 "+reason+"\n")
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(testTimeout):
		t.Fatal("Close waits for a rank that has failed")
	}
	_, err := launcher[0].WriteString("failed 1\n") // fails, because Close has closed the rank's end
	require.Error(t, err)
}

// TestFailureReportOfARankThatHasLeft: rank 2 has left in good order, so Failed does not contain
// it. Then rank 0 gets a report that rank 2 has failed. Now Failed contains it, and a receive from
// any source fails.
func TestFailureReportOfARankThatHasLeft(t *testing.T) {
	engines := openJob(t, 3, inproc.NewFabric(), nil)
	cs := world(engines)
	require.NoError(t, engines[2].Close(background))
	require.ErrorIs(t, receive(cs[0], 2), ErrProcFailed)
	require.Empty(t, engines[0].Failed())
	r := cs[0].Irecv(make([]byte, 8), Env{Peer: AnySource, Tag: 1})
	_, done, err := r.Test()
	require.NoError(t, err)
	require.False(t, done, "another rank may send the message")
	engines[0].MarkFailed("killed by signal 9", 2)
	_, err = r.Wait(background)
	require.ErrorIs(t, err, ErrPending)
	require.ErrorIs(t, err, ErrProcFailed)
	require.ErrorContains(t, err, "rank 2 of the world failed: killed by signal 9")
	require.False(t, r.Done(), "the receive stays posted")
	require.Equal(t, []int{2}, engines[0].Failed())
}

func TestAcknowledgedFailures(t *testing.T) {
	engines := openJob(t, 4, inproc.NewFabric(), nil)
	cs := world(engines)
	engines[0].MarkFailed(reason, 2)
	fromAny := Env{Peer: AnySource, Tag: 1}
	require.ErrorIs(t, receive(cs[0], AnySource), ErrProcFailed)
	_, _, err := cs[0].Iprobe(fromAny)
	require.ErrorIs(t, err, ErrProcFailed)
	cs[0].Acknowledge()
	require.Equal(t, []int{2}, cs[0].Acknowledged())
	r := cs[0].Irecv(make([]byte, 8), fromAny)
	require.NoError(t, cs[1].Send(background, make([]byte, 8), Env{Peer: 0, Tag: 1}))
	_, err = r.Wait(background)
	require.NoError(t, err)
	require.ErrorIs(t, receive(cs[0], 2), ErrProcFailed)
	engines[0].MarkFailed(reason, 3)
	require.ErrorIs(t, receive(cs[0], AnySource), ErrProcFailed, "a failure after Acknowledge")
	require.Equal(t, []bool{false, false, true, true}, engines[0].Absent([]int{0, 1, 2, 3}))
}

// TestRevocationsOfAFailedRankAreForwarded: rank 0 revokes a communicator, and the message reaches
// rank 1 but not rank 2. When rank 1 learns that rank 0 has failed, it informs rank 2. late says
// whether rank 1 opens the communicator only after that.
func TestRevocationsOfAFailedRankAreForwarded(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late=%v", late), func(t *testing.T) {
			engines := openJob(t, 3, inproc.NewFabric(), nil)
			members := []int{0, 1, 2}
			zero := engines[0].OpenContext(0, members)
			engines[0].MarkFailed("separates rank 0 and rank 2", 2)
			two := engines[2].OpenContext(0, members)
			open := func() *Context { return engines[1].OpenContext(0, members) }
			var one *Context
			if !late {
				one = open()
			}
			wait := make(chan error, 1)
			go func() { wait <- receive(two, 1) }() // ends after the revocation that rank 1 forwards
			zero.Revoke(errors.New("test"))
			side := engines[1].OpenContext(6, members)
			for {
				engines[1].mu.Lock()
				heard := engines[1].revoked[0] != nil
				engines[1].mu.Unlock()
				if heard {
					break
				}
				_, _, err := side.Iprobe(Env{Peer: 2, Tag: 0}) // makes rank 1 poll, and so read the revocation
				require.NoError(t, err)
			}
			engines[1].MarkFailed("", 0)
			if late {
				one = open()
			}
			err := <-wait
			require.ErrorIs(t, err, ErrRevoked)
			require.ErrorContains(t, err, "test")
			require.ErrorIs(t, receive(one, 2), ErrRevoked)
		})
	}
}

// TestAttend: Attend returns the message of any rank. It returns without a message if a rank ends
// or WakeAttend is called, and with an error if its context or the engine ends.
func TestAttend(t *testing.T) {
	engines := openJob(t, 4, inproc.NewFabric(), nil)
	cs := world(engines)
	engines[0].MarkFailed(reason, 3)
	turn := engines[0].ChangeCount()
	var wg sync.WaitGroup
	wg.Go(func() { _ = cs[1].Send(background, []byte{7}, Env{Peer: 0, Tag: 5}) })
	m, st, err := cs[0].Attend(background, turn, false)
	require.NoError(t, err)
	require.Equal(t, 1, st.Source)
	buf := make([]byte, st.Bytes)
	_, err = m.Recv(background, buf)
	require.NoError(t, err)
	require.Equal(t, []byte{7}, buf)
	for _, change := range []func(){
		engines[0].WakeAttend, func() { engines[0].MarkFailed("", 2) }, engines[1].Kill,
	} {
		turn = engines[0].ChangeCount()
		wg.Go(change)
		m, _, err = cs[0].Attend(background, turn, false)
		require.NoError(t, err)
		require.True(t, m.IsZero())
	}
	turn = engines[0].ChangeCount()
	ctx, cancel := context.WithCancel(background)
	wg.Go(cancel)
	_, _, err = cs[0].Attend(ctx, turn, false)
	require.ErrorIs(t, err, context.Canceled)
	wg.Go(engines[0].Kill)
	_, _, err = cs[0].Attend(background, turn, false)
	require.ErrorIs(t, err, ErrClosed)
	wg.Wait()
}

// TestIattend: Iattend returns the next message although ranks have failed. It also reads the queue
// of a transport that most polls leave out.
func TestIattend(t *testing.T) {
	engines := openRails(t, 4, nil, inproc.NewFabric(), inproc.NewFabric())
	cs := world(engines)
	none := func() {
		m, _, err := cs[0].Iattend()
		require.NoError(t, err)
		require.True(t, m.IsZero())
	}
	next := func(source int) ([]byte, error) {
		m, st, err := cs[0].Iattend()
		require.NoError(t, err)
		require.False(t, m.IsZero())
		require.Equal(t, source, st.Source)
		buf := make([]byte, st.Bytes)
		_, err = m.Recv(background, buf)
		return buf, err
	}
	none()
	engines[0].MarkFailed(reason, 3)
	none()
	engines[0].mu.Lock()
	engines[0].rails[1].skip = paceMax
	engines[0].mu.Unlock()
	require.NoError(t, cs[1].Send(background, []byte{7}, Env{Peer: 0, Tag: 5}))
	got, err := next(1)
	require.NoError(t, err)
	require.Equal(t, []byte{7}, got)

	// The data of the next message is lost, because its sender fails. Iattend returns this message,
	// and its receive fails. Then Iattend returns the message after it.
	cs[1].Isend(make([]byte, 1<<20), Env{Peer: 0, Tag: 5}).Abandon()
	for there := false; !there; _, there, err = cs[0].Iprobe(Env{Peer: 1, Tag: 5}) {
		require.NoError(t, err)
	}
	require.NoError(t, cs[2].Send(background, []byte{8}, Env{Peer: 0, Tag: 5}))
	engines[1].Kill()
	side := engines[0].OpenContext(2, []int{0, 1, 2, 3})
	require.ErrorIs(t, receive(side, 1), ErrProcFailed) // returns when rank 0 knows that rank 1 has failed
	_, err = next(1)
	require.ErrorIs(t, err, ErrProcFailed)
	got, err = next(2)
	require.NoError(t, err)
	require.Equal(t, []byte{8}, got)
	none()
	engines[0].Kill()
	_, _, err = cs[0].Iattend()
	require.ErrorIs(t, err, ErrClosed)
}

// TestMarkFailedEndsClose: Close waits for a send that is in flight to rank 1, and the transport
// cannot disconnect rank 1. When rank 1 is marked as failed, Close returns.
func TestMarkFailedEndsClose(t *testing.T) {
	e := openJob(t, 2, inproc.NewFabric(), nil)[0]
	e.mu.Lock()
	e.rails[0].disconnect = nil
	r := e.take(kindSend)
	r.peer, r.inflight = 1, true
	e.mu.Unlock()
	closed := make(chan struct{})
	go func() { // ends when Close returns
		_ = e.Close(background) // may return an error, because the peer has failed
		close(closed)
	}()
	require.Eventually(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.completionWaiters) > 0
	}, testTimeout, time.Millisecond, "Close does not wait for the send")
	e.MarkFailed("gone", 1)
	select {
	case <-closed:
	case <-time.After(testTimeout):
		t.Fatal("Close still waits for a peer that is marked as failed")
	}
}
