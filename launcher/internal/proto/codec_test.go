package proto

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/internal/place"
)

// kinds is one more than the number of the last Kind.
const kinds = int(KindCaptured) + 1

// empty holds the zero message of each kind, by Kind; nil for 0, which is no Kind.
var empty = [kinds]Message{
	KindBeat: Beat{}, KindLaunch: Launch{}, KindUp: Up{}, KindPrepare: Prepare{}, KindPrepared: Prepared{},
	KindFile: FilePart{}, KindStaged: Staged{}, KindStart: Start{}, KindStarted: Started{}, KindFence: Fence{},
	KindRelease: Release{}, KindState: State{}, KindWatch: Watch{}, KindRequest: Request{}, KindReply: Reply{},
	KindOutput: Output{}, KindCredit: Credit{}, KindOutputClosed: OutputClosed{}, KindStdin: Stdin{}, KindStdinCredit: StdinCredit{},
	KindSignal: Signal{}, KindRanksFailed: RanksFailed{}, KindAborted: Aborted{}, KindExited: Exited{}, KindLost: Lost{},
	KindLog: Log{}, KindEnd: End{}, KindEnded: Ended{}, KindBye: Bye{}, KindFileCredit: FileCredit{},
	KindInspect: Inspect{}, KindStacks: Stacks{}, KindInspected: Inspected{}, KindSpawn: Spawn{}, KindDismiss: Dismiss{},
	KindMeasure: Measure{}, KindMeasured: Measured{}, KindFetch: Fetch{}, KindPart: Part{}, KindAskTime: AskTime{}, KindTime: Time{},
	KindCapture: Capture{}, KindCaptured: Captured{},
}

// full returns a message of each kind in which every field is set.
func full(t testing.TB) []Message {
	var list []Message
	for _, m := range empty[1:] {
		v := reflect.New(reflect.TypeOf(m)).Elem()
		fill(t, v, 1)
		list = append(list, v.Interface().(Message))
	}
	return list
}

// fill sets v and everything in it, except topologies, to values that are not zero and mostly
// differ from each other.
func fill(t testing.TB, v reflect.Value, seed int) {
	if v.Type() == reflect.TypeFor[place.Topology]() {
		return // the tests of package place check how topologies are encoded
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), seed+i)
			if v.Type().Field(i).Name == "Hash" {
				v.Field(i).SetString(strings.Repeat("0123456789abcdef", hashDigits/16))
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(t, v.Index(i), seed+i)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(t, v.Index(i), seed+i)
		}
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"key": "value with \"quotes\" and \x01", "": "x"}))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), seed)
	case reflect.String:
		v.SetString("text\n" + strings.Repeat("é", seed))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(seed) + 1000)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(seed))
	default:
		t.Fatalf("a field of kind %v", v.Kind())
	}
}

func TestRoundTrip(t *testing.T) {
	var stream []byte
	var sent []Message
	for _, m := range append(full(t), empty[1:]...) {
		if f, ok := m.(FilePart); ok && f.Hash == "" {
			_, err := Append(nil, m)
			require.Error(t, err)
			continue
		}
		before := len(stream)
		var err error
		stream, err = Append(stream, m)
		require.NoError(t, err, "%T", m)
		frame := stream[before:]
		require.Equal(t, len(frame), 4+int(binary.LittleEndian.Uint32(frame)))
		got, err := Parse(Kind(frame[4]), frame[headBytes:])
		require.NoError(t, err, "%T", m)
		same(t, m, got)
		sent = append(sent, m)
	}
	for name, r := range map[string]io.Reader{"whole": bytes.NewReader(stream), "bytes": iotest.OneByteReader(bytes.NewReader(stream))} {
		for _, m := range sent {
			got, err := Read(r)
			require.NoError(t, err, name)
			same(t, m, got)
		}
		_, err := Read(r)
		require.Equal(t, io.EOF, err)
	}
}

// same fails the test unless two messages are equal. Data that is empty and Data that is nil count
// as equal.
func same(t *testing.T, want, got Message) {
	t.Helper()
	for _, m := range []*Message{&want, &got} {
		switch d := (*m).(type) {
		case Output:
			d.Data = append([]byte{}, d.Data...)
			*m = d
		case Stdin:
			d.Data = append([]byte{}, d.Data...)
			*m = d
		case FilePart:
			d.Data = append([]byte{}, d.Data...)
			*m = d
		case Part:
			d.Data = append([]byte{}, d.Data...)
			*m = d
		case Stacks:
			d.Data = append([]byte{}, d.Data...)
			*m = d
		}
	}
	require.Equal(t, want, got)
}

// TestOutputFields: Read must return an Output with extreme values in its binary fields as Append
// has got it.
func TestOutputFields(t *testing.T) {
	for _, o := range []Output{
		{Index: 1<<16 - 1, Stream: Merged, Data: []byte("x")},
		{Index: 0, Stream: 1<<31 - 1, Stderr: true, Data: []byte{}},
		{Index: 7, Stream: 0, Mid: true, Data: make([]byte, 1<<16)},
	} {
		frame, err := Append([]byte("before"), o)
		require.NoError(t, err)
		got, err := Read(bytes.NewReader(frame[len("before"):]))
		require.NoError(t, err)
		require.Equal(t, o, got)
	}
}

