package comm

import (
	"context"
	"fmt"

	"github.com/weft-hpc/weft/internal/engine"
)

// Send sends len(buf) elements to rank dest with the given tag, and blocks
// until buf may be used again, which may be before they are received
// (MPI_Send, MPI 4.1 §3.2). T is any type without pointers. ProcNull as dest:
// nothing is sent. Messages from one rank to another on one communicator do
// not overtake each other where one receive could take both.
//
// Errors: ErrRank, ErrTag, ErrType, ErrProcFailed, ErrRevoked, ErrClosed, or
// the context's, and then buf belongs to the engine until the transfer is over.
//
// Hot path: no allocation.
func Send[T any](c *Comm, buf []T, dest, tag int) error {
	b, err := view(buf)
	if err != nil {
		return c.fail("Send", dest, tag, err)
	}
	return c.send(opSend, b, dest, tag, engine.Standard)
}

// Ssend is Send that blocks until the receive has been matched
// (MPI_Ssend, MPI 4.1 §3.4).
func Ssend[T any](c *Comm, buf []T, dest, tag int) error {
	b, err := view(buf)
	if err != nil {
		return c.fail("Ssend", dest, tag, err)
	}
	return c.send(opSsend, b, dest, tag, engine.Synchronous)
}

// Rsend is Send: a receive that is known to be posted makes nothing faster
// here (MPI_Rsend, MPI 4.1 §3.4).
func Rsend[T any](c *Comm, buf []T, dest, tag int) error {
	b, err := view(buf)
	if err != nil {
		return c.fail("Rsend", dest, tag, err)
	}
	return c.send(opRsend, b, dest, tag, engine.Standard)
}

// Bsend is Send that never waits for the receiver: it copies buf, which may be
// used again at once (MPI_Bsend, MPI 4.1 §3.6). The copy is the library's and
// is freed when it has been sent; there is no buffer to attach. Free and
// Finalize wait until all copies are sent. A failure to deliver after Bsend
// has returned is not told.
func Bsend[T any](c *Comm, buf []T, dest, tag int) error {
	b, err := view(buf)
	if err != nil {
		return c.fail("Bsend", dest, tag, err)
	}
	s, err := c.checkSend(dest, tag)
	if err != nil {
		return c.fail("Bsend", dest, tag, err)
	}
	if dest == ProcNull {
		return nil
	}
	own := append([]byte(nil), b...)
	s.keepBsend(s.p2p.Isend(own, engine.Env{Peer: dest, Tag: tag}))
	return nil
}

// Recv receives up to len(buf) elements from rank source, or AnySource, with
// the given tag, or AnyTag, and blocks until they are there (MPI_Recv, MPI 4.1
// §3.2). buf belongs to the call. Status.Count says how many elements came.
// ProcNull as source: it returns at once, with Source ProcNull, Tag AnyTag and
// Count 0.
//
// Errors: ErrRank, ErrTag, ErrType; ErrTruncate where the message is longer
// than buf: buf is full, nothing beyond it is touched, the rest is lost, and
// Status.Count is the message's length; ErrCount where the message is no whole
// number of elements; ErrProcFailed, ErrRevoked, ErrClosed, or the context's,
// and then the receive is withdrawn, or if it has matched buf belongs to the
// engine until the transfer is over.
//
// Hot path: no allocation.
func Recv[T any](c *Comm, buf []T, source, tag int) (Status, error) {
	b, err := view(buf)
	if err != nil {
		return Status{}, c.fail("Recv", source, tag, err)
	}
	return c.recv(b, sizeOf[T](), source, tag)
}

// Sendrecv sends send to dest and receives recv from source at once, so that
// exchanges and shifts cannot deadlock (MPI_Sendrecv, MPI 4.1 §3.10). The
// slices must not overlap (ErrBuffer); SendrecvReplace uses one. It blocks until both are done and returns the
// receive's status. Either peer may be ProcNull, source AnySource, recvtag
// AnyTag. Errors: those of Send and Recv.
//
// Hot path: no allocation.
func Sendrecv[S, R any](c *Comm, send []S, dest, sendtag int, recv []R, source, recvtag int) (Status, error) {
	sb, err := view(send)
	if err != nil {
		return Status{}, c.fail("Sendrecv", dest, sendtag, err)
	}
	rb, err := view(recv)
	if err != nil {
		return Status{}, c.fail("Sendrecv", source, recvtag, err)
	}
	if overlap(sb, rb) {
		return Status{}, c.fail("Sendrecv", dest, sendtag, ErrBuffer)
	}
	return c.sendrecv(opSendrecv, sb, dest, sendtag, rb, sizeOf[R](), source, recvtag)
}

