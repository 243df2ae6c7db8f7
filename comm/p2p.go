package comm

import (
	"errors"
	"fmt"
	"github.com/weft-hpc/weft/internal/elem"

	"github.com/weft-hpc/weft/internal/engine"
)

// Send sends len(buf) elements to rank dest with the given tag, and blocks until buf may
// be reused, which may be before the message is received (MPI_Send, MPI 4.1 §3.2). T is
// any type without pointers. If dest is ProcNull, Send sends nothing. If one receive could
// match two messages that a rank sends to another on one communicator, it matches the one
// that was sent first.
//
// Errors: ErrRank, ErrTag, ErrType, ErrProcFailed, ErrFinalized, ErrRevoked, ErrClosed, or
// the context's. If the context ends before the transfer has begun, the message is
// withdrawn. Otherwise the error holds an [Unfinished], the message may still be received,
// and the program must not write to buf until [Unfinished.Wait] returns.
//
// Hot path: no allocation.
func Send[T any](c *Comm, buf []T, dest, tag int) error {
	b, sig, err := view(buf)
	if err != nil {
		return c.fail("Send", dest, tag, err)
	}
	return c.send(opSend, b, sig, dest, tag, engine.Standard)
}

// Ssend is Send that blocks until the receive has been matched
// (MPI_Ssend, MPI 4.1 §3.4).
func Ssend[T any](c *Comm, buf []T, dest, tag int) error {
	b, sig, err := view(buf)
	if err != nil {
		return c.fail("Ssend", dest, tag, err)
	}
	return c.send(opSsend, b, sig, dest, tag, engine.Synchronous)
}

// Rsend is Send: a receive that is known to be posted makes nothing faster
// here (MPI_Rsend, MPI 4.1 §3.4).
func Rsend[T any](c *Comm, buf []T, dest, tag int) error {
	b, sig, err := view(buf)
	if err != nil {
		return c.fail("Rsend", dest, tag, err)
	}
	return c.send(opRsend, b, sig, dest, tag, engine.Standard)
}

// Bsend is Send that never waits for the receiver: it copies buf, which may be
// used again at once (MPI_Bsend, MPI 4.1 §3.6). The copy is freed when it has
// been sent; there is no buffer to attach. Free and Finalize wait until all
// copies are sent. Bsend does not report a delivery failure: Finalize does for
// the world.
func Bsend[T any](c *Comm, buf []T, dest, tag int) error {
	b, sig, err := view(buf)
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
	s.p2p.SendBuffered(append([]byte(nil), b...), engine.Env{Peer: dest, Tag: tag, Sig: sig})
	return nil
}

// Recv receives up to len(buf) elements from rank source, or AnySource, with
// the given tag, or AnyTag, and blocks until they are there (MPI_Recv, MPI 4.1
// §3.2). buf belongs to the call. Status.Count says how many elements came.
// ProcNull as source: it returns at once, with Source ProcNull, Tag AnyTag and
// Count 0.
//
// Errors: ErrRank, ErrTag, ErrType, ErrProcFailed, ErrFinalized, ErrRevoked, ErrClosed, or
// the context's. If the message is longer than buf, Recv fills buf, drops the rest, and
// returns ErrTruncate; Status.Count is the message's length. If the message is not a whole
// number of elements, Recv returns ErrCount. If message and buf have elements of different
// types, Recv returns ErrMismatch.
//
// If the context ends first, the receive is withdrawn. A message that it has matched can
// be received again, before later messages. If the error holds an [Unfinished], the
// transport may write to buf until [Unfinished.Wait] returns, and a receive of that
// message waits until then.
//
// Hot path: no allocation.
func Recv[T any](c *Comm, buf []T, source, tag int) (Status, error) {
	b, sig, err := view(buf)
	if err != nil {
		return Status{}, c.fail("Recv", source, tag, err)
	}
	return c.recv(b, sig, elem.SizeOf[T](), source, tag)
}

// Sendrecv sends send to dest and receives recv from source at the same time, so that
// exchanges and shifts cannot deadlock (MPI_Sendrecv, MPI 4.1 §3.10). The slices must not
// overlap (ErrBuffer); [SendrecvReplace] uses one slice. Sendrecv blocks until both
// transfers are complete and returns the receive's status. Either peer may be ProcNull,
// source may be AnySource, and recvtag may be AnyTag.
//
// Errors: those of Send and Recv. If the send fails or the context ends, the receive is
// withdrawn and Status.Cancelled is true. If Status.Cancelled is false, the receive had
// already ended: the Status describes its message, or it has failed, and the error holds
// both errors.
//
// Hot path: no allocation.
func Sendrecv[S, R any](c *Comm, send []S, dest, sendtag int, recv []R, source, recvtag int) (Status, error) {
	sb, ssig, err := view(send)
	if err != nil {
		return Status{}, c.fail("Sendrecv", dest, sendtag, err)
	}
	rb, rsig, err := view(recv)
	if err != nil {
		return Status{}, c.fail("Sendrecv", source, recvtag, err)
	}
	if elem.Overlap(sb, rb) {
		return Status{}, c.fail("Sendrecv", dest, sendtag, ErrBuffer)
	}
	return c.sendrecv(opSendrecv, sb, ssig, dest, sendtag, rb, rsig, elem.SizeOf[R](), source, recvtag)
}

