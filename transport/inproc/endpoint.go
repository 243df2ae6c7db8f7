package inproc

import (
	"context"

	"github.com/weft-hpc/weft/transport"
)

// endpoint implements transport.Endpoint for one rank.
type endpoint struct {
	dom          *domain
	av           *addressVector
	disconnected map[transport.Addr]bool // the peers for which Disconnect was called; nil before the first call
}

// rmaEndpoint is the endpoint of a rank in a fabric with CapRead and CapWrite.
type rmaEndpoint struct {
	*endpoint
	cq *queue
}

var (
	_ transport.Endpoint           = (*endpoint)(nil)
	_ transport.DisconnectEndpoint = (*endpoint)(nil)
	_ transport.RMAEndpoint        = (*rmaEndpoint)(nil)
	_ transport.RegionReacher      = (*rmaEndpoint)(nil)
)

// Address returns the rank as a decimal number.
func (e *endpoint) Address() transport.Address { return addressOf(int(e.dom.mailbox.rank)) }

// Send copies the message into the receiver's mailbox. For a message up to the size that
// WithInjectSize sets, Send returns done; for a larger message a completion follows. If the
// mailbox is full (see WithBacklog), Send returns ErrAgain.
//
// Hot path: no allocation in steady state, no lock held while copying, no system call unless
// the receiver sleeps and has called CompletionQueue.FD.
func (e *endpoint) Send(op *transport.Op) (bool, error) {
	self := e.dom.mailbox
	if self.state.Load() != stateOpen {
		return false, transport.ErrClosed
	}
	n := op.HeaderLen + len(op.Data)
	if uint(op.HeaderLen) > transport.HeaderSize || n > e.dom.fabric.opt.maxMsgSize {
		return false, transport.ErrTooLarge
	}
	to, err := e.peer(op, "send")
	if err != nil {
		return false, err
	}
	buf, err := to.reserve(n)
	if err == transport.ErrAgain { //nolint:errorlint // reserve returns this very value
		return false, err
	}
	if err != nil {
		return false, fail("send", op.Peer, err)
	}
	copy(buf, op.Header[:op.HeaderLen])
	copy(buf[op.HeaderLen:], op.Data)
	if err := to.deliver(self.rank, buf, n); err != nil {
		if self.state.Load() != stateOpen {
			return false, transport.ErrClosed
		}
		return false, fail("send", op.Peer, err)
	}
	if n <= e.dom.fabric.opt.injectSize {
		return true, nil
	}
	self.push(event{kind: transport.OpDone, peer: op.Peer, op: op})
	return false, nil
}

// peer returns the mailbox of op.Peer. what is the name of the operation in errors.
func (e *endpoint) peer(op *transport.Op, what string) (*mailbox, error) {
	if op.Peer < 0 || int(op.Peer) >= len(e.av.mailboxes) {
		return nil, &transport.Error{Provider: name, Op: what, Peer: op.Peer, Err: transport.ErrAddress}
	}
	if len(e.disconnected) > 0 && e.disconnected[op.Peer] {
		return nil, fail(what, op.Peer, errDisconnected)
	}
	return e.av.mailboxes[op.Peer], nil
}

// Disconnect marks a peer as failed. As a consequence, the peer reports this rank as down.
func (e *endpoint) Disconnect(peer transport.Addr) error {
	self := e.dom.mailbox
	if self.state.Load() != stateOpen {
		return transport.ErrClosed
	}
	if peer == self.rank || peer < 0 || int(peer) >= len(e.av.mailboxes) {
		return &transport.Error{Provider: name, Op: "disconnect", Peer: peer, Err: transport.ErrAddress}
	}
	if e.disconnected[peer] {
		return nil
	}
	if e.disconnected == nil {
		e.disconnected = make(map[transport.Addr]bool)
	}
	e.disconnected[peer] = true
	self.refuse(peer)
	e.av.mailboxes[peer].pushEnd(event{kind: transport.PeerDown, peer: self.rank, err: fail("receive", self.rank, errRefused)})
	return nil
}

