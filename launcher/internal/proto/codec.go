package proto

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// On a stream, each message is a frame:
//
//	0         4      5
//	┌─────────┬──────┬──────────────────┐
//	│ length  │ kind │ body             │   length: bytes of kind and body, as u32, little-endian
//	└─────────┴──────┴──────────────────┘   kind: a Kind
//
// Beat and Bye have no body. The messages that may have many bytes of user data have a
// binary body, described below, in which integers are little-endian. The body of every other
// message is JSON; text.go describes the strings in it.
//
//	Output    index u32 │ group u32 │ stream i32 │ flags u8: 1 stderr, 2 mid │ data
//	Stdin     data
//	FilePart  group u32 │ flags u8: 1 last │ hash, 64 digits │ data
//	Stacks    n u32 │ rank u32 │ data
//	Part      index u32 │ rank u32 │ file u32 │ flags u8: 1 failed │ data
const (
	headBytes = 5 // bytes of length and kind, before the body
	// MaxBody is the largest length of a body, in bytes. It bounds the memory that a frame can take.
	MaxBody = 256 << 20

	hashDigits = 64 // hexadecimal digits of a SHA-256
	// The next four are the numbers of bytes of the body before the data: in Output, FilePart, Stacks
	// and Part.
	outputHead = 13
	fileHead   = 5 + hashDigits
	stacksHead = 8
	partHead   = 13
)

// ErrFrame is the error for bytes that are not a valid frame. Read and Parse return errors that
// wrap it.
var ErrFrame = errors.New("not a frame of gorun")

func (Beat) kind() Kind         { return KindBeat }
func (Launch) kind() Kind       { return KindLaunch }
func (Up) kind() Kind           { return KindUp }
func (Prepare) kind() Kind      { return KindPrepare }
func (Prepared) kind() Kind     { return KindPrepared }
func (FilePart) kind() Kind     { return KindFile }
func (Staged) kind() Kind       { return KindStaged }
func (Start) kind() Kind        { return KindStart }
func (Started) kind() Kind      { return KindStarted }
func (Fence) kind() Kind        { return KindFence }
func (Release) kind() Kind      { return KindRelease }
func (State) kind() Kind        { return KindState }
func (Watch) kind() Kind        { return KindWatch }
func (Request) kind() Kind      { return KindRequest }
func (Reply) kind() Kind        { return KindReply }
func (Output) kind() Kind       { return KindOutput }
func (Credit) kind() Kind       { return KindCredit }
func (OutputClosed) kind() Kind { return KindOutputClosed }
func (Stdin) kind() Kind        { return KindStdin }
func (StdinCredit) kind() Kind  { return KindStdinCredit }
func (Signal) kind() Kind       { return KindSignal }
func (RanksFailed) kind() Kind  { return KindRanksFailed }
func (Aborted) kind() Kind      { return KindAborted }
func (Exited) kind() Kind       { return KindExited }
func (Lost) kind() Kind         { return KindLost }
func (Log) kind() Kind          { return KindLog }
func (End) kind() Kind          { return KindEnd }
func (Ended) kind() Kind        { return KindEnded }
func (Bye) kind() Kind          { return KindBye }
func (FileCredit) kind() Kind   { return KindFileCredit }
func (Inspect) kind() Kind      { return KindInspect }
func (Stacks) kind() Kind       { return KindStacks }
func (Inspected) kind() Kind    { return KindInspected }
func (Spawn) kind() Kind        { return KindSpawn }
func (Measure) kind() Kind      { return KindMeasure }
func (Measured) kind() Kind     { return KindMeasured }
func (Dismiss) kind() Kind      { return KindDismiss }
func (Fetch) kind() Kind        { return KindFetch }
func (Part) kind() Kind         { return KindPart }
func (AskTime) kind() Kind      { return KindAskTime }
func (Time) kind() Kind         { return KindTime }
func (Capture) kind() Kind      { return KindCapture }
func (Captured) kind() Kind     { return KindCaptured }

