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
	// handshakeTimeout bounds the time until the other side has proved itself.
	handshakeTimeout = 10 * time.Second
	// maxStrangers is the maximum number of connections that have not proved themselves.
	maxStrangers = 512
	// flushWait bounds how long rank 0, when it ends, waits for frames on their way to a rank.
	flushWait = 5 * time.Second
)

// hub is rank 0's end of a rendezvous. It counts the ranks in a fence, and releases all
// ranks when all have entered.
//
//	gate ── stranger: handshake ── listen: frames of a rank ──► round
//	                               write ◄── out ◄──────────────┘
//
// stranger and listen are one goroutine per connection, write is another; close ends
// them and waits.
type hub struct {
	session wire.TCPSession // From and the nonces are not set
	timeout time.Duration
	exit    func(code int, line string)
	gate    *admission.Gate
	writing sync.WaitGroup // write

	full   chan struct{} // closed when all ranks are in the first fence or have been
	mine   chan []byte   // the pairs of a fence, for rank 0
	failed chan struct{} // closed when err is set

	mu      sync.Mutex
	peers   []*peer // by rank; nil: not connected
	first   int     // ranks except 0 that have been in a fence
	round   int     // counts fences
	in      []bool  // by rank: it is in this fence
	inCount int
	pairs   []byte      // that have been put before it
	timer   *time.Timer // of the fence
	err     error       // why no fence can end any more
	closed  bool
}

// peer is a rank that is connected. The hub's lock guards what can change.
type peer struct {
	rank  int
	conn  net.Conn
	out   chan []byte   // frames to be written; never full, as a rank is in one fence at a time
	gone  chan struct{} // closed when it is connected no more
	known bool          // has been in a fence
	left  bool          // has said bye
}

// outFrames is the pairs of a fence, a failure and an abort, and one to spare.
const outFrames = 4

func newHub(l *net.TCPListener, session wire.TCPSession, timeout time.Duration, exit func(int, string)) *hub {
	size := int(session.Size)
	h := &hub{
		session: session, timeout: timeout, exit: exit,
		full: make(chan struct{}), mine: make(chan []byte, 1), failed: make(chan struct{}),
		peers: make([]*peer, size), in: make([]bool, size),
	}
	h.gate = admission.Serve(l, maxStrangers, h.stranger, nil)
	return h
}

// stranger lets a rank in, if it is one, and hears what it says.
func (h *hub) stranger(c *admission.Conn) {
	defer c.Close() //nolint:errcheck // whoever it was
	if c.Await() != nil {
		return
	}
	c.Heard()
	_ = c.SetDeadline(time.Now().Add(handshakeTimeout))
	s, err := h.greet(c)
	c.Proved() // has no effect if the connection ends
	var p *peer
	h.mu.Lock()
	verdict := wire.TCPBusy
	if err == nil && !h.closed && h.peers[s.From] == nil {
		verdict = wire.TCPWelcome
		p = &peer{rank: int(s.From), conn: c, out: make(chan []byte, outFrames), gone: make(chan struct{})}
		h.peers[p.rank] = p
	}
	h.mu.Unlock()
	if err != nil {
		return // a stranger is told nothing
	}
	var b [wire.TCPVerdictSize]byte
	mac := s.Answer(verdict)
	wire.PutTCPVerdict(b[:], verdict, &mac)
	_, err = c.Write(b[:])
	if p == nil {
		return
	}
	defer close(p.gone)
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
	go h.write(p) // ends when close, or lose, closes out
	h.mu.Unlock()
	if err == nil {
		err = h.listen(p)
	}
	h.lose(p, err)
}

// greet has a stranger show that it is a rank.
func (h *hub) greet(c net.Conn) (*wire.TCPSession, error) {
	var hello wire.TCPHello
	var b [wire.TCPHelloSize]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return nil, err
	}
	if !hello.Parse(b[:]) || hello.From == 0 || hello.From >= h.session.Size || hello.To != 0 {
		return nil, errStranger
	}
	s := h.session
	if !s.AcceptHello(&hello) {
		return nil, errStranger
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
		return nil, errStranger
	}
	return &s, nil
}

var errStranger = errors.New("it does not know the job's secret")

// listen hears a rank until it says bye, which is no error.
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
			if !p.known {
				p.known = true
				if h.first++; h.first == len(h.peers)-1 {
					close(h.full)
				}
			}
			h.arrive(p.rank, body)
			h.mu.Unlock()
		case frameBye:
			h.mu.Lock()
			p.left = true
			if h.inCount > 0 {
				h.fail(fmt.Errorf("rank %d has ended, which others wait for", p.rank))
			}
			h.mu.Unlock()
			return nil
		case frameAbort:
			code, text, err := parseAbort(body)
			if err != nil {
				return err
			}
			h.abort(p.rank, code, text)
			line := fmt.Sprintf("rank %d: %s", p.rank, text)
			h.exit(code, line) // which comes back in tests alone
			h.mu.Lock()
			h.fail(errors.New("the job was aborted by " + line))
			h.mu.Unlock()
			return nil
		default:
			return errFrame
		}
	}
}

