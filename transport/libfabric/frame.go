//go:build libfabric

package libfabric

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"

	"github.com/weft-hpc/weft/transport"
)

// A message begins with a frame, little-endian:
//
//	0              8        12     13      16
//	│ token        │ source │ kind │ number │ header and data
//
// The number counts the messages from source to destination, round and round.
// A provider may complete receives in another order than it promises for
// messages: large ones that come in pieces, or, over udp;ofi_rxd, those next to a
// read.
//
// The token is what only members of the job can know: an HMAC under the job's
// secret of the job's id, the source and the destination. It keeps strangers
// and other jobs out, as long as the fabric lets nobody listen.
const frameSize = 16

// kind says what a message is.
type kind uint8

const (
	kindData kind = iota + 1 // of the user
	kindBye                  // the source leaves and sends nothing more
	kindAck                  // the bye has been read, and all before it
)

type frame struct {
	token  uint64
	source uint32
	kind   kind
	number uint32 // its lower numberBits
}

const (
	numberBits = 24
	numberMask = 1<<numberBits - 1
)

func (f frame) put(b []byte) {
	_ = b[frameSize-1]
	binary.LittleEndian.PutUint64(b, f.token)
	binary.LittleEndian.PutUint32(b[8:], f.source)
	binary.LittleEndian.PutUint32(b[12:], uint32(f.kind)|f.number<<8)
}

// parseFrame splits a message; false: it is too short to be one.
func parseFrame(b []byte) (f frame, rest []byte, ok bool) {
	if len(b) < frameSize {
		return frame{}, nil, false
	}
	last := binary.LittleEndian.Uint32(b[12:])
	return frame{
		token:  binary.LittleEndian.Uint64(b),
		source: binary.LittleEndian.Uint32(b[8:]),
		kind:   kind(last),
		number: last >> 8,
	}, b[frameSize:], true
}

// token is what messages from one rank to another carry. It is never 0.
func token(secret [32]byte, jobID string, from, to transport.Addr) uint64 {
	h := hmac.New(sha256.New, secret[:])
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], uint64(from))
	binary.LittleEndian.PutUint64(b[8:], uint64(to))
	_, _ = h.Write([]byte("weft libfabric message\x00")) // a hash never fails
	_, _ = h.Write(b[:])
	_, _ = h.Write([]byte(jobID))
	return binary.LittleEndian.Uint64(h.Sum(nil)) | 1
}
