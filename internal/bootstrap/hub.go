package bootstrap

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/weft-hpc/weft/internal/admission"
	"github.com/weft-hpc/weft/internal/wire"
)

const (
	// handshakeTimeout is the longest time until the other side must have proved that it knows the
	// secret.
	handshakeTimeout = 10 * time.Second
	// maxUnproved is the maximum number of connections whose other end has not proved yet that it
	// knows the secret.
	maxUnproved = 512
	// flushWait is how long rank 0, when it ends, waits for frames on their way to the other
	// ranks.
	flushWait = 5 * time.Second
)

// hub is rank 0's end of the connections of a rendezvous (rendezvous.go). It counts the ranks that
// have entered a fence. When all have entered, it sends to all ranks the pairs that they have put.
//
//	gate ── serveConn: handshake ── listen: frames of a rank ──► arrive
//	                                write ◄── out ◄──────────────┘
//
// For each connection, one goroutine runs serveConn and listen, and another runs write. [hub.close]
// ends these goroutines and waits for them.
type hub struct {
	session wire.TCPSession             // template for the session of each connection: From and the nonces are zero
	timeout time.Duration               // time limit of each fence except the first, and of writing a frame
	exit    func(code int, line string) // called after an abort by another rank; ends the process, except in tests
	gate    *admission.Gate
	writing sync.WaitGroup // counts the goroutines that run write

	allArrived chan struct{} // closed when all ranks except 0 have entered the first fence
	rank0Pairs chan []byte   // gets the pairs of all ranks at the end of a fence, for rank 0 itself
	failed     chan struct{} // closed when err is set

	mu      sync.Mutex
	peers   []*peer     // by rank; an element is nil if the rank is not connected
	first   int         // number of ranks except 0 that have entered at least one fence
	round   int         // number of fences that have ended
	inFence []bool      // by rank: it has entered the current fence
	inCount int         // number of ranks that have entered the current fence
	pairs   []byte      // pairs that ranks have brought with the current fence
	timer   *time.Timer // fails the current fence when its time limit is over
	err     error       // why the current fence and all later ones fail; nil: they do not fail
	aborted error       // why the fences fail that a rank enters after an abort; nil: there was no abort
	closed  bool
}

// peer is a connected rank. hub.mu guards hasFenced and left, and each send to out.
type peer struct {
	rank      int
	conn      net.Conn
	out       chan []byte   // frames to write; never full if the rank enters one fence at a time
	closed    chan struct{} // closed at the end of the connection
	hasFenced bool          // the rank has entered a fence
	left      bool          // the rank has sent bye or abort, or its connection was lost
}

// outFrames is the capacity of peer.out: room for the pairs of a fence, a failure and an abort, and
// one more frame.
const outFrames = 4

func newHub(l *net.TCPListener, session wire.TCPSession, timeout time.Duration, exit func(int, string)) *hub {
	size := int(session.Size)
	h := &hub{
		session: session, timeout: timeout, exit: exit,
		allArrived: make(chan struct{}), rank0Pairs: make(chan []byte, 1), failed: make(chan struct{}),
		peers: make([]*peer, size), inFence: make([]bool, size),
	}
	h.gate = admission.Serve(l, maxUnproved, h.serveConn, nil)
	return h
}

// serveConn authenticates a connection, adds its rank as a peer, and reads the rank's frames.
func (h *hub) serveConn(c *admission.Conn) {
	defer c.Close() //nolint:errcheck // an error has no effect on other connections
	if c.Await() != nil {
		return
	}
	c.Heard()
	_ = c.SetDeadline(time.Now().Add(handshakeTimeout))
	s, err := h.authenticate(c)
	c.Proved() // even after an error: then this function closes the connection
	var p *peer
	h.mu.Lock()
	verdict := wire.TCPBusy
	if err == nil && !h.closed && h.peers[s.From] == nil {
		verdict = wire.TCPWelcome
		p = &peer{rank: int(s.From), conn: c, out: make(chan []byte, outFrames), closed: make(chan struct{})}
		h.peers[p.rank] = p
	}
	h.mu.Unlock()
	if err != nil {
		return // the deferred Close closes the connection without an answer
	}
	var b [wire.TCPVerdictSize]byte
	mac := s.Answer(verdict)
	wire.PutTCPVerdict(b[:], verdict, &mac)
	_, err = c.Write(b[:])
	if p == nil {
		return
	}
	defer close(p.closed)
	_ = c.SetDeadline(time.Time{})
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return
	}
	if h.err != nil {
		p.out <- failFrame(h.err)
	}
	h.writing.Add(1)
	go h.write(p) // ends when flush or disconnected closes p.out
	h.mu.Unlock()
	if err == nil {
		err = h.listen(p)
	}
	h.disconnected(p, err)
}

