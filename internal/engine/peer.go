package engine

import (
	"errors"
	"time"

	"github.com/weft-hpc/weft/transport"
)

// peer holds what the engine knows about another rank, or about this rank itself.
type peer struct {
	rail *rail // rail that carries messages to the peer; nil: the peer is this rank itself
	err  error // why no more messages can be sent to the peer, for example because it has failed; nil: they can
	// Maximum number of bytes of data in an eager message to the peer; -1: the peer is this rank
	// itself, or no message can be sent to it any more.
	eager           int
	sendSeq         uint32 // sequence number of the last message to the peer; 0: there was none
	recvSeq         uint32 // sequence number of the last message from the peer; 0: there was none
	credit          int    // bytes of the peer's memory for unexpected messages that this rank may still use
	unexpectedBytes int    // bytes of this rank's memory for unexpected messages that the peer uses
	owed            int    // bytes of credit that this rank has not yet returned to the peer
	// Requests that wait for room in the endpoint, or behind a send whose buffer is being registered, by
	// kind. retry usually starts them in the order of these fields.
	control list // messages of the engine itself and of ports, RMA operations, remote atomics
	data    list // sends of the program, and of MsgLeave, of which nothing has left yet
	streams list // sends by rendezvous without RMA, of which a segment is the next to leave
	starved bool // streams is not empty, and the last retry has moved none of them
	// The endpoint had no room for the last operation on the peer (ErrAgain or ErrAbsent), or
	// Engine.attempt has just sent streamBurst bytes of a rendezvous to the peer.
	noRoom bool
	absent bool // the endpoint returned ErrAbsent: the peer has not started yet
	// Time on Engine.clock at which Engine.napTime first found noRoom set; 0: it has not, or a request
	// to the peer has continued since.
	noRoomSince time.Duration
	isQueued    bool // the peer is in Engine.stalled
	left        bool // the peer has ended in good order, by Close; err is set
	// Engine.markFailed was called for the peer: MarkFailed or the launcher has reported it as failed.
	markedFailed bool
	inFinalize   bool // the peer has reported that it is in Finalize; Engine.finalizing counts it
	// Number of the last call of QueryPeers in which Engine.connect has sent the peer a message,
	// which makes the peer report its Finalize to this rank; 0: there was none.
	queried   uint64
	leaveSent bool // this rank has sent MsgLeave to the peer
}

// noteNoRoom records that the endpoint had no room for an operation on the peer. err is what the
// endpoint returned, ErrAgain or ErrAbsent; or nil if this rank has sent enough to the peer for now.
func (p *peer) noteNoRoom(err error) { p.noRoom, p.absent = true, errors.Is(err, transport.ErrAbsent) }
