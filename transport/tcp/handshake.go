package tcp

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/weft-hpc/weft/internal/wire"
)

// errHandshakeEnded reports that the connection ended before the verdict, which is the last message
// of the handshake. For example, a port scanner, a health check, a dying peer or a peer that has no
// file descriptor left closes the connection that early.
var errHandshakeEnded = errors.New("the other side closed the connection during the handshake")

// errNoAnswer reports that the peer's kernel has not answered an attempt to connect within
// answerTime.
var errNoAnswer = errors.New("no answer to a connection attempt")

// identity is what this rank proves in a handshake: its rank, its job and the job's secret.
type identity struct {
	rank, size uint32
	jobID      string
	secret     [32]byte
	security   wire.TCPSecurity
}

func (id *identity) session(from, to uint32) wire.TCPSession {
	return wire.TCPSession{Secret: id.secret, JobID: id.jobID, Size: id.size, From: from, To: to}
}

// receive reads from c until b is full. If the connection ends or fails before that, receive
// returns errHandshakeEnded. If the deadline of c passes, it returns an error that wraps
// errTimeout.
func receive(c net.Conn, b []byte) error {
	if _, err := io.ReadFull(c, b); err != nil && !errors.Is(err, errTimeout) {
		return fmt.Errorf("%w: %w", errHandshakeEnded, err)
	} else if err != nil {
		return fmt.Errorf("wait for the peer's part of the handshake: %w", err)
	}
	return nil
}

// transmit writes b to c. If the connection ends or fails before all of b is written, transmit
// returns errHandshakeEnded. If the deadline of c passes, it returns an error that wraps
// errTimeout.
func transmit(c net.Conn, b []byte) error {
	if _, err := c.Write(b); err != nil && !errors.Is(err, errTimeout) {
		return fmt.Errorf("%w: %w", errHandshakeEnded, err)
	} else if err != nil {
		return err
	}
	return nil
}

// initiate conducts the initiator's side of a handshake: it proves to the responder at the other
// end of c that this process knows the job's secret, and checks the responder's proof. It returns
// the responder's verdict and the keys of the connection. If the connection ends before the
// verdict, initiate returns errHandshakeEnded, and another attempt may succeed.
func (id *identity) initiate(c net.Conn, to uint32) (wire.TCPVerdict, *wire.TCPProtection, error) {
	s := id.session(id.rank, to)
	s.Security = id.security
	_, _ = rand.Read(s.Initiator[:]) // Read never fails
	h := s.Hello()
	var b [wire.TCPHelloSize]byte
	h.Put(b[:])
	if err := transmit(c, b[:]); err != nil {
		return 0, nil, err
	}
	var ch [wire.TCPChallengeSize]byte
	if err := receive(c, ch[:]); err != nil {
		return 0, nil, err
	}
	if !wire.ParseTCPChallenge(ch[:], &s.Responder) {
		return 0, nil, protocolError("not a challenge")
	}
	p, err := s.Protection(id.security, true)
	if err != nil {
		return 0, nil, err
	}
	m := s.Proof()
	if err := transmit(c, m[:]); err != nil {
		return 0, nil, err
	}
	var vb [wire.TCPVerdictSize]byte
	if err := receive(c, vb[:]); err != nil {
		return 0, nil, err
	}
	v, ok := wire.ParseTCPVerdict(vb[:], &m)
	if !ok {
		return 0, nil, protocolError("not a verdict")
	}
	if want := s.Answer(v); !m.Equal(&want) {
		return 0, nil, errNotProven
	}
	return v, p, nil
}

// receiveHello reads the hello of the initiator at the other end of c. If receiveHello succeeds,
// the initiator knows the secret, or it repeats the hello of a process that knows the secret. A
// hello carries a random nonce, so the caller recognises a repeated hello by its nonce.
func (id *identity) receiveHello(c net.Conn) (wire.TCPSession, error) {
	var b [wire.TCPHelloSize]byte
	var h wire.TCPHello
	if err := receive(c, b[:]); err != nil {
		return wire.TCPSession{}, err
	}
	if !h.Parse(b[:]) {
		return wire.TCPSession{}, fmt.Errorf("%w: its bytes are not a weft hello", errNotMember)
	}
	if h.To != id.rank || h.From >= id.size || h.From == id.rank {
		return wire.TCPSession{}, fmt.Errorf("%w: its hello is from rank %d to rank %d", errNotMember, h.From, h.To)
	}
	s := id.session(h.From, h.To)
	if !s.AcceptHello(&h) {
		return wire.TCPSession{}, fmt.Errorf("%w: wrong proof for rank %d", errNotMember, h.From)
	}
	return s, nil
}

// challenge sends the challenge to the initiator whose hello receiveHello has read, and checks the
// initiator's proof.
func (id *identity) challenge(c net.Conn, s *wire.TCPSession) error {
	_, _ = rand.Read(s.Responder[:]) // Read never fails
	var ch [wire.TCPChallengeSize]byte
	wire.PutTCPChallenge(ch[:], &s.Responder)
	if err := transmit(c, ch[:]); err != nil {
		return err
	}
	var m wire.TCPMac
	if err := receive(c, m[:]); err != nil {
		return err
	}
	if want := s.Proof(); !m.Equal(&want) {
		return fmt.Errorf("%w: wrong proof for rank %d", errNotMember, s.From)
	}
	return nil
}

// answer sends the verdict v of this rank, the responder, to the initiator.
func answer(c net.Conn, s *wire.TCPSession, v wire.TCPVerdict) error {
	m := s.Answer(v)
	var b [wire.TCPVerdictSize]byte
	wire.PutTCPVerdict(b[:], v, &m)
	return transmit(c, b[:])
}
