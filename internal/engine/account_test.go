package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport/inproc"
)

// traffic returns what e.Account returns, with the waiting time set to 0.
func traffic(e *Engine) wire.Account {
	a := e.Account()
	a.Waited = 0
	return a
}

// TestMessagesAreCounted: rank 0 sends messages of several sizes, as standard and synchronous
// sends. Each message counts once on each side, regardless of its protocol. A message of a context
// for which KeepInFinalize was called does not count.
func TestMessagesAreCounted(t *testing.T) {
	sizes := []int{0, 8, 3000, 200000}
	everyFlavour(t, 2, func(t *testing.T, engines []*Engine, cs []*Context) {
		kept := make([]*Context, 2)
		for i, e := range engines {
			kept[i] = e.OpenContext(2, []int{0, 1})
			kept[i].KeepInFinalize()
		}
		var want wire.Account
		for _, size := range sizes {
			for _, mode := range []Mode{Standard, Synchronous} {
				want.MessagesSent++
				want.BytesSent += int64(size)
				ranks(t, cs, func(c *Context, rank int) error {
					var err error
					if rank == 0 {
						err = c.Send(background, make([]byte, size), Env{Peer: 1, Mode: mode})
					} else {
						_, err = c.Recv(background, make([]byte, size), Env{Peer: 0})
					}
					return err
				})
			}
		}
		ranks(t, kept, func(c *Context, rank int) error { // these messages do not count
			if rank == 0 {
				return c.Send(background, make([]byte, 8), Env{Peer: 1})
			}
			_, err := c.Recv(background, make([]byte, 8), Env{Peer: 0})
			return err
		})
		require.Equal(t, want, traffic(engines[0]))
		require.Equal(t, wire.Account{MessagesReceived: want.MessagesSent, BytesReceived: want.BytesSent}, traffic(engines[1]))
	})
}

// TestMessagesToItselfAreCounted: a message of a rank to itself counts as sent and as received. A
// receive that is cancelled or fails does not count.
func TestMessagesToItselfAreCounted(t *testing.T) {
	c := world(openJob(t, 2, inproc.NewFabric(), nil))[0]
	for _, size := range []int{10, 1 << 20} {
		r := c.Irecv(make([]byte, size), Env{Peer: 0})
		require.NoError(t, c.Send(background, make([]byte, size), Env{Peer: 0}))
		_, err := r.Wait(background)
		require.NoError(t, err)
	}
	r := c.Irecv(make([]byte, 8), Env{Peer: 1})
	require.NoError(t, r.Cancel())
	_, err := r.Wait(background)
	require.NoError(t, err)
	r = c.Irecv(make([]byte, 8), Env{Peer: 0})
	require.NoError(t, c.Send(background, make([]byte, 9), Env{Peer: 0}))
	_, err = r.Wait(background)
	require.ErrorIs(t, err, ErrTruncate)
	require.Equal(t, wire.Account{MessagesSent: 3, BytesSent: 10 + 1<<20 + 9, MessagesReceived: 2, BytesReceived: 10 + 1<<20}, traffic(c.e))
}

// asleepIn runs f, which waits for a message of rank 1, on another goroutine. It returns when a
// goroutine has called Wait of q. ended delivers the result of f.
func asleepIn(q *pausedQueue, f func() error) (ended chan error) {
	ended = make(chan error, 1)
	go func() { ended <- f() }() // ends when the message arrives or the engine closes
	<-q.inWait
	return ended
}

// TestWaitsAreTimed: two goroutines of a rank wait at the same time for different messages. The
// account counts their waiting time once, and only when both have returned.
func TestWaitsAreTimed(t *testing.T) {
	cs := world(openJob(t, 2, inproc.NewFabric(), nil))
	e := cs[0].e
	q := pauseQueue(e)
	begun := time.Now()
	recv := func(tag int) func() error {
		return func() error {
			_, err := cs[0].Recv(background, nil, Env{Peer: 1, Tag: tag})
			return err
		}
	}
	first := asleepIn(q, recv(1))
	second := make(chan error, 1)
	go func() { second <- recv(2)() }() // ends when the message arrives or the engine closes
	require.Eventually(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.parked) == 1
	}, testTimeout, time.Millisecond)
	require.Zero(t, e.Account().Waited) // no receive has returned yet
	close(q.goOn)
	require.NoError(t, cs[1].Send(background, nil, Env{Peer: 0, Tag: 1}))
	require.NoError(t, <-first)
	require.Zero(t, e.Account().Waited) // the second receive still waits
	require.NoError(t, cs[1].Send(background, nil, Env{Peer: 0, Tag: 2}))
	require.NoError(t, <-second)
	waited := e.Account().Waited
	require.Positive(t, waited)
	require.LessOrEqual(t, waited, time.Since(begun))
}

