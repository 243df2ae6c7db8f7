package engine

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/shm"
	"github.com/weft-hpc/weft/transport/tcp"
)

// TestSeveralTransports: pairs of ranks communicate by different transports. A receive from any
// source gets messages of all transports, whether its goroutine polls or sleeps.
func TestSeveralTransports(t *testing.T) {
	for name, providers := range map[string][]transport.Provider{
		"two inproc":     {inproc.NewFabric(), inproc.NewFabric(inproc.WithoutRMA())},
		"inproc and tcp": {inproc.NewFabric(), tcp.New()},
		"shm and tcp":    {shm.New(), tcp.New()},
		"tcp":            {tcp.New()},
	} {
		t.Run(name, func(t *testing.T) {
			const n, rounds = 4, 200
			cs := world(openRails(t, n, nil, providers...))
			ranks(t, cs, func(c *Context, rank int) error {
				for round := range rounds {
					size := []int{8, 3000, 200000}[round%3]
					root := round % n
					if rank != root {
						if err := c.Send(background, pattern(size, rank), Env{Peer: root, Tag: round}); err != nil {
							return err
						}
						if _, err := c.Recv(background, nil, Env{Peer: root, Tag: round}); err != nil {
							return err
						}
						continue
					}
					buf := make([]byte, size)
					for range n - 1 {
						st, err := c.Recv(background, buf, Env{Peer: AnySource, Tag: round})
						if err != nil {
							return err
						}
						if err := check(buf, pattern(size, st.Source)); err != nil {
							return fmt.Errorf("from %d: %w", st.Source, err)
						}
						if err := c.Send(background, nil, Env{Peer: st.Source, Tag: round}); err != nil {
							return err
						}
					}
				}
				return nil
			})
			require.Empty(t, cs[0].e.Failed())
		})
	}
}

// TestEndOnAnotherRail: rank 1 sends a message to rank 0 and ends. Both its transports report the
// end. The one that does not carry its messages does so first. Rank 0 still gets the message, and
// only then the end.
func TestEndOnAnotherRail(t *testing.T) {
	for name, end := range map[string]func(e *Engine) error{
		"left": func(e *Engine) error { return e.Close(background) },
		"died": func(e *Engine) error { e.Kill(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			// The second provider carries the messages.
			engines := openRails(t, 2, nil, inproc.NewFabric(), inproc.NewFabric())
			cs := world(engines)
			buf := make([]byte, 1)
			r := cs[0].Irecv(buf, Env{Peer: 1, Tag: 5})
			require.NoError(t, cs[1].Send(background, []byte{7}, Env{Peer: 0, Tag: 5}))
			require.NoError(t, end(engines[1]))
			_, err := r.Wait(background)
			require.NoError(t, err)
			require.Equal(t, []byte{7}, buf)
			_, err = cs[0].Recv(background, buf, Env{Peer: 1, Tag: 5})
			require.ErrorIs(t, err, ErrProcFailed)
		})
	}
}

// TestSleepWithoutBrokenRail: a goroutine sleeps on the queues of several transports, and the last
// one breaks. The sleep ends, and a signal can end the next sleep.
func TestSleepWithoutBrokenRail(t *testing.T) {
	for name, providers := range map[string][]transport.Provider{
		"shm and tcp": {shm.New(), tcp.New()},
		"two tcp":     {tcp.New(), tcp.New()},
	} {
		t.Run(name, func(t *testing.T) {
			e := openRails(t, 3, nil, providers...)[0]
			woke := make(chan struct{})
			sleep := func() {
				e.mu.Lock()
				require.True(t, e.arm())
				go func() { // ends after the sleep
					e.sleepArmed(background, nil)
					e.mu.Unlock()
					woke <- struct{}{}
				}()
			}
			end := func(what string) {
				select {
				case <-woke:
				case <-time.After(testTimeout):
					t.Fatal(what)
				}
			}
			sleep()
			e.mu.Lock()
			e.fail(&e.rails[1], errors.New("broken"))
			e.mu.Unlock()
			end("the goroutine sleeps on a queue that is closed")
			e.mu.Lock()
			fds := e.waitset.fds
			e.mu.Unlock()
			go func() { // ends after the wait
				e.waitset.wait(fds, -1)
				woke <- struct{}{}
			}()
			e.signal()
			end("nothing can end the sleep")
		})
	}
}
