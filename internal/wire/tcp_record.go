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

// If transport.tcp.security is "integrity" or "encrypt", the stream of frames is cut into records.
// A record may begin and end in the middle of a frame:
//
//	0      1      4        8        16        16+length
//	┌──────┬──────┬────────┬────────┬─────────┬──────────┐
//	│ type │ zero │ length │ check  │ payload │ tag      │
//	│      │      │        │ of 0–7 │         │ 16 bytes │
//	└──────┴──────┴────────┴────────┴─────────┴──────────┘
//
// The length is that of the payload in bytes. The check is the first check of a [TCPCheck], in the
// class TCPRecords. The cipher is AES-128-GCM, which also makes the tag. With "encrypt" the payload
// is the ciphertext of a part of the stream. With "integrity" the payload is a part of the stream
// itself, as the additional data of an empty plaintext (GMAC). The nonce is the number of the
// record, which is not transmitted: both sides count.
//
// After every tcpRekey records both sides change the key. They need no message for this, because
// they derive the keys from one secret:
//
//	secret ── HKDF ──► next secret ── HKDF ──► …
//	   └───── HKDF ──► key of tcpRekey records
//
// One key seals at most 2³⁶ bytes (2³² blocks), so the advantage of a process that tries to
// distinguish the ciphertext from random bytes is below 2⁻⁶³. RFC 8446 permits 2⁻⁵⁷ (section 5.5).

// Sizes of records in bytes.
const (
	TCPRecordHead = 16       // size of the head: type, zero, length and check
	TCPRecordTag  = 16       // size of the tag of AES-GCM
	TCPMaxRecord  = 64 << 10 // maximum size of the payload of a record
)

const (
	tcpRecord = 0x52    // type of a record, in the first byte; it differs from the types of all frames
	tcpRekey  = 1 << 20 // number of records for which one key is used
	tcpNonce  = 4       // number of zeros at the beginning of a nonce
	tcpKeyLen = 128 / 8 // size of an AES key in bytes
	tcpSecret = 32      // size of a secret in bytes
)

// ErrTCPRecord is the error of TCPSealer.Size and TCPSealer.Open for bytes that are not the record
// that the other side has sealed.
var ErrTCPRecord = errors.New("record failed its check")

// TCPSealer seals the records of one direction of a connection on the side that sends, and opens
// them on the side that receives. It is not safe for concurrent use.
type TCPSealer struct {
	check   *TCPCheck          // for the heads of records
	encrypt bool               // true: transport.tcp.security is "encrypt"; false: "integrity"
	secret  []byte             // secret from which the next key follows
	rekey   uint64             // number of records for which one key is used; tcpRekey, except in tests
	n       uint64             // number of records that were sealed or opened
	aead    cipher.AEAD        // AES-GCM with the current key
	nonce   [12]byte           // buffer for the nonce of the current record
	tag     [TCPRecordTag]byte // buffer that Open passes to aead, so that aead does not allocate
}

// newTCPSealer returns the sealer of one direction of a connection, whose keys follow from secret.
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

// nextKey derives the next key and the next secret from the current secret.
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

// next prepares the nonce, and if necessary the key, for the next record, and counts the record.
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

// Seal writes a record with the bytes src of the stream to b, and returns the size of the record.
// src has at most TCPMaxRecord bytes. b has room for TCPRecordHead+len(src)+TCPRecordTag bytes. src
// does not overlap with b, unless src is b[TCPRecordHead:TCPRecordHead+len(src)].
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

// Size returns the size of the record at the beginning of b, with its head and its tag; 0 without
// an error: b does not hold the whole head yet. Size verifies the head. The caller may call Size
// several times for a record, before Open.
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

// Open verifies the record rec and writes the bytes of the stream that it holds to dst. rec is one
// whole record, of the length that Size has returned. dst has the length of the payload, and does
// not overlap with rec. If Open returns an error, dst holds no bytes of the record.
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