// Shutdown makes the peers report PeerLeft for the rank. It does not block, because the rank's
// messages are already in the peers' mailboxes. It drops messages that the rank has not
// read. After it has returned, operations of peers with the rank fail with ErrPeerLeft.
func (e *endpoint) Shutdown(context.Context) error {
	if e.dom.ended() {
		return transport.ErrClosed
	}
	e.dom.fabric.end(e.dom.mailbox, stateLeft)
	return nil
}

// Read copies from the peer's region to op.Data before it returns, unless WithRMADelay is set. The
// completion reports whether the copy has failed.
//
// Hot path: no allocation, no lock held while copying except the region's, no
// system call.
func (e *rmaEndpoint) Read(op *transport.Op) error { return e.post(op, rmaRead) }

// Write copies op.Data to the peer's region before it returns, unless WithRMADelay is set. The
// completion reports whether the copy has failed.
//
// Hot path: no allocation, no lock held while copying except the region's, no
// system call.
func (e *rmaEndpoint) Write(op *transport.Op) error { return e.post(op, rmaWrite) }

// ReachesRegion returns true for this rank's own regions, and for all regions if WithReach was not
// used. Otherwise it returns the result of the function of WithReach for this rank and the peer.
func (e *rmaEndpoint) ReachesRegion(peer transport.Addr, _ uint64) bool {
	reach, self := e.dom.fabric.opt.reach, e.dom.mailbox.rank
	return reach == nil || peer == self || reach(self, peer)
}

// post sets Op.ID of an RMA operation to one of these values.
const (
	rmaRead uint64 = iota
	rmaWrite
)

func (e *rmaEndpoint) post(op *transport.Op, kind uint64) error {
	if e.dom.mailbox.state.Load() != stateOpen {
		return transport.ErrClosed
	}
	o := &e.dom.fabric.opt
	if len(op.Data) > o.maxRMASize {
		return transport.ErrTooLarge
	}
	if _, err := e.peer(op, rmaName(kind)); err != nil {
		return err
	}
	if !e.ReachesRegion(op.Peer, op.RemoteKey) {
		return transport.ErrNotSupported
	}
	op.ID = kind
	if o.rmaDelay > 0 {
		e.cq.delay(e, op, uint64(o.rmaDelay))
		return nil
	}
	e.execute(op)
	return nil
}

// execute does the copy of a Read or Write, and puts the completion in this rank's mailbox.
func (e *rmaEndpoint) execute(op *transport.Op) {
	ev := event{kind: transport.OpDone, peer: op.Peer, op: op}
	if err := e.copy(op); err != nil {
		ev.err = fail(rmaName(op.ID), op.Peer, err)
	}
	e.dom.mailbox.push(ev)
}

func (e *rmaEndpoint) copy(op *transport.Op) error {
	if e.dom.fabric.opt.mrMode&transport.MRLocal != 0 && op.Region == nil && len(op.Data) > 0 {
		return transport.ErrAccess
	}
	if e.disconnected[op.Peer] { // Disconnect was called after op was posted
		return errDisconnected
	}
	target := e.av.mailboxes[op.Peer]
	r, err := target.find(e.dom.mailbox.rank, op.RemoteKey)
	if err != nil {
		return err
	}
	if op.ID == rmaWrite {
		err = r.write(op.RemoteKey, op.RemoteAddr, op.Data)
	} else {
		err = r.read(op.RemoteKey, op.RemoteAddr, op.Data)
	}
	if err != nil {
		// The copy may have failed because the peer has ended, which closes its regions.
		if gone := target.endError(); gone != nil {
			return gone
		}
	}
	return err
}

func rmaName(kind uint64) string {
	if kind == rmaWrite {
		return "write"
	}
	return "read"
}