// authenticate runs rank 0's part of the handshake, in which the other side proves that it is a
// rank of the job.
func (h *hub) authenticate(c net.Conn) (*wire.TCPSession, error) {
	var hello wire.TCPHello
	var b [wire.TCPHelloSize]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return nil, err
	}
	if !hello.Parse(b[:]) || hello.From == 0 || hello.From >= h.session.Size || hello.To != 0 {
		return nil, errNotAuthenticated
	}
	s := h.session
	if !s.AcceptHello(&hello) {
		return nil, errNotAuthenticated
	}
	_, _ = rand.Read(s.Responder[:]) // never fails
	var challenge [wire.TCPChallengeSize]byte
	wire.PutTCPChallenge(challenge[:], &s.Responder)
	if _, err := c.Write(challenge[:]); err != nil {
		return nil, err
	}
	var proof wire.TCPMac
	if _, err := io.ReadFull(c, proof[:]); err != nil {
		return nil, err
	}
	if want := s.Proof(); !proof.Equal(&want) {
		return nil, errNotAuthenticated
	}
	return &s, nil
}

var errNotAuthenticated = errors.New("it does not know the job's secret")

// listen reads the frames of a rank until bye or abort. If the connection ends before that, or a
// frame is wrong, listen returns an error.
func (h *hub) listen(p *peer) error {
	for {
		kind, body, err := readFrame(p.conn, maxPuts)
		if err != nil {
			return noEOF(err)
		}
		switch kind {
		case frameFence:
			if err := eachPair(body, func(string, string) {}); err != nil {
				return err
			}
			h.mu.Lock()
			if !p.hasFenced {
				p.hasFenced = true
				if h.first++; h.first == len(h.peers)-1 {
					close(h.allArrived)
				}
			}
			h.arrive(p.rank, body)
			h.mu.Unlock()
		case frameBye:
			h.mu.Lock()
			p.left = true
			if h.inCount > 0 {
				h.fail(gone("rank %d has ended while other ranks wait for it in a fence", p.rank))
			}
			h.mu.Unlock()
			return nil
		case frameAbort:
			code, text, err := parseAbort(body)
			if err != nil {
				return err
			}
			h.abort(p.rank, code, text)()
			h.exit(code, fmt.Sprintf("rank %d: %s", p.rank, text)) // ends this process; it returns only in tests
			h.mu.Lock()
			h.fail(h.aborted)
			h.mu.Unlock()
			return nil
		default:
			return errFrame
		}
	}
}

// disconnected handles the end of a rank's connection. A rank that has not entered any fence may
// connect again. If the connection of any other rank ends without bye or abort, the current fence and
// all later ones fail.
func (h *hub) disconnected(p *peer, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return
	case !p.hasFenced:
		h.peers[p.rank] = nil
		close(p.out)
	case !p.left:
		p.left = true
		h.fail(gone("rank %d, on %s, has gone: %w", p.rank, host(p.conn), err))
	}
}

// anyLeft reports whether a rank that was connected has left, or its connection was lost.
func (h *hub) anyLeft() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.peers, func(p *peer) bool { return p != nil && p.left })
}

func host(c net.Conn) string {
	h, _, err := net.SplitHostPort(c.RemoteAddr().String())
	if err != nil {
		return c.RemoteAddr().String()
	}
	return h
}

// write writes the frames of out to a rank. If a write fails, it closes the connection, so that
// [hub.listen] returns.
func (h *hub) write(p *peer) {
	defer h.writing.Done()
	for frame := range p.out {
		h.mu.Lock()
		if !h.closed { // if the hub is closed, flush has set the deadline
			_ = p.conn.SetWriteDeadline(time.Now().Add(h.timeout))
		}
		h.mu.Unlock()
		if _, err := p.conn.Write(frame); err != nil {
			_ = p.conn.Close()
		}
	}
}

// arrive records that a rank has entered the current fence and has put pairs before. If a rank has
// left, or has entered the fence twice, arrive fails the fence. After the last rank it ends the
// fence: it sends all pairs to all ranks. The caller holds mu.
func (h *hub) arrive(rank int, pairs []byte) {
	if h.err != nil || h.closed {
		return
	}
	for _, p := range h.peers {
		if p != nil && p.left {
			if h.aborted != nil {
				h.fail(h.aborted)
				return
			}
			h.fail(gone("rank %d has ended before a fence", p.rank))
			return
		}
	}
	if h.inFence[rank] {
		h.fail(fmt.Errorf("rank %d has entered a fence twice", rank))
		return
	}
	h.inFence[rank] = true
	h.pairs = append(h.pairs, pairs...)
	if h.inCount++; h.inCount == 1 && h.round > 0 { // rendezvous.host limits the time of the first fence
		round := h.round
		h.timer = time.AfterFunc(h.timeout, func() { h.expire(round) })
	}
	if h.inCount < len(h.inFence) {
		return
	}
	if h.timer != nil {
		// If the timer has called h.expire already, that call sees that the round is over, and does
		// nothing.
		h.timer.Stop()
	}
	frame := newFrame(framePairs, h.pairs)
	h.broadcast(frame)
	h.rank0Pairs <- frame[frameHead:]
	clear(h.inFence)
	h.inCount, h.pairs = 0, nil
	h.round++
}

