package wire

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// TCPSecurity says how the bytes of a connection are protected after its handshake. The headers of
// frames are always authenticated.
type TCPSecurity uint8

// The values of the parameter transport.tcp.security.
const (
	TCPPlain     TCPSecurity = iota // "none": only the headers of frames are authenticated
	TCPIntegrity                    // "integrity": all bytes are authenticated
	TCPEncrypt                      // "encrypt": all bytes are authenticated and encrypted
	tcpSecurityEnd
)

var tcpSecurityNames = [tcpSecurityEnd]string{"none", "integrity", "encrypt"}

// String returns s as a value of the parameter transport.tcp.security.
func (s TCPSecurity) String() string {
	if s < tcpSecurityEnd {
		return tcpSecurityNames[s]
	}
	return fmt.Sprintf("security %d", uint8(s))
}

// ParseTCPSecurity reads a value of the parameter transport.tcp.security.
func ParseTCPSecurity(text string) (TCPSecurity, error) {
	for i, name := range tcpSecurityNames {
		if name == text {
			return TCPSecurity(i), nil
		}
	}
	return 0, fmt.Errorf("%q is none of %v", text, tcpSecurityNames)
}

// TCPProtection holds the checks and ciphers of one side of a connection.
type TCPProtection struct {
	// SignFrames is for frames sent, CheckFrames for frames received. They have no key if Seal and
	// Open are set, because records protect the frames.
	SignFrames, CheckFrames *TCPCheck
	// Seal is for records sent, Open for records received. nil: the connection has no records.
	Seal, Open *TCPSealer
}

// Protection derives the keys of the connection from the values of the session and from security.
// Each connection and each direction has keys of its own. initiator says whether the caller is the
// initiator of the connection.
func (s *TCPSession) Protection(security TCPSecurity, initiator bool) (*TCPProtection, error) {
	salt := append(append(make([]byte, 0, 64), s.Initiator[:]...), s.Responder[:]...)
	prk, err := hkdf.Extract(sha256.New, s.Secret[:], salt)
	if err != nil {
		return nil, err
	}
	send, receive := "weft tcp from responder", "weft tcp from initiator"
	if initiator {
		send, receive = receive, send
	}
	p := &TCPProtection{}
	if p.SignFrames, p.Seal, err = s.direction(prk, security, send); err != nil {
		return nil, err
	}
	p.CheckFrames, p.Open, err = s.direction(prk, security, receive)
	return p, err
}

// direction derives the check and the sealer of one direction, which label names, from the
// pseudorandom key prk of the connection. The sealer is nil if security is TCPPlain.
func (s *TCPSession) direction(prk []byte, security TCPSecurity, label string) (*TCPCheck, *TCPSealer, error) {
	info := binary.LittleEndian.AppendUint32([]byte(label), s.From)
	info = binary.LittleEndian.AppendUint32(info, s.To)
	info = binary.LittleEndian.AppendUint32(info, s.Size)
	info = append(info, byte(security))
	info = append(info, s.JobID...)
	secret, err := hkdf.Expand(sha256.New, prk, string(info), tcpSecret)
	if err != nil {
		return nil, nil, err
	}
	if security != TCPPlain {
		sealer, err := newTCPSealer(secret, security == TCPEncrypt)
		return &TCPCheck{}, sealer, err
	}
	key, err := hkdf.Expand(sha256.New, secret, "weft tcp frame check", TCPCheckKeySize)
	if err != nil {
		return nil, nil, err
	}
	check, err := NewTCPCheck(key)
	return check, nil, err
}
