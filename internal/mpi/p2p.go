package mpi

import (
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
)

// Send is comm.Send.
func (c *Comm) Send(b elem.Buffer, dest, tag int) error {
	return c.send(opSend, b, dest, tag, engine.Standard)
}

// Ssend is comm.Ssend.
func (c *Comm) Ssend(b elem.Buffer, dest, tag int) error {
	return c.send(opSsend, b, dest, tag, engine.Synchronous)
}

// Rsend is comm.Rsend.
func (c *Comm) Rsend(b elem.Buffer, dest, tag int) error {
	return c.send(opRsend, b, dest, tag, engine.Standard)
}

// Bsend is comm.Bsend.
func (c *Comm) Bsend(b elem.Buffer, dest, tag int) error {
	s, err := c.checkSend(b.Type, dest, tag)
	if err != nil {
		return c.fail("Bsend", dest, tag, err)
	}
	if dest == ProcNull {
		return nil
	}
	s.p2p.SendBuffered(append([]byte(nil), b.Bytes()...), engine.Env{Peer: dest, Tag: tag, Sig: b.Type.Sig})
	return nil
}

// Sendrecv is comm.Sendrecv.
func (c *Comm) Sendrecv(send elem.Buffer, dest, sendtag int, recv elem.Buffer, source, recvtag int) (Status, error) {
	if err := send.Type.Err; err != nil {
		return Status{}, c.fail("Sendrecv", dest, sendtag, err)
	}
	if err := recv.Type.Err; err != nil {
		return Status{}, c.fail("Sendrecv", source, recvtag, err)
	}
	if elem.Overlap(send.Bytes(), recv.Bytes()) {
		return Status{}, c.fail("Sendrecv", dest, sendtag, ErrBuffer)
	}
	return c.sendrecv(opSendrecv, send.Bytes(), send.Type.Sig, dest, sendtag, recv, source, recvtag)
}

// SendrecvReplace is comm.SendrecvReplace.
func (c *Comm) SendrecvReplace(b elem.Buffer, dest, sendtag, source, recvtag int) (Status, error) {
	if err := b.Type.Err; err != nil {
		return Status{}, c.fail("SendrecvReplace", dest, sendtag, err)
	}
	own := append([]byte(nil), b.Bytes()...)
	return c.sendrecv(opSendrecvReplace, own, b.Type.Sig, dest, sendtag, b, source, recvtag)
}

// checkSend checks the arguments of a send, and returns the communicator's state.
func (c *Comm) checkSend(t *elem.Type, dest, tag int) (*state, error) {
	if t.Err != nil {
		return nil, t.Err
	}
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

// checkRecv checks the arguments of a receive or probe, and returns the communicator's state. For a
// probe, t is nil.
func (c *Comm) checkRecv(t *elem.Type, source, tag int) (*state, error) {
	if t != nil && t.Err != nil {
		return nil, t.Err
	}
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

func (c *Comm) send(op callName, b elem.Buffer, dest, tag int, mode engine.Mode) error {
	s, err := c.checkSend(b.Type, dest, tag)
	if err == nil && dest != ProcNull {
		var p *pending
		if p, err = s.check.call(op, b.Bytes(), nil); err == nil {
			err = p.ended(s, s.p2p.Send(c.ctx, b.Bytes(), engine.Env{Peer: dest, Tag: tag, Sig: b.Type.Sig, Mode: mode}))
		}
	}
	if err != nil {
		return c.fail(op.String(), dest, tag, err)
	}
	return nil
}

// procNullStatus is the Status of a receive from ProcNull.
var procNullStatus = Status{Source: ProcNull, Tag: AnyTag}

// Recv is comm.Recv.
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
	p, err := s.check.call(opRecv, nil, b.Bytes())
	if err != nil {
		return Status{}, c.fail("Recv", source, tag, err)
	}
	est, err := s.p2p.Recv(c.ctx, b.Bytes(), engine.Env{Peer: source, Tag: tag, Sig: b.Type.Sig})
	st, err := status(est, b.Type.Size, p.ended(s, err))
	if err != nil {
		return st, c.fail("Recv", source, tag, err)
	}
	return st, nil
}

func (c *Comm) sendrecv(op callName, sb []byte, ssig uint16, dest, sendtag int, recv elem.Buffer, source, recvtag int) (Status, error) {
	s, err := c.checkSend(recv.Type, dest, sendtag) // the callers have checked the types
	if err != nil {
		return Status{}, c.fail(op.String(), dest, sendtag, err)
	}
	if _, err := c.checkRecv(nil, source, recvtag); err != nil {
		return Status{}, c.fail(op.String(), source, recvtag, err)
	}
	rb := recv.Bytes()
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
		r = s.p2p.Irecv(rb, engine.Env{Peer: source, Tag: recvtag, Sig: recv.Type.Sig, Attended: true})
	}
	if dest != ProcNull {
		if serr := s.p2p.Send(c.ctx, sb, engine.Env{Peer: dest, Tag: sendtag, Sig: ssig}); serr != nil {
			if source == ProcNull {
				return Status{Source: source, Tag: recvtag, Cancelled: true}, c.fail(op.String(), dest, sendtag, unfinished(s, p, serr))
			}
			est, rerr := r.Retract(serr)
			st, failed := status(est, recv.Type.Size, rerr)
			err := unfinished(s, p, serr, rerr)
			if !st.Cancelled || errors.Is(rerr, ErrTruncate) { // not withdrawn: complete, or failed by itself
				st.Cancelled = false
				if failed != nil && failed != serr { //nolint:errorlint // the receive was withdrawn because of serr
					err = fmt.Errorf("%w; the receive failed too: %w", err, failed)
				}
			}
			return st, c.fail(op.String(), dest, sendtag, err)
		}
	}
	if source == ProcNull {
		return procNullStatus, c.fail(op.String(), dest, sendtag, p.end(nil))
	}
	est, err := r.Finish(c.ctx)
	st, err := status(est, recv.Type.Size, err)
	if err != nil {
		return st, c.fail(op.String(), source, recvtag, unfinished(s, p, err))
	}
	if err := p.end(nil); err != nil {
		return st, c.fail(op.String(), dest, sendtag, err)
	}
	return st, nil
}
