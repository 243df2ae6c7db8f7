package wire

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// With transport.tcp.security = "integrity" or "encrypt" the stream of frames is cut into
// records, regardless of where frames begin:
//
//	0      1      4        8        16             16+length
//	┌──────┬──────┬────────┬────────┬──────────────┬──────────┐
//	│ type │ zero │ length │ check  │ length bytes │ tag      │
//	│      │      │        │ of 0–7 │              │ 16 bytes │
//	└──────┴──────┴────────┴────────┴──────────────┴──────────┘
//
// The check is that of [TCPCheck], in class TCPRecords. The cipher is AES-128-GCM, which
// also makes the tag. With "encrypt" the bytes are the ciphertext. With "integrity" they
// are the bytes of the stream, as additional data of an empty plaintext (GMAC). The nonce
// is the record's number, which is not on the wire.
//
// After every tcpRekey records both processes change the key, without a message:
//
//	secret ── HKDF ──► next secret ── HKDF ──► …
//	   └───── HKDF ──► key of tcpRekey records
//
// One key seals at most 2³⁶ bytes (2³² blocks), so the advantage of a distinguisher is
// below 2⁻⁶³; RFC 8446 permits 2⁻⁵⁷ (section 5.5).

// Sizes of records.
const (
	TCPRecordHead = 16
	TCPRecordTag  = 16
	TCPMaxRecord  = 64 << 10 // bytes of the stream in a record
)

const (
	tcpRecord = 0x52    // type: differs from the types of all frames
	tcpRekey  = 1 << 20 // records
	tcpNonce  = 4       // zeros at the beginning of a nonce
	tcpKeyLen = 128 / 8 // bytes of an AES key
	tcpSecret = 32      // bytes of a secret
)

// ErrTCPRecord reports that bytes are not the record that the other side has sealed.
var ErrTCPRecord = errors.New("record failed its check")

// TCPSealer seals or opens the records of one direction of a connection. It is not safe
// for concurrent use.
type TCPSealer struct {
	check   *TCPCheck
	encrypt bool
	secret  []byte
	rekey   uint64 // records per key
	n       uint64 // records sealed or opened
	aead    cipher.AEAD
	nonce   [12]byte
	tag     [TCPRecordTag]byte
}

// newTCPSealer returns the sealer of the direction that secret belongs to.
func newTCPSealer(secret []byte, encrypt bool) (*TCPSealer, error) {
	s := &TCPSealer{encrypt: encrypt, rekey: tcpRekey}
	key, err := hkdf.Expand(sha256.New, secret, "weft tcp record check", TCPCheckKeySize)
	if err != nil {
		return nil, err
	}
	if s.check, err = NewTCPCheck(key); err != nil {
		return nil, err
	}
	if s.secret, err = hkdf.Expand(sha256.New, secret, "weft tcp record secret", tcpSecret); err != nil {
		return nil, err
	}
	return s, s.nextKey()
}

// nextKey derives the key and the next secret from the secret.
func (s *TCPSealer) nextKey() error {
	key, err := hkdf.Expand(sha256.New, s.secret, "weft tcp record key", tcpKeyLen)
	if err != nil {
		return err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return err
	}
	if s.aead, err = cipher.NewGCM(block); err != nil {
		return err
	}
	s.secret, err = hkdf.Expand(sha256.New, s.secret, "weft tcp next record secret", tcpSecret)
	return err
}

// next prepares the nonce of the next record and counts it.
func (s *TCPSealer) next() error {
	if s.n > 0 && s.n%s.rekey == 0 {
		if err := s.nextKey(); err != nil {
			return err
		}
	}
	binary.BigEndian.PutUint64(s.nonce[tcpNonce:], s.n)
	s.n++
	return nil
}

// Seal writes a record of src to b and returns its size. b has room for
// TCPRecordHead+len(src)+TCPRecordTag bytes. src has at most TCPMaxRecord bytes. src does
// not overlap with b, or it is b[TCPRecordHead:TCPRecordHead+len(src)].
//
// Hot path: no allocation, except once in tcpRekey records; no system call.
func (s *TCPSealer) Seal(b, src []byte) (int, error) {
	if err := s.next(); err != nil {
		return 0, err
	}
	binary.LittleEndian.PutUint64(b, tcpRecord|uint64(len(src))<<32)
	s.check.SignWord(b, TCPRecords)
	body := b[TCPRecordHead : TCPRecordHead+len(src)]
	if s.encrypt {
		s.aead.Seal(body[:0], s.nonce[:], src, nil)
	} else {
		copy(body, src)
		s.aead.Seal(body[len(src):], s.nonce[:], nil, body)
	}
	return TCPRecordHead + len(src) + TCPRecordTag, nil
}

// Size returns the size of the record at the front of b, with its head and tag, or 0 if b
// is too short. The caller may call Size several times before Open.
//
// Hot path: no allocation, no system call.
func (s *TCPSealer) Size(b []byte) (int, error) {
	if len(b) < TCPRecordHead {
		return 0, nil
	}
	if !s.check.WordHolds(b, TCPRecords) {
		return 0, fmt.Errorf("%w: the head of record %d", ErrTCPRecord, s.n)
	}
	w := binary.LittleEndian.Uint64(b)
	if w&0xffffffff != tcpRecord || w>>32 > TCPMaxRecord {
		return 0, fmt.Errorf("%w: %#x is not the head of a record", ErrTCPFrame, w)
	}
	return TCPRecordHead + int(w>>32) + TCPRecordTag, nil
}

// Open writes the bytes of rec to dst. dst has exactly their length and does not overlap
// with rec. rec is a whole record: Size has returned its length. After an error dst holds
// nothing of rec.
//
// Hot path: no allocation, except once in tcpRekey records; no system call.
func (s *TCPSealer) Open(dst, rec []byte) error {
	s.check.Skip(TCPRecords)
	if err := s.next(); err != nil {
		return err
	}
	var err error
	if s.encrypt {
		_, err = s.aead.Open(dst[:0], s.nonce[:], rec[TCPRecordHead:], nil)
	} else {
		body := rec[TCPRecordHead : len(rec)-TCPRecordTag]
		if _, err = s.aead.Open(s.tag[:0], s.nonce[:], rec[len(rec)-TCPRecordTag:], body); err == nil {
			copy(dst, body)
		}
	}
	if err != nil {
		return fmt.Errorf("%w: record %d: %w", ErrTCPRecord, s.n-1, err)
	}
	return nil
}
