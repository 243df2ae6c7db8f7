package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Profiles: the launcher gives a rank an empty file for each kind of profile that the user wants, and
// reads the file after the rank has ended. The rank appends frames:
//
//	0        4      5
//	┌────────┬──────┬──────┐
//	│ length │ kind │ body │   length: bytes of the body, little-endian
//	└────────┴──────┴──────┘
//
// A process writes ProfileBegun in Init, and then in Finalize either ProfileData or ProfileFailed. A
// rank may be several processes of weft, one after the other; each appends its own frames. If the last
// frame is ProfileBegun, or is cut, the rank has ended without Finalize. A profile that the launcher asks for while
// the rank runs (InspectProfile) has the same frames.
const (
	// The process profiles from now on. The body is empty.
	ProfileBegun = 1
	// The body is a profile in the format of pprof, compressed by gzip.
	ProfileData = 2
	// There is no profile. The body is the reason, as text.
	ProfileFailed = 3

	ProfileHead = 5 // bytes of a frame before its body
	// The maximum length of a body in bytes.
	ProfileMax = 16 << 20
)

// ProfileKinds are the names of the profiles that a rank can make, and of their files.
var ProfileKinds = []string{"cpu", "heap", "allocs", "block", "mutex", "goroutine"}

// ErrProfile is the error of bytes that are no frames of profiles.
var ErrProfile = errors.New("not frames of a profile")

// AppendProfile appends a frame to dst.
func AppendProfile(dst []byte, kind byte, body []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(body)))
	return append(append(dst, kind), body...)
}

// ReadProfile reads a frame. The error is io.EOF if r ends before the frame, and
// io.ErrUnexpectedEOF if r ends within it. It wraps ErrProfile if the bytes are not a frame.
// ReadProfile returns other errors of r unchanged.
func ReadProfile(r io.Reader) (kind byte, body []byte, err error) {
	var head [ProfileHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	kind = head[4]
	n := binary.LittleEndian.Uint32(head[:])
	if kind < ProfileBegun || kind > ProfileFailed || n > ProfileMax {
		return 0, nil, fmt.Errorf("%w: kind %d with %d bytes", ErrProfile, kind, n)
	}
	body, err = io.ReadAll(io.LimitReader(r, int64(n))) // n may be wrong, so the buffer grows as bytes come
	if err == nil && len(body) < int(n) {
		err = io.ErrUnexpectedEOF
	}
	return kind, body, err
}
