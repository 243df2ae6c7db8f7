package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/weft-hpc/weft/comm"
)

// message is a message that a rank sends in an operation.
type message struct {
	from, to, tag int
	n             int    // number of elements
	data          uint64 // number of the message in the operation, which determines its content
	taken         bool   // at the receiver: a receive has returned the message
}

// pattern is the source and tag that a receive asks for. They may be comm.AnySource and comm.AnyTag.
type pattern struct{ source, tag int }

func (p pattern) fits(m *message) bool {
	return (p.source == comm.AnySource || p.source == m.from) && (p.tag == comm.AnyTag || p.tag == m.tag)
}

// inbox has the messages that this rank must receive in an operation. Receives match in the order in
// which they were started. A receive from comm.AnySource may get a message of any rank. But among the
// messages of one rank that match, it must get the one that was sent first.
type inbox struct {
	list []*message // the messages of one sender are in the order in which it sends them
	n    int        // number of elements of the longest message
	size int        // of an element, in bytes
}

// take returns the message that a receive with the pattern p and the status st must have got. It
// must be called for the receives in the order in which they were started. If st does not fit the
// message, take returns an error.
func (in *inbox) take(p pattern, st comm.Status) (*message, error) {
	for _, m := range in.list {
		if m.taken || m.from != st.Source || !p.fits(m) {
			continue
		}
		if m.taken = true; st.Tag != m.tag || st.Count != m.n {
			return nil, fmt.Errorf("receive of %+v: %+v instead of tag %d, %d elements", p, st, m.tag, m.n)
		}
		if n, err := comm.CountOf[byte](st); err != nil || n != m.n*in.size {
			return nil, fmt.Errorf("receive of %+v: %d bytes for %d elements: %w", p, n, m.n, err)
		}
		return m, nil
	}
	return nil, fmt.Errorf("receive of %+v: got %+v, which was not sent", p, st)
}

// messages sends up to 24 random messages between the ranks, also from a rank to itself. Each rank either
// receives while another of its goroutines sends, or starts all receives before it sends.
func (e element[T]) messages(k *call) error {
	p, me := k.c.Size(), k.c.Rank()
	var out []*message
	in := inbox{size: e.size()}
	total := 1 + k.rng.IntN(24)
	tags := 1 + k.rng.IntN(4)
	k.budget /= 4
	left := k.budget
	for i := range total {
		m := &message{from: k.rng.IntN(p), to: k.rng.IntN(p), tag: k.tag + k.rng.IntN(tags), data: uint64(i)}
		m.n = min(k.length(e.size(), 1), left/e.size())
		left -= m.n * e.size()
		if m.from == me {
			out = append(out, m)
		}
		if m.to == me {
			in.list = append(in.list, m)
			in.n = max(in.n, m.n)
		}
	}
	// All receives have the same wildcards, because a receive with more wildcards could get the
	// message that a receive with fewer needs. Wildcards and a random order of receives are not
	// combined with blocking sends, unless all receives are started first: the ranks could
	// deadlock.
	w := messageModes[k.rng.IntN(len(messageModes))]
	anySource, anyTag := w.wildcards && k.rng.IntN(3) == 0, w.wildcards && k.rng.IntN(3) == 0
	var patterns []pattern
	for _, m := range in.list {
		w := pattern{m.from, m.tag}
		if anySource {
			w.source = comm.AnySource
		}
		if anyTag {
			w.tag = comm.AnyTag
		}
		patterns = append(patterns, w)
	}
	if w.wildcards {
		k.own.Shuffle(len(patterns), func(i, j int) { patterns[i], patterns[j] = patterns[j], patterns[i] })
	}
	var err error
	if w.ahead || k.own.IntN(4) == 0 {
		err = e.startReceives(k, patterns, &in, out, w.blocks)
	} else {
		sent := e.sendBeside(k, out, w.blocks)
		if err = e.receive(k, patterns, &in); err != nil {
			err = k.fail(err)
		}
		err = errors.Join(err, sent())
	}
	// Without the barrier, these receives could get messages of the next operation of another rank.
	if err == nil && anySource && anyTag {
		err = k.c.Barrier()
	}
	return err
}