// SendrecvReplace sends buf to dest and then receives into it from source
// (MPI_Sendrecv_replace, MPI 4.1 §3.10). It allocates a copy of buf. Where it fails
// buf may hold the old or the new elements. Errors: those of Sendrecv.
func SendrecvReplace[T any](c *Comm, buf []T, dest, sendtag, source, recvtag int) (Status, error) {
	b, sig, err := view(buf)
	if err != nil {
		return Status{}, c.fail("SendrecvReplace", dest, sendtag, err)
	}
	own := append([]byte(nil), b...)
	return c.sendrecv(opSendrecvReplace, own, sig, dest, sendtag, b, sig, elem.SizeOf[T](), source, recvtag)
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

func (c *Comm) send(op callName, b []byte, sig uint16, dest, tag int, mode engine.Mode) error {
	s, err := c.checkSend(dest, tag)
	if err == nil && dest != ProcNull {
		var p *pending
		if p, err = s.check.call(op, b, nil); err == nil {
			err = p.ended(s, s.p2p.Send(c.ctx, b, engine.Env{Peer: dest, Tag: tag, Sig: sig, Mode: mode}))
		}
	}
	if err != nil {
		return c.fail(op.String(), dest, tag, err)
	}
	return nil
}

// nobody is the status of a receive from ProcNull.
var nobody = Status{Source: ProcNull, Tag: AnyTag}

func (c *Comm) recv(b []byte, sig uint16, size, source, tag int) (Status, error) {
	s, err := c.checkRecv(source, tag)
	if err != nil {
		return Status{}, c.fail("Recv", source, tag, err)
	}
	if source == ProcNull {
		return nobody, nil
	}
	p, err := s.check.call(opRecv, nil, b)
	if err != nil {
		return Status{}, c.fail("Recv", source, tag, err)
	}
	est, err := s.p2p.Recv(c.ctx, b, engine.Env{Peer: source, Tag: tag, Sig: sig})
	st, err := status(est, size, p.ended(s, err))
	if err != nil {
		return st, c.fail("Recv", source, tag, err)
	}
	return st, nil
}

// status turns the engine's status of a receive into ours.
func status(est engine.Status, size int, err error) (Status, error) {
	st := found(est)
	var cerr error
	if st.Count, cerr = elem.Count(est.Bytes, size); err == nil {
		err = cerr
	}
	return st, err
}

// found converts the engine's status of a probe to a Status.
func found(est engine.Status) Status {
	return Status{Source: est.Source, Tag: est.Tag, Bytes: est.Bytes, Count: Undefined, Cancelled: est.Cancelled}
}

func (c *Comm) sendrecv(op callName, sb []byte, ssig uint16, dest, sendtag int, rb []byte, rsig uint16, size, source, recvtag int) (Status, error) {
	s, err := c.checkSend(dest, sendtag)
	if err != nil {
		return Status{}, c.fail(op.String(), dest, sendtag, err)
	}
	if _, err := c.checkRecv(source, recvtag); err != nil {
		return Status{}, c.fail(op.String(), source, recvtag, err)
	}
	if source == ProcNull {
		rb = nil
	}
	if dest == ProcNull {
		sb = nil
	}
	p, err := s.check.call(op, sb, rb)
	if err != nil && p.writesClash {
		return Status{}, c.fail(op.String(), source, recvtag, err)
	}
	if err != nil {
		return Status{}, c.fail(op.String(), dest, sendtag, err)
	}
	var r engine.Request
	if source != ProcNull {
		r = s.p2p.Irecv(rb, engine.Env{Peer: source, Tag: recvtag, Sig: rsig, Attended: true})
	}
	if dest != ProcNull {
		if serr := s.p2p.Send(c.ctx, sb, engine.Env{Peer: dest, Tag: sendtag, Sig: ssig}); serr != nil {
			if source == ProcNull {
				return Status{Source: source, Tag: recvtag, Cancelled: true}, c.fail(op.String(), dest, sendtag, unfinished(s, p, serr))
			}
			est, rerr := r.Retract(serr)
			st, failed := status(est, size, rerr)
			err := unfinished(s, p, serr, rerr)
			if !st.Cancelled || errors.Is(rerr, ErrTruncate) { // not withdrawn: complete, or failed by itself
				st.Cancelled = false
				if failed != nil && failed != serr { //nolint:errorlint // of the same cause
					err = fmt.Errorf("%w; the receive failed too: %w", err, failed)
				}
			}
			return st, c.fail(op.String(), dest, sendtag, err)
		}
	}
	if source == ProcNull {
		return nobody, c.fail(op.String(), dest, sendtag, p.end(nil))
	}
	est, err := r.Finish(c.ctx)
	st, err := status(est, size, err)
	if err != nil {
		return st, c.fail(op.String(), source, recvtag, unfinished(s, p, err))
	}
	if err := p.end(nil); err != nil {
		return st, c.fail(op.String(), dest, sendtag, err)
	}
	return st, nil
}
