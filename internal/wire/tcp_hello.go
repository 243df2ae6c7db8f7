package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
)

// A tcp connection begins with a handshake of four messages of fixed size:
//
//	initiator                                         responder
//	   │ hello: magic, from, to, nonce, security, mac ────► │
//	   │ ◄────────────────────────── challenge: magic, nonce
//	   │ proof: mac(initiator, both nonces, …) ───────────► │
//	   │ ◄────────── verdict: code, mac(responder, …, code)
//
// A mac is an HMAC-SHA256 under the secret of the job. It covers a label for the message, both
// nonces (random numbers; that of the responder is zero in the hello), both ranks, the size and the
// id of the job, and the initiator's value of transport.tcp.security. In the verdict it also covers
// the code, which says whether the responder accepts the connection. If the responder refuses the
// connection because its own value of transport.tcp.security differs, the code contains that value.
//
// The responder sends nothing to a process that does not know the secret and has seen no hello: the
// initiator proves its knowledge first, and the responder closes the connection without an answer
// if a mac is wrong. Because the hello has a mac, the responder can drop most strangers at their
// first message. But a stranger may repeat a hello that it has seen on the network. The responder
// drops a hello whose nonce it has recorded, so a repeated hello does not replace the initiator's
// connection. Only the proof shows that the initiator knows the secret now, because the proof
// covers the responder's nonce too.

// TCPNonce is a random number that a process uses for one connection.
type TCPNonce [32]byte

// TCPMac is a mac of the handshake: it proves that its sender knows the secret of the job.
type TCPMac [sha256.Size]byte

// Sizes of the messages of the handshake, in bytes.
const (
	TCPHelloSize     = 56 + sha256.Size
	TCPChallengeSize = 40
	TCPProofSize     = sha256.Size
	TCPVerdictSize   = 8 + sha256.Size
)

// tcpMagic is the beginning of a hello and of a challenge. Its last byte is the version of the
// protocol.
const tcpMagic = "weft-tc\x03"

// TCPHello is the initiator's first message in the handshake.
type TCPHello struct {
	From, To uint32      // world ranks of the initiator and of the responder
	Nonce    TCPNonce    // the initiator's nonce
	Security TCPSecurity // the initiator's transport.tcp.security
	Mac      TCPMac      // result of TCPSession.HelloMac
}

// Put writes the hello to b, which has TCPHelloSize bytes.
func (h *TCPHello) Put(b []byte) {
	_ = b[TCPHelloSize-1]
	copy(b, tcpMagic)
	binary.LittleEndian.PutUint32(b[8:], h.From)
	binary.LittleEndian.PutUint32(b[12:], h.To)
	copy(b[16:], h.Nonce[:])
	binary.LittleEndian.PutUint64(b[48:], uint64(h.Security))
	copy(b[56:], h.Mac[:])
}

// Parse reads a hello from b. It returns false if b does not have the form that Put writes. It does
// not check the mac; TCPSession.AcceptHello checks it.
func (h *TCPHello) Parse(b []byte) bool {
	if len(b) != TCPHelloSize || string(b[:8]) != tcpMagic {
		return false
	}
	h.From = binary.LittleEndian.Uint32(b[8:])
	h.To = binary.LittleEndian.Uint32(b[12:])
	copy(h.Nonce[:], b[16:])
	security := binary.LittleEndian.Uint64(b[48:])
	h.Security = TCPSecurity(security)
	copy(h.Mac[:], b[56:])
	return security < uint64(tcpSecurityEnd)
}

// PutTCPChallenge writes the challenge to b, which has TCPChallengeSize bytes. The challenge is the
// responder's first message; n is the responder's nonce.
func PutTCPChallenge(b []byte, n *TCPNonce) {
	_ = b[TCPChallengeSize-1]
	copy(b, tcpMagic)
	copy(b[8:], n[:])
}

// ParseTCPChallenge reads a challenge, and sets n to the responder's nonce. It returns false if b
// is not a challenge.
func ParseTCPChallenge(b []byte, n *TCPNonce) bool {
	if len(b) != TCPChallengeSize || string(b[:8]) != tcpMagic {
		return false
	}
	copy(n[:], b[8:])
	return true
}

// TCPVerdict is the code in the responder's last message of the handshake: whether it accepts the
// connection, and if not, why.
type TCPVerdict uint8

// The verdicts: one that accepts the connection, and the reasons for a refusal.
const (
	TCPWelcome TCPVerdict = iota + 1 // the responder accepts the connection
	TCPBusy                          // refused: there is, or will be, another connection between the two ranks
	TCPLeft                          // refused: the responder is leaving the job
	TCPDead                          // refused: the responder has marked the initiator as failed
	// Refused: the two values of transport.tcp.security differ; the code is this number plus the
	// responder's value.
	TCPSecurityDiffers
	tcpVerdictEnd = TCPSecurityDiffers + TCPVerdict(tcpSecurityEnd)
)