// SendrecvReplace sends buf to dest and then receives into it from source
// (MPI_Sendrecv_replace, MPI 4.1 §3.10). It allocates a copy of buf. Where it fails
// buf may hold the old or the new elements. Errors: those of Sendrecv.
func SendrecvReplace[T any](c *Comm, buf []T, dest, sendtag, source, recvtag int) (Status, error) {
	b, err := view(buf)
	if err != nil {
		return Status{}, c.fail("SendrecvReplace", dest, sendtag, err)
	}
	own := append([]byte(nil), b...)
	return c.sendrecv(opSendrecvReplace, own, dest, sendtag, b, sizeOf[T](), source, recvtag)
}

// checkSend checks what every send is given.
func (c *Comm) checkSend(dest, tag int) (*state, error) {
	s, err := c.live()
	if err != nil {
		return nil, err
	}
	if uint(dest) >= uint(len(s.group.ranks)) && dest != ProcNull {
		return nil, s.badRank()
	}
	if uint(tag) > MaxTag {
		return nil, badTag()
	}
	return s, nil
}

// checkRecv checks what every receive and probe is given.
func (c *Comm) checkRecv(source, tag int) (*state, error) {
	s, err := c.live()
	if err != nil {
		return nil, err
	}
	if uint(source) >= uint(len(s.group.ranks)) && source != AnySource && source != ProcNull {
		return nil, s.badRank()
	}
	if uint(tag) > MaxTag && tag != AnyTag {
		return nil, badTag()
	}
	return s, nil
}

func (s *state) badRank() error {
	return fmt.Errorf("%w: the communicator has %d", ErrRank, len(s.group.ranks))
}

func badTag() error { return fmt.Errorf("%w: not in 0 … %d", ErrTag, MaxTag) }

func (c *Comm) send(op callName, b []byte, dest, tag int, mode engine.Mode) error {
	s, err := c.checkSend(dest, tag)
	if err == nil && dest != ProcNull {
		err = s.p2p.Send(c.ctx, b, engine.Env{Peer: dest, Tag: tag, Mode: mode})
	}
	if err != nil {
		return c.fail(op.String(), dest, tag, err)
	}
	return nil
}

// nobody is the status of a receive from ProcNull.
var nobody = Status{Source: ProcNull, Tag: AnyTag}

func (c *Comm) recv(b []byte, size, source, tag int) (Status, error) {
	s, err := c.checkRecv(source, tag)
	if err != nil {
		return Status{}, c.fail("Recv", source, tag, err)
	}
	if source == ProcNull {
		return nobody, nil
	}
	est, err := s.p2p.Recv(c.ctx, b, engine.Env{Peer: source, Tag: tag})
	st, err := status(est, size, err)
	if err != nil {
		return st, c.fail("Recv", source, tag, err)
	}
	return st, nil
}

// status turns the engine's status of a receive into ours.
func status(est engine.Status, size int, err error) (Status, error) {
	n, cerr := elems(est.Bytes, size)
	if err == nil {
		err = cerr
	}
	return Status{Source: est.Source, Tag: est.Tag, Count: n, Cancelled: est.Cancelled}, err
}

func (c *Comm) sendrecv(op callName, sb []byte, dest, sendtag int, rb []byte, size, source, recvtag int) (Status, error) {
	s, err := c.checkSend(dest, sendtag)
	if err != nil {
		return Status{}, c.fail(op.String(), dest, sendtag, err)
	}
	if _, err := c.checkRecv(source, recvtag); err != nil {
		return Status{}, c.fail(op.String(), source, recvtag, err)
	}
	var r engine.Request
	if source != ProcNull {
		r = s.p2p.Irecv(rb, engine.Env{Peer: source, Tag: recvtag, Attended: true})
	}
	if dest != ProcNull {
		if err := s.p2p.Send(c.ctx, sb, engine.Env{Peer: dest, Tag: sendtag}); err != nil {
			if r.Cancel() == nil {
				_, _ = r.Wait(c.ctx) // the send's error says more
			}
			return Status{}, c.fail(op.String(), dest, sendtag, err)
		}
	}
	if source == ProcNull {
		return nobody, nil
	}
	est, err := r.Wait(c.ctx)
	st, err := status(est, size, err)
	if err != nil {
		return st, c.fail(op.String(), source, recvtag, err)
	}
	return st, nil
}

// keepBsend remembers a buffered send, and forgets those that have ended.
func (s *state) keepBsend(r engine.Request) {
	s.bsendMu.Lock()
	defer s.bsendMu.Unlock()
	under := s.bsends[:0]
	for _, q := range s.bsends {
		if _, done, _ := q.Test(); !done {
			under = append(under, q)
		}
	}
	clear(s.bsends[len(under):])
	s.bsends = append(under, r)
}

// flushBsends waits until no buffered send is under way.
func (s *state) flushBsends(ctx context.Context) error {
	s.bsendMu.Lock()
	under := s.bsends
	s.bsends = nil
	s.bsendMu.Unlock()
	var first error
	for _, r := range under {
		if _, err := r.Wait(ctx); err != nil && first == nil {
			first = err
		}
	}
	return first
}
