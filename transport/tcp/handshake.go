package tcp

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/weft-hpc/weft/internal/wire"
)

// strangerTime is how long somebody unknown may take to prove himself.
const strangerTime = 5 * time.Second

// errSilent is for a stranger who went away without having said anything, as
// port scanners, health checks and dying peers do.
var errSilent = errors.New("connection closed before its handshake")

// errNoAnswer is for an attempt that the peer's kernel has not answered in time.
var errNoAnswer = errors.New("no answer to a connection attempt")

// identity is what a process knows of itself and its job.
type identity struct {
	rank, size uint32
	jobID      string
	secret     [32]byte
}

func (id *identity) session(from, to uint32) wire.TCPSession {
	return wire.TCPSession{Secret: id.secret, JobID: id.jobID, Size: id.size, From: from, To: to}
}

// receive fills b. A connection that ends before it is an error that is
// errSilent where not a byte came.
func receive(c net.Conn, b []byte) error {
	n, err := io.ReadFull(c, b)
	if n == 0 && err != nil && !errors.Is(err, errTimeout) {
		return fmt.Errorf("%w: %w", errSilent, err)
	}
	return err
}

// initiate proves this process to the responder at the other end of c, and has
// it prove itself. Before the challenge, an end of the connection is errSilent:
// trying again may help.
func (id *identity) initiate(c net.Conn, to uint32) (wire.TCPVerdict, error) {
	s := id.session(id.rank, to)
	_, _ = rand.Read(s.Initiator[:]) // never fails
	h := wire.TCPHello{From: id.rank, To: to, Nonce: s.Initiator}
	var b [wire.TCPHelloSize]byte
	h.Put(b[:])
	if _, err := c.Write(b[:]); err != nil {
		return 0, fmt.Errorf("%w: %w", errSilent, err)
	}
	var ch [wire.TCPChallengeSize]byte
	if err := receive(c, ch[:]); err != nil {
		return 0, err
	}
	if !wire.ParseTCPChallenge(ch[:], &s.Responder) {
		return 0, violated("not a challenge")
	}
	m := s.Proof()
	if _, err := c.Write(m[:]); err != nil {
		return 0, fmt.Errorf("send proof: %w", err)
	}
	var vb [wire.TCPVerdictSize]byte
	if _, err := io.ReadFull(c, vb[:]); err != nil {
		if errors.Is(err, errTimeout) {
			return 0, err
		}
		return 0, fmt.Errorf("%w: %w", errNotProven, err)
	}
	v, ok := wire.ParseTCPVerdict(vb[:], &m)
	if !ok {
		return 0, violated("not a verdict")
	}
	if want := s.Answer(v); !m.Equal(&want) {
		return 0, errNotProven
	}
	return v, nil
}

// greet has the initiator at the other end of c prove itself and returns its
// rank. Nothing is kept of one who does not.
func (id *identity) greet(c net.Conn) (wire.TCPSession, error) {
	var b [wire.TCPHelloSize]byte
	var h wire.TCPHello
	if err := receive(c, b[:]); err != nil {
		return wire.TCPSession{}, err
	}
	if !h.Parse(b[:]) {
		return wire.TCPSession{}, fmt.Errorf("%w: bytes are not weft's", errStranger)
	}
	if h.To != id.rank || h.From >= id.size || h.From == id.rank {
		return wire.TCPSession{}, fmt.Errorf("%w: from rank %d to rank %d", errStranger, h.From, h.To)
	}
	s := id.session(h.From, h.To)
	s.Initiator = h.Nonce
	_, _ = rand.Read(s.Responder[:]) // never fails
	var ch [wire.TCPChallengeSize]byte
	wire.PutTCPChallenge(ch[:], &s.Responder)
	if _, err := c.Write(ch[:]); err != nil {
		return s, fmt.Errorf("%w: %w", errSilent, err)
	}
	var m wire.TCPMac
	if err := receive(c, m[:]); err != nil {
		return s, err
	}
	if want := s.Proof(); !m.Equal(&want) {
		return s, fmt.Errorf("%w: wrong proof for rank %d", errStranger, h.From)
	}
	return s, nil
}

// answer tells the initiator the verdict.
func answer(c net.Conn, s *wire.TCPSession, v wire.TCPVerdict) error {
	m := s.Answer(v)
	var b [wire.TCPVerdictSize]byte
	wire.PutTCPVerdict(b[:], v, &m)
	if _, err := c.Write(b[:]); err != nil {
		return fmt.Errorf("send verdict: %w", err)
	}
	return nil
}
