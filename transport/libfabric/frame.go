//go:build libfabric

package libfabric

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"

	"github.com/weft-hpc/weft/transport"
)

// A message on the fabric begins with a frame of frameSize bytes, little-endian:
//
//	0              8        12     13      16
//	│ token        │ source │ kind │ number │ header and data
//
// The number counts the messages from source to destination, modulo 2^24. With it the receiver
// restores their order, because a provider may complete receives out of order: for example those of
// large messages that arrive in parts, or, with udp;ofi_rxd, those of messages that arrive while a
// read is in flight.
//
// The token proves that the sender is a member of the job: it consists of 8 bytes of an HMAC of the
// job's id, the source and the destination under the job's secret. It protects against messages of
// other jobs and other users, unless they can read the traffic of the fabric.
const (
	frameSize = 16
	frameKind = 12 // offset of the kind
)

// kind is the type of a message.
type kind uint8

const (
	kindData     kind = iota + 1 // a message of Send
	kindClose                    // the last message of a source in Shutdown, except acknowledgments
	kindCloseAck                 // acknowledges the close message and all messages before it
)

type frame struct {
	token  uint64
	source uint32
	kind   kind
	number uint32 // number of the message, modulo 2^numberBits
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

// parseFrame splits the message b into its frame and the rest. ok is false if b is shorter than a
// frame.
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

// token returns the token of messages from rank from to rank to. It is never 0.
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
