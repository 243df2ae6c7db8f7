package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
)

// A tcp connection begins with four messages of fixed size. A process reveals nothing to a
// process that does not know the secret: the initiator proves itself first, and the
// responder closes the connection without an answer if a mac is wrong. The mac of the
// hello lets the responder drop a stranger at its first message. A process may repeat a
// hello that it has seen on the network. The responder drops a hello with a nonce that it
// has already seen, so the repeated one does not take the initiator's place. Only the
// proof shows that the initiator knows the secret now, because it covers the responder's
// nonce too.
//
//	initiator                                         responder
//	   │ hello: magic, from, to, nonce, security, mac ────► │
//	   │ ◄────────────────────────── challenge: magic, nonce
//	   │ proof: mac(initiator, both nonces, …) ───────────► │
//	   │ ◄────────── verdict: code, mac(responder, …, code)
//
// The macs are HMAC-SHA256 under the job's secret over a label for the message, both
// nonces (the responder's is zero in the hello), both ranks, the job's size and its id,
// and the initiator's transport.tcp.security. If the responder's value differs, the
// verdict's code says so.

// TCPNonce is a number used once.
type TCPNonce [32]byte

// TCPMac proves the knowledge of the job's secret.
type TCPMac [sha256.Size]byte

// Sizes of the handshake's messages.
const (
	TCPHelloSize     = 56 + sha256.Size
	TCPChallengeSize = 40
	TCPProofSize     = sha256.Size
	TCPVerdictSize   = 8 + sha256.Size
)

// tcpMagic opens hello and challenge; its last byte is the version.
const tcpMagic = "weft-tc\x03"

// TCPHello is the initiator's first message.
type TCPHello struct {
	From, To uint32
	Nonce    TCPNonce
	Security TCPSecurity
	Mac      TCPMac // TCPSession.HelloMac
}

// Put writes the message to b, which has TCPHelloSize bytes.
func (h *TCPHello) Put(b []byte) {
	_ = b[TCPHelloSize-1]
	copy(b, tcpMagic)
	binary.LittleEndian.PutUint32(b[8:], h.From)
	binary.LittleEndian.PutUint32(b[12:], h.To)
	copy(b[16:], h.Nonce[:])
	binary.LittleEndian.PutUint64(b[48:], uint64(h.Security))
	copy(b[56:], h.Mac[:])
}

// Parse reads the message. It returns false for bytes that Put has not written.
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

// PutTCPChallenge writes the responder's first message to b, which has TCPChallengeSize bytes.
func PutTCPChallenge(b []byte, n *TCPNonce) {
	_ = b[TCPChallengeSize-1]
	copy(b, tcpMagic)
	copy(b[8:], n[:])
}

// ParseTCPChallenge reads the responder's first message into n. It returns false for other bytes.
func ParseTCPChallenge(b []byte, n *TCPNonce) bool {
	if len(b) != TCPChallengeSize || string(b[:8]) != tcpMagic {
		return false
	}
	copy(n[:], b[8:])
	return true
}

// TCPVerdict is the responder's decision on a connection.
type TCPVerdict uint8

// The verdicts.
const (
	TCPWelcome         TCPVerdict = iota + 1 // the connection is established
	TCPBusy                                  // there is, or will be, another connection between the two ranks
	TCPLeft                                  // the responder is leaving the job
	TCPDead                                  // the responder has marked the initiator as failed
	TCPSecurityDiffers                       // transport.tcp.security differs; the responder's value is added to this code
	tcpVerdictEnd      = TCPSecurityDiffers + TCPVerdict(tcpSecurityEnd)
)

// TCPSecurityVerdict returns the verdict of a responder if the initiator's
// transport.tcp.security differs from its own.
func TCPSecurityVerdict(responder TCPSecurity) TCPVerdict {
	return TCPSecurityDiffers + TCPVerdict(responder)
}

// OtherSecurity returns the responder's transport.tcp.security. ok is false if the verdict does
// not say that the initiator's value differs.
func (v TCPVerdict) OtherSecurity() (responder TCPSecurity, ok bool) {
	return TCPSecurity(v - TCPSecurityDiffers), v >= TCPSecurityDiffers && v < tcpVerdictEnd
}

// PutTCPVerdict writes the responder's last message to b, which has TCPVerdictSize bytes.
func PutTCPVerdict(b []byte, v TCPVerdict, m *TCPMac) {
	_ = b[TCPVerdictSize-1]
	binary.LittleEndian.PutUint64(b, uint64(v))
	copy(b[8:], m[:])
}

// ParseTCPVerdict reads the responder's last message. ok is false for other bytes. The caller
// must check the mac.
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

// TCPSession holds everything that the two ends of a connection agree on.
type TCPSession struct {
	Secret               [32]byte
	JobID                string
	Size                 uint32
	From, To             uint32
	Initiator, Responder TCPNonce
	Security             TCPSecurity // the initiator's
}

// HelloMac returns the mac of the hello. It does not depend on the responder's nonce.
func (s *TCPSession) HelloMac() TCPMac {
	i := *s
	i.Responder = TCPNonce{}
	return i.mac("weft tcp hello", 0)
}

// Hello returns the initiator's first message.
func (s *TCPSession) Hello() TCPHello {
	return TCPHello{From: s.From, To: s.To, Nonce: s.Initiator, Security: s.Security, Mac: s.HelloMac()}
}

// AcceptHello copies the ranks, the nonce and the security of a hello into the responder's
// session. It returns false if the hello does not prove that the process that made it
// knows the secret.
func (s *TCPSession) AcceptHello(h *TCPHello) bool {
	s.From, s.To, s.Initiator, s.Security = h.From, h.To, h.Nonce, h.Security
	want := s.HelloMac()
	return want.Equal(&h.Mac)
}

// Proof returns the mac of the initiator's proof.
func (s *TCPSession) Proof() TCPMac { return s.mac("weft tcp initiator", 0) }

// Answer returns the responder's mac for a verdict.
func (s *TCPSession) Answer(v TCPVerdict) TCPMac { return s.mac("weft tcp responder", v) }

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