// TestBroken: Read must return an error that wraps ErrFrame for bytes that are not a frame, io.EOF
// for the end of the stream between frames, and io.ErrUnexpectedEOF for its end within a frame.
// Append must refuse messages that are too long or invalid.
func TestBroken(t *testing.T) {
	frame := func(n uint32, kind byte, body string) []byte {
		return append(append(binary.LittleEndian.AppendUint32(nil, n), kind), body...)
	}
	for name, c := range map[string]struct {
		data []byte
		is   error
	}{
		"nothing":          {nil, io.EOF},
		"half a head":      {frame(5, 1, "")[:3], io.ErrUnexpectedEOF},
		"no body":          {frame(5, byte(KindLog), ""), io.ErrUnexpectedEOF},
		"half a body":      {frame(100, byte(KindOutput), "0123456789"), io.ErrUnexpectedEOF},
		"huge":             {frame(MaxBody+2, byte(KindStdin), ""), ErrFrame},
		"the largest":      {frame(MaxBody+1, byte(KindStdin), "x"), io.ErrUnexpectedEOF},
		"no kind":          {frame(0, 1, ""), ErrFrame},
		"kind 0":           {frame(1, 0, ""), ErrFrame},
		"kind too high":    {frame(1, byte(kinds), ""), ErrFrame},
		"no JSON":          {frame(4, byte(KindUp), "abc"), ErrFrame},
		"another type":     {frame(12, byte(KindFence), `{"n":"one"}`), ErrFrame},
		"a float":          {frame(10, byte(KindFence), `{"n":1.5}`), ErrFrame},
		"two documents":    {frame(5, byte(KindFence), `{}{}`), ErrFrame},
		"short output":     {frame(13, byte(KindOutput), "0123456789ab"), ErrFrame},
		"flags of output":  {frame(14, byte(KindOutput), "0123456789ab\x04"), ErrFrame},
		"short file":       {frame(11, byte(KindFile), "0123456789"), ErrFrame},
		"flags of a file":  {frame(66, byte(KindFile), "\x02"+strings.Repeat("a", hashDigits)), ErrFrame},
		"another protocol": {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), ErrFrame},
	} {
		m, err := Read(bytes.NewReader(c.data))
		require.ErrorIs(t, err, c.is, name)
		require.Nil(t, m, name)
	}
	_, err := Append(nil, Stdin{Data: make([]byte, MaxBody+1)})
	require.ErrorContains(t, err, "more than")
	old := []byte("old")
	dst, err := Append(old, FilePart{Hash: "short"})
	require.Error(t, err)
	require.Equal(t, old, dst)
	broken := errors.New("broken")
	_, err = Read(iotest.ErrReader(broken))
	require.Equal(t, broken, err)
}

// TestKinds checks that each message type has its Kind, and the numbers of some kinds. The numbers
// must never change, because they are part of the protocol.
func TestKinds(t *testing.T) {
	for k, m := range empty {
		if k > 0 {
			require.Equal(t, Kind(k), m.kind())
		}
	}
	require.Equal(t, Kind(16), KindOutput)
	require.Equal(t, Kind(29), KindBye)
	require.Equal(t, Kind(30), KindFileCredit)
	require.Equal(t, Kind(33), KindInspected)
}

// FuzzRead gives Read arbitrary bytes. It must return an error, or a message that Append can
// encode. Read must decode the result, and Append must encode that to the same bytes.
func FuzzRead(f *testing.F) {
	for _, m := range append(full(f), empty[1:]...) {
		if frame, err := Append(nil, m); err == nil {
			f.Add(frame)
		}
	}
	f.Add([]byte("\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Read(bytes.NewReader(data))
		if err != nil {
			if m != nil || !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, ErrFrame) {
				t.Fatalf("%T, %v", m, err)
			}
			return
		}
		again(t, m)
	})
}

// FuzzParse gives Parse an arbitrary kind and body. The result must be as in FuzzRead.
func FuzzParse(f *testing.F) {
	for _, m := range full(f) {
		if frame, err := Append(nil, m); err == nil {
			f.Add(frame[4], frame[headBytes:])
		}
	}
	f.Fuzz(func(t *testing.T, kind byte, body []byte) {
		m, err := Parse(Kind(kind), body)
		switch {
		case err == nil:
			again(t, m)
		case m != nil || !errors.Is(err, ErrFrame):
			t.Fatalf("%T, %v", m, err)
		}
	})
}

func again(t *testing.T, m Message) {
	frame, err := Append(nil, m)
	if err != nil {
		t.Fatalf("%T cannot be written again: %v", m, err)
	}
	second, err := Read(bytes.NewReader(frame))
	if err != nil {
		t.Fatalf("%T cannot be read again: %v", m, err)
	}
	frame2, err := Append(nil, second)
	if err != nil || !bytes.Equal(frame, frame2) {
		t.Fatalf("%T changes: %q, %q, %v", m, frame, frame2, err)
	}
}