// TCPSecurityVerdict returns the verdict of a responder whose transport.tcp.security, responder,
// differs from the initiator's.
func TCPSecurityVerdict(responder TCPSecurity) TCPVerdict {
	return TCPSecurityDiffers + TCPVerdict(responder)
}

// OtherSecurity returns the responder's transport.tcp.security from a verdict of
// TCPSecurityVerdict. ok is false for every other verdict.
func (v TCPVerdict) OtherSecurity() (responder TCPSecurity, ok bool) {
	return TCPSecurity(v - TCPSecurityDiffers), v >= TCPSecurityDiffers && v < tcpVerdictEnd
}

// PutTCPVerdict writes the responder's last message, the verdict v with the mac m, to b, which has
// TCPVerdictSize bytes.
func PutTCPVerdict(b []byte, v TCPVerdict, m *TCPMac) {
	_ = b[TCPVerdictSize-1]
	binary.LittleEndian.PutUint64(b, uint64(v))
	copy(b[8:], m[:])
}

// ParseTCPVerdict reads the responder's last message from b: it returns the verdict, and sets m to
// the mac. ok is false if b is not such a message. The caller must check the mac, which
// TCPSession.Answer computes.
func ParseTCPVerdict(b []byte, m *TCPMac) (v TCPVerdict, ok bool) {
	if len(b) != TCPVerdictSize {
		return 0, false
	}
	w := binary.LittleEndian.Uint64(b)
	if w == 0 || w >= uint64(tcpVerdictEnd) {
		return 0, false
	}
	copy(m[:], b[8:])
	return TCPVerdict(w), true
}

// TCPSession holds the values from which the macs and the keys of a connection follow. Both ends of
// the connection must have the same values.
type TCPSession struct {
	Secret               [32]byte // secret of the job
	JobID                string
	Size                 uint32      // number of ranks of the job
	From, To             uint32      // world ranks of the initiator and of the responder
	Initiator, Responder TCPNonce    // nonces of the two sides
	Security             TCPSecurity // the initiator's transport.tcp.security
}

// HelloMac returns the mac of the hello. It does not depend on the responder's nonce, which the
// initiator does not know yet.
func (s *TCPSession) HelloMac() TCPMac {
	i := *s
	i.Responder = TCPNonce{}
	return i.mac("weft tcp hello", 0)
}

// Hello returns the initiator's first message, with its mac.
func (s *TCPSession) Hello() TCPHello {
	return TCPHello{From: s.From, To: s.To, Nonce: s.Initiator, Security: s.Security, Mac: s.HelloMac()}
}

// AcceptHello copies the ranks, the nonce and the security of a hello into the responder's session.
// It returns false if the hello's mac is wrong: the process that made the hello does not know the
// secret, or belongs to another job.
func (s *TCPSession) AcceptHello(h *TCPHello) bool {
	s.From, s.To, s.Initiator, s.Security = h.From, h.To, h.Nonce, h.Security
	want := s.HelloMac()
	return want.Equal(&h.Mac)
}

// Proof returns the initiator's second message: a mac that covers both nonces.
func (s *TCPSession) Proof() TCPMac { return s.mac("weft tcp initiator", 0) }

// Answer returns the responder's mac for the verdict v.
func (s *TCPSession) Answer(v TCPVerdict) TCPMac { return s.mac("weft tcp responder", v) }

// mac returns the HMAC-SHA256, under the secret of the job, of the label role, the verdict v, and
// the other values of the session.
func (s *TCPSession) mac(role string, v TCPVerdict) TCPMac {
	h := hmac.New(sha256.New, s.Secret[:])
	b := make([]byte, 0, 256)
	b = append(b, byte(len(role)))
	b = append(b, role...)
	b = append(b, byte(v), byte(s.Security))
	b = append(b, s.Initiator[:]...)
	b = append(b, s.Responder[:]...)
	b = binary.LittleEndian.AppendUint32(b, s.From)
	b = binary.LittleEndian.AppendUint32(b, s.To)
	b = binary.LittleEndian.AppendUint32(b, s.Size)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s.JobID)))
	b = append(b, s.JobID...)
	h.Write(b)
	var m TCPMac
	h.Sum(m[:0])
	return m
}

// Equal reports whether two macs are equal. It compares in constant time.
func (m *TCPMac) Equal(o *TCPMac) bool { return hmac.Equal(m[:], o[:]) }