// Append appends the frame of a message to dst and returns the result. If the message is longer
// than MaxBody allows, or is a FilePart whose Hash has the wrong length, Append returns dst
// unchanged and an error.
func Append(dst []byte, m Message) ([]byte, error) {
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0, byte(m.kind()))
	switch m := m.(type) {
	case Beat, Bye:
	case Output:
		var flags byte
		if m.Stderr {
			flags |= 1
		}
		if m.Mid {
			flags |= 2
		}
		dst = binary.LittleEndian.AppendUint32(dst, uint32(m.Index))
		dst = binary.LittleEndian.AppendUint32(dst, uint32(m.Group))
		dst = binary.LittleEndian.AppendUint32(dst, uint32(int32(m.Stream)))
		dst = append(append(dst, flags), m.Data...)
	case Stdin:
		dst = append(dst, m.Data...)
	case Stacks:
		dst = binary.LittleEndian.AppendUint32(dst, uint32(m.N))
		dst = binary.LittleEndian.AppendUint32(dst, uint32(m.Rank))
		dst = append(dst, m.Data...)
	case Part:
		var flags byte
		if m.Failed {
			flags = 1
		}
		dst = binary.LittleEndian.AppendUint32(dst, uint32(m.Index))
		dst = binary.LittleEndian.AppendUint32(dst, uint32(m.Rank))
		dst = binary.LittleEndian.AppendUint32(dst, uint32(m.File))
		dst = append(append(dst, flags), m.Data...)
	case FilePart:
		if len(m.Hash) != hashDigits {
			return dst[:at], fmt.Errorf("file part: a hash of %d digits", len(m.Hash))
		}
		var flags byte
		if m.Last {
			flags = 1
		}
		dst = binary.LittleEndian.AppendUint32(dst, uint32(m.Group))
		dst = append(append(append(dst, flags), m.Hash...), m.Data...)
	default:
		body, err := json.Marshal(escapeAll(m))
		if err != nil {
			return dst[:at], fmt.Errorf("message to or from an agent: %w", err)
		}
		dst = append(dst, body...)
	}
	n := len(dst) - at - 4
	if n-1 > MaxBody {
		return dst[:at], fmt.Errorf("message to or from an agent has %d bytes, more than %d", n-1, MaxBody)
	}
	binary.LittleEndian.PutUint32(dst[at:], uint32(n))
	return dst, nil
}

