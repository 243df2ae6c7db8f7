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
//	0              8        12       16
//	│ token        │ source │ kind   │ header and data
//
// The token is what only members of the job can know: an HMAC under the job's
// secret of the job's id, the source and the destination. It keeps strangers
// and other jobs out, as long as the fabric lets nobody listen.
const frameSize = 16

// kind says what a message is.
type kind uint32

const (
	kindData kind = iota + 1 // of the user
	kindBye                  // the source leaves and sends nothing more
	kindAck                  // the bye has been read, and all before it
)

type frame struct {
	token  uint64
	source uint32
	kind   kind
}

func (f frame) put(b []byte) {
	_ = b[frameSize-1]
	binary.LittleEndian.PutUint64(b, f.token)
	binary.LittleEndian.PutUint32(b[8:], f.source)
	binary.LittleEndian.PutUint32(b[12:], uint32(f.kind))
}

// parseFrame splits a message; false: it is too short to be one.
func parseFrame(b []byte) (f frame, rest []byte, ok bool) {
	if len(b) < frameSize {
		return frame{}, nil, false
	}
	return frame{
		token:  binary.LittleEndian.Uint64(b),
		source: binary.LittleEndian.Uint32(b[8:]),
		kind:   kind(binary.LittleEndian.Uint32(b[12:])),
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
