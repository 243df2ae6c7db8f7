package shm

import (
	"os"

	"github.com/weft-hpc/weft/transport"
)

// domain is one rank's access to the segment. All of it but what says otherwise
// belongs to the rank's user, who serialises calls.
type domain struct {
	cfg  transport.Config
	file *os.File
	seg  *segment // nil until the ranks of the host are known
	self int      // among them
	// peers by world rank; nil: not of this host. That of the rank itself is there.
	peers     []*peer
	locals    []*peer // by local rank
	transfers transfers
	heap      heap
	cq        *completionQueue
	ep        *endpoint
	closed    bool
}

// completionQueue is the user's view of the domain's progress.
type completionQueue struct{ d *domain }

// endpoint sends.
type endpoint struct{ d *domain }

// completed queues the end of an operation for the completion queue.
func (d *domain) completed(op *transport.Op, err error) { _, _ = op, err }

// post writes a control message of a kind from firstControl on to a peer, which
// gets it in order with everything else from here; false: there is no room, try
// again at the next advance.
func (d *domain) post(p *peer, kind uint8, b []byte) bool { _, _, _ = p, kind, b; return false }
