package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
)

// quietFabric is an inproc fabric that reports the end of a peer only after a Send to the peer, as a
// fabric without CapPeerDown does.
type quietFabric struct{ *inproc.Fabric }

type quietDomain struct {
	transport.Domain
	self *quietState
}

// quietState has the ends that the queue has read and not reported yet. The caller of the domain
// serialises calls, as for all domains.
type quietState struct {
	held  []transport.Completion
	asked map[transport.Addr]bool // peers that a Send was for since their end
	queue transport.CompletionQueue
}

type quietQueue struct {
	transport.CompletionQueue
	s *quietState
}

type quietEndpoint struct {
	transport.Endpoint
	s *quietState
}

func (f quietFabric) Open(cfg transport.Config) (transport.Domain, error) {
	d, err := f.Fabric.Open(cfg)
	return quietDomain{d, &quietState{asked: map[transport.Addr]bool{}}}, err
}

func (d quietDomain) Attr() transport.Attr {
	a := d.Domain.Attr()
	a.Caps &= transport.CapWaitFD
	return a
}

func (d quietDomain) OpenCQ() (transport.CompletionQueue, error) {
	q, err := d.Domain.OpenCQ()
	d.self.queue = q
	return quietQueue{q, d.self}, err
}

func (d quietDomain) OpenEndpoint(av transport.AddressVector, cq transport.CompletionQueue) (transport.Endpoint, error) {
	ep, err := d.Domain.OpenEndpoint(av, cq.(quietQueue).CompletionQueue)
	return quietEndpoint{ep, d.self}, err
}

func (q quietQueue) Read(c []transport.Completion) (int, error) {
	n, err := q.CompletionQueue.Read(c)
	kept := c[:0]
	for _, x := range c[:n] {
		if x.Kind == transport.PeerDown {
			q.s.held = append(q.s.held, x)
		} else {
			kept = append(kept, x)
		}
	}
	for i := 0; i < len(q.s.held) && len(kept) < len(c); {
		if x := q.s.held[i]; q.s.asked[x.Peer] {
			kept = append(kept, x)
			q.s.held = append(q.s.held[:i], q.s.held[i+1:]...)
		} else {
			i++
		}
	}
	return len(kept), err
}

// Arm returns false if Read has something to report.
func (q quietQueue) Arm() bool {
	for _, x := range q.s.held {
		if q.s.asked[x.Peer] {
			return false
		}
	}
	return q.CompletionQueue.Arm()
}

func (e quietEndpoint) Send(op *transport.Op) (bool, error) {
	done, err := e.Endpoint.Send(op)
	for _, x := range e.s.held {
		if x.Peer == op.Peer {
			e.s.asked[op.Peer] = true
			e.s.queue.Signal()
			return true, nil // the message is lost; the end follows
		}
	}
	return done, err
}

// TestQueryPeersAsksAgain: over a fabric that reports the end of a peer only after a message to it,
// QueryPeers sends messages again and again, so a peer that dies long after a wait for it has begun is
// noticed, also by a send that waits for the receiver.
func TestQueryPeersAsksAgain(t *testing.T) {
	calls := map[string]func(c *Context, last int) error{
		"synchronous send": func(c *Context, last int) error {
			r := c.Isend([]byte("a"), Env{Peer: last, Tag: 1, Mode: Synchronous})
			_, err := r.Wait(background)
			return err
		},
		"rendezvous": func(c *Context, last int) error {
			r := c.Isend(make([]byte, 1<<20), Env{Peer: last, Tag: 1})
			_, err := r.Wait(background)
			return err
		},
	}
	for name, call := range peerWaits {
		calls[name] = call
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			const n = 3
			engines := openJob(t, n, quietFabric{inproc.NewFabric()}, nil)
			c := world(engines)[0]
			ended := make(chan error, 1)
			go func() { ended <- call(c, n-1) }() // ends when the call returns
			deadline := time.After(testTimeout)
			for i := 0; ; i++ {
				if i == 5 {
					engines[n-1].Kill()
				}
				engines[0].QueryPeers()
				select {
				case err := <-ended:
					require.ErrorIs(t, err, ErrProcFailed)
					require.GreaterOrEqual(t, i, 5)
					return
				case <-deadline:
					t.Fatal("the call does not end")
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
}