// expire fails a fence that some ranks have not entered in time.
func (h *hub) expire(round int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.round == round && !h.closed {
		h.fail(fmt.Errorf("%s not entered fence %d within %v (bootstrap.timeout)", haveRanks(h.notInFence()), round+1, h.timeout))
	}
}

// notInFence returns the ranks that have not entered the current fence. The caller holds mu.
func (h *hub) notInFence() []int {
	var list []int
	for rank, in := range h.inFence {
		if !in {
			list = append(list, rank)
		}
	}
	return list
}

// notYetInFence returns the ranks except 0 that have not entered any fence.
func (h *hub) notYetInFence() []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []int
	for rank, p := range h.peers {
		if rank > 0 && (p == nil || !p.hasFenced) {
			list = append(list, rank)
		}
	}
	return list
}

// fail makes the current fence and all later ones fail with err, and reports this to the other
// ranks. After the first call it does nothing. The caller holds mu.
func (h *hub) fail(err error) {
	if h.err != nil {
		return
	}
	h.err = err
	close(h.failed)
	h.broadcast(failFrame(err))
}

func failFrame(err error) []byte {
	kind, text := frameFail, err.Error()
	if IsGone(err) {
		kind = frameGone
	}
	return newFrame(kind, []byte(text[:min(len(text), maxText)]))
}

// GoneError is the error of a fence that has failed because another rank has ended, or because the
// connection with it has.
type GoneError struct{ err error }

func gone(format string, args ...any) error { return &GoneError{fmt.Errorf(format, args...)} }

// Gone returns a GoneError with this text.
func Gone(text string) error { return gone("%s", text) }

func (e *GoneError) Error() string { return e.err.Error() }
func (e *GoneError) Unwrap() error { return e.err }

// IsGone reports whether err is or wraps a GoneError.
func IsGone(err error) bool {
	var g *GoneError
	return errors.As(err, &g)
}

// broadcast sends a frame to all ranks that have not left. The caller holds mu.
func (h *hub) broadcast(frame []byte) {
	for _, p := range h.peers {
		if p == nil || p.left || h.closed {
			continue
		}
		select {
		case p.out <- frame:
		default: // the rank has entered a fence without waiting for the end of the one before
			_ = p.conn.Close()
		}
	}
}

func (h *hub) fence(ctx context.Context, pairs []byte) ([]byte, error) {
	h.mu.Lock()
	h.arrive(0, pairs)
	h.mu.Unlock()
	select {
	case all := <-h.rank0Pairs:
		return all, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-h.failed:
	}
	select {
	case all := <-h.rank0Pairs: // the fence ended before the failure
		return all, nil
	default:
	}
	h.flush(abortWait) // so that the other ranks get the reason, even if this process ends now
	return nil, h.err  // fail has set err before it closed failed
}

// abort sends an abort to all ranks except from, the rank that has called Abort. wait returns when
// the connections of these ranks have ended, or after a time limit. Because of this wait, no rank
// sees the connection to this process end before it has got the abort.
func (h *hub) abort(from, code int, text string) (wait func()) {
	h.mu.Lock()
	h.aborted = fmt.Errorf("the job was aborted by rank %d: %s", from, text)
	if from > 0 {
		h.peers[from].left = true
	}
	h.broadcast(newFrame(frameAbort, abortBody(code, fmt.Sprintf("rank %d: %s", from, text))))
	peers := slices.Clone(h.peers)
	h.mu.Unlock()
	return func() { h.awaitAborted(from, peers) }
}

func (h *hub) awaitAborted(from int, peers []*peer) {
	h.flush(abortWait)
	expired := time.NewTimer(abortWait)
	defer expired.Stop()
	for _, p := range peers {
		if p == nil || p.rank == from {
			continue
		}
		select {
		case <-p.closed:
		case <-expired.C:
			return
		}
	}
}

// flush lets the goroutines that run write end when they have written all frames, or after limit.
// It waits for them. Afterwards the hub sends no more frames.
func (h *hub) flush(limit time.Duration) {
	h.mu.Lock()
	if !h.closed {
		h.closed = true
		if h.timer != nil {
			h.timer.Stop()
		}
		for _, p := range h.peers {
			if p != nil {
				_ = p.conn.SetWriteDeadline(time.Now().Add(limit))
				close(p.out)
			}
		}
	}
	h.mu.Unlock()
	h.writing.Wait() // each write has a deadline
}

// close ends all goroutines and connections of the hub.
func (h *hub) close() error {
	h.flush(flushWait)
	h.gate.Close()
	h.mu.Lock()
	for _, p := range h.peers {
		if p != nil {
			_ = p.conn.Close()
		}
	}
	h.mu.Unlock()
	h.gate.Wait()
	return nil
}
