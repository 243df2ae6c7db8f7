package mpi

import (
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/bufcheck"
)

// noBuffer is the argument of checkCall and checkStart for a buffer that the call does not have.
var noBuffer elem.Buffer

// Send implements comm.Send, which documents the call.
func (c *Comm) Send(b elem.Buffer, dest, tag int) error {
	return c.send(opSend, b, dest, tag, engine.Standard)
}

// Ssend implements comm.Ssend, which documents the call.
func (c *Comm) Ssend(b elem.Buffer, dest, tag int) error {
	return c.send(opSsend, b, dest, tag, engine.Synchronous)
}

// Rsend implements comm.Rsend, which documents the call.
func (c *Comm) Rsend(b elem.Buffer, dest, tag int) error {
	return c.send(opRsend, b, dest, tag, engine.Standard)
}

// Bsend implements comm.Bsend, which documents the call.
func (c *Comm) Bsend(b elem.Buffer, dest, tag int) error {
	t := c.timing()
	s, err := c.checkSend(b.Type, dest, tag)
	if err != nil {
		return c.fail("Bsend", dest, tag, err)
	}
	if dest == ProcNull {
		return nil
	}
	own, err := b.Copy()
	if err != nil {
		return c.fail("Bsend", dest, tag, err)
	}
	s.p2p.SendBuffered(own.Bytes(), engine.Env{Peer: dest, Tag: tag, Sig: b.Type.Sig})
	t.end(opBsend, dest, tag, b.Size())
	return nil
}

// Sendrecv implements comm.Sendrecv, which documents the call.
func (c *Comm) Sendrecv(send elem.Buffer, dest, sendtag int, recv elem.Buffer, source, recvtag int) (Status, error) {
	if err := send.Type.Err; err != nil {
		return Status{}, c.fail("Sendrecv", dest, sendtag, err)
	}
	if err := recv.Type.Err; err != nil {
		return Status{}, c.fail("Sendrecv", source, recvtag, err)
	}
	if send.Type.Layout == nil && send.Type.Form == recv.Type.Form && elem.Overlap(send.Bytes(), recv.Bytes()) {
		return Status{}, c.fail("Sendrecv", dest, sendtag, ErrBuffer)
	}
	return c.sendrecv(opSendrecv, send, dest, sendtag, recv, source, recvtag)
}

// SendrecvReplace implements comm.SendrecvReplace, which documents the call.
func (c *Comm) SendrecvReplace(b elem.Buffer, dest, sendtag, source, recvtag int) (Status, error) {
	if err := b.Type.Err; err != nil {
		return Status{}, c.fail("SendrecvReplace", dest, sendtag, err)
	}
	own, err := b.Copy()
	if err != nil {
		return Status{}, c.fail("SendrecvReplace", dest, sendtag, err)
	}
	return c.sendrecv(opSendrecvReplace, own, dest, sendtag, b, source, recvtag)
}

// checkSend checks the arguments of a send of elements of type t, and returns the communicator's
// state.
func (c *Comm) checkSend(t *elem.Type, dest, tag int) (*state, error) {
	if t.Err != nil {
		return nil, t.Err
	}
	s, err := c.live()
	if err != nil {
		return nil, err
	}
	if uint(dest) >= uint(len(s.peerRanks)) && dest != ProcNull {
		return nil, s.badRank()
	}
	if uint(tag) > MaxTag {
		return nil, badTag()
	}
	return s, nil
}

