package rma

import (
	"testing"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
)

// lateFabric is the inproc transport, except that rank 1 gets the completions of its sends long
// after the receivers have got the messages: when 40 completions are pending, or when nothing else
// arrives.
type lateFabric struct{ *inproc.Fabric }

type lateDomain struct{ transport.Domain }

type lateQueue struct {
	transport.CompletionQueue
	held    []transport.Completion // completions of sends that Read has not returned yet
	silence int                    // number of Reads since the last completion of another kind
}

func (f lateFabric) Open(cfg transport.Config) (transport.Domain, error) {
	d, err := f.Fabric.Open(cfg)
	if cfg.Self == 1 {
		d = lateDomain{d}
	}
	return d, err
}

func (d lateDomain) OpenCQ() (transport.CompletionQueue, error) {
	cq, err := d.Domain.OpenCQ()
	return &lateQueue{CompletionQueue: cq}, err
}

func (d lateDomain) OpenEndpoint(av transport.AddressVector, cq transport.CompletionQueue) (transport.Endpoint, error) {
	return d.Domain.OpenEndpoint(av, cq.(*lateQueue).CompletionQueue)
}

func (q *lateQueue) Arm() bool { return len(q.held) == 0 && q.CompletionQueue.Arm() }

func (q *lateQueue) Read(c []transport.Completion) (int, error) {
	if len(q.held) >= 40 || q.silence >= 10_000 {
		n := copy(c, q.held)
		q.held, q.silence = append(q.held[:0], q.held[n:]...), 0
		return n, nil
	}
	n, err := q.CompletionQueue.Read(c[:min(len(c), 40-len(q.held))])
	kept := 0
	for _, x := range c[:n] {
		if x.Kind == transport.OpDone {
			q.held = append(q.held, x)
			continue
		}
		c[kept] = x
		kept++
	}
	if q.silence++; kept > 0 || len(q.held) == 0 {
		q.silence = 0
	}
	return kept, err
}

// TestAnswersThatLeaveLate checks that a target whose sends complete late does not treat the
// requests of a correct origin as a flood.
func TestAnswersThatLeaveLate(t *testing.T) {
	f := lateFabric{inproc.NewFabric(inproc.WithoutRMA(), inproc.WithMaxMsgSize(1<<17), inproc.WithInjectSize(100))}
	ms := openWindows(t, openEngines(t, 2, f, nil), 8<<20, ofInt64())
	copy(ms[1].local, pattern(8<<20, 1))
	each(t, ms, func(m *member) error {
		if err := m.fence(); err != nil {
			return err
		}
		got := make([]byte, 8<<20)
		if m.rank == 0 {
			if err := m.Get(background, 1, 0, got); err != nil {
				return err
			}
		}
		if err := m.fence(); err != nil || m.rank != 0 {
			return err
		}
		return same(got, ms[1].local)
	})
}
