package engine

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/shm"
)

// pausedQueue is a completion queue that a test can stop. Each Wait sends to inWait, and then
// blocks until the test has closed goOn. The first Arm after beforeArm was set calls it first.
type pausedQueue struct {
	transport.CompletionQueue
	inWait, goOn chan struct{}
	beforeArm    func()
}

func (q *pausedQueue) Arm() bool {
	if f := q.beforeArm; f != nil {
		q.beforeArm = nil
		f()
	}
	return q.CompletionQueue.Arm()
}

func (q *pausedQueue) Wait(timeout time.Duration) error {
	q.inWait <- struct{}{}
	<-q.goOn
	return q.CompletionQueue.Wait(timeout)
}

// pauseQueue replaces the only completion queue of an engine by a pausedQueue around it.
func pauseQueue(e *Engine) *pausedQueue {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := &pausedQueue{e.rails[0].CQ, make(chan struct{}, 100), make(chan struct{}), nil}
	e.rails[0].CQ, e.waitset.queues[0] = q, q
	return q
}

// TestWordComesBeforeArm: a goroutine of rank 0 waits for a word, and is about to sleep in Wait.
// Another one polls, and arms the queue again. Between these two steps rank 1 stores the word and
// calls Notify, and Arm clears the event of Notify. The first goroutine must still return, although
// its Wait gets no event.
func TestWordComesBeforeArm(t *testing.T) {
	for name, provider := range map[string]transport.Provider{"inproc": inproc.NewFabric(), "shm": shm.New()} {
		t.Run(name, func(t *testing.T) {
			cs := world(openJob(t, 2, provider, nil))
			// This message and its receive make the connection between the ranks.
			require.NoError(t, cs[1].Send(background, nil, Env{Peer: 0, Tag: 1}))
			_, err := cs[0].Recv(background, nil, Env{Peer: 1, Tag: 1})
			require.NoError(t, err)
			q := pauseQueue(cs[0].e)
			var word atomic.Uint64
			returned := make(chan error, 1)
			go func() { returned <- cs[0].Await(background, 1, &word, 1) }() // ends when the word is stored or the engine closes
			<-q.inWait
			require.NoError(t, cs[1].Send(background, nil, Env{Peer: 0, Tag: 2}))
			cs[0].e.mu.Lock()
			q.beforeArm = func() {
				word.Store(1)
				cs[1].Wake(0)
			}
			cs[0].e.mu.Unlock()
			_, there, err := cs[0].Iprobe(Env{Peer: 1, Tag: 2})
			require.NoError(t, err)
			require.True(t, there)
			close(q.goOn)
			select {
			case err = <-returned:
				require.NoError(t, err)
			case <-time.After(testTimeout):
				t.Fatal("the word was stored, but the goroutine still sleeps")
			}
		})
	}
}

// TestSleepEndsForAStalledRequest: a goroutine sleeps on the transports without a time limit. When
// a request has to wait for room in the endpoint, which no event reports, the sleep ends, and the
// goroutine tries the request again.
func TestSleepEndsForAStalledRequest(t *testing.T) {
	cs := world(openJob(t, 2, inproc.NewFabric(), nil))
	e := cs[0].e
	q := pauseQueue(e)
	close(q.goOn)
	r := cs[0].Irecv(nil, Env{Peer: 1, Tag: 1, Attended: true})
	returned := make(chan error, 1)
	go func() { // ends when the message below arrives
		_, err := r.Wait(background)
		returned <- err
	}()
	<-q.inWait
	e.mu.Lock()
	p := &e.peers[1]
	p.noRoom, p.isQueued = true, true
	e.stalled = append(e.stalled, 1)
	e.ensureProgress() // a goroutine that has polled calls this, because another one is asleep
	e.mu.Unlock()
	require.Eventually(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.stalled) == 0
	}, testTimeout, time.Millisecond, "no goroutine retries the request")
	require.NoError(t, cs[1].Send(background, nil, Env{Peer: 0, Tag: 1}))
	require.NoError(t, <-returned)
}

// TestIdleRankSleeps: goroutines wait for messages that no rank sends for a while. One goroutine,
// which may be the background goroutine, sleeps on the transports, and no other one runs.
func TestIdleRankSleeps(t *testing.T) {
	for _, withRequest := range []bool{false, true} {
		t.Run(fmt.Sprint(withRequest), func(t *testing.T) { idleRankSleeps(t, withRequest) })
	}
}

func idleRankSleeps(t *testing.T, withRequest bool) {
	cs := world(openJob(t, 2, inproc.NewFabric(), nil))
	e := cs[0].e
	var left Request
	if withRequest {
		// No goroutine waits for it, so the background goroutine sleeps on the transports.
		left = cs[0].Irecv(nil, Env{Peer: 1, Tag: 9})
	}
	for tag := range 3 {
		rests := func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.sleeper == nil { // no goroutine of the program sleeps on the transports
				return e.asleep && e.followers == tag
			}
			return e.background == backgroundParked && e.followers == tag-1
		}
		if tag > 0 {
			require.Eventually(t, rests, testTimeout, time.Millisecond, tag)
			leads := e.leads.Load()
			time.Sleep(50 * time.Millisecond)
			require.True(t, rests())
			require.Equal(t, leads, e.leads.Load())
		}
		if !withRequest {
			e.mu.Lock()
			// The background goroutine checks at intervals whether it must poll. It need not, so it parks
			// after some checks.
			e.wakeBackground()
			e.mu.Unlock()
		}
		go func() { _, _ = cs[0].Recv(background, nil, Env{Peer: 1, Tag: tag}) }() // ends when its message arrives
	}
	for _, tag := range []int{0, 1, 2, 9} {
		require.NoError(t, cs[1].Send(background, nil, Env{Peer: 0, Tag: tag}))
	}
	if !withRequest {
		left = cs[0].Irecv(nil, Env{Peer: 1, Tag: 9})
	}
	_, err := left.Wait(background)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.parked) == 0 && e.leader == nil && e.active == 0
	}, testTimeout, time.Millisecond)
	require.Eventually(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.background == backgroundParked
	}, testTimeout, time.Millisecond, "the background goroutine ticks although no work is left")
}