// checkRecv checks the arguments of a receive or probe, and returns the communicator's state. t is
// the element type of a receive; nil: the call is a probe, or the caller has checked the type.
func (c *Comm) checkRecv(t *elem.Type, source, tag int) (*state, error) {
	if t != nil && t.Err != nil {
		return nil, t.Err
	}
	s, err := c.live()
	if err != nil {
		return nil, err
	}
	if uint(source) >= uint(len(s.peerRanks)) && source != AnySource && source != ProcNull {
		return nil, s.badRank()
	}
	if uint(tag) > MaxTag && tag != AnyTag {
		return nil, badTag()
	}
	if s.hints&(NoAnySource|NoAnyTag) != 0 {
		if err := s.checkWildcards(source, tag); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *state) badRank() error {
	return fmt.Errorf("%w: the communicator has %d", ErrRank, len(s.peerRanks))
}

func badTag() error { return fmt.Errorf("%w: not in 0 … %d", ErrTag, MaxTag) }

func (c *Comm) send(op callName, b elem.Buffer, dest, tag int, mode engine.Mode) error {
	s, err := c.checkSend(b.Type, dest, tag)
	if err == nil && dest != ProcNull {
		began := s.began()
		var p *bufcheck.Operation
		if p, err = s.checkCall(op, b, noBuffer); err == nil {
			err = endCall(s, p, s.p2p.Send(c.ctx, b.Bytes(), engine.Env{Peer: dest, Tag: tag, Sig: b.Type.Sig, Mode: mode, Form: b.Type.Form}))
		}
		if began != 0 && err == nil {
			s.recordCall(op, began, dest, tag, b.Size())
		}
	}
	if err != nil {
		return c.fail(op.String(), dest, tag, err)
	}
	return nil
}

// procNullStatus is the Status of a receive from ProcNull.
var procNullStatus = Status{Source: ProcNull, Tag: AnyTag}

// Recv implements comm.Recv, which documents the call.
//
// Hot path: no allocation.
func (c *Comm) Recv(b elem.Buffer, source, tag int) (Status, error) {
	s, err := c.checkRecv(b.Type, source, tag)
	if err != nil {
		return Status{}, c.fail("Recv", source, tag, err)
	}
	if source == ProcNull {
		return procNullStatus, nil
	}
	began := s.began()
	p, err := s.checkCall(opRecv, noBuffer, b)
	if err != nil {
		return Status{}, c.fail("Recv", source, tag, err)
	}
	st, err := s.p2p.Recv(c.ctx, b.Bytes(), engine.Env{Peer: source, Tag: tag, Sig: b.Type.Sig, Form: b.Type.Form})
	if err = checkCount(st.Bytes, b.Type.Size, endCall(s, p, err)); err != nil {
		return st, c.fail("Recv", source, tag, err)
	}
	if began != 0 {
		s.recordCall(opRecv, began, st.Source, st.Tag, st.Bytes)
	}
	return st, nil
}

func (c *Comm) sendrecv(op callName, send elem.Buffer, dest, sendtag int, recv elem.Buffer, source, recvtag int) (Status, error) {
	t := c.timing()
	s, err := c.checkSend(recv.Type, dest, sendtag) // the callers have checked both types
	if err != nil {
		return Status{}, c.fail(op.String(), dest, sendtag, err)
	}
	if _, err := c.checkRecv(nil, source, recvtag); err != nil {
		return Status{}, c.fail(op.String(), source, recvtag, err)
	}
	sent, written := send, recv
	if dest == ProcNull {
		sent = noBuffer
	}
	if source == ProcNull {
		written = noBuffer
	}
	p, err := s.checkCall(op, sent, written)
	if err != nil && p.WritesClash() {
		return Status{}, c.fail(op.String(), source, recvtag, err)
	}
	if err != nil {
		return Status{}, c.fail(op.String(), dest, sendtag, err)
	}
	var r engine.Request
	if source != ProcNull {
		r = s.p2p.Irecv(recv.Bytes(), engine.Env{Peer: source, Tag: recvtag, Sig: recv.Type.Sig, Form: recv.Type.Form, Attended: true})
	}
	if dest != ProcNull {
		if serr := s.p2p.Send(c.ctx, send.Bytes(), engine.Env{Peer: dest, Tag: sendtag, Sig: send.Type.Sig, Form: send.Type.Form}); serr != nil {
			if source == ProcNull {
				return Status{Source: source, Tag: recvtag, Cancelled: true}, c.fail(op.String(), dest, sendtag, unfinished(s, p, serr))
			}
			st, rerr := r.Retract(serr)
			failed := checkCount(st.Bytes, recv.Type.Size, rerr)
			err := unfinished(s, p, serr, rerr)
			// In these cases the receive is complete, or it failed for a reason of its own.
			if !st.Cancelled || errors.Is(rerr, ErrTruncate) {
				st.Cancelled = false
				if failed != nil && failed != serr { //nolint:errorlint // the receive was withdrawn because of serr
					err = fmt.Errorf("%w; the receive failed too: %w", err, failed)
				}
			}
			return st, c.fail(op.String(), dest, sendtag, err)
		}
	}
	if source == ProcNull {
		return procNullStatus, c.fail(op.String(), dest, sendtag, p.End(nil))
	}
	st, err := r.Finish(c.ctx)
	if err = checkCount(st.Bytes, recv.Type.Size, err); err != nil {
		return st, c.fail(op.String(), source, recvtag, unfinished(s, p, err))
	}
	if err := p.End(nil); err != nil {
		return st, c.fail(op.String(), dest, sendtag, err)
	}
	t.end(op, dest, sendtag, send.Size())
	return st, nil
}