// sendBeside runs send in a new goroutine. The caller must call wait, which waits until the goroutine
// has ended and returns the error of send.
func (e element[T]) sendBeside(k *call, out []*message, blocks bool) (wait func() error) {
	sent, sender := make(chan error, 1), *k
	sender.own, sender.closers = k.branch(), nil
	go func() { // ends after its last send, or when the communicator is revoked
		err := e.send(&sender, out, blocks)
		if err != nil {
			err = k.fail(err)
		}
		sent <- err
	}()
	return func() error {
		err := <-sent
		k.closers = append(k.closers, sender.closers...)
		return err
	}
}

// messageMode says how the ranks send and receive in an operation.
type messageMode struct {
	ahead     bool // every rank starts all receives before its first send
	wildcards bool // ranks receive in a random order, and may use comm.AnySource and comm.AnyTag
	blocks    bool // ranks may use sends that block until the message is received, such as Ssend
}

// messageModes are the modes that cannot deadlock.
var messageModes = []messageMode{{ahead: true, wildcards: true, blocks: true}, {wildcards: true}, {blocks: true}}

// startReceives starts all receives, then sends, waits for all receives, and checks the messages.
func (e element[T]) startReceives(k *call, patterns []pattern, in *inbox, out []*message, blocks bool) error {
	var requests []comm.Request
	var buffers [][]T
	for _, p := range patterns {
		buf, err := e.buffer(k, in.n)
		if err != nil {
			return err
		}
		buffers = append(buffers, buf)
		requests = append(requests, comm.Irecv(k.c, buf, p.source, p.tag))
	}
	// With -survive, send in another goroutine. Otherwise this goroutine could block forever: if
	// the receive of a message from this rank to itself has failed because another rank died, a
	// blocking send of that message does not return, and this goroutine would not see the failure.
	sent := func() error { return nil }
	if k.survive {
		sent = e.sendBeside(k, out, blocks)
	} else if err := e.send(k, out, blocks); err != nil {
		return err
	}
	sts, err := k.wait(requests)
	if err != nil {
		err = k.fail(err)
	}
	if err = errors.Join(err, sent()); err != nil {
		return err
	}
	for i, p := range patterns {
		m, err := in.take(p, sts[i])
		if err != nil {
			return err
		}
		if err := e.compare(k, m, buffers[i][:m.n]); err != nil {
			return err
		}
	}
	return nil
}

func (e element[T]) compare(k *call, m *message, got []T) error {
	what := fmt.Sprintf("message %d of %v from %d to %d, tag %d", m.data, e, m.from, m.to, m.tag)
	return same(what, got, e.block(k.salt, int(m.data), 0, m.n))
}

// send sends the messages out in their order, each with a randomly chosen function. If blocks is set,
// the function may be one that blocks until the message is received.
func (e element[T]) send(k *call, out []*message, blocks bool) error {
	var requests []comm.Request
	for _, m := range out {
		buf, err := e.filled(k, e.block(k.salt, int(m.data), 0, m.n))
		if err != nil {
			return err
		}
		k.delay()
		switch n := k.own.IntN(8); {
		case n == 0:
			err = comm.Bsend(k.c, buf, m.to, m.tag)
			clear(buf)
		case n == 1 && blocks:
			err = comm.Send(k.c, buf, m.to, m.tag)
		case n == 2 && blocks:
			err = comm.Rsend(k.c, buf, m.to, m.tag) // the receive need not be posted
		case n <= 4 && blocks:
			err = comm.Ssend(k.c, buf, m.to, m.tag)
		case n <= 3:
			requests = append(requests, comm.Issend(k.c, buf, m.to, m.tag))
		default:
			requests = append(requests, comm.Isend(k.c, buf, m.to, m.tag))
		}
		if err != nil {
			return fmt.Errorf("send of %d %v to %d: %w", m.n, e, m.to, err)
		}
	}
	_, err := k.wait(requests)
	return err
}

// receive receives one message for each pattern, one after the other, each with a randomly chosen
// function, and checks them.
func (e element[T]) receive(k *call, patterns []pattern, in *inbox) error {
	for _, p := range patterns {
		k.delay()
		got, st, err := e.receiveOne(k, p, in.n)
		if err != nil {
			return fmt.Errorf("receive of %+v: %w", p, err)
		}
		m, err := in.take(p, st)
		if err != nil {
			return err
		}
		if err := e.compare(k, m, got[:m.n]); err != nil {
			return err
		}
	}
	return nil
}

