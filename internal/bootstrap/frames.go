package bootstrap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// In a rendezvous (rendezvous.go), rank 0 and another rank exchange frames, after each has proved to
// the other that it knows the secret (wire.TCPSession):
//
//	0       4      5
//	┌───────┬──────┬─────────┐
//	│ bytes │ kind │ body    │     bytes: number of bytes of kind and body, little endian
//	└───────┴──────┴─────────┘
//
//	rank ── fence: pairs ──► 0    the rank has entered the fence, and has put these pairs
//	rank ◄── pairs ───────── 0    all ranks have entered, and have put these pairs
//	rank ◄── fail: text ──── 0    this fence and all later ones fail, because of text
//	rank ◄── gone: text ──── 0    the same; the text says which rank has gone
//	rank ── bye ───────────► 0    the rank ends in good order
//	rank ◄─ abort: code, text ─►  all ranks end at once
//
// A pair is a key and a value, each after its length in two bytes, little endian.
const (
	frameFence byte = iota + 1
	framePairs
	frameFail
	frameGone
	frameBye
	frameAbort
	frameEnd
)

const (
	frameHead = 5 // bytes before the body
	// maxPuts is the maximum number of bytes of the pairs that a rank puts before a fence.
	maxPuts = 64 << 10
	// maxText is the maximum number of bytes of the text of an abort or a failure.
	maxText = 1024
)

var errFrame = errors.New("not a frame of a rendezvous")

// newFrame returns a frame whose body is the concatenation of bodies.
func newFrame(kind byte, bodies ...[]byte) []byte {
	n := 1
	for _, b := range bodies {
		n += len(b)
	}
	frame := append(binary.LittleEndian.AppendUint32(make([]byte, 0, 4+n), uint32(n)), kind)
	for _, b := range bodies {
		frame = append(frame, b...)
	}
	return frame
}

// readFrame reads a frame whose body has at most limit bytes. It allocates memory only as bytes
// arrive, not for the length that the sender announces.
func readFrame(r io.Reader, limit int) (kind byte, body []byte, err error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err // io.EOF: the stream ends between two frames
	}
	n := int64(binary.LittleEndian.Uint32(head[:])) - 1
	kind = head[4]
	if kind == 0 || kind >= frameEnd || n < 0 || n > int64(limit) {
		return 0, nil, errFrame
	}
	for have := int64(0); have < n; have = int64(len(body)) {
		body = append(body, make([]byte, min(n-have, max(have, 4<<10)))...)
		if _, err := io.ReadFull(r, body[have:]); err != nil {
			return 0, nil, fmt.Errorf("within a frame: %w", noEOF(err))
		}
	}
	return kind, body, nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// appendPair appends a key and its value. checkKV has accepted both.
func appendPair(dst []byte, key, value string) []byte {
	for _, s := range []string{key, value} {
		dst = append(binary.LittleEndian.AppendUint16(dst, uint16(len(s))), s...)
	}
	return dst
}

// eachPair calls f for each pair in b. If b is not a sequence of pairs, eachPair returns an error,
// after it has called f for the pairs before the invalid bytes.
func eachPair(b []byte, f func(key, value string)) error {
	next := func() (string, bool) {
		if len(b) < 2 {
			return "", false
		}
		n := int(binary.LittleEndian.Uint16(b))
		if len(b) < 2+n {
			return "", false
		}
		s := string(b[2 : 2+n])
		b = b[2+n:]
		return s, true
	}
	for len(b) > 0 {
		key, ok1 := next()
		value, ok2 := next()
		if !ok1 || !ok2 {
			return errFrame
		}
		if err := checkKV(key, value); err != nil {
			return fmt.Errorf("%w: %w", errFrame, err)
		}
		f(key, value)
	}
	return nil
}

// abortBody returns the body of an abort frame, which parseAbort reads: the code in one byte, then
// the text.
func abortBody(code int, text string) []byte {
	return append([]byte{byte(code)}, text[:min(len(text), maxText)]...)
}

func parseAbort(b []byte) (code int, text string, err error) {
	if len(b) < 1 || len(b) > 1+maxText {
		return 0, "", errFrame
	}
	return int(b[0]), printable(b[1:]), nil
}

// printable returns bytes from another process as a text without control characters.
func printable(b []byte) string {
	text := []rune(string(b[:min(len(b), maxText)]))
	for i, r := range text {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			text[i] = ' '
		}
	}
	return string(text)
}