// TestTasksThatWaitAreNotTimed: the account does not count the time in which a function of
// Engine.Go waits for a message, unless the program waits for that function.
func TestTasksThatWaitAreNotTimed(t *testing.T) {
	for name, waits := range map[string]bool{"program computes": false, "program waits": true} {
		t.Run(name, func(t *testing.T) {
			cs := world(openJob(t, 2, inproc.NewFabric(), nil))
			e := cs[0].e
			q := pauseQueue(e)
			task := e.Go(func() error {
				_, err := cs[0].Recv(background, nil, Env{Peer: 1})
				return err
			})
			<-q.inWait
			ended := make(chan error, 1)
			if waits {
				go func() { // ends when the task ends
					_, err := task.Wait(background)
					ended <- err
				}()
				require.Eventually(t, func() bool {
					e.mu.Lock()
					defer e.mu.Unlock()
					return len(e.parked) == 1
				}, testTimeout, time.Millisecond)
			}
			close(q.goOn)
			require.NoError(t, cs[1].Send(background, nil, Env{Peer: 0}))
			require.Eventually(t, task.Done, testTimeout, time.Millisecond)
			if waits {
				require.NoError(t, <-ended)
				require.Positive(t, e.Account().Waited)
				return
			}
			_, err := task.Wait(background)
			require.NoError(t, err)
			require.Zero(t, e.Account().Waited)
		})
	}
}

// TestFollowersAreTimed: a goroutine of the program waits, and only the background goroutine sleeps
// on the transports. The account counts the time of this wait.
func TestFollowersAreTimed(t *testing.T) {
	e := openJob(t, 2, inproc.NewFabric(), nil)[0]
	q := pauseQueue(e)
	var w waiter
	e.mu.Lock()
	defer e.mu.Unlock()
	e.beginWait(&w)
	require.True(t, e.arm())
	go func() { // makes sleepArmed below return, and then ends
		<-q.inWait
		e.mu.Lock()
		e.signal()
		e.mu.Unlock()
		close(q.goOn)
	}()
	e.sleepArmed(background, nil)
	e.endWait(&w)
	require.Positive(t, e.account.Waited)
	require.Zero(t, e.account.waiting)
}

// TestAccountOfOldReadings: a goroutine may read the clock, and then wait for the lock while other
// goroutines record later readings. When it records its own reading, the recorded time does not go
// back.
func TestAccountOfOldReadings(t *testing.T) {
	e := openJob(t, 2, inproc.NewFabric(), nil)[0]
	var w waiter
	e.mu.Lock()
	defer e.mu.Unlock()
	e.beginWait(&w)
	start := e.clock()
	e.noteTime(start)
	e.noteTime(start - time.Second)
	e.endWait(&w)
	require.Zero(t, e.account.Waited)
	e.beginWait(&w)
	e.noteTime(start - time.Second)
	require.Equal(t, start, e.account.since)
	e.endWait(&w)
}

// TestAccountWithoutAProgram: the account does not count the wait of a call of Attend whose
// argument background is true.
func TestAccountWithoutAProgram(t *testing.T) {
	cs := openJob(t, 2, inproc.NewFabric(), nil)
	e := cs[0]
	ended := make(chan error, 1)
	go func() { // ends when WakeAttend is called
		_, _, err := e.OpenContext(77, []int{0, 1}).Attend(background, e.ChangeCount(), true)
		ended <- err
	}()
	require.Eventually(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.asleep || len(e.parked) > 0
	}, testTimeout, time.Millisecond)
	e.WakeAttend()
	require.NoError(t, <-ended)
	require.Zero(t, e.Account().Waited)
}

// TestRecordedWait: two goroutines wait for messages of different ranks, and the record has the wait of one of
// them. When its message arrives, the record has that of the other one.
func TestRecordedWait(t *testing.T) {
	engines := openJob(t, 3, inproc.NewFabric(), nil)
	mem := make([]byte, record.Size(3, record.MinBits))
	rec, err := record.New(mem, 0, 3, record.MinBits)
	require.NoError(t, err)
	rd, err := record.NewReader(mem, 3, record.MinBits)
	require.NoError(t, err)
	engines[0].mu.Lock()
	engines[0].record = &rec.Messages
	engines[0].mu.Unlock()
	contexts := make([]*Context, 3)
	for i, e := range engines {
		contexts[i] = e.OpenContext(2, []int{0, 1, 2})
	}
	contexts[0].Record(rec.Comm(0, "world"), 0)
	waiting := func() int { // the rank for whose message rank 0 waits; -1: for none
		engines[0].mu.Lock() // the record is made for a reader in another process, so the race detector would object
		defer engines[0].mu.Unlock()
		if w := rd.Figures(0, false, false).Waiting; w != nil {
			return w.Peer
		}
		return -1
	}
	ended := [3]chan error{1: make(chan error, 1), 2: make(chan error, 1)}
	for peer := 1; peer <= 2; peer++ {
		go func() { // ends when the rank has sent
			_, err := contexts[0].Recv(background, make([]byte, 1), Env{Peer: peer})
			ended[peer] <- err
		}()
	}
	require.Eventually(t, func() bool { return waiting() > 0 }, testTimeout, time.Millisecond)
	first := waiting()
	for _, peer := range []int{first, 3 - first} {
		require.Eventually(t, func() bool { return waiting() == peer }, testTimeout, time.Millisecond)
		require.NoError(t, contexts[peer].Send(background, []byte{1}, Env{Peer: 0}))
		require.NoError(t, <-ended[peer])
	}
	require.Equal(t, -1, waiting())
}