func (e element[T]) receiveOne(k *call, p pattern, most int) (got []T, st comm.Status, err error) {
	how := k.own.IntN(6)
	if how == 5 && p.source == comm.AnySource && p.tag != comm.AnyTag {
		for m, err := range k.c.Messages(context.Background(), p.tag) {
			if err != nil {
				return nil, st, err
			}
			if got, err = e.buffer(k, m.Status().Bytes/e.size()); err != nil {
				return nil, st, err
			}
			st, err = comm.Mrecv(m, got)
			return got, st, err
		}
		return nil, st, errors.New("the loop over Messages ended without an error")
	}
	switch how {
	case 0:
		return comm.RecvAlloc[T](k.c, p.source, p.tag)
	case 1: // only this goroutine of the rank receives, so Recv gets the message that the probe has found
		for found := false; !found; runtime.Gosched() {
			if k.own.IntN(2) == 0 {
				st, err = k.c.Probe(p.source, p.tag)
				found = true
			} else {
				st, found, err = k.c.Iprobe(p.source, p.tag)
			}
			if err != nil {
				return nil, st, err
			}
		}
		if got, err = e.buffer(k, st.Bytes/e.size()); err != nil {
			return nil, st, err
		}
		st, err = comm.Recv(k.c, got, st.Source, st.Tag)
		return got, st, err
	case 2:
		var m *comm.Message
		for m == nil {
			if k.own.IntN(4) == 0 {
				m, st, err = k.c.Mprobe(p.source, p.tag)
			} else {
				m, st, err = k.c.Improbe(p.source, p.tag)
			}
			if err != nil {
				return nil, st, err
			}
			runtime.Gosched()
		}
		if got, err = e.buffer(k, st.Bytes/e.size()); err != nil {
			return nil, st, err
		}
		if k.own.IntN(2) == 0 {
			st, err = comm.Mrecv(m, got)
			return got, st, err
		}
		sts, err := k.wait([]comm.Request{comm.Imrecv(m, got)})
		return got, sts[0], err
	}
	if got, err = e.buffer(k, most); err != nil {
		return nil, st, err
	}
	st, err = comm.Recv(k.c, got, p.source, p.tag)
	return got, st, err
}

// ring does some exchanges. In each, every rank sends a block to the rank that is by places further on
// around the ring of ranks. In some exchanges the receive buffers are too short, and every rank must
// get ErrTruncate.
func (e element[T]) ring(k *call) error {
	p, me := k.c.Size(), k.c.Rank()
	for i := range 1 + k.rng.IntN(10) {
		n, by, short := k.length(e.size(), 4*p), k.rng.IntN(p), k.rng.IntN(8) == 0
		to, from := (me+by)%p, (me+p-by)%p
		mine, want := e.block(k.salt+uint64(i), me, 0, n), e.block(k.salt+uint64(i), from, 0, n)
		send, err := e.filled(k, mine)
		if err != nil {
			return err
		}
		recv, err := e.buffer(k, n)
		if err != nil {
			return err
		}
		var st comm.Status
		switch {
		case short && n > 0:
			want, recv = want[:n/2], recv[:n/2]
			if st, err = comm.Sendrecv(k.c, send, to, k.tag, recv, from, k.tag); !errors.Is(err, comm.ErrTruncate) {
				return fmt.Errorf("%d elements for a buffer of %d: %w", n, n/2, errors.Join(errors.New("no ErrTruncate"), err))
			}
			err = nil
		case k.own.IntN(2) == 0:
			copy(recv, mine)
			st, err = comm.SendrecvReplace(k.c, recv, to, k.tag, from, k.tag)
		default:
			st, err = comm.Sendrecv(k.c, send, to, k.tag, recv, from, k.tag)
		}
		if err != nil {
			return err
		}
		if want := (comm.Status{Source: from, Tag: k.tag, Bytes: n * e.size(), Count: n}); st != want {
			return fmt.Errorf("exchange %d: %+v instead of %+v", i, st, want)
		}
		if err := same(fmt.Sprintf("exchange %d of %v", i, e), recv, want); err != nil {
			return err
		}
	}
	return nil
}