// Read reads a frame from r and returns its message. It blocks until r has given the whole frame.
// The caller owns the data of the message. The error is io.EOF if the stream ends between frames,
// and io.ErrUnexpectedEOF if it ends within one. It wraps ErrFrame if the bytes are not a valid
// frame. Read returns other errors of r unchanged.
func Read(r io.Reader) (Message, error) {
	var head [headBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := int64(binary.LittleEndian.Uint32(head[:])) - 1
	if n < 0 || n > MaxBody {
		return nil, fmt.Errorf("%w: %d bytes", ErrFrame, n)
	}
	var body bytes.Buffer
	// Reserve no more, because n may be wrong. The buffer grows further as bytes arrive.
	body.Grow(int(min(n, 64<<10)))
	if _, err := io.CopyN(&body, r, n); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return Parse(Kind(head[4]), body.Bytes())
}

// Parse parses the body of a frame of this kind, and returns the message. If the message has a
// field Data, that shares memory with body, so the caller must not change body any more. Errors
// wrap ErrFrame.
func Parse(kind Kind, body []byte) (Message, error) {
	switch kind {
	case KindBeat:
		return Beat{}, nil
	case KindBye:
		return Bye{}, nil
	case KindWatch:
		return decode[Watch](kind, body)
	case KindSpawn:
		return decode[Spawn](kind, body)
	case KindDismiss:
		return decode[Dismiss](kind, body)
	case KindOutput:
		if len(body) < outputHead || body[12] > 3 {
			return nil, fmt.Errorf("%w: output of %d bytes", ErrFrame, len(body))
		}
		return Output{
			Index:  int(binary.LittleEndian.Uint32(body)),
			Group:  int(binary.LittleEndian.Uint32(body[4:])),
			Stream: int(int32(binary.LittleEndian.Uint32(body[8:]))),
			Stderr: body[12]&1 != 0, Mid: body[12]&2 != 0, Data: body[outputHead:],
		}, nil
	case KindStdin:
		return Stdin{Data: body}, nil
	case KindFile:
		if len(body) < fileHead || body[4] > 1 {
			return nil, fmt.Errorf("%w: a file's part of %d bytes", ErrFrame, len(body))
		}
		return FilePart{Group: int(binary.LittleEndian.Uint32(body)), Last: body[4] == 1, Hash: string(body[5:fileHead]), Data: body[fileHead:]}, nil
	case KindStacks:
		if len(body) < stacksHead {
			return nil, fmt.Errorf("%w: stacks of %d bytes", ErrFrame, len(body))
		}
		return Stacks{N: int(binary.LittleEndian.Uint32(body)), Rank: int(binary.LittleEndian.Uint32(body[4:])), Data: body[stacksHead:]}, nil
	case KindFetch:
		return decode[Fetch](kind, body)
	case KindPart:
		if len(body) < partHead || body[12] > 1 {
			return nil, fmt.Errorf("%w: part of %d bytes", ErrFrame, len(body))
		}
		return Part{
			Index: int(binary.LittleEndian.Uint32(body)), Rank: int(binary.LittleEndian.Uint32(body[4:])),
			File: int(binary.LittleEndian.Uint32(body[8:])), Failed: body[12] == 1, Data: body[partHead:],
		}, nil
	case KindAskTime:
		return decode[AskTime](kind, body)
	case KindTime:
		return decode[Time](kind, body)
	case KindCapture:
		return decode[Capture](kind, body)
	case KindCaptured:
		return decode[Captured](kind, body)
	case KindInspect:
		return decode[Inspect](kind, body)
	case KindInspected:
		return decode[Inspected](kind, body)
	case KindMeasure:
		return decode[Measure](kind, body)
	case KindMeasured:
		return decode[Measured](kind, body)
	case KindLaunch:
		return decode[Launch](kind, body)
	case KindUp:
		return decode[Up](kind, body)
	case KindPrepare:
		return decode[Prepare](kind, body)
	case KindPrepared:
		return decode[Prepared](kind, body)
	case KindFileCredit:
		return decode[FileCredit](kind, body)
	case KindStaged:
		return decode[Staged](kind, body)
	case KindStart:
		return decode[Start](kind, body)
	case KindStarted:
		return decode[Started](kind, body)
	case KindFence:
		return decode[Fence](kind, body)
	case KindRelease:
		return decode[Release](kind, body)
	case KindState:
		return decode[State](kind, body)
	case KindRequest:
		return decode[Request](kind, body)
	case KindReply:
		return decode[Reply](kind, body)
	case KindCredit:
		return decode[Credit](kind, body)
	case KindOutputClosed:
		return decode[OutputClosed](kind, body)
	case KindStdinCredit:
		return decode[StdinCredit](kind, body)
	case KindSignal:
		return decode[Signal](kind, body)
	case KindRanksFailed:
		return decode[RanksFailed](kind, body)
	case KindAborted:
		return decode[Aborted](kind, body)
	case KindExited:
		return decode[Exited](kind, body)
	case KindLost:
		return decode[Lost](kind, body)
	case KindLog:
		return decode[Log](kind, body)
	case KindEnd:
		return decode[End](kind, body)
	case KindEnded:
		return decode[Ended](kind, body)
	}
	return nil, fmt.Errorf("%w: kind %d", ErrFrame, kind)
}

// decode parses the body of a message of type M that is JSON. Errors wrap ErrFrame.
func decode[M Message](kind Kind, body []byte) (Message, error) {
	var m M
	err := json.Unmarshal(body, &m)
	if err == nil {
		m, err = unescapeAll(m)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: kind %d: %w", ErrFrame, kind, err)
	}
	return m, nil
}