// lose takes note that a rank has gone. One that had not been in a fence may
// come again.
func (h *hub) lose(p *peer, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return
	case !p.known:
		h.peers[p.rank] = nil
		close(p.out)
	case !p.left:
		p.left = true
		h.fail(fmt.Errorf("rank %d, on %s, has gone: %w", p.rank, host(p.conn), err))
	}
}

func host(c net.Conn) string {
	h, _, err := net.SplitHostPort(c.RemoteAddr().String())
	if err != nil {
		return c.RemoteAddr().String()
	}
	return h
}

// write writes what is to be written to a rank. Where it cannot be, listen hears
// of the same.
func (h *hub) write(p *peer) {
	defer h.writing.Done()
	for frame := range p.out {
		h.mu.Lock()
		if !h.closed { // or flush has set one
			_ = p.conn.SetWriteDeadline(time.Now().Add(h.timeout))
		}
		h.mu.Unlock()
		if _, err := p.conn.Write(frame); err != nil {
			_ = p.conn.Close()
		}
	}
}

// arrive takes a rank into the fence, and ends it with the last. The caller holds
// mu.
func (h *hub) arrive(rank int, pairs []byte) {
	if h.err != nil || h.closed {
		return
	}
	for _, p := range h.peers {
		if p != nil && p.left {
			h.fail(fmt.Errorf("rank %d has ended before a fence of all", p.rank))
			return
		}
	}
	if h.in[rank] {
		h.fail(fmt.Errorf("rank %d is in a fence twice", rank))
		return
	}
	h.in[rank] = true
	h.pairs = append(h.pairs, pairs...)
	if h.inCount++; h.inCount == 1 && h.round > 0 { // host has its own limit for the first
		round := h.round
		h.timer = time.AfterFunc(h.timeout, func() { h.expire(round) })
	}
	if h.inCount < len(h.in) {
		return
	}
	if h.timer != nil {
		h.timer.Stop() // or it does nothing, in a later round
	}
	frame := newFrame(framePairs, h.pairs)
	h.broadcast(frame)
	h.mine <- frame[frameHead:]
	clear(h.in)
	h.inCount, h.pairs = 0, nil
	h.round++
}

// expire ends a fence that some have not come to.
func (h *hub) expire(round int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.round == round && !h.closed {
		h.fail(fmt.Errorf("%s not come to fence %d of all within %v (bootstrap.timeout)", haveRanks(h.absent()), round+1, h.timeout))
	}
}

// absent are the ranks that are not in the fence. The caller holds mu.
func (h *hub) absent() []int {
	var list []int
	for rank, in := range h.in {
		if !in {
			list = append(list, rank)
		}
	}
	return list
}

// missing are the ranks that have not been in any fence.
func (h *hub) missing() []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []int
	for rank, p := range h.peers {
		if rank > 0 && (p == nil || !p.known) {
			list = append(list, rank)
		}
	}
	return list
}

// fail ends all fences, now and later. The caller holds mu.
func (h *hub) fail(err error) {
	if h.err != nil {
		return
	}
	h.err = err
	close(h.failed)
	h.broadcast(failFrame(err))
}

func failFrame(err error) []byte {
	text := err.Error()
	return newFrame(frameFail, []byte(text[:min(len(text), maxText)]))
}

// broadcast sends a frame to all ranks that have not left. The caller holds mu.
func (h *hub) broadcast(frame []byte) {
	for _, p := range h.peers {
		if p == nil || p.left || h.closed {
			continue
		}
		select {
		case p.out <- frame:
		default: // it does not keep to one fence at a time
			_ = p.conn.Close()
		}
	}
}

func (h *hub) fence(ctx context.Context, pairs []byte) ([]byte, error) {
	h.mu.Lock()
	h.arrive(0, pairs)
	h.mu.Unlock()
	select {
	case all := <-h.mine:
		return all, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-h.failed:
	}
	select {
	case all := <-h.mine: // it had ended before
		return all, nil
	default:
	}
	h.flush(abortWait) // the others are to hear why, even if this process ends now
	return nil, h.err  // written before failed was closed
}

// abort tells all ranks but the one that asks for it to end. It returns when they
// have, so that none takes the end of this process, or of that one, for a failure.
func (h *hub) abort(from, code int, text string) {
	h.mu.Lock()
	if from > 0 {
		h.peers[from].left = true
	}
	h.broadcast(newFrame(frameAbort, abortBody(code, fmt.Sprintf("rank %d: %s", from, text))))
	peers := slices.Clone(h.peers)
	h.mu.Unlock()
	h.flush(abortWait)
	expired := time.NewTimer(abortWait)
	defer expired.Stop()
	for _, p := range peers {
		if p == nil || p.rank == from {
			continue
		}
		select {
		case <-p.gone:
		case <-expired.C:
			return
		}
	}
}

// flush ends the writers, when they have written all or after a time.
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
	h.writing.Wait() // each has a deadline
}

// close ends everything.
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
